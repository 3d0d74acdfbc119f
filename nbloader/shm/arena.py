"""Arenas: segments of the notebook's process that all workers map and write at the same time.

    notebook: ArenaWriter.begin() -> each worker is sent the part that it writes -> all parts written: commit()
                                                                             -> not all written:   abort()
    worker:   ArenaMaps.memory(number) -> write a part
    notebook: ArenaWriter.reader.lend() -> arrays on the arena -> collected -> the arena is free

A worker cannot be stopped from writing. So an arena to which a worker may still write by mistake (a poisoned arena)
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
    """The arenas of one loader; a `BlockWriter`.

    Args:
        workers: The uids of the workers that run now.
        announce: Sends an arena (number, descriptor) to all workers; returns the uids of those who have it.
        retire: Has these workers forget an arena: (number, uids).
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
        """See `BlockWriter`. Workers that start later do not have the arena (`has`)."""
        self._collect()
        size = segment_size(nbytes)
        number = self._free.take(size)
        for unused in self._free.unused(time.monotonic()):
            self._forget(unused)
        if number is None:
            number = self._create(size)
        return Block(number, self.reader.mapping(number))

    def commit(self, block: Block) -> None:
        """See `BlockWriter`. The caller reads the arena through `reader`, or has the reader discard it."""

    def abort(self, block: Block) -> None:
        """See `BlockWriter`. Workers may still write to it. Takes no lock: finalizers may call it."""
        self._aborted.append(block.number)

    def poison(self, block: Block) -> None:
        """A worker may still write to it when its batch was read: never use it again."""
        self._poisoned.add(block.number)

    def has(self, worker: int, block: Block) -> bool:
        """Whether the worker with this uid has the arena."""
        return worker in self._holders.get(block.number, ())

    def rest(self) -> None:
        """There is nothing to do for now: keep one arena of each size."""
        self._collect()
        for number in self._free.all_but(1):
            self._forget(number)

    def _create(self, size: int) -> int:
        fd = anonymous_file(size)
        number, self._created = self._created, self._created + 1
        try:
            holders = self._announce(number, fd)
        except BaseException:
            os.close(fd)
            raise
        try:
            self.reader.add(number, fd)
        except BaseException:
            self._retire(number, holders)
            raise
        self._holders[number] = holders
        self._sizes[number] = size
        return number

    def _collect(self) -> None:
        """Process what was returned: an arena that all workers have and nobody else writes to is free."""
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
    """A worker's view of the arenas."""

    def __init__(self) -> None:
        self._maps: dict[int, Any] = {}

    def add(self, number: int, fd: int) -> None:
        """Map a new arena; takes ownership of the descriptor."""
        try:
            self._maps[number] = mapped(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    def forget(self, number: int) -> None:
        """The arena is not used any more."""
        del self._maps[number]

    def memory(self, number: int) -> Any:
        """The memory of an arena; None if this worker does not have it."""
        return self._maps.get(number)
