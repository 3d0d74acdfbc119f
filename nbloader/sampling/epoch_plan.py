"""The plan of one epoch: its batches in order, with their seeds, and how far the consumer has got.

    sampler or shards -> EpochPlan.take() -> dispatched, produced -> EpochPlan.delivered() -> EpochPlan.state()

A plan is drawn lazily: a batch is drawn from the sampler only when it can be dispatched.
"""

from __future__ import annotations

import json
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from nbloader._util import rng
from nbloader._util.rng import mix
from nbloader._util.signals import raised_by_handler
from nbloader.errors import LoaderClosedError
from nbloader.sampling import datapipes, samplers
from nbloader.sampling.epoch_order import EpochOrder, LoggedOrder, Numbering, order_of
from nbloader.sampling.index_arrays import DrawnIndices, IndexArray, as_drawn, may_iterate
from nbloader.sampling.resumable_sampler import ResumableSampler, generators
from nbloader.sampling.shard_plan import IteratorState, ShardPlan, ShardProgress
from nbloader.sampling.source import SourceReader

_clock = time.perf_counter_ns

State = dict[str, Any]


class ChunkSpec(NamedTuple):
    """How batches are divided into chunks that several workers produce."""

    size: int
    """Samples per chunk."""
    collate_fn: Callable[[list[Any]], Any] | None
    """Makes a batch from all its samples if chunks are lists of samples; None if chunks are already collated."""


class PlannedBatch(NamedTuple):
    """A batch that the plan yields."""

    indices: Any
    """A list, tuple, `DrawnIndices` or `IndexArray` of dataset indices, a single index if automatic batching is off, or
    the `Ticket` of a shard."""
    seed: int


@dataclass(frozen=True, slots=True)
class EpochContext:
    """What an epoch depends on: the loader's configuration at the moment the epoch begins."""

    dataset: Any
    iterable: bool
    """Whether the dataset can only be iterated, and therefore has shards instead of indices."""
    index_sampler: Any
    """The batch sampler, or the sampler if automatic batching is off."""
    batched: bool
    """Whether the sampler yields batches of indices."""
    batch_size: int | None
    """Samples per batch; None if automatic batching is off or a batch sampler was given."""
    drop_last: bool
    """Whether an incomplete last batch is dropped."""
    generator: Any
    """The `torch.Generator` from which the base seed is drawn; None for torch's default generator."""
    in_order: bool
    """Whether batches are delivered in order."""
    num_shards: int
    """Number of shards of an iterable dataset, one per worker; 0 for a single shard in the notebook's process."""
    chunk_spec: ChunkSpec | None = None
    """None if batches are produced whole."""
    promised_length: int | None = None
    """`len(dataset)` of an iterable dataset, if the user has asked for `len(loader)`."""
    index_arrays: bool = False
    """Whether workers gather batches by indexing, and therefore take indices as arrays."""


