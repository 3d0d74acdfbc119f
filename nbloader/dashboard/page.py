"""`loader.report()`: an epoch as a single HTML page that needs no kernel, no network and no other file."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from nbloader._util.format import plural
from nbloader.dashboard import figures
from nbloader.dashboard.charts import HISTOGRAM_TITLE, HISTOGRAM_UNIT, charts_of, columns_of
from nbloader.dashboard.timeline_figure import timeline
from nbloader.events import BatchRecord
from nbloader.metrics.stage_times import histogram
from nbloader.metrics.time_series import points_of
from nbloader.report import render
from nbloader.report.eventlog import line_of

if TYPE_CHECKING:
    from bokeh.model import Model

    from nbloader.metrics.snapshot import Snapshot
    from nbloader.report.trace import Trace

LINES = 300
"""Largest number of lines in the log, the last ones."""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>nbloader: {title}</title>
{resources}
<style>
body {{ max-width: 1180px; margin: 24px auto; padding: 0 16px; color: #1f2328; background: #ffffff;
  font: 14px/1.45 system-ui, sans-serif; }}
.nbloader-report {{ max-width: none !important; }}
h1 {{ font-size: 20px; }} h2 {{ margin: 28px 0 6px; font-size: 16px; }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 14px 24px; }}
.plots figure {{ margin: 0; min-width: 0; }} figcaption {{ font-weight: 600; }}
figcaption span {{ font-weight: 400; opacity: .65; }}
.log {{ max-height: 320px; overflow: auto; font-size: 12px; }}
.log td {{ padding: 1px 12px 1px 0; vertical-align: top; }}
</style>
</head>
<body>
<h1>nbloader: {title}</h1>
{summary}
<h2>Timeline</h2>
{timeline}
<h2>Plots over time</h2>
<div class="plots">{charts}</div>
<h2>Events</h2>
<div class="log"><table>{log}</table></div>
{script}
</body>
</html>
"""


class Report:
    """HTML page about an epoch; `loader.report()` returns one. A notebook shows its summary and how to save the page.

    Args:
        snapshot: State of the loader when the report was made.
        trace: Events of the epoch.
    """

    def __init__(self, snapshot: Snapshot, trace: Trace) -> None:
        self.snapshot = snapshot
        self.trace = trace

    def __repr__(self) -> str:
        """Describe the report in one line."""
        return f"<Report of {plural(len(self.trace), 'batch')}: save it with .save('report.html')>"

    def _repr_html_(self) -> str:
        """Return only the summary: the whole page contains 1.3 MB of BokehJS, which is too much for a notebook."""
        return render.to_html(self.snapshot) + "<p>With timeline and plots: <code>.save('report.html')</code></p>"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file of about 1.5 MB, most of which is BokehJS.

        Args:
            path: File to write, such as "report.html".

        Returns:
            The path.

        Raises:
            OSError: The file cannot be written.
        """
        target = Path(path)
        target.write_text(self.html(), "utf-8")
        return target

    def html(self) -> str:
        """Return the page as text."""
        from bokeh.embed import components
        from bokeh.resources import Resources

        points = columns_of(points_of(self.trace.batches))
        charts_shown = charts_of(device=any(r.placed is not None for r in self.trace.batches))
        models: dict[str, Model] = {
            "timeline": timeline(self.trace),
            **{chart.name: figures.figure_of(chart, points) for chart in charts_shown},
            "histogram": figures.histogram_of(histogram(self.trace.batches)),
        }
        script, divs = components(models)
        captions = {chart.name: _caption(chart.title, chart.unit) for chart in charts_shown}
        captions["histogram"] = _caption(HISTOGRAM_TITLE, HISTOGRAM_UNIT)
        charts = "".join(f"<figure>{caption}{divs[name]}</figure>" for name, caption in captions.items())
        s = self.snapshot
        return _PAGE.format(
            title=f"epoch {s.epoch}" if s.epoch >= 0 else "no epoch yet",
            resources=Resources(mode="inline", components=["bokeh"]).render(),
            summary=render.to_html(s),
            timeline=divs["timeline"],
            charts=charts,
            log=self._log(),
            script=script,
        )

    def _log(self) -> str:
        lines = [line_of(e) for e in self.trace.events if not isinstance(e, BatchRecord)][-LINES:]
        return "".join(
            f"<tr><td>{(line.time - self.trace.origin) / 1e9:.3f} s</td><td>{escape(line.text)}</td></tr>"
            for line in lines
        )


def _caption(title: str, unit: str) -> str:
    return f"<figcaption>{title} <span>{unit}</span></figcaption>"
