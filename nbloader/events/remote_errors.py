"""Errors that cross from a worker to the notebook: described there, rebuilt and raised here.

The consumer gets an exception of the original type where that can be pickled, else a RuntimeError. The worker's
traceback is its `__cause__`, as text.
"""

from __future__ import annotations

import pickle
import traceback
from types import TracebackType
from typing import Any, NamedTuple

import cloudpickle

from nbloader._util.code_places import with_source_lines
from nbloader.errors import WorkerTraceback

_PACKAGE = __name__.partition(".")[0]
_OF_ANOTHER_THREAD = "SQLite objects created in a thread can only be used in that same thread"
_USE_IN_ANOTHER_THREAD = (
    "A worker is another thread than the one that opened this connection. Open it with "
    "sqlite3.connect(..., check_same_thread=False), or in worker_init_fn"
)


class ErrorInfo(NamedTuple):
    """An exception as its worker describes it."""

    pickled: bytes | None
    """None if it cannot be pickled, or need not be: the worker is a thread of this process."""
    type_name: str
    message: str
    traceback: str
    """The traceback as text, from the first frame of the user's code."""

    @property
    def summary(self) -> str:
        """Type and message."""
        return f"{self.type_name}: {self.message}"

    def with_source_lines(self) -> ErrorInfo:
        """In the notebook's process: with the lines of cells in the traceback."""
        return self._replace(traceback=with_source_lines(self.traceback))


class SampleFailure(NamedTuple):
    """A sample that was skipped or replaced because it raised, or a call of `__getitems__` that was retried."""

    position: int
    """Position in the batch; -1 for an error of the whole batch."""
    error: str
    """Type and message."""
    traceback: str
    done: str
    """"skipped", "replaced", or "retried": `__getitems__` raised, and the samples were then fetched one by one."""

    def with_source_lines(self) -> SampleFailure:
        """See `ErrorInfo`."""
        return self._replace(traceback=with_source_lines(self.traceback))


def describe(error: BaseException, *, by_value: bool = True) -> ErrorInfo:
    """Describe an exception.

    Args:
        error: The exception.
        by_value: Whether it is sent to another process, and so is pickled.
    """
    trace = user_traceback(error)
    text = "".join(traceback.format_exception(type(error), error, trace))
    pickled = None
    if by_value:
        try:
            pickled = cloudpickle.dumps(error)
            pickle.loads(pickled)
        except Exception:  # noqa: BLE001 - an exception's own pickling may raise anything
            pickled = None
    return ErrorInfo(pickled, type(error).__name__, message_of(error), text)


def message_of(error: BaseException) -> str:
    """The message of an exception, whatever its `__str__` does."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it may raise anything
        return "<no message: its __str__ raises>"


def user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback of an exception without the leading frames of nbloader."""
    trace = error.__traceback__
    while (
        trace is not None
        and trace.tb_next is not None
        and trace.tb_frame.f_globals.get("__name__", "").startswith(_PACKAGE)
    ):
        trace = trace.tb_next
    return trace


def rebuild(error: ErrorInfo, note: str, raised: Exception | None = None) -> Exception:
    """Build the exception to raise in the consumer.

    Args:
        error: The worker's description.
        note: Where it was raised; added as a note.
        raised: The exception itself, if the worker is a thread.

    Returns:
        The exception itself; or one of the original type if it can be unpickled, else a RuntimeError, whose `__cause__`
        is the worker's traceback as text.
    """
    if raised is not None:
        if isinstance(raised, StopIteration):
            raised, cause = RuntimeError(error.summary), raised
            raised.__cause__ = cause
        _add_notes(raised, error, note)
        return raised
    rebuilt: Any = None
    if error.pickled is not None:
        try:
            rebuilt = pickle.loads(error.pickled)
        except Exception:  # noqa: BLE001 - an exception's own unpickling may raise anything
            rebuilt = None
    # A StopIteration would end the loop as if the epoch were over.
    usable = isinstance(rebuilt, Exception) and not isinstance(rebuilt, StopIteration)
    result: Exception = rebuilt if usable else RuntimeError(error.summary)
    _add_notes(result, error, note)
    result.__cause__ = WorkerTraceback(f"{note}:\n{error.traceback.rstrip()}")
    return result


def _add_notes(result: Exception, error: ErrorInfo, note: str) -> None:
    add_note(result, note)
    if error.message.startswith(_OF_ANOTHER_THREAD):
        add_note(result, _USE_IN_ANOTHER_THREAD)


def add_note(error: BaseException, note: str) -> None:
    """Do what `BaseException.add_note` does, on Python 3.10 too (where the note is kept and not printed)."""
    notes: Any = getattr(error, "__notes__", ())
    error.__notes__ = [*notes, note]  # type: ignore[attr-defined,unused-ignore]
