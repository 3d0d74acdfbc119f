"""Notice that no page answers a widget, and say why and what to do.

A page that can draw a widget requests its code at once. If no message has come a few seconds after the widget was
shown, although the kernel has looked for messages since, then none will come while this goes on: the Jupyter server
lacks anywidget, or the front end delivers messages only between cells. A page without any widgets closes the comm.

A program that executes notebooks (nbconvert, papermill) never answers, and nobody is there to read advice. It is
recognized by the cells that it runs: they may not ask for input.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

from IPython import get_ipython

PATIENCE = 4.0
"""Seconds after which a page that has not answered is called silent."""
RECHECK = 1.0
"""Seconds until the next look, if the kernel was busy at the time of the first one."""


class Silence:
    """Whether the pages that show a widget are silent. Only the thread that runs cells makes a widget silent."""

    def __init__(self) -> None:
        self._shown: float | None = None
        self._answered = False
        self._late = False

    @property
    def noticed(self) -> bool:
        """Whether the widget was shown to someone, and no page has answered in time."""
        return self._late and not self._answered

    def shown(self, on_notice: Callable[[], object]) -> None:
        """The widget is shown by the running cell.

        Args:
            on_notice: Called on the kernel's main thread between cells, once, if no page has answered.
        """
        if self._shown is None and _has_reader():
            self._shown = time.monotonic()
            self._check_later(on_notice)

    def heard(self) -> bool:
        """A message came from a page.

        Returns:
            Whether the widget counted as silent before this message.
        """
        was_silent, self._answered = self.noticed, True
        return was_silent

    def looked(self, *, closed: bool = False) -> None:
        """The kernel has just handled all messages that had come.

        Args:
            closed: Whether a page has closed the comm of the widget.
        """
        if self._shown is not None and (closed or time.monotonic() - self._shown > PATIENCE):
            self._late = True

    def _check_later(self, on_notice: Callable[[], object]) -> None:
        loop = getattr(getattr(get_ipython(), "kernel", None), "io_loop", None)
        if loop is None:
            return

        def check(due: float) -> None:
            if time.monotonic() - due > RECHECK / 2:  # a cell was running: messages may still wait
                loop.call_later(RECHECK, check, time.monotonic() + RECHECK)
                return
            before = self.noticed
            self.looked()
            if self.noticed and not before:
                on_notice()

        # The loop runs between cells, on the main thread.
        loop.add_callback(lambda: loop.call_later(PATIENCE + 0.1, check, time.monotonic() + PATIENCE + 0.1))


def _has_reader() -> bool:
    """Whether the running cell was sent by a front end in which a person can answer questions."""
    kernel: Any = getattr(get_ipython(), "kernel", None)
    return kernel is not None and bool(kernel.get_parent("shell").get("content", {}).get("allow_stdin"))


def advice(what: str, again: str, calls: str) -> str:
    """Return HTML that says why there is no live view, and what to do.

    Args:
        what: "dashboard" or "explorer".
        again: The statement that shows the widget again.
        calls: HTML that says what to use in place of the view.
    """
    return (
        f'<div class="nbl-silent" role="status"><p><b>This page does not respond, so the {what} is not live.</b>'
        f" {_remedy(again)}</p><p>{calls}</p></div>"
    )


def _remedy(again: str) -> str:
    shell: Any = get_ipython()
    if "google.colab" in sys.modules:
        return (
            "Colab needs <code>google.colab.output.enable_custom_widget_manager()</code>, which nbloader has called."
            f" Reload this page, and run <code>{escape(again)}</code> again."
        )
    if "__vsc_ipynb_file__" in getattr(shell, "user_ns", {}):
        return (
            "VS Code may deliver messages only between cells. Interrupt the running cell, run"
            f" <code>{escape(again)}</code> in a cell of its own, and start the loop in another one."
        )
    return (
        "Run <code>pip install anywidget</code> where the Jupyter server runs. With JupyterHub, SageMaker or kernels in"
        " conda environments, this is not the environment of the kernel. Then reload this page, and run"
        f" <code>{escape(again)}</code> again."
    )
