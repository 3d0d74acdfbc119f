"""Export the events of a loader as a trace file for Perfetto and as a table. The only I/O is writing the file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbloader._util.format import duration, plural
from nbloader.events import BatchRecord, Event
from nbloader.events.pauses import Pauses
from nbloader.metrics.snapshot import STAGES
from nbloader.metrics.stage_times import durations
from nbloader.report.chrome_trace import ChromeTrace, begin_of

if TYPE_CHECKING:
    import pandas as pd

_STAMPS = ("requested", "dispatched", "fetch_begin", "fetched", "collated", "received", "in_order", "delivered",
           "returned")  # fmt: skip


class Trace:
    """The events of a loader up to now; `loader.trace` returns one.

    Args:
        events: Events, oldest first. A loader keeps the last 10,000.
        pauses: When the loader was paused. By default, this is taken from the events.
    """

    def __init__(self, events: Iterable[Event], pauses: Pauses | None = None) -> None:
        self.events = tuple(events)
        """Batch records and lifecycle events, oldest first."""
        self.pauses = Pauses.of(self.events) if pauses is None else pauses
        """When the loader was paused. This time does not count as time that the loop waited."""
        self.batches = tuple(e for e in self.events if isinstance(e, BatchRecord))
        """Only the batch records."""
        begins = [begin_of(event) for event in self.events]
        self.origin = min(begins, default=0)
        """Origin of the times in the trace, perf_counter ns."""

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.batches)

    def __repr__(self) -> str:
        """One line."""
        ends = [r.returned or r.delivered for r in self.batches]
        span = f" over {duration((max(ends) - self.origin) / 1e9)}" if ends else ""
        return f"<Trace of {plural(len(self.batches), 'batch')}{span}>"

    def epoch(self, number: int | None = None) -> Trace:
        """Select the events of one epoch.

        Args:
            number: Number of the epoch (`BatchRecord.epoch`); None for the latest one that delivered a batch.
        """
        if number is None:
            number = max((r.epoch for r in self.batches), default=-1)
        own = [r for r in self.batches if r.epoch == number]
        begin = min((begin_of(r) for r in own), default=0)
        end = max((r.returned or r.delivered for r in own), default=0)
        events = (
            e for e in self.events if (e.epoch == number if isinstance(e, BatchRecord) else begin <= e.time <= end + 1)
        )
        return Trace(events, self.pauses)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trace for Perfetto (ui.perfetto.dev, "Open trace file") or chrome://tracing.

        Args:
            path: File to write, such as "epoch.json". It takes about 1.5 kB per batch.

        Returns:
            The path.

        Raises:
            OSError: The file cannot be written.
        """
        target = Path(path)
        target.write_text(self.to_json(), "utf-8")
        return target

    def to_json(self) -> str:
        """Return the trace as JSON text."""
        entries = ChromeTrace(self.events, self.pauses, self.origin).events()
        trace = {"traceEvents": list(entries), "displayTimeUnit": "ms"}
        return json.dumps(trace, separators=(",", ":"), allow_nan=False)

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with one row per batch, with its worker, timestamps and stage durations.

        Timestamps are in seconds from the start of the trace, durations in milliseconds.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("to_pandas() needs pandas: pip install pandas", name="pandas") from error
        return pd.DataFrame([self._row(r) for r in self.batches], columns=[*_COLUMNS])

    def _row(self, r: BatchRecord) -> dict[str, Any]:
        """A row of the table, by the names of its columns."""
        stamps = {name: getattr(r, name) for name in _STAMPS}
        return {
            "epoch": r.epoch,
            "batch": r.index,
            "worker": r.worker,
            "pid": r.pid,
            "attempt": r.attempt,
            "samples": r.samples,
            "nbytes": r.nbytes,
            "transport": r.transport,
            **{name: (ns - self.origin) / 1e9 if ns else None for name, ns in stamps.items()},
            **{f"{stage}_ms": ns / 1e6 for stage, ns in zip(STAGES, durations(r), strict=True)},
            "wait_ms": r.waited / 1e6,
            "fetch_cpu_ms": _ms(r.fetch_cpu),
            "collate_cpu_ms": _ms(r.collate_cpu),
            "in_flight": r.in_flight,
            "reordering": r.reordering,
            "ready": r.ready,
            "slowest_index": r.slowest_index,
            "slowest_ms": r.slowest_ns / 1e6,
            "indices": r.indices,
            "lost_sample": r.lost_sample,
        }


_COLUMNS = (
    "epoch", "batch", "worker", "pid", "attempt", "samples", "nbytes", "transport", *_STAMPS,
    *(f"{stage}_ms" for stage in STAGES), "wait_ms", "fetch_cpu_ms", "collate_cpu_ms", "in_flight", "reordering",
    "ready", "slowest_index", "slowest_ms", "indices",
    "lost_sample",
)  # fmt: skip


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e6
