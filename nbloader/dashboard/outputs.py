"""Outputs of notebook cells: what is shown in them, and which cell runs now."""

from __future__ import annotations

import contextlib
from typing import Any

from IPython import get_ipython
from IPython.display import publish_display_data

TEXT = "nbloader dashboard"
"""The text form, the same whatever the loader does, so that notebooks can be compared."""


def display(display_id: str, data: dict[str, Any], *, update: bool = False) -> None:
    """Show something in the output of the running cell, or in place of what has this id.

    Args:
        display_id: By which it can be replaced.
        data: By MIME type.
        update: Whether it takes the place of what has this id.
    """
    with contextlib.suppress(ValueError, OSError):  # the kernel's channels are closed: nobody would see it
        publish_display_data(  # type: ignore[no-untyped-call]
            {**data, "text/plain": TEXT}, transient={"display_id": display_id}, update=update
        )


def cell() -> str | None:
    """Give the id of the message that runs the current cell."""
    kernel = getattr(get_ipython(), "kernel", None)
    header = kernel.get_parent("shell").get("header", {}) if kernel is not None else {}
    message_id: str | None = header.get("msg_id")
    return message_id
