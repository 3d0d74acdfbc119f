"""Render snapshots and events as text, HTML and trace files."""

from __future__ import annotations

from nbloader.metrics.snapshot import set_renderer
from nbloader.report import render

set_renderer(render)  # it formats `print(loader.stats())`, and a snapshot at the end of a cell
