"""Pickles a dataset once for all workers, to a memory file, with copies of its large arrays.

    dataset.x -> copied once into the memory file -> mapped copy-on-write by each worker

The file holds the array as it was when the first worker received it; nobody can write to it afterwards. A worker that
writes to the array gets a private copy of the page that it writes to. Workers that start later receive the same file.

The dataset object of the notebook is never changed: its arrays stay where they are, so that the array exists twice,
once in the notebook and once for all workers together. `share(array)` avoids the second copy: the notebook then uses
a memory file itself. Arrays in such a file are not copied again, unless the notebook has written to them.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

from nbloader.batch.pickling import dump_to
from nbloader.shm.dataset_store import SHARE_FROM, location_of
from nbloader.shm.memory_file import MemoryFile
from nbloader.transport.channel import MAX_FDS
from nbloader.transport.mp_objects import SharingPickler, Spawning

MAX_FILES = MAX_FDS - 2
"""Maximum number of memory files that are sent to a worker in one frame, with two other descriptors. Arrays in further
files are copied."""


class Span(NamedTuple):
    """The memory of an array."""

    file: int
    """Position of the array's file among the files."""
    start: int
    """Offset in the file, bytes."""
    nbytes: int


class Files(NamedTuple):
    """The memory files of a pickle and its large arrays."""

    fds: tuple[int, ...]
    private: tuple[bool, ...]
    """Whether each file is mapped copy-on-write. If not, all processes can write to it, as after `share_memory_()`."""
    spans: tuple[Span, ...]
    """The spans of the arrays, in the order in which unpickling needs them."""
    pickle: Span
    """The span of the pickle itself."""


class PickleParts(NamedTuple):
    """A pickle to send to another machine."""

    data: memoryview
    buffers: list[memoryview]
    """The memory of its large arrays."""


class SharedPickle:
    """An object pickled once for many workers, with its large arrays in shared memory.

    Args:
        obj: The object to send. Classes and functions of the notebook are pickled by value (cloudpickle).
    """

    def __init__(self, obj: Any) -> None:
        self.spawning = Spawning()
        self._file = MemoryFile()
        self._buffers: list[memoryview] = []
        self._files: Files | None = None
        self._kept: list[Any] = []
        with self.spawning:
            dump_to(self._file, obj, self._keep_in_band, SharingPickler)

    def _keep_in_band(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= SHARE_FROM:
            self._buffers.append(raw)
        return raw.nbytes < SHARE_FROM

    @classmethod
    def received(cls, parts: PickleParts) -> SharedPickle:
        """On another machine: create a `SharedPickle` of the same object."""
        pickled = cls(None)
        pickled._file = MemoryFile()
        pickled._file.write(parts.data)
        pickled._buffers = list(parts.buffers)
        return pickled

    def parts(self) -> PickleParts:
        """Return the parts to send to another machine. Call this before `files`."""
        return PickleParts(memoryview(self._file.map()).cast("B"), list(self._buffers))

    def files(self) -> Files:
        """Return the files of the pickle. The first call copies arrays that are in no file yet.

        Raises:
            MemoryError: There is not enough memory left.
        """
        if self._files is None:
            self._files = self._assign_files()
            self._buffers = []
        return self._files

    def _assign_files(self) -> Files:
        own = self._file
        fds, private = [own.fd], [True]
        in_own = Span(0, 0, own.size)
        spans = []
        for raw in self._buffers:
            location = location_of(raw)
            if location is None or (location.fd not in fds and len(fds) >= MAX_FILES):
                spans.append(Span(0, own.add(raw), raw.nbytes))
                continue
            if location.fd not in fds:
                fds.append(location.fd)
                private.append(location.private)
                self._kept.append(location.keeper)
            spans.append(Span(fds.index(location.fd), location.start, raw.nbytes))
        own.seal()
        return Files(tuple(fds), tuple(private), tuple(spans), in_own)


def load_shared(files: Files) -> Any:
    """In a worker: rebuild the object of a `SharedPickle`."""
    views = []
    for fd, private in zip(files.fds, files.private, strict=True):
        kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        memory = mmap.mmap(fd, os.fstat(fd).st_size, flags=kind, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        views.append(memoryview(memory))

    def at(span: Span) -> memoryview:
        return views[span.file][span.start : span.start + span.nbytes]

    with _collection_paused():
        return pickle.loads(at(files.pickle), buffers=map(at, files.spans))


@contextlib.contextmanager
def _collection_paused() -> Iterator[None]:
    """Pause the garbage collector. A collection after every few hundred new objects would double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
