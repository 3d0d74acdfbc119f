"""Reproduces delivered batches in this process: `DataLoader.replay` and `DataLoader.debug`.

    epoch begins -> EpochHistory.add(): its seed and the order of its batches, about 10 kB, without the dataset
    replay(epoch, batch) -> EpochHistory -> indices and seed -> ReplayedBatch -> the code that worker threads run

The seed belongs to the batch and determines what its samples draw. So it does not matter which worker produced the
batch, how many workers there were, or how often it was produced.
"""

from __future__ import annotations

import collections
import copy
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from nbloader._util import rng
from nbloader._util.rng import mix
from nbloader._util.user_warning import warn
from nbloader.batch.checksum import checksum
from nbloader.batch.chunking import join_chunks
from nbloader.batch.serialize import encode_object, load_object
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.engine.iterator import name_parts
from nbloader.errors import NbloaderError, ReplayError
from nbloader.events import BatchRecord, DatasetReloaded, Event
from nbloader.events.failures import WorkerFailure
from nbloader.events.remote_errors import add_note, rebuild
from nbloader.sampling.epoch_order import EpochOrder, NotKeptError
from nbloader.sampling.epoch_plan import ChunkSpec
from nbloader.sampling.index_arrays import as_drawn, part_of
from nbloader.workers.api import JOIN_TIMEOUT
from nbloader.workers.in_process import (
    OWN_GENERATORS,
    FailedSample,
    SampleDelivery,
    as_in_worker,
    fetch_samples,
    fetches_whole_batches,
    private_generators,
    seeded_collate,
)
from nbloader.workers.local_producer import NO_WORKER
from nbloader.workers.messages import BatchDone, WorkerGone, WorkerInitFailed, WorkerInitialized
from nbloader.workers.producer import Producer
from nbloader.workers.reachable import holds_generator
from nbloader.workers.registry import create_kind
from nbloader.workers.seeding import Seed, Seeding, private
from nbloader.workers.spec import Parts, WorkerSpec
from nbloader.workers.status import LocalStatus, WorkerState

if TYPE_CHECKING:
    from nbloader.explorer.widget import Explorer

MAX_EPOCHS = 256
"""Maximum number of epochs that are kept; each takes 1 to 20 kB."""
MAX_LOGGED = 1 << 20
"""Maximum number of logged indices of custom samplers, over all epochs but the newest."""

VARIES = (
    "made twice from the same seed, it differs. Probably the dataset draws from a generator that the operating system "
    "seeds, such as np.random.default_rng(), random.Random() or torch.Generator().seed() in __getitem__, or from "
    "secrets, uuid4 or the clock. Derive such a seed from a generator that nbloader seeds for each batch, as in "
    "np.random.default_rng(random.getrandbits(64)), or draw from `random`, `numpy.random` or torch's global generator. "
    "In worker threads and in an asynchronous dataset, only nbloader.get_worker_info().rng is seeded for each batch"
)
"""Why a batch or sample cannot be reproduced if two attempts give different data."""
CHANGED = (
    "made again, it differs from what was delivered. Either the dataset, its files or its code have changed since "
    "then, or samples depend on the process that makes them, for example on its id or on what it made before. Let "
    "samples depend only on their index and on the random numbers that they draw"
)
"""Why a batch cannot be reproduced if two attempts give the same data, which is not what was delivered."""

Outcome: TypeAlias = Any
"""A `BatchOutcome`."""


