"""The dashboard without a browser: what it says, what it sends, what it leaves, and when it ends."""

from __future__ import annotations

import dataclasses
import gc
import gzip
import json
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from fake_loader import FakeLoader

from nbloader.dashboard import picture, plots, show, widget
from nbloader.dashboard.payload import COLUMNS, TIPS, columns_of, view_of
from nbloader.metrics.snapshot import STAGES, Point

TIMEOUT = 10


class Screen:
    """Takes the place of the kernel: keeps what a dashboard sends and displays."""

    def __init__(self) -> None:
        self.sent: queue.Queue[dict[str, Any]] = queue.Queue()
        self.pictures: queue.Queue[tuple[str, str]] = queue.Queue()

    def next(self, kind: str) -> dict[str, Any]:
        """Wait for the next message of a kind."""
        while True:
            message = self.sent.get(timeout=TIMEOUT)
            if message["kind"] == kind:
                return message

    def picture_with(self, text: str) -> str:
        """Wait for a picture that contains a text."""
        while True:
            _, html = self.pictures.get(timeout=TIMEOUT)
            if text in html:
                return html


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(
        widget.DashboardWidget,
        "send",
        lambda _self, message, buffers=None: screen.sent.put(message | {"data": buffers}),
    )
    monkeypatch.setattr(
        widget,
        "display",
        lambda name, data, update=False: screen.pictures.put((name, data.get("text/html", ""))),
    )
    monkeypatch.setattr(widget, "_write_pictures_in_time", lambda: None)
    return screen


@pytest.fixture
def loader(screen: Screen) -> Iterator[FakeLoader]:
    loader = FakeLoader(batches=5, pace=0.01)
    yield loader
    dashboard = widget._dashboards.get(loader)
    loader.close()
    if dashboard is not None:
        dashboard._thread.join(TIMEOUT)
        assert not dashboard._thread.is_alive()


def say(dashboard: widget.Dashboard, **message: Any) -> None:
    """Speak as a view in the browser does."""
    dashboard._on_message(dashboard.widget, message, [])


