"""Recognizes exceptions raised by signal handlers, such as a TimeoutError that limits the run time of a cell."""

from __future__ import annotations

import functools
import signal
import threading
from types import CodeType
from typing import Any


def raised_by_handler(error: BaseException) -> bool:
    """Return whether an exception was raised by a Python function that is installed as a signal handler.

    Such a function can run between any two instructions of the main thread. Its exception is meant for the program and
    is not an error of the interrupted code. The handler is recognized in the traceback.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """Return the code object of a function, a method, a partial or a callable object; None for a handler in C."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    for function in (
        handler,
        getattr(handler, "__func__", None),
        type(handler).__call__ if callable(handler) else None,
    ):
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