class EpochHistory:
    """The orders of the last epochs of a loader, by the number of the epoch (`BatchRecord.epoch`)."""

    def __init__(self) -> None:
        self._orders: collections.OrderedDict[int, EpochOrder | None] = collections.OrderedDict()
        self._logged: dict[int, int] = {}  # indices that each epoch but the newest keeps
        self._total_logged = 0

    def add(self, epoch: int, order: EpochOrder | None) -> None:
        """Register an epoch that begins.

        Args:
            epoch: Number of the epoch.
            order: Order of the epoch; None if its samples have no indices.
        """
        if self._orders:
            before = self.newest
            last = self._orders[before]
            self._logged[before] = logged = 0 if last is None else last.kept
            self._total_logged += logged
        self._orders[epoch] = order
        while len(self._orders) > MAX_EPOCHS or (self._total_logged > MAX_LOGGED and len(self._orders) > 1):
            oldest, _order = self._orders.popitem(last=False)
            self._total_logged -= self._logged.pop(oldest)

    @property
    def newest(self) -> int:
        """Number of the epoch that began last.

        Raises:
            ReplayError: No epoch has begun.
        """
        if not self._orders:
            raise ReplayError(
                "there is no epoch to replay, because this loader has not been iterated. Iterate over it first."
            )
        return next(reversed(self._orders))

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch.

        Raises:
            ReplayError: The epoch is not known, or its samples have no indices.
        """
        newest = self.newest
        if epoch not in self._orders:
            oldest = next(iter(self._orders))
            raise ReplayError(
                f"epoch {epoch} cannot be replayed. This loader remembers epochs {oldest} to {newest} (numbered from "
                "0, as in BatchRecord.epoch)."
            )
        order = self._orders[epoch]
        if order is None:
            raise ReplayError(
                "batches of DataLoader.from_source cannot be replayed, because the samples of a source have no indices "
                "by which nbloader could fetch them again."
            )
        return order


class Delivered(NamedTuple):
    """What is known of a batch that was delivered."""

    checksum: int
    pickled: bool
    """Whether objects in the batch were pickled on their way."""


def find_delivered(events: Sequence[Event], epoch: int, number: int) -> Delivered | None:
    """Find a batch that was delivered by the dataset that the loader has now; None if it has no checksum.

    Args:
        events: The events of the loader, oldest first.
        epoch: Number of the epoch.
        number: Number of the batch.
    """
    for event in reversed(events):
        if isinstance(event, DatasetReloaded):  # the dataset has changed on purpose
            return None
        if isinstance(event, BatchRecord) and (event.epoch, event.index) == (epoch, number):
            return None if event.checksum is None else Delivered(event.checksum, event.transport != "local")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySetup:
    """The loader's current dataset, functions and settings, as given to workers."""

    dataset: Any
    collate_fn: Callable[[Any], Any] | None
    """The collate function of workers; None for nbloader's own."""
    worker_init_fn: Callable[[int], object] | None
    """None without workers."""
    on_error: Any
    spec: WorkerSpec
    """The configuration of workers."""
    num_workers: int
    process: bool
    """Whether workers are processes."""
    chunk_spec: ChunkSpec | None
    names: Sequence[str] | None
    concurrency: int
    """0 if the dataset is not asynchronous."""


class _Part(NamedTuple):
    """The part of a batch that is produced under one seed: all of it, or a chunk."""

    indices: Any
    seed: int
    position: int
    """Position of a sample in the part."""


class MadeBatch(NamedTuple):
    """A batch that was produced again."""

    batch: Any
    difference: str
    """How it differs from the batch that was delivered; "" if it does not, as far as checksums show."""


