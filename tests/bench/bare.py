"""What processes reach without a loader, for the same batches: a yardstick (`Bare`) and a bound (`Alone`).

`Bare` is hand-written code that hands batches from two processes to a third:

    worker w:  batches w, w + n, ... -> fetch, collate into the next slot of its shared memory -> one message
    notebook:  batch i from worker i modulo n -> build it on the slot -> when the loop comes back, the slot is free

Made for one dataset: it knows how its batches are laid out, and looks at nothing. There is no order to restore, no
credit but the slots, no record of anything, no shuffling, no epoch that is left early, nothing that notices when a
worker dies or a sample raises, and who keeps a batch sees it change. It is no upper bound: it is plain Python, and on a
busy machine a loader that asks further ahead has been as quick.

In `Alone` nothing is handed over: each process makes its share of the batches and keeps them.
"""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import pickle
import socket
import struct

import numpy as np

from nbloader.shm.segment import aligned

SLOTS = 8
"""Batches that a worker may be ahead of the loop."""
SLOT = 1 << 20
"""Bytes."""
MESSAGE = 1 << 17


class Bare:
    """Batches of `work.Fields`, or of what a collate function gives, handed over by hand-written code."""

    def __init__(self, work, dataset):
        self._write, self._read = _ways(work, dataset)
        self._work, self._dataset = work, dataset
        self._batches = len(dataset) // work.batch_size
        self._workers = [self._start(worker) for worker in range(work.workers)]

    def _start(self, worker):
        context = multiprocessing.get_context("fork")
        memory = mmap.mmap(-1, SLOT * SLOTS)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        share = range(worker, self._batches, self._work.workers)
        context.Process(target=self._run, args=(theirs, memory, share), daemon=True).start()
        return ours, _slots(memory), share

    def _run(self, connection, memory, share):
        from nbloader.transport.forkserver import die_with_parent

        die_with_parent()
        slots = _slots(memory)
        size, dataset, write = self._work.batch_size, self._dataset, self._write
        fd = connection.fileno()
        for batch in itertools.cycle(share):
            os.read(fd, 1)
            os.write(fd, write([dataset[i] for i in range(batch * size, batch * size + size)], next(slots)))

    def __iter__(self):
        ahead = {}
        for connection, _slots, share in self._workers:
            ahead[connection] = iter(share)
            for _batch in itertools.islice(ahead[connection], SLOTS - 1):
                os.write(connection.fileno(), b"1")
        for _batch, (connection, slots, _share) in zip(range(self._batches), itertools.cycle(self._workers)):
            message = os.read(connection.fileno(), MESSAGE)
            yield self._read(message, next(slots))
            if next(ahead[connection], None) is not None:
                os.write(connection.fileno(), b"1")


class Alone:
    """As many processes as a loader has workers, each of which makes its share of the batches, for itself.

    There is no loader: nothing is asked for, sent or received but the word to begin. What they reach together is what
    the cores have time for where handing over takes none, so no loader that makes batches in this way can be faster.

    Args:
        begin: Gives, in such a process, the function that makes a batch of what it is given: the range of indices, and
            which of two pieces of memory to use (as for a worker whose last batch the consumer still looks at).
    """

    def __init__(self, work, dataset, begin):
        context = multiprocessing.get_context("fork")
        self.batches = len(dataset) // work.batch_size
        self._pipes = []
        for worker in range(work.workers):
            ours, theirs = context.Pipe()
            share = range(worker, self.batches, work.workers)
            context.Process(target=self._run, args=(theirs, work.batch_size, share, begin), daemon=True).start()
            self._pipes.append(ours)

    def _run(self, pipe, size, share, begin):
        from nbloader.transport.forkserver import die_with_parent

        die_with_parent()
        make = begin()
        while pipe.recv():
            for batch, piece in zip(share, itertools.cycle(range(2)), strict=False):
                make(range(batch * size, batch * size + size), piece)
            pipe.send(True)

    def __iter__(self):
        for pipe in self._pipes:
            pipe.send(True)
        for pipe in self._pipes:
            pipe.recv()
        yield from itertools.repeat(np.zeros(1), self.batches)


def copying(work, dataset):
    """Processes that only copy samples, which are arrays of one shape."""
    first = dataset[0]

    def begin():
        memory = [mmap.mmap(-1, work.batch_size * first.nbytes) for _ in range(2)]
        targets = [np.frombuffer(piece, first.dtype).reshape(work.batch_size, *first.shape) for piece in memory]

        def make(indices, piece):
            for position, index in enumerate(indices):
                np.copyto(targets[piece][position], dataset[index])

        return make

    return Alone(work, dataset, begin)


def making(work, dataset):
    """Processes that fetch and write batches as the workers of `Bare` do, and build them as its notebook does."""
    write, read = _ways(work, dataset)

    def begin():
        slots = [memoryview(mmap.mmap(-1, SLOT)) for _ in range(2)]

        def make(indices, piece):
            return read(write([dataset[i] for i in indices], slots[piece]), slots[piece])

        return make

    return Alone(work, dataset, begin)


def _ways(work, dataset):
    """How batches are written into memory, and built on it."""
    if work.collate is not None:
        return _Pickled(work.collate).write, _unpickle
    first = dataset[0]
    layout = tuple(first), work.batch_size, *next(iter(first.values())).shape
    return _concatenate, _Slices(layout).read


def _slots(memory):
    """The slots of a worker, one after the other, again and again."""
    return itertools.cycle([memoryview(memory)[i * SLOT : (i + 1) * SLOT] for i in range(SLOTS)])


def _concatenate(samples, slot):
    """Write dicts of arrays of one shape and dtype behind each other, key by key."""
    arrays = list(itertools.chain.from_iterable(zip(*[sample.values() for sample in samples], strict=True)))
    np.concatenate(arrays, out=np.ndarray(sum(map(len, arrays)), np.float32, slot))
    return b"1"


class _Slices:
    def __init__(self, layout):
        import torch

        self._keys, *rest = layout
        self._shape = len(self._keys), *rest
        self._tensor = torch.from_numpy

    def read(self, _message, slot):
        """Tensors on the slot."""
        return dict(zip(self._keys, map(self._tensor, np.ndarray(self._shape, np.float32, slot)), strict=True))


class _Pickled:
    def __init__(self, collate):
        self._collate = collate

    def write(self, samples, slot):
        """Write the arrays of a batch into the slot; the message is the rest, pickled."""
        buffers, end = [], 0
        data = pickle.dumps(self._collate(samples), protocol=5, buffer_callback=buffers.append)
        sizes = []
        for buffer in buffers:
            raw = buffer.raw()
            slot[end : end + raw.nbytes] = raw
            sizes.append(raw.nbytes)
            end += aligned(raw.nbytes)
        return struct.pack(f"<I{len(sizes)}I", len(sizes), *sizes) + data


def _unpickle(message, slot):
    """The batch, its arrays on the slot."""
    (count,) = struct.unpack_from("<I", message)
    end, buffers = 0, []
    for size in struct.unpack_from(f"<{count}I", message, 4):
        buffers.append(slot[end : end + size])
        end += aligned(size)
    return pickle.loads(memoryview(message)[4 + 4 * count :], buffers=buffers)
