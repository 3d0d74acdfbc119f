"""How large the arrays are that the user's functions return, measured while samples are produced."""

from __future__ import annotations

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


@contextlib.contextmanager
def measure_returned() -> Iterator[dict[tuple[str, int], Returned]]:
    """Context manager that measures the largest arrays that each function of the user returns, by file and line."""
    found: dict[tuple[str, int], Returned] = {}

    def profile(frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if event != "return" or value is None or is_library(code.co_filename):
            return
        one = Returned(code.co_filename, code.co_firstlineno, tuple(map(_nbytes, _parts(value))))
        key = one.file, one.line
        if sum(one.nbytes) > (sum(found[key].nbytes) if key in found else 0):
            found[key] = one

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(before)


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _nbytes(value: Any) -> int:
    """Return the size of an array or a tensor; 0 for a mapped file or a dataset of HDF5, which is not in memory."""
    if type(value) is np.ndarray:
        return value.nbytes
    return int(value.numel() * value.element_size()) if hasattr(type(value), "element_size") else 0
