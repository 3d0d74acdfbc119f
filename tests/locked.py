"""Datasets whose samples hold a lock that all workers share. Workers import this module."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pathlib
import time

from nbloader import get_worker_info

POLL = 0.002
"""Seconds between two looks at a file that another process makes."""


class Locked:
    """Sample i is i, read under a lock. The first sample of worker `holder` waits, with the lock, for the file `go`.

    The other workers begin when it waits.
    """

    def __init__(self, folder: pathlib.Path, n: int = 40, holder: int = 0, *, named: bool = True):
        context = multiprocessing.get_context("spawn" if named else "fork")
        self.lock = context.Lock()
        self.n, self.holder = n, holder
        self.inside, self.go = str(folder / "inside"), str(folder / "go")

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        self.wait_for_holder()
        with self.lock:
            self.wait()
        return i

    def wait_for_holder(self) -> None:
        """Wait until the lock is held, if this is another worker."""
        while not (get_worker_info().id == self.holder or os.path.exists(self.inside)):
            time.sleep(POLL)

    @property
    def waits_here(self) -> bool:
        """Whether this sample is the one that waits."""
        return get_worker_info().id == self.holder and not os.path.exists(self.inside)

    def wait(self) -> None:
        """Wait with the lock, if this is the worker and the sample that does."""
        if self.waits_here:
            announce(self.inside)
            while not os.path.exists(self.go):
                time.sleep(POLL)


class LockedBatches(Locked):
    """The samples of a batch are read by one call."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.wait_for_holder()
        with self.lock:
            self.wait()
        return indices


class LockedAsync(Locked):
    """Samples hold the lock while they are suspended."""

    async def __getitem__(self, i: int) -> int:
        self.wait_for_holder()
        while not self.lock.acquire(block=False):  # noqa: ASYNC110 - it is released by another process
            await asyncio.sleep(POLL)
        try:
            if self.waits_here:
                announce(self.inside)
                while not os.path.exists(self.go):  # noqa: ASYNC110, ASYNC240 - as above
                    await asyncio.sleep(POLL)
        finally:
            self.lock.release()
        return i


class LockedCollate(Locked):
    """Its `collate` holds the lock."""

    def __getitem__(self, i: int) -> int:
        return i

    def collate(self, samples: list[int]) -> list[int]:
        """Collate under the lock."""
        self.wait_for_holder()
        with self.lock:
            self.wait()
        return samples


class LockedStream:
    """The numbers below `n`, all read under one lock."""

    def __init__(self, n: int = 40):
        self.lock = multiprocessing.get_context("spawn").Lock()
        self.n = n

    def __iter__(self):
        with self.lock:
            yield from range(self.n)


class HalfLocked:
    """A sample holds the lock for half of its time."""

    def __init__(self, n: int = 120):
        self.lock = multiprocessing.get_context("spawn").Lock()
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        time.sleep(0.001)
        with self.lock:
            time.sleep(0.001)
        return i


def announce(path: str) -> None:
    """Write the id of this process to a file, at once."""
    with contextlib.suppress(FileExistsError):
        pathlib.Path(f"{path}.new").write_text(str(os.getpid()))
        os.rename(f"{path}.new", path)
