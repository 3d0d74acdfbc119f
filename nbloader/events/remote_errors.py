"""Errors in workers: a worker describes the exception, and the notebook's process rebuilds and raises it.

The consumer gets an exception of the original type, without attributes that cannot be pickled. If that would change its
message, it gets a RuntimeError. Its `__cause__` contains the worker's traceback as text.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
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
    """A worker's description of an exception."""

    pickled: bytes | None
    """The pickled exception, perhaps without some attributes; None if pickling failed, or if the worker is a thread of
    this process."""
    type_name: str
    message: str
    traceback: str
    """The traceback as text, from the first frame of the user's code."""

    @property
    def summary(self) -> str:
        """Type and message."""
        return f"{self.type_name}: {self.message}"

    def with_source_lines(self) -> ErrorInfo:
        """Return a copy with the source lines of notebook cells in the traceback. Call it in the notebook's process."""
        return self._replace(traceback=with_source_lines(self.traceback))


class SampleFailure(NamedTuple):
    """A sample that was skipped or replaced because it raised, or a call of `__getitems__` that was retried."""

    position: int
    """Position of the sample in the batch; -1 if the fetch of the whole batch failed."""
    error: str
    """Type and message."""
    traceback: str
    done: str
    """"skipped", "replaced" or "retried" (`__getitems__` raised, and the samples were then fetched one by one)."""

    def with_source_lines(self) -> SampleFailure:
        """See `ErrorInfo.with_source_lines`."""
        return self._replace(traceback=with_source_lines(self.traceback))


def describe(error: BaseException, *, by_value: bool = True) -> ErrorInfo:
    """Describe an exception.

    Args:
        error: The exception.
        by_value: Whether to pickle the exception, which is necessary to send it to another process.
    """
    trace = user_traceback(error)
    text = "".join(traceback.format_exception(type(error), error, trace))
    pickled = None
    if by_value:
        # A class of the notebook is pickled by name where it has one: in a worker that was forked from the notebook.
        pickled = _pickled(error, pickle.dumps) or _pickled(error, cloudpickle.dumps) or _pickled_parts(error)
    return ErrorInfo(pickled, type(error).__name__, message_of(error), text)


def _pickled(value: Any, dumps: Callable[[Any], bytes]) -> bytes | None:
    try:
        pickled = dumps(value)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001 - an exception's own pickling may raise anything
        return None
    return pickled


def _pickled_parts(error: BaseException) -> bytes | None:
    """Pickle an exception without the attributes that cannot be pickled, such as a lock or an open file.

    Its constructor, which may take other arguments than `error.args`, is not called.

    Returns:
        The pickle; None if the exception would have another message.
    """
    message = message_of(error)
    attributes = {name: value for name, value in vars(error).items() if _pickled(value, cloudpickle.dumps)}
    for args in (error.args, (message,)):
        for dumps in (pickle.dumps, cloudpickle.dumps):
            pickled = _pickled(_Parts(type(error), args, attributes), dumps)
            if pickled is not None and message_of(pickle.loads(pickled)) == message:
                return pickled
    return None


class _Parts(NamedTuple):
    """An exception in parts. Its pickle is that of the exception."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    attributes: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        """Let an unpickler put the exception together."""
        return _from_parts, tuple(self)


def _from_parts(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


def message_of(error: BaseException) -> str:
    """Return the message of an exception. Never raises, even if the exception's `__str__` does."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it may raise anything
        return "<no message: its __str__ raises>"


def user_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception without the leading frames of nbloader."""
    trace = error.__traceback__
    while (
        trace is not None
        and trace.tb_next is not None
        and trace.tb_frame.f_globals.get("__name__", "").startswith(_PACKAGE)
    ):
        trace = trace.tb_next
    return trace


def rebuild(error: ErrorInfo, note: str, raised: Exception | None) -> Exception:
    """Build the exception to raise in the consumer.

    Args:
        error: The worker's description.
        note: Where the exception was raised; added to the exception as a note.
        raised: The exception itself, if the worker is a thread; None otherwise.

    Returns:
        `raised` if it is given; a StopIteration is replaced by a RuntimeError. Otherwise an exception of the original
        type if it can be unpickled, or else a RuntimeError; its `__cause__` contains the worker's traceback as text.
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
    """Add a note like `BaseException.add_note`. Works on Python 3.10, too, where the note is stored but not printed."""
    notes: Any = getattr(error, "__notes__", ())
    error.__notes__ = [*notes, note]  # type: ignore[attr-defined,unused-ignore]
