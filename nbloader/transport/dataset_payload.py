"""Pickles a dataset once for all workers. Large arrays, and a large pickle itself, are placed in shared memory.

    dataset.x -> copied once into a memory file -> mapped copy-on-write by each worker

The file holds the array as it was when the first worker received it; nobody can write to it afterwards. A worker that
writes to the array gets a private copy of the page that it writes to. Workers that start later receive the same file.

The dataset object of the notebook is never changed: its arrays stay where they are, so that the array exists twice,
once in the notebook and once for all workers together. `share(array)` avoids the second copy: the notebook then uses
the memory file itself. Arrays in such a file are not copied again, unless the notebook has written to them.

A pickle of `SPILL_FROM` bytes or more (long texts, `bytes`, many objects) is written to a memory file as it grows,
and each worker unpickles from there.
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
from nbloader.shm.dataset_store import SHARE_FROM, Store, file_of
from nbloader.shm.spill_file import SpillFile
from nbloader.transport.mp_objects import SharingPickler, Spawning

MAX_FILES = 60
"""Maximum number of existing memory files that are sent to a worker. Arrays in further files are copied into a new one.
The kernel accepts 253 descriptors at once."""


class Span(NamedTuple):
    """The memory of an array."""

    file: int
    """Position of the array's file among the files."""
    start: int
    """Offset in the file, bytes."""
    nbytes: int


class Files(NamedTuple):
    """The memory files of the large arrays of a pickle."""

    fds: tuple[int, ...]
    private: tuple[bool, ...]
    """Whether each file is mapped copy-on-write. If not, all processes can write to it, as after `share_memory_()`."""
    spans: tuple[Span, ...]
    """The spans of the arrays, in the order in which unpickling needs them."""
    pickle: Span | None = None
    """The span of the pickle itself; None if the pickle is small and sent in a message."""


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
        file, spawning = SpillFile(), Spawning()
        buffers: list[memoryview] = []

        def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < SHARE_FROM:
                return True
            buffers.append(raw)
            return False

        with spawning:
            dump_to(file, obj, keep_in_band, SharingPickler)
        self._take(file, spawning, buffers)

    @classmethod
    def received(cls, parts: PickleParts) -> SharedPickle:
        """On another machine: create a `SharedPickle` of the same object. It holds no descriptors."""
        file = SpillFile()
        file.write(parts.data)
        pickled = cls.__new__(cls)
        pickled._take(file, Spawning(), list(parts.buffers))
        return pickled

    def _take(self, file: SpillFile, spawning: Spawning, buffers: list[memoryview]) -> None:
        self._file = file
        self.spawning = spawning
        self.data = self._file.finish()
        """The pickle; empty if the pickle is large and in a file."""
        self.nbytes = self._file.size
        """Size of the pickle without the large arrays."""
        self._buffers = buffers
        self._files: Files | None = None
        self._kept: list[Any] = []

    def parts(self) -> PickleParts:
        """Return the parts to send to another machine. Call this before `files`."""
        return PickleParts(memoryview(self.data) if self._file.fd < 0 else self._file.view(), list(self._buffers))

    def files(self) -> Files:
        """Return the files of the large arrays. The first call copies arrays that are in no file yet into one.

        Raises:
            MemoryError: There is not enough memory left.
        """
        if self._files is None:
            self._files = self._assign_files()
            self._buffers = []
        return self._files

    def _assign_files(self) -> Files:
        fds: list[int] = []
        private: list[bool] = []
        spans: list[Span | None] = []
        for raw in self._buffers:
            location = file_of(raw)
            if location is None or (location.fd not in fds and len(fds) >= MAX_FILES):
                spans.append(None)
                continue
            if location.fd not in fds:
                fds.append(location.fd)
                private.append(location.private)
                self._kept.append(location.keeper)
            spans.append(Span(fds.index(location.fd), location.start, raw.nbytes))
        to_copy = [i for i, span in enumerate(spans) if span is None]
        if to_copy:
            store = Store([self._buffers[i] for i in to_copy])
            self._kept.append(store)
            for i, start in zip(to_copy, store.starts, strict=True):
                spans[i] = Span(len(fds), start, self._buffers[i].nbytes)
            fds.append(store.fd)
            private.append(True)
        in_file = None
        if self._file.fd >= 0:
            in_file = Span(len(fds), 0, self._file.size)
            fds.append(self._file.fd)
            private.append(True)
        return Files(tuple(fds), tuple(private), tuple(span for span in spans if span is not None), in_file)


def load_shared(data: bytes, files: Files) -> Any:
    """In a worker: rebuild the object of a `SharedPickle`, and take ownership of the descriptors."""
    views = []
    for fd, private in zip(files.fds, files.private, strict=True):
        try:
            kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
            memory = mmap.mmap(fd, os.fstat(fd).st_size, flags=kind, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        views.append(memoryview(memory))

    def at(span: Span) -> memoryview:
        return views[span.file][span.start : span.start + span.nbytes]

    with _collection_paused():
        return pickle.loads(data if files.pickle is None else at(files.pickle), buffers=map(at, files.spans))


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
