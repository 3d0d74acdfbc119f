"""Callbacks that do not keep the object alive whose method they call."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weakly(method: Callable[..., object]) -> Callable[..., None]:
    """Return a function that calls a bound method, unless its object was garbage-collected.

    Args:
        method: The bound method.
    """
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        found = reference()
        if found is not None:
            found(*arguments)

    return call
