"""Updates objects whose class was redefined, because a notebook cell was run again or a module was reloaded."""

from __future__ import annotations

import sys
from typing import Any


def with_current_class(dataset: Any) -> Any:
    """Give an object the current definition of its class, in place.

    Raises:
        TypeError: Python does not allow it, because the new class has a different layout (such as other `__slots__`).
    """
    cls = type(dataset)
    current: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        current = getattr(current, name, None)
    if isinstance(current, type) and current is not cls:
        try:
            dataset.__class__ = current
        except TypeError as error:
            raise TypeError(
                f"the dataset cannot take the new definition of {cls.__name__}: {error}. "
                "Create a new object and pass it to reload(dataset)."
            ) from error
    return dataset
