"""The iterator of one epoch: what `iter(loader)` returns.

The iterator draws batches from the sampler to fill the prefetch window, waits for the next batch in order, and builds
it. It publishes the record of a batch when the consumer requests the next one.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

from torch._C._autograd import _profiler_enabled as profiling
from torch.autograd.profiler import record_function
from torch.utils.data.dataloader import _BaseDataLoaderIter

from nbloader import events as ev
from nbloader._util.signals import raised_by_handler
from nbloader.batch.checksum import checksum
from nbloader.batch.payload import BatchPayload
from nbloader.batch.task import Task
from nbloader.device.record_queue import PendingPlacement, RecordQueue
from nbloader.device.transfer import BatchKey, DeviceTransfer
from nbloader.engine.local_engine import AnyEngine, LocalEngine
from nbloader.engine.receiver import Iteration
from nbloader.engine.torch_names import MISSING, MissingAttribute, PlannedBatches
from nbloader.errors import LoaderClosedError
from nbloader.events.remote_errors import message_of
from nbloader.sampling.epoch_plan import EpochPlan
from nbloader.sampling.resumable_sampler import ResumableSampler
from nbloader.sampling.source import SourceReader, item_numbers
from nbloader.scheduler.iteration import Delivery
from nbloader.workers.worker_view import WorkerView

T_co = TypeVar("T_co", covariant=True)
_clock = time.perf_counter_ns

DRAWING_LIMIT_NS = 10_000_000
"""Maximum time for which drawing from a slow sampler delays a batch that can be delivered. At least one batch is drawn
each time."""
PROFILED = "enumerate(DataLoader)#Epoch.__next__"
"""Name of the torch profiler range around each `__next__`. The profiler's tools recognize loaders by its first part."""
MAX_ERROR = 300
"""Maximum length of the error text in `LoopStopped`, in characters."""
CHECKSUM_SHARE = 200
"""Checksums of batches take at most the loop's time divided by this number. So most batches that take some milliseconds
have one, but few of those that take some microseconds."""
NOT_RETURNED = 0
"""Value of `BatchRecord.returned` until the consumer asks for the next batch."""
KEPT_INDICES = 8
"""Maximum number of dataset indices in the record of a batch."""
CONCURRENT_NEXT = "next() is called on an iterator while the same thread waits in its next(): use another, iter(loader)"
_NOTHING = object()


class IteratorContext(NamedTuple):
    """The objects and settings that all iterators of a loader share."""

    engine: AnyEngine
    events: ev.EventBus
    transfer: DeviceTransfer | None
    """Transfers batches to their device; None if they stay in host memory."""
    batched: bool
    """Whether samples are collated into batches."""
    names: Sequence[str] | None
    """Names of the parts of a batch; None if batches are not converted to dicts."""
    debuggable: bool
    """Whether `DataLoader.debug` can reproduce a sample that has an index."""
    index_sampler: Any
    """The loader's batch sampler, or its sampler if automatic batching is off."""


class Consumer(NamedTuple):
    """What the loader provides to an iterator when a consumer starts to iterate."""

    num_workers: int
    length: Callable[[], int]
    """Returns the number of batches of the whole epoch."""
    on_exhausted: Callable[[bool], None]
    """Called at the end of the epoch. The argument is True if the epoch had no batch."""


