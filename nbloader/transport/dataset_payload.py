"""Shares the large arrays of a dataset between all worker processes.

    dataset.x -> copied once into a memory file -> mapped copy-on-write by each worker

The file holds the array as it was when the first worker received it; nobody can write to it afterwards. A worker that
writes to the array gets a private copy of the page that it writes to. Workers that start later receive the same file.

The dataset object of the notebook is never changed: its arrays stay where they are, so that the array exists twice,
once in the notebook and once for all workers together. `share(array)` avoids the second copy: the notebook then uses
the memory file itself. Arrays that lie in such a file are not copied again, unless the notebook has written to them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import sys
from typing import Any, NamedTuple

import numpy as np

from nbloader._util.system import pages_written
from nbloader.batch.pickles import SHARE_FROM, dump
from nbloader.shm.dataset_store import Origin, Store, address_of, owner_of, store_of
from nbloader.transport.inherit import Handing, SharingPickler

MAX_FILES = 60
"""Files that a worker is given; what lies in others is copied into one of these. The kernel takes 253 at once."""


class Span(NamedTuple):
    """Where the memory of an array lies."""

    file: int
    """Which of the files."""
    start: int
    """Bytes."""
    nbytes: int


def share(array: Any) -> Any:
    """Copy an array into memory that the notebook and the workers of all loaders share.

    Use it for large arrays of a dataset: `self.images = nbloader.share(np.load(...))`. Without it, an array of 64 kB or
    more exists twice: once in the notebook, and once for all workers together. An `np.memmap` needs no `share`: every
    process reads it from its file.

    Writes are private (copy-on-write): a process that writes to the array gets its own copy of the page, and the other
    processes do not see the change. Workers that start later see what the notebook has written; they then have a copy
    of the array in common.

    Args:
        array: A NumPy array of any shape, and of any dtype but object.

    Raises:
        TypeError: It is no such array. A tensor is shared by its own `share_memory_()`, and not copied either.
        MemoryError: There is not that much memory left.
    """
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        what = f"an array of dtype {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        hint = "; a tensor has share_memory_() for that" if type(array).__module__.startswith("torch") else ""
        raise TypeError(f"share takes a NumPy array of numbers, not {what}{hint}")
    dense: Any = np.asarray(array, order="K")
    if not (dense.flags.c_contiguous or dense.flags.f_contiguous):
        dense = np.ascontiguousarray(dense)
    if not dense.nbytes:
        return dense.copy()
    order: Any = "C" if dense.flags.c_contiguous else "F"
    memory = Store([pickle.PickleBuffer(dense).raw()]).map()
    return np.ndarray(dense.shape, dense.dtype, memory, order=order)


class SharedPickle:
    """An object pickled once for many workers, with its large arrays in shared memory.

    Args:
        obj: What to send. Classes and functions of the notebook go along by value (cloudpickle).
    """

    def __init__(self, obj: Any) -> None:
        buffers: list[memoryview] = []

        def keep_out(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < SHARE_FROM:
                return True  # stays in the pickle
            buffers.append(raw)
            return False

        with Handing() as self.handing:
            self.data: bytes = dump(obj, keep_out, SharingPickler)
        self.identity = (self.data, [Origin(raw) for raw in buffers], self.handing.identity)
        """Equal for two pickles of an object that was not changed in between (in-place writes to arrays aside)."""
        self.alone = not (buffers or self.handing.fds)
        """Whether all of it is in the pickle."""
        self._buffers = buffers
        self._files: Files | None = None
        self._kept: list[Any] = []

    def files(self) -> Files:
        """Where the large arrays lie; those that lie in no file yet are copied into one at first use.

        Raises:
            MemoryError: There is not that much memory left.
        """
        if self._files is None:
            self._files = self._place()
            self._buffers = []
        return self._files

    def _place(self) -> Files:
        fds: list[int] = []
        private: list[bool] = []
        spans: list[Span | None] = []
        for raw in self._buffers:
            found = _in_a_file(raw)
            if found is None or (found.fd not in fds and len(fds) >= MAX_FILES):
                spans.append(None)
                continue
            if found.fd not in fds:
                fds.append(found.fd)
                private.append(found.private)
                self._kept.append(found.keeper)
            spans.append(Span(fds.index(found.fd), found.start, raw.nbytes))
        to_copy = [i for i, span in enumerate(spans) if span is None]
        if to_copy:
            store = Store([self._buffers[i] for i in to_copy])
            self._kept.append(store)
            for i, start in zip(to_copy, store.starts, strict=True):
                spans[i] = Span(len(fds), start, self._buffers[i].nbytes)
            fds.append(store.fd)
            private.append(True)
        return Files(tuple(fds), tuple(private), tuple(span for span in spans if span is not None))


class Files(NamedTuple):
    """The files in which the large arrays of a pickle lie."""

    fds: tuple[int, ...]
    private: tuple[bool, ...]
    """Whether each is mapped copy-on-write; else, as a tensor after `share_memory_()`, by all together."""
    spans: tuple[Span, ...]
    """Of the arrays, in the order in which the pickle asks for them."""


def load_shared(data: bytes, files: Files) -> Any:
    """Rebuild, in a worker, what `SharedPickle` sent; takes the descriptors."""
    views = []
    for fd, private in zip(files.fds, files.private, strict=True):
        try:
            kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
            memory = mmap.mmap(fd, os.fstat(fd).st_size, flags=kind, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        views.append(memoryview(memory))
    return pickle.loads(data, buffers=[views[file][start : start + nbytes] for file, start, nbytes in files.spans])


# ---- where memory lies ----------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    fd: int
    start: int
    private: bool
    keeper: Any
    """Keeps the descriptor open."""


def _in_a_file(raw: memoryview) -> _Found | None:
    """The file in memory that holds these bytes; None where there is none."""
    owner = owner_of(raw)
    store = store_of(owner)
    if store is not None:
        address = address_of(raw)
        start = address - ctypes.addressof(owner)
        return None if pages_written(address, raw.nbytes) else _Found(store.fd, start, private=True, keeper=store)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(owner, torch.Tensor) and owner.is_shared():
        storage = owner.untyped_storage()
        fd, size = _fd_of(storage)
        start = address_of(raw) - storage.data_ptr()
        if fd >= 0 and 0 <= start <= size - raw.nbytes:
            return _Found(fd, start, private=False, keeper=storage)
    return None


def _fd_of(storage: Any) -> tuple[int, int]:
    """The descriptor of a tensor's shared memory and its size, as torch gives them to its own workers; -1 for none."""
    try:
        fd, size = storage._share_fd_cpu_()
        return (fd, size) if os.fstat(fd).st_size >= size else (-1, 0)
    except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
        return -1, 0
