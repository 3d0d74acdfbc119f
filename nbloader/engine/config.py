"""The configuration of an engine, which the loader derives from its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from nbloader.workers.api import WorkerKind, WorkerOptions


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How an engine runs its workers. Some values are only initial: they can be changed while the loader runs."""

    num_workers: int
    prefetch_factor: int
    """Batches to request ahead, per worker."""
    prefetch: int | None
    """Batches to request ahead in total, instead of `prefetch_factor`; None if it was not given."""
    adaptive_window: bool
    """Whether the window grows while batches are small and fast."""
    concurrency: int
    """Samples that a worker fetches at a time, across batches; 0 if the dataset is not asynchronous."""
    batch_size: int | None
    """Samples of a batch, if that is known in advance and the dataset is asynchronous."""
    options: WorkerOptions
    """What every worker receives when it starts."""
    kind: WorkerKind
    """Creates the workers."""
    round_robin: bool
    """Whether batch i goes to worker i modulo their number, instead of the least loaded one."""
    in_order: bool
    """False delivers batches as they become ready."""
    timeout: float
    """Seconds that the consumer may wait for one batch; 0 for no limit."""
    on_timeout: str
    """`raise`, or `restart` to replace the worker that holds the batch."""
    max_restarts: int
    """Unexpected worker deaths to tolerate over the life of the loader."""
    idle_timeout: float | None
    """Seconds without a request after which the workers are stopped; None for never."""