class ReplayedBatch:
    """A batch that was delivered earlier and is reproduced on demand; the result of `DataLoader.replay`.

    Neither the random generators of this process nor the loader's iterators are affected. The dataset runs as it is
    now: if it, its class or its files have changed since, the result changes, too.

    A warning says so if the result differs from what was delivered, for example because samples draw from a generator
    that the operating system seeds. The result is compared with the checksum of the delivered batch. If there is none,
    as for some fast batches and for single samples, it is made a second time for comparison.

    Args:
        setup: The loader's current dataset, functions and settings.
        epoch: Number of the epoch.
        number: Number of the batch.
        order: The order of the epoch.
        delivered: What is known of the batch that was delivered; None if it has no checksum.

    Raises:
        ReplayError: The batch is not known, or cannot be reproduced.
    """

    def __init__(
        self, setup: ReplaySetup, epoch: int, number: int, order: EpochOrder, delivered: Delivered | None = None
    ) -> None:
        functions = setup.collate_fn, setup.worker_init_fn, setup.on_error
        own = private((setup.dataset, *functions))
        is_shared = own is None and setup.num_workers > 0 and not setup.process  # by the threads
        if is_shared or holds_generator(setup.dataset, *functions, seeded=not setup.concurrency):
            raise ReplayError(
                f"the dataset ({type(setup.dataset).__name__}) or a function of the loader has a random generator of "
                f"its own. {OWN_GENERATORS}"
            )
        try:
            with private_generators():
                planned = order.planned(number)
        except NotKeptError as error:
            raise ReplayError(f"batch {number} of epoch {epoch} cannot be replayed: {error}") from error
        if own is not None:
            dataset, collate_fn, worker_init_fn, on_error = own
            setup = replace(
                setup, dataset=dataset, collate_fn=collate_fn, worker_init_fn=worker_init_fn, on_error=on_error
            )
        self._setup = setup
        self._base_seed = order.seed
        self._delivered = delivered
        self._is_equal = False
        self.epoch = epoch
        """Number of the epoch, as in `BatchRecord.epoch`."""
        self.number = number
        """Number of the batch in the epoch, as in `BatchRecord.index`."""
        self.indices: Any = planned.indices
        """Dataset indices of the batch; a single index if automatic batching is disabled."""
        self.seed = planned.seed
        """Seed of the random generators before the first sample."""

    def __repr__(self) -> str:
        """One line."""
        return f"<batch {self.number} of epoch {self.epoch}: {len(self)} samples; .batch, .sample(position), .debug()>"

    def __len__(self) -> int:
        """Return the number of samples drawn for the batch. `on_error` may have skipped some."""
        return len(self.indices) if self._setup.spec.batched else 1

    @cached_property
    def batch(self) -> Any:
        """The batch as it was delivered, on the CPU.

        Raises:
            ReplayError: No sample is left, since all were skipped.
            Exception: Whatever the dataset or the collate function raises.
        """
        with self._as_in_worker() as dataset:
            made = self._make(dataset)
        if made.difference:
            warn(made.difference)
        self._is_equal = not made.difference
        return made.batch

    def _make(self, dataset: Any) -> MadeBatch:
        """Produce the batch, and compare it with the one that was delivered.

        Args:
            dataset: The dataset as workers have it.
        """
        batch = self._open(dataset)
        made, delivered = self._checksum(batch), self._delivered
        difference = ""
        if delivered is None or made != delivered.checksum:
            reason = (
                VARIES if self._differs(made, lambda: self._open(dataset)) else "" if delivered is None else CHANGED
            )
            difference = reason and f"Batch {self.number} of epoch {self.epoch} cannot be reproduced: {reason}."
        return MadeBatch(batch if self._setup.names is None else name_parts(batch, self._setup.names), difference)

    def _differs(self, made: int, make: Callable[[], Any]) -> bool:
        """Whether a second attempt gives another checksum."""
        try:
            return self._checksum(make()) != made
        except Exception:  # noqa: BLE001 - whatever the user's code raises: the first attempt did not
            return True

    def _open(self, dataset: Any) -> Any:
        outcome = self._outcome(dataset)
        if outcome.failed:
            raise outcome.to_exception(self.number, self.indices, batched=self._setup.spec.batched)
        if outcome.empty:
            raise ReplayError(f"batch {self.number} was not delivered, because all its samples were skipped")
        return outcome.open()

    def _checksum(self, batch: Any) -> int:
        """Return the checksum of a batch that has travelled like the one that was delivered."""
        if self._delivered is not None and self._delivered.pickled:  # objects may lose attributes
            encoded = encode_object(batch)
            memory = bytearray(encoded.nbytes)
            encoded.write(memory)
            batch = load_object(encoded.skeleton, memory)
        return checksum(batch)

    def sample(self, position: int) -> Any:
        """Return a sample as the dataset returned it, before collation.

        The samples of a batch draw from the same generators one after another, so the preceding samples are fetched,
        too.

        Args:
            position: Position of the sample in `indices`, from 0; skipped samples count.

        Raises:
            IndexError: The batch has no such position.
            Exception: Whatever the dataset raises for this sample, or for an earlier one unless `on_error` handles it.
        """
        position = self._checked(position)
        part = self._part(position)
        with self._as_in_worker() as dataset:
            sample = self._fetch_one(dataset, part)
            if isinstance(sample, FailedSample):
                raise sample.error
            if not self._is_equal and self._differs(self._checksum(sample), lambda: self._fetch_one(dataset, part)):
                warn(f"Sample {position} of batch {self.number}, epoch {self.epoch}, cannot be reproduced: {VARIES}.")
        return sample

    def _fetch_one(self, dataset: Any, part: _Part) -> Any:
        """Fetch the sample at the position of a part, and those before it."""
        if self._setup.concurrency:
            return self._fetch_async(part)[part.position]
        self._seed(dataset)(part.seed)
        return self._fetch(dataset, part, part.position + 1)[part.position]

    def delivery(self, index: Any) -> SampleDelivery:
        """Return how to reproduce one of the batch's samples.

        Args:
            index: Dataset index of the sample.

        Raises:
            ReplayError: The dataset fetches the samples of a batch together; or the sample is not in this batch.
        """
        setup = self._setup
        if setup.spec.batched and fetches_whole_batches(setup.dataset):
            raise ReplayError(
                f"a sample cannot be reproduced alone, because {type(setup.dataset).__name__}.__getitems__ fetches the "
                "samples of a batch together. Replay the batch."
            )
        position = self._position(index)
        part = self._part(position)
        seed, before = part.seed, tuple(part.indices[: part.position])
        if setup.concurrency:  # each sample has a seed of its own
            seed, before = mix(seed, part.position), ()
        return SampleDelivery(self.epoch, self.number, position, seed, before)

    def explore(self, **options: Any) -> Explorer | None:
        """Explore the batch and its samples as they were delivered. A worker of the explorer reproduces them.

        Args:
            **options: Arguments of `nbloader.explore`.

        Returns:
            The explorer. In a script or a terminal None, and a line is printed that says what to use there.
        """
        from nbloader.explorer import explore
        from nbloader.explorer.batch_samples import BatchSamples

        setup = self._setup
        size = len(self) if setup.chunk_spec is None else setup.chunk_spec.size
        parts = [self._part(position) for position in range(0, len(self), size or 1)]
        again = copy.copy(self)
        vars(again).pop("batch", None)  # it would be sent to the worker
        in_threads = setup.concurrency or (setup.num_workers and not setup.process)
        samples = BatchSamples(
            setup.dataset,
            [(part.indices, part.seed) for part in parts],
            on_error=setup.on_error,
            batched=setup.spec.batched,
            asynchronous=setup.concurrency > 0,
            title=f"Batch {self.number} of epoch {self.epoch}",
            whole=again._make,
            workers="thread" if in_threads else "process",  # which have global generators of their own
            worker_init_fn=setup.worker_init_fn,
        )
        return explore(samples, **{"num_workers": 1, **options})

    def debug(self, index: Any = None, *, post_mortem: bool = False) -> None:
        """Reproduce the batch, or one of its samples, in the debugger. See `DataLoader.debug`.

        Args:
            index: Dataset index of a sample of this batch.
            post_mortem: Whether to stop only at the line that raises.

        Raises:
            ReplayError: The sample is not in this batch, or the dataset is asynchronous.
        """
        from nbloader.workers import debugger  # imports pdb

        setup = self._setup
        if setup.concurrency:
            raise ReplayError(
                "the debugger cannot step through samples of an asynchronous dataset, because they need an event loop, "
                "and a notebook runs its own. replay(...).sample(position) fetches a sample again."
            )
        if index is None:
            self._debug_batch()
            return
        part = self._part(self._position(index))
        with self._as_in_worker() as dataset:
            stop_in = () if post_mortem else debugger.code_of(dataset, "__getitems__", "__getitem__")
            if not (stop_in or post_mortem):
                raise ReplayError(
                    f"{type(dataset).__name__}.__getitem__ is not written in Python, so there is no line to stop at"
                )
            self._seed(dataset)(part.seed)
            if fetches_whole_batches(dataset):
                raised = debugger.debug(lambda: dataset.__getitems__(as_drawn(part.indices)), stop_in)
            else:
                self._fetch(dataset, part, part.position)  # those before it
                raised = debugger.debug(lambda: dataset[index], stop_in)
        if post_mortem and raised is None:
            print(f"sample {index!r} of batch {self.number}, epoch {self.epoch}, raised no error")  # noqa: T201

    def _debug_batch(self) -> None:
        from nbloader.workers import debugger

        with self._as_in_worker() as dataset:
            outcome = self._outcome(dataset)
            if isinstance(outcome, WorkerFailure) and outcome.raised is not None:
                debugger.post_mortem(outcome.raised)
            else:
                print(f"batch {self.number} of epoch {self.epoch} raised no error")  # noqa: T201

    # ---- as workers do ----------------------------------------------------------------------------------------------

    def _as_in_worker(self) -> AbstractContextManager[Any]:
        setup = self._setup
        init_fn = None if setup.concurrency else setup.worker_init_fn  # the thread of the event loop calls it
        return as_in_worker(
            setup.dataset, init_fn, num_workers=setup.num_workers, base_seed=self._base_seed, process=setup.process
        )

    def _seed(self, dataset: Any) -> Seed:
        """Return the function that seeds for a part of the batch."""
        return Seeding(dataset, self._setup.collate_fn, self._setup.on_error).after(rng.seed_everything)

    def _position(self, index: Any) -> int:
        indices = list(self.indices) if self._setup.spec.batched else [self.indices]
        if index not in indices:
            raise ReplayError(
                f"sample {index!r} is not in batch {self.number} of epoch {self.epoch}, which has samples {indices}"
            )
        return indices.index(index)

    def _checked(self, position: int) -> int:
        size = len(self)
        if not -size <= position < size:
            raise IndexError(
                f"batch {self.number} of epoch {self.epoch} has {size} samples, and none at position {position}"
            )
        return position % size

    def _part(self, position: int) -> _Part:
        """Return the part of the batch with the sample at a position."""
        setup = self._setup
        if not setup.spec.batched:
            return _Part([self.indices], self.seed, 0)
        if setup.chunk_spec is None:
            return _Part(self.indices, self.seed, position)
        size = setup.chunk_spec.size
        chunk, position = divmod(position, size)
        return _Part(part_of(self.indices, chunk * size, (chunk + 1) * size), mix(self.seed, chunk), position)

    def _fetch(self, dataset: Any, part: _Part, count: int) -> Sequence[Any]:
        """Fetch the first samples of a part; one call of `__getitems__` fetches all of them."""
        setup = self._setup
        samples = fetch_samples(
            dataset, part.indices, on_error=setup.on_error, batched=setup.spec.batched, output=setup.spec.output,
            count=count,
        )  # fmt: skip
        if setup.on_error == "raise":
            for position, sample in enumerate(samples[: part.position]):
                if isinstance(sample, FailedSample):
                    failed, wanted = part.indices[position], part.indices[part.position]
                    add_note(sample.error, f"raised by sample {failed!r}, which precedes {wanted!r} in the batch")
                    raise sample.error
        return samples

    def _outcome(self, dataset: Any) -> Outcome:
        """Produce the batch."""
        setup = self._setup
        task = Task(self.epoch, self.number, self.indices, self.seed, job=self.number)
        if setup.chunk_spec is None:
            return self._produce(dataset, [task])[0]
        whole = ChunkedBatch[Outcome](task, setup.chunk_spec.size)
        chunks = whole.split(0)
        for chunk, outcome in zip(chunks, self._produce(dataset, chunks), strict=True):
            whole.add(chunk, outcome)
        collate_fn = setup.chunk_spec.collate_fn
        return join_chunks(whole, None if collate_fn is None else seeded_collate(collate_fn, whole))

    def _produce(self, dataset: Any, tasks: Sequence[Task]) -> list[Outcome]:
        setup = self._setup
        if setup.concurrency:
            return self._produce_async(setup, tasks)
        producer = Producer(
            dataset, setup.collate_fn, LocalStatus(os.getpid(), WorkerState.IDLE), setup.spec,
            on_error=setup.on_error, worker=NO_WORKER,
        )  # fmt: skip
        seed = self._seed(dataset)
        return [producer.produce_outcome(task, seed) for task in tasks]

    # ---- asynchronous datasets --------------------------------------------------------------------------------------

    def _fetch_async(self, part: _Part) -> Sequence[Any]:
        """Fetch the samples of a part of an asynchronous dataset, each of which has a seed of its own."""
        on_error: Any = self._setup.on_error

        def noted(index: Any, error: Exception) -> FailedSample:
            if callable(on_error):
                on_error(index, error)
            return FailedSample(error)

        spec = replace(self._setup.spec, batched=True)
        setup = replace(self._setup, spec=spec, collate_fn=list, on_error=noted)
        task = Task(self.epoch, self.number, part.indices, part.seed, job=self.number)
        [outcome] = self._produce_async(setup, [task])
        if outcome.failed:
            raise outcome.to_exception(self.number, self.indices, batched=True)
        return outcome.open()  # type: ignore[no-any-return]

    def _produce_async(self, setup: ReplaySetup, tasks: Sequence[Task]) -> list[Outcome]:
        """Produce batches on a thread with its own event loop: this one may have a running loop, as in a notebook."""
        spec = replace(setup.spec, kind="thread", num_workers=1, seed=self._base_seed, concurrency=setup.concurrency)
        functions = setup.collate_fn, setup.worker_init_fn, setup.on_error
        pool = create_kind(spec).create_pool()
        handle = pool.start(0, spec, Parts(setup.dataset, *functions))
        outcomes: dict[int, Outcome] = {}
        try:
            while len(outcomes) < len(tasks):
                for message in pool.poll(None):
                    if isinstance(message, WorkerInitialized):
                        if message.round_robin:
                            raise ReplayError(f"worker_init_fn seeds a random generator. {OWN_GENERATORS}")
                        pool.submit(handle.uid, tasks)
                    elif isinstance(message, WorkerInitFailed):
                        raise rebuild(message.error, "raised in worker_init_fn", message.raised)
                    elif isinstance(message, BatchDone):
                        outcomes[message.job] = message.outcome
                    elif isinstance(message, WorkerGone):
                        raise NbloaderError(f"the thread that ran the event loop has ended: {handle.stderr_tail}")
        finally:
            pool.close(JOIN_TIMEOUT)
            pool.dispose()
        return [outcomes[task.job] for task in tasks]
