"""Asynchronous datasets of the tests: their samples wait for conditions. Workers import this module."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import nbloader

POLL = 0.002
"""Seconds between two looks at a file that another process makes."""


class Waits:
    """Sample i is i, after `wait(i)`."""

    def __init__(self, n):
        self.n = n
        self.running = self.peak = 0

    def __len__(self):
        return self.n

    async def __getitem__(self, i):
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self.wait(i)
            return self.sample(i)
        finally:
            self.running -= 1

    async def wait(self, i):
        await asyncio.sleep(0)

    def sample(self, i):
        return i


class Together(Waits):
    """The first samples wait until `count` are running in this worker. Sample i is (i, most samples that ever ran)."""

    def __init__(self, n, count):
        super().__init__(n)
        self.count = count
        self.all_here = None

    async def wait(self, i):
        self.all_here = self.all_here or asyncio.Event()
        if self.running >= self.count:
            self.all_here.set()
        await self.all_here.wait()

    def sample(self, i):
        return i, self.peak


class Backwards(Waits):
    """A sample waits for the one `step` later, if that is among the first `count` ones. `ended` tells the order."""

    def __init__(self, n, count, step):
        super().__init__(n)
        self.count, self.step = count, step
        self.ended = []

    async def wait(self, i):
        while i + self.step < self.count and i + self.step not in self.ended:  # noqa: ASYNC110 - a turn for each sample
            await asyncio.sleep(0)
        self.ended.append(i)


class AtOnce:
    """`Together`, with `__getitems__`; each batch of `size` counts as that many samples."""

    def __init__(self, n, count, bad=()):
        self.n, self.count, self.bad = n, count, bad
        self.running = 0
        self.all_here = None

    def __len__(self):
        return self.n

    async def __getitems__(self, indices):
        self.all_here = self.all_here or asyncio.Event()
        self.running += len(indices)
        if self.running >= self.count:
            self.all_here.set()
        await self.all_here.wait()
        if set(self.bad) & set(indices):
            raise ValueError(f"bad sample among {len(indices)}")
        return list(indices)


class Raises(Waits):
    """Raises for the `bad` indices, after other samples of the batch were started."""

    def __init__(self, n, *bad, error=ValueError):
        super().__init__(n)
        self.bad, self.error = bad, error
        self.cancelled = []

    async def wait(self, i):
        await asyncio.sleep(0)
        if i in self.bad:
            raise self.error(f"bad sample {i}")
        if any(i // 4 == bad // 4 for bad in self.bad) and self.error is asyncio.CancelledError:
            await asyncio.sleep(0)


class Augmented(Waits):
    """Draws before and after a wait, for a number of turns that depends on `disorder`."""

    def __init__(self, n, disorder):
        super().__init__(n)
        self.disorder = disorder

    async def __getitem__(self, i):
        own = nbloader.get_worker_info().rng
        before = own.random_generator.random()
        for _ in range(i * self.disorder % 7):
            await asyncio.sleep(0)
        between = await asyncio.gather(self.draw())
        await asyncio.sleep(0)
        return i, before, between[0], own.numpy_generator.random(), own.numpy_generator.integers(1000)

    async def draw(self):
        return nbloader.get_worker_info().rng.random_generator.gauss(0, 1)


class WithTorch(Augmented):
    """Draws from torch's generator too, after the first sample has imported torch."""

    async def __getitem__(self, i):
        drawn = await super().__getitem__(i)
        import torch

        generator = nbloader.get_worker_info().rng.torch_generator
        return *drawn, torch.rand(2, generator=generator), torch.randn(1, generator=generator)


class Gated(Waits):
    """Samples wait until a file exists, and report themselves to another one: (pid, index) a line."""

    def __init__(self, n, folder):
        super().__init__(n)
        self.gate, self.log = Path(folder, "gate"), Path(folder, "log")

    async def wait(self, i):
        with self.log.open("a") as log:
            log.write(f"{os.getpid()} {i}\n")
        while not self.gate.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(POLL)

    def begun(self) -> list[tuple[int, int]]:
        """What the samples have reported, as (pid, index)."""
        if not self.log.exists():
            return []
        return [tuple(map(int, line.split())) for line in self.log.read_text().splitlines()]

    async def aclose(self):
        with self.log.with_name("closed").open("a") as closed:
            closed.write(f"{os.getpid()}\n")


class Hangs(Waits):
    """Samples from `first` on never end while `hang` is set."""

    def __init__(self, n, first, last=None, once=False):
        super().__init__(n)
        self.first, self.last, self.once = first, first if last is None else last, once
        self.hang = True
        self.cancelled = []

    async def wait(self, i):
        if self.hang and self.first <= i <= self.last:
            self.hang = not self.once
            try:
                await self.never()
            except asyncio.CancelledError:
                self.cancelled.append(i)
                raise

    async def never(self):
        await asyncio.get_running_loop().create_future()


class Kills(Waits):
    """One sample ends the process."""

    def __init__(self, n, bad):
        super().__init__(n)
        self.bad = bad

    async def wait(self, i):
        await asyncio.sleep(0)
        if i == self.bad:
            os._exit(3)
