"""What an epoch is drawn from: which batches there are, in which order, with which seeds, and how far it has come."""

from __future__ import annotations

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from nbloader._util import rng
from nbloader._util.rng import mix
from nbloader.batch.task import Task
from nbloader.batch.torch_collate import collate_for_workers
from nbloader.sampling import datapipes, samplers
from nbloader.sampling.resumable_sampler import ResumableSampler, draw_seed, generators
from nbloader.sampling.shard_plan import Progress, Shards
from nbloader.sampling.source import Reader

if TYPE_CHECKING:
    from nbloader.loader.dataloader import DataLoader

State = dict[str, Any]


class ChunkSpec(NamedTuple):
    """How batches are divided into chunks that several workers produce."""

    size: int
    """Samples of a chunk."""
    collate_fn: Callable[[list[Any]], Any] | None
    """Makes a batch of all its samples, where chunks are lists of samples; None where they are collated already."""


class Draw(ABC):
    """The batches of one epoch, as they are asked for."""

    seed: int
    """The epoch's base seed."""
    first = 0
    """Number of the first batch that it gives."""
    total: int | None = None
    """Batches of the whole epoch; None where that is not known."""
    shards: Shards | None = None
    """Of an iterable dataset."""
    reader: Reader | None = None
    """Of a source."""
    cut: ChunkSpec | None = None
    """How batches are cut in pieces; None where they are not."""
    error: Exception | None = None
    """What the sampler raised; nothing is drawn any more."""
    number = 0
    """Of the epoch."""
    over = False
    """Whether the consumer has come to its end."""

    @abstractmethod
    def take(self, room: int) -> list[tuple[Any, int]]:
        """The next batches to make, as (indices, seed).

        Args:
            room: How many at most.
        """

    @abstractmethod
    def delivered(self, task: Task, samples: int) -> None:
        """A batch goes to the consumer, or its error (with no samples)."""

    @abstractmethod
    def state(self) -> State:
        """How another process can go on behind the last batch that was delivered; JSON-able."""


class MapDraw(Draw):
    """Batches of indices, from a sampler.

    Args:
        index_sampler: The batch sampler, or the sampler where batching is off.
        batched: Whether it gives batches of indices.
        generator: What the base seed is drawn from; torch's default one when None.
        in_order: Whether batches are delivered in order.
        own: See `ResumableSampler`.
        seed: See `ResumableSampler`.
        begun: What `state()` gave, to go on from there; empty to begin.
    """

    def __init__(
        self,
        index_sampler: Any,
        *,
        batched: bool,
        generator: Any,
        in_order: bool,
        own: int | None,
        seed: int | None,
        begun: State,
    ) -> None:
        self._position: int = begun.get("position", 0)
        self._beyond = set(begun.get("beyond", ()))  # delivered out of order: numbers above the position
        self._passed_over = frozenset(self._beyond)
        self._sampler = ResumableSampler(
            index_sampler, generator, own=own, seed=seed, begun=begun, position=self._position
        )
        self.reader = self._sampler.reader
        self._batched = batched
        self._dry = False
        self._drawn = self._position
        # Batches that were delivered out of order are passed over, and those before them are renumbered to have no gap.
        self._renumbered: dict[int, int] = {}
        self.first = self._next = self._position + len(self._beyond)
        self._by_number = in_order and not self._beyond
        self.seed = self._sampler.seed
        self.total = samplers.length(index_sampler)
        if self._sampler.keeps_states and self._position == self.total:
            self._dry = True  # a sampler that was asked for its last batch may be at the beginning of the next epoch

    def take(self, room: int) -> list[tuple[Any, int]]:
        """See `Draw`."""
        batches: list[tuple[Any, int]] = []
        if self._dry:
            return batches
        try:
            while len(batches) < room:
                indices = next(self._sampler)
                number = self._drawn
                self._drawn += 1
                if number in self._passed_over:
                    continue
                if number != self._next:
                    self._renumbered[self._next] = number
                self._next += 1
                if self._batched and not isinstance(indices, (list, tuple)):
                    indices = _listed(indices)
                batches.append((indices, mix(self.seed, number)))
        except StopIteration:
            self._dry = True
        except Exception as error:  # noqa: BLE001 - the user's sampler: raised once what it gave before is delivered
            self._dry = True
            self.error = error
        return batches

    def delivered(self, task: Task, samples: int) -> None:  # noqa: ARG002
        """See `Draw`."""
        if self._by_number:
            self._position = task.number + 1
        else:
            self._beyond.add(self._renumbered.pop(task.number, task.number))
            while self._position in self._beyond:
                self._beyond.remove(self._position)
                self._position += 1
        if self._sampler.keeps_states:
            self._sampler.forget_before(self._position)

    def state(self) -> State:
        """See `Draw`."""
        return {**self._sampler.state(), "position": self._position, "beyond": sorted(self._beyond)}


def _listed(indices: Any) -> list[Any]:
    if not hasattr(indices, "__iter__") and not hasattr(indices, "__getitem__"):
        kind = type(indices).__name__
        raise TypeError(f"batch_sampler must give lists of indices, but gave {indices!r} ({kind}): is it a sampler=?")
    return list(indices)


