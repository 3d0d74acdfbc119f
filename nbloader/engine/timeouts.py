"""A consumer's wait for a batch: when there is something to say or to do about it, and the words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nbloader.events.failures import shown
from nbloader.events.gauges import WorkerGauge

LATE_NOTICE = 30.0
"""Seconds after which the cell is told what its loop waits for, where there is no `timeout`."""
START_LIMIT = 30.0
"""Seconds that a worker may take to start at least, however short `timeout` is, where late workers are replaced: to
replace this one too would only begin its start anew."""
PAUSED_NOTICE = 5.0
"""Seconds after which a loop that has just begun is told that the loader is paused."""


class Wait:
    """One wait for one batch.

    Args:
        now: perf_counter ns.
        timeout: Seconds that it may last; 0 for no limit.
        first: Whether the loop has had no batch yet.
    """

    def __init__(self, now: int, *, timeout: float, first: bool) -> None:
        self.since = now
        """When it began; a pause does not count as the workers' delay."""
        self.fresh = True
        """Whether the consumer has not slept yet."""
        self._timeout = timeout
        self._first = first
        self._paused_since: int | None = None
        self._told: set[str] = set()

    def look(self, now: int, *, paused: bool) -> tuple[str, float | None]:
        """What is due.

        Args:
            now: perf_counter ns.
            paused: Whether the loader is paused.

        Returns:
            "timeout", "late", "paused", or "" for nothing, and then the seconds until something is, None for never.
        """
        if paused:
            begun = self._paused_since = now if self._paused_since is None else self._paused_since
            self.since = now
            what, limit = "paused", PAUSED_NOTICE if self._first else 0
        else:
            if self._paused_since is not None:
                self.since, self._paused_since = now, None
            begun = self.since
            what, limit = ("timeout", self._timeout) if self._timeout else ("late", LATE_NOTICE)
        if not limit or what in self._told:
            return "", None
        left = limit - (now - begun) / 1e9
        if left > 0:
            return "", left
        if what != "timeout":
            self._told.add(what)
        return what, None


def doing(worker: WorkerGauge, now: int, place: str = "") -> str:
    """What a worker has been at for how long, as a clause."""
    text = f"worker {worker.worker} (pid {worker.pid}) has been {worker.state}"
    if worker.batch is not None:
        text += f" batch {worker.batch}"
    text += f" for {(now - worker.since) / 1e9:.1f} s"
    if worker.sample is not None:
        text += f", at sample {shown(worker.sample)}"
    return f"{text}: {place}" if place else text


def timeout_message(
    timeout: float, number: int, waited: float, workers: Sequence[WorkerGauge], now: int, stack: str
) -> str:
    """What `LoaderTimeoutError` says.

    Args:
        timeout: The limit, seconds.
        number: The batch that did not come.
        waited: For how long, seconds.
        workers: The one that holds the batch first; where none does, one that is starting.
        now: perf_counter ns.
        stack: Where that one stands; "" where it is not known.
    """
    at_work = [doing(worker, now) for worker in workers if worker.batch is not None]
    if not at_work and workers and workers[0].state == "starting":
        said = (
            f"No worker has begun it: {doing(workers[0], now)}. What it imports, a dataset that takes long to rebuild "
            "or worker_init_fn is the usual cause: raise timeout, or move that work out of the worker's start."
        )
    else:
        said = (
            f"{'; '.join(at_work) or 'No worker has begun it'}. A slow sample or a hung call in the dataset is the "
            "usual cause: restart the worker, raise timeout, or let on_timeout='restart' do it."
        )
    return (
        f"DataLoader timed out after {timeout:g} seconds: batch {number} did not come (waited {waited:.1f} s). {said}"
        f"{f' The worker stands at:{chr(10)}{stack.rstrip()}' if stack else ''}"
    )


def still_starting(worker: WorkerGauge, now: int) -> bool:
    """Whether this worker is starting, and has not taken too long for it."""
    return worker.state == "starting" and now - worker.since < START_LIMIT * 1e9


def late_notice(number: int, waited: float, worker: WorkerGauge, now: int, place: str) -> str:
    """The line for the cell whose loop has waited for long.

    Args:
        number: The batch that it waits for.
        waited: For how long, seconds.
        worker: The worker that holds it; one that is starting, or any, where none does.
        now: perf_counter ns.
        place: Where that one stands; "" where it is not known.
    """
    begin = f"nbloader: this loop has waited {waited:.0f} s for batch {number}."
    said = doing(worker, now, place)
    return (
        f"{begin} {said[0].upper()}{said[1:]}. If it hangs, replace it by its button on loader.dashboard() or "
        f"loader.restart_workers({worker.worker}) on another thread: no batch is lost. "
        "timeout= and on_timeout= make the loader see to it.\n"
    )


def restart_notice(timeout: float, number: int, worker: WorkerGauge, now: int, place: str) -> str:
    """The line for the cell whose loader has replaced a worker by itself."""
    said = doing(worker, now, place)
    return (
        f"nbloader: batch {number} did not come within {timeout:g} s, so worker {worker.worker} is replaced, and the "
        f"batch made again. {said[0].upper()}{said[1:]}.\n"
    )


PAUSED = (
    "nbloader: this loop waits because the loader is paused: loader.resume() on another thread, or the button on "
    "loader.dashboard(), lets it go on.\n"
)