class EpochPlan(ABC):
    """The batches of one epoch, drawn on demand."""

    seed: int
    """The epoch's base seed."""
    first = 0
    """Number of the first batch that `take` yields: more than 0 in a resumed epoch."""
    total: int | None = None
    """Number of batches of the whole epoch; None if unknown."""
    shards: ShardPlan | None = None
    """The shards of an iterable dataset."""
    reader: SourceReader | None = None
    """The reader of a source (`DataLoader.from_source`)."""
    sampler: ResumableSampler | None = None
    """What the indices are drawn from; None if samples have no indices."""
    order: EpochOrder | None = None
    """The indices of all batches, including delivered ones; None if samples have no indices."""
    chunk_spec: ChunkSpec | None = None
    """How batches are divided into chunks; None if they are produced whole."""
    error: Exception | None = None
    """The exception that the sampler raised; nothing is drawn after it."""
    number = 0
    """Number of the epoch, from 0."""
    over = False
    """Whether the consumer has reached the end."""
    next_number: int
    """Number of the batch that `take` yields next. An interrupt may leave it too high."""
    _draw_indices: Callable[[], Any] | None = None
    """Draws the indices of the next batch."""
    _in_draw = False
    """Whether the function that was passed to `draw_with` is running."""

    @abstractmethod
    def take(self, room: int, limit_ns: int | None = None) -> list[PlannedBatch]:
        """Return the next batches to dispatch.

        Args:
            room: Maximum number of batches.
            limit_ns: Time in nanoseconds after which no more batches are drawn from a slow sampler; None for no limit.
        """

    @abstractmethod
    def skip(self) -> Any:
        """Draw the next batch without dispatching it, and count it as delivered. Return its indices.

        Raises:
            StopIteration: There is none.
            AttributeError: The samples have no indices.
            Exception: Whatever the sampler raises.
        """

    def draw_with(self, draw: Callable[[], Any]) -> None:
        """Draw each batch by calling a function, in which a program may see or change the indices.

        Args:
            draw: Calls `skip`, which does not skip the batch then, and returns its indices; raises StopIteration at the
                end.
        """

        def call() -> Any:
            self._in_draw = True
            try:
                return draw()
            finally:
                self._in_draw = False

        self._draw_indices = call

    @abstractmethod
    def delivered(self, number: int, indices: Any, samples: int) -> None:
        """Record that a batch was delivered to the consumer.

        Args:
            number: Batch number within the epoch, from 0.
            indices: See `PlannedBatch`.
            samples: Number of its samples; 0 if its error was delivered.
        """

    @abstractmethod
    def state(self) -> State:
        """Return what another process needs to resume after the last delivered batch; JSON-serializable."""


