"""Gauges: the present state of a loader and its workers, from which snapshots are made together with the events.

Times are perf_counter ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nbloader.events.records import Machine


@dataclass(frozen=True, slots=True)
class WorkerGauge:
    """The present state of one worker."""

    worker: int
    """Worker id, from 0. A replacement keeps the id."""
    pid: int
    """Process id; 0 while there is no process."""
    state: str
    """"starting", "idle", "fetching", "collating", "sending", or "dead"."""
    batch: int | None
    """Number of the batch that it is processing; None when idle."""
    since: int
    """When it entered this state (for a batch: when it began to process it), ns."""
    sample: Any
    """Dataset index of the sample that it is fetching; None when idle or unknown."""
    queued: int
    """Number of batches in its queue behind the current one."""
    exit_reason: str
    """Why the previous process with this id ended; "" if none has."""
    stderr_tail: str
    """The last lines that it wrote to standard error, at most 4 kB."""
    cpu_percent: float | None
    """CPU use since the previous snapshot; 100 is one core. None where unknown."""
    rss: int | None
    """Resident memory, bytes; None where unknown."""
    held: tuple[int, ...] = ()
    """Numbers of the batches that were dispatched to it, the current one first; at most eight."""
    left: bool = False
    """Whether the iterator of its current batch has ended: the batch will be discarded."""
    private: int | None = None
    """Memory that no other process shares, bytes; None where unknown. Measured now and then."""
    shared: int | None = None
    """Resident memory shared with other processes (dataset, segments, libraries), bytes; None where unknown."""
    made: int = 0
    """Batches produced by this worker id; counted from 0 again if the id was removed and added again."""
    core_wait: float | None = None
    """Share of the time that it could run in which it had no core, 0 to 1; None where unknown."""
    kind: str = "process"
    """"process", "thread", "ray", or another registered kind of worker."""
    node: str = ""
    """The node of a cluster that it runs on, such as "10.0.0.3 (1602bef7)"; "" for none."""
    machine: Machine | None = None
    """The machine that it runs on; None for that of the notebook, which may be a node, too."""


class FetchProgress(NamedTuple):
    """How far a worker has come with a batch, or with a chunk of one, whose samples it fetches one by one."""

    number: int
    """Number of the batch."""
    since: int
    """When it began to fetch, ns."""
    fetched: int
    """Samples that it has fetched."""
    samples: int
    """Samples that it will have fetched at the end."""


@dataclass(frozen=True, slots=True)
class ProducedBatch:
    """A batch that was received from its worker and not delivered to the consumer. Times in ns."""

    run: int
    """Number of the iterator."""
    number: int
    worker: int
    """Worker id; -1 for the notebook's own process."""
    fetch_begin: int
    fetched: int
    collated: int
    received: int
    in_order: int
    """When every earlier batch had been received too; 0 while one has not."""


@dataclass(frozen=True, slots=True)
class CacheGauge:
    """The cache of samples (`nbloader.cached`), which all loaders and workers share, since it was created."""

    hits: int
    """Calls of cached functions whose value was there."""
    misses: int
    """Calls that computed it."""
    evictions: int
    """Entries in memory that were dropped for more useful ones."""
    entries: int
    """Entries in memory."""
    nbytes: int
    """Memory that they take, bytes."""
    limit: int
    """Memory that they may take, bytes."""
    disk_hits: int
    """Hits whose value was read from the disk."""
    saved: float
    """Time that the hits would have taken to compute, seconds."""
    directory: str
    """The folder on disk; "" for none."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """The present state of a loader."""

    now: int
    """When the gauges were read, ns."""
    state: str
    """"new" (never iterated), "starting" (workers not ready), "running", "paused", "idle" (between epochs) or
    "closed"."""
    window: int
    """Prefetch window: batches that may be requested ahead."""
    in_flight: int
    """Batches dispatched to workers and not received."""
    reordering: int
    """Batches received that wait for an earlier one."""
    ready: int
    """Batches in order that wait for the consumer."""
    waiting_since: int | None
    """When the consumer began to wait in `__next__`, ns; None while it processes a batch."""
    waiting_for: int | None
    """Number of the batch that the consumer waits for; None while it processes one."""
    workers: tuple[WorkerGauge, ...]
    iterators: int = 0
    """Iterators that have not ended. The queue depths above are over all of them, the fields below of the newest."""
    run: int = -1
    """Number of the newest iterator that has not ended; -1 for none."""
    delivered: int = 0
    """Batches delivered, including the one that the consumer is processing."""
    at: int | None = None
    """Number of the batch that the consumer is processing; None before the first and while it waits."""
    at_since: int = 0
    """When the consumer received it, ns; 0 where unknown."""
    asked: tuple[int, ...] = ()
    """Numbers of the batches that were requested and not dispatched yet; at most 64."""
    made: tuple[ProducedBatch, ...] = ()
    """Batches that wait for the consumer or for an earlier one: first those in order; at most 64 of each."""
    pinned: bool = False
    """Whether batches go through pinned memory."""
    device: str = ""
    """Device to which batches are uploaded; "" for none."""
    begun: tuple[int, ...] = ()
    """Numbers of the batches whose upload was started before they were asked for."""
    cache: CacheGauge | None = None
    """The cache of samples; None if no function is cached."""
    fetching: tuple[FetchProgress, ...] = ()
    """What is being fetched, until the first batch is delivered; () afterwards."""