class EpochIterator(_BaseDataLoaderIter, Iterator[T_co]):
    """Iterator over the batches of one epoch.

    This is a subclass of torch's iterator because programs check for that type, but it shares no code with it. Programs
    also use the private attributes `_workers`, `_num_workers`, `_num_yielded`, `_base_seed`, `_index_sampler` and
    `_sampler_iter`, and the methods `_next_index()`, `_next_data()` and `_shutdown_workers()`. Other private names of
    torch's iterator raise an AttributeError (`torch_names.py`).

    Threads may share an iterator: they take turns, and each batch is delivered once.

    Args:
        context: The objects and settings of the loader.
        epoch: Number of the epoch.
        plan: The batches of the epoch.
    """

    _in_torchs_init = False
    """Whether torch's `__init__` is setting attributes (`HookedEpochIterator`)."""

    def __init__(self, context: IteratorContext, epoch: int, plan: EpochPlan) -> None:
        self.plan = plan
        self._context = context
        self._consumer: Consumer | None = None
        self._engine = engine = context.engine
        self._warnings = engine.silent_faults
        self._events = context.events
        self._transfer = context.transfer
        self._batched = context.batched
        self._names = context.names
        self._debuggable = context.debuggable
        self._epoch = epoch
        self._sampling = 0
        """Time spent in the sampler since the last batch was delivered, ns."""
        self._drawn_ahead = 0 if plan.sampler is None else plan.sampler.opened_in
        """Time spent in the sampler since `iter(loader)` was called and before the first `__next__`, ns."""
        self._checksum_due = 0
        """When the next checksum may be computed, `time.perf_counter_ns()`."""
        self._ended = ""
        """Why the iteration has ended; "" before."""
        self._turn = threading.RLock()  # held in `__next__`
        self._in_next = False
        self._kept: Delivery | None = None  # taken, but not delivered (yet): after an interrupt, or on a full device
        self._resources = _Resources(epoch, context.events, context.transfer)
        self._resources.sampler = plan.sampler
        # Before the iteration is opened: after an interrupt, one that nothing closes would keep its workers.
        self._closer = weakref.finalize(self, self._resources.release, engine, "abandoned")
        self._iteration: Iteration = engine.open_iteration(epoch, plan)
        if plan.reader is not None:
            plan.reader.when_ready(self._iteration.bell.ring)
            self._resources.reader = plan.reader

    def begin(self, consumer: Consumer) -> EpochIterator[T_co]:
        """Begin the epoch for a consumer. Before this, nothing is published, and nothing refers to the loader."""
        self._consumer = consumer
        self._resources.begun = True
        began, before = _clock() - self._drawn_ahead, self._sampling
        iterable = self.plan.shards is not None
        self._events.publish(ev.EpochStarted(began, self._epoch, self.plan.total, consumer.num_workers, iterable))
        self._prefetch()
        self._drawn_ahead += self._sampling - before
        self._sampling = self._drawn_ahead
        return self

    def prefetch(self) -> None:
        """Request the first batches before the epoch begins, if the loader requests any in advance."""
        self._drawn_ahead = 0  # no loop waits for the sampler now
        self._prefetch()

    def _prefetch(self) -> None:
        if self._engine.prefetches:
            self._refill(wait=False, limit_ns=None)

    def drop(self) -> None:
        """End an iteration that nobody will consume, and discard the batches that were produced."""
        self._end("abandoned")

    def __iter__(self) -> EpochIterator[T_co]:
        """Return the iterator itself."""
        return self

    @property
    def _workers(self) -> list[WorkerView]:
        """The workers, under the name that programs expect on torch's iterator.

        Raises:
            AttributeError: The loader has no workers (`num_workers=0`); torch raises it, too.
        """
        if isinstance(self._engine, LocalEngine):
            raise AttributeError("an iterator over a loader with num_workers=0 has no workers")  # noqa: TRY004
        return self._engine.workers()

    @property
    def _num_workers(self) -> int:  # type: ignore[override]
        """Number of workers when the epoch began; 0 before it begins and after it has ended."""
        return 0 if self._consumer is None else self._consumer.num_workers

    @property
    def _num_yielded(self) -> int:  # type: ignore[override]
        """Number of batches delivered."""
        return self._resources.delivered

    @property
    def _base_seed(self) -> int:  # type: ignore[override]
        """The epoch's base seed."""
        return self.plan.seed

    @property
    def _index_sampler(self) -> Any:
        """The loader's batch sampler, or its sampler if automatic batching is off."""
        return self._context.index_sampler

    @property
    def _sampler_iter(self) -> PlannedBatches:
        """The batches that were not requested yet. A program that takes some of them skips them."""
        return PlannedBatches(self.plan)

    # The next two are properties because a program that assigns such a method must see that this has no effect.

    @property
    def _next_index(self) -> Callable[[], Any]:
        """Returns the indices of the next batch, and skips it. The method of torch's class."""
        return super()._next_index

    @property
    def _next_data(self) -> Callable[[], T_co]:  # type: ignore[override]
        """Returns the next batch."""
        return partial(EpochIterator.__next__, self)

    def _shutdown_workers(self) -> None:
        """End the iteration. Stop the workers unless another iteration uses them; the next epoch starts them again."""
        self._end("abandoned")
        self._engine.stop_idle_workers()

    def __getstate__(self) -> NoReturn:
        """Raise an error: an iterator cannot be pickled, like torch's, because it is bound to its workers."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot be pickled. Pickle loader.state_dict() or the dataset."
        )

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch."""
        if self._consumer is None:
            raise TypeError("the epoch has ended")
        return self._consumer.length()

    def __next__(self) -> T_co:
        """Return the next batch. Blocks until the batch is ready.

        Raises:
            StopIteration: The epoch is over.
            RuntimeError: The dataset, a signal handler or a callback calls `next` on the iterator that waits for it.
            Exception: Whatever the dataset or the collate function raised, with the worker's traceback as its cause
                and the sample's index in a note. The iteration can continue with the next batch. If the device is out
                of memory, this is torch's OutOfMemoryError, and the iteration can continue with the same batch.
            KeyboardInterrupt: The call was interrupted. Other signal handlers may raise other exceptions. After an
                interrupt during the wait, or while the batch is built or uploaded, the iteration can continue. If the
                interrupt has lost a batch that was being drawn or handed over, the next call raises LoaderClosedError.
        """
        batch: Any = _NOTHING
        try:
            with self._turn:
                if profiling():
                    with record_function(PROFILED):
                        batch = self._next_in_turn()
                else:
                    batch = self._next_in_turn()
                return batch  # type: ignore[no-any-return]
        except BaseException:
            if batch is not _NOTHING:  # an interrupt at the end of the turn has lost it
                self._engine.close_iteration(self._epoch)
            raise

    def _next_in_turn(self) -> T_co:
        if self._in_next:
            raise RuntimeError(CONCURRENT_NEXT)
        self._in_next = True
        try:
            return self._next()
        except StopIteration:
            raise
        except BaseException as error:
            interrupted = not isinstance(error, Exception) or raised_by_handler(error)
            if interrupted:
                self._check_complete()
            if self._consumer is not None:  # otherwise the end of the epoch was published
                self._publish_stop(error, interrupted=interrupted)
            raise
        finally:
            self._in_next = False

    def _publish_stop(self, error: BaseException, *, interrupted: bool) -> None:
        """Publish that the loop has ended. If it catches the error, it can still continue."""
        text = f"{type(error).__name__}: {message_of(error)}".removesuffix(": ")[:MAX_ERROR]
        resources = self._resources
        index = resources.failed if resources.failed == resources.returned >= 0 else resources.returned + 1
        self._events.publish(ev.LoopStopped(_clock(), self._epoch, index, text, interrupted=interrupted))

    def _check_complete(self) -> None:
        """After an interrupt, end the iteration if a batch was lost."""
        last = self._resources.returned if self._kept is None else self._kept.task.number
        if not self._iteration.is_complete(drawn=self.plan.next_number, held=last):
            self._engine.close_iteration(self._epoch)

    def _give_up(self, task: Task) -> None:
        """Record that an error is raised in place of a batch: the iteration continues with the next one."""
        self._kept = None
        self.plan.delivered(task.number, task.indices, 0)
        self._resources.returned = self._resources.failed = task.number

    def _next(self) -> T_co:
        if self._consumer is None:
            raise StopIteration
        requested = self._begin_request()
        engine, plan = self._engine, self.plan
        self._kept = got = self._wait()
        task, payload = got.task, got.outcome
        if engine.prefetches:
            self._refill(wait=False)
        if plan.reader is not None:  # records and errors live long and must not hold samples
            task.indices = item_numbers(task.indices)
        if payload.failed:
            epoch = self._epoch if self._debuggable and plan.order is not None else None
            failure = payload.to_exception(task.number, task.indices, batched=self._batched, epoch=epoch)
            self._give_up(task)
            raise failure
        assert not payload.empty  # noqa: S101 - for the type checker: an iteration passes over batches without samples
        summed = None
        try:
            batch = payload.deliver() if self._transfer is None else self._move(self._transfer, task, payload)
            if requested >= self._checksum_due:
                summed = self._checksum(batch if self._transfer is None else payload.open())
            if self._names is not None:
                batch = name_parts(batch, self._names)
        except Exception as error:
            full = self._transfer is not None and isinstance(error, self._transfer.out_of_memory)
            if not (full or raised_by_handler(error)):
                self._give_up(task)
            raise
        self._kept = None  # after an interrupt from here on, the iteration ends: a batch must not be counted twice
        self._remember(got, payload, requested, summed)
        plan.delivered(task.number, task.indices, payload.samples)
        self._resources.delivered += 1
        self._resources.returned = task.number  # last: a signal handler could run in a later function call
        return batch  # type: ignore[no-any-return]

    def _begin_request(self) -> int:
        """Complete the step that has ended, and return the time at which the consumer requests the next batch.

        The loop has waited for the sampler in `iter(loader)`, too. The first request is that much earlier.
        """
        if self._warnings.texts:
            self._warnings.warn()
        if self._transfer is not None:
            self._transfer.catch_up(self._resources.delivered)
        requested = _clock() - self._drawn_ahead
        self._drawn_ahead = 0
        self._resources.publish(requested)
        return requested

    def _wait(self) -> Delivery:
        try:
            if self._kept is not None:
                self._iteration.check_open()
                return self._kept
            if not self._engine.prefetches:
                self._refill()
            while (got := self._iteration.next(self._refill)) is None:
                if not self._refill():  # requests may be past the end of one shard while another goes on
                    self._finish()
        except LoaderClosedError:
            if self._ended == "exhausted":  # a thread that shares this iterator has reached the end meanwhile
                raise StopIteration from None
            self._end("closed")
            raise
        return got

    def _refill(self, *, wait: bool = True, limit_ns: int | None = DRAWING_LIMIT_NS) -> bool:
        """Draw batches from the sampler to fill the window, and assign them to workers.

        Args:
            wait: Whether to wait until a source has returned a batch, if no other batch is outstanding.
            limit_ns: See `EpochPlan.take`.

        Returns:
            Whether at least one batch was drawn.
        """
        room = self._iteration.room
        if self.plan.reader is not None:
            room = self._readable(self.plan.reader, room, wait=wait)
        if not room:
            return False
        begin = _clock()
        batches = self.plan.take(room, limit_ns)
        took = _clock() - begin
        self._sampling += took
        if took >= DRAWING_LIMIT_NS:
            self._engine.callbacks.call(waiting=True)  # the loop waits, though for no batch
        if batches:
            self._iteration.add(batches)
        return bool(batches)

    def _readable(self, reader: SourceReader, room: int, *, wait: bool) -> int:
        """Return how many batches, at most `room`, a source has ready. For `wait`, see `_refill`."""
        while wait and not reader.ready() and not self._iteration.outstanding:
            self._wait_for(reader)
        return min(room, reader.ready())

    def _wait_for(self, reader: SourceReader) -> None:
        """Block until a source has something to read, the iteration is closed, or a callback is due."""
        bell = self._iteration.bell
        bell.listening = True
        try:
            self._iteration.check_open()
            if not reader.ready():
                self._engine.callbacks.wait(bell, None)
        finally:
            bell.listening = False

    def _move(self, transfer: DeviceTransfer, task: Task, payload: BatchPayload) -> Any:
        """Transfer a batch to its device, and start the transfers of the following batches that are ready."""
        epoch, position = self._epoch, self._resources.delivered
        batch, self._resources.shipment = transfer.deliver(BatchKey(epoch, task.number), payload, position)
        ready = self._iteration.peek_payloads(transfer.ahead)
        transfer.start_ahead([(BatchKey(epoch, later.number), ahead) for later, ahead in ready], position + 1)
        return batch

    def _checksum(self, batch: Any) -> int:
        """Return the checksum of a batch in host memory, before the loop can change it."""
        begin = _clock()
        result = checksum(batch)
        end = _clock()
        self._checksum_due = end + (end - begin) * CHECKSUM_SHARE
        return result

    def _remember(self, got: Delivery, payload: BatchPayload, requested: int, summed: int | None) -> None:
        task = got.task
        (
            _epoch, _number, _segment, nbytes, skeleton_nbytes, samples, fetch_begin, fetched, collated,
            fetch_cpu, collate_cpu, slowest, slowest_ns,
        ) = payload.header  # unpacked at once: each attribute of a named tuple takes 35 ns  # fmt: skip
        index = None
        if slowest >= 0:
            index = task.indices[slowest] if self._batched else task.indices
        self._resources.record = ev.BatchRecord(
            self._epoch, task.number, payload.worker, payload.pid, task.attempt, samples, nbytes,
            payload.transport, requested, task.dispatched, fetch_begin, fetched, collated, payload.received,
            task.in_order, _clock(), NOT_RETURNED, fetch_cpu, collate_cpu, got.in_flight, got.reordering, got.ready,
            index, slowest_ns, task.indices[: min(samples, KEPT_INDICES)] if self._batched else (task.indices,),
            None, self._sampling, skeleton_nbytes, payload.transfer, summed, task.lost_sample,
        )  # fmt: skip
        self._sampling = 0

    def _finish(self) -> NoReturn:
        self._warnings.warn()
        error, self.plan.error = self.plan.error, None
        if error is None:
            self._iteration.check_open()  # if the iteration has ended, this is why there is no batch
        self.plan.over = True
        if error is not None:
            self._end("error")
            raise error
        try:
            self._engine.drain_output(self._epoch)
        except Exception:
            self._end("error")
            raise
        consumer = self._consumer
        empty = not (self._resources.delivered or self.plan.first)
        self._end("exhausted")
        if consumer is not None:
            consumer.on_exhausted(empty)
        raise StopIteration

    def _end(self, reason: str) -> None:
        self._ended = reason
        if self._closer.detach():
            self._resources.release(self._engine, reason)
        self._consumer = self._kept = None


