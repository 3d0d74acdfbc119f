"""A dataset on its way to the workers: pickled once, with its large arrays in shared memory.

    dataset.x -> copied once into a memory file -> mapped copy-on-write by each worker

The file holds the array as it was when the first worker received it; nobody can write to it afterwards. A worker that
writes to the array gets a private copy of the page that it writes to. Workers that start later receive the same file.

The dataset object of the notebook is never changed: its arrays stay where they are, so that the array exists twice,
once in the notebook and once for all workers together. `share(array)` avoids the second copy: the notebook then uses
the memory file itself. Arrays in such a file are not copied again, unless the notebook has written to them.
"""

from __future__ import annotations

import mmap
import os
import pickle
from typing import Any, NamedTuple

from nbloader.batch.serialize import dump
from nbloader.shm.dataset_store import SHARE_FROM, Origin, Store, file_of
from nbloader.transport.mp_objects import SharingPickler, Spawning

MAX_FILES = 60
"""Files that a worker is sent; arrays in further files are copied into one of these. The kernel takes 253 at once."""


class Span(NamedTuple):
    """The memory of an array."""

    file: int
    """Position of its file among the files."""
    start: int
    """Bytes."""
    nbytes: int


class Files(NamedTuple):
    """The memory files of the large arrays of a pickle."""

    fds: tuple[int, ...]
    private: tuple[bool, ...]
    """Whether each is mapped copy-on-write; else, as a tensor after `share_memory_()`, writable by all processes."""
    spans: tuple[Span, ...]
    """Of the arrays, in the order in which the pickle asks for them."""


class SharedPickle:
    """An object pickled once for many workers, with its large arrays in shared memory.

    Args:
        obj: What to send. Classes and functions of the notebook go by value (cloudpickle).
    """

    def __init__(self, obj: Any) -> None:
        buffers: list[memoryview] = []

        def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < SHARE_FROM:
                return True
            buffers.append(raw)
            return False

        with Spawning() as self.spawning:
            self.data: bytes = dump(obj, keep_in_band, SharingPickler)
        self.identity = (self.data, [Origin(raw) for raw in buffers], self.spawning.identity)
        """Equal for two pickles of an object that did not change in between (in-place writes to arrays aside)."""
        self.self_contained = not (buffers or self.spawning.fds)
        """Whether the pickle holds the whole object."""
        self._buffers = buffers
        self._files: Files | None = None
        self._kept: list[Any] = []

    def files(self) -> Files:
        """The files of the large arrays; arrays that are in no file yet are copied into one on the first call.

        Raises:
            MemoryError: There is not that much memory left.
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
        return Files(tuple(fds), tuple(private), tuple(span for span in spans if span is not None))


def load_shared(data: bytes, files: Files) -> Any:
    """In a worker: rebuild the object of a `SharedPickle`; takes ownership of the descriptors."""
    views = []
    for fd, private in zip(files.fds, files.private, strict=True):
        try:
            kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
            memory = mmap.mmap(fd, os.fstat(fd).st_size, flags=kind, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        views.append(memoryview(memory))
    return pickle.loads(data, buffers=[views[file][start : start + nbytes] for file, start, nbytes in files.spans])
