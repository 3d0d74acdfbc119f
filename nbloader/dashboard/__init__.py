"""The live dashboard of a loader, for JupyterLab, Notebook 7 and other front ends with widgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbloader.dashboard.widget import Dashboard as Dashboard
    from nbloader.metrics.control import LoaderControl

__all__ = ["show"]


def show(loader: LoaderControl) -> Dashboard:
    """Show the dashboard of a loader below the running cell.

    A loader has one dashboard; each call adds a view of it.

    Args:
        loader: The loader to watch. The dashboard holds only a weak reference to it.

    Returns:
        The dashboard.

    Raises:
        RuntimeError: There is no Jupyter kernel, for example in a script or a terminal.
    """
    from IPython import get_ipython

    if getattr(get_ipython(), "kernel", None) is None:
        raise RuntimeError(
            "the dashboard needs a Jupyter notebook, and this is a script or a terminal; "
            "use print(loader.stats()) here, `for batch in loader.progress():` for a bar, or "
            "loader.report().save('report.html')"
        )
    from nbloader.dashboard.widget import dashboard_of

    dashboard = dashboard_of(loader)
    dashboard.show()
    return dashboard
