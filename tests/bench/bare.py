"""The rates of processes without a loader, for the same batches: a reference (`Bare`) and a bound (`Alone`).

`Bare` is hand-written code that transfers batches from two processes to a third:

    worker w:  batches w, w + n, ... -> fetch, collate into the next slot of its shared memory -> one message
    notebook:  batch i from worker i modulo n -> build it on the slot -> the slot is free when the loop asks again

It is written for one dataset: the layout of its batches is fixed. There is no reordering, no prefetch window except the
slots, no event record, no shuffling, no support for abandoned epochs, dead workers or exceptions, and a batch that is
kept gets overwritten. It is no upper bound: it is plain Python, and on a busy machine a loader that prefetches more has
been as fast.

`Alone` transfers nothing: each process produces its share of the batches and keeps them.
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
"""Batches that a worker may prefetch."""
SLOT = 1 << 20
"""Bytes."""
MESSAGE = 1 << 17


class Bare:
    """Batches of `work.Fields`, or of a collate function's results, transferred by hand-written code."""

    def __init__(self, work, dataset):
        self._write, self._read = _codec(work, dataset)
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
        from nbloader._platform.forking import die_with_parent

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
    """As many processes as a loader has workers, each of which produces its share of the batches.

    There is no loader: the only message is the start signal. Their total rate is what the cores can do if the transfer
    costs nothing, so no loader that produces batches in this way can be faster.

    Args:
        work: The workload.
        dataset: Its dataset.
        begin: Called in each process. Returns the function that produces a batch from a range of indices and the number
            of one of two buffers (like a worker whose previous batch is still in use by the consumer).
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
        from nbloader._platform.forking import die_with_parent

        die_with_parent()
        produce = begin()
        while pipe.recv():
            for batch, buffer in zip(share, itertools.cycle(range(2)), strict=False):
                produce(range(batch * size, batch * size + size), buffer)
            pipe.send(True)

    def __iter__(self):
        for pipe in self._pipes:
            pipe.send(True)
        for pipe in self._pipes:
            pipe.recv()
        yield from itertools.repeat(np.zeros(1), self.batches)


def copying(work, dataset):
    """Processes that only copy samples, which must be arrays of one shape."""
    first = dataset[0]

    def begin():
        memory = [mmap.mmap(-1, work.batch_size * first.nbytes) for _ in range(2)]
        targets = [np.frombuffer(part, first.dtype).reshape(work.batch_size, *first.shape) for part in memory]

        def produce(indices, buffer):
            for position, index in enumerate(indices):
                np.copyto(targets[buffer][position], dataset[index])

        return produce

    return Alone(work, dataset, begin)


def producing(work, dataset):
    """Processes that fetch and write batches like the workers of `Bare`, and build them like its consumer."""
    write, read = _codec(work, dataset)

    def begin():
        slots = [memoryview(mmap.mmap(-1, SLOT)) for _ in range(2)]

        def produce(indices, buffer):
            return read(write([dataset[i] for i in indices], slots[buffer]), slots[buffer])

        return produce

    return Alone(work, dataset, begin)


def _codec(work, dataset):
    """The functions that write a batch into memory and build it there."""
    if work.collate is not None:
        return _Pickled(work.collate).write, _unpickle
    first = dataset[0]
    layout = tuple(first), work.batch_size, *next(iter(first.values())).shape
    return _concatenate, _Slices(layout).read


def _slots(memory):
    """The slots of a worker, in an endless cycle."""
    return itertools.cycle([memoryview(memory)[i * SLOT : (i + 1) * SLOT] for i in range(SLOTS)])


def _concatenate(samples, slot):
    """Concatenate dicts of arrays of one shape and dtype, key by key."""
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
        """The batch as tensors on the slot."""
        return dict(zip(self._keys, map(self._tensor, np.ndarray(self._shape, np.float32, slot)), strict=True))


class _Pickled:
    def __init__(self, collate):
        self._collate = collate

    def write(self, samples, slot):
        """Write the arrays of a batch into the slot and return the pickled rest as the message."""
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
    """The batch, with its arrays on the slot."""
    (count,) = struct.unpack_from("<I", message)
    end, buffers = 0, []
    for size in struct.unpack_from(f"<{count}I", message, 4):
        buffers.append(slot[end : end + size])
        end += aligned(size)
    return pickle.loads(memoryview(message)[4 + 4 * count :], buffers=buffers)
