"""Run a call in the debugger: IPython's debugger if IPython is running, otherwise pdb.

debug(call, stop_in) -> the call begins -> a function of `stop_in` is entered -> prompt at its first line
                                        -> the call raises -> prompt at the line that raised
"""

from __future__ import annotations

import bdb
import inspect
import pdb  # noqa: T100 - this module runs the debugger
import sys
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType
from typing import Any

from nbloader.events.remote_errors import user_traceback
from nbloader.workers.fetcher import innermost

_PACKAGE = __name__.partition(".")[0]


def code_of(dataset: Any, *names: str) -> set[CodeType]:
    """Return the code of the methods that produce the samples of a dataset.

    For torch's `Subset` and `ConcatDataset`, this uses the methods of the datasets inside them.

    Args:
        dataset: The dataset.
        names: Candidate names of the method. The first one that exists is used.

    Returns:
        The code objects; empty if the methods are not written in Python.
    """
    codes = set()
    for part in innermost(dataset):
        method = next(filter(None, (getattr(type(part), name, None) for name in names)), None)
        code = getattr(inspect.unwrap(method), "__code__", None) if method is not None else None
        if isinstance(code, CodeType):
            codes.add(code)
    return codes


def debug(call: Callable[[], object], stop_in: Collection[CodeType] = ()) -> Exception | None:
    """Call a function in the debugger. The debugger's command `q` ends the call.

    Args:
        call: The function.
        stop_in: Code of functions: the prompt appears at the first line of the one that is entered first.

    Returns:
        The exception that the call raised, after a prompt at the line that raised it; None if there was none.
    """
    debugger: Any = _debugger()
    frames = list(_frames())
    tracing = [(frame, frame.f_trace) for frame in frames]
    before = sys.gettrace()
    try:
        if stop_in:
            sys.settrace(_StopIn(debugger, stop_in))
        try:
            call()
        finally:
            sys.settrace(before)
            for frame, trace in tracing:  # the debugger leaves its trace function in the frames that it stepped into
                frame.f_trace = trace
    except bdb.BdbQuit:
        return None
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        post_mortem(error, debugger)
        return error
    return None


def post_mortem(error: Exception, debugger: Any = None) -> None:
    """Open the debugger at the line that raised.

    Args:
        error: The exception that was raised.
        debugger: The debugger; None to create one.
    """
    trace = user_traceback(error)
    if trace is None:
        return
    if debugger is None:
        debugger = _debugger()
    print(f"{type(error).__name__}: {error}")  # noqa: T201 - for the user at the prompt
    debugger.reset()
    debugger.botframe = trace.tb_frame
    debugger.interaction(None, trace)


class _StopIn:
    """A trace function that starts a debugger when one of the given functions is entered.

    Args:
        debugger: The debugger.
        codes: The code of the functions.
    """

    def __init__(self, debugger: Any, codes: Collection[CodeType]) -> None:
        self._debugger = debugger
        self._codes = codes

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        """Handle a trace event: start the debugger if the frame belongs to one of the functions."""
        if event != "call" or frame.f_code not in self._codes:
            return None
        debugger = self._debugger
        debugger.reset()
        debugger.botframe = _outermost(frame)  # the outermost frame that the debugger shows
        debugger.set_step()
        sys.settrace(debugger.trace_dispatch)
        return debugger.trace_dispatch


def _frames() -> Iterator[FrameType]:
    """Yield the frames of this thread, from the caller's frame outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _outermost(frame: FrameType) -> FrameType:
    """Return the frame that nbloader called: the first one, going outwards, whose caller is a frame of nbloader."""
    while frame.f_back is not None and not frame.f_back.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    return frame


def _debugger() -> Any:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    cls: Any = getattr(shell, "debugger_cls", pdb.Pdb)
    return cls(nosigint=True)  # otherwise the debugger would install a SIGINT handler, and Ctrl-C would open it
