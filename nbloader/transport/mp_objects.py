"""Objects that a dataset shares with its workers while they run: `multiprocessing` values, queues, connections, locks.

They are pickled by `multiprocessing`'s own reducers, as for a process that it starts itself: semaphores by name,
everything else by descriptors, which are sent to each worker along with the pickle. Tensors in shared memory are sent
the same way. Locks of `threading`, which cannot be shared, become new ones.

    notebook: with Spawning() as spawning: pickle ... -> spawning.fds -> channel
    worker:   InheritedState.install(fds), unpickle; each descriptor is duplicated when an object asks for it
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing import context, reduction
from typing import TYPE_CHECKING, Any, NamedTuple

from nbloader._platform.descriptors import close_all, open_into
from nbloader._util.plain_tensor import is_plain
from nbloader.batch.pickling import Pickler
from nbloader.shm.dataset_store import SHARE_FROM

if TYPE_CHECKING:
    from nbloader.cache.process_cache import SharedCache

log = logging.getLogger(__name__)

FORK_CONTEXT = (
    "a lock of multiprocessing's fork context (as in Value, Array, Event, Queue) has no name by which another process "
    "could open it: those of multiprocessing.get_context('forkserver') have one"
)
_NOT_USED = frozenset({"_reduce_method", "_reduce_method_descriptor", "_reduce_partial"})
"""Reducers of `multiprocessing` that are not used, because cloudpickle does better."""


def _local_with(values: dict[str, Any]) -> threading.local:
    local = threading.local()
    vars(local).update(values)
    return local


_THREAD_OBJECTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    type(threading.Lock()): lambda _lock: (threading.Lock, ()),
    type(threading.RLock()): lambda _lock: (threading.RLock, ()),
    threading.Condition: lambda condition: (threading.Condition, (condition._lock,)),
    threading.local: lambda local: (_local_with, (dict(vars(local)),)),
}
"""How objects of `threading` that have no reducer are pickled. Events, semaphores, barriers and queues are made of
these. A `threading.local` keeps what the pickling thread sees."""


def _reduce_executor(obj: Any) -> tuple[Any, ...] | None:
    """Reduce an executor, or an event loop that is not running, to a new one; return None for any other object."""
    futures = sys.modules.get("concurrent.futures.thread")
    if futures is not None and type(obj) is futures.ThreadPoolExecutor:
        return type(obj), (obj._max_workers, "", *_initializer(obj))
    futures = sys.modules.get("concurrent.futures.process")
    if futures is not None and type(obj) is futures.ProcessPoolExecutor:
        return type(obj), (obj._max_workers,)
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and isinstance(obj, asyncio.AbstractEventLoop) and not obj.is_running():
        return asyncio.new_event_loop, ()
    return None


def _initializer(executor: Any) -> tuple[Any, Any]:
    """Return the initializer of the threads of a pool, and its arguments."""
    if not hasattr(executor, "_create_worker_context"):  # before Python 3.14
        return executor._initializer, executor._initargs
    context = executor._create_worker_context()
    return context.initializer, context.initargs


class InheritedFd:
    """In a pickle: stands for a descriptor that is sent along with the pickle, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        """In the worker: return a duplicate of the descriptor. The caller owns it."""
        return os.dup(_received[self.number])


class Spawning:
    """A context in which `multiprocessing` objects that this thread pickles are pickled for a worker.

    This object stands in for the `Popen` object of a process that `multiprocessing` starts.
    """

    DupFd = InheritedFd

    def __init__(self) -> None:
        self.fds: list[int] = []
        """Duplicates of the descriptors that the worker needs, in order; closed when this is garbage-collected."""
        weakref.finalize(self, close_all, self.fds).atexit = False
        self._before: Any = None

    def duplicate_for_child(self, fd: int) -> int:
        """Register a descriptor to send to the worker. Returns its number."""
        open_into(self.fds, os.dup, fd)
        return len(self.fds) - 1

    def __enter__(self) -> Spawning:
        """Begin pickling for a worker."""
        self._before = context.get_spawning_popen()
        context.set_spawning_popen(self)  # type: ignore[arg-type]
        return self

    def __exit__(self, *_exc: object) -> None:
        """End pickling for a worker."""
        context.set_spawning_popen(self._before)


class SharingPickler(Pickler):
    """Pickles objects that are shared between processes so that they stay shared. Use it only within `Spawning`.

    Locks of `threading` become new locks that are not held: the threads of the notebook do not exist in the worker.
    """

    def reducer_override(self, obj: Any) -> Any:
        """See `Pickler`."""
        if _is_unnamed_lock(obj):
            raise TypeError(FORK_CONTEXT)
        reduce_lock = _THREAD_OBJECTS.get(type(obj))
        if reduce_lock is not None:
            return reduce_lock(obj)
        executor = _reduce_executor(obj)
        if executor is not None:
            return executor
        if type(obj).__name__ in _GENERATORS and (name := _global_generator(obj)) is not None:
            return _attribute, name
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
            if not _is_shared(torch, obj) or _goes_as_array(torch, obj):
                return super().reducer_override(obj)
            reduce = _reducers().get(type(obj))
        else:
            reduce = _reducers().get(type(obj))
            if getattr(reduce, "__name__", "") in _NOT_USED:
                reduce = None
        if reduce is not None:
            return reduce(obj)
        return super().reducer_override(obj)


