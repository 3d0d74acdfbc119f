"""The compared loaders, configured alike: no shuffling, workers persist between epochs."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import threading
import time

import numpy as np
from bare import Bare, copying, producing


def make(system, work, dataset, batch_sampler=None):
    """A loader of `system` (a key of `MAKERS`): something that can be iterated over again and again.

    Args:
        system: Its name.
        work: The workload, a `work.Work`.
        dataset: The dataset of that workload.
        batch_sampler: Yields the batches instead of `work.batch_size`; torch and ours only.
    """
    if batch_sampler is not None:
        return MAKERS[system](work, dataset, batch_sampler=batch_sampler)
    return MAKERS[system](work, dataset)


def _torch(work, dataset, workers=None, **options):
    from torch.utils.data import DataLoader

    workers = work.workers if workers is None else workers
    options = options or _batches(work, dataset)
    return _in_order(DataLoader(
        dataset, num_workers=workers, collate_fn=work.collate, persistent_workers=workers > 0 and not work.forked,
        **options
    ))  # fmt: skip


def _batches(work, dataset):
    """The arguments that say what the batches are. A shuffled order has a generator of its own.

    The number of draws from torch's generator is not the same in the first epoch of persistent workers and in later
    ones (the base seed is drawn only once).
    """
    if not work.shuffle:
        return {"batch_size": work.batch_size}
    import torch

    sampler = torch.utils.data.RandomSampler(dataset, generator=torch.Generator())
    return {"batch_size": work.batch_size, "sampler": sampler}


class OneOrder:
    """A loader whose shuffled order is the same in each epoch."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        self.loader.sampler.generator.manual_seed(0)
        return iter(self.loader)


def _in_order(loader):
    return OneOrder(loader) if getattr(loader.sampler, "generator", None) is not None else loader


class DirectIndexing:
    """No loader: a shuffled order, and one indexing per batch."""

    def __init__(self, work, dataset):
        self.size = work.batch_size
        (self.rows,) = dataset.tensors

    def __iter__(self):
        import torch

        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(0))
        for start in range(0, len(order), self.size):
            yield [self.rows[order[start : start + self.size]]]


class EventLoop:
    """No loader: one event loop in this process, with as many samples in flight as all workers have."""

    def __init__(self, work, dataset):
        self.work, self.dataset = work, dataset

    def __iter__(self):
        samples = asyncio.run(self._fetch())
        for start in range(0, len(samples), self.work.batch_size):
            yield stack(samples[start : start + self.work.batch_size])

    async def _fetch(self):
        samples, waiting = [None] * len(self.dataset), iter(range(len(self.dataset)))

        async def fetch():
            for i in waiting:
                samples[i] = await self.dataset[i]

        await asyncio.gather(*(fetch() for _ in range(self.work.concurrency * self.work.workers)))
        return samples


def _in_process(work, dataset):
    return _torch(work, dataset, workers=0)


def _ours(work, dataset, **options):
    from nbloader import DataLoader

    options = options or _batches(work, dataset)
    if work.cached:
        import nbloader

        dataset.decode = nbloader.cached(dataset.decode)
    if work.threads:
        options["workers"] = "thread"
    if work.concurrency:
        options["concurrency"] = work.concurrency
    if work.forked:
        options["multiprocessing_context"] = "fork"
    elif work.workers:
        options["persistent_workers"] = True
    return _in_order(DataLoader(dataset, num_workers=work.workers, collate_fn=work.collate, **options))


def _ours_uncached(work, dataset):
    return _ours(dataclasses.replace(work, cached=False), dataset)


class Watched:
    """Our loader with the load of an open dashboard at 4 Hz, without the browser.

    Like the widget, it encodes the messages of a feed, and waits longer if that takes too much CPU time.
    """

    def __init__(self, work, dataset):
        self.loader = _ours(work, dataset)
        self.cpu = 0.0
        """CPU time of the watching thread, seconds."""
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def __iter__(self):
        if not self._watcher.is_alive():
            raise RuntimeError("the watching thread has ended")
        return iter(self.loader)

    def _watch(self):
        from nbloader.dashboard.feed import Feed
        from nbloader.dashboard.publisher import COSTS, interval

        feed = Feed(self.loader)
        self.loader.events.subscribe(feed.note)
        costs = collections.deque([0.0] * COSTS, maxlen=COSTS)
        while True:
            time.sleep(interval(costs))
            before = time.thread_time()
            feed.observe(self.loader)
            message = feed.tick()
            if message is not None:
                json.dumps(message)
            self.cpu = time.thread_time()
            costs.append(self.cpu - before)