class ShardDraw(Draw):
    """Batches of the shards of an iterable dataset.

    Args:
        shards: How many there are; 0 for a single one, in the notebook's process.
        size: Samples a batch; None where batching is off.
        generator: What the base seed is drawn from; torch's default one when None.
        total: Batches of the epoch, as far as the dataset says so.
        promised: What `len(dataset)` was when somebody asked for `len(loader)`, and the dataset.
        own: The base seed, where it shall not be drawn from torch's default generator.
        seed: The base seed, where it shall not be drawn at all.
        piped: Whether the dataset is a DataPipe of torch's.
        in_order: Whether batches come in order.
        begun: What `state()` gave, to go on from there with as many shards as then; empty to begin.
    """

    def __init__(
        self,
        shards: int,
        *,
        size: int | None,
        generator: Any,
        total: int | None,
        promised: tuple[int, Any] | None,
        own: int | None,
        seed: int | None,
        piped: bool,
        in_order: bool,
        begun: State,
    ) -> None:
        for source, kept in zip(generators(None, generator), begun.get("generators", ()), strict=False):
            rng.load_generator(source, kept)
        self._generators = [source.get_state() for source in generators(None, generator)]
        drawn = seed
        if drawn is None or piped:
            drawn = draw_seed(generator) if own is None or generator is not None else own
        if piped and not begun:
            drawn = datapipes.common_seed(drawn)
            if seed is None:
                for _ in range(2 if shards else 1):  # torch draws more: what comes after is the same
                    draw_seed(generator)
        self.seed = int(begun.get("seed", drawn))
        self.total = total
        self._samples: int = begun.get("samples", 0)
        self._promised = promised
        progress = [_progress(shard) for shard in begun["shards"]] if begun else None
        self.shards: Shards = Shards(
            begun.get("count", shards), size=size, seed=self.seed, progress=progress, in_order=in_order
        )
        self.first = sum(p.position + len(p.beyond) for p in self.shards.progress)

    def take(self, room: int) -> list[tuple[Any, int]]:
        """See `Draw`."""
        batches: list[tuple[Any, int]] = []
        for _ in range(room):
            ticket = self.shards.take()
            if ticket is None:
                break
            batches.append((ticket, ticket.seed_of(ticket.position)))
        return batches

    def delivered(self, task: Task, samples: int) -> None:
        """See `Draw`."""
        self.shards.deliver(task.indices)
        self._samples += samples
        if self._promised is not None and self._samples > self._promised[0]:
            length, dataset = self._promised
            text = (
                f"Length of IterableDataset {dataset} was reported to be {length}(when accessing len(dataloader)), but "
                f"{self._samples} samples have been fetched. "
            )
            if self.shards.count:
                text += (
                    "For multiprocessing data-loading, this could be caused by not properly configuring the "
                    "IterableDataset replica at each worker. Please see "
                    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
                )
            warnings.warn(text, stacklevel=5)

    def state(self) -> State:
        """See `Draw`."""
        for progress in self.shards.progress:
            if progress.problem:
                warnings.warn(f"{progress.problem}; the epoch will be resumed by skipping", stacklevel=4)
                break
        return {
            "seed": self.seed,
            "generators": [rng.pack(kept.numpy()) for kept in self._generators],
            "samples": self._samples,
            "count": self.shards.count,
            "shards": [_progress_state(progress) for progress in self.shards.progress],
        }


def _progress_state(progress: Progress) -> State:
    known = progress.state(progress.position)
    state = None if known is None else [known[0], json.loads(known[1])]
    return {
        "position": progress.position,
        "beyond": sorted(progress.beyond),
        "over": progress.over,
        "state": state,
    }


def _progress(state: State) -> Progress:
    known = state["state"]
    return Progress(
        state["position"],
        frozenset(state["beyond"]),
        over=state["over"],
        state=None if known is None else (known[0], json.dumps(known[1])),
    )


def begin(loader: DataLoader[Any], *, own: int | None, seed: int | None, begun: State) -> Draw:
    """Begin an epoch, or go on with one.

    Args:
        loader: Whose.
        own: Seed for what would be drawn from global generators; None to draw it from them, as torch does.
        seed: The epoch's base seed; None to draw it.
        begun: What `state()` of a draw gave; empty to begin.
    """
    if not loader._iterable:
        draw = MapDraw(
            loader._index_sampler, batched=loader.batch_sampler is not None, generator=loader.generator,
            in_order=loader.in_order, own=own, seed=seed, begun=begun,
        )  # fmt: skip
        if loader._chunk is not None:
            draw.cut = ChunkSpec(loader._chunk, collate_for_workers(loader.collate_fn, batched=True))
        return draw
    samples = samplers.length(loader.dataset)
    total = batches_of(samples, loader.batch_size, drop_last=loader.drop_last) if samples is not None else None
    promised = (loader._promised, loader.dataset) if loader._promised is not None else None
    return ShardDraw(
        loader.num_workers, size=loader.batch_size, generator=loader.generator, total=total, promised=promised,
        own=own, seed=seed, piped=datapipes.preparation(loader.dataset) is not None, in_order=loader.in_order,
        begun=begun,
    )  # fmt: skip


def batches_of(samples: int, size: int | None, *, drop_last: bool) -> int:
    """How many batches so many samples make, as torch counts those of an iterable dataset."""
    if size is None:
        return samples
    return samples // size if drop_last else -(-samples // size)
