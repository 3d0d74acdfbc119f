"""What a loader asks of its engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbloader.workers.api import PoolKind


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a loader with workers shall go about it. Some of it can be changed while it runs (commands.py)."""

    num_workers: int
    prefetch_factor: int
    """Batches asked for ahead, per worker."""
    prefetch: int | None
    """Batches asked for ahead in total, which counts instead; None where it was not given."""
    adapts: bool
    """Whether small and quick batches may be asked for further ahead."""
    options: dict[str, Any]
    """What every worker is told (fields of `start.Start`)."""
    kind: PoolKind
    """Processes or threads."""
    in_turn: bool
    """Whether batch i is made by worker i modulo their number, and not by the least loaded."""
    in_order: bool
    """False delivers batches as they come."""
    timeout: float
    """Seconds that a consumer may wait for one batch; 0 for no limit."""
    on_timeout: str
    """`raise`, or `restart` to replace the worker that holds it."""
    max_restarts: int
    """Workers that may die unasked, over the life of the loader."""
    idle: float | None
    """Seconds without a request after which workers are given up; None for never."""