def _ours_silent(work, dataset):
    """The same loop without records, history and statistics: the difference is their cost."""
    from nbloader import events
    from nbloader.engine import iterator

    for owner, name in (
        (events.EventBus, "publish"),
        (iterator.EpochIterator, "_remember"),
        (iterator._Resources, "publish"),
    ):
        if not hasattr(owner, name):
            raise AttributeError(f"{owner.__name__}.{name} does not exist: update the patches that disable events")
        setattr(owner, name, _nothing)
    return _ours(work, dataset)


def _nothing(*_args):
    return None


class Memcpy:
    """One thread that copies the same samples with `np.copyto` into one batch buffer.

    This is the rate without a second process and new memory. The samples are those that the workers read, so that the
    source is in the cache for both.
    """

    def __init__(self, work, dataset):
        self.batches = len(dataset) // work.batch_size
        self.size = work.batch_size
        self.dataset = dataset
        self.target = np.empty((work.batch_size, *dataset[0].shape), dataset[0].dtype)

    def __iter__(self):
        for batch in range(self.batches):
            for position in range(self.size):
                np.copyto(self.target[position], self.dataset[batch * self.size + position])
            yield self.target


def _paddle(work, dataset):
    import paddle

    paddle.set_device("cpu")
    return paddle.io.DataLoader(
        dataset, batch_size=work.batch_size, num_workers=work.workers, collate_fn=work.collate,
        persistent_workers=True, return_list=True,
    )  # fmt: skip


def _mxnet(work, dataset):
    from mxnet.gluon.data import DataLoader

    return DataLoader(dataset, batch_size=work.batch_size, num_workers=work.workers, batchify_fn=work.collate)


def _spdl(work, dataset):
    from spdl.dataloader import get_pytorch_dataloader

    return get_pytorch_dataloader(
        dataset, batch_size=work.batch_size, num_workers=work.workers, collate_fn=work.collate or stack, in_order=True
    )  # fmt: skip


def _grain(work, dataset):
    from grain import python as grain

    size, workers = work.batch_size, work.workers

    class Source:
        """A dataset as a random-access data source of Grain.

        Grain distributes samples round-robin to its workers, and each worker batches its own samples. This mapping of
        indices makes its batches equal to those of the other systems.
        """

        def __len__(self):
            return len(dataset)

        def __getitem__(self, i):
            slot, worker = divmod(int(i), workers)
            batch = slot // size * workers + worker
            return dataset[batch * size + slot % size]

    sampler = grain.IndexSampler(len(dataset), shard_options=grain.NoSharding(), shuffle=False, num_epochs=1)
    batch = (
        grain.Batch(work.batch_size) if work.collate is None else grain.Batch(work.batch_size, batch_fn=work.collate)
    )
    return grain.DataLoader(data_source=Source(), sampler=sampler, worker_count=work.workers, operations=[batch])


def stack(samples):
    """Collate to NumPy arrays, for a system without a collate function."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: stack([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple):
        return [stack(column) for column in zip(*samples, strict=True)]
    return np.stack(samples)


MAKERS = {
    "torch": _torch,
    "nbloader": _ours,
    "without share": _ours,
    "without cache": _ours_uncached,
    "in process": _in_process,
    "without events": _ours_silent,
    "watched": Watched,
    "memcpy": Memcpy,
    "two memcpy": copying,
    "direct indexing": DirectIndexing,
    "asyncio alone": EventLoop,
    "no loader": Bare,
    "no transfer": producing,
    "paddle": _paddle,
    "mxnet": _mxnet,
    "spdl": _spdl,
    "grain": _grain,
}

NO_LOADERS = ("memcpy", "two memcpy", "no transfer")
"""Systems whose batches cannot be compared."""
PEERS = ("paddle", "spdl", "grain", "mxnet")
