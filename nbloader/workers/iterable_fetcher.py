"""Fetch batches of an iterable dataset: keep one iterator per shard, and move it to the requested batch.

The batches of a shard are requested one after the other, normally from the same worker, whose iterator then simply
continues. A worker that does not have the iterator (because it replaces a dead worker, or the epoch was resumed)
creates a new iterator. It restores the last known state, if the dataset or its iterator has `state_dict()` and
`load_state_dict()`. Then it produces and drops the batches up to the requested one, with the same seeds.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from nbloader._util.state_dict import as_json, is_stateful
from nbloader._util.user_warning import warn
from nbloader.sampling.shard_plan import IterableOptions, Ticket
from nbloader.workers.fault_signs import ShardWatch
from nbloader.workers.fetcher import FetchedBatch, OnError, fetch_each
from nbloader.workers.seeding import Seed, Seeding, keep_state
from nbloader.workers.status import WorkerStatus, is_abandoned
from nbloader.workers.worker_info import WorkerContext, WorkerInfo

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

STATE_SHARE = 20
"""States are reported so rarely that reporting takes at most 1/`STATE_SHARE` of a worker's time."""

CopyDataset: TypeAlias = "Callable[[], tuple[Any, Callable[[int], Any] | None]]"
"""Returns a copy of the dataset, and `worker_init_fn`."""


class ReportState(Protocol):
    """Takes the state of an iterator."""

    def __call__(self, epoch: int, shard: int, position: int, state: str | None, problem: str, /) -> None:
        """Report a state.

        Args:
            epoch: Number of the epoch.
            shard: The shard.
            position: Number of batches produced so far.
            state: JSON; None if the state cannot be saved.
            problem: Why the state cannot be saved.
        """


class ShardIterator:
    """An iterator over one shard.

    Args:
        iterator: Yields samples.
        position: Number of batches produced so far.
        source: The iterator or the dataset, whichever has `state_dict()`; None if neither has it.
        info: What `get_worker_info()` returns while the shard is read; None for a single shard.
        seed: Seeds the random generators for a batch.
    """

    __slots__ = ("exhausted", "info", "iterator", "position", "reported", "reporting_ns", "seed", "source")

    def __init__(self, iterator: Any, position: int, source: Any, info: WorkerInfo | None, seed: Seed) -> None:
        self.iterator = iterator
        self.position = position
        self.source = source
        self.info = info
        self.seed = seed
        self.exhausted = False
        self.reported = 0
        """When the state was last reported, `time.perf_counter_ns()`."""
        self.reporting_ns = 0
        """Time that it takes to report the state, ns."""

    def fetch(
        self, ticket: Ticket, status: WorkerStatus, options: IterableOptions, on_error: OnError
    ) -> FetchedBatch | None:
        """Fetch the next batch: the ticket's batch or an earlier one. Return None if the shard has no more batches.

        Raises:
            Exception: Whatever the iterator raises, if `on_error` is "raise"; whatever `on_error` raises.
        """
        self.position += 1  # even if the batch raises: the next batch continues with the samples that follow
        if self.exhausted:
            return None
        batch = fetch_each(
            lambda _position: next(self.iterator),
            range(ticket.size or 1),
            batched=ticket.size is not None,
            status=status,
            on_error=(lambda position, error: on_error(ticket[position], error)) if callable(on_error) else on_error,
            stop=StopIteration,
        )
        self.exhausted = batch.exhausted
        if batch.exhausted and (options.drop_last or not (batch.size or batch.failed)):
            return None
        return batch


