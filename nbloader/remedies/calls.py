"""Calls of functions while samples are produced: of the user's functions, and of cached ones."""

from __future__ import annotations

import ast
import collections
import contextlib
import hashlib
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

from nbloader._util.code_places import is_library
from nbloader.cache.cached_function import CachedFunction


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

    with _profiled(profile):
        yield calls


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _nbytes(value: Any) -> int:
    """Return the size of an array or a tensor; 0 for a mapped file or a dataset of HDF5, which is not in memory."""
    if type(value) is np.ndarray:
        return value.nbytes
    return int(value.numel() * value.element_size()) if hasattr(type(value), "element_size") else 0


class CachedCalls:
    """Calls of cached functions."""

    def __init__(self) -> None:
        self.counts: collections.Counter[Any] = collections.Counter()
        """Number of calls by their arguments."""
        self.results: dict[Any, Any] = {}
        """What they returned, by their arguments; equal for equal results."""

    def add(self, other: CachedCalls) -> None:
        """Add other calls."""
        self.counts += other.counts
        self.results |= other.results

    @property
    def different(self) -> int:
        """Number of different results."""
        return len(set(self.results.values()))


@contextlib.contextmanager
def cached_calls(namespace: Mapping[str, Any], helper: str) -> Iterator[CachedCalls]:
    """Context manager that records the calls of the cached functions of a helper.

    Args:
        namespace: The global variables among which the functions are.
        helper: The code that defines them.
    """
    names = [node.name for node in ast.parse(helper).body if isinstance(node, ast.FunctionDef)]
    own = [found for name in names if isinstance(found := namespace.get(name), CachedFunction)]
    calls = CachedCalls()
    code = CachedFunction.__call__.__code__
    begun: list[Any] = []

    def profile(frame: FrameType, event: str, value: Any) -> None:
        if event not in ("call", "return") or frame.f_code is not code:
            return
        if not any(frame.f_locals["self"] is one for one in own):
            return
        if event == "call":
            begun.append(_key((frame.f_locals["args"], frame.f_locals["kwargs"])))
            calls.counts[begun[-1]] += 1
        elif begun:
            key = begun.pop()
            if value is not None and key not in calls.results:  # None, if the call has raised
                calls.results[key] = _contents(value)

    with _profiled(profile):
        yield calls


@contextlib.contextmanager
def _profiled(profile: Callable[[FrameType, str, Any], object]) -> Iterator[None]:
    """Context manager in which Python reports the calls of this thread to a function, as `sys.setprofile` says."""
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def _key(value: Any) -> Any:
    """Return what is equal for equal arguments, as far as they can be compared."""
    if isinstance(value, (tuple, list)):
        return type(value), *map(_key, value)
    if isinstance(value, dict):
        return dict, *((key, _key(one)) for key, one in value.items())
    if isinstance(value, torch.Tensor):
        try:
            value = value.detach().cpu().numpy()
        except (TypeError, RuntimeError):  # bfloat16, sparse
            return _contents(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.shape, value.dtype.str, hashlib.blake2b(np.ascontiguousarray(value).tobytes()).digest()
    try:
        hash(value)
    except TypeError:
        return _contents(value)
    return type(value), value


def _contents(value: Any) -> Any:
    """Return a digest of what `pickle` saves of an object; something unique if it cannot be pickled."""
    try:
        return type(value), hashlib.blake2b(pickle.dumps(value)).digest()
    except Exception:  # noqa: BLE001 - of the user's class
        return object()
