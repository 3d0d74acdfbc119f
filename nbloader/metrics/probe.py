"""CPU and memory of workers, looked at when a picture of the loader is asked for."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from nbloader.events.gauges import Gauges, WorkerGauge

AT_ONCE = 4
"""Workers that are looked at for one picture, those first that were not for the longest time: each takes 0.1 ms."""
MEMORY_SHARE = 0.003
"""Share of a core for looking up shared and private memory: the kernel walks all pages of a process for it, 8 ms with
torch in it."""

IDLE = 0.05
"""Share of its time below which a process that runs, or could, has nothing to do."""


class _Seen(NamedTuple):
    at: float
    cpu_percent: float
    rss: int
    ran: tuple[int, int] | None
    """Time that it has had a core, and that it could run and had none, ns; None where the system does not tell."""
    core_wait: float | None
    """The second as a share of both, between two looks, the last ones between which it had something to do."""


class ProcessProbe:
    """Remembers the processes between two looks, so that CPU use is measured over the time between them."""

    def __init__(self) -> None:
        self._processes: dict[int, Any] = {}
        self._seen: dict[int, _Seen] = {}
        self._memory: dict[int, tuple[float, int, int]] = {}  # pid -> when, private, shared
        self._memory_due = 0.0

    def fill(self, gauges: Gauges) -> Gauges:
        """The gauges with CPU and memory of each worker filled in. Workers that are threads have neither."""
        pids = {w.pid for w in gauges.workers if w.pid} - {os.getpid()}
        if not pids:
            return gauges
        for table in (self._processes, self._seen, self._memory):
            for pid in table.keys() - pids:
                del table[pid]
        for pid in sorted(pids, key=lambda pid: self._seen[pid].at if pid in self._seen else 0.0)[:AT_ONCE]:
            self._look(pid)
        self._look_up_memory(w.pid for w in gauges.workers if w.pid in pids and w.state != "starting")
        workers = []
        for worker in gauges.workers:
            seen, memory = self._seen.get(worker.pid), self._memory.get(worker.pid, (0.0, None, None))
            if seen is not None:
                worker = _with_usage(worker, seen, memory)  # noqa: PLW2901
            workers.append(worker)
        return dataclasses.replace(gauges, workers=tuple(workers))

    def _look(self, pid: int) -> None:
        import psutil

        try:
            process = self._processes.get(pid)
            if process is None:
                process = self._processes[pid] = psutil.Process(pid)
            with process.oneshot():
                used, rss = process.cpu_percent(None), process.memory_info().rss
            before, now, ran = self._seen.get(pid), time.monotonic(), ran_of(pid)
            share = None if before is None else before.core_wait
            if before is not None and before.ran is not None and ran is not None:
                had, lacked = (b - a for a, b in zip(before.ran, ran, strict=True))
                if had + lacked > IDLE * 1e9 * (now - before.at):
                    share = lacked / (had + lacked)
            self._seen[pid] = _Seen(now, used, rss, ran, share)
        except psutil.Error:  # it ended meanwhile
            self._seen.pop(pid, None)

    def _look_up_memory(self, pids: Iterable[int]) -> None:
        """Of the one that was looked up longest ago, if the last time is long enough ago for its cost."""
        began = time.monotonic()
        if began < self._memory_due:
            return
        pid = min(pids, key=lambda pid: self._memory.get(pid, (0.0,))[0], default=None)
        if pid is None:
            return
        found = memory_of(pid)
        now = time.monotonic()
        if found is not None:
            self._memory[pid] = (now, *found)
        self._memory_due = now + (now - began) / MEMORY_SHARE


def _with_usage(w: WorkerGauge, seen: _Seen, memory: tuple[float, int | None, int | None]) -> WorkerGauge:
    """A copy; `dataclasses.replace` takes three times as long, for each worker of each picture."""
    return WorkerGauge(
        w.worker, w.pid, w.state, w.batch, w.since, w.sample, w.queued, w.exit_reason, w.stderr_tail,
        seen.cpu_percent, seen.rss, w.held, w.left, memory[1], memory[2], w.made, seen.core_wait,
    )  # fmt: skip


def ran_of(pid: int) -> tuple[int, int] | None:
    """How long the main thread of a process has had a core, and could run and had none, ns; None if not told."""
    try:
        had, lacked, _ = Path(f"/proc/{pid}/schedstat").read_text("ascii").split()
        return int(had), int(lacked)
    except (OSError, ValueError):
        return None


def memory_of(pid: int) -> tuple[int, int] | None:
    """Private and shared resident memory of a process, bytes; None where the system does not tell.

    Linux sums both up in one file; the shared part is what several processes map (a segment, the dataset, libraries).
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
        kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
        return private * 1024, (kilobytes["Rss"] - private) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None
