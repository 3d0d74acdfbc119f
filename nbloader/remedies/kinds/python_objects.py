"""A long list of Python objects, which each worker copies page by page."""

from __future__ import annotations

import ast
import itertools
import sys
from typing import Any

from nbloader._util.format import megabytes
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site

MANY = 100_000
"""Number of objects from which their copies are worth a sentence."""
LOOKED_AT = 1000


class PythonObjects:
    """`self.rows[i]` of a long list: reading an object changes its reference count, and so copies its page."""

    name = "python-objects"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`. It saves memory, not time, so that there is nothing to try."""
        for node in site.nodes:
            if not isinstance(node, ast.Subscript):
                continue
            rows = site.target(node.value)
            if isinstance(rows, (list, dict)) and len(rows) >= MANY:
                name = site.text(node.value)
                why = (
                    f"{name} has {len(rows):,} Python objects, about {megabytes(_nbytes(rows))}: each worker process "
                    "copies them little by little, as it reads them."
                )
                instead = f"Share them: {name} = nbloader.share({name}) in __init__, or keep numbers in an array."
                return [Proposal(why, instead, untried="it saves memory, not time")]
        return []


def _nbytes(rows: Any) -> int:
    """Estimate the memory of the objects from the first ones."""
    first = list(itertools.islice(rows.values() if isinstance(rows, dict) else rows, LOOKED_AT))
    return len(rows) * sum(_size(value) for value in first) // len(first)


def _size(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return sys.getsizeof(value) + sum(sys.getsizeof(part) for part in inner)


REMEDY = PythonObjects()
