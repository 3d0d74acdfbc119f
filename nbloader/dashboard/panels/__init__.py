"""The panels of the dashboard, one module each, and their registry.

To add a panel:

1. Write `panels/<name>.py` with a subclass of `Panel`: a name, a title, and a `payload()` that returns JSON values.
2. Write `panels/<name>.js` beside it with `export function create(el, api)`. This function returns an object with a
   method `update(data)`, which draws the payload into `el`.
3. Add the class to `PANELS` below. (From outside this package, call `register()` before the dashboard is created.)

The dashboard sends a payload whenever it differs from the last one. It handles the heading, folding, views that are
opened later, and reloaded pages. tests/browser/sample_rate.py is a complete example.
"""

from __future__ import annotations

from nbloader.dashboard.panels.base import Frame, Panel, Reply
from nbloader.dashboard.panels.controls import Controls
from nbloader.dashboard.panels.device import Device
from nbloader.dashboard.panels.events import Events
from nbloader.dashboard.panels.lines import Lines
from nbloader.dashboard.panels.path import Path
from nbloader.dashboard.panels.plots import Plots
from nbloader.dashboard.panels.remedies import Remedies
from nbloader.dashboard.panels.samples import Samples
from nbloader.dashboard.panels.summary import Summary
from nbloader.dashboard.panels.timeline import Timeline
from nbloader.dashboard.panels.workers import Workers
from nbloader.frontend import scripted

__all__ = ["PANELS", "Frame", "Panel", "Reply", "register"]

PANELS: list[type[Panel]] = [
    Summary, Controls, Path, Device, Timeline, Lines, Remedies, Workers, Plots, Samples, Events,
]  # fmt: skip
"""Classes of the panels, from top to bottom."""


def register(panel: type[Panel]) -> None:
    """Add a panel below the others in all dashboards that are created later.

    A class with the name of a registered panel replaces that panel, for example if a notebook cell is run twice.

    Args:
        panel: The class of the panel.

    Raises:
        FileNotFoundError: There is no JavaScript module beside its Python module.
    """
    scripted.add(PANELS, panel, at=len(PANELS))
