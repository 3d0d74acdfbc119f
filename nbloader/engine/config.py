"""The configuration of an engine, which the loader derives from its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from nbloader.workers.api import WorkerKind, WorkerOptions


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The configuration of an engine. Some values are only initial: they can be changed while the loader runs."""

    num_workers: int
    prefetch_factor: int
    """Number of batches to request ahead per worker."""
    prefetch: int | None
    """Number of batches to request ahead in total. It overrides `prefetch_factor` unless it is None."""
    adaptive_window: bool
    """Whether the window grows while batches are small and fast."""
    strict_window: bool
    """Whether the window is never exceeded, not even while one batch blocks others."""
    concurrency: int
    """Number of samples that a worker fetches concurrently, across batches; 0 if the dataset is not asynchronous."""
    batch_size: int | None
    """Number of samples per batch if this is known in advance and the dataset is asynchronous; None otherwise."""
    options: WorkerOptions
    """The configuration that every worker receives when it starts."""
    kind: WorkerKind
    """The kind of worker, which creates the worker pool."""
    round_robin: bool
    """Whether batch i always goes to worker i modulo the number of workers, even if another worker is idle."""
    in_order: bool
    """Whether batches are delivered in order. If false, they are delivered as they become ready."""
    timeout: float
    """Seconds that the consumer may wait for one batch; 0 for no limit."""
    on_timeout: str
    """`raise`, or `restart` to replace the worker that holds the batch."""
    max_restarts: int
    """Number of unexpected worker deaths that are tolerated over the lifetime of the loader."""
    persistent: bool
    """Whether the workers stay when an epoch ends. If false, they end with it, as in torch."""
    idle_timeout: float | None
    """Seconds without a request after which the workers are stopped; None for never."""