for _name in MISSING:
    setattr(EpochIterator, _name, MissingAttribute(_name))


class _Resources:
    """What must be released when an iterator is exhausted or garbage-collected. Holds no reference to the iterator."""

    def __init__(self, epoch: int, bus: ev.EventBus, transfer: DeviceTransfer | None) -> None:
        self.epoch = epoch
        self.delivered = 0
        self.failed = -1
        """Number of the last batch whose error was raised; -1 if there is none."""
        self.returned = -1
        """Number of the last batch that was returned or whose error was raised; -1 if there is none."""
        self.reader: SourceReader | None = None
        self.sampler: ResumableSampler | None = None
        self.begun = False
        """Whether a consumer has started to iterate."""
        self.record: ev.BatchRecord | None = None
        """The record of the consumer's batch, without the time at which it returns; None if no record is pending."""
        self.shipment: PendingPlacement | None = None
        """How the consumer's batch is transferred to its device."""
        self._bus = bus
        self._transfer = transfer
        self._records = None if transfer is None else RecordQueue(bus.publish)

    def publish(self, returned: int) -> None:
        """Complete and publish the record of the consumer's last batch.

        Args:
            returned: When the consumer requested the next batch or ended the loop, perf_counter ns.
        """
        record = self.record
        if record is not None:
            self.record = None
            complete = record._replace(returned=returned)
            if self._records is None:
                self._bus.publish(complete)
            else:
                self._records.add(complete, self.shipment)

    def release(self, engine: AnyEngine, reason: str) -> None:
        """End the iteration, publish its end and release its resources."""
        now = _clock()
        try:
            self.publish(now)
            if self._transfer is not None and self._records is not None:
                self._transfer.forget(self.epoch)
                self._records.flush(at_once=True)
        finally:  # also after an interrupt of a finalizer: an iteration that nothing closes would keep its workers
            engine.close_iteration(self.epoch)
        if self.reader is not None:
            self.reader.close()
        elif self.sampler is not None:
            self.sampler.end()
        if self.begun:
            self._bus.publish(ev.EpochEnded(now, self.epoch, self.delivered, reason))


