"""The state of each iteration in a worker process: its copy of the dataset and functions, and its random generators.

torch's workers end with the iteration, unless they are persistent. The next iteration then begins in new processes,
with the notebook's current dataset and a call of `worker_init_fn`. In nbloader the process keeps running, with its
memory, its imported modules and its connection. It begins the next iteration with a new copy of what it was sent:

    first task of an iteration -> switch(): new copy, get_worker_info(), seeds, worker_init_fn

Copying a typical dataset takes 20 to 200 us: large arrays are mapped again, not copied. If copying takes longer, a new
copy is made only if the copy of the last iteration has changed, as far as a bounded comparison shows
(`reachable.Snapshot`).
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
from typing import Any, NamedTuple, Protocol

from nbloader._util import rng
from nbloader._util.import_hooks import when_imported
from nbloader.transport.bootstrap import WorkerStart
from nbloader.transport.dataset_payload import Files, load_shared
from nbloader.workers.fetcher import is_async
from nbloader.workers.reachable import Snapshot, holds_generator
from nbloader.workers.worker_info import (
    ProcessContext,
    WorkerInfo,
    collate_tensors_in_private_memory,
    set_torch_worker_info,
)

_clock = time.perf_counter_ns

CHEAP_NS = 5_000_000
"""If making a copy takes at most this time, a new copy is made for each iteration, ns."""
SMALL_BYTES = 1 << 16
"""Size up to which a pickle is expected to be rebuilt within `CHEAP_NS`, even if the first time took longer because
modules were imported."""


class Parts(NamedTuple):
    """One copy of the dataset and functions that a worker is sent."""

    dataset: Any
    collate_fn: Any
    worker_init_fn: Any
    on_error: Any


class PartsSource(Protocol):
    """A source of copies of the dataset and functions."""

    small: bool
    """Whether making a copy is expected to be fast, even if the first copy took longer because modules were imported.
    """

    def load(self) -> Parts:
        """Make a copy.

        Raises:
            Exception: Whatever the user's code raises.
        """


class PickledParts:
    """A source that rebuilds copies from a pickle.

    Args:
        payload: The pickle; see `InitMessage`.
        files: The files of the dataset's large arrays. This object owns the descriptors.
    """

    def __init__(self, payload: bytes, files: Files) -> None:
        self._payload = payload
        self._files = files
        self.small = files.pickle is None and len(payload) <= SMALL_BYTES

    def load(self) -> Parts:
        """See `PartsSource`."""
        files = self._files._replace(fds=tuple(map(os.dup, self._files.fds)))
        return Parts(*load_shared(self._payload, files))


class InheritedParts:
    """The source in a forked worker. The first "copy" is the inherited objects, which may hold open files, for example.

    Further copies are made for an iterable dataset, if the worker takes over the shard of another worker. All copies
    share the functions. The dataset is deep-copied, or copied shallowly if that fails, or shared if that fails, too.

    Args:
        parts: The objects of the notebook.
    """

    small = True

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._given = False

    def load(self) -> Parts:
        """See `PartsSource`."""
        if not self._given:
            self._given = True
            return self._parts
        dataset = self._parts.dataset
        for duplicate in (copy.deepcopy, copy.copy):
            with contextlib.suppress(Exception):  # copying runs the user's code, which may raise anything
                return self._parts._replace(dataset=duplicate(dataset))
        return self._parts


class Iteration:
    """The state of one iteration, after the call of `worker_init_fn`.

    Args:
        parts: The iteration's copy of the dataset and functions.
        info: What `get_worker_info()` returns.
        seed: The base seed of the epoch.
        seeded: Whether `worker_init_fn` has seeded a generator. If so, batches are not seeded: as in torch, each worker
            draws from its own generators throughout the iteration.
    """

    def __init__(self, parts: Parts, info: WorkerInfo, seed: int, *, seeded: bool) -> None:
        self.parts = parts
        self.info = info
        self.seed = seed
        self.seeded = seeded
        self.generators: rng.PreservedRandomState | None = None
        """The state of the iteration's random generators while another iteration is processed."""


