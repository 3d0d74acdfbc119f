"""What the crew, the driver and the dispatcher know of workers, be they processes (pool.py) or threads (threads.py)."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from nbloader.batch.task import Task
from nbloader.events.gauges import WorkerGauge
from nbloader.workers.status import WorkerState, WorkerStatus

if TYPE_CHECKING:
    from nbloader.transport.messages import WorkerMessage

_clock = time.perf_counter_ns
_uids = itertools.count(1)

LISTED = 8
"""Batches that a gauge lists as held by one worker."""


class Handle:
    """One worker, from its start to its end. A replacement gets a handle of its own.

    Args:
        worker: Its id.
        status: Where it publishes what it is doing; read while it writes.
    """

    def __init__(self, worker: int, status: WorkerStatus) -> None:
        self.uid = next(_uids)
        """Unique number of this process or thread."""
        self.worker = worker
        """Worker id; a replacement has the same."""
        self.pid = 0
        """Of its process; 0 until that exists."""
        self.known = threading.Event()
        """Set when its pid is known, or never will be."""
        self.ready = False
        self.gone = False
        """Whether it has ended, or was given up, and nothing more is heard of it."""
        self.over = threading.Event()
        """Set then, for who waits for it."""
        self.exitcode: int | None = None
        self.expected = False
        """True when its end was asked for."""
        self.held: tuple[int, ...] = ()
        """Batch numbers that were taken from it when its end was asked for."""
        self.made = 0
        """Batches that came from it and were wanted."""
        self.requested = _clock()
        self.status = status

    def exists(self, pid: int) -> None:
        """Its process, or its thread in this one, is there."""
        self.pid = pid
        self.known.set()

    def end(self, exitcode: int | None) -> None:
        """It has ended, or was given up.

        Args:
            exitcode: As `multiprocessing` says it; None where it is not known.
        """
        self.gone = True
        self.exitcode = exitcode
        self.known.set()
        self.over.set()

    @property
    def stderr_tail(self) -> str:
        """The last lines that it wrote to its standard error."""
        return ""

    def kill(self) -> None:
        """End it at once, whatever it does."""
        raise NotImplementedError

    def asker(self) -> Callable[[], str]:
        """A function that asks for the worker's Python stack, and waits for it.

        This is called with the engine's lock, and the function without.

        Raises:
            NbloaderError: It has none yet. The function raises it where the worker does not answer.
        """
        raise NotImplementedError

    def at_work_since(self) -> float:
        """When it began with what it does for a batch now, perf_counter ns; infinity while it does nothing."""
        status = self.status
        return status.since if status.state in (WorkerState.FETCHING, WorkerState.COLLATING) else math.inf

    def gauge(self, held: list[Task], runs: Collection[int], exit_reason: str, made: int) -> WorkerGauge:
        """What is known of it now, read from its status page without asking it.

        Args:
            held: The batches that it was given.
            runs: Those that are open.
            exit_reason: Why the worker before it ended.
            made: Batches made under its id.
        """
        status = self.status
        state, run, number, since, position = status.state, status.run, status.number, status.since, status.position
        sample, batch = None, number
        for task in held:
            if task.job != number or task.run != run:
                continue
            batch = task.number
            if state == WorkerState.FETCHING and position >= 0:
                indices = task.indices
                if not isinstance(indices, (list, tuple)):
                    sample = indices
                elif position < len(indices):  # the page is read while the worker writes it
                    sample = indices[position]
        at = batch if number >= 0 and state != WorkerState.STARTING else None
        return WorkerGauge(
            worker=self.worker,
            pid=self.pid,
            state=WorkerState(state).name.lower(),
            batch=at,
            since=since or self.requested,
            sample=sample,
            queued=max(0, len(held) - 1),
            exit_reason=exit_reason,
            stderr_tail=self.stderr_tail,
            cpu_percent=None,
            rss=None,
            held=tuple(dict.fromkeys(task.number for task in held[:LISTED] if task.run in runs)),
            left=at is not None and not (held and held[0].run in runs),
            made=made,
        )


class Payload(Protocol):
    """What workers are given when they start: dataset, `collate_fn`, `worker_init_fn`, `on_error`."""

    @property
    def identity(self) -> Any:
        """Equal for two payloads where workers that have the one need not be given the other."""

    def holds(self, *parts: Any) -> bool:
        """Whether these are what it was made of, unchanged. False also where only another payload can tell."""


class WorkerPool(Protocol):
    """The workers of one loader: started, given batches, listened to, ended. It decides nothing, it reports."""

    @property
    def handles(self) -> Mapping[int, Handle]:
        """Workers that have not ended, by their unique number."""

    def fileno(self, uid: int | None = None) -> int:
        """A descriptor that is readable when `poll` has something to report.

        Args:
            uid: Of the worker whose batches alone are waited for, where that can be told; None for everything.
        """

    def start(self, worker: int, options: dict[str, Any], payload: Any) -> Handle:
        """Start a worker.

        Args:
            worker: Its id.
            options: What it is told (fields of `bootstrap.InitMessage`).
            payload: What `pack` of the same kind of pool gave.

        Raises:
            OSError: No process, thread, pipe or memory could be had.
        """

    def give(self, uid: int, tasks: Sequence[Task]) -> list[tuple[Task, Exception]]:
        """Have a worker make batches, one after the other.

        Returns:
            Those that cannot be sent to it, and why; it does not get them.
        """

    def learn(self, parcel: Any) -> None:
        """A piece of a batch has come: the next batches may be laid out as it is."""

    def cancel(self, uid: int, run: int, numbers: tuple[int, ...] | None) -> None:
        """Have a worker forget batches that it was given and has not begun.

        Args:
            uid: Which worker.
            run: Their run.
            numbers: Which batches; None for all, and the iterators over shards that it keeps for the run.
        """

    def rest(self) -> None:
        """Nothing is asked for at present: give memory back that the next epoch can begin without."""

    def poll(self, timeout: float | None) -> list[WorkerMessage]:
        """Wait until something happens, and tell what.

        Args:
            timeout: Seconds; 0 does not wait, None waits for ever.
        """

    def partial_output(self) -> list[tuple[str, str]]:
        """What workers wrote after their last line ends, as (stream, text); taken out."""

    def close(self, grace: float) -> list[WorkerMessage]:
        """End all workers: those that do not leave within `grace` seconds are killed.

        Returns:
            What there was to report meanwhile (last output, ends).
        """

    def abandon(self) -> None:
        """End all workers at once and hear nothing of them, in whatever state an interrupt has left them."""

    def dispose(self) -> None:
        """Close what is left when no worker is."""


class PoolKind(Protocol):
    """Makes pools of one kind of worker."""

    def pack(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> Payload:
        """What workers of this kind are given when they start.

        Raises:
            DatasetTransferError: It cannot be given to them.
        """

    def make(self) -> WorkerPool:
        """A pool without workers."""
