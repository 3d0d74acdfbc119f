"""Iterable datasets for tests with real workers, which import this module."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import time

import torch
from torch.utils.data import IterableDataset

from nbloader import get_worker_info


def my_shard():
    info = get_worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)


class Range(IterableDataset):
    """0 ... n - 1; each shard yields every shards-th number."""

    def __init__(self, n, **attributes):
        self.n = n
        self.__dict__.update(attributes)

    def __iter__(self):
        shard, shards = my_shard()
        return iter(range(shard, self.n, shards))


class Unsharded(Range):
    """Every worker yields all samples."""

    def __iter__(self):
        return iter(range(self.n))


class Sized(Range):
    """Reports the length `says`, which may be wrong."""

    def __len__(self):
        return self.says


class Uneven(IterableDataset):
    """Shard i yields `lengths[i]` samples: (i, 0), (i, 1), ..."""

    def __init__(self, *lengths):
        self.lengths = lengths

    def __iter__(self):
        shard, _shards = my_shard()
        for number in range(self.lengths[shard]):
            yield shard, number


class Plain:
    """No subclass of torch's, without `__getitem__`; draws from generators of its worker thread, or global ones."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        shard, shards = my_shard()
        info = get_worker_info()
        own = None if info is None else info.rng
        draw, generator = (random, None) if own is None else (own.random_generator, own.torch_generator)
        for i in range(shard, self.n, shards):
            yield i, draw.random(), torch.rand(2, generator=generator)


class Configured(IterableDataset):
    """Sharded by `configure` in each worker, as in torch's documentation."""

    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        return iter(range(self.start, self.end))


def configure(worker_id):
    info = get_worker_info()
    assert info.id == worker_id
    dataset = info.dataset
    each = -(-(dataset.end - dataset.start) // info.num_workers)
    start = dataset.start + worker_id * each
    dataset.start, dataset.end = start, min(start + each, dataset.end)


class Deadly(Range):
    """Its worker dies before sample `bad` if the file `flag` exists, and removes the file first."""

    def __iter__(self):
        for i in super().__iter__():
            if i == self.bad and pathlib.Path(self.flag).exists():
                os.unlink(self.flag)
                os.kill(os.getpid(), signal.SIGKILL)
            yield i, random.random(), torch.rand(()).item()


class Hangs(Range):
    """Its worker hangs before sample `bad` if the file `flag` exists, and creates the file `hung` first."""

    def __iter__(self):
        for i in super().__iter__():
            if i == self.bad and pathlib.Path(self.flag).exists():
                pathlib.Path(self.hung).touch()
                time.sleep(3600)
            yield i


class Raises(Range):
    """Raises once before sample `bad`, and continues after it."""

    def __iter__(self):
        self.numbers = super().__iter__()
        return _RaisingIterator(self)


class _RaisingIterator:
    def __init__(self, dataset):
        self.dataset = dataset
        self.at = iter(range(*_stride(dataset.n)))
        self.raised = False

    def __iter__(self):
        return self

    def __next__(self):
        i = next(self.at)
        if i == self.dataset.bad and not self.raised:
            self.raised = True
            raise ValueError(f"sample {i} is bad")
        return i


def _stride(n):
    shard, shards = my_shard()
    return shard, n, shards


class Broken(Range):
    """A generator that raises at sample `bad`, which ends it."""

    def __iter__(self):
        for i in super().__iter__():
            if i == self.bad:
                raise KeyError(f"no {i}")
            yield i


class Cursor(IterableDataset):
    """Its iterator has a `state_dict`. It writes a line to the file `log` for each sample."""

    def __init__(self, n, log):
        self.n = n
        self.log = log

    def __iter__(self):
        return _Cursor(self)


class _Cursor:
    def __init__(self, dataset):
        self.dataset = dataset
        self.at, self.step = my_shard()

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= self.dataset.n:
            raise StopIteration
        if self.dataset.log is not None:
            with open(self.dataset.log, "a") as log:
                log.write(f"{self.at}\n")
        at, self.at = self.at, self.at + self.step
        return at, random.random()

    def state_dict(self):
        return {"at": self.at, "step": self.step}

    def load_state_dict(self, state):
        self.at, self.step = state["at"], state["step"]


class StatefulDataset(IterableDataset):
    """The dataset has a `state_dict`; its iterator is a generator."""

    def __init__(self, n):
        self.n = n
        self.given = 0
        self.skip = 0

    def __iter__(self):
        shard, shards = my_shard()
        mine = list(range(shard, self.n, shards))
        begin, self.skip = self.skip, 0
        for self.given in range(begin + 1, len(mine) + 1):
            yield mine[self.given - 1], random.random()

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.skip = state["given"]


class Unsavable(Cursor):
    """Its state changes when it is stored as JSON."""

    def __iter__(self):
        return _UnsavableIterator(self)


class _UnsavableIterator(_Cursor):
    def state_dict(self):
        return {1: (self.at, self.step)}

    def load_state_dict(self, _state):
        raise AssertionError("such a state is never saved")


class Counting(IterableDataset):
    """Counts how often it was iterated."""

    def __init__(self):
        self.epochs = 0

    def __iter__(self):
        self.epochs += 1
        yield self.epochs


class Tidy(Range):
    """Creates a file when its iterator is released."""

    def __iter__(self):
        try:
            yield from super().__iter__()
        finally:
            pathlib.Path(self.folder, f"{os.getpid()}").touch()


class WhoAmI(IterableDataset):
    """Yields what `get_worker_info()` returns."""

    def __iter__(self):
        ours, theirs = get_worker_info(), torch.utils.data.get_worker_info()
        for info in (ours, theirs):
            yield None if info is None else (info.id, info.num_workers, info.seed, info.dataset is self)
