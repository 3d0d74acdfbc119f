"""Timeouts and notices for a consumer that waits for a batch. The caller passes the time."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from nbloader.engine.fork_watch import ForkWatch
from nbloader.engine.leaving import START_LIMIT
from nbloader.events.failures import abbreviated
from nbloader.events.gauges import WorkerGauge

DELAY_NOTICE = 30.0
"""Seconds after which a notice in the cell says what the loop is waiting for, if there is no `timeout`."""
PAUSE_NOTICE = 5.0
"""Seconds after which a notice in the cell says that the loader is paused, if the loop waits for its first batch."""

PAUSE_NOTICE_TEXT = (
    "nbloader: this loop waits because the loader is paused: call loader.resume() on another thread, or use the button "
    "on loader.dashboard().\n"
)


class Due(enum.Enum):
    """An action that is due when a wait exceeds a limit."""

    TIMEOUT = "timeout"
    DELAY_NOTICE = "delay notice"
    PAUSE_NOTICE = "pause notice"


class Check(NamedTuple):
    """The action that is due in a wait, if any."""

    due: Due | None
    left: float | None
    """Seconds until an action is due; None if it is due now, or if none will be due."""


class WaitTimer:
    """Times the wait for one batch.

    Args:
        now: perf_counter ns.
        timeout: Maximum duration of the wait, seconds; 0 for no limit.
        first: Whether the loop is waiting for its first batch.
    """

    def __init__(self, now: int, *, timeout: float, first: bool) -> None:
        self.since = now
        """When the wait began, perf_counter ns. A pause restarts it, so that workers are not blamed for the pause."""
        self.forks = ForkWatch()
        """Looks at forked workers during this wait."""
        self._timeout = timeout
        self._first = first
        self._paused_since: int | None = None
        self._ready = True
        self._noticed: set[Due] = set()

    def note_ready(self, now: int, *, ready: bool) -> bool:
        """Restart the wait when workers have become ready, so that they are not blamed for the time of their start.

        Args:
            now: perf_counter ns.
            ready: Whether a worker is ready.

        Returns:
            Whether the wait was restarted.
        """
        restarts = ready and not self._ready
        self._ready = ready
        if restarts:
            self.since = now
        return restarts

    def check(self, now: int, *, paused: bool) -> Check:
        """Return which action is due. A notice is due once; a timeout is due each time the limit is exceeded.

        Args:
            now: perf_counter ns.
            paused: Whether the loader is paused.
        """
        if paused:
            begun = self._paused_since = now if self._paused_since is None else self._paused_since
            self.since = now
            due, limit = Due.PAUSE_NOTICE, PAUSE_NOTICE if self._first else 0
        else:
            if self._paused_since is not None:
                self.since, self._paused_since = now, None
            begun = self.since
            due, limit = (Due.TIMEOUT, self._timeout) if self._timeout else (Due.DELAY_NOTICE, DELAY_NOTICE)
        if not limit or due in self._noticed:
            return Check(None, None)
        left = limit - (now - begun) / 1e9
        if left > 0:
            return Check(None, left)
        if due is not Due.TIMEOUT:
            self._noticed.add(due)
        return Check(due, None)


def activity(worker: WorkerGauge, now: int, place: str = "") -> str:
    """Describe what a worker is doing and for how long, as a clause."""
    text = f"worker {worker.worker} (pid {worker.pid}) has been {worker.state}"
    if worker.batch is not None:
        text += f" batch {worker.batch}"
    text += f" for {(now - worker.since) / 1e9:.1f} s"
    if worker.sample is not None:
        text += f", at sample {abbreviated(worker.sample)}"
    return f"{text}: {place}" if place else text


def timeout_message(
    timeout: float,
    number: int,
    waited: float,
    suspect: WorkerGauge,
    workers: Sequence[WorkerGauge],
    now: int,
    stack: str,
    advice: str = "",
) -> str:
    """Return the message of `LoaderTimeoutError`.

    Args:
        timeout: The limit, seconds.
        number: Number of the batch that did not arrive.
        waited: How long the consumer has waited, seconds.
        suspect: The worker that delays the batch; if there is none, a starting worker, or else any worker.
        workers: All workers.
        now: perf_counter ns.
        stack: The stack of the suspect; "" if unknown.
        advice: What has happened and what to do, if that is known (`LostLock.advice`).
    """
    processing = [activity(worker, now) for worker in workers if worker.batch is not None]
    if not processing and suspect.state == "starting":
        said = (
            f"No worker has begun it: {activity(suspect, now)}. The usual causes are slow imports, a dataset that is "
            "slow to rebuild, and worker_init_fn. Increase timeout, or move that work out of the worker's start."
        )
    else:
        said = f"{'; '.join(processing) or 'No worker has begun it'}. " + (
            advice
            or "The usual cause is a slow sample, or a call in the dataset that hangs. Restart the worker "
            f"with loader.restart_workers([{suspect.worker}]), increase timeout, or set on_timeout='restart'."
        )
    return (
        f"DataLoader timed out after {timeout:g} seconds: batch {number} did not arrive (waited {waited:.1f} s). {said}"
        f"{f' The stack of the worker:{chr(10)}{stack.rstrip()}' if stack else ''}"
    )


def still_starting(worker: WorkerGauge, now: int) -> bool:
    """Return whether a worker is starting and has taken less than `START_LIMIT`."""
    return worker.state == "starting" and now - worker.since < START_LIMIT * 1e9


def delay_notice(number: int, waited: float, worker: WorkerGauge, now: int, place: str, advice: str = "") -> str:
    """Return the notice for a cell whose loop has waited for a long time.

    Args:
        number: Number of the batch that the loop is waiting for.
        waited: How long the loop has waited, seconds.
        worker: The worker that delays the batch; if there is none, a starting worker, or else any worker.
        now: perf_counter ns.
        place: The innermost line of the worker's stack; "" if unknown.
        advice: See `timeout_message`.
    """
    begin = f"nbloader: this loop has waited {waited:.0f} s for batch {number}."
    said = activity(worker, now, place)
    advice = advice or (
        "If it hangs, restart it with its button on loader.dashboard(), or call "
        f"loader.restart_workers({worker.worker}) on another thread. No batch is lost. "
        "With timeout= and on_timeout='restart', the loader does so by itself."
    )
    return f"{begin} {said[0].upper()}{said[1:]}. {advice}\n"


def restart_notice(timeout: float, number: int, worker: WorkerGauge, now: int, place: str) -> str:
    """Return the notice for a cell whose loader has restarted a worker because of `on_timeout`."""
    said = activity(worker, now, place)
    return (
        f"nbloader: batch {number} did not arrive within {timeout:g} s, so nbloader is restarting worker "
        f"{worker.worker} and will produce the batch again. {said[0].upper()}{said[1:]}.\n"
    )
