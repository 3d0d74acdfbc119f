"""Fetching where a sample that raises does not end its batch: `on_error`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, MutableSequence
from typing import Any, Literal, TypeAlias

from nbloader.events.failures import SpareSample, describe
from nbloader.workers import fetcher as f

_clock = time.perf_counter_ns

OnError: TypeAlias = "Literal['raise', 'skip'] | Callable[[Any, Exception], Any]"


def fetch(
    dataset: Any, indices: Any, *, batched: bool, status: MutableSequence[int], on_error: OnError
) -> tuple[f.Fetched | None, list[SpareSample]]:
    """Get the samples of one batch; those that raise are left out or replaced.

    A dataset whose `__getitems__` raises is asked for the samples one by one, to find out which.

    Args:
        dataset: As for `fetch.fetch`.
        indices: As there.
        batched: As there.
        status: As there.
        on_error: "raise", "skip", or a function that gives a sample in place of the one that raised.

    Returns:
        What was fetched, None if no sample is left; and what raised.
    """
    if on_error == "raise":
        return f.fetch(dataset, indices, batched=batched, status=status), []
    getitems = getattr(dataset, "__getitems__", None) if batched else None
    if not getitems:
        get = dataset.__getitem__
    else:
        with contextlib.suppress(Exception):  # the user's dataset: which sample raised will be seen one by one
            return f.fetch(dataset, indices, batched=True, status=status), []
        get = lambda index: getitems([index])[0]  # noqa: E731
    return _one_by_one(get, indices, batched=batched, status=status, on_error=on_error)


def _one_by_one(
    get: Callable[[Any], Any], indices: Any, *, batched: bool, status: MutableSequence[int], on_error: OnError
) -> tuple[f.Fetched | None, list[SpareSample]]:
    begin = before = _clock()
    status[f.STATE], status[f.SINCE] = f.FETCHING, begin
    samples: list[Any] = []
    spared: list[SpareSample] = []
    slowest = slowest_ns = -1
    for position, index in enumerate(indices if batched else [indices]):
        status[f.POSITION] = position
        try:
            samples.append(get(index))
        except Exception as error:  # noqa: BLE001 - whatever the user's dataset raises
            if callable(on_error):
                samples.append(on_error(index, error))
            spared.append(spare(position, error, on_error))
        now = _clock()
        if now - before > slowest_ns:
            slowest, slowest_ns = position, now - before
        before = now
    if spared and not samples:
        return None, spared
    return f.Fetched(samples if batched else samples[0], begin, before, slowest, max(slowest_ns, 0)), spared


def spare(position: int, error: Exception, on_error: OnError) -> SpareSample:
    """What to tell of a sample that raised and was left out or replaced."""
    _data, name, message, trace = describe(error, by_value=False)
    return SpareSample(position, f"{name}: {message}", trace, "replaced" if callable(on_error) else "skipped")
