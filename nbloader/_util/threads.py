"""Threads that may send messages to a notebook."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any


def in_this_context(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that calls another one in a copy of the present context (`contextvars`).

    ipykernel 7.0 keeps the cell that a message belongs to in a context variable, which a new thread lacks: each message
    that the thread sends would raise a LookupError.
    """
    context = contextvars.copy_context()
    return lambda *args: context.run(function, *args)


def daemon(function: Callable[..., object], *args: Any, name: str) -> threading.Thread:
    """Create a daemon thread that runs a function in the context of the caller.

    Args:
        function: The function.
        *args: Its arguments.
        name: Name of the thread.
    """
    return threading.Thread(target=in_this_context(function), args=args, name=name, daemon=True)