def check_names(name: str, names: Any) -> Sequence[str] | None:
    """Return the value of an argument that names the parts of a batch, if it is right.

    Raises:
        TypeError: The value is not a sequence of strings.
        ValueError: The value is empty, or a name is repeated.
    """
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not isinstance(names, Sequence) or any(type(n) is not str for n in names):
        raise TypeError(f"{name} must be a sequence of strings such as ('image', 'label'), not {names!r}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{name} must be one or more different strings, not {names!r}")
    return names


def name_parts(batch: Any, names: Sequence[str]) -> Any:
    """Convert a batch of several parts to a dict by name (paddle's feed names). A batch that is a dict is unchanged.

    Raises:
        ValueError: The number of parts differs from the number of names.
    """
    if isinstance(batch, Mapping):
        return batch
    if not isinstance(batch, (tuple, list)) or len(batch) != len(names):
        parts = f"{len(batch)} parts" if isinstance(batch, (tuple, list)) else f"one part, a {type(batch).__name__}"
        raise ValueError(f"names={names!r} are for batches of {len(names)} parts, but this one has {parts}")
    return dict(zip(names, batch, strict=True))


class DeviceGroups(Iterator[list[Any]]):
    """Groups the batches of an epoch into lists, with one batch for each device. The last list may be shorter.

    Args:
        batches: The batches.
        size: Number of batches in a list.
    """

    def __init__(self, batches: Iterator[Any], size: int) -> None:
        self._batches = batches
        self._size = size
        self._group: list[Any] = []

    def __iter__(self) -> DeviceGroups:
        """Return the iterator itself."""
        return self

    def __next__(self) -> list[Any]:
        """Return the next list of batches, one for each device.

        Raises:
            StopIteration: The epoch is over.
            Exception: Whatever the iterator raised. The batches before it are kept, so that the iteration can continue.
        """
        # In one call: an interrupt between `next` and `append` would lose a batch.
        self._group.extend(itertools.islice(self._batches, self._size - len(self._group)))
        if not self._group:
            raise StopIteration
        group, self._group = self._group, []
        return group
