"""What a verdict is made from and what it says; the rules themselves live in `nbloader.diagnose.bottleneck`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from nbloader.metrics.snapshot import Snapshot


class MakeTime(NamedTuple):
    """How long one worker's recent batches took to fetch and collate."""

    batches: int
    """Batches of this worker among the last 200."""
    median_ms: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measurements that a verdict rests on in addition to the snapshot."""

    cores: int
    """CPU cores that this process may use."""
    recent: int
    """Batches of this epoch that the rates rest on."""
    first_batch: float | None
    """Seconds from the start of the epoch to the delivery of its first batch; None before it."""
    ended: str
    """Reason of `EpochEnded` for the newest epoch; "" while it is running."""
    paused_for: float | None
    """Seconds since `pause()`; None when not paused."""
    in_process: bool
    """The most recent batch was produced in the loader's own process (`num_workers=0`)."""
    make_ms: float
    """Median time to fetch and collate a batch, ms."""
    make_ms_by_worker: dict[int, MakeTime]
    """The same for each worker that is alive now."""
    ready_mean: float
    """Mean number of ready batches at the time of a delivery."""
    nbytes_mean: float
    """Mean size of a batch, bytes."""
    pickled: float
    """Share of batches that were transported as a plain pickle, 0 to 1."""
    handover: float = 0.0
    """Share of the waiting time in which the batch was ready and was being pinned or uploaded, 0 to 1."""


class Verdict(NamedTuple):
    """What limits the loop."""

    cause: str
    """One of the causes listed at `Snapshot.cause`."""
    sentence: str
    """One sentence for a person, with the numbers that it rests on."""


Judge: TypeAlias = Callable[[Snapshot, Evidence], Verdict]
"""Finds the verdict for a snapshot that is complete except for `cause` and `verdict`."""
