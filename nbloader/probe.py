"""CPU and memory of worker processes, by psutil: looked at when a picture of the loader is asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

from nbloader.stats import Gauges, WorkerGauge


class ProcessProbe:
    """Remembers the processes between two looks, so that CPU use is measured over the time between them."""

    def __init__(self) -> None:
        self._processes: dict[int, Any] = {}

    def fill(self, gauges: Gauges) -> Gauges:
        """The gauges with CPU and memory of each worker filled in."""
        if not gauges.workers:
            return gauges
        workers = tuple(self._look(worker) for worker in gauges.workers)
        alive = {worker.pid for worker in workers}
        self._processes = {pid: process for pid, process in self._processes.items() if pid in alive}
        return dataclasses.replace(gauges, workers=workers)

    def _look(self, worker: WorkerGauge) -> WorkerGauge:
        if not worker.pid:
            return worker
        import psutil

        try:
            process = self._processes.get(worker.pid)
            if process is None:
                process = self._processes[worker.pid] = psutil.Process(worker.pid)
            with process.oneshot():
                return dataclasses.replace(worker, cpu_percent=process.cpu_percent(None), rss=process.memory_info().rss)
        except psutil.Error:  # it ended meanwhile
            return worker
