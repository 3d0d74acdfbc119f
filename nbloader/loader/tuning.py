"""Tries settings of a loader while a loop runs, keeps what is faster, and undoes what is not."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from html import escape
from typing import TYPE_CHECKING

from nbloader._util.format import number, percent, plural
from nbloader._util.system import cores
from nbloader.diagnose.tune import Measurement, Search, Setting, Trial, measure, table
from nbloader.errors import LoaderClosedError
from nbloader.events import (
    BatchRecord,
    DatasetReloaded,
    LoaderPaused,
    LoaderResumed,
    SettingTried,
    WorkerRestarted,
)
from nbloader.loader.config import DEFAULT_PREFETCH_FACTOR
from nbloader.metrics.snapshot import TuningGauge

if TYPE_CHECKING:
    from nbloader.loader.monitor import Monitor
    from nbloader.metrics.control import LoaderControl

log = logging.getLogger("nbloader")

INTERVAL = 0.1
"""Seconds between two looks at the batches that have come."""
PARTS = 15
"""A setting is measured for this part of the time."""
SHORTEST, LONGEST = 0.5, 4.0
"""Limits of that, seconds."""
MIN_BATCHES = 24
"""Batches that a measurement needs."""
PATIENCE = 4
"""Times as long as planned that a measurement may take until it has them."""
FEWEST = 8
"""Batches below which it says nothing."""
WARM_UP = 10.0
"""Seconds for which the measurement waits for new workers."""
DISTURBANCES = (LoaderPaused, LoaderResumed, WorkerRestarted, DatasetReloaded)
"""After these a measurement begins anew."""
RUNNING = frozenset({"starting", "running", "paused"})
"""States of a loader that is iterated."""
CLOSED = "The loader was closed."


class Tuning:
    """A search for better settings, on a thread, while a loop iterates the loader.

    `print` it, or leave it as the last line of a cell, to see what was tried.

    Args:
        loader: The loader. It is not kept alive.
        monitor: Its monitor.
        seconds: Time for the whole search, counted while the loop runs.
        max_workers: Largest number of workers to try; the present one if it must not change; None for 4 per core, at
            least 8.
    """

    def __init__(self, loader: LoaderControl, monitor: Monitor, seconds: float, max_workers: int | None) -> None:
        self._loader = weakref.ref(loader)
        self._monitor = monitor
        self._seconds = seconds
        self._slice = min(LONGEST, max(SHORTEST, seconds / PARTS))
        most = max(8, 4 * cores()) if max_workers is None else max_workers
        self._search = Search(_setting_of(loader), most)
        self._ended = threading.Event()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._undone = False
        self._reason = ""
        self._used = 0.0
        self._last: list[BatchRecord] = []  # the newest record, from which the next gap is counted
        self._expected = self._search.start
        self._subscription = loader.events.subscribe(maxlen=50_000)
        self._thread = threading.Thread(target=self._run, name="nbloader-tune", daemon=True)
        self._thread.start()

    # ---- results ------------------------------------------------------------------------------------------------

    @property
    def trials(self) -> list[Trial]:
        """What was measured so far, in this order."""
        return list(self._search.trials)

    @property
    def best(self) -> Trial | None:
        """The fastest setting so far; None before anything was measured."""
        return self._search.best

    @property
    def finished(self) -> bool:
        """Whether the search is over."""
        return self._ended.is_set()

    @property
    def code(self) -> str:
        """The arguments to write down, such as "num_workers=4, prefetch_factor=2"."""
        best = self._search.best
        return str(self._search.start if best is None else best.setting)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the search is over. The loop must run on another thread.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Returns:
            Whether it is over.
        """
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """End the search soon. The best setting so far stays."""
        self._stop.set()

    def undo(self) -> None:
        """End the search, and return to the settings before it; soon if it is running, else at once.

        Raises:
            LoaderClosedError: The loader was closed.
        """
        with self._lock:
            self._undone = True
            self._stop.set()
            if not self._ended.is_set():
                return  # its thread does it
        try:
            self._apply(self._search.start)
        except _EndError as error:
            raise LoaderClosedError("this loader is closed: create a new one") from error

    @property
    def gauge(self) -> TuningGauge:
        """What a dashboard shows of it."""
        best, start = self._search.best, self._search.start
        changed = best is not None and best.setting != start and not self._undone
        text = f"The settings before the search are back: {start}." if self._undone else self._summary()
        return TuningGauge(not self.finished, changed, text)

    def __str__(self) -> str:
        """A table of what was tried, and what to write down."""
        return f"{table(self.trials, self.best)}\n{self._summary()}"

    def __repr__(self) -> str:
        """One line."""
        return f"<Tuning {'finished' if self.finished else 'running'}: {self._summary()}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def _summary(self) -> str:
        best, trials = self.best, self.trials
        if best is None:
            return self._reason or "Waiting for a loop: iterate the loader."
        first = trials[0].measured
        state = "" if self.finished else "So far: "
        if best is trials[0]:
            text = f"{state}The present settings are the best of {len(trials)}: {best.setting}."
        else:
            gain = best.measured.rate / first.rate
            text = f"{state}DataLoader(..., {best.setting}) is {number(gain)} times as fast as {trials[0].setting}."
        if self._search.free:
            text += f" The loop waits only {percent(best.measured.wait_share)} of its time: it is the limit itself."
        return f"{text} {self._reason}".strip()

    # ---- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._find()
        except _EndError as end:
            self._reason = str(end)
        except LoaderClosedError:
            self._reason = CLOSED
        except Exception:  # it must not disturb the loop, and not pass unnoticed
            log.exception("the search for better settings has failed")
            self._reason = "The search has failed: see the log."
        finally:
            self._subscription.close()
            with self._lock:
                self._ended.set()
            if self._undone:
                with contextlib.suppress(_EndError, LoaderClosedError):
                    self._apply(self._search.start)

    def _find(self) -> None:
        """Try settings until there is none left to try.

        Raises:
            _EndError: The search ends earlier.
        """
        search = self._search
        while (setting := search.next()) is not None:
            try:
                measured = self._try(setting)
            except _EndError:
                self._restore()
                raise
            kept = search.measured(setting, measured)
            self._reach().events.publish(SettingTried(time.perf_counter_ns(), *setting, measured.rate, kept))
            if self._monitor.draws_by_worker:
                search.keep_workers()
            if not kept:
                self._restore()

    def _restore(self) -> None:
        """Return to the best setting, unless other code has changed the settings."""
        loader = self._loader()
        if loader is None or _setting_of(loader) != self._expected:
            return
        best = self._search.best
        with contextlib.suppress(LoaderClosedError):
            self._apply(self._search.start if best is None else best.setting)

    def _try(self, setting: Setting) -> Measurement:
        """Measure a setting.

        Raises:
            _EndError: The search ends.
        """
        self._apply(setting)
        since = self._when_ready(setting.num_workers)
        records: list[BatchRecord] = []
        while True:
            new = self._look()
            if new is None:
                records, since = [], time.perf_counter_ns()
                continue
            records += [record for record in new if record.dispatched >= since]
            measured = measure(records)
            if measured is None or measured.seconds < self._slice:
                continue
            if measured.batches >= MIN_BATCHES or measured.seconds >= PATIENCE * self._slice:
                if measured.batches < FEWEST:
                    raise _EndError(
                        f"Batches take too long to compare settings: {plural(measured.batches, 'batch')} in "
                        f"{number(measured.seconds)} s. Give tune() more seconds."
                    )
                return measured

    def _when_ready(self, workers: int) -> int:
        """Wait until so many workers are ready, while the loop runs. Returns the time, perf_counter ns."""
        began = time.monotonic()
        while True:
            self._look()
            stats = self._reach().stats()
            if stats.state not in RUNNING:
                began = time.monotonic()
                continue
            ready = sum(worker.state not in {"starting", "dead"} for worker in stats.workers)
            if ready == workers or time.monotonic() - began > WARM_UP:
                return time.perf_counter_ns()

    def _look(self) -> list[BatchRecord] | None:
        """Wait a moment. Returns the batches that have come; None if something has disturbed the measurement.

        Raises:
            _EndError: The search ends.
        """
        if self._stop.wait(INTERVAL):
            raise _EndError("The search was stopped.")
        if _setting_of(self._reach()) != self._expected:
            raise _EndError("The search has ended, because other code changed the settings.")
        events = self._subscription.drain()
        records = [event for event in events if isinstance(event, BatchRecord)]
        disturbed = any(isinstance(event, DISTURBANCES) for event in events)
        measured = None if disturbed else measure([*self._last, *records])
        self._used += 0.0 if measured is None else measured.seconds
        self._last = records[-1:] or ([] if disturbed else self._last)
        if self._used > self._seconds:
            raise _EndError(f"The {number(self._seconds)} s are over.")
        return None if disturbed else records

    def _reach(self) -> LoaderControl:
        loader = self._loader()
        if loader is None or self._monitor.closed:
            raise _EndError(CLOSED)
        return loader

    def _apply(self, setting: Setting) -> None:
        loader = self._reach()
        self._expected = setting
        if loader.prefetch_factor != setting.prefetch_factor:
            loader.prefetch_factor = setting.prefetch_factor
        if loader.num_workers != setting.num_workers:
            loader.num_workers = setting.num_workers


class _EndError(Exception):
    """The search ends; says why."""


def _setting_of(loader: LoaderControl) -> Setting:
    return Setting(loader.num_workers, loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR)
