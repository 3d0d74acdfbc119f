"""The cache in shared memory: entries that all processes of a notebook read and write, without a server process.

    index file: header | counters of each process | buckets of slots    mapped by all
    data file:  the entries, each at its own offset                     read and written by system calls

The notebook's process creates both files; workers receive their descriptors. Both are memory files: they vanish when
the last process that has them open ends, however it ends.

**Writing.** All that changes the index holds a lock, which the system releases if its owner dies. An entry gets memory
with the lock held, is written without holding it, and then gets its slot with the lock held. The offset of the entry is
stored last and commits the slot. No offset is used twice: a file with 64-bit offsets does not run out of them. When an
entry is dropped, its slot is cleared first. Then its memory is freed and becomes a hole in the file.

**Reading** takes no lock. A reader copies the slot, then the entry, and checks that the slot has not changed: then the
memory of the entry was not freed in the meantime.

**A process that is killed** leaves at most memory that no slot refers to, and counters that are off by one entry. The
header counts the writers, who also share a second lock while they write. A writer that is counted, although nobody else
has that lock, has died: the next one then recounts the entries and frees all memory that no slot refers to.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from nbloader._platform import available_memory, lock, new_file, open_again, punch, unlock
from nbloader._platform.descriptors import close_all
from nbloader.cache.entry import Entry, Found, allocate
from nbloader.cache.file_io import read_into, write_all
from nbloader.cache.policy import MARGIN, victims, worth

PAGE = mmap.PAGESIZE
CONFIG_AT = 1024
"""Offset in the header of the options that all processes use."""
PROCESSES = 1024
"""Number of processes that have a place of their own for their counters. All others share the first place."""
WAYS = 16
"""Slots per bucket. An entry can only be in the bucket that its key selects."""
BYTES_PER_SLOT = 16 * 1024
"""Memory limit per slot. If entries are larger on average, the memory limit is reached before the slots run out."""
MIN_SLOTS, MAX_SLOTS = 1 << 12, 1 << 22
CHECK_EVERY = 32 << 20
"""Bytes that a process writes before it checks the available memory again."""
RESERVE = 256 << 20
"""Bytes of memory that the cache leaves to the rest of the system. On a small system, it leaves a tenth instead."""
SPARE = 128
"""A search for memory frees at most 1/`SPARE` of the limit beyond what is needed."""
SEARCH_EVERY = 32
"""After a failed search for a new entry, number of entries of no higher worth that are rejected without a search."""
MAX_REUSES = 1 << 16
"""Maximum number of uses, per process, over which the distance between two uses of an entry is averaged."""

# Words of the header.
_SLOTS, _LIMIT, _USED, _ENTRIES, _END, _WRITERS, _EVICTIONS, _CONFIG = range(8)
# Counters.
_HITS, _MISSES, _SAVED, _DISK_HITS, _REUSE_SUM, _REUSES = _COUNTERS = range(6)
# Bytes of the index file that are locked.
_INDEX_LOCK, _WRITERS_LOCK, _PLACE_LOCKS = range(3)

_COUNTERS_AT = PAGE
_SLOTS_AT = _COUNTERS_AT + len(_COUNTERS) * PROCESSES * 8
_SLOT = np.dtype([
    ("key", "V16"), ("offset", "<u8"), ("size", "<u8"), ("meta", "<u4"), ("cost", "<u4"), ("last", "<u8"),
])  # fmt: skip
"""Key; offset in the data file, 0 if the slot is free; size; size of the meta part; cost in us; access of last use."""
_RECORD = struct.Struct("<16sQQII")
"""A slot without the last use."""
_OFFSET_AT, _LAST_AT = 16, _RECORD.size
_CONFIG_HEAD = struct.Struct("<IH")
"""Checksum of the options, and their size in bytes."""


class Counters(NamedTuple):
    """The use of the cache by all processes since it was created, and its contents."""

    hits: int
    misses: int
    disk_hits: int
    saved_us: int
    evictions: int
    entries: int
    nbytes: int
    limit: int


class MemoryStore:
    """The cache in shared memory.

    Args:
        files: The descriptors of the index file and of the data file. This object owns and closes them.

    Raises:
        OSError: There are too many open files.
    """

    def __init__(self, files: list[int]) -> None:
        self._files = files  # index, data, and the index once more, for locks
        weakref.finalize(self, close_all, files).atexit = False
        self.index_fd, self.data_fd = files
        self._map = mmap.mmap(self.index_fd, os.fstat(self.index_fd).st_size)
        self._words = memoryview(self._map).cast("Q")
        counters = np.frombuffer(self._map, np.uint64, len(_COUNTERS) * PROCESSES, _COUNTERS_AT)
        self._counters = counters.reshape(len(_COUNTERS), PROCESSES)
        self._slots = np.frombuffer(self._map, _SLOT, self._words[_SLOTS], _SLOTS_AT)
        self._buckets = self._words[_SLOTS] // WAYS
        self._room = 0
        self._unchecked = CHECK_EVERY
        self._least = 0.0
        """Worth of the new entry for which the last search failed; 0 if it succeeded. See `SEARCH_EVERY`."""
        self._searches_saved = 0
        self._open_for_locks()

    @classmethod
    def create(cls, limit: int) -> MemoryStore:
        """Create the files.

        Args:
            limit: Maximum total size of the entries, bytes.

        Raises:
            OSError: There are too many open files, or the system does not support such files and locks.
        """
        slots = WAYS * (min(max(MIN_SLOTS, limit // BYTES_PER_SLOT), MAX_SLOTS) // WAYS)
        files: list[int] = []
        try:
            new_file(files)
            new_file(files)
            index, data = files
            os.ftruncate(index, _SLOTS_AT + slots * _SLOT.itemsize)
            os.pwrite(index, struct.pack("<5Q", slots, limit, 0, 0, PAGE), 0)
            punch(data, 0, PAGE)  # fails here if the file system does not support holes
            store = cls(files)
            store.limit = limit  # fails here if it does not support the locks
        except BaseException:  # includes interrupts
            close_all(files)
            raise
        return store

    def close(self) -> None:
        """Release the files. The memory is freed when all processes have done so."""
        if self.index_fd < 0:
            return
        del self._counters, self._slots
        self._words.release()
        with contextlib.suppress(BufferError):  # another thread is reading
            self._map.close()
        self.index_fd = self.data_fd = self._lock_fd = -1
        close_all(self._files)

    def after_fork(self) -> None:
        """Create new locks in a forked process. The parent keeps its own."""
        if self.index_fd >= 0:
            inherited = self._files[2:]
            del self._files[2:]
            close_all(inherited)
            self._open_for_locks()

    def _open_for_locks(self) -> None:
        """Open the index file again: locks belong to the open file description, and not to a descriptor."""
        self._writing = threading.Lock()
        self._counting = threading.Lock()
        self._place = -1
        open_again(self._files, self.index_fd, os.O_RDWR)
        self._lock_fd = self._files[2]

    # ---- reading ----------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> Found | None:
        """Return a copy of an entry, or None if there is none.

        Args:
            key: 16 bytes.
        """
        position = self._find(key)
        if position < 0:
            return None
        record = self._map[position : position + _RECORD.size]
        stored_key, offset, size, meta_size, cost = _RECORD.unpack(record)
        if stored_key != key or not offset:
            return None  # another entry has got the slot, or will have it
        meta = os.pread(self.data_fd, meta_size, offset)
        buffers = allocate(meta)
        whole = read_into(self.data_fd, buffers, offset + meta_size, size - meta_size)
        if not whole or self._map[position : position + _RECORD.size] != record:
            return None  # it was dropped in the meantime
        self._use(position)
        return Found(meta, buffers, cost)

    def _find(self, key: bytes) -> int:
        """Return the position of the slot of this key; -1 if there is none."""
        start = _SLOTS_AT + self._bucket(key) * WAYS * _SLOT.itemsize
        end = start + WAYS * _SLOT.itemsize
        position = self._map.find(key, start, end)
        while position >= 0 and ((position - start) % _SLOT.itemsize or not self._words[(position + _OFFSET_AT) // 8]):
            position = self._map.find(key, position + 1, end)
        return position

    def _bucket(self, key: bytes) -> int:
        return int.from_bytes(key[:8], "little") % self._buckets

    def _use(self, position: int) -> None:
        """Record a use of an entry, from which its age and the mean distance between two uses are computed."""
        now, word = self._now(), (position + _LAST_AT) // 8
        distance = now - self._words[word]
        self._words[word] = now
        if distance > 0:
            with self._counting:
                distances, uses = self._own_counter(_REUSE_SUM), self._own_counter(_REUSES)
                self._words[distances] += distance
                self._words[uses] += 1
                if self._words[uses] > MAX_REUSES:
                    self._words[distances] //= 2
                    self._words[uses] //= 2

    # ---- counters ---------------------------------------------------------------------------------------------------

    def count(self, *, hit: bool, disk: bool = False, saved_us: int = 0) -> None:
        """Count an access.

        Args:
            hit: Whether the value was in the cache.
            disk: Whether it came from the disk.
            saved_us: Time that computing it would have taken, us.
        """
        with self._counting:
            words = self._words
            words[self._own_counter(_HITS if hit else _MISSES)] += 1
            words[self._own_counter(_SAVED)] += saved_us
            words[self._own_counter(_DISK_HITS)] += disk

    def counters(self) -> Counters:
        """Return the counters, summed over all processes."""
        total, words = self._counters.sum(axis=1).tolist(), self._words
        return Counters(
            total[_HITS], total[_MISSES], total[_DISK_HITS], total[_SAVED], words[_EVICTIONS], words[_ENTRIES],
            words[_USED], words[_LIMIT],
        )  # fmt: skip

    def _now(self) -> int:
        """Return the number of accesses so far by all processes."""
        return int(self._counters[: _MISSES + 1].sum())

    def _interval(self) -> float:
        """Return the mean number of accesses between two uses of an entry."""
        reuses = int(self._counters[_REUSES].sum())
        return int(self._counters[_REUSE_SUM].sum()) / reuses if reuses else float("inf")

    def _own_counter(self, counter: int) -> int:
        """Return the index of the word that has a counter of this process."""
        if self._place < 0:
            places = range(1, PROCESSES)
            self._place = next((n for n in places if lock(self._lock_fd, _PLACE_LOCKS + n, wait=False)), 0)
        return _COUNTERS_AT // 8 + counter * PROCESSES + self._place

    # ---- writing ----------------------------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """Maximum total size of the entries, bytes."""
        return self._words[_LIMIT]

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._as_writer(), self._locked():
            self._words[_LIMIT] = limit
            self._unchecked = CHECK_EVERY
            self._drop_for(self._words[_USED] - limit, float("inf"), 0)
            self._least = 0.0

    def put(self, key: bytes, entry: Entry, cost_ns: int) -> bool:
        """Add an entry, unless it is stored already or is worth less than the entries that it would replace.

        Args:
            key: 16 bytes.
            entry: The value.
            cost_ns: How long it took to compute.

        Returns:
            Whether it was added.

        Raises:
            OSError: The system is out of memory.
        """
        nbytes, cost = _padded(entry.nbytes), min(cost_ns // 1000, 0xFFFFFFFF)
        new = float(worth(cost, nbytes, 0, 1.0))
        with self._as_writer():
            with self._locked():
                offset = 0 if self._find(key) >= 0 else self._reserve(nbytes, new)
            if not offset:
                return False
            position = -1
            try:
                write_all(self.data_fd, [entry.meta, *entry.buffers], offset)
                with self._locked():
                    position = -1 if self._find(key) >= 0 else self._free_slot(key, new)
                    if position >= 0:
                        self._commit(position, _RECORD.pack(key, 0, entry.nbytes, len(entry.meta), cost), offset)
            finally:
                if position < 0:
                    with self._locked():
                        self._free(offset, nbytes)
        return position >= 0

    def _reserve(self, nbytes: int, new: float) -> int:
        """With the lock held: take memory for an entry of some worth. Return its offset; 0 if there is no memory."""
        words, room = self._words, self._room_for(nbytes)
        if nbytes > room or not self._drop_for(words[_USED] + nbytes - room, new, words[_LIMIT] // SPARE):
            return 0
        offset = words[_END]
        words[_END] = offset + nbytes
        words[_USED] += nbytes
        return offset

    def _commit(self, position: int, record: bytes, offset: int) -> None:
        """With the lock held: fill a free slot. A process that is killed before the last store leaves it free."""
        self._map[position : position + _RECORD.size] = record
        self._words[(position + _LAST_AT) // 8] = self._now()
        self._words[(position + _OFFSET_AT) // 8] = offset
        self._words[_ENTRIES] += 1

    def _room_for(self, nbytes: int) -> int:
        """With the lock held: return how many bytes all entries together may take."""
        self._unchecked += nbytes
        if self._unchecked >= CHECK_EVERY:
            self._unchecked = 0
            used, left = self._words[_USED], available_memory()
            self._room = self._words[_LIMIT]
            if left is not None:
                self._room = min(self._room, used + max(0, left - min(RESERVE, (used + left) // 10)))
        return min(self._room, self._words[_LIMIT])

    def _free_slot(self, key: bytes, new: float) -> int:
        """With the lock held: return a free slot for this key; -1 if there is none. May drop an entry worth less."""
        first = self._bucket(key) * WAYS
        slots = self._slots[first : first + WAYS]
        number = int(np.argmin(slots["offset"]))
        if slots["offset"][number]:
            worths = self._worths(slots)
            number = int(np.argmin(worths))
            if worths[number] * MARGIN >= new:
                return -1
            self._drop(first + number)
        return _SLOTS_AT + (first + number) * _SLOT.itemsize

    def _drop_for(self, needed: int, new: float, spare: int) -> bool:
        """With the lock held: drop entries that are worth less than a new one. Return False if that is not enough."""
        if needed <= 0:
            return True
        if new <= self._least and self._searches_saved < SEARCH_EVERY:
            self._searches_saved += 1
            return False
        taken = np.flatnonzero(self._slots["offset"])
        slots = self._slots[taken]
        found = victims(self._worths(slots), _padded(slots["size"].astype(np.int64)), needed, spare, new)
        if not len(found) and new == float("inf"):
            found = np.arange(len(taken))  # all: the rest of the memory is that of entries which are being written
        self._searches_saved = 0
        self._least = 0.0 if len(found) else new
        for number in taken[found]:
            self._drop(int(number))
        return bool(len(found))

    def _worths(self, slots: Any) -> Any:
        age = np.maximum(0, self._now() - slots["last"].astype(np.int64))
        return worth(slots["cost"], _padded(slots["size"].astype(np.int64)), age, self._interval())

    def _drop(self, number: int) -> None:
        """With the lock held: drop an entry, its slot first, so that no reader mistakes the hole for the entry."""
        slot = self._slots[number]
        offset, size = int(slot["offset"]), int(slot["size"])
        slot["offset"] = 0
        self._words[_ENTRIES] -= 1
        self._words[_EVICTIONS] += 1
        self._free(offset, _padded(size))

    def _free(self, offset: int, nbytes: int) -> None:
        """With the lock held: free memory that no slot refers to."""
        punch(self.data_fd, offset, nbytes)
        self._words[_USED] -= nbytes

    # ---- locks ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _as_writer(self) -> Iterator[None]:
        """Be counted as a writer. Repair first what a writer has left that died."""
        with self._writing:
            try:  # an interrupt may come as soon as a lock is held
                lock(self._lock_fd, _WRITERS_LOCK, shared=True)
                with self._locked():
                    if self._words[_WRITERS] and lock(self._lock_fd, _WRITERS_LOCK, wait=False):
                        self._repair()
                    self._words[_WRITERS] += 1
                yield
                with self._locked():
                    self._words[_WRITERS] -= 1
            finally:
                unlock(self._lock_fd, _WRITERS_LOCK)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the index."""
        try:
            lock(self._lock_fd, _INDEX_LOCK)
            yield
        finally:
            unlock(self._lock_fd, _INDEX_LOCK)

    def _repair(self) -> None:
        """With both locks held, by the only writer: recount, and free memory that no slot refers to."""
        words, taken = self._words, self._slots[self._slots["offset"] != 0]
        taken = taken[np.argsort(taken["offset"])]
        starts = taken["offset"].astype(np.int64)
        ends = starts + _padded(taken["size"].astype(np.int64))
        for begin, end in zip([0, *ends.tolist()], [*starts.tolist(), words[_END]], strict=True):
            if end > begin:
                punch(self.data_fd, begin, end - begin)
        words[_USED], words[_ENTRIES], words[_WRITERS] = int((ends - starts).sum()), len(taken), 0

    # ---- options ----------------------------------------------------------------------------------------------------

    @property
    def config(self) -> bytes | None:
        """Options that all processes use; None while they are being changed. `config_version` changes afterwards."""
        check, size = _CONFIG_HEAD.unpack_from(self._map, CONFIG_AT)
        begin = CONFIG_AT + _CONFIG_HEAD.size
        data = self._map[begin : begin + size]
        return data if zlib.crc32(data) == check else None

    @config.setter
    def config(self, data: bytes) -> None:
        record = _CONFIG_HEAD.pack(zlib.crc32(data), len(data)) + data
        if len(record) > PAGE - CONFIG_AT:
            raise ValueError(f"{len(data)} bytes of options do not fit")
        self._map[CONFIG_AT : CONFIG_AT + len(record)] = record
        self._words[_CONFIG] += 1

    @property
    def config_version(self) -> int:
        """A number that changes whenever `config` is set."""
        return self._words[_CONFIG]


def _padded(size: Any) -> Any:
    return -(-size // PAGE) * PAGE
