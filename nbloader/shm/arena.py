"""Arenas: segments of the notebook's process that all workers map and write at the same time.

    notebook: ArenaWriter.begin() -> each worker is sent the part that it writes -> all parts written: commit()
                                                                             -> not all written:   abort()
    worker:   ArenaMaps.memory(number) -> write a part
    notebook: ArenaWriter.reader.view() -> lend() -> arrays on the arena -> collected -> the arena is free

A worker cannot be prevented from writing. So an arena to which a worker may still write by mistake (a poisoned arena)
is never used again.
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable
from typing import Any

from nbloader.shm.segment import Block, FreeSegments, SegmentReader, anonymous_file, mapped, segment_size


class ArenaWriter:
    """The arenas of one loader; implements `BlockWriter`.

    Args:
        workers: Returns the uids of the workers that are running.
        announce: Sends an arena to all workers, given its number and descriptor. Returns the uids of the workers that
            have it.
        retire: Tells workers to forget an arena, given its number and their uids.
    """

    def __init__(
        self,
        workers: Callable[[], frozenset[int]],
        announce: Callable[[int, int], frozenset[int]],
        retire: Callable[[int, frozenset[int]], object],
    ) -> None:
        self.reader = SegmentReader()
        self._workers = workers
        self._announce = announce
        self._retire = retire
        self._created = 0
        self._free = FreeSegments(time.monotonic())
        self._sizes: dict[int, int] = {}
        self._holders: dict[int, frozenset[int]] = {}
        self._poisoned: set[int] = set()
        self._aborted: collections.deque[int] = collections.deque()

    def begin(self, nbytes: int) -> Block:
        """See `BlockWriter`. Workers that start later do not have the arena: see `has`."""
        self._collect()
        size = segment_size(nbytes)
        number = self._free.take(size)
        for unused in self._free.unused(time.monotonic()):
            self._forget(unused)
        if number is None:
            number = self._create(size)
        return Block(number, self.reader.mapping(number))

    def commit(self, block: Block) -> None:
        """See `BlockWriter`. The caller then reads or discards the arena through `reader`."""

    def abort(self, block: Block) -> None:
        """See `BlockWriter`. Workers may still write to the arena. Takes no lock, since finalizers may call it."""
        self._aborted.append(block.number)

    def poison(self, block: Block) -> None:
        """Never use an arena again: a worker may still write to it after its batch was read."""
        self._poisoned.add(block.number)

    def has(self, worker: int, block: Block) -> bool:
        """Whether the worker with this uid has the arena."""
        return worker in self._holders.get(block.number, ())

    def rest(self) -> None:
        """Keep only one arena of each size. Called when the loader is idle."""
        self._collect()
        for number in self._free.all_but(1):
            self._forget(number)

    def _create(self, size: int) -> int:
        file: list[int] = []
        try:
            fd = anonymous_file(size, file)
            number, self._created = self._created, self._created + 1
            holders = self._announce(number, fd)
            try:
                self.reader.add(number, fd)
            except BaseException:
                self._retire(number, holders)
                raise
        finally:
            for opened in file:
                os.close(opened)
        self._holders[number] = holders
        self._sizes[number] = size
        return number

    def _collect(self) -> None:
        """Process the returned arenas: an arena that all workers have and to which nobody still writes is free."""
        while self._aborted:
            number = self._aborted.popleft()
            self._poisoned.add(number)
            self.reader.discard(number)
        while self.reader.inherited:
            self._forget(self.reader.inherited.popleft())
        workers = self._workers()
        for number in self.reader.take_returned():
            if number in self._poisoned or not workers <= self._holders[number]:
                self._forget(number)
            else:
                self._free.put(number, self._sizes[number])

    def _forget(self, number: int) -> None:
        self._retire(number, self._holders.pop(number))
        self.reader.forget(number)
        self._poisoned.discard(number)
        del self._sizes[number]


class ArenaMaps:
    """The arenas, as a worker sees them."""

    def __init__(self) -> None:
        self._maps: dict[int, Any] = {}

    def add(self, number: int, fd: int) -> None:
        """Map a new arena. Takes ownership of the descriptor."""
        try:
            self._maps[number] = mapped(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    def forget(self, number: int) -> None:
        """Drop an arena that is no longer used."""
        del self._maps[number]

    def memory(self, number: int) -> Any:
        """Return the memory of an arena; None if this worker does not have it."""
        return self._maps.get(number)