def _is_unnamed_lock(obj: Any) -> bool:
    """Whether an object is a lock of `multiprocessing` that only forked processes can use.

    The type is checked first: looking up an attribute would run the `__getattr__` of the user's classes, which may
    raise anything or change the object.
    """
    synchronize = sys.modules.get("multiprocessing.synchronize")
    return synchronize is not None and issubclass(type(obj), synchronize.SemLock) and obj._semlock.name is None


_GENERATORS = frozenset({"Random", "RandomState", "Generator"})
"""Names of the types of random generators."""


def _global_generator(obj: Any) -> tuple[str, str] | None:
    """Return module and attribute of a global generator of `random`, NumPy or torch; None for any other object.

    A worker uses its own global generator, which is seeded for each batch. A pickle can refer to the notebook's through
    functions that were imported from these modules, as by `from random import random`.
    """
    for module, attribute in (("random", "_inst"), ("numpy.random.mtrand", "_rand"), ("torch", "default_generator")):
        if obj is getattr(sys.modules.get(module), attribute, None):
            return module, attribute
    return None


def _attribute(module: str, attribute: str) -> Any:
    return getattr(importlib.import_module(module), attribute)


def _reducers() -> dict[type, Any]:
    found: dict[type, Any] = reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return found


def _is_shared(torch: Any, obj: Any) -> bool:
    if isinstance(obj, torch.Tensor):
        if not obj.is_cpu or obj.layout is not torch.strided or obj.is_nested:
            return False
        storage = obj.untyped_storage()
    else:
        storage = obj._untyped_storage if isinstance(obj, torch.TypedStorage) else obj
    # Not `storage.is_shared()`, which is True for nbloader's batches, too, although torch cannot send their memory.
    return storage.device.type == "cpu" and bool(torch.UntypedStorage.is_shared(storage))


def _goes_as_array(torch: Any, obj: Any) -> bool:
    """Whether a tensor's memory file is sent to workers like that of any large array (dataset_payload.py)."""
    return type(obj) is torch.Tensor and obj.nbytes >= SHARE_FROM and is_plain(torch, obj)


# ---- beside the dataset ---------------------------------------------------------------------------------------------


class InheritedState(NamedTuple):
    """What a worker takes over from the notebook's process: the state of `multiprocessing` and the sample cache."""

    fds: int
    """Number of descriptors that are sent along."""
    tracked: bool
    """Whether the last descriptor is the connection to `multiprocessing`'s resource tracker. If the worker had its own
    tracker, that would delete shared memory that the worker has opened when the worker ends."""
    authkey: bytes
    """The key with which processes of this program authenticate themselves: to managers, and to receive tensors."""
    cache: SharedCache | None
    """The sample cache; None if there is none. Its descriptors come before that one, under other numbers."""

    @classmethod
    def of_this_process(cls, spawning: Spawning) -> tuple[InheritedState, list[int]]:
        """Return the state for the next worker, and the descriptors to send with it."""
        tracker = _tracker()
        fd = None if tracker is None else tracker._fd
        from nbloader.cache import process_cache  # workers without a cache do without it

        cache = process_cache.share()
        fds = [*spawning.fds, *(cache.files if cache else ()), *([] if fd is None else [fd])]
        return cls(len(fds), fd is not None, bytes(multiprocessing.current_process().authkey), cache), fds

    def install(self, fds: list[int]) -> None:
        """In a worker: install the state in this process.

        Args:
            fds: The descriptors that were sent along.
        """
        if self.tracked:
            from multiprocessing import resource_tracker

            resource_tracker._resource_tracker._fd = fds.pop()  # type: ignore[attr-defined]
        if self.cache is not None:
            from nbloader.cache import process_cache

            first = len(fds) - len(self.cache.files)
            process_cache.install(self.cache._replace(files=tuple(fds[first:])))
            del fds[first:]
        multiprocessing.current_process().authkey = self.authkey
        _received[:] = fds


def _tracker() -> Any:
    module = sys.modules.get("multiprocessing.resource_tracker")
    return None if module is None else module._resource_tracker


_received: list[int] = []


def run_finalizers() -> None:
    """In a worker that ends: flush the queues that it has put items into, and end processes that it has started."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        try:
            util._exit_function()
        except Exception:  # whatever the user's finalizers raise, the worker ends
            log.debug("a finalizer of multiprocessing failed", exc_info=True)
