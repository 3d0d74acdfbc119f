"""Identifies the program that runs the cells and shows their outputs."""

from __future__ import annotations

import sys
from typing import Literal


def host() -> Literal["jupyter", "marimo"] | None:
    """Return what runs the cells; None in a script or a terminal."""
    if in_marimo():
        return "marimo"
    from IPython import get_ipython

    return "jupyter" if getattr(get_ipython(), "kernel", None) is not None else None


def in_marimo() -> bool:
    """Return whether this thread runs a cell of marimo."""
    marimo = sys.modules.get("marimo")
    return marimo is not None and marimo.running_in_notebook()
