"""The thread that owns the state of an engine: dispatcher, workers, connections, memory.

    consumer, dashboard, finalizers --request--> queue --+
                                                         +--> one turn --> answers, events, output
    workers --messages--> descriptors -------------------+

Only this thread changes that state. Every other thread puts requests into a queue, and may wait for the answer. Signal
handlers run on the main thread, and so no interrupt can come in the middle of a change.
"""

from __future__ import annotations

import collections
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from nbloader._platform import Wakeup
from nbloader.errors import NbloaderError, WorkerStartError
from nbloader.events.failures import thread_message
from nbloader.workers.api import JOIN_TIMEOUT

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

RESTART_DELAY = 0.1
"""Seconds between a failure of the thread and its next turn, so that a persistent fault does not cause a busy loop."""
FAILED = "the thread that supervises the workers failed, and goes on"
IN_TURN = (
    "the loader was called by a finalizer (__del__) or by user code on its own thread, in the middle of a change. Only "
    "these methods may be called there: close(), restart_workers(), pause(), resume() and step()"
)


class Driven(Protocol):
    """What the thread runs. All methods are called on it."""

    closed: bool

    def filenos(self) -> tuple[int, ...]:
        """Return the descriptors that are readable when workers have sent messages."""

    def seconds_to_maintenance(self) -> float | None:
        """Return the seconds until a turn is due without any message or request; None for no limit."""

    def receive(self) -> None:
        """Handle the messages of workers."""

    def act(self) -> None:
        """Assign batches, wake consumers, and do the maintenance that is due."""

    def publish(self) -> None:
        """Publish events. Not part of a change: subscribers may call the loader."""

    def show_output(self) -> None:
        """Print the output of workers."""

    def report_failure(self, error: Exception) -> None:
        """Record that the thread failed."""

    def fail(self, error: Exception) -> None:
        """Kill the workers after a failure in the middle of a change, and raise an error in the consumer."""

    def forget(self) -> None:
        """Forget the workers in a forked child: they belong to the parent."""


class _Answer(NamedTuple):
    value: Any
    error: BaseException | None


class _Request(NamedTuple):
    action: Callable[[], Any]
    answers: queue.SimpleQueue[_Answer] | None
    """Receives the answer; None if nobody waits for it."""


class Loop:
    """The thread of one engine.

    Args:
        engine: What it runs.
    """

    def __init__(self, engine: Driven) -> None:
        self._engine = engine
        self._reset()

    def _reset(self) -> None:
        self._requests: collections.deque[_Request] = collections.deque()
        self._wakeup: Wakeup | None = None
        self._asleep = False
        self._thread: threading.Thread | None = None
        self._not_running = threading.RLock()
        """Held while the state is changed by another thread, because this one does not run, and while it is started."""
        self._in_turn = False

    # ---- from other threads ---------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether the thread was started."""
        return self._thread is not None

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return self._thread is threading.current_thread()

    @property
    def in_turn(self) -> bool:
        """Whether the caller is in the middle of a change, on this thread."""
        return self._in_turn and self.is_current

    def post(self, action: Callable[[], object]) -> None:
        """Request an action. Never waits for the thread: finalizers and signal handlers may call this."""
        self._requests.append(_Request(action, None))
        if self._thread is None:
            self._run_here()
        else:
            self._wake()

    def ask(self, action: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Request an action and wait for what it returns. While the thread does not run, the caller runs the action.

        Raises:
            Exception: Whatever the action raises.
            NbloaderError: The caller is in the middle of a change, on this thread.
        """
        if self.in_turn:
            raise NbloaderError(IN_TURN)
        if self.is_current:
            return action(*args, **kwargs)
        answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._requests.append(_Request(lambda: action(*args, **kwargs), answers))
        while True:
            if self._runs():
                self._wake()
            else:
                self._run_here()
            try:
                answer = answers.get(timeout=JOIN_TIMEOUT)  # the thread may end without an answer
            except queue.Empty:
                continue
            if answer.error is not None:
                raise answer.error
            return answer.value  # type: ignore[no-any-return]

    def _runs(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _wake(self) -> None:
        wakeup = self._wakeup
        if self._asleep and wakeup is not None:
            wakeup.set()

    def _run_here(self) -> None:
        """Execute the requests on the calling thread, because this one does not run."""
        with self._not_running:
            if not self._runs():
                self._answer_all()
                self._engine.publish()

    def start(self) -> None:
        """Start the thread unless it runs.

        Raises:
            WorkerStartError: The system provides no thread.
        """
        if self._runs():
            return
        with self._not_running:
            if self._runs():
                return
            self._wakeup = self._wakeup or Wakeup()
            thread = self._thread = threading.Thread(target=self._run, name="nbloader-loop", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._thread = None
                raise WorkerStartError(thread_message("the thread that supervises the workers", error)) from error

    def close(self) -> None:
        """Wait for the end of the thread. Called after the engine was closed."""
        self._wake()
        thread = self._thread
        if thread is not None and not self.is_current:
            thread.join(JOIN_TIMEOUT)

    def after_fork(self) -> None:
        """In a forked child, forget the thread and the workers, which belong to the parent."""
        if self._wakeup is not None:
            self._wakeup.close()
        self._reset()
        self._engine.forget()

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        engine, wakeup = self._engine, self._wakeup
        if wakeup is None:
            raise RuntimeError("the thread was started without what wakes it")
        while not engine.closed and self.is_current:  # otherwise an interrupt came while this thread was being started
            try:
                self._asleep = True  # before the look: what is requested later wakes this thread
                wakeup.wait(engine.filenos(), 0.0 if self._requests else engine.seconds_to_maintenance())
                self._asleep = False
                self._turn()
            except Exception as error:
                log.exception(FAILED)
                engine.report_failure(error)
                threading.Event().wait(RESTART_DELAY)
        if self.is_current:
            self._answer_all()
            wakeup.close()

    def _turn(self) -> None:
        engine = self._engine
        answers: list[tuple[queue.SimpleQueue[_Answer], _Answer]] = []
        self._in_turn = True
        try:
            engine.receive()
            self._execute(answers)
            engine.act()
        except Exception as error:  # a bug in the engine must raise in the consumer instead of hanging it
            log.exception(FAILED)
            engine.report_failure(error)
            engine.fail(error)
        finally:
            self._in_turn = False
        try:
            engine.publish()
            engine.show_output()
        finally:
            for waiting, answer in answers:  # last: who asked finds the events published
                waiting.put(answer)

    def _execute(self, answers: list[tuple[queue.SimpleQueue[_Answer], _Answer]]) -> None:
        """Execute the requests that are there. What an action raises goes to the thread that asked."""
        for _ in range(len(self._requests)):
            request = self._requests.popleft()
            answer = _answered(request)
            if request.answers is not None:
                answers.append((request.answers, answer))
            elif answer.error is not None:
                raise answer.error

    def _answer_all(self) -> None:
        """Execute all requests, and answer them at once."""
        while self._requests:
            try:
                request = self._requests.popleft()
            except IndexError:  # another thread took it
                return
            answer = _answered(request)
            if request.answers is not None:
                request.answers.put(answer)


def _answered(request: _Request) -> _Answer:
    try:
        return _Answer(request.action(), None)
    except Exception as error:  # noqa: BLE001 - the thread that asked gets it
        return _Answer(None, error)
