"""Displays and replaces outputs of notebook cells, and identifies the running cell."""

from __future__ import annotations

import contextlib
from typing import Any

from IPython import get_ipython
from IPython.display import publish_display_data

from nbloader.frontend.host import in_marimo


def display(
    display_id: str,
    text: str,
    data: dict[str, Any],
    metadata: dict[str, Any] | None = None,
    *,
    update: bool = False,
) -> None:
    """Publish an output of the running cell, or replace an existing output. A no-op without IPython, as in marimo.

    Args:
        display_id: Identifies the output for later updates.
        text: The plain-text representation. It is constant, so that executed notebooks can be compared.
        data: The other representations, keyed by MIME type.
        metadata: Their metadata, keyed by MIME type.
        update: Whether to replace the outputs with this id.
    """
    if get_ipython() is None:  # publishing would create a shell
        return
    # The kernel's channels are closed, or, with ipykernel 7.0, this thread belongs to no cell: nobody would see it.
    with contextlib.suppress(ValueError, OSError, LookupError):
        publish_display_data(  # type: ignore[no-untyped-call]
            {**data, "text/plain": text}, metadata, transient={"display_id": display_id}, update=update
        )


def display_widget(display_id: str, text: str, widget: Any) -> None:
    """Show a view of a widget below the running cell, while the cell runs.

    Args:
        display_id: Identifies the output for later updates. marimo has no such updates.
        text: The plain-text representation.
        widget: The widget.
    """
    if in_marimo():
        import marimo

        marimo.output.append(widget)
        return
    data, metadata = widget._repr_mimebundle_()  # the metadata are what Colab needs
    display(display_id, text, data, metadata)


def html_for_marimo(text: str) -> Any:
    """Return what marimo shows as HTML."""
    import marimo

    return marimo.Html(text)


def running_cell() -> str | None:
    """Return the id of the message that executes the running cell; None if there is no kernel."""
    kernel = getattr(get_ipython(), "kernel", None)
    header = kernel.get_parent("shell").get("header", {}) if kernel is not None else {}
    message_id: str | None = header.get("msg_id")
    return message_id
