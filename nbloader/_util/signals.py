"""Recognizes exceptions raised by signal handlers, such as a TimeoutError of a time limit, and defers interrupts."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Iterator
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


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer a KeyboardInterrupt until the end of the block, where it would be lost or do harm.

    Only the main thread is interrupted; on other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda signum, _frame: held.append(signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous if previous is not None else signal.default_int_handler)
        if held:
            signal.raise_signal(signal.SIGINT)


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