def test_a_picture_that_is_written_while_a_message_goes_out_does_not_count_as_sent(
    loader: FakeLoader, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    screen.next("full")
    send = widget.DashboardWidget.send
    drawn = threading.Thread(target=dashboard.write_picture)

    def slow_send(self: widget.DashboardWidget, message: dict[str, Any], buffers: Any = None) -> None:
        if drawn.ident is None and message.get("view", {}).get("state") == "running":
            loader.state = "idle"
            drawn.start()
            drawn.join(0.3)  # the main thread's picture is asked for now; it may wait until this has gone out
        send(self, message, buffers)

    monkeypatch.setattr(widget.DashboardWidget, "send", slow_send)
    loader.state = "running"
    dashboard._wake.set()
    states = []
    while "idle" not in states[-1:]:
        states.append(screen.next("tick")["view"].get("state"))
    drawn.join(TIMEOUT)
    assert states.index("running") < states.index("idle")


def test_a_view_that_is_ready_gets_everything_and_then_only_news(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    full = screen.next("full")
    assert set(full["view"]) >= {"verdict", "progress", "tiles", "path", "samples", "settings"}
    assert [row["id"] for row in full["view"]["workers"]["rows"]] == [0, 1, 2]
    assert list(full["points"]) == [*COLUMNS, *TIPS]
    for _ in loader:
        pass
    view: dict[str, Any] = {}
    while view.get("state") != "idle":
        view |= screen.next("tick")["view"]
    assert view["progress"] == {"share": 1.0, "text": "epoch 0 · batch 5 of 5 · 100 %"}


def test_points_are_sent_once(loader: FakeLoader, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [Point(float(i), 1, 0, 0, 1, 0.5, (0.0,) * len(STAGES)) for i in range(3)]
    monkeypatch.setattr(loader, "points", lambda: points)
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    assert screen.next("full")["points"]["time"] == [0, 1, 2]
    points = [*points[1:], dataclasses.replace(points[0], time=3.0)]
    dashboard._wake.set()
    assert screen.next("tick")["points"]["time"] == [3]


def test_nothing_is_sent_while_nothing_changes_or_nobody_looks(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    dashboard._tick()
    assert screen.sent.empty()
    say(dashboard, kind="ready", view="a")
    screen.next("full")
    assert not dashboard._tick()
    say(dashboard, kind="gone", view="a")
    loader.done = 3
    assert not dashboard._tick()


def test_nothing_piles_up_for_views_that_do_not_come(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    loader.pause()
    loader.resume()
    dashboard._tick()
    assert (dashboard._new_spans, dashboard._new_lines) == ([], [])
    say(dashboard, kind="ready", view="a")
    assert [text for _, _, text in screen.next("full")["lines"]] == ["paused", "resumed"]


@pytest.mark.parametrize("name", ["code", "styles", "bokeh"])
def test_the_browser_gets_its_code_from_the_kernel(loader: FakeLoader, screen: Screen, name: str) -> None:
    say(widget.dashboard_of(loader), kind="asset", name=name)
    assert screen.next("asset")["data"][0][:2] == b"\x1f\x8b"


def test_an_unknown_message_is_ignored(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="asset", name="../../secret")
    say(dashboard, kind="something")
    say(dashboard, kind="command", name="format the disk")
    assert screen.sent.empty()
    assert loader.commands == []


def test_clicks_become_commands(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="command", name="restart", worker=1)
    say(dashboard, kind="command", name="pause", worker=None)
    say(dashboard, kind="command", name="resume", worker=None)
    say(dashboard, kind="command", name="restart", worker=None)
    assert loader.commands == ["restart 1", "pause", "resume", "restart 0", "restart 1", "restart 2"]


def test_step_and_sliders_become_commands(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="command", name="step")
    say(dashboard, kind="command", name="resize", value=5)
    say(dashboard, kind="command", name="prefetch", value=1)
    assert loader.commands == ["step", "resize 5", "prefetch 1"]
    assert (loader.num_workers, loader.prefetch_factor) == (5, 1)


def test_what_a_loader_says_against_a_command_goes_to_who_clicked(
    loader: FakeLoader, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ValueError("<script>no\x00")

    monkeypatch.setattr(loader, "pause", refuse)
    say(widget.dashboard_of(loader), kind="command", name="pause", view="a")
    said = screen.next("said")
    assert said["to"] == "a"
    assert said["text"] == "ValueError: <script>no\N{REPLACEMENT CHARACTER}"


def test_plots_are_sent_when_they_are_asked_for(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    assert "plots" not in screen.next("full")
    say(dashboard, kind="plots", view="a")
    message = screen.next("plots")
    assert [chart["name"] for chart in message["plots"]["charts"]] == [
        chart.name for chart in plots.charts_of(placed=False)
    ]
    assert list(message["points"]) == [*COLUMNS, *TIPS]


def test_the_stack_of_a_worker_goes_to_who_asked_and_so_does_the_reason_when_there_is_none(
    loader: FakeLoader, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="stack", worker=1, view="a")
    assert "line 13 in __getitem__" in screen.next("stack")["text"]
    monkeypatch.delattr(FakeLoader, "stack")
    say(dashboard, kind="stack", worker=2, view="b")
    message = screen.next("stack")
    assert (message["to"], message["worker"]) == ("b", 2)
    assert "stack" in message["text"]


def test_the_trace_is_a_file_for_the_browser_to_save(loader: FakeLoader, screen: Screen) -> None:
    for _ in loader:
        pass
    say(widget.dashboard_of(loader), kind="trace", view="a")
    message = screen.next("file")
    assert message["name"] == "nbloader-epoch-0.json"
    assert json.loads(gzip.decompress(message["data"][0]))["traceEvents"]


def test_only_what_changed_is_sent() -> None:
    rows = [{"id": 0, "cells": ["a"]}, {"id": 1, "cells": ["b"]}]
    before = {"state": "running", "tiles": [1], "workers": rows}
    after = {"state": "running", "tiles": [2], "workers": [rows[0], {"id": 1, "cells": ["c"]}]}
    assert widget._changes(before, after) == {"tiles": [2], "workers": {"count": 2, "rows": [after["workers"][1]]}}
    assert widget._changes(after, {**after, "workers": rows[:1]}) == {"workers": {"count": 1, "rows": []}}
    assert widget._changes(after, after) == {}


def test_looks_that_cost_much_are_rarer_and_a_single_one_changes_little() -> None:
    most = widget.TICK * widget.SHARE
    assert widget._interval([most / 2] * (widget.COSTS - 1) + [5 * most]) == widget.TICK
    assert widget._interval([2 * most] * widget.COSTS) == pytest.approx(2 * widget.TICK)


def test_events_are_sent_once_and_later_views_get_those_before(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    screen.next("full")
    loader.pause()
    loader.resume()
    lines: list[Any] = []
    while len(lines) < 2:
        lines += screen.next("tick")["lines"]
    assert [text for _, _, text in lines] == ["paused", "resumed"]
    say(dashboard, kind="ready", view="b")
    assert screen.next("full")["lines"] == lines


def test_a_loader_has_one_dashboard_and_one_thread_however_often_it_is_shown(
    loader: FakeLoader, screen: Screen
) -> None:
    dashboards = {widget.dashboard_of(loader) for _ in range(10)}
    assert len(dashboards) == 1
    for _ in range(10):
        next(iter(dashboards)).show()


def test_the_end_of_an_epoch_leaves_a_picture_also_when_nobody_looks(loader: FakeLoader, screen: Screen) -> None:
    widget.dashboard_of(loader)
    for _ in loader:
        pass
    assert "batch 5 of 5" in screen.picture_with("picture · idle")


def test_closing_the_loader_leaves_a_picture_and_ends_the_dashboard(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    loader.close()
    screen.picture_with("picture · closed")
    dashboard._thread.join(TIMEOUT)
    assert not dashboard._thread.is_alive()
    assert dashboard.widget.comm is None


def test_a_dashboard_does_not_keep_its_loader_alive(screen: Screen) -> None:
    loader = FakeLoader()
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    screen.next("full")
    ref = weakref.ref(loader)
    del loader
    gc.collect()
    dashboard._thread.join(TIMEOUT)
    assert not dashboard._thread.is_alive()
    assert ref() is None
    say(dashboard, kind="command", name="restart", worker=1)  # a late click


def test_what_the_view_says_is_plain_json_of_bounded_size() -> None:
    class Odd:
        def __str__(self) -> str:
            return "x" * 10_000

    snapshot = FakeLoader(workers=4).stats()
    worker = dataclasses.replace(snapshot.workers[0], batch=1, sample=Odd(), stderr_tail="é" * 10_000)
    view = view_of(dataclasses.replace(snapshot, workers=(worker,), verdict="v" * 10_000))
    assert len(json.dumps(view)) < 8_000


def test_a_stuck_worker_is_named_in_words() -> None:
    loader = FakeLoader(workers=1)
    worker = dataclasses.replace(loader.stats().workers[0], stuck=True, batch=7, sample=99, batch_age=12.0)
    row = view_of(dataclasses.replace(loader.stats(), workers=(worker,)))["workers"][0]
    assert row["state"] == "stuck"
    assert "batch 7, sample 99, 12.0 s" in row["cells"]


def test_points_become_columns_and_what_is_not_finite_none() -> None:
    point = Point(1.0, float("nan"), 0, 0, float("inf"), 0.5, (1.0,) * len(STAGES))
    columns = columns_of([point])
    assert columns["time"] == [1.0]
    assert columns["in_flight"] == columns["batches_per_second"] == [None]
    assert columns_of([]) == {name: [] for name in (*COLUMNS, *TIPS)}


def test_a_picture_of_a_large_loader_is_small_and_its_texts_are_escaped() -> None:
    snapshot = FakeLoader(workers=300).stats()
    evil = "<script>alert(1)</script>"
    workers = [dataclasses.replace(w, exit_reason=evil * 20, batch=1, sample=evil) for w in snapshot.workers]
    points = [Point(i / 4, 9, 1, 1, 20.25, 0.5, (12.3456,) * len(STAGES)) for i in range(5000)]
    view = view_of(dataclasses.replace(snapshot, workers=tuple(workers), verdict=evil))
    view["samples"]["failed"] = [[evil * 8, evil * 8, evil, evil]] * 20
    rows = [[0, i % 64, 0, i, 1, 5 * i, 5 * i + 3, 5 * i + 4, 5 * i + 4, 5 * i + 30, evil] for i in range(6000)]
    rows += [[1, 0, 0, i, 1, 5 * i, 5 * i + 3, 5 * i + 5, 0, 3] for i in range(6000)]
    lines = [[i, "error", evil * 9] for i in range(300)]
    html = picture.html('"><b>', view, columns_of(points), rows, lines)
    assert len(html) < 100_000
    assert "<script" not in html
    assert "<b>" not in html


def test_a_picture_can_be_drawn_before_anything_happened() -> None:
    html = picture.html("x", view_of(FakeLoader(workers=0).stats()), columns_of([]))
    assert "nan" not in html


def test_without_a_notebook_the_error_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"print\(loader\.stats\(\)\)"):
        show(FakeLoader())


def test_importing_the_package_imports_no_widgets() -> None:
    heavy = "{'ipywidgets', 'anywidget', 'bokeh', 'torch'}"
    code = f"import sys, nbloader.dashboard; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_saved_state_of_the_widget_is_small(loader: FakeLoader, screen: Screen) -> None:
    assert len(json.dumps(widget.dashboard_of(loader).widget.get_state(), default=str)) < 4_000