class MapEpochPlan(EpochPlan):
    """The plan of an epoch over a map-style dataset: batches of indices, from a sampler.

    Args:
        context: The loader's configuration.
        loader_seed: See `plan_epoch`.
        base_seed: See `plan_epoch`.
        resume_from: See `plan_epoch`.
    """

    def __init__(
        self, context: EpochContext, *, loader_seed: int | None, base_seed: int | None, resume_from: State
    ) -> None:
        self._position: int = resume_from.get("position", 0)
        self._beyond = set(resume_from.get("beyond", ()))  # delivered out of order: numbers above the position
        self._skipped = frozenset(self._beyond)
        self.sampler = self._sampler = ResumableSampler(
            context.index_sampler, context.generator, loader_seed=loader_seed, base_seed=base_seed,
            resume_from=resume_from, position=self._position, arrays=context.index_arrays,
        )  # fmt: skip
        self.reader = self._sampler.reader
        self.chunk_spec = context.chunk_spec
        self._batched = context.batched
        self._fetches_batches = getattr(context.dataset, "__getitems__", None) is not None
        self._exhausted = False
        self._drawn = self._position
        # Batches that were delivered out of order are skipped, and the others are renumbered without gaps.
        self._renumbered: dict[int, int] = {}
        self.first = self.next_number = self._position + len(self._beyond)
        self.seed = self._sampler.seed
        self._mixed_seed = mix(self.seed)
        self.total = samplers.length(context.index_sampler)
        self._log: LoggedOrder | None = None
        if self.reader is None:
            self.order = order_of(
                self._sampler, self.total, Numbering(self._position, tuple(sorted(self._beyond))),
                index_sampler=context.index_sampler, generator=context.generator, base_seed=base_seed,
                arrays=context.index_arrays,
            )  # fmt: skip
            if isinstance(self.order, LoggedOrder):
                self._log = self.order
        if self._sampler.keeps_states and self._position == self.total:
            # A sampler that has yielded its last batch may already be at the start of the next epoch.
            self._exhausted = True

    def take(self, room: int, limit_ns: int | None = None) -> list[PlannedBatch]:
        """See `EpochPlan`."""
        batches: list[PlannedBatch] = []
        if self._exhausted:
            return batches
        try:
            self._draw(batches, room, None if limit_ns is None else _clock() + limit_ns)
        except StopIteration:
            self._exhausted = True
        except Exception as error:  # from the user's sampler; raised after the batches before it
            self._exhausted = True
            self.error = error
            if raised_by_handler(error):  # now, and again later: a sampler that is a generator has ended
                raise
        except BaseException:
            if self.reader is None:  # a generator has ended: if the loop goes on, the epoch must not seem to be over
                self._exhausted = True
                self.error = LoaderClosedError("the sampler was interrupted: iterate over the loader again")
            raise
        return batches

    def _draw(self, batches: list[PlannedBatch], room: int, deadline: int | None) -> None:
        """Draw batches from the sampler until the list has `room` of them, or until the deadline (`perf_counter_ns`).

        After an exception, the list contains the batches that were drawn before it.
        """
        draw = self._draw_indices or self._sampler.__next__
        while len(batches) < room:
            indices = draw()
            number = self._drawn
            self._drawn += 1
            if number in self._skipped:
                continue
            if number != self.next_number:
                self._renumbered[self.next_number] = number
            self.next_number += 1
            if self._batched and not isinstance(indices, (list, tuple, IndexArray)):
                indices = self._as_list(indices)
            if self._log is not None:
                self._log.add(number, indices)
            batches.append(PlannedBatch(indices, mix(number, after=self._mixed_seed)))
            if deadline is not None and _clock() >= deadline:
                return

    def skip(self) -> Any:
        """See `EpochPlan`."""
        if self.order is None:
            raise AttributeError("the batches of DataLoader.from_source cannot be skipped: they have no indices")
        if self._in_draw:
            return as_drawn(next(self._sampler))
        if self._exhausted:
            raise StopIteration
        while True:
            try:
                indices = next(self._sampler)
            except StopIteration:
                self._exhausted = True
                raise
            number = self._drawn
            self._drawn += 1
            if number not in self._skipped:
                break
        self.order.skip(number)
        self._count(number)
        return as_drawn(indices)

    def _as_list(self, drawn: Any) -> DrawnIndices:
        """Return what a batch sampler has yielded, if that is not a list."""
        if not may_iterate(drawn) and not self._fetches_batches:
            kind = type(drawn).__name__
            raise TypeError(
                f"batch_sampler must yield lists of indices, but yielded {drawn!r} ({kind}): did you mean sampler=?"
            )
        return DrawnIndices(drawn)

    def delivered(self, number: int, indices: Any, samples: int) -> None:  # noqa: ARG002
        """See `EpochPlan`."""
        self._count(self._renumbered.pop(number, number))
        if self._sampler.keeps_states:
            self._sampler.forget_before(self._position)

    def _count(self, number: int) -> None:
        """Count a batch as delivered, by its number in the order of the sampler."""
        self._beyond.add(number)
        while self._position in self._beyond:
            self._beyond.remove(self._position)
            self._position += 1

    def state(self) -> State:
        """See `EpochPlan`."""
        return {**self._sampler.state(), "position": self._position, "beyond": sorted(self._beyond)}


