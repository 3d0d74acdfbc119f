"""What each iteration uses in a worker process: its copy of the dataset and functions, and its random generators.

torch's workers end with the iteration, unless they persist: the next one begins in new processes, with the dataset as
the notebook has it and a call of `worker_init_fn`. Here the process stays, with its memory, its imported modules and
its connection, and begins the next iteration on a new copy of what it was sent:

    first task of an iteration -> switch(): new copy, get_worker_info(), seeds, worker_init_fn

A copy of a typical dataset takes 20 to 200 us: large arrays are mapped again, not copied. One that takes long is made
only if the copy of the last iteration was changed, as far as a bounded look shows (`reachable.Snapshot`).
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
from nbloader.transport.dataset_payload import Files, is_prepared, load_shared
from nbloader.workers.reachable import Snapshot, holds_generator
from nbloader.workers.worker_info import (
    ProcessContext,
    WorkerInfo,
    collate_tensors_in_private_memory,
    set_torch_worker_info,
)

_clock = time.perf_counter_ns

CHEAP_NS = 5_000_000
"""A copy that is made in this time is made for each iteration."""
SMALL_BYTES = 1 << 16
"""Size of a pickle that is expected to be rebuilt in that time, although it took longer at first, with its imports."""


class Parts(NamedTuple):
    """One copy of what a worker is sent."""

    dataset: Any
    collate_fn: Any
    worker_init_fn: Any
    on_error: Any


class PartsSource(Protocol):
    """Where copies of the dataset and functions come from."""

    small: bool
    """Whether a copy is expected to be made in a short time, although the first one took longer, with its imports."""

    def load(self) -> Parts:
        """Make a copy.

        Raises:
            Exception: Whatever the user's code raises.
        """


class PickledParts:
    """Copies are rebuilt from a pickle.

    Args:
        payload: The pickle; see `InitMessage`.
        files: Those of the dataset's large arrays. This object owns the descriptors.
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
    """In a forked worker: the first copy is the objects themselves, which may hold anything, such as an open file.

    Others are made for an iterable dataset, if the worker takes over the shard of another one. The functions are the
    same for all, and the dataset is copied as deeply as it can be.

    Args:
        parts: The notebook's.
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
    """What one iteration uses, after `worker_init_fn`.

    Args:
        parts: Its copy of the dataset and functions.
        info: What `get_worker_info()` returns.
        seed: The base seed of the epoch.
        seeded: Whether `worker_init_fn` has seeded a generator. Then batches are not seeded: as in torch, each worker
            draws from its own generators throughout the iteration.
    """

    def __init__(self, parts: Parts, info: WorkerInfo, seed: int, *, seeded: bool) -> None:
        self.parts = parts
        self.info = info
        self.seed = seed
        self.seeded = seeded
        self.generators: rng.PreservedRandomState | None = None
        """The state of its generators while another iteration is processed."""


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
        """The last copy as it was made; None if a copy is made in a short time."""
        parts = self._load(imports=True)
        self._run: int | None = None
        when_imported("torch", _set_up_torch)
        self.current = self._begin(parts, start.seed)
        self.in_turn = self.current.seeded or (start.streaming is None and holds_generator(*self.current.parts))
        """Whether it draws from generators that are not seeded for each batch."""

    def announce(self, run: int, seed: int, open_runs: tuple[int, ...]) -> None:
        """Take note of an iteration to which later tasks belong.

        Args:
            run: Its number.
            seed: The base seed of its epoch.
            open_runs: Numbers of all iterations that have not ended: the others need nothing any more.
        """
        self._seeds[run] = seed
        for ended in [old for old in self._seeds if old != run and old not in open_runs]:
            del self._seeds[ended]
            if ended != self._run:
                self._open.pop(ended, None)

    def switch(self, run: int) -> Iteration:
        """Process tasks of this iteration from now on.

        Raises:
            Exception: Whatever rebuilding the dataset or `worker_init_fn` raises.
        """
        before, of_run = self.current, self._run
        self._run = run
        if not self._fresh:
            return before
        seed = self._seeds.get(run, before.seed)
        if of_run is None and seed == before.seed:  # begun when the worker started
            self._open[run] = before
            return before
        if of_run is not None and of_run not in self._seeds:
            self._open.pop(of_run, None)
        elif before.seeded:
            before.generators = rng.PreservedRandomState()
            before.generators.save()
        iteration = self._open.get(run)
        if iteration is None:
            unused = None if of_run in self._open else before.parts
            del before
            iteration = self._open[run] = self._begin(self._next_parts(unused), seed)
        else:
            ProcessContext().set_worker_info(iteration.info)
            if iteration.generators is not None:
                iteration.generators.restore()
        self.current = iteration
        return iteration

    def open_datasets(self) -> list[Any]:
        """The datasets of iterations that have not ended, as far as this worker has processed tasks of them."""
        return [iteration.parts.dataset for iteration in self._open.values()]

    def copy_dataset(self) -> tuple[Any, Any]:
        """Another copy of the dataset, and of `worker_init_fn`: for an `IterableFetcher`."""
        parts = self._load()
        return parts.dataset, parts.worker_init_fn

    def _next_parts(self, unused: Parts | None) -> Parts:
        """Parts as they were sent.

        Args:
            unused: Those of the last iteration, if that has ended.
        """
        if self._pristine is not None and unused is not None and Snapshot(*unused) == self._pristine:
            return unused
        return self._load()

    def _load(self, *, imports: bool = False) -> Parts:
        """Make a copy.

        Args:
            imports: Whether it may have to import modules, so that it takes longer than it will take the next time.
        """
        prepared = is_prepared()
        begin = _clock()
        parts = self._source.load()
        cheap = not prepared and (_clock() - begin <= CHEAP_NS or (imports and self._source.small))
        self._pristine = None if cheap or not self._fresh else Snapshot(*parts)
        return parts

    def _begin(self, parts: Parts, base_seed: int) -> Iteration:
        """Answer `get_worker_info()`, ours and torch's; seed; call `worker_init_fn`."""
        start = self._start
        seed = base_seed + start.worker
        info = WorkerInfo(start.worker, start.num_workers, seed, parts.dataset)
        ProcessContext().set_worker_info(info)
        rng.seed_everything(seed)
        seeded = False
        if parts.worker_init_fn is not None:
            parts.worker_init_fn(start.worker)
            seeded = rng.was_seeded()
        return Iteration(parts, info, base_seed, seeded=seeded)


def _set_up_torch() -> None:
    """Torch has just been imported, maybe by a sample: set it up and seed it like the other libraries."""
    import torch

    set_torch_worker_info()
    collate_tensors_in_private_memory()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    rng.seed_torch()
