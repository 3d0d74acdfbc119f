"""Outputs of notebook cells: displaying and replacing them, and which cell is running."""

from __future__ import annotations

import contextlib
from typing import Any

from IPython import get_ipython
from IPython.display import publish_display_data


def display(display_id: str, text: str, data: dict[str, Any], *, update: bool = False) -> None:
    """Display something in the output of the running cell, or in place of what has this id.

    Args:
        display_id: Identifies the output for a later update.
        text: The plain-text form; constant, so that executed notebooks can be compared.
        data: By MIME type.
        update: Whether to replace what has this id.
    """
    with contextlib.suppress(ValueError, OSError):  # the kernel's channels are closed: nobody would see it
        publish_display_data(  # type: ignore[no-untyped-call]
            {**data, "text/plain": text}, transient={"display_id": display_id}, update=update
        )


def running_cell() -> str | None:
    """The id of the message that runs the current cell."""
    kernel = getattr(get_ipython(), "kernel", None)
    header = kernel.get_parent("shell").get("header", {}) if kernel is not None else {}
    message_id: str | None = header.get("msg_id")
    return message_id
