"""Datasets without torch: a worker started by spawn imports this module in 0.3 s, and torch in 2 s."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import random
import time

import numpy as np

from nbloader import get_worker_info


class Numbers:
    """Sample i is i."""

    def __init__(self, n: int = 40, **attributes):
        self.n = n
        self.__dict__.update(attributes)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


class Images(Numbers):
    """Batches large enough for a shared-memory segment."""

    def __getitem__(self, i):
        return np.full((64, 64), i, np.float32), i


class Slow(Numbers):
    """Each sample takes `wait` seconds."""

    wait = 0.005

    def __getitem__(self, i):
        time.sleep(self.wait)
        return i


class Varied(Numbers):
    """Samples with an array, random numbers, and a text."""

    def __getitem__(self, i):
        return {
            "image": np.full((70, 70), i, np.float32),
            "noise": np.random.rand(),
            "random": random.random(),
            "text": f"sample {i}",
        }


class Large(Numbers):
    """Samples of 4 MB."""

    def __getitem__(self, i):
        return np.arange(i, i + (1 << 20), dtype=np.int32)


class Fragile(Numbers):
    """Sample `bad` raises."""

    bad = -1

    def __getitem__(self, i):
        if i == self.bad:
            raise KeyError(i)
        return i


class Shards:
    """An iterable dataset: each worker has every n-th number."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        return iter(range(info.id, self.n, info.num_workers))


def sleep():
    time.sleep(3600)


def spin():
    while True:
        pass


def call():
    """Call functions without end, from C code too."""
    while True:
        sorted((3, 1, 2), key=_recurse)


def _recurse(depth):
    return _recurse(depth - 1) if depth else 0


def hang_in_c():
    """Deadlock in a function of the C library, holding the interpreter lock."""
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


class Hangs(Numbers):
    """Hangs at index `bad` while the file `flag` exists; creates the file `hung` first."""

    how = staticmethod(sleep)

    def __getitem__(self, i):
        if i == self.bad and pathlib.Path(self.flag).exists():
            pathlib.Path(self.hung).touch()
            self.how()
        return i


class Held(Numbers):
    """Each sample, or those of index `only`, block while the file `flag` exists."""

    only = None

    def __getitem__(self, i):
        while self.only in (None, i) and pathlib.Path(self.flag).exists():
            time.sleep(0.01)
        return i


class RecordsPids(Numbers):
    """Records in `pids`, a dict, which process produced which sample."""

    def __getitem__(self, i):
        self.pids[i] = os.getpid()
        return i


class Hot(Numbers):
    """Most of the time of a sample goes into one line, which a comment marks."""

    def __init__(self, n: int, how: str):
        super().__init__(n)
        self.how = how

    def __getitem__(self, i):
        sum(k for k in range(300))
        getattr(self, self.how)()
        return i

    def computing(self):
        sum(k * k for k in range(100_000))  # hot: computing

    def waiting(self):  # for long: on a busy machine the worker then has to wait for a core, which is no waiting
        sum(k for k in range(300))
        time.sleep(0.1)  # hot: waiting

    def helping(self):
        help_hot()

    def library(self):
        list(json.JSONEncoder(indent=1).iterencode([1.5, {"a": 2}] * 9000))  # hot: library

    def reading(self):
        sum(k * k for k in range(100_000))  # hot: reading
        for _ in range(4):
            pathlib.Path(__file__).stat()

    def operator(self):  # the next call is on another line
        quotients = np.broadcast_to(1.0, 4_000_000) / 255  # hot: operator
        len(quotients)

    def returning(self):  # the next call is in another function
        half()

    def searching(self):  # before Python 3.12 the jump back belongs to no line
        found = 0
        for k in range(200_000):  # hot: searching
            if k == self.n:  # hot: searching
                found = k
        return found

    def collating(self):
        pass


def half():
    return np.broadcast_to(1.0, 4_000_000) / 2  # hot: returning


def help_hot():
    sum(k for k in range(300))
    sum(k * k for k in range(100_000))  # hot: helping


def collate_hot(samples):
    sorted(range(200_000), key=lambda k: -k)  # hot: collating
    return samples
