"""Gauges: the current state of a loader and its workers. Snapshots are computed from gauges and events.

Times are values of `time.perf_counter_ns()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nbloader.events.records import Machine


@dataclass(frozen=True, slots=True)
class WorkerGauge:
    """The current state of one worker."""

    worker: int
    """Worker id, from 0. A replacement worker keeps the id."""
    pid: int
    """Process id; 0 while there is no process."""
    state: str
    """"starting", "idle", "fetching", "collating", "sending", or "dead"."""
    batch: int | None
    """Number of the batch that the worker is processing; None if idle."""
    since: int
    """When the worker entered this state, ns. While it processes a batch, this is when it began the batch."""
    sample: Any
    """Dataset index of the sample that the worker is fetching; None if idle or unknown."""
    queued: int
    """Number of batches in the worker's queue behind the current batch."""
    exit_reason: str
    """Why the previous worker process with this id ended; "" if none has ended."""
    stderr_tail: str
    """The last lines that the worker wrote to standard error, at most 4 kB."""
    cpu_percent: float | None
    """CPU usage since the previous snapshot, in percent of one core; None if unknown."""
    rss: int | None
    """Resident memory, bytes; None if unknown."""
    held: tuple[int, ...] = ()
    """Numbers of the batches that were dispatched to the worker, the current batch first; at most eight."""
    left: bool = False
    """Whether the iterator that requested the current batch has ended, so that the batch will be discarded."""
    private: int | None = None
    """Memory that is not shared with other processes, bytes; None if unknown. Measured at irregular intervals."""
    shared: int | None = None
    """Resident memory shared with other processes (dataset, segments, libraries), bytes; None if unknown."""
    made: int = 0
    """Number of batches produced by workers with this id. Restarts at 0 if the id is removed and added again."""
    core_wait: float | None = None
    """Share of the worker's runnable time during which it waited for a core, 0 to 1; None if unknown."""
    kind: str = "process"
    """"process", "thread", "ray", or another registered kind of worker."""
    node: str = ""
    """The cluster node on which the worker runs, such as "10.0.0.3 (1602bef7)"; "" if there is none."""
    machine: Machine | None = None
    """The machine on which the worker runs; None for the notebook's machine, which may also be a node."""
    in_process: bool = False
    """Whether the worker is a thread of the notebook's process."""


class FetchProgress(NamedTuple):
    """Progress of a worker with a batch, or with a chunk of a batch, whose samples it fetches one by one."""

    number: int
    """Number of the batch."""
    since: int
    """When the worker began to fetch, ns."""
    fetched: int
    """Number of samples fetched so far."""
    samples: int
    """Total number of samples in the batch or chunk."""


@dataclass(frozen=True, slots=True)
class ProducedBatch:
    """A batch that was received from its worker and not delivered to the consumer yet. Times are in ns."""

    epoch: int
    number: int
    worker: int
    """Worker id; -1 for the notebook's own process."""
    fetch_begin: int
    fetched: int
    collated: int
    received: int
    in_order: int
    """When this batch and every earlier batch had been received; 0 while an earlier batch is missing."""


@dataclass(frozen=True, slots=True)
class CacheGauge:
    """Statistics of the sample cache (`nbloader.cached`), which all loaders and workers share, since its creation."""

    hits: int
    """Number of calls of cached functions whose value was in the cache."""
    misses: int
    """Number of calls that computed the value."""
    evictions: int
    """Number of entries that were evicted from memory in favor of more useful ones."""
    entries: int
    """Number of entries in memory."""
    nbytes: int
    """Memory used by the entries, bytes."""
    limit: int
    """Memory limit of the entries, bytes."""
    disk_hits: int
    """Number of hits whose value was read from disk."""
    saved: float
    """Time that computing the values of all hits would have taken, seconds."""
    directory: str
    """The cache directory on disk; "" if there is none."""


class DeviceGauge(NamedTuple):
    """Memory of a device, as torch counts it for this process, and memory of the host that is pinned for it."""

    name: str
    """Such as "cuda:0"."""
    used: int
    """Memory of tensors, bytes."""
    reserved: int
    """Memory that torch has taken from the device, including what it keeps for later tensors, bytes."""
    total: int
    """Memory of the device, bytes."""
    pinned: int
    """Shared memory that is pinned in place, for all devices and loaders together, bytes."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """The current state of a loader."""

    now: int
    """When the gauges were read, ns."""
    state: str
    """"new" (never iterated), "starting" (workers not ready), "running", "paused", "idle" (between epochs) or
    "closed"."""
    window: int
    """Prefetch window: number of batches that may be requested in advance."""
    in_flight: int
    """Number of batches that were dispatched to workers and not received yet."""
    reordering: int
    """Number of batches that were received and wait for an earlier batch."""
    ready: int
    """Number of batches that are in order and wait for the consumer."""
    waiting_since: int | None
    """When the consumer began to wait in `__next__`, ns; None while it processes a batch."""
    waiting_for: int | None
    """Number of the batch that the consumer waits for; None while it processes a batch."""
    workers: tuple[WorkerGauge, ...]
    iterators: int = 0
    """Number of iterators that have not ended. The queue depths above are summed over all of them; the fields below
    describe the newest."""
    epoch: int = -1
    """Epoch of the newest iterator that has not ended; -1 if there is none."""
    delivered: int = 0
    """Number of batches delivered, including the one that the consumer is processing."""
    at: int | None = None
    """Number of the batch that the consumer is processing; None before the first batch and while the consumer waits."""
    at_since: int = 0
    """When the consumer received that batch, ns; 0 if unknown."""
    asked: tuple[int, ...] = ()
    """Numbers of the batches that were requested and not dispatched yet; at most 64."""
    made: tuple[ProducedBatch, ...] = ()
    """Batches that wait for the consumer, then those that wait for an earlier batch; at most 64 of each."""
    pinned: bool = False
    """Whether batches pass through pinned memory."""
    device: str = ""
    """Device to which batches are uploaded; "" if there is none."""
    begun: tuple[int, ...] = ()
    """Numbers of the batches whose upload was started before the consumer requested them."""
    devices: tuple[DeviceGauge, ...] = ()
    """Memory of the devices to which batches are uploaded; () before the first upload, and if torch does not count."""
    cache: CacheGauge | None = None
    """Statistics of the sample cache; None if no function is cached."""
    fetching: tuple[FetchProgress, ...] = ()
    """Progress of the workers that are fetching, until the first batch is delivered; () afterwards."""
