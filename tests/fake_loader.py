"""A scripted loader, for testing the dashboard without workers, data or randomness.

It implements what the dashboard uses (`LoaderControl`), and can be iterated. Its workers produce batches at a constant
rate; worker 1 hangs in the batch `hang_at` until it is restarted.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nbloader.events import (
    EpochEnded,
    EpochStarted,
    EventBus,
    LoaderClosed,
    LoaderPaused,
    LoaderResumed,
    WorkerRestarted,
    WorkersResized,
)
from nbloader.metrics.hot_lines import HotLines
from nbloader.metrics.snapshot import (
    STAGES,
    Outlook,
    Point,
    SlowSample,
    Snapshot,
    StageStats,
    Suggestion,
    TuningGauge,
    WorkerStats,
)
from nbloader.remedies.results import Remedies

RESTART = Suggestion("Restart worker 1", "loader.restart_workers([1])", restart=(1,))
PREDICTED = Outlook(
    "6 workers: 1.9x (1.8 to 2.1); a larger window: no gain",
    (Suggestion("Use 6 workers", "loader.num_workers = 6", num_workers=6),),
)


class FakeTrial:
    """A setting that was chosen, and what was measured."""

    def __init__(self, loader: FakeLoader, before: int, workers: int) -> None:
        self._loader, self._before, self._workers = loader, before, workers
        self.undone = False
        loader.num_workers = workers

    @property
    def gauge(self) -> TuningGauge:
        text = f"num_workers={self._workers} is 1.87 times as fast as before (19.8 to 37.1 batches/s)."
        return TuningGauge(False, not self.undone, text, chosen=True)

    def stop(self) -> None:
        pass

    def undo(self) -> None:
        self._loader.num_workers = self._before
        self.undone = True


class FakeLoader:
    """Scripted loader.

    Args:
        batches: Batches in an epoch.
        workers: Workers shown.
        pace: Seconds for which the consumer waits for each batch.
        hang_at: Batch at which worker 1 hangs; None for never.
    """

    def __init__(self, batches: int = 40, workers: int = 3, pace: float = 0.05, hang_at: int | None = None) -> None:
        self.events = EventBus()
        self.batches, self.pace, self.hang_at = batches, pace, hang_at
        self.done = 0
        self.state = "new"
        self.epoch = -1
        self.commands: list[str] = []
        self.profiling = False
        self.hot = HotLines()
        self.found: list[Any] = []
        self.searching = threading.Event()
        """What `remedies()` waits for after its first report."""
        self.restarts = [0] * workers
        self.tuning: FakeTrial | None = None
        self._steps = 0
        self._prefetch_factor = 2
        self._hung_since: float | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._change = threading.Condition()
        self._zero = time.perf_counter()
        self._last_point = 0

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        self.done = 0
        self.state = "running"
        self.events.publish(EpochStarted(time.perf_counter_ns(), self.epoch, self.batches, len(self.restarts)))
        reason = "abandoned"
        try:
            for batch in range(self.batches):
                self._wait_for(batch)
                yield batch
                self.done += 1
            reason = "exhausted"
        finally:
            self.state = "idle"
            self.events.publish(EpochEnded(time.perf_counter_ns(), self.epoch, self.done, reason))

    def _wait_for(self, batch: int) -> None:
        ready = time.perf_counter() + self.pace
        with self._change:
            if batch == self.hang_at and self.restarts[1:2] == [0]:
                self._hung_since = time.perf_counter()
            while self._hung_since or self._held_back() or time.perf_counter() < ready:
                for callback in self._callbacks:
                    callback()
                self._change.wait(min(0.1, self.pace))
            self._steps -= self.state == "paused"

    def _held_back(self) -> bool:
        return self.state == "paused" and not self._steps

    def stats(self) -> Snapshot:
        now = time.perf_counter() - self._zero
        hung = self._hung_since and time.perf_counter() - self._hung_since
        rate = 0.0 if hung else 1 / self.pace
        workers = tuple(
            WorkerStats(
                worker=i,
                pid=4000 + i + 100 * n,
                state="fetching" if self.state == "running" else "idle",
                batch=self.done + i if self.state == "running" else None,
                batch_age=(hung if hung and i == 1 else 0.04) if self.state == "running" else None,
                sample=32 * (self.done + i) if self.state == "running" else None,
                queued=2 if self.state == "running" else 0,
                batches=self.done // len(self.restarts),
                batches_per_second=rate / len(self.restarts),
                restarts=n,
                errors=0,
                cpu_percent=3.0 if hung else 87.0 - i,
                rss=212_000_000 + i * 1_000_000,
                exit_reason="restarted by request" if n else "",
                stderr_tail="",
                stuck=bool(hung and hung > 0.5 and i == 1),
            )
            for i, n in enumerate(self.restarts)
        )
        return Snapshot(
            state=self.state,
            epoch=self.epoch,
            batches_done=self.done,
            batches_total=self.batches,
            samples_done=32 * self.done,
            elapsed=now if self.state == "running" else 12.0,
            eta=(self.batches - self.done) * self.pace,
            batches_per_second=rate,
            samples_per_second=32 * rate,
            mb_per_second=19.3 * rate,
            wait_share=1.0 if hung else 0.42,
            wait_share_epoch=0.45,
            waiting=hung or None,
            waiting_for=self.done if hung else None,
            window=self._prefetch_factor * len(self.restarts),
            in_flight=4,
            reordering=2 if hung else 1,
            ready=0 if hung else 1,
            stages=tuple(StageStats(name, 5.0 + i, 4.2 * (i + 1), 9.0, 14.0, 20.0) for i, name in enumerate(STAGES)),
            cpu_share=0.91,
            workers=workers,
            slowest=(SlowSample("<script>alert(1)</script>", 1.3, 3, 0, 1),),
            errors=0,
            deaths=0,
            restarts=sum(self.restarts),
            verdict=(
                f"Worker 1 has been at batch {self.done} for {hung:.0f} s, and the loop waits for it. "
                "Restart it: loader.restart_workers([1])."
                if hung
                else "Your loop waits 42% of its time: the workers compute, so more of them would help."
            ),
            outlook=PREDICTED._replace(suggestions=(RESTART, *PREDICTED.suggestions)) if hung else PREDICTED,
            tuning=None if self.tuning is None else self.tuning.gauge,
        )

    def points(self) -> list[Point]:
        if self.state in ("running", "paused"):
            self._last_point = int((time.perf_counter() - self._zero) / 0.25)
        n = self._last_point
        return [
            Point(
                time=i / 4,
                in_flight=4 + math.sin(i / 3),
                reordering=1 + math.cos(i / 5),
                ready=1.0 + (i % 7 == 0),
                batches_per_second=18 + 3 * math.sin(i / 9),
                wait_share=0.42 + 0.2 * math.sin(i / 6),
                stages=tuple(2.0 + k + math.sin(i / 4 + k) for k in range(len(STAGES))),
            )
            for i in range(n)
        ]

    def restart_workers(self, ids: Iterable[int] | None = None) -> None:
        with self._change:
            for i in range(len(self.restarts)) if ids is None else ids:
                self.commands.append(f"restart {i}")
                self.restarts[i] += 1
                if i == 1:
                    self._hung_since = None
                self.events.publish(WorkerRestarted(time.perf_counter_ns(), i, "request"))
            self._change.notify_all()

    def tune(self, *, num_workers: int | None = None, prefetch_factor: int | None = None) -> FakeTrial:
        self.commands.append(f"tune {num_workers} {prefetch_factor}")
        self.tuning = FakeTrial(self, self.num_workers, num_workers or self.num_workers)
        return self.tuning

    def profile_lines(self, on: bool = True) -> None:
        self.commands.append(f"profile {on}")
        self.profiling = on

    def remedies(self, *, report: Callable[[str, int, int], object] | None = None) -> Any:
        if report is not None:
            report("json", 1, 4)
        self.searching.wait()
        if not self.found:
            raise OSError("no <b>disk</b>")
        return Remedies(self.found)

    def hot_lines(self) -> HotLines:
        return dataclasses.replace(self.hot, profiling=self.profiling)

    def pause(self) -> None:
        with self._change:
            self.commands.append("pause")
            self.state = "paused"
        self.events.publish(LoaderPaused(time.perf_counter_ns()))

    def step(self) -> None:
        with self._change:
            self.commands.append("step")
            self._steps += 1
            pausing, self.state = self.state != "paused", "paused"
            self._change.notify_all()
        if pausing:
            self.events.publish(LoaderPaused(time.perf_counter_ns()))

    @property
    def num_workers(self) -> int:
        return len(self.restarts)

    @num_workers.setter
    def num_workers(self, n: int) -> None:
        with self._change:
            self.commands.append(f"resize {n}")
            before, self.restarts = len(self.restarts), [*self.restarts, *[0] * n][:n]
            if n < 2:
                self._hung_since = None
            self._change.notify_all()
        self.events.publish(WorkersResized(time.perf_counter_ns(), before, n))

    @property
    def prefetch_factor(self) -> int | None:
        return self._prefetch_factor

    @prefetch_factor.setter
    def prefetch_factor(self, n: int) -> None:
        self.commands.append(f"prefetch {n}")
        self._prefetch_factor = n

    def stack(self, worker: int) -> str:
        self.commands.append(f"stack {worker}")
        return (
            "Current thread 0x00007f0000000000 (most recent call first):\n"
            f'  File "/home/me/data.py", line {12 + worker} in __getitem__\n'
            '  File "<string>", line 1 in <module>\n'
        )

    def resume(self) -> None:
        with self._change:
            self.commands.append("resume")
            self.state = "running"
            self._steps = 0
            self._change.notify_all()
        self.events.publish(LoaderResumed(time.perf_counter_ns()))

    def close(self) -> None:
        self.state = "closed"
        self.events.publish(LoaderClosed(time.perf_counter_ns()))

    def on_wait(self, callback: Callable[[], object]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)
