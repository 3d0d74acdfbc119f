"""One pass over a loader: what `iter(loader)` gives.

The consumer's side of the path: ask the sampler while there is credit, wait for the next batch in order, build it,
and publish its record when the consumer comes back.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from torch._C._autograd import _profiler_enabled as profiling
from torch.autograd.profiler import record_function

from nbloader import events as ev
from nbloader._util.wakeup import Wakeup
from nbloader.batch.payload import BatchPayload
from nbloader.batch.task import Task
from nbloader.device.transfer import BatchKey, DeviceTransfer, PendingPlacement, RecordQueue
from nbloader.engine.delivery import named
from nbloader.engine.engine import Engine
from nbloader.engine.inline_engine import LocalEngine
from nbloader.errors import LoaderClosedError
from nbloader.events.failures import Failure, Given, rebuild
from nbloader.sampling import samplers
from nbloader.sampling.epoch_plan import EpochPlan
from nbloader.sampling.source import Reader, numbers
from nbloader.workers.worker_view import WorkerView

if TYPE_CHECKING:
    from nbloader.loader.dataloader import DataLoader

T_co = TypeVar("T_co", covariant=True)
_clock = time.perf_counter_ns

PROFILED = "enumerate(DataLoader)#Epoch.__next__"
"""Range of torch's profiler around each wait for a batch; its tools know torch's loader by the first part."""
KEPT_INDICES = 8
"""Dataset indices that a batch's record keeps."""


class Epoch(Iterator[T_co]):
    """One pass over the sampler."""

    def __init__(self, loader: DataLoader[T_co], run: int, draw: EpochPlan) -> None:
        self._loader: DataLoader[T_co] | None = None
        self._engine = engine = loader._engine
        self._run = run
        self._batched = loader.batch_sampler is not None
        self._names = loader._names
        self._placer = loader._placer
        self._kept: Any = None  # taken, and not delivered for want of memory on the device
        self.draw = draw
        if not (loader.persistent_workers and engine.loaded) and loader._load():
            engine.replace_all()
        engine.open_run(run, draw)
        self._pass = _Pass(run, loader.events, loader._placer)
        if draw.reader is not None:
            draw.reader.when_ready(self._pass.waker.set)
            self._pass.reader = draw.reader
        self._closer = weakref.finalize(self, _abandon, engine, self._pass)

    def begin(self, loader: DataLoader[T_co]) -> Epoch[T_co]:
        """The consumer is here. Until now nothing was told, and the loader was not referred to."""
        self._loader = loader
        loader._draw = self.draw
        self._pass.begun = True
        loader.events.publish(ev.EpochStarted(_clock(), self._run, self._run, self.draw.total, loader.num_workers))
        self.prefetch()
        return self

    def prefetch(self) -> None:
        """Ask for the first batches."""
        if self._engine.ahead:
            self._refill(wait=False)

    def drop(self) -> None:
        """Nobody wants it: what was made is given back."""
        self._end("abandoned")

    def __iter__(self) -> Iterator[T_co]:
        """Give the iterator itself."""
        return self

    @property
    def _workers(self) -> list[WorkerView]:
        """The workers, as programs look for them in torch's iterator; without workers it has none either."""
        return self._engine.workers()  # type: ignore[union-attr]  # an AttributeError without workers, as torch's

    def __getstate__(self) -> NoReturn:
        """An iterator is bound to its workers: torch's cannot be pickled either."""
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled: pickle loader.state_dict() or the dataset")

    def __len__(self) -> int:
        """Batches of the whole epoch."""
        if self._loader is None:
            raise TypeError("the epoch has ended")
        return len(self._loader)

    def __next__(self) -> T_co:
        """The next batch; waits for it.

        Raises:
            StopIteration: The epoch is over.
            Exception: Whatever the dataset or the collate function raised, with the worker's traceback as its cause
                and the sample's index in a note. The iteration can go on with the next batch. Where the memory of the
                device did not suffice, torch's OutOfMemoryError: then it goes on with the same batch.
        """
        if profiling():
            with record_function(PROFILED):
                return self._next()
        return self._next()

    def _next(self) -> T_co:
        if self._loader is None:
            raise StopIteration
        requested = _clock()
        self._pass.publish(requested)
        if not self._engine.ahead:
            self._refill()
        got = self._wait() if self._kept is None else self._kept
        task, payload, depths = got
        if self._engine.ahead:  # the first of an epoch made ahead does not wait until a worker is awake
            self._refill(wait=False, soon=task.number == self.draw.first and depths[2] > 0)
        if self.draw.reader is not None:  # records and errors are kept for long: they hold no samples
            task.indices = numbers(task.indices)
        if isinstance(payload, (Failure, Given)):
            self.draw.delivered(task, 0)
            _raise_failure(task, payload, self._batched)
        batch = payload.open() if self._placer is None else self._place(self._placer, got)
        if self._names is not None:
            batch = named(batch, self._names)
        self._remember(task, payload, requested, depths)
        self.draw.delivered(task, payload.samples)
        self._pass.delivered += 1
        return batch  # type: ignore[no-any-return]

    def _wait(self) -> Any:
        try:
            while (got := self._engine.next_batch(self._run, self._pass.waker, self._refill)) is None:
                if not self._refill():  # what was asked for may be past the end of its shard, and another go on
                    self._finish()
        except LoaderClosedError:
            self._end("closed")
            raise
        return got

    def _refill(self, *, wait: bool = True, soon: bool = False) -> bool:
        """Ask the sampler for as many batches as there is credit, and dispatch them. Whether it gave any.

        Args:
            wait: Whether a source that has given nothing yet may be waited for, where nothing else is to come.
            soon: See `Engine.add`.
        """
        room = self._engine.room(self._run)
        if self.draw.reader is not None:
            room = self._readable(self.draw.reader, room, wait=wait)
        batches = self.draw.take(room)
        if batches:
            self._engine.add(self._run, batches, soon=soon)
        return bool(batches)

    def _readable(self, reader: Reader, room: int, *, wait: bool) -> int:
        """How many batches a source can be asked for now."""
        while wait and not reader.ready() and not self._engine.outstanding(self._run):
            self._engine.wait_for_source(self._run, self._pass.waker)
        return min(room, reader.ready())

    def _place(self, placer: DeviceTransfer, got: Any) -> Any:
        """Bring a batch to where it shall be, and begin with those after it that are ready."""
        task, parcel, _depths = got
        run, position = self._run, self._pass.delivered
        self._kept = None
        try:
            batch, self._pass.shipment = placer.deliver(BatchKey(run, task.number), parcel, position)
        except placer.out_of_memory:
            self._kept = got
            raise
        ready = self._engine.upcoming(run, placer.ahead)
        placer.start_ahead([(BatchKey(run, task.number), parcel) for task, parcel in ready], position + 1)
        return batch

    def _remember(self, task: Task, parcel: BatchPayload, requested: int, depths: tuple[int, int, int]) -> None:
        header = parcel.header
        samples, slowest = header.samples, header.slowest
        index = None
        if slowest >= 0:
            index = task.indices[slowest] if self._batched else task.indices
        self._pass.record = (
            self._run, self._run, task.number, parcel.worker, parcel.pid, task.attempt, samples, header.nbytes,
            parcel.transport, requested, task.dispatched, header.fetch_begin, header.fetch_end, header.collate_end,
            parcel.received, task.in_order, _clock(),
        ), (header.fetch_cpu, header.collate_cpu, *depths, index, header.slowest_ns,
            task.indices[: min(samples, KEPT_INDICES)] if self._batched else (task.indices,))  # fmt: skip

    def _finish(self) -> NoReturn:
        error, self.draw.error = self.draw.error, None
        if error is not None:
            self.draw.over = True
            self._end("error")
            raise error
        self._engine.drain_output()
        loader = self._loader
        self.draw.over = True
        nothing = not (self._pass.delivered or self.draw.first)
        self._end("exhausted")
        if loader is not None:
            loader._epoch_over()
            if nothing:
                samplers.warn_if_exhausted(
                    dataset=loader.dataset, sampler=loader.sampler, batch_sampler=loader.batch_sampler, stacklevel=6
                )
        raise StopIteration

    def _end(self, reason: str) -> None:
        if self._closer.detach():
            self._pass.end(self._engine, reason)
        self._loader = None


