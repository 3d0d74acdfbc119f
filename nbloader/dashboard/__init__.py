"""The live dashboard of a loader, for JupyterLab, Notebook 7, marimo and other front ends with widgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbloader.dashboard.widget import Dashboard as Dashboard
    from nbloader.metrics.control import LoaderControl

__all__ = ["show"]


INSTEAD = (
    "nbloader: the dashboard needs a notebook (Jupyter or marimo). In a script or a terminal use "
    "print(loader.stats()), `for batch in loader.progress():` for a bar, or loader.report().save('report.html')."
)
"""What a script or a terminal prints in place of the dashboard."""


def show(loader: LoaderControl) -> Dashboard | None:
    """Show the dashboard of a loader below the running cell.

    A loader has one dashboard; each call adds a view of it. Without Jupyter and marimo, for example in a script that
    was exported from a notebook, a line is printed that says what to use instead, and the program goes on.

    Args:
        loader: The loader to watch. The dashboard holds only a weak reference to it.

    Returns:
        The dashboard; None in a script or a terminal.
    """
    from nbloader.frontend.host import host

    if host() is None:
        print(INSTEAD)  # noqa: T201 - as the dashboard would be in the output of a cell
        return None
    from nbloader.dashboard.widget import dashboard_of

    dashboard = dashboard_of(loader)
    dashboard.show()
    return dashboard
