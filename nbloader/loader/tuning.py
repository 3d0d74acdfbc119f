"""Tries settings of a loader while a loop runs, keeps what is faster, and undoes what is not."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from nbloader._util.format import number, plural
from nbloader.diagnose.causes import BY_NAME
from nbloader.diagnose.causes.compute import COMPUTE_FULL
from nbloader.diagnose.tune import Change, Measurement, Plan, Setting, Trial, measure, table
from nbloader.errors import DatasetTransferError, LoaderClosedError
from nbloader.events import (
    BatchRecord,
    DatasetReloaded,
    LoaderPaused,
    LoaderResumed,
    SettingTried,
    WorkerRestarted,
)
from nbloader.loader.tuning_html import WIDTH, html_of
from nbloader.metrics.rates import RATE_NS
from nbloader.metrics.snapshot import ENDED, TuningGauge

if TYPE_CHECKING:
    from nbloader.loader.monitor import Monitor
    from nbloader.metrics.control import LoaderControl
    from nbloader.metrics.snapshot import Snapshot, Verdict
    from nbloader.remedies.results import Remedies

log = logging.getLogger("nbloader")

INTERVAL = 0.1
"""Seconds between two checks for new batches."""
PARTS = 24
"""Each setting is measured for 1/PARTS of the time."""
SHORTEST, LONGEST = 0.5, 4.0
"""Limits of the time for one setting, seconds."""
MIN_BATCHES, MIN_PER_WORKER = 24, 4
"""Minimum number of batches of a measurement, in total and per worker: they may arrive in bursts, one from each
worker."""
PATIENCE = 4
"""A measurement may take up to this multiple of its planned time to collect these batches."""
FEWEST = 8
"""Number of batches below which a measurement is meaningless."""
WARM_UP = 10.0
"""Maximum time, in seconds, that a measurement waits for new workers."""
DISTURBANCES = (LoaderPaused, LoaderResumed, WorkerRestarted, DatasetReloaded)
"""Events after which a measurement starts over."""
RUNNING = frozenset({"starting", "running", "paused"})
"""States of a loader that is iterated."""
CLOSED = "The loader was closed."
ONLY_CHEAPER = "only cheaper samples would help, because all cores are in use."
WAITING = "Waiting for a loop. Iterate over the loader, and once more if the loop ends before a setting is measured."
"""What the result says before the first measurement."""


def change_plan(start: Setting, setting: Setting, records: Sequence[BatchRecord]) -> Plan:
    """Create the plan for changing to a setting that the user chose.

    Args:
        start: The current setting.
        setting: The new one.
        records: Batches so far, of which the last seconds are measured.
    """
    recent = [r for r in records if r.delivered > records[-1].delivered - RATE_NS and r.epoch == records[-1].epoch]
    return Change(start, setting, measure(recent))


class Commands(NamedTuple):
    """What a search does with a loader, which is the first argument of each function."""

    resize: Callable[[Any, int], object]
    """Changes the number of workers. Those that are removed may take any time for their current sample."""
    restore_window: Callable[[Any], object]
    """Restores the prefetch window that the loader had before the search."""
    use_kind: Callable[[Any, Any], object]
    """Switches to another kind of workers."""
    remedies: Callable[[Any], Remedies]
    """Lists what to write instead of the slowest lines, without trying it."""


class Tuning:
    """Tries settings on a separate thread while a loop iterates over the loader.

    `print` it for a table of what was tried; as the last line of a cell it is a plot, a table and the line of code to
    write down.

    Args:
        loader: The loader. It is not kept alive.
        monitor: Its monitor.
        seconds: Time for all settings, counted while the loop runs.
        plan: Which settings are tried.
        commands: Changes a loader.
        note: Why no other kind is tried; "" if there is nothing to say.
    """

    def __init__(
        self,
        loader: LoaderControl,
        monitor: Monitor,
        seconds: float,
        plan: Plan,
        commands: Commands,
        note: str = "",
    ) -> None:
        self._loader = weakref.ref(loader)
        self._monitor = monitor
        self._seconds = seconds
        self._slice = min(LONGEST, max(SHORTEST, seconds / PARTS))
        self._plan = plan
        self._commands = commands
        self._note = note
        self._advice = ""
        self.remedies: Remedies | None = None
        """What to write instead of the slowest lines, as `loader.remedies(samples=0)`, which has tried nothing; None
        before the end of the search, and if these lines do not limit the loop."""
        self._window_replaced = False
        self._ended = threading.Event()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._undone = False
        self._reason = ""
        self._used = 0.0
        self._last: list[BatchRecord] = []  # the newest record, from which the next gap is counted
        self._start = self._expected = _settings_of(loader)
        self._subscription = loader.events.subscribe(maxlen=50_000)
        self._thread = threading.Thread(target=self._run, name="nbloader-tune", daemon=True)
        self._thread.start()

    # ---- results ------------------------------------------------------------------------------------------------

    @property
    def trials(self) -> list[Trial]:
        """The measurements so far, in order."""
        return list(self._plan.trials)

    @property
    def best(self) -> Trial | None:
        """The fastest setting so far; None before anything was measured."""
        return self._plan.best

    @property
    def finished(self) -> bool:
        """Whether the search is over."""
        return self._ended.is_set()

    @property
    def code(self) -> str:
        """The arguments to write down, such as "num_workers=4, prefetch_factor=2"."""
        return str(self._plan.result)

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
        """End the search and restore the settings before it: soon if it is running, otherwise at once.

        This includes the prefetch window: `prefetch`, or an adaptive one.

        Raises:
            LoaderClosedError: The loader was closed.
        """
        with self._lock:
            self._undone = True
            self._stop.set()
            if not self._ended.is_set():
                return  # its thread does it
        try:
            self._apply(self._plan.start)
        except _EndError as error:
            raise LoaderClosedError("this loader is closed: create a new one") from error

    @property
    def gauge(self) -> TuningGauge:
        """What a dashboard shows of the search."""
        plan = self._plan
        changed = plan.result != plan.start and not self._undone
        return TuningGauge(not self.finished, changed, self._summary(), isinstance(plan, Change))

    def __repr__(self) -> str:
        """What limits the samples, if settings do not; a table of what was tried, and what to write down."""
        return f"{self._told()}{table(self.trials, self.best)}\n{self._summary()} {self._note}".strip()

    def _repr_html_(self) -> str:
        summary = f"{self._summary()} {self._note}".strip()
        found = html_of(self.trials, self.best, self._plan.start, self._plan.result, summary)
        told = escape(self._told()).replace("\n", "<br>")
        return f'<div style="max-width:{WIDTH}px">{told}</div>{found}' if told else found

    def _told(self) -> str:
        """What cheaper samples would change, one statement a line."""
        listed = [f"  {one.line.place}: {one.proposal.instead} ({one.name})" for one in (self.remedies or ())]
        if listed:
            listed = ["What may make them cheaper; loader.remedies() tries it on samples:", *listed, ""]
        return "\n".join([*([self._advice] if self._advice else []), *listed, *([""] if self._advice else [])])

    def _summary(self) -> str:
        found = self._plan.summary(finished=self.finished)
        if self._undone:
            before = "before" if isinstance(self._plan, Change) else "before the search"
            return f"The settings {before} are back: {self._plan.start}. {found}".strip()
        return f"{found} {self._reason}".strip() or WAITING

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
            self._advise()
            with self._lock:
                self._ended.set()
            if self._undone:
                with contextlib.suppress(_EndError, LoaderClosedError):
                    self._apply(self._plan.start)

    def _find(self) -> None:
        """Try settings until there is none left to try. The best one stays, unless other code changes the settings.

        Raises:
            _EndError: The search ends earlier.
        """
        plan = self._plan
        try:
            while (setting := plan.next()) is not None:
                try:
                    measured = self._try(setting)
                except DatasetTransferError as error:  # what the other kind of workers would need
                    self._note = f'workers="{setting.kind}" cannot be used: {error}'
                    continue
                kept = plan.measured(setting, measured)
                workers, prefetch_factor, kind = setting
                tried = SettingTried(time.perf_counter_ns(), workers, prefetch_factor, measured.rate, kept, kind)
                self._reach().events.publish(tried)
                if self._monitor.draws_by_worker:
                    plan.keep_workers()
                if not self._window_replaced:
                    plan.ahead = -(-self._reach().stats().window // max(1, setting.num_workers))
        finally:
            self._restore()

    def _advise(self) -> None:
        """List what makes samples cheaper, if a line of code limits the loop; if all cores are in use, say so."""
        loader = self._loader()
        if loader is None or self._monitor.closed or isinstance(self._plan, Change):
            return
        try:
            found = limit_of(loader.stats())
            cause = BY_NAME.get(found.cause)
            if cause is not None and cause.names_line:
                self.remedies = self._commands.remedies(loader)
            if COMPUTE_FULL.name in (found.cause, found.also):
                kept = self._plan.result == self._plan.start
                self._advice = f"{'Of all changes,' if kept else 'From here on,'} {ONLY_CHEAPER} {found.evidence}"
        except LoaderClosedError:
            return
        except Exception:  # source code that nobody has foreseen: the settings that were found still count
            log.exception("what makes samples cheaper could not be listed")

    def _restore(self) -> None:
        """Return to the best setting, unless other code has changed the settings."""
        loader = self._loader()
        if loader is None or _settings_of(loader) != self._expected:
            return
        with contextlib.suppress(LoaderClosedError):
            self._apply(self._plan.result)

    def _try(self, setting: Setting) -> Measurement:
        """Measure a setting.

        Raises:
            _EndError: The search ends.
        """
        self._apply(setting)
        since = self._when_ready(setting)
        needed = max(MIN_BATCHES, MIN_PER_WORKER * setting.num_workers)
        window = self._reach().stats().window
        records: list[BatchRecord] = []
        while True:
            new = self._look()
            if new is None:
                records, since = [], time.perf_counter_ns()
                continue
            records += [record for record in new if record.dispatched >= since]
            measured = measure(self._settled(records, window))
            if measured is None or measured.seconds < self._slice:
                continue
            if measured.batches >= needed or measured.seconds >= PATIENCE * self._slice:
                if measured.batches < FEWEST:
                    raise _EndError(
                        f"Batches take too long to compare settings: {plural(measured.batches, 'batch')} in "
                        f"{number(measured.seconds)} s. Give tune() more seconds."
                    )
                return measured

    def _settled(self, records: list[BatchRecord], window: int) -> list[BatchRecord]:
        """Drop the first batches of a setting: as many as the window holds, but at most those of one slice.

        The first batches arrive while the window still holds batches that were produced faster, or while it fills. In
        addition, the first batch of a new worker takes longer, since its memory has not been used before.
        """
        if not records:
            return records
        limit = records[0].delivered + self._slice * 1e9
        first = next((i for i, r in enumerate(records[:window]) if r.delivered > limit), window)
        return records[first:]

    def _when_ready(self, setting: Setting) -> int:
        """Wait until the workers of a setting are ready, while the loop runs. Returns the time, perf_counter ns."""
        workers, began = setting.num_workers, time.monotonic()
        while True:
            self._look()
            stats = self._reach().stats()
            if stats.state not in RUNNING or bool(stats.workers) != bool(workers):  # they come with the next epoch
                began = time.monotonic()
                continue
            ready = sum(
                worker.state not in {"starting", "dead"} and setting.kind in ("", worker.kind)
                for worker in stats.workers
            )
            if ready == workers or time.monotonic() - began > WARM_UP:
                return time.perf_counter_ns()

    def _look(self) -> list[BatchRecord] | None:
        """Wait a moment. Returns the batches that have arrived; None if something has disturbed the measurement.

        Raises:
            _EndError: The search ends.
        """
        if self._stop.wait(INTERVAL):
            raise _EndError("The search was stopped.")
        if _settings_of(self._reach()) != self._expected:
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
        if setting.kind:
            self._commands.use_kind(loader, setting.kind)
        if setting.prefetch_factor == self._plan.start.prefetch_factor:
            if self._window_replaced or loader.prefetch_factor != self._start.prefetch_factor:
                self._commands.restore_window(loader)
                self._window_replaced = False
        elif setting.prefetch_factor is not None and loader.prefetch_factor != setting.prefetch_factor:
            self._window_replaced = True
            loader.prefetch_factor = setting.prefetch_factor
        if loader.num_workers != setting.num_workers:
            self._commands.resize(loader, setting.num_workers)
        self._expected = _Settings(setting.num_workers, loader.prefetch_factor)


def limit_of(s: Snapshot) -> Verdict:
    """Return what limits a loop: in the last seconds, or over the newest epoch after its end."""
    return s.epoch_verdict if s.state in ENDED else s.now_verdict


class _EndError(Exception):
    """Ends the search; the message says why."""


class _Settings(NamedTuple):
    """The attributes of a loader that a search changes."""

    num_workers: int
    prefetch_factor: int | None


def _settings_of(loader: LoaderControl) -> _Settings:
    return _Settings(loader.num_workers, loader.prefetch_factor)