class IterableFetcher:
    """Fetch batches of an iterable dataset for one worker. This object keeps the worker's iterators over shards.

    Args:
        copy_dataset: Returns a copy of the dataset for another shard, and `worker_init_fn`.
        dataset: The dataset that the worker already has.
        shard: The (shard, shards) that `dataset` was prepared for.
        options: How the dataset is read.
        status: Where the worker publishes what it is doing.
        on_error: What to do with a sample that raises.
        context: Seeds the random generators, and sets the result of `get_worker_info()`.
        report_state: Takes the states of iterators.
        seeded: Whether `worker_init_fn` has seeded a generator for `dataset`. If so, batches are not seeded.
        watch: Looks at the first samples; None if nothing is compared.
    """

    def __init__(
        self,
        copy_dataset: CopyDataset,
        dataset: Any,
        shard: tuple[int, int],
        options: IterableOptions,
        status: WorkerStatus,
        on_error: OnError,
        *,
        context: WorkerContext,
        report_state: ReportState,
        seeded: bool,
        watch: ShardWatch | None = None,
    ) -> None:
        self._watch = watch
        self._copy_dataset = copy_dataset
        self._context = context
        self._copies = {shard: dataset}
        self._options = options
        self._status = status
        self._on_error: OnError = on_error
        self._report_state = report_state
        self._seeded = seeded
        self._iterators: dict[tuple[int, int], ShardIterator] = {}  # by epoch and shard
        self._name = type(dataset).__name__
        self._warned = False

    def fetch(self, epoch: int, ticket: Ticket) -> FetchedBatch | None:
        """Fetch the samples of one batch. Return None if the shard has no such batch.

        This is not signalled by an exception, because the user's code could raise one of the same type.

        Raises:
            Exception: Whatever the dataset raises.
        """
        if ticket.exhausted:
            return None
        iterator = self._iterators.get((epoch, ticket.shard))
        if iterator is None or iterator.position > ticket.position:
            self._iterators.pop((epoch, ticket.shard), None)
            iterator = self._iterators[epoch, ticket.shard] = self._open(ticket)
        else:
            self._context.set_worker_info(iterator.info)
        while iterator.position < ticket.position:
            if not self._skip(iterator, ticket):
                return None
        iterator.seed(ticket.seed_of(ticket.position))
        batch = iterator.fetch(ticket, self._status, self._options, self._on_error)
        if ticket.shards > 1 and not self._warned and not self._context.asked_for_info():
            self._warned = True
            warn(
                f"the dataset ({self._name}) has not called nbloader.get_worker_info(). If it does not know its shard "
                f"by other means, each of the {ticket.shards} worker threads yields all samples. In threads, "
                "torch.utils.data.get_worker_info() returns None. Call nbloader's function, which also works in "
                'processes, or use workers="process"'
            )
        if batch is None:
            return None
        if self._watch is not None:
            self._look(ticket, iterator, batch)
        if iterator.source is not None and _clock() - iterator.reported >= STATE_SHARE * iterator.reporting_ns:
            self._report(epoch, ticket.shard, iterator)
        return batch

    def _look(self, ticket: Ticket, iterator: ShardIterator, batch: FetchedBatch) -> None:
        """Look at the first samples of a shard."""
        watch = self._watch
        if watch is None or watch.over or iterator.info is None or self._options.prepare is not None:
            self._watch = None
            return
        samples = batch.samples if ticket.size is not None else [batch.samples][: batch.size]
        name = type(vars(iterator.info)["dataset"]).__name__
        watch.look(name, ticket.shard, iterator.position - 1, samples, last=iterator.exhausted)

    def forget(self, epoch: int) -> None:
        """Drop the iterators of an iteration that has ended."""
        for of_epoch, shard in list(self._iterators):
            if of_epoch == epoch:
                del self._iterators[of_epoch, shard]

    def close(self) -> None:
        """Drop all iterators. A generator that is suspended in a `with` block leaves it, and releases its locks."""
        self._iterators.clear()

    def _open(self, ticket: Ticket) -> ShardIterator:
        seed = ticket.seed + ticket.shard
        key = ticket.shard, ticket.shards
        dataset = self._copies.pop(key, None)
        prepared, worker_init_fn, seeded = dataset is not None, None, self._seeded
        if not (prepared and seeded):
            self._context.seed(seed)
        if not prepared:
            dataset, worker_init_fn = self._copy_dataset()
        if self._options.prepare is not None:
            self._options.prepare(dataset, ticket.shard, ticket.shards, ticket.seed)
        info = WorkerInfo(*key, seed, dataset) if ticket.shards else None
        self._context.set_worker_info(info)
        if worker_init_fn is not None and info is not None:
            worker_init_fn(ticket.shard)
            seeded = self._context.was_seeded()
        if not self._options.fresh:
            self._copies[key] = dataset
        position, text = ticket.resume or (0, "")
        state = json.loads(text) if text else None
        dataset_is_stateful = is_stateful(dataset)
        if state is not None and "dataset" in state:
            _resume(dataset, state["dataset"], ticket.shard)
        iterator = iter(dataset)
        iterator_is_stateful = is_stateful(iterator)
        if state is not None and "iterator" in state:
            _resume(iterator, state["iterator"], ticket.shard)
        source = iterator if iterator_is_stateful else dataset if dataset_is_stateful else None
        seed_batch = keep_state if seeded else Seeding(dataset).after(self._context.seed)
        return ShardIterator(iterator, position, source, info, seed_batch)

    def _skip(self, iterator: ShardIterator, ticket: Ticket) -> bool:
        """Produce a batch again, and drop it. Return False if the shard has no such batch."""
        position = iterator.position
        iterator.seed(ticket.seed_of(position))
        try:
            return iterator.fetch(ticket, self._status, self._options, self._on_error) is not None
        except Exception as error:  # the user's code may raise anything; it was reported when the batch was delivered
            if is_abandoned(error, self._status):
                raise
            log.debug("batch %d of shard %d raised again while it was skipped", position, ticket.shard, exc_info=True)
            return True

    def _report(self, epoch: int, shard: int, iterator: ShardIterator) -> None:
        begin = _clock()
        name = "dataset" if iterator.source is not iterator.iterator else "iterator"
        what = f"{type(iterator.source).__name__}.state_dict()"
        text: str | None = None
        try:
            text, problem = as_json({name: iterator.source.state_dict()}, what)
        except Exception as error:  # noqa: BLE001 - the user's code: the method may even take other arguments
            problem = f"{what} raised {type(error).__name__}: {error}"
        self._report_state(epoch, shard, iterator.position, text, problem)
        iterator.reported = _clock()
        took = iterator.reported - begin
        # Limit the effect of a single slow report, such as one that was interrupted.
        iterator.reporting_ns = min(took, 2 * iterator.reporting_ns) if iterator.reporting_ns else took


def _resume(stateful: Any, state: Any, shard: int) -> None:
    """Load the state of the dataset, or of its iterator, in a shard that is resumed.

    Raises:
        ValueError: The object refuses the state or has no `load_state_dict()`. The message names the shard.
    """
    try:
        stateful.load_state_dict(state)
    except Exception as error:
        raise ValueError(
            f"the state of shard {shard} (state_dict['epoch']['shards'][{shard}]['state']) was refused by "
            f"{type(stateful).__name__}.load_state_dict(): {type(error).__name__}: {str(error)[:80]}"
        ) from error
