"""The supervisor thread: it drives an engine while the consumer is away, working on a batch.

The consumer receives for itself while it waits: handing each batch over from a receiver thread costs a switch of the
interpreter lock, up to 5 ms. While it is away, this thread replaces dead workers, dispatches, and executes commands, so
that a restart works while a cell is busy.
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
"""Seconds for which the supervisor leaves a message to a consumer that was there a moment ago."""
RESTART_DELAY = 0.1
"""Seconds between a failure of the thread and its restart, so that a lasting fault does not spin."""
JOIN_TIMEOUT = 1.0
"""Seconds that `close` waits for the thread."""


class Watch(NamedTuple):
    """What the supervisor waits for, beside a wake-up; determined with the lock held.

    The workers may be stopped before it sleeps, and the descriptor then belong to another file. It is only polled, and
    a thread that starts other workers, or closes the engine, wakes the supervisor.
    """

    fileno: int | None
    timeout: float | None
    """Seconds."""


class Supervised(Protocol):
    """What the supervisor drives: an engine."""

    closed: bool
    lock: threading.Lock

    def has_work(self) -> bool:
        """Whether there are workers to watch or commands to execute. Called with the lock held."""

    def has_commands(self) -> bool:
        """Whether commands wait."""

    def consumer_nearby(self) -> bool:
        """Whether a consumer waits for a batch, or took one a moment ago."""

    def fileno(self) -> int | None:
        """A descriptor that is readable when workers sent something, or None. Called with the lock held."""

    def seconds_to_maintenance(self) -> float | None:
        """Seconds until idle workers release memory or stop; None if they will not. Called with the lock held."""

    def run_round(self) -> None:
        """Do what is due now. Called with the lock held."""

    def fail(self, error: Exception) -> None:
        """Give up the workers, and raise an error in the consumer. Called with the lock held."""

    def report_failure(self, error: Exception) -> None:
        """Record that the thread failed."""

    def publish_events(self) -> None:
        """Publish the events recorded so far. Called without holding the lock."""

    def show_output(self) -> None:
        """Print what workers wrote."""


class Supervisor:
    """The thread, and the descriptor that wakes it.

    Args:
        engine: What it drives.
    """

    def __init__(self, engine: Supervised) -> None:
        self._engine = engine
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None

    # ---- from other threads ---------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def ensure_running(self) -> None:
        """Start the thread unless it runs. Called with the engine's lock.

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
        """Have the thread look for work. Takes no lock: a finalizer may call this at any moment."""
        self._wakeup.set()

    def forget_unstarted(self) -> None:
        """Forget a thread that an interrupt has kept from starting."""
        if not self.running:
            self._thread = None

    def after_fork(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._thread = None
        self._wakeup.close()
        self._wakeup = Wakeup()

    def close(self) -> None:
        """The engine is closed: wait for the thread and release the descriptor."""
        self.wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_TIMEOUT)
        if thread is None or not thread.is_alive():  # otherwise the thread releases it when it ends
            self._wakeup.close()

    def close_if_idle(self) -> None:
        """The engine is closed: release the descriptor, or have the thread do it. Never waits."""
        self.wake()
        if self._thread is None:
            self._wakeup.close()

    # ---- the thread -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Drive the engine until its workers end. A failure of this loop is logged, and the loop restarted."""
        engine = self._engine
        while True:
            try:
                while (watch := self._in_charge()) is not None:
                    self._wakeup.wait(watch.fileno, watch.timeout)
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
        """What to wait for; None if this thread no longer drives."""
        engine = self._engine
        with engine.lock:
            if engine.closed or self._thread is not threading.current_thread():
                return None  # the latter: an interrupt came while this one was started, and another took its place
            if engine.has_work():
                return Watch(engine.fileno(), engine.seconds_to_maintenance())
            self._thread = None  # decided with the lock held: a thread that starts workers starts another supervisor
            return None

    def _leave_messages_to_consumer(self) -> None:
        if not self._engine.has_commands() and self._engine.consumer_nearby():
            self._wakeup.wait(None, LINGER)

    def _run_round(self) -> None:
        engine = self._engine
        with engine.lock:
            try:
                engine.run_round()
            except Exception as error:  # a fault of our own must reach the consumer instead of hanging it
                log.exception("the supervisor thread failed")
                engine.report_failure(error)
                engine.fail(error)
