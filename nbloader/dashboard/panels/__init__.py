"""The panels of the dashboard, one module each, and their registry.

To add a panel:

1. Write `panels/<name>.py` with a subclass of `Panel`: a name, a title, and a `payload()` of JSON values.
2. Write `panels/<name>.js` beside it with `export function create(el, api)`, which returns an object with
   `update(data)`: it draws the payload into `el`.
3. Add the class to `PANELS` below. (From outside of this package, call `register()` before the dashboard is shown.)

The dashboard sends a payload whenever it differs from the last one. It takes care of the heading, of folding, of views
that are opened later, and of reloaded pages. tests/browser/sample_rate.py is a complete example.
"""

from __future__ import annotations

from nbloader.dashboard.panels.base import Frame, Panel, Reply
from nbloader.dashboard.panels.controls import Controls
from nbloader.dashboard.panels.events import Events
from nbloader.dashboard.panels.lines import Lines
from nbloader.dashboard.panels.path import Path
from nbloader.dashboard.panels.plots import Plots
from nbloader.dashboard.panels.samples import Samples
from nbloader.dashboard.panels.summary import Summary
from nbloader.dashboard.panels.timeline import Timeline
from nbloader.dashboard.panels.workers import Workers

__all__ = ["PANELS", "Frame", "Panel", "Reply", "register"]

PANELS: list[type[Panel]] = [Summary, Controls, Path, Timeline, Lines, Workers, Plots, Samples, Events]
"""From top to bottom."""


def register(panel: type[Panel]) -> None:
    """Add a panel below the others, to the dashboards that are created from now on.

    Registering a class of the same name again, as by running a notebook cell twice, replaces the first.

    Args:
        panel: The class.

    Raises:
        FileNotFoundError: There is no JavaScript module beside its Python module.
    """
    script = panel.script()
    if not script.is_file():
        raise FileNotFoundError(f"the panel {panel.name!r} needs a JavaScript module: {script} does not exist")
    for i, other in enumerate(PANELS):
        if other.name == panel.name:
            PANELS[i] = panel
            return
    PANELS.append(panel)
