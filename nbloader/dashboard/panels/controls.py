"""Buttons and sliders: pause, step, restart, save a trace, change the number of workers and the prefetch factor."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbloader.dashboard.panels.base import Frame, Panel, Reply
from nbloader.report.trace import Trace

if TYPE_CHECKING:
    from nbloader.metrics.control import LoaderControl


class Controls(Panel):
    """Buttons and sliders. Clicks are sent as commands (`dashboard/commands.py`), except for the trace."""

    name = "controls"

    def payload(self, frame: Frame) -> dict[str, Any]:
        """Return the state of the buttons. A worker's `incarnation` changes when it is restarted."""
        tuning = frame.snapshot.tuning
        return {
            "state": frame.snapshot.state,
            "incarnations": [incarnation(w.pid, w.restarts) for w in frame.snapshot.workers],
            "workers": frame.num_workers,
            "maxWorkers": max(frame.snapshot.most_workers, frame.num_workers),
            "prefetch": _ahead(frame),
            "tuning": None if tuning is None else tuning._asdict(),
        }

    def respond(self, request: Mapping[str, Any], loader: LoaderControl) -> Reply | None:
        """Return the trace of the recent batches as a file."""
        if request.get("name") != "trace":
            return None
        data = gzip.compress(Trace(loader.events.recent()).to_json().encode(), 6)
        return Reply({"file": f"nbloader-epoch-{max(0, loader.stats().epoch)}.json"}, [data])


def _ahead(frame: Frame) -> int | None:
    """Batches requested ahead, per worker; None without workers.

    This is the window that the loader has, which may follow from what batches take, or from `prefetch`.
    """
    if frame.prefetch_factor is None or not frame.num_workers or not frame.snapshot.window:
        return frame.prefetch_factor
    return -(-frame.snapshot.window // frame.num_workers)


def incarnation(pid: int, restarts: int) -> str:
    """Identify the process or thread behind a worker id."""
    return f"{pid}/{restarts}"
