"""The configuration of an engine, which the loader computes from its attributes."""

from __future__ import annotations

from dataclasses import dataclass, field

from nbloader.workers.spec import WorkerSpec


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The configuration of an engine.

    Fields that are not compared are initial values, which can be changed while the engine runs. If two configurations
    differ, each of them needs an engine of its own.
    """

    num_workers: int = field(compare=False)
    """Number of workers. Without workers 1, for the thread that loads ahead or runs an event loop."""
    prefetch_factor: int = field(compare=False)
    """Number of batches to request ahead per worker."""
    prefetch: int | None = field(compare=False)
    """Number of batches to request ahead in total. It overrides `prefetch_factor` unless it is None."""
    adaptive_window: bool = field(compare=False)
    """Whether the window grows while batches are small and fast."""
    strict_window: bool
    """Whether the window is never exceeded, not even while one batch blocks others."""
    has_workers: bool
    """Whether the loader has workers. Without them, the consumer itself loads, or a single thread for it."""
    spec: WorkerSpec
    """What every worker is given when it starts."""
    concurrency: int
    """Number of samples that a worker fetches concurrently, across batches; 0 if the dataset is not asynchronous."""
    batch_size: int | None
    """Number of samples per batch if this is known in advance and the dataset is asynchronous; None otherwise."""
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
