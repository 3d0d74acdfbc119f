"""What a dataset shares with its workers while they run: values, queues, connections, tensors in shared memory.

These, and the locks and managers' proxies of `multiprocessing`, are pickled in its own way, as for a process that it
starts itself: semaphores by their name, the rest by descriptors, which go to each worker beside the pickle.

    notebook: with Handing() as handing: pickle ... -> handing.fds -> wire
    worker:   take_over(...), unpickle; each descriptor is duplicated when it is asked for
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import weakref
from multiprocessing import context, reduction
from typing import Any, NamedTuple

from nbloader.batch.pickles import SHARE_FROM, Pickler, is_plain

OF_FORK = (
    "a lock of multiprocessing's fork context (as in Value, Array, Event, Queue) has no name by which another process "
    "could find it: make it by multiprocessing.get_context('forkserver'), such as "
    "multiprocessing.get_context('forkserver').Value('i', 0)"
)
_NOT_THEIRS = frozenset({"_reduce_method", "_reduce_method_descriptor", "_reduce_partial"})
"""Reducers for what cloudpickle does better."""


class Handed:
    """In a pickle: a descriptor that was handed over, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        """A duplicate of the descriptor, in the worker; the caller owns it."""
        return os.dup(_received[self.number])


class Handing:
    """In a `with`: pickling on this thread is for a worker, as far as `multiprocessing` asks.

    It stands where `multiprocessing` has the `Popen` of the process that is being started.
    """

    DupFd = Handed

    def __init__(self) -> None:
        self.fds: list[int] = []
        """Duplicates of what was handed over, in order; closed when this is gone."""
        weakref.finalize(self, _close, self.fds).atexit = False
        self._before: Any = None

    def duplicate_for_child(self, fd: int) -> int:
        """Hand a descriptor over. Returns its number."""
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    @property
    def identity(self) -> list[tuple[int, int]]:
        """Equal where the same files were handed over."""
        return [(stat.st_dev, stat.st_ino) for stat in map(os.fstat, self.fds)]

    def __enter__(self) -> Handing:
        """Begin."""
        self._before = context.get_spawning_popen()
        context.set_spawning_popen(self)  # type: ignore[arg-type]
        return self

    def __exit__(self, *_exc: object) -> None:
        """End."""
        context.set_spawning_popen(self._before)


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


class SharingPickler(Pickler):
    """Pickles what is shared between processes so that it stays shared. Only within `Handing`."""

    def reducer_override(self, obj: Any) -> Any:
        """See `Pickler`."""
        if getattr(getattr(obj, "_semlock", None), "name", "") is None:
            raise TypeError(OF_FORK)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
            if not _is_shared(torch, obj) or _lies_in_a_file(torch, obj):
                return super().reducer_override(obj)
            reduce = _reducers().get(type(obj))
        else:
            reduce = _reducers().get(type(obj))
            if getattr(reduce, "__name__", "") in _NOT_THEIRS:
                reduce = None
        return super().reducer_override(obj) if reduce is None else reduce(obj)


def _reducers() -> dict[type, Any]:
    found: dict[type, Any] = reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return found


def _is_shared(torch: Any, obj: Any) -> bool:
    if isinstance(obj, torch.Tensor):
        return obj.is_cpu and obj.layout is torch.strided and not obj.is_nested and obj.is_shared()
    storage = obj._untyped_storage if isinstance(obj, torch.TypedStorage) else obj
    return storage.device.type == "cpu" and bool(storage.is_shared())


def _lies_in_a_file(torch: Any, obj: Any) -> bool:
    """Whether the file in which it lies goes to the workers as that of any large array (shared.py)."""
    return type(obj) is torch.Tensor and obj.nbytes >= SHARE_FROM and is_plain(torch, obj)


# ---- beside the dataset -------------------------------------------------------------------------------------------


class Heritage(NamedTuple):
    """What a worker takes over of this process besides the dataset."""

    fds: int
    """How many descriptors were handed over."""
    tracked: bool
    """Whether the last of them is the connection to `multiprocessing`'s resource tracker: a tracker of the worker's
    own would take shared memory that it sees for its own, and delete it in the end."""
    authkey: bytes | None
    """What managers know this process by, where there are managers."""


def heritage(handing: Handing) -> tuple[Heritage, list[int]]:
    """What the next worker takes over, and its descriptors."""
    tracker = _tracker()
    fd = None if tracker is None else tracker._fd
    fds = handing.fds if fd is None else [*handing.fds, fd]
    key = bytes(multiprocessing.current_process().authkey) if "multiprocessing.managers" in sys.modules else None
    return Heritage(len(fds), fd is not None, key), fds


def _tracker() -> Any:
    module = sys.modules.get("multiprocessing.resource_tracker")
    return None if module is None else module._resource_tracker


_received: list[int] = []


def take_over(kept: Heritage, fds: list[int]) -> None:
    """In a worker: make them this process's."""
    if kept.tracked:
        from multiprocessing import resource_tracker

        resource_tracker._resource_tracker._fd = fds.pop()  # type: ignore[attr-defined]
    if kept.authkey is not None:
        multiprocessing.current_process().authkey = kept.authkey
    _received[:] = fds


def leave() -> None:
    """In a worker that ends: what was put into queues is sent, and processes that were started end."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        with contextlib.suppress(Exception):  # whatever finalizers raise, the worker ends
            util._exit_function()
