"""Run a call in the debugger: IPython's where IPython is running, otherwise pdb.

debug(call, stop_in) -> the call begins -> one of these functions is entered -> prompt at its first line
                                        -> it raises -> prompt at the line that raised
"""

from __future__ import annotations

import bdb
import inspect
import pdb  # noqa: T100 - this is what it is for
import sys
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType
from typing import Any

from nbloader.events.remote_errors import user_traceback
from nbloader.workers.fetcher import innermost

_PACKAGE = __name__.partition(".")[0]


def code_of(dataset: Any, *names: str) -> set[CodeType]:
    """The functions that give the samples of a dataset: of the one inside torch's `Subset` and `ConcatDataset`.

    Args:
        dataset: The dataset.
        names: The names of these functions; what counts is the first that there is.

    Returns:
        Empty if the functions are not written in Python.
    """
    codes = set()
    for part in innermost(dataset):
        method = next(filter(None, (getattr(type(part), name, None) for name in names)), None)
        code = getattr(inspect.unwrap(method), "__code__", None) if method is not None else None
        if isinstance(code, CodeType):
            codes.add(code)
    return codes


def debug(call: Callable[[], object], stop_in: Collection[CodeType] = ()) -> Exception | None:
    """Call a function in the debugger. The user's `q` ends the call.

    Args:
        call: The function.
        stop_in: The prompt comes at the first line of the first of these functions that is entered.

    Returns:
        What the call raised; the prompt has come at the line that raised it.
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
            for frame, trace in tracing:  # the debugger leaves its own in the frames that it has stepped into
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
        error: What it raised.
        debugger: The debugger; None for a new one.
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
    """A trace function that hands over to a debugger when one of some functions is entered.

    Args:
        debugger: The debugger.
        codes: The functions.
    """

    def __init__(self, debugger: Any, codes: Collection[CodeType]) -> None:
        self._debugger = debugger
        self._codes = codes

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        """A function is entered."""
        if event != "call" or frame.f_code not in self._codes:
            return None
        debugger = self._debugger
        debugger.reset()
        debugger.botframe = _outermost(frame)  # what it shows of the stack ends here
        debugger.set_step()
        sys.settrace(debugger.trace_dispatch)
        return debugger.trace_dispatch


def _frames() -> Iterator[FrameType]:
    """The frames of this thread, outwards from the caller's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _outermost(frame: FrameType) -> FrameType:
    """The frame from which nbloader was left."""
    while frame.f_back is not None and not frame.f_back.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    return frame


def _debugger() -> Any:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    cls: Any = getattr(shell, "debugger_cls", pdb.Pdb)
    return cls(nosigint=True)  # otherwise Ctrl-C would open the debugger from now on
