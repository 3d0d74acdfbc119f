"""What the cache of samples holds already, where a slow line calls a cached function."""

from __future__ import annotations

import ast
from typing import NamedTuple

from nbloader._util.format import megabytes
from nbloader.cache import process_cache
from nbloader.remedies.site import Site

LARGER = 2
"""Results that are at least so many times as large as a sample are called large."""
PAGE = 4096
"""Each result takes a multiple of so many bytes."""


def calls_kept(site: Site) -> list[str]:
    """Return the functions that the slow line calls and that keep their results, as they are written there."""
    calls = [call for node in site.nodes for call in ast.walk(node) if isinstance(call, ast.Call)]
    return [site.text(call.func) for call in calls if site.keeps(call)]


class Held(NamedTuple):
    """What the cache of samples holds. Trials use the same cache, so it is read before them."""

    each: float = 0.0
    """Mean size of its results, bytes; 0 if it has none."""
    is_filled: bool = True
    """See `is_filled`."""


def held() -> Held:
    """Return what the cache of samples holds now."""
    gauge = process_cache.gauge()
    return Held(gauge.nbytes / gauge.entries if gauge is not None and gauge.entries else 0.0, is_filled())


def keep_less(site: Site, each: float) -> str:
    """Say what to keep in the cache of samples instead, as a clause.

    Args:
        site: The line that takes results from it.
        each: Mean size of its results, bytes.
    """
    if site.facts.nbytes and each > LARGER * max(site.facts.nbytes, PAGE):
        return (
            f"a result takes {megabytes(each)}, and a sample {megabytes(site.facts.nbytes)}. Keep the part that a "
            "sample needs, or uint8 instead of float32."
        )
    return "keep what is computed from them instead, as arrays."


def is_filled() -> bool:
    """Whether the cache of samples has returned more results than were computed for it."""
    gauge = process_cache.gauge()
    return gauge is None or gauge.hits > gauge.misses