class Iterations:
    """The iterations of a worker process.

    Args:
        start: The options of the worker.
        source: Where the dataset and functions come from.

    Raises:
        Exception: Whatever rebuilding the dataset or `worker_init_fn` raises.
    """

    def __init__(self, start: WorkerStart, source: PartsSource) -> None:
        self._start = start
        self._source = source
        self._fresh = start.fresh and start.streaming is None  # iterable datasets are copied for each shard
        self._open: dict[int, Iteration] = {}
        self._seeds: dict[int, int] = {}
        self._pristine: Snapshot | None = None
        """Snapshot of the last copy when it was made; None if making a copy is fast."""
        parts = self._load(imports=True)
        self._epoch: int | None = None
        when_imported("torch", _set_up_torch)
        self.current = self._begin(parts, start.seed)
        self.round_robin = self.current.seeded or (
            start.streaming is None
            and holds_generator(*self.current.parts, seeded=not is_async(self.current.parts.dataset))
        )
        """Whether the worker draws from generators that are not seeded for each batch."""

    def announce(self, epoch: int, seed: int, open_epochs: tuple[int, ...]) -> None:
        """Register the iteration that the next tasks belong to.

        Args:
            epoch: Number of the epoch.
            seed: The base seed of its epoch.
            open_epochs: Numbers of all epochs whose iterations have not ended. The state of all others is released.
        """
        self._seeds[epoch] = seed
        for ended in [old for old in self._seeds if old != epoch and old not in open_epochs]:
            del self._seeds[ended]
            if ended != self._epoch:
                self._open.pop(ended, None)

    def switch(self, epoch: int) -> Iteration:
        """Make this the current iteration, and return its state.

        Raises:
            Exception: Whatever rebuilding the dataset or `worker_init_fn` raises.
        """
        before, of_epoch = self.current, self._epoch
        self._epoch = epoch
        if not self._fresh:
            return before
        seed = self._seeds.get(epoch, before.seed)
        if of_epoch is None and seed == before.seed:  # the iteration was begun when the worker started
            self._open[epoch] = before
            return before
        if of_epoch is not None and of_epoch not in self._seeds:
            self._open.pop(of_epoch, None)
        elif before.seeded:
            before.generators = rng.PreservedRandomState()
            before.generators.save()
        iteration = self._open.get(epoch)
        if iteration is None:
            unused = None if of_epoch in self._open else before.parts
            del before
            iteration = self._open[epoch] = self._begin(self._next_parts(unused), seed)
        else:
            ProcessContext().set_worker_info(iteration.info)
            if iteration.generators is not None:
                iteration.generators.restore()
        self.current = iteration
        return iteration

    def open_datasets(self) -> list[Any]:
        """Return the datasets of the open iterations that this worker has processed tasks of."""
        return [iteration.parts.dataset for iteration in self._open.values()]

    def copy_dataset(self) -> tuple[Any, Any]:
        """Make another copy of the dataset and `worker_init_fn`, for an `IterableFetcher`."""
        parts = self._load()
        return parts.dataset, parts.worker_init_fn

    def _next_parts(self, unused: Parts | None) -> Parts:
        """Return a copy of the parts as they were sent.

        Args:
            unused: The parts of the last iteration, if it has ended; they are reused if they are unchanged.
        """
        if self._pristine is not None and unused is not None and Snapshot(*unused) == self._pristine:
            return unused
        return self._load()

    def _load(self, *, imports: bool = False) -> Parts:
        """Make a copy.

        Args:
            imports: Whether this may import modules, so that it takes longer than the next copy will.
        """
        begin = _clock()
        parts = self._source.load()
        cheap = _clock() - begin <= CHEAP_NS or (imports and self._source.small)
        self._pristine = None if cheap or not self._fresh else Snapshot(*parts)
        return parts

    def _begin(self, parts: Parts, base_seed: int) -> Iteration:
        """Set the results of `get_worker_info()` (nbloader's and torch's), seed, and call `worker_init_fn`."""
        start = self._start
        seed = base_seed + start.worker
        concurrent = start.streaming is None and is_async(parts.dataset)
        info = WorkerInfo(
            start.worker, start.num_workers, seed, parts.dataset, rng.TaskGenerators() if concurrent else None
        )
        ProcessContext().set_worker_info(info)
        rng.seed_everything(seed)
        seeded = False
        if parts.worker_init_fn is not None:
            parts.worker_init_fn(start.worker)
            seeded = rng.was_seeded()
        return Iteration(parts, info, base_seed, seeded=seeded)


def _set_up_torch() -> None:
    """Set up torch after it was imported, possibly by a sample, and seed it like the other libraries."""
    import torch

    set_torch_worker_info()
    collate_tensors_in_private_memory()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    rng.seed_torch()
