"""What happens when the consumer waits long for a batch: notices, timeouts, and forked workers that hang.

Everything here runs on the consumer's thread. What it changes of the workers, it asks the loop for. It reads without
asking which workers exist, and whether one is ready.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nbloader.engine import timeouts
from nbloader.engine.loop import Loop
from nbloader.engine.lost_locks import LostLock, held_locks, waits_for_lock, waits_in_multiprocessing
from nbloader.engine.timeouts import Due, WaitTimer
from nbloader.engine.worker_group import WorkerGroup
from nbloader.engine.worker_output import WorkerOutput
from nbloader.errors import DatasetTransferError, LoaderTimeoutError, NbloaderError
from nbloader.events.gauges import WorkerGauge
from nbloader.scheduler.dispatcher import Delay, Dispatcher
from nbloader.scheduler.gate import Gate
from nbloader.transport import stack_probe

_clock = time.perf_counter_ns


class DelayReport(NamedTuple):
    """What delays an iteration."""

    delay: Delay
    suspect: WorkerGauge
    """The worker that delays the batch (`Delay.worker`). If there is none, a starting worker, or else any worker."""
    workers: Sequence[WorkerGauge]
    """All workers, the suspect first."""
    holds_batch: bool
    """Whether the suspect delays the batch: it holds the batch, or must produce it after other jobs."""
    leaving: bool
    """Whether other workers finish a sample before they end."""


class LongWaits:
    """Looks after a consumer that waits.

    Args:
        loop: The thread that owns the next two.
        group: The workers.
        dispatcher: What they hold.
        gate: Whether the loader is paused.
        output: Shows notices in the cell.
        dataset: Returns the dataset, if it still exists.
        timeout: Seconds that the consumer may wait for one batch; 0 for no limit.
        restarts: Whether a worker that holds a batch for longer than that is replaced.
    """

    def __init__(
        self,
        loop: Loop,
        group: WorkerGroup,
        dispatcher: Dispatcher,
        gate: Gate,
        output: WorkerOutput,
        *,
        dataset: Callable[[], Any],
        timeout: float,
        restarts: bool,
    ) -> None:
        self._loop = loop
        self._group = group
        self._dispatcher = dispatcher
        self._gate = gate
        self._output = output
        self._dataset = dataset
        self._timeout = timeout
        self._restarts = restarts
        self._irreplaceable: set[str] = set()  # where forked workers hang that no clean one can replace

    def new_timer(self, *, first: bool) -> WaitTimer:
        """Return a timer for a wait that begins now. For `first`, see `WaitTimer`.

        Raises:
            NbloaderError: The caller runs on the thread of the loop, which cannot wait for itself.
        """
        if self._loop.is_current:
            raise NbloaderError(
                "a callback of loader.events has called next() on an iterator of the same loader. It would wait "
                "forever, because the thread that runs callbacks also receives the batches. Iterate on another thread."
            )
        return WaitTimer(_clock(), timeout=self._timeout, first=first)

    def look_after(self, timer: WaitTimer, epoch: int) -> float | None:
        """Act on what is due in a wait.

        Args:
            timer: The timer of the wait.
            epoch: Number of the epoch.

        Returns:
            The seconds until something is due again; None for never.

        Raises:
            LoaderTimeoutError: The batch did not arrive within the timeout.
        """
        if self._restarts:
            timer.note_ready(_clock(), ready=self._group.ready)
        check = timer.check(_clock(), paused=self._gate.paused)
        if check.due is not None:
            self._act(check.due, timer, epoch)
            return 0.0
        forked = [] if self._gate.paused else self._group.forked
        if not forked:
            return check.left
        waited = (_clock() - timer.since) / 1e9
        if timer.forks.left(waited) <= 0 and (hung := timer.forks.look(waited, forked)) is not None:
            self._replace_forked(hung.worker)
        left = timer.forks.left(waited)
        return left if check.left is None else min(left, check.left)

    # ---- forked workers that hang -----------------------------------------------------------------------------------

    def _replace_forked(self, worker: int) -> None:
        """Replace forked workers by clean ones: they hang because of a lock or a thread that they do not have."""
        stack = ""
        with contextlib.suppress(NbloaderError):
            stack = self.stack(worker)
        if waits_in_multiprocessing(stack):
            return  # such a lock is shared by processes: it survives a fork
        where = f"in {stack_probe.place(stack)}" if stack else "while it was being set up"
        try:
            setup = self._group.clean_setup()
        except DatasetTransferError as error:
            if where in self._irreplaceable:
                return
            self._irreplaceable.add(where)
            self._output.notify(
                f"nbloader: a worker that was forked from this process hangs {where}, because a lock or a thread that "
                f"it waits for does not exist in a forked process. New interpreters cannot replace it: {error}\n"
            )
            self._output.show()
            return
        if setup is not None:
            self._loop.ask(self._group.try_clean, setup, where)

    def stack(self, worker: int) -> str:
        """Return the current Python stack of a worker.

        Raises:
            NbloaderError: The worker is not running, does not respond, or is of a kind that does not report its stack.
        """
        return self._loop.ask(self._group.stack_request, worker)()

    # ---- notices and timeouts ---------------------------------------------------------------------------------------

    def _act(self, due: Due, timer: WaitTimer, epoch: int) -> None:
        """Act on a notice or a timeout that is due."""
        if due is Due.PAUSE_NOTICE:
            self._notify(timeouts.PAUSE_NOTICE_TEXT)
            return
        report = self._loop.ask(self._report, epoch)
        if report is None:
            return  # the iteration has just ended
        if self._restarts and timer.note_ready(_clock(), ready=self._group.ready):
            return
        delay, suspect = report.delay, report.suspect
        stack = ""
        with contextlib.suppress(NbloaderError):
            stack = self.stack(suspect.worker)
        place = stack_probe.place(stack) if stack else ""
        lost = self._lost_lock(report, stack)
        advice = "" if lost is None else lost.advice()
        now = _clock()
        waited = (now - timer.since) / 1e9
        if due is Due.DELAY_NOTICE:
            self._notify(timeouts.delay_notice(delay.number, waited, suspect, now, place, advice))
            return
        timeout = self._timeout
        if not report.holds_batch and self._restarts and timeouts.still_starting(suspect, now):
            timer.since = now
            return
        message = timeouts.timeout_message(timeout, delay.number, waited, suspect, report.workers, now, stack, advice)
        if not report.holds_batch or delay.worker is None or not self._restarts:
            raise LoaderTimeoutError(message)
        reason = f"batch {delay.number} took longer than timeout={timeout:g} s"
        if self._loop.ask(self._restart_stalled, epoch, delay, reason, LoaderTimeoutError(message)):
            self._notify(timeouts.restart_notice(timeout, delay.number, suspect, now, place))
        timer.since = _clock()

    def _notify(self, text: str) -> None:
        self._output.notify(text)
        self._output.show()

    def _lost_lock(self, report: DelayReport, stack: str) -> LostLock | None:
        """Return the lock that all workers wait for, if a process that has ended holds it; None if there is none.

        Args:
            report: What delays the iteration.
            stack: The stack of the suspect.
        """
        if self._group.in_process or not waits_for_lock(stack) or report.leaving:
            return None  # a thread is never killed, and a worker that leaves may still release the lock
        for worker in report.workers[1:]:
            try:
                other = self.stack(worker.worker) if worker.batch is not None else stack
            except NbloaderError:
                return None
            if not waits_for_lock(other):
                return None
        paths = held_locks(self._dataset())
        return LostLock(paths) if paths or waits_in_multiprocessing(stack) else None

    # ---- on the engine's thread -------------------------------------------------------------------------------------

    def _report(self, epoch: int) -> DelayReport | None:
        """Return what delays an iteration; None if the iteration has ended."""
        if epoch not in self._dispatcher.iterations:
            return None
        delay = self._dispatcher.delay(epoch)
        holder = self._group.worker_of(delay.worker)
        workers = sorted(self._group.gauges(), key=lambda g: (g.worker != holder, g.state != "starting"))
        leaving = self._group.leaving.seconds_left() is not None
        return DelayReport(delay, workers[0], workers, holds_batch=holder is not None, leaving=leaving)

    def _restart_stalled(self, epoch: int, delay: Delay, reason: str, error: Exception) -> bool:
        if delay.worker is None or epoch not in self._dispatcher.iterations or self._dispatcher.delay(epoch) != delay:
            return False  # the batch arrived at the last moment
        return self._group.restart_stalled(delay.worker, epoch, delay.number, reason, error)
