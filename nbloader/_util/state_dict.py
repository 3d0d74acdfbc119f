"""Helpers for the `state_dict()` protocol of samplers and iterable datasets, and for states stored as JSON."""

from __future__ import annotations

import json
from typing import Any


def is_stateful(thing: Any) -> bool:
    """Return whether an object has `state_dict()` and `load_state_dict()`."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def as_json(value: Any, what: str) -> tuple[str | None, str]:
    """Convert a value to JSON that reproduces it exactly.

    Args:
        value: The value.
        what: The name of the value, for the message.

    Returns:
        The JSON text and "", or None and a message about what is wrong with the value.
    """
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        return None, (
            f"{what} cannot be stored as JSON: {error}. It may contain only plain numbers, strings, lists and dicts"
        )
    if json.loads(text) != value:
        return None, (
            f"{what} changes when it is stored as JSON: tuples become lists, and dict keys become strings. "
            "It may contain only plain numbers, strings, lists and dicts with string keys"
        )
    return text, ""