class _Pass:
    """What must be cleared away when an iterator ends, be it by its end or because it was dropped."""

    def __init__(self, run: int, bus: ev.EventBus, placer: DeviceTransfer | None) -> None:
        self.run = run
        self.waker = Wakeup()
        self.delivered = 0
        self.reader: Reader | None = None
        self.begun = False
        """Whether a consumer has come for it."""
        self.record: tuple[Any, ...] | None = None
        """Of the batch that the consumer is at: what comes before and after `returned` in a `BatchRecord`."""
        self.shipment: PendingPlacement | None = None
        """How that batch is brought to its device."""
        self._bus = bus
        self._placer = placer
        self._records = None if placer is None else RecordQueue(bus.publish)

    def publish(self, returned: int) -> None:
        """The consumer has come back: its last batch's record is complete."""
        if self.record is not None:
            before, after = self.record
            self.record = None
            record = ev.BatchRecord._make((*before, returned, *after, None))
            if self._records is None:
                self._bus.publish(record)
            else:
                self._records.add(record, self.shipment)

    def end(self, engine: Engine | LocalEngine, reason: str) -> None:
        """End the run and tell."""
        now = _clock()
        self.publish(now)
        if self._placer is not None and self._records is not None:
            self._placer.forget(self.run)
            self._records.flush(at_once=True)
        engine.close_run(self.run)
        if self.reader is not None:
            self.reader.close()
        self.waker.close()
        if self.begun:
            self._bus.publish(ev.EpochEnded(now, self.run, self.run, self.delivered, reason))


def _abandon(engine: Engine | LocalEngine, ended: _Pass) -> None:
    ended.end(engine, "abandoned")


def _raise_failure(task: Task, payload: Failure | Given, batched: bool) -> NoReturn:
    if isinstance(payload, Given):
        raise payload.error
    where = f"worker {payload.worker} (pid {payload.pid})" if payload.worker >= 0 else "this process"
    if payload.stage == "fetch" and batched and payload.position >= 0:
        what = f"fetching sample {task.indices[payload.position]!r} of batch {task.number}"
    elif payload.stage == "fetch":
        what = f"fetching {task.indices!r}"
    else:
        what = f"collating batch {task.number}"
    raise rebuild(payload.error, f"raised in {where} while {what}", payload.raised)
