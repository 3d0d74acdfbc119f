"""Locks of a dataset that no worker holds and all workers wait for: the process that held them has ended.

A lock of `multiprocessing` is not released if its owner is killed. The workers that are left wait for it forever.
"""

from __future__ import annotations

import collections
import linecache
import re
import sys
from collections.abc import Iterable, Iterator
from multiprocessing import synchronize
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from nbloader.workers.reachable import MAX_ITEMS, MAX_OBJECTS

_LEAVES = (type(None), bool, int, float, complex, str, bytes, type(sys))


class LostLock(NamedTuple):
    """What all workers wait for."""

    paths: tuple[str, ...]
    """Where the locks that are held are found, such as "dataset.lock"; empty if none was found."""

    def advice(self) -> str:
        """Say what has happened, and what to do, in whole sentences."""
        found = " and ".join(self.paths)
        where = next((path for path in self.paths if path.startswith("dataset.")), "dataset.lock")
        return (
            f"All workers wait for {found or 'a lock'}, which none of them holds, because a process died while "
            "it held the lock. Restarting the workers would not help. Give the dataset a new lock, such as "
            f"{where} = multiprocessing.get_context('spawn').Lock(), and call loader.reload() (on another thread while "
            "the loop runs). No batch is lost."
        )


def waits_for_lock(stack: str) -> bool:
    """Whether a stack, as `stack_probe` returns it, ends in the acquisition of a lock of `multiprocessing`."""
    file, line = _innermost(stack)
    return file == synchronize.__file__ or ".acquire(" in linecache.getline(file, line)


def waits_in_multiprocessing(stack: str) -> bool:
    """Whether a stack ends in a lock of `multiprocessing`, whatever it was acquired by."""
    return _innermost(stack)[0] == synchronize.__file__


def _innermost(stack: str) -> tuple[str, int]:
    """Return the file and the line of the innermost frame of the main thread; "" and 0 if there is none."""
    _before, _mark, main = stack.rpartition("Current thread")
    frame = re.search(r'(?m)^  File "(.*)", line (\d+) in ', main)
    return ("", 0) if frame is None else (frame[1], int(frame[2]))


def held_locks(dataset: Any) -> tuple[str, ...]:
    """Return where a dataset refers to locks of `multiprocessing` that some process holds at this moment.

    This runs no code of the dataset. It visits at most `MAX_OBJECTS` objects.
    """
    return tuple(path for path, lock in _locks(dataset) if lock._semlock._is_zero())  # type: ignore[attr-defined]


def _locks(dataset: Any) -> Iterator[tuple[str, synchronize.SemLock]]:
    queue: collections.deque[tuple[str, Any]] = collections.deque([("dataset", dataset)])
    seen: set[int] = set()
    while queue and len(seen) < MAX_OBJECTS:
        path, obj = queue.popleft()
        if id(obj) in seen or isinstance(obj, _LEAVES):
            continue
        seen.add(id(obj))
        if isinstance(obj, synchronize.SemLock):
            yield path, obj
        else:
            queue.extend(_referents(path, obj))


def _referents(path: str, obj: Any) -> Iterable[tuple[str, Any]]:  # noqa: PLR0911 - one for each type
    if isinstance(obj, synchronize.Condition):
        return [(f"{path}._lock", obj.__dict__["_lock"])]  # its semaphores count, and are zero while nobody waits
    if isinstance(obj, synchronize.Event):
        return [(f"{path}._cond", obj.__dict__["_cond"])]
    if isinstance(obj, (list, tuple)):
        return [(f"{path}[{i}]", item) for i, item in enumerate(obj[:MAX_ITEMS])]
    if isinstance(obj, dict):
        return [(f"{path}[{key!r}]", obj[key]) for key in list(obj)[:MAX_ITEMS] if isinstance(key, (str, int))]
    if isinstance(obj, MethodType):
        return [(path, obj.__self__), (path, obj.__func__)]
    if isinstance(obj, FunctionType):
        names = (name for name in obj.__code__.co_names if name in obj.__globals__)
        cells = zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True)
        enclosed = [(f"{name} of {obj.__qualname__}", cell.cell_contents) for name, cell in cells if _is_set(cell)]
        return [*enclosed, *((f"the global {name}", obj.__globals__[name]) for name in names)]
    if isinstance(obj, type):
        return [(f"{obj.__qualname__}.{name}", value) for name, value in list(vars(obj).items())]
    attributes: Any = _attributes(obj)
    return [*((f"{path}.{name}", value) for name, value in attributes), (path, type(obj))]


def _attributes(obj: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an instance without running its class's code."""
    try:
        return list(object.__getattribute__(obj, "__dict__").items())
    except AttributeError:
        return []


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises if it is empty
    except ValueError:
        return False
    return True
