"""Pins the memory of batches, from which a device can copy while the host goes on."""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Callable
from typing import Any

from nbloader.device.accelerator import MemoryKind

log = logging.getLogger(__name__)


class Pinning:
    """Pins batches: in place as long as the system allows it, otherwise by copying them.

    Args:
        memory: The kind of memory to start with.
        register: Pins memory in place, given its address and its size in bytes. Returns "" or the reason for a failure.
        unregister: Unpins memory, given its address.
    """

    def __init__(
        self, memory: MemoryKind, register: Callable[[int, int], str], unregister: Callable[[int], object]
    ) -> None:
        self.memory: MemoryKind = memory
        self._register = register
        self._unregister = unregister
        self._registered: set[int] = set()

    def memory_for(self, mapping: Any) -> MemoryKind:
        """Return the kind of memory for a batch in `mapping`, a ctypes array or None. Registers a new mapping.

        The mapping is unregistered just before it is unmapped: the callbacks of weak references run newest first, and
        the callback that unmaps is older.
        """
        if self.memory != "registered":
            return self.memory
        if mapping is None:
            return "copied"
        address = ctypes.addressof(mapping)
        if address in self._registered:
            return "registered"
        size = ctypes.sizeof(mapping)
        why = self._register(address, size)
        if why:  # a limit of the system: the next segments would fail too, and each attempt is slow
            self.memory = "copied"
            log.warning("%.1f MB of shared memory cannot be pinned (%s): batches are copied instead", size / 1e6, why)
            return self.memory
        self._registered.add(address)
        weakref.finalize(mapping, self._forget, address).atexit = False
        return "registered"

    def _forget(self, address: int) -> None:
        self._registered.discard(address)
        self._unregister(address)
