"""The supervisor thread: it drives an engine while the consumer processes a batch.

While the consumer waits for a batch, it receives messages itself: a handover from a receiver thread would cost a switch
of the interpreter lock (GIL) per batch, which takes up to 5 ms. While the consumer processes a batch, the supervisor
thread replaces dead workers, dispatches batches, and executes commands. So a restart works even while a cell is busy.
"""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple, Protocol

from nbloader._util.wakeup import Wakeup
from nbloader.errors import WorkerStartError
from nbloader.events.failures import thread_message

log = logging.getLogger(__name__)

LINGER = 0.02
"""Seconds that the supervisor waits before it handles a message, so that a nearby consumer can handle it instead."""
RESTART_DELAY = 0.1
"""Seconds between a failure of the loop and its restart, so that a persistent fault does not cause a busy loop."""
JOIN_TIMEOUT = 1.0
"""Maximum number of seconds that `close` waits for the thread."""


class Watch(NamedTuple):
    """What the supervisor waits for, besides a wake-up; determined with the lock held.

    If the workers are stopped before the supervisor sleeps, a descriptor may refer to another file by then. That is
    harmless: descriptors are only polled, and a thread that starts other workers or closes the engine wakes the
    supervisor.
    """

    filenos: tuple[int, ...]
    timeout: float | None
    """Seconds; None for no limit."""


class Supervised(Protocol):
    """The interface of an engine that the supervisor drives."""

    closed: bool
    lock: threading.Lock

    def has_work(self) -> bool:
        """Whether there are workers to watch or commands to execute. Called with the lock held."""

    def has_commands(self) -> bool:
        """Whether commands are queued."""

    def consumer_nearby(self) -> bool:
        """Whether a consumer is waiting for a batch, or received one a moment ago."""

    def filenos(self) -> tuple[int, ...]:
        """Return descriptors that are readable when workers have sent messages. Called with the lock held."""

    def seconds_to_maintenance(self) -> float | None:
        """Return the seconds until idle workers release memory or stop, or None. Called with the lock held."""

    def run_round(self) -> None:
        """Handle messages and commands, and do the maintenance that is due. Called with the lock held."""

    def fail(self, error: Exception) -> None:
        """Kill the workers, and raise an error in the consumer. Called with the lock held."""

    def report_failure(self, error: Exception) -> None:
        """Record that the supervisor thread failed."""

    def publish_events(self) -> None:
        """Publish the events recorded so far. Called without holding the lock."""

    def show_output(self) -> None:
        """Print the output of workers."""


class Supervisor:
    """The supervisor thread, and the descriptor that wakes it.

    Args:
        engine: The engine that the thread drives.
    """

    def __init__(self, engine: Supervised) -> None:
        self._engine = engine
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None

    # ---- from other threads ---------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the thread has been started and has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def ensure_running(self) -> None:
        """Start the thread unless it is running. Called with the engine's lock held.

        Raises:
            WorkerStartError: The system provides no thread.
        """
        if self.running:
            return
        thread = self._thread = threading.Thread(target=self.run, name="nbloader-supervisor", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._thread = None
            raise WorkerStartError(thread_message("the thread that supervises the workers", error)) from error

    def wake(self) -> None:
        """Wake the thread so that it looks for work. Acquires no lock: a finalizer may call this at any moment."""
        self._wakeup.set()

    def forget_unstarted(self) -> None:
        """Forget the thread if an interrupt has prevented it from starting."""
        if not self.running:
            self._thread = None

    def after_fork(self) -> None:
        """In a forked child, forget the thread, which only exists in the parent, and create a new wake-up."""
        self._thread = None
        self._wakeup.close()
        self._wakeup = Wakeup()

    def close(self) -> None:
        """Wait for the thread and release the descriptor. Called after the engine was closed."""
        self.wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_TIMEOUT)
        if thread is None or not thread.is_alive():  # otherwise the thread releases it when it ends
            self._wakeup.close()

    def close_if_idle(self) -> None:
        """Release the descriptor, or let the thread release it. Never waits. Called after the engine was closed."""
        self.wake()
        if self._thread is None:
            self._wakeup.close()

    # ---- the thread -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Drive the engine until its workers have ended. A failure of this loop is logged, and the loop restarts."""
        engine = self._engine
        while True:
            try:
                while (watch := self._in_charge()) is not None:
                    self._wakeup.wait(watch.filenos, watch.timeout)
                    self._leave_messages_to_consumer()
                    self._run_round()
                    engine.publish_events()
                    engine.show_output()
                if engine.closed and self._thread is threading.current_thread():
                    self._wakeup.close()
            except Exception as error:
                log.exception("the supervisor thread failed and is restarted")
                engine.report_failure(error)
                threading.Event().wait(RESTART_DELAY)
            else:
                return

    def _in_charge(self) -> Watch | None:
        """Return what to wait for; None if this thread no longer drives the engine."""
        engine = self._engine
        with engine.lock:
            if engine.closed or self._thread is not threading.current_thread():
                return None  # or an interrupt came while this thread was being started, and another replaced it
            if engine.has_work():
                return Watch(engine.filenos(), engine.seconds_to_maintenance())
            self._thread = None  # lock held: a thread that starts workers later starts a new supervisor
            return None

    def _leave_messages_to_consumer(self) -> None:
        if not self._engine.has_commands() and self._engine.consumer_nearby():
            self._wakeup.wait(None, LINGER)

    def _run_round(self) -> None:
        engine = self._engine
        with engine.lock:
            try:
                engine.run_round()
            except Exception as error:  # a bug in the engine must raise in the consumer instead of hanging it
                log.exception("the supervisor thread failed")
                engine.report_failure(error)
                engine.fail(error)
