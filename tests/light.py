"""Datasets without torch: a worker that starts by spawn has them in a third of a second, and torch in two."""

from __future__ import annotations

import ctypes
import os
import pathlib
import time

import numpy as np


class Numbers:
    """Sample i is i. What goes wrong at which index is told by subclasses or by `spoil`."""

    def __init__(self, n: int = 40, **attributes):
        self.n = n
        self.__dict__.update(attributes)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


class Images(Numbers):
    """Large enough to travel in a segment."""

    def __getitem__(self, i):
        return np.full((64, 64), i, np.float32), i


class Slow(Numbers):
    """Each sample takes `wait` seconds."""

    wait = 0.005

    def __getitem__(self, i):
        time.sleep(self.wait)
        return i


def sleep():
    time.sleep(3600)


def spin():
    while True:
        pass


def hang_in_c():
    """In a function of the C library that waits for itself, with the interpreter lock."""
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


class Hangs(Numbers):
    """Hangs at index `bad` for as long as the file `flag` is there; touches the file `hung` first."""

    how = staticmethod(sleep)

    def __getitem__(self, i):
        if i == self.bad and pathlib.Path(self.flag).exists():
            pathlib.Path(self.hung).touch()
            self.how()
        return i


class Noting(Numbers):
    """Notes in `notes`, a dict, which process made which sample."""

    def __getitem__(self, i):
        self.notes[i] = os.getpid()
        return i
