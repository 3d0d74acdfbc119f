"""How often the user's functions are called, and how large the arrays are that they return, for a sample."""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from nbloader._util.code_places import is_library


class Returned(NamedTuple):
    """What a function has returned."""

    file: str
    line: int
    """The first line of the function."""
    nbytes: tuple[int, ...]
    """Size of each array of a tuple, or of the only one, bytes; 0 for what is no array."""


class Calls(NamedTuple):
    """What functions of the user have done, by file and first line."""

    returned: dict[tuple[str, int], Returned]
    """The largest arrays that each has returned."""
    counts: collections.Counter[tuple[str, int]]
    """Number of calls of each."""


@contextlib.contextmanager
def measure_calls() -> Iterator[Calls]:
    """Context manager that measures the calls of the user's functions."""
    calls = Calls({}, collections.Counter())
    found = calls.returned

    def profile(frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if event != "return" or is_library(code.co_filename):
            return
        calls.counts[code.co_filename, code.co_firstlineno] += 1
        if value is None:
            return
        one = Returned(code.co_filename, code.co_firstlineno, tuple(map(_nbytes, _parts(value))))
        key = one.file, one.line
        if sum(one.nbytes) > (sum(found[key].nbytes) if key in found else 0):
            found[key] = one

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _nbytes(value: Any) -> int:
    """Return the size of an array or a tensor; 0 for a mapped file or a dataset of HDF5, which is not in memory."""
    if type(value) is np.ndarray:
        return value.nbytes
    return int(value.numel() * value.element_size()) if hasattr(type(value), "element_size") else 0
