"""Gauges: what the engine knows of itself and of its workers at one moment, beside the events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerGauge:
    """What the pool knows of one worker at this moment; the input of `WorkerStats`."""

    worker: int
    """Worker id, from 0. A replaced worker keeps the id of the one before."""
    pid: int
    state: str
    """"starting", "idle", "fetching", "collating", "sending", or "dead"."""
    batch: int | None
    """Number of the batch it is at, None when idle."""
    since: int
    """When it entered this state (for a batch: when it began with it), perf_counter ns."""
    sample: Any
    """Dataset index of the sample that it is fetching; None when idle or unknown."""
    queued: int
    """Batches waiting in its queue behind the current one."""
    exit_reason: str
    """Why the process before this one ended; "" when none has."""
    stderr_tail: str
    """Last lines written to its standard error (up to 4 kB)."""
    cpu_percent: float | None
    """CPU use since the last picture, 100 = one core. None where unknown."""
    rss: int | None
    """Resident memory, bytes. None where unknown."""
    held: tuple[int, ...] = ()
    """Numbers of the batches it was given, the one it is at first; the first eight."""
    left: bool = False
    """The iterator of the batch it is at has ended: what it makes will be thrown away."""
    private: int | None = None
    """Memory that is its own, bytes. None where unknown; looked up now and then."""
    shared: int | None = None
    """Resident memory that it shares with other processes (dataset, segments, libraries), bytes."""
    made: int = 0
    """Batches made by this worker id; from 0 again where its place was given up and taken anew."""
    core_wait: float | None = None
    """Of the time that it could run, the share in which it had no core, 0 to 1. None where unknown."""


@dataclass(frozen=True, slots=True)
class ProducedBatch:
    """A batch that has come from its worker and has not gone to the consumer. Times are perf_counter ns."""

    run: int
    number: int
    worker: int
    fetch_begin: int
    fetched: int
    collated: int
    received: int
    in_order: int
    """When every earlier batch had come too; 0 while one has not."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """What the loader knows of itself at this moment, beside the events."""

    now: int
    """perf_counter ns."""
    state: str
    """"new" (never iterated), "starting" (workers not ready), "running", "paused", "idle" (between epochs) or
    "closed"."""
    window: int
    """Credit: batches that may be asked for ahead."""
    in_flight: int
    """Batches sent to workers, not yet received."""
    reordering: int
    """Batches received that wait for an earlier one."""
    ready: int
    """Batches in order that wait for the consumer."""
    waiting_since: int | None
    """When the consumer began to wait in `__next__`; None while it works on a batch. perf_counter ns."""
    waiting_for: int | None
    """Number of the batch that the consumer waits for; None while it works."""
    workers: tuple[WorkerGauge, ...]
    iterators: int = 0
    """Iterators that have not ended. Queue depths are over all; what follows is of the newest."""
    run: int = -1
    """The newest iterator that has not ended; -1 for none."""
    delivered: int = 0
    """Batches that it has delivered, the one that the consumer is at included."""
    at: int | None = None
    """Number of the batch that the consumer is at; None before the first and while it waits."""
    at_since: int = 0
    """When the consumer got it, perf_counter ns; 0 where unknown."""
    asked: tuple[int, ...] = ()
    """Numbers of the batches that no worker has been given yet, the first 64."""
    made: tuple[ProducedBatch, ...] = ()
    """Batches that have come and wait: first those that are in order; of each kind the first 64."""
    pinned: bool = False
    """Batches go through pinned memory."""
    device: str = ""
    """Where batches are moved; "" for nowhere."""
    begun: tuple[int, ...] = ()
    """Numbers of the batches whose way to the device has begun before they were asked for."""