class IterableEpochPlan(EpochPlan):
    """The plan of an epoch over the shards of an iterable dataset.

    A resumed epoch has the same number of shards as when it began, regardless of the current number of workers.

    Args:
        context: The loader's configuration.
        loader_seed: See `plan_epoch`.
        base_seed: See `plan_epoch`.
        resume_from: See `plan_epoch`.
    """

    def __init__(
        self, context: EpochContext, *, loader_seed: int | None, base_seed: int | None, resume_from: State
    ) -> None:
        generator = context.generator
        own_generators = generators(None, generator)
        for source, kept in zip(own_generators, resume_from.get("generators", ()), strict=False):
            rng.load_generator(source, kept)
        self._generators = [source.get_state() for source in own_generators]
        drawn = base_seed
        datapipe = datapipes.preparation(context.dataset) is not None
        if drawn is None or datapipe:
            drawn = rng.draw_seed(generator) if loader_seed is None or generator is not None else loader_seed
        if datapipe and not resume_from:
            drawn = datapipes.common_seed(drawn)
            if base_seed is None:
                for _ in range(2 if context.num_shards else 1):  # as often as torch, so that later draws are the same
                    rng.draw_seed(generator)
        self.seed = int(resume_from.get("seed", drawn))
        samples = samplers.length(context.dataset)
        if samples is not None:
            self.total = batches_of(samples, context.batch_size, drop_last=context.drop_last)
        self._samples: int = resume_from.get("samples", 0)
        self._dataset = context.dataset
        self._promised_length = context.promised_length
        self._constant = iter(context.index_sampler)
        """Yields None for each sample, as in torch; only programs that replace torch's methods see it."""
        progress = [_progress(shard) for shard in resume_from["shards"]] if resume_from else None
        self.shards: ShardPlan = ShardPlan(
            resume_from.get("count", context.num_shards), size=context.batch_size, seed=self.seed, progress=progress,
            in_order=context.in_order,
        )  # fmt: skip
        self.first = self.next_number = sum(p.position + len(p.beyond) for p in self.shards.progress)

    def take(self, room: int, limit_ns: int | None = None) -> list[PlannedBatch]:  # noqa: ARG002 - no sampler
        """See `EpochPlan`."""
        batches: list[PlannedBatch] = []
        for _ in range(room):
            if self._draw_indices is not None:
                self._draw_indices()
            self.next_number += 1  # first: a ticket that is lost to an interrupt counts
            ticket = self.shards.take()
            if ticket is None:
                self.next_number -= 1
                break
            batches.append(PlannedBatch(ticket, ticket.seed_of(ticket.position)))
        return batches

    def skip(self) -> Any:
        """See `EpochPlan`."""
        if self._in_draw:
            return next(self._constant)
        raise AttributeError("the batches of an iterable dataset cannot be skipped: they have no indices")

    def delivered(self, number: int, indices: Any, samples: int) -> None:  # noqa: ARG002
        """See `EpochPlan`."""
        self.shards.deliver(indices)
        self._samples += samples
        if self._promised_length is not None and self._samples > self._promised_length:
            text = (
                f"Length of IterableDataset {self._dataset} was reported to be {self._promised_length}"
                f"(when accessing len(dataloader)), but {self._samples} samples have been fetched. "
            )
            if self.shards.count:
                text += (
                    "For multiprocessing data-loading, this could be caused by not properly configuring the "
                    "IterableDataset replica at each worker. Please see "
                    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
                )
            warnings.warn(text, stacklevel=5)

    def state(self) -> State:
        """See `EpochPlan`."""
        for progress in self.shards.progress:
            if progress.problem:
                warnings.warn(
                    f"{progress.problem}; the epoch will be resumed by skipping the samples that were delivered",
                    stacklevel=4,
                )
                break
        return {
            "seed": self.seed,
            "generators": [rng.pack(kept.numpy()) for kept in self._generators],
            "samples": self._samples,
            "count": self.shards.count,
            "shards": [_progress_state(progress) for progress in self.shards.progress],
        }


def _progress_state(progress: ShardProgress) -> State:
    known = progress.state(progress.position)
    return {
        "position": progress.position,
        "beyond": sorted(progress.beyond),
        "over": progress.over,
        "state": None if known is None else [known.position, json.loads(known.json)],
    }


def _progress(state: State) -> ShardProgress:
    known = state["state"]
    if known is not None:
        position, value = known
        known = IteratorState(position, json.dumps(value))
    return ShardProgress(state["position"], frozenset(state["beyond"]), over=state["over"], state=known)


def plan_epoch(
    context: EpochContext, *, loader_seed: int | None, base_seed: int | None, resume_from: State
) -> EpochPlan:
    """Plan a new epoch, or the rest of one.

    Args:
        context: The loader's configuration.
        loader_seed: Seed that replaces torch's global generators; None to draw from them, as torch does.
        base_seed: The epoch's base seed; None to draw it.
        resume_from: A result of `EpochPlan.state()`; empty for a new epoch.
    """
    plan = IterableEpochPlan if context.iterable else MapEpochPlan
    return plan(context, loader_seed=loader_seed, base_seed=base_seed, resume_from=resume_from)


def batches_of(samples: int, size: int | None, *, drop_last: bool) -> int:
    """Return how many batches this many samples make, as torch counts the batches of an iterable dataset."""
    if size is None:
        return samples
    return samples // size if drop_last else -(-samples // size)
