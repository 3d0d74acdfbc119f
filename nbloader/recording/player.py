"""`nbloader.play()`: play recorded runs with the dashboard's JavaScript, in a notebook or on a page without a kernel.

`player.js` receives the whole recording at once. From then on it replaces the kernel for the dashboard's code.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbloader._util.format import clean, duration, megabytes
from nbloader._util.version import __version__
from nbloader.dashboard.panels import PANELS
from nbloader.errors import RecordingError
from nbloader.events import (
    BatchFailed,
    DatasetReloaded,
    EpochEnded,
    EpochStarted,
    Event,
    LoaderPaused,
    LoaderResumed,
    WorkerDied,
    WorkerRestarted,
    WorkersResized,
)
from nbloader.recording.file import Mark, Recording, read, readable
from nbloader.recording.recorder import Recorder
from nbloader.report.eventlog import line_of

if TYPE_CHECKING:
    from nbloader.dashboard.page import Report
    from nbloader.frontend.live import Assets, LiveWidget

HERE = Path(__file__).parent
TEXT = "nbloader player"
"""The plain-text form. It is constant, so that executed notebooks can be compared."""
EVENTS_MARKED = 60
"""Number of events of a run that are marked on the time line, the first ones."""
LARGEST_PAGE = 1_500_000
"""Largest size of a page, bytes."""


def play(
    run: str | os.PathLike[str] | Recorder | Mapping[str, str | os.PathLike[str] | Recorder], *, fork: str | None = None
) -> Player:
    """Play a run that `loader.record()` has written: `nbloader.play("run.nbl")` as the last line of a cell.

    The player shows what the dashboard showed. You can move it to any moment, pause it, and change its speed. It needs
    no loader, no data, and, once it is displayed, no kernel. Outside a notebook, `save()` writes a page.

    ::

        nbloader.play({"Do nothing": "wait.nbl", "Restart worker 1": "restart.nbl"}, fork="worker 1 hangs")

    With several runs, the player has a button for each, which jumps to the moment at which the runs diverge.

    Args:
        run: A file, a recorder, or a dict of several: the text of each button, and its file or recorder.
        fork: Where several runs diverge: the text of a mark (`Recorder.mark`) that each of them has. By default, the
            first mark of each run, or its beginning if it has none.

    Raises:
        RecordingError: A file is not a recording, is damaged, or has another version of the format.
        OSError: A file cannot be read.
        ValueError: A run does not have the mark, or there is no run.
    """
    runs = dict(run) if isinstance(run, Mapping) else {"": run}
    if not runs:
        raise ValueError("there is no run to play: the dict is empty")
    return Player({clean(name, 80): _read(source) for name, source in runs.items()}, fork)


def _read(source: str | os.PathLike[str] | Recorder) -> Recording:
    if isinstance(source, Recorder):
        source.close()
        return read(source.path)
    return read(source)


class Player:
    """Plays recorded runs; `nbloader.play()` creates it. It is shown at the end of a cell, or by `display()`.

    Args:
        recordings: The runs, by the text of their buttons.
        fork: See `play`.

    Raises:
        ValueError: A run does not have the mark.
        RecordingError: A run contains nothing that can be shown.
    """

    def __init__(self, recordings: dict[str, Recording], fork: str | None = None) -> None:
        self.recordings = recordings
        """The runs, by the text of their buttons; "" if there is only one."""
        self._fork = fork
        self._name = uuid.uuid4().hex[:12]
        self._panels, self._left_out = _playable(list(recordings.values()))
        self._forks = {name: self._find_fork(recording) for name, recording in recordings.items()}
        self._marks: dict[str, list[dict[str, Any]]] = {}
        for name, recording in recordings.items():
            with readable(recording.name):
                self._marks[name] = list(_marks(recording))
        self._widget: LiveWidget | None = None

    def __repr__(self) -> str:
        """Describe the runs in one line."""
        runs = (f"{name or r.name} ({duration(r.length / 1e3)})" for name, r in self.recordings.items())
        return f"<Player of {', '.join(runs)}: the last line of a notebook's cell, or .save('run.html')>"

    def _find_fork(self, recording: Recording) -> float:
        marks = [mark.now for mark in _finite_marks(recording) if self._fork in (None, mark.text)]
        if not marks and self._fork is not None:
            has = ", ".join(repr(mark.text) for mark in recording.marks) or "none"
            raise ValueError(f"{recording.name} has no mark {self._fork!r}. Its marks: {has}")
        return marks[0] if marks else 0.0

    def _display_(self) -> Any:
        """Return what marimo shows for the last line of a cell."""
        from nbloader.frontend.live import LiveWidget

        if self._widget is None:
            self._widget = LiveWidget(self._assets(), TEXT)
        self._widget.reopen()
        return self._widget

    def _ipython_display_(self) -> None:
        from nbloader.frontend.outputs import display, display_widget

        display_widget(f"{self._name}-view", TEXT, self._display_())
        display(f"{self._name}-static", TEXT, {"text/html": self._static()})

    def save(self, path: str | os.PathLike[str], *, title: str = "Recorded run", plots: bool = True) -> Path:
        """Write a page that plays the runs without a kernel, a network or another file.

        Args:
            path: File to write, such as "run.html".
            title: Title of the page.
            plots: Whether the page has the plots over time. Their library takes 0.5 MB.

        Returns:
            The path.

        Raises:
            ValueError: The page would be larger than 1.5 MB.
            OSError: The file cannot be written.
        """
        target = Path(path)
        target.write_text(self.html(title=title, plots=plots), "utf-8")
        return target

    def html(self, *, title: str = "Recorded run", plots: bool = True) -> str:
        """Return the page as text; see `save`.

        Raises:
            ValueError: The page would be larger than 1.5 MB.
        """
        from nbloader.recording.page import page

        html = page(self._sources(plots=plots), title)
        if len(html) > LARGEST_PAGE:
            without = "; plots=False saves 0.5 MB" if plots else ""
            raise ValueError(
                f"the page would have {megabytes(len(html))}, and may have {megabytes(LARGEST_PAGE)}: play fewer or "
                f"shorter runs on it, or record with a smaller limit{without}"
            )
        return html

    def report(self, run: str | None = None, epoch: int | None = None) -> Report:
        """Create the report of an epoch of a run, like `loader.report()`.

        Args:
            run: The text of the run's button; the first run by default.
            epoch: Number of the epoch; the newest by default.

        Raises:
            KeyError: There is no such run.
            RecordingError: The recording broke off before there was anything to report, or its content was changed.
        """
        from nbloader.recording.report import RecordedReport

        recording = self.recordings[next(iter(self.recordings)) if run is None else run]
        if recording.snapshot is None:
            raise RecordingError(f"{recording.name} has no statistics: it broke off in its first seconds")
        return RecordedReport(recording.name, recording.snapshot, recording.trace, epoch)

    # ---- what the browser gets ---------------------------------------------------------------------------------------

    def _assets(self) -> Assets:
        from nbloader.frontend.live import Assets

        sources = self._sources(plots=True)
        digest = hashlib.sha256(sources["recording"]()).hexdigest()[:12]
        return Assets(sources, large=frozenset({"bokeh", "recording"}), version=digest)

    def _sources(self, *, plots: bool) -> dict[str, Callable[[], bytes]]:
        from nbloader.dashboard.assets import SOURCES
        from nbloader.frontend.live import with_helpers

        content = self._content(plots=plots)
        own: dict[str, Callable[[], bytes]] = {
            "code": lambda: with_helpers(HERE / "player.js"),
            "core": SOURCES["code"],
            "player-styles": (HERE / "player.css").read_bytes,
            "recording": lambda: content,
        }
        return {name: read for name, read in {**SOURCES, **own}.items() if plots or name != "bokeh"}

    def _content(self, *, plots: bool) -> bytes:
        """The content that `player.js` plays, as JSON."""
        from nbloader.dashboard.panels.plots import documents

        panels = [panel for panel in self._panels if plots or panel["name"] != "plots"]
        shown = {panel["name"] for panel in panels}
        figures = None
        if "plots" in shown:
            plotted = [recording.messages[0]["payloads"]["plots"] for recording in self.recordings.values()]
            figures = documents(device=any(isinstance(p, dict) and "device" in str(p.get("y")) for p in plotted))
        content = {
            "id": self._name,
            "panels": panels,
            "figures": figures,
            "fork": self._fork or "",
            "runs": [self._run(name, recording, shown) for name, recording in self.recordings.items()],
        }
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()

    def _run(self, name: str, recording: Recording, shown: set[str]) -> dict[str, Any]:
        def own(by_panel: dict[str, Any]) -> dict[str, Any]:
            return {panel: value for panel, value in by_panel.items() if panel in shown}

        notes = [recording.note] if recording.note else []
        if self._left_out:
            notes.append(
                f"Not shown, since they were recorded by another version ({clean(recording.header.nbloader, 20)}; this "
                f"is {__version__}): {', '.join(self._left_out)}."
            )
        return {
            "name": name,
            "fork": self._forks[name],
            "length": recording.length,
            "note": " ".join(notes),
            "marks": self._marks[name],
            "messages": [
                [message["now"], own(message["payloads"]), own(message["news"])] for message in recording.messages
            ],
        }

    def _static(self) -> str:
        """The HTML that a notebook without a kernel shows."""
        from nbloader.dashboard import static
        from nbloader.dashboard.panels.summary import verdict_html

        recording = next(iter(self.recordings.values()))
        snapshot = recording.snapshot
        verdict, failure = ("", "") if snapshot is None else (snapshot.verdict, snapshot.failure)
        what = f"A recorded run of {duration(recording.length / 1e3)} ({recording.name})"
        return static.html(
            self._name,
            [
                verdict_html(clean(verdict, 600), clean(failure, 600)),
                f'<p class="nbl-note">{escape(clean(what))}: run this cell again to play it.</p>',
            ],
        )


def _playable(recordings: list[Recording]) -> tuple[list[dict[str, Any]], list[str]]:
    """Find the panels that this version can draw for all runs, as `core.js` expects them.

    Returns:
        These panels, and the titles of the others.

    Raises:
        RecordingError: A run has nothing to show.
    """
    panels: list[dict[str, Any]] = []
    left_out: list[str] = []
    for recording in recordings:
        if not recording.messages:
            raise RecordingError(f"{recording.name} has nothing to show: it broke off as it began")
    versions = {panel.name: panel.version for panel in PANELS}
    for spec in recordings[0].header.panels:
        others = [{p.name: p.version for p in recording.header.panels} for recording in recordings]
        shown = all(spec.name in recording.messages[0]["payloads"] for recording in recordings)
        if shown and all(versions.get(spec.name) == other.get(spec.name) for other in others):
            panels.append({"name": spec.name, "title": clean(spec.title), "unfolded": spec.unfolded})
        else:
            left_out.append(clean(spec.title or spec.name))
    if not panels:
        raise RecordingError(
            f"{recordings[0].name} was recorded by nbloader {clean(recordings[0].header.nbloader, 20)}. This is "
            f"{__version__}, which can draw none of its panels: install the other one to play it"
        )
    return panels, left_out


_MARKED = (
    BatchFailed, DatasetReloaded, EpochEnded, EpochStarted, LoaderPaused, LoaderResumed, WorkerRestarted,
    WorkersResized,
)  # fmt: skip


def _is_marked(event: Event) -> bool:
    return isinstance(event, _MARKED) or (isinstance(event, WorkerDied) and not event.expected)


def _finite_marks(recording: Recording) -> list[Mark]:
    """The marks that the user has set. In a file that was changed, there may be others, which JSON cannot hold."""
    return [mark for mark in recording.marks if math.isfinite(mark.now)]


def _marks(recording: Recording) -> Iterator[dict[str, Any]]:
    """The marks on the time line: moments that the user named, and events."""
    for mark in _finite_marks(recording):
        yield {"ms": mark.now, "text": clean(mark.text), "kind": "mark"}
    events = [event for event in recording.events if _is_marked(event)]
    for event in events[:EVENTS_MARKED]:
        line = line_of(event)
        ms = round((line.time - recording.header.origin) / 1e6, 2)
        if 0 <= ms <= recording.length:
            yield {"ms": ms, "text": line.text, "kind": line.kind}
