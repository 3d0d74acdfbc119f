"""The cache in shared memory: entries that all processes of a notebook read and write, without a server process.

    index file: header | one row of counters per process | buckets of slots        mapped by all
    data file:  the entries, each at its own offset                                read and written by system calls

The notebook's process creates both files; workers receive their descriptors. Both are memory files: they vanish when
the last process that has them open ends, however it ends.

**Writing.** A process that adds or drops entries holds a lock on the index file, which the system releases if its owner
dies. An entry gets its slot and its offset with the lock held, is written without holding the lock, and is then
committed by one store. The offset of an entry is never reused for another entry: a file with 64-bit offsets does not
run out of them. When an entry is dropped, its slot is cleared first. Then its memory is freed and becomes a hole in the
file.

**Reading** takes no lock. A reader copies the slot, whose checksum shows whether the copy is complete. It then copies
the entry, and checks that the slot has not changed. An unchanged slot shows that the memory of the entry was
not freed in the meantime.

**A process that is killed** leaves the header marked as `DIRTY` if it was changing the index: the next process that
takes the lock recounts entries and memory, and frees memory that no slot refers to. If it was writing an entry, the
slot is never committed. The next search for memory drops that entry, because the slot's owner no longer holds the lock
on its row.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from nbloader._platform import (
    HAS_FILE_LOCKS,
    available_memory,
    is_locked,
    lock,
    new_file,
    open_again,
    punch,
    unlock,
)
from nbloader._platform.descriptors import close_all
from nbloader.cache.entry import Entry, allocate
from nbloader.cache.file_io import read_into, write_all
from nbloader.cache.policy import MARGIN, victims, worth

MAGIC = 0x6E626C_63_0001
PAGE = mmap.PAGESIZE
SLOT_SIZE = 64
WAYS = 16
"""Slots per bucket. An entry can only be in the bucket that its key selects."""
ROWS = 1024
ROW_SIZE = 64
ROWS_AT = PAGE
SLOTS_AT = ROWS_AT + ROWS * ROW_SIZE
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
CLOCK_EVERY = 64
"""Accesses after which a process recounts the accesses of all processes."""
MAX_REUSES = 1 << 16
"""Maximum number of uses, per process, over which the distance between two uses of an entry is averaged."""
CONFIG_AT = 1024
"""Offset in the header of the options that all processes use."""

# Words of the header.
_MAGIC, _SLOTS, _LIMIT, _USED, _ENTRIES, _CURSOR, _GENERATION, _DIRTY, _EVICTIONS, _CONFIG, _DISK_USED = range(11)
# Words of a row.
_EPOCH, _ACCESSES, _HITS, _MISSES, _SAVED, _REUSE_SUM, _REUSES, _DISK_HITS = range(8)

_SLOT = struct.Struct("<16sQQQIII")
"""Key; offset; size; generation; size of the meta part; cost in us; owner. Checksum and time of last use follow."""
_SLOT_DTYPE = np.dtype([
    ("key", "V16"), ("offset", "<u8"), ("size", "<u8"), ("generation", "<u8"), ("meta", "<u4"), ("cost", "<u4"),
    ("owner", "<u4"), ("check", "<u4"), ("last", "<u8"),
])  # fmt: skip
_CHECK_AT, _LAST_AT, _GENERATION_AT, _FIELDS = 52, 56, 32, 56
_STAMP = struct.Struct("<Q")
"""The generation of an entry, which precedes the entry in the data file."""
_CONFIG_HEAD = struct.Struct("<IH")
"""Checksum of the options, and their size in bytes."""
_EPOCH_BITS = 20


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


class Found(NamedTuple):
    """A copy of an entry."""

    meta: bytes
    buffers: list[Any]
    cost: int
    """How long the value took to compute, us."""


class MemoryStore:
    """The cache in shared memory.

    Args:
        files: The descriptors of the index file and of the data file. This object owns and closes them.

    Raises:
        OSError: There are too many open files, or the system does not support open file description locks.
    """

    def __init__(self, files: list[int]) -> None:
        self._files = files  # index, data, and the index once more, for locks
        weakref.finalize(self, close_all, files).atexit = False
        if not HAS_FILE_LOCKS:
            raise OSError(errno.ENOSYS, "this system does not support open file description locks")
        self.index_fd, self.data_fd = files
        self._map = mmap.mmap(self.index_fd, os.fstat(self.index_fd).st_size)
        self._open_for_locks()
        view = memoryview(self._map)
        self._words = view.cast("Q")
        self._checks = view.cast("I")
        self._rows = np.frombuffer(self._map, np.uint64, ROWS * 8, ROWS_AT).reshape(ROWS, 8)
        self._slots = np.frombuffer(self._map, _SLOT_DTYPE, self._words[_SLOTS], SLOTS_AT)
        self._buckets = self._words[_SLOTS] // WAYS
        self._thread_lock = threading.Lock()
        self._row = -1
        self._others = 0
        """Accesses of all processes when they were last counted. `_own` counts those of this process since then."""
        self._own = 0
        self._room = 0
        self._unchecked = CHECK_EVERY
        self._least = 0.0
        """Worth of the new entry for which the last search failed; 0 if it succeeded. See `SEARCH_EVERY`."""
        self._searches_saved = 0

    @classmethod
    def create(cls, limit: int) -> MemoryStore:
        """Create the files.

        Args:
            limit: Maximum total size of the entries, bytes.

        Raises:
            OSError: There are too many open files, or the system does not support open file description locks.
        """
        slots = MIN_SLOTS
        while slots < MAX_SLOTS and slots * BYTES_PER_SLOT < limit:
            slots *= 2
        files: list[int] = []
        try:
            new_file(files)
            new_file(files)
            index, data = files
            os.ftruncate(index, SLOTS_AT + slots * SLOT_SIZE)
            os.pwrite(index, struct.pack("<3Q", MAGIC, slots, limit), 0)
            punch(data, 0, PAGE)  # fails here if the file system does not support holes
            return cls(files)
        except BaseException:  # includes interrupts
            close_all(files)
            raise

    def close(self) -> None:
        """Release the files. The memory is freed when all processes have done so."""
        if self.index_fd < 0:
            return
        del self._rows, self._slots
        self._words.release()
        self._checks.release()
        with contextlib.suppress(BufferError):  # another thread is reading
            self._map.close()
        self.index_fd = self.data_fd = self._lock_fd = -1
        close_all(self._files)

    def after_fork(self) -> None:
        """Create new locks in a forked process. The parent keeps its own."""
        self._thread_lock = threading.Lock()
        self._row = -1
        if self._lock_fd >= 0:
            inherited, self._lock_fd = self._files[2:], -1
            del self._files[2:]
            close_all(inherited)
            self._open_for_locks()

    def _open_for_locks(self) -> None:
        """Open the index file again: locks belong to the open file description, and not to a descriptor."""
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
        record = self._map[position : position + _FIELDS]
        if _checksum(record) != int.from_bytes(record[_CHECK_AT:], "little"):
            return None  # not committed yet, or being changed
        found = self._read(position, record)
        if found is not None:
            self._use(position)
        return found

    def _read(self, position: int, record: bytes) -> Found | None:
        """Return a copy of the entry of a slot, or None if the entry is dropped in the meantime."""
        _key, offset, size, generation, meta_size, cost, _owner = _SLOT.unpack_from(record)
        head = os.pread(self.data_fd, _STAMP.size + meta_size, offset)
        if head[: _STAMP.size] != _STAMP.pack(generation) or not self._is_still(position, record):
            return None
        meta = head[_STAMP.size :]
        buffers = allocate(meta)
        whole = read_into(self.data_fd, buffers, offset + len(head), size - len(head))
        return Found(meta, buffers, cost) if whole and self._is_still(position, record) else None

    def _is_still(self, position: int, record: bytes) -> bool:
        """Whether a slot is unchanged, so that the memory of its entry has not been freed."""
        return self._map[position : position + _FIELDS] == record

    def _find(self, key: bytes) -> int:
        """Return the position of the slot of this key; -1 if there is none."""
        start = SLOTS_AT + self._bucket(key) * WAYS * SLOT_SIZE
        end = start + WAYS * SLOT_SIZE
        position = self._map.find(key, start, end)
        while position >= 0 and (position - start) % SLOT_SIZE:
            position = self._map.find(key, position + 1, end)
        return position

    def _bucket(self, key: bytes) -> int:
        return int.from_bytes(key[:8], "little") % self._buckets

    def _use(self, position: int) -> None:
        """Record a use of an entry, from which its age and the mean distance between two uses are computed."""
        now = self._now()
        word = (position + _LAST_AT) // 8
        distance = now - self._words[word]
        self._words[word] = now
        if distance > 0:
            with self._thread_lock:
                row = self._row_words()
                self._words[row + _REUSE_SUM] += distance
                self._words[row + _REUSES] += 1
                if self._words[row + _REUSES] > MAX_REUSES:
                    self._words[row + _REUSE_SUM] //= 2
                    self._words[row + _REUSES] //= 2

    # ---- counters ---------------------------------------------------------------------------------------------------

    def count(self, *, hit: bool, disk: bool = False, saved_us: int = 0) -> None:
        """Count an access.

        Args:
            hit: Whether the value was in the cache.
            disk: Whether it came from the disk.
            saved_us: Time that computing it would have taken, us.
        """
        with self._thread_lock:
            row = self._row_words()
            words = self._words
            words[row + _ACCESSES] += 1
            words[row + (_HITS if hit else _MISSES)] += 1
            words[row + _SAVED] += saved_us
            words[row + _DISK_HITS] += disk
            self._own += 1

    def counters(self) -> Counters:
        """Return the counters, summed over all processes."""
        total = self._rows.sum(axis=0)
        words = self._words
        return Counters(
            int(total[_HITS]), int(total[_MISSES]), int(total[_DISK_HITS]), int(total[_SAVED]), words[_EVICTIONS],
            words[_ENTRIES], words[_USED], words[_LIMIT],
        )  # fmt: skip

    def _now(self) -> int:
        """Return the approximate number of accesses so far by all processes."""
        if self._own >= CLOCK_EVERY or not self._others:
            self._others, self._own = int(self._rows[:, _ACCESSES].sum()), 0
        return self._others + self._own

    def _interval(self) -> float:
        """Return the mean number of accesses between two uses of an entry."""
        reuses = int(self._rows[:, _REUSES].sum())
        return int(self._rows[:, _REUSE_SUM].sum()) / reuses if reuses else float("inf")

    def _row_words(self) -> int:
        """Return the index of the first word of this process's row. Processes without their own row share row 0."""
        if self._row < 0:
            self._row = 0
            for row in range(1, ROWS):
                if lock(self._lock_fd, 1 + row, wait=False):
                    self._row = row
                    self._words[(ROWS_AT + row * ROW_SIZE) // 8 + _EPOCH] += 1
                    break
        return (ROWS_AT + self._row * ROW_SIZE) // 8

    # ---- writing ----------------------------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """Maximum total size of the entries, bytes."""
        return self._words[_LIMIT]

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._locked():
            self._words[_LIMIT] = limit
            excess = self._words[_USED] - limit
            if excess > 0:
                self._drop_for(excess, float("inf"), 0)
            self._unchecked = CHECK_EVERY

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
        size = _STAMP.size + entry.nbytes
        cost = min(cost_ns // 1000, 0xFFFFFFFF)
        with self._locked():
            position = self._reserve(key, size, len(entry.meta), cost)
        if position < 0:
            return False
        try:
            record = self._map[position : position + _FIELDS]
            _key, offset, _size, generation, *_rest = _SLOT.unpack_from(record)
            write_all(self.data_fd, [_STAMP.pack(generation), entry.meta, *entry.buffers], offset)
            self._checks[(position + _CHECK_AT) // 4] = _checksum(record)
        except BaseException:
            with self._locked():
                self._drop(position)
            raise
        return True

    def _reserve(self, key: bytes, size: int, meta_size: int, cost: int) -> int:
        """With the lock held: reserve memory and a slot for an entry, and return the position of the slot.

        Returns -1 if there is no memory or slot, or if the entry is stored already or being written.
        """
        words, nbytes = self._words, _padded(size)
        row = self._row_words()
        if self._row == 0:  # all rows are taken: no other process would notice if this one died
            return -1
        position = self._find(key)
        if position >= 0 and words[(position + _GENERATION_AT) // 8]:
            if self._is_committed(position) or self._alive(int(self._slot(position)["owner"])):
                return -1
            self._drop(position)
        room = self._room_for(nbytes)
        if nbytes > room:
            return -1
        new = float(worth(cost, nbytes, 0, 1.0))
        needed = words[_USED] + nbytes - room
        if needed > 0 and not self._drop_for(needed, new, words[_LIMIT] // SPARE):
            return -1
        position = self._free_slot(key, new)
        if position < 0:
            return -1
        offset, generation = words[_CURSOR], words[_GENERATION] + 1
        words[_CURSOR], words[_GENERATION] = offset + nbytes, generation
        words[_USED] += nbytes
        words[_ENTRIES] += 1
        epoch = words[row + _EPOCH] & ((1 << _EPOCH_BITS) - 1)
        owner = self._row << _EPOCH_BITS | epoch
        record = _SLOT.pack(key, offset, size, 0, meta_size, cost, owner)
        self._map[position : position + _CHECK_AT] = record
        self._checks[(position + _CHECK_AT) // 4] = 0
        words[(position + _LAST_AT) // 8] = self._now()
        words[(position + _GENERATION_AT) // 8] = generation  # the slot is taken, but not committed
        return position

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
        """With the lock held: return a slot for this key; -1 if there is none. May drop an entry worth less."""
        first = self._bucket(key) * WAYS
        slots = self._slots[first : first + WAYS]
        free = np.flatnonzero(slots["generation"] == 0)
        if len(free):
            return SLOTS_AT + (first + int(free[0])) * SLOT_SIZE
        self._drop_abandoned(first, WAYS)
        free = np.flatnonzero(slots["generation"] == 0)
        if not len(free):
            worths = np.where(slots["check"] != 0, self._worths(slots), np.inf)
            least = int(np.argmin(worths))
            if worths[least] * MARGIN >= new:
                return -1
            self._drop(SLOTS_AT + (first + least) * SLOT_SIZE, evict=True)
            free = np.array([least])
        return SLOTS_AT + (first + int(free[0])) * SLOT_SIZE

    def _drop_for(self, needed: int, new: float, spare: int) -> bool:
        """With the lock held: drop entries that are worth less than a new one. Return False if that is not enough."""
        if new <= self._least and self._searches_saved < SEARCH_EVERY:
            self._searches_saved += 1
            return False
        before = self._words[_USED]
        self._drop_abandoned(0, len(self._slots))
        needed -= before - self._words[_USED]
        if needed <= 0:
            return True
        taken = np.flatnonzero((self._slots["generation"] != 0) & (self._slots["check"] != 0))
        slots = self._slots[taken]
        worths = self._worths(slots)
        found = victims(worths, _padded(slots["size"].astype(np.int64)), needed, spare, new)
        self._searches_saved = 0
        self._least = 0.0 if len(found) else new
        for number in taken[found]:
            self._drop(SLOTS_AT + int(number) * SLOT_SIZE, evict=True)
        return bool(len(found))

    def _worths(self, slots: Any) -> Any:
        age = np.maximum(0, self._now() - slots["last"].astype(np.int64))
        return worth(slots["cost"], _padded(slots["size"].astype(np.int64)), age, self._interval())

    def _drop_abandoned(self, first: int, count: int) -> None:
        """With the lock held: drop entries whose writer has died."""
        slots = self._slots[first : first + count]
        for number in np.flatnonzero((slots["generation"] != 0) & (slots["check"] == 0)):
            if not self._alive(int(slots["owner"][number])):
                self._drop(SLOTS_AT + (first + int(number)) * SLOT_SIZE)

    def _drop(self, position: int, *, evict: bool = False) -> None:
        """With the lock held: drop an entry, its slot first, so that no reader mistakes the hole for the entry."""
        slot = self._slot(position)
        if not slot["generation"]:
            return
        offset, nbytes = int(slot["offset"]), _padded(int(slot["size"]))
        self._words[(position + _GENERATION_AT) // 8] = 0
        self._map[position : position + SLOT_SIZE] = bytes(SLOT_SIZE)
        punch(self.data_fd, offset, nbytes)
        self._words[_USED] -= nbytes
        self._words[_ENTRIES] -= 1
        self._words[_EVICTIONS] += evict

    def _slot(self, position: int) -> Any:
        return self._slots[(position - SLOTS_AT) // SLOT_SIZE]

    def _is_committed(self, position: int) -> bool:
        return bool(self._slot(position)["check"])

    # ---- locks ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the index. Repair the index first if a process died while it held the lock."""
        with self._thread_lock:
            try:  # an interrupt may come as soon as the lock is held
                lock(self._lock_fd, 0, wait=True)
                if self._words[_DIRTY]:
                    self._repair()
                self._words[_DIRTY] = 1
                yield
                self._words[_DIRTY] = 0
            finally:
                unlock(self._lock_fd, 0)

    def _repair(self) -> None:
        """With the lock held: recount entries and memory, and free memory that no slot refers to."""
        words, slots = self._words, self._slots
        taken = slots[slots["generation"] != 0]
        taken = taken[np.argsort(taken["offset"])]
        starts = taken["offset"].astype(np.int64)
        ends = starts + _padded(taken["size"].astype(np.int64))
        words[_CURSOR] = max(words[_CURSOR], int(ends.max(initial=0)))
        words[_GENERATION] = max(words[_GENERATION], int(taken["generation"].max(initial=0))) + 1
        words[_USED], words[_ENTRIES] = int((ends - starts).sum()), len(taken)
        for begin, end in zip([0, *ends.tolist()], [*starts.tolist(), words[_CURSOR]], strict=True):
            if end > begin:
                punch(self.data_fd, begin, end - begin)

    def _alive(self, owner: int) -> bool:
        """Whether the owner of a slot (a row and its epoch) still runs: it holds the lock on its row."""
        row, epoch = owner >> _EPOCH_BITS, owner & ((1 << _EPOCH_BITS) - 1)
        if int(self._rows[row, _EPOCH]) & ((1 << _EPOCH_BITS) - 1) != epoch:
            return False
        if row == self._row:
            return True
        return is_locked(self._lock_fd, 1 + row)

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
        """A number that changes whenever `config` changes."""
        return self._words[_CONFIG]


def _padded(size: Any) -> Any:
    return -(-size // PAGE) * PAGE


def _checksum(record: bytes) -> int:
    return zlib.crc32(record[:_CHECK_AT]) or 1
