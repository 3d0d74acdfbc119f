"""Registers shared memory with an accelerator's runtime, so that devices copy from it while the host goes on."""

from __future__ import annotations

import collections
import ctypes
import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from nbloader._util.signals import interrupts_deferred
from nbloader.device.accelerator import MemoryKind

log = logging.getLogger(__name__)


class HostMemory(Protocol):
    """The functions of a runtime that register memory of the host, such as cudaHostRegister."""

    def register(self, address: int, size: int, device: Any) -> None:
        """Pin memory in place for all devices, in the context of one device.

        Raises:
            MemoryError: The system does not allow to pin that much memory.
            OSError: The memory cannot be pinned for another reason.
        """
        ...

    def unregister(self, address: int, device: Any) -> None:
        """Unpin memory.

        Raises:
            OSError: It cannot be unpinned.
        """
        ...


class _Retired(NamedTuple):
    """A segment that nobody uses any more."""

    address: int
    registered: bool
    device: Any
    """The device in whose context it was registered."""
    unmap: Callable[[], object]


class Registry:
    """The registered segments of a process. A segment may be copied to several devices, and is registered once.

    A runtime does not register or unregister memory while a CUDA graph is captured on any thread, and segments are
    dropped on the engine's thread at any time. So while a loader uses the registry, a segment that is dropped stays
    mapped until the consumer asks for a batch or closes the loader (`release`).

    Args:
        runtime: Registers memory.
    """

    def __init__(self, runtime: HostMemory) -> None:
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._runtime = runtime
        self._sizes: dict[int, int] = {}  # registered bytes by address; 0 if the segment could not be registered
        self._retired: collections.deque[_Retired] = collections.deque()
        self._too_much: int | None = None  # so many bytes in total could not be registered

    @property
    def nbytes(self) -> int:
        """Number of bytes that are registered. Thread-safe."""
        return sum(list(self._sizes.values()))

    def enter(self, user: object) -> None:
        """Let a user call `release` from time to time: whenever it may, and before it leaves."""
        weakref.finalize(user, self._release_unused).atexit = False  # runs after the set has dropped the user
        self._users.add(user)

    def leave(self, user: object) -> None:
        """Release what nobody uses. From here on, `release` is not expected from this user."""
        self._users.discard(user)
        self.release()

    def memory_for(self, mapping: Any, device: Any) -> MemoryKind:
        """Return the kind of memory for a batch in `mapping`. A new mapping is registered if possible.

        Args:
            mapping: A segment as `_platform.mapped` has returned it; None if the batch is not in a segment.
            device: The device to which the batch is copied.
        """
        self.release()
        if mapping is None:
            return "copied"
        registered = self._sizes.get(ctypes.addressof(mapping))
        if registered is None:
            registered = self._register(mapping, device)
        return "registered" if registered else "copied"

    def release(self) -> None:
        """Unregister and unmap segments that nobody uses any more."""
        while self._retired:
            with interrupts_deferred():
                try:
                    segment = self._retired.popleft()
                except IndexError:  # another thread took it
                    return
                self._drop(segment)

    def _register(self, mapping: Any, device: Any) -> int:
        """Return the number of registered bytes."""
        address, size = ctypes.addressof(mapping), ctypes.sizeof(mapping)
        total = self.nbytes + size
        if self._too_much is not None and total >= self._too_much:
            return 0  # each attempt is slow
        with interrupts_deferred():
            try:
                self._runtime.register(address, size, device)
            except MemoryError as error:
                self._too_much = total
                log.warning(
                    "%.1f MB of shared memory cannot be pinned, in addition to %.1f MB (%s): batches are copied to "
                    "pinned memory instead. Raise the limit of locked memory, or lower prefetch_factor.",
                    size / 1e6, (total - size) / 1e6, str(error),
                )  # fmt: skip
                return 0
            except OSError as error:
                log.warning(
                    "%.1f MB of shared memory cannot be pinned (%s): they are copied instead", size / 1e6, error
                )
                size = 0
            self._sizes[address] = size
            _memory, unmap, arguments, _keywords = mapping.unmap.detach()
            segment = _Retired(address, size > 0, device, functools.partial(unmap, *arguments))
            weakref.finalize(mapping, self._retire, segment).atexit = False
        return size

    def _retire(self, segment: _Retired) -> None:
        """Called on any thread when nobody uses a segment any more."""
        self._retired.append(segment)
        self._release_unused()

    def _release_unused(self) -> None:
        if not self._users:
            self.release()

    def _drop(self, segment: _Retired) -> None:
        del self._sizes[segment.address]  # before another segment is mapped there
        if segment.registered:
            try:
                self._runtime.unregister(segment.address, segment.device)
            except OSError as error:
                log.warning("shared memory cannot be unpinned, and stays in use: %s", str(error))
                return
        segment.unmap()
