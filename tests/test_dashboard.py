"""The dashboard without a browser: what it shows, what it sends, what it leaves behind, and when it ends."""

from __future__ import annotations

import dataclasses
import gc
import gzip
import json
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_loader import FakeLoader

import nbloader
from nbloader import DataLoader
from nbloader._util.code_places import is_library, place_of, source_line
from nbloader.dashboard import feed, publisher, static, widget
from nbloader.dashboard.charts import (
    CHARTS,
    COLUMNS,
    TIPS,
    Chart,
    Series,
    bars_of,
    charts_of,
    columns_of,
    x_axis,
    y_axes,
)
from nbloader.dashboard.panels import PANELS, Frame, Panel, register
from nbloader.dashboard.panels.controls import Controls
from nbloader.dashboard.panels.events import Events
from nbloader.dashboard.panels.lines import Lines
from nbloader.dashboard.panels.samples import Samples
from nbloader.dashboard.panels.summary import Summary
from nbloader.dashboard.panels.workers import COLUMNS as WORKER_COLUMNS
from nbloader.dashboard.panels.workers import Workers
from nbloader.events import BatchRecord, SampleFailed, WorkerRestarted
from nbloader.events.stack_samples import STAGE_FILE, CodeLine, StackCount
from nbloader.metrics.hot_lines import HotLines, find_hot_lines
from nbloader.metrics.snapshot import STAGES, Histogram, Point, SlowSample, Snapshot
from nbloader.remedies.difference import Difference
from nbloader.remedies.pictures import Pictures
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.results import RemedyResult
from nbloader.remedies.trial import Cost

TIMEOUT = 90


class Screen:
    """Takes the place of the kernel: keeps what a dashboard sends and displays."""

    def __init__(self) -> None:
        self.sent: queue.Queue[dict[str, Any]] = queue.Queue()
        self.displayed: queue.Queue[tuple[str, str]] = queue.Queue()

    def next(self, kind: str) -> dict[str, Any]:
        """Wait for the next message of a kind."""
        while True:
            message = self.sent.get(timeout=TIMEOUT)
            if message["kind"] == kind:
                return message

    def static_with(self, text: str) -> str:
        """Wait for a static form that contains a text."""
        while True:
            _, html = self.displayed.get(timeout=TIMEOUT)
            if text in html:
                return html


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(
        widget.LiveWidget,
        "send",
        lambda _self, message, buffers=None: screen.sent.put(message | {"data": buffers}),
    )
    monkeypatch.setattr(
        widget,
        "display",
        lambda name, _text, data, update=False: screen.displayed.put((name, data.get("text/html", ""))),
    )
    monkeypatch.setattr(widget, "_write_static_in_time", lambda: None)
    return screen


@pytest.fixture
def loader(screen: Screen) -> Iterator[FakeLoader]:
    loader = FakeLoader(batches=5, pace=0.01)
    yield loader
    dashboard = widget._dashboards.get(loader)
    loader.close()
    if dashboard is not None:
        dashboard._publisher.thread.join(TIMEOUT)
        assert not dashboard._publisher.thread.is_alive()


def say(dashboard: widget.Dashboard, **message: Any) -> None:
    """Speak as a view in the browser does."""
    dashboard._on_message(dashboard.widget, message, [])


def draw(snapshot: Snapshot, **fields: Any) -> str:
    """The static form of a dashboard that has seen one frame."""
    frame = Frame(snapshot, now=time.perf_counter_ns(), **fields)
    panels = [panel() for panel in PANELS]
    parts = []
    for panel in panels:
        panel.news(frame)
        parts.append(panel.html(panel.payload(frame)))
    return static.html('"><b>', parts)


def test_a_static_form_that_is_written_while_a_message_goes_out_does_not_count_as_sent(
    loader: FakeLoader, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    screen.next("full")
    send = widget.LiveWidget.send
    drawn = threading.Thread(target=dashboard.write_static)

    def slow_send(self: widget.LiveWidget, message: dict[str, Any], buffers: Any = None) -> None:
        if drawn.ident is None and message.get("payloads", {}).get("summary", {}).get("state") == "running":
            loader.state = "idle"
            drawn.start()
            drawn.join(0.3)  # the main thread asks for its static form now; it may wait until this has gone out
        send(self, message, buffers)

    monkeypatch.setattr(widget.LiveWidget, "send", slow_send)
    loader.state = "running"
    dashboard._publisher.wake()
    states = []
    while "idle" not in states[-1:]:
        states.append(screen.next("tick")["payloads"].get("summary", {}).get("state"))
    drawn.join(TIMEOUT)
    assert states.index("running") < states.index("idle")


def test_a_new_view_gets_everything_and_then_only_changes(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    full = screen.next("full")
    assert list(full["payloads"]) == [panel["name"] for panel in full["panels"]] == [panel.name for panel in PANELS]
    assert [row["id"] for row in full["news"]["workers"]] == [0, 1, 2]
    for _ in loader:
        pass
    summary: dict[str, Any] = {}
    while summary.get("state") != "idle":
        tick = screen.next("tick")
        assert "samples" not in tick["payloads"], "it does not change"
        summary |= tick["payloads"].get("summary", {})
    assert summary["progress"] == {"share": 1.0, "text": "epoch 0 · batch 5 of 5 · 100%"}


def test_points_are_sent_once(loader: FakeLoader, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [Point(float(i), 1, 0, 0, 1, 0.5, (0.0,) * len(STAGES)) for i in range(3)]
    monkeypatch.setattr(loader, "points", lambda: points)
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    (columns,) = screen.next("full")["news"]["plots"]
    assert list(columns) == [*COLUMNS, *TIPS]
    assert columns["time"] == [0, 1, 2]
    points = [*points[1:], dataclasses.replace(points[0], time=3.0)]
    dashboard._publisher.wake()
    assert [columns["time"] for columns in screen.next("tick")["news"]["plots"]] == [[3]]


def test_nothing_is_sent_while_nothing_changes_or_there_is_no_view(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    dashboard._tick()
    assert screen.sent.empty()
    say(dashboard, kind="ready", view="a")
    screen.next("full")
    assert not dashboard._tick()
    say(dashboard, kind="gone", view="a")
    loader.done = 3
    assert not dashboard._tick()


def test_nothing_accumulates_without_views(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    loader.pause()
    loader.resume()
    dashboard._tick()
    assert dashboard._feed.news == {}
    say(dashboard, kind="ready", view="a")
    assert [line["text"] for line in screen.next("full")["news"]["events"]] == ["paused", "resumed"]


@pytest.mark.parametrize("name", ["code", "panels", "styles", "bokeh"])
def test_the_browser_gets_its_assets_from_the_kernel(loader: FakeLoader, screen: Screen, name: str) -> None:
    widget.dashboard_of(loader).widget._handle_custom_msg({"kind": "asset", "name": name}, [])
    assert screen.next("asset")["data"][0][:2] == b"\x1f\x8b"


def test_an_unknown_message_is_ignored(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    dashboard.widget._handle_custom_msg({"kind": "asset", "name": "../../secret"}, [])
    say(dashboard, kind="something")
    say(dashboard, kind="command", name="format the disk")
    dashboard._respond({"kind": "request", "panel": "nowhere"})
    dashboard._respond({"kind": "request", "panel": "workers", "name": "everything"})
    assert screen.sent.empty()
    assert loader.commands == []


def test_clicks_become_commands(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="command", name="restart", worker=1)
    say(dashboard, kind="command", name="pause")
    say(dashboard, kind="command", name="resume")
    say(dashboard, kind="command", name="restart")
    assert loader.commands == ["restart 1", "pause", "resume", "restart 0", "restart 1", "restart 2"]


def test_a_suggestion_is_applied_and_undone(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    summary = screen.next("full")["payloads"]["summary"]
    assert summary["outlook"] == "6 workers: 1.9x (1.8 to 2.1); a larger window: no gain"
    assert [(s["label"], s["num_workers"]) for s in summary["suggestions"]] == [("Use 6 workers", 6)]
    assert summary["trial"] is None

    def trial_that(condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:  # there may be a message while a command is being executed
            trial = screen.next("tick")["payloads"].get("summary", {}).get("trial")
            if trial is not None and condition(trial):
                return trial

    say(dashboard, kind="command", name="apply", num_workers=6, prefetch_factor=None)
    assert trial_that(lambda trial: trial["changed"]) == {
        "running": False, "changed": True, "chosen": True,
        "text": "num_workers=6 is 1.87 times as fast as before (19.8 to 37.1 batches/s).",
    }  # fmt: skip
    say(dashboard, kind="command", name="undo_tuning")
    trial_that(lambda trial: not trial["changed"])
    say(dashboard, kind="command", name="apply")
    assert loader.commands == ["tune 6 None", "resize 6", "resize 3"]


def test_a_button_replaces_the_statement_that_cannot_be_run(loader: FakeLoader) -> None:
    loader._hung_since, loader.state = time.perf_counter() - 3, "running"
    snapshot = loader.stats()
    assert "Restart it: loader.restart_workers([1])." in snapshot.verdict
    summary = next(panel for panel in PANELS if panel.name == "summary")().payload(Frame(snapshot))
    assert summary["verdict"].endswith("and the loop waits for it. Restart it.")
    assert [s["label"] for s in summary["suggestions"]] == ["Restart worker 1", "Use 6 workers"]
    assert "Predicted: 6 workers: 1.9x (1.8 to 2.1); a larger window: no gain" in draw(snapshot)


def test_the_slider_for_workers_ends_at_what_their_machines_can_use(loader: FakeLoader) -> None:
    snapshot = dataclasses.replace(loader.stats(), most_workers=48)
    assert Controls().payload(Frame(snapshot, num_workers=4))["maxWorkers"] == 48
    assert Controls().payload(Frame(snapshot, num_workers=60))["maxWorkers"] == 60


def test_step_and_sliders_become_commands(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="command", name="step")
    say(dashboard, kind="command", name="resize", value=5)
    say(dashboard, kind="command", name="prefetch", value=1)
    assert loader.commands == ["step", "resize 5", "prefetch 1"]
    assert (loader.num_workers, loader.prefetch_factor) == (5, 1)


def test_an_error_of_a_command_is_shown_in_the_view_that_sent_it(
    loader: FakeLoader, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ValueError("<script>no\x00")

    monkeypatch.setattr(loader, "pause", refuse)
    say(widget.dashboard_of(loader), kind="command", name="pause", view="a")
    reply = screen.next("reply")
    assert (reply["to"], reply["panel"]) == ("a", "controls")
    assert reply["said"] == "ValueError: <script>no\N{REPLACEMENT CHARACTER}"


def test_figures_are_sent_on_request(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="request", panel="plots", name="figures", view="a")
    reply = screen.next("reply")
    assert [chart["name"] for chart in reply["charts"]] == [chart.name for chart in charts_of(device=False)]
    assert (reply["to"], reply["panel"]) == ("a", "plots")


def test_the_stack_of_a_worker_or_the_reason_that_there_is_none_goes_to_the_view_that_asked(
    loader: FakeLoader, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="request", panel="workers", name="stack", worker=1, view="a")
    assert "line 13 in __getitem__" in screen.next("reply")["stack"]
    monkeypatch.delattr(FakeLoader, "stack")
    say(dashboard, kind="request", panel="workers", name="stack", worker=2, view="b")
    reply = screen.next("reply")
    assert (reply["to"], reply["worker"]) == ("b", 2)
    assert "stack" in reply["stack"]


def test_the_trace_is_sent_as_a_file(loader: FakeLoader, screen: Screen) -> None:
    for _ in loader:
        pass
    say(widget.dashboard_of(loader), kind="request", panel="controls", name="trace", view="a")
    reply = screen.next("reply")
    assert reply["file"] == "nbloader-epoch-0.json"
    assert json.loads(gzip.decompress(reply["data"][0]))["traceEvents"]


def test_only_changes_are_sent() -> None:
    before = {"summary": {"state": "running"}, "path": [1]}
    after = {"summary": {"state": "running"}, "path": [2]}
    assert feed.changes(before, after) == {"path": [2]}
    assert feed.changes({}, after) == after
    assert feed.changes(after, after) == {}


def test_only_rows_of_workers_that_changed_are_sent() -> None:
    panel, snapshot = Workers(), FakeLoader().stats()
    assert [row["id"] for row in panel.news(Frame(snapshot))] == [0, 1, 2]
    assert panel.news(Frame(snapshot)) == []
    changed = dataclasses.replace(snapshot.workers[1], batches=99)
    workers = (snapshot.workers[0], changed)
    frame = Frame(dataclasses.replace(snapshot, workers=workers))
    assert [row["id"] for row in panel.news(frame)] == [1]
    assert panel.payload(frame)["count"] == len(panel.history()) == 2


def test_the_memory_of_all_workers_is_shown_alike() -> None:
    """Private and shared memory are measured in one process at a time."""
    panel, snapshot = Workers(), FakeLoader().stats()
    at = list(WORKER_COLUMNS).index("Memory")
    for measured, texts in ((1, ["198 MB", "200 MB", "200 MB"]), (3, ["8 + 190 MB"] * 3)):
        workers = tuple(
            dataclasses.replace(
                w, rss=198e6 + 2e6 * (i > 0), **({"private": 8e6, "shared": 190e6} if i < measured else {})
            )
            for i, w in enumerate(snapshot.workers)
        )
        rows = panel.news(Frame(dataclasses.replace(snapshot, workers=workers)))
        assert [row["cells"][at] for row in rows] == texts


def test_the_histogram_of_production_times_has_a_unit_on_its_axis() -> None:
    first, *others = bars_of(Histogram(edges=(1.0, 2.0, 3.0), counts=(4, 5)))
    assert (first.label, [bar.label for bar in others]) == ("1.00 ms", ["2.00"])


def test_ticks_that_cost_much_become_rarer_and_a_single_slow_one_changes_little() -> None:
    most = publisher.TICK * publisher.SHARE
    assert publisher.interval([most / 2] * (publisher.COSTS - 1) + [5 * most]) == publisher.TICK
    assert publisher.interval([2 * most] * publisher.COSTS) == pytest.approx(2 * publisher.TICK)


def test_events_are_sent_once_and_later_views_get_the_earlier_ones(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    screen.next("full")
    loader.pause()
    loader.resume()
    lines: list[Any] = []
    while len(lines) < 2:
        lines += screen.next("tick")["news"].get("events", [])
    assert [line["text"] for line in lines] == ["paused", "resumed"]
    say(dashboard, kind="ready", view="b")
    assert screen.next("full")["news"]["events"] == lines


def test_a_loader_has_one_dashboard_and_one_thread_however_often_it_is_shown(
    loader: FakeLoader, screen: Screen
) -> None:
    dashboards = {widget.dashboard_of(loader) for _ in range(10)}
    assert len(dashboards) == 1
    for _ in range(10):
        next(iter(dashboards)).show()


def test_the_end_of_an_epoch_writes_a_static_form_even_without_views(loader: FakeLoader, screen: Screen) -> None:
    widget.dashboard_of(loader)
    for _ in loader:
        pass
    assert "batch 5 of 5" in screen.static_with("snapshot · idle")


def test_closing_the_loader_leaves_a_static_form_and_ends_the_dashboard(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    loader.close()
    screen.static_with("snapshot · closed")
    dashboard._publisher.thread.join(TIMEOUT)
    assert not dashboard._publisher.thread.is_alive()
    assert dashboard.widget.comm is None


def test_a_cell_that_closes_a_loader_ends_after_its_last_output(
    loader: FakeLoader, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def display(name: str, _text: str, data: dict[str, str], *, update: bool = False) -> None:
        assert name
        if update:
            cell_ends.wait(0.1)
        screen.displayed.put((name, data["text/html"]))

    cell_ends = threading.Event()
    monkeypatch.setattr(widget, "display", display)
    dashboard = widget.dashboard_of(loader)
    loader.close()
    widget._write_static()  # what runs after each cell
    displayed = list(screen.displayed.queue)
    cell_ends.set()
    assert displayed[-1] == (f"{dashboard._name}-static", "")


def test_a_dashboard_does_not_keep_its_loader_alive(screen: Screen) -> None:
    loader = FakeLoader()
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    screen.next("full")
    ref = weakref.ref(loader)
    del loader
    gc.collect()
    dashboard._publisher.thread.join(TIMEOUT)
    assert not dashboard._publisher.thread.is_alive()
    assert ref() is None
    say(dashboard, kind="command", name="restart", worker=1)  # a late click


def test_payloads_are_json_of_bounded_size() -> None:
    class Odd:
        def __str__(self) -> str:
            return "x" * 10_000

    snapshot = FakeLoader(workers=4).stats()
    worker = dataclasses.replace(snapshot.workers[0], batch=1, sample=Odd(), stderr_tail="é" * 10_000)
    frame = Frame(dataclasses.replace(snapshot, workers=(worker,), verdict="v" * 10_000))
    panels = [panel() for panel in PANELS]
    assert sum(len(json.dumps([panel.news(frame), panel.payload(frame)])) for panel in panels) < 11_000


def hot_lines() -> HotLines:
    """Two lines of this file, one of which calls a library."""
    get, compute = CodeLine(__file__, "<b>get</b>", 1), CodeLine(__file__, "compute", 3)
    stacks = (
        StackCount((get, compute), 0, 6),
        StackCount((get, CodeLine(json.__file__, "dumps", 70)), 3, 0),
        StackCount((CodeLine(STAGE_FILE, "collating", 0),), 1, 0),
    )
    return find_hot_lines(stacks, profiling=True, is_library=is_library, source=source_line, place=place_of)


def test_lines_of_code_are_a_table_and_a_flame_graph() -> None:
    panel = Lines()
    payload = panel.payload(Frame(FakeLoader().stats(), lines=hot_lines()))
    assert payload["summary"] == "10 samples of busy workers: 40% computing, 60% waiting"
    assert [row["shares"] for row in payload["rows"]] == [
        ["60%", "0%", "60%"], ["30%", "30%", "0%"], ["10%", "10%", "0%"],
    ]  # fmt: skip
    assert payload["rows"][0]["source"] == "from __future__ import annotations"
    assert payload["first"].startswith("60% from __future__ import annotations · ")
    boxes = [(left, width, level, computing) for left, width, level, computing, *_texts in payload["blocks"]]
    assert boxes == [(0, 90, 0, 33), (90, 10, 0, 100), (0, 60, 1, 0), (60, 30, 1, 100)]
    assert [label for *_box, label, _tip in payload["blocks"]][1:] == [
        "collating", "from __future__ import annotations", "dumps",
    ]  # fmt: skip
    assert payload["levels"] == 2
    html = panel.html(payload)
    assert "&lt;b&gt;get&lt;/b&gt;" in html
    assert "<b>" not in html
    assert not panel.html(panel.payload(Frame(FakeLoader().stats())))


def test_the_flame_graph_of_a_large_profile_is_bounded() -> None:
    lines = [CodeLine("f.py", "f" * 1000, i) for i in range(90)]
    stacks = tuple(StackCount(tuple(lines[:i]), 1, 1) for i in range(1, 90))
    hot = find_hot_lines(stacks, profiling=True, is_library=is_library, source=source_line, place=place_of)
    payload = Lines().payload(Frame(FakeLoader().stats(), lines=hot))
    assert len(payload["rows"]) == 10
    assert payload["levels"] == 14
    assert len(json.dumps(payload)) < 30_000


def test_sampling_of_lines_is_switched_by_a_click(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="ready", view="a")
    assert not screen.next("full")["payloads"]["lines"]["profiling"]
    loader.hot = hot_lines()
    say(dashboard, kind="command", name="profile", value=True)
    payload: dict[str, Any] = {}
    while not payload.get("rows"):
        payload = screen.next("tick")["payloads"].get("lines", {})
    assert payload["profiling"]
    say(dashboard, kind="command", name="profile", value=False)
    while payload.get("profiling") is not False:
        payload = screen.next("tick")["payloads"].get("lines", {})
    assert payload["rows"]
    assert loader.commands == ["profile True", "profile False"]


def remedy(**fields: Any) -> RemedyResult:
    """A remedy for the first line of `hot_lines()`."""
    png = b"\x89PNG..."
    proposal = Proposal("<b>Why</b>.", "Instead.", "def f(x):\n    return 1")
    usual = {
        "line": hot_lines()[0], "name": "json", "proposal": proposal,
        "samples": 30, "before": Cost(0.2, 0.0), "after": Cost(0.1, 0.0), "difference": Difference(2.0, 1.0, 255.0),
        "pictures": Pictures(png + b"1", png + b"2", png + b"3", 51.0, 0.01),
    }  # fmt: skip
    return RemedyResult(**{**usual, **fields})


def test_remedies_are_searched_after_a_click_while_the_loop_runs(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    loader.hot = hot_lines()
    same, proposal = frozenset({2}), Proposal("Why.", "Instead.")
    untried = remedy(samples=0, problem="needs orjson", pictures=None, proposal=proposal, changed=same)
    loader.found = [remedy(changed=same), untried]
    say(dashboard, kind="ready", view="a")
    assert screen.next("full")["payloads"]["remedies"]["number"] == 0
    for _ in range(2):  # the second click is one too many
        say(dashboard, kind="request", panel="remedies", name="search", view="a")
    payload: dict[str, Any] = {}
    while not payload.get("done"):
        payload = screen.next("tick")["payloads"].get("remedies", payload)
    assert payload["running"]
    assert payload["text"] == "trying 2 of 4: json…"
    assert payload["done"] == 0.25
    loader.searching.set()
    while payload["running"]:
        payload = screen.next("tick")["payloads"].get("remedies", payload)
    assert payload["number"] == 1
    first, second = payload["rows"]
    assert first["cells"][:3] == ["200 ms", "100 ms", "2.0x"]
    assert first["code"] == "def f(x):\n    return 1"
    assert first["pictures"] == 3
    assert (second["cells"], second["said"], second["pictures"]) == ([], "Not tried: needs orjson.", 0)
    assert payload["first"].startswith("2.0x json · ")
    assert first["choice"].startswith("Choose one of the next two")
    assert not second["choice"]
    say(dashboard, kind="request", panel="remedies", name="pictures", number=1, row=0, view="a")
    reply = screen.next("reply")
    assert [data[-1:] for data in reply["data"]] == [b"1", b"2", b"3"]
    assert reply["names"] == ["before", "after", "difference, 51x as bright"]
    loader.close()
    html = screen.static_with("What to write instead")
    assert "&lt;b&gt;Why&lt;/b&gt;" in html
    assert "<b>Why" not in html
    assert "Not tried: needs orjson." in html
    assert html.count("Choose one of the next two") == 1


def test_a_search_for_remedies_that_fails_says_why(loader: FakeLoader, screen: Screen) -> None:
    dashboard = widget.dashboard_of(loader)
    loader.searching.set()
    say(dashboard, kind="ready", view="a")
    screen.next("full")
    say(dashboard, kind="request", panel="remedies", name="search", view="a")
    payload: dict[str, Any] = {"running": True}
    while payload["running"]:
        payload = screen.next("tick")["payloads"].get("remedies", payload)
    assert payload["text"] == "OSError: no <b>disk</b>"
    assert payload["rows"] == []


def tiles(**changes: Any) -> dict[str, dict[str, Any]]:
    loader = FakeLoader()
    loader.state, loader.epoch = "running", 0
    snapshot = dataclasses.replace(loader.stats(), rate_seconds=4.2, **changes)
    return {tile["label"]: tile for tile in Summary().payload(Frame(snapshot))["tiles"]}


def test_each_rate_and_share_states_its_span_and_there_is_one_share_of_waiting() -> None:
    running = tiles()
    assert list(running) == ["Throughput, last 4.2 s", "Time left", "Loop waiting, last 4.2 s", "In flight"]
    ended = tiles(state="idle", epoch_rate=7.0, samples_done=320, batches_done=10, elapsed=20.0)
    assert list(ended) == ["Throughput, whole epoch", "Epoch duration", "Loop waiting, whole epoch", "In flight"]
    assert (ended["Throughput, whole epoch"]["value"], ended["Throughput, whole epoch"]["note"]) == (
        "7.00",
        "224 samples/s",
    )
    assert (ended["Loop waiting, whole epoch"]["value"], ended["Loop waiting, whole epoch"]["note"]) == (
        "45%",
        "9.0 s in all",
    )
    for found in (running, ended, tiles(stalled=6.0, waiting=6.0, waiting_for=3)):
        assert sum("%" in tile["value"] + tile["note"] for tile in found.values()) == 1
    assert tiles(stalled=6.0)["Time left"]["value"] == "stalled"
    notes = [tiles(waiting=wait, waiting_for=3)["Loop waiting, last 4.2 s"]["note"] for wait in (0.1, 0.4)]
    assert notes == ["", "now for batch 3: 0.4 s"]


def test_batches_beyond_the_window_are_counted_as_such() -> None:
    within = tiles(window=4, in_flight=2, reordering=0, ready=1)["In flight"]
    assert (within["value"], within["note"]) == ("2", "1 ready · window of 4")
    late = tiles(window=4, in_flight=2, reordering=48, ready=0)["In flight"]
    assert (late["value"], late["note"]) == ("2", "48 reordering · window of 4, and 46 beyond it")


def test_the_first_sentence_of_a_failed_epoch_has_the_color_of_a_failure() -> None:
    told = "Epoch 0 stopped: batch 3 raised <OSError>."
    snapshot = dataclasses.replace(FakeLoader().stats(), verdict=f"{told} Use more workers.", failure=told)
    assert '<span class="nbl-failure">Epoch 0 stopped: batch 3 raised &lt;OSError&gt;.</span> Use more' in draw(
        snapshot
    )
    assert '<span class="nbl-failure"></span>Epoch 0 stopped' in draw(dataclasses.replace(snapshot, failure=""))


def test_a_stuck_worker_is_named() -> None:
    loader = FakeLoader(workers=1)
    worker = dataclasses.replace(loader.stats().workers[0], stuck=True, batch=7, sample=99, batch_age=12.0)
    (row,) = Workers().news(Frame(dataclasses.replace(loader.stats(), workers=(worker,))))
    assert row["state"] == "stuck"
    assert "7, sample 99, 12 s" in row["cells"]


def test_points_become_columns_and_values_that_are_not_finite_none() -> None:
    point = Point(1.0, float("nan"), 0, 0, float("inf"), 0.5, (1.0,) * len(STAGES))
    columns = columns_of([point])
    assert columns["time"] == [1.0]
    assert columns["in_flight"] == columns["batches_per_second"] == [None]
    assert columns_of([]) == {name: [] for name in (*COLUMNS, *TIPS)}


def test_axes_follow_the_data_and_end_at_round_numbers() -> None:
    assert x_axis([]) == (0, 10)
    assert x_axis([5.0, 300.0]) == (180, 300)
    one_of = Chart("a", "", "", (Series("ready", "", ""), Series("in_flight", "", "")), one_of=True)
    stacked = dataclasses.replace(one_of, one_of=False, stacked=True)
    columns = {"ready": [1.0, 30.5], "in_flight": [7.2, 2.0]}
    assert [axis.end for axis in y_axes(one_of, columns)] == [40, 8]
    assert [axis.end for axis in y_axes(stacked, columns)] == [40]
    assert [axis.end for axis in y_axes(dataclasses.replace(one_of, top=1.0), columns)] == [1.04]
    assert {chart.name for chart in CHARTS} - {chart.name for chart in charts_of(device=False)} == {"device"}


def test_the_static_form_of_a_large_loader_is_small_and_its_texts_are_escaped() -> None:
    snapshot = FakeLoader(workers=300).stats()
    evil = "<script>alert(1)</script>"
    workers = [dataclasses.replace(w, exit_reason=evil * 20, batch=1, sample=evil) for w in snapshot.workers]
    slowest = (dataclasses.replace(snapshot.slowest[0], index=evil * 8),) * 20
    points = [Point(i / 4, 9, 1, 1, 20.25, 0.5, (12.3456,) * len(STAGES)) for i in range(5000)]
    now = time.perf_counter_ns()
    events: list[Any] = [
        BatchRecord(
            0, i, i % 64, 1, 1, 4, 100, "segment", t, t, t, t + 3 * 10**6, t + 4 * 10**6, t + 4 * 10**6,
            t + 30 * 10**6, t + 30 * 10**6, t + 31 * 10**6, 0, 0, 0, 0, 0, 1, 1, (evil,),
        )
        for i in range(6000)
        for t in [now - 30 * 10**9 + i * 5 * 10**6]
    ]  # fmt: skip
    events += [WorkerRestarted(now, 1, evil * 9) for _ in range(300)]
    snapshot = dataclasses.replace(snapshot, workers=tuple(workers), verdict=evil, slowest=slowest)
    html = draw(snapshot, points=points, events=events)
    assert len(html) < 110_000
    assert html.count("<path") > 10
    assert "<script" not in html
    assert "<b>" not in html


def test_a_static_form_can_be_drawn_before_anything_happened() -> None:
    assert "nan" not in draw(FakeLoader(workers=0).stats())


def test_the_log_keeps_the_last_lines() -> None:
    panel = Events()
    panel.news(Frame(FakeLoader().stats(), events=[WorkerRestarted(10**9, i, "request") for i in range(1000)]))
    assert [panel.history()[0]["text"], len(panel.history())] == ["worker 700 restarted by request", 300]


def test_a_panel_needs_a_script_and_registering_it_again_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing(Panel):
        name = "nothing"

    with pytest.raises(FileNotFoundError, match=r"nothing\.js does not exist"):
        register(Nothing)

    class Again(Events):
        @classmethod
        def script(cls) -> Any:
            return Events.script()

    before = list(PANELS)
    try:
        register(Again)
        assert PANELS[before.index(Events)] is Again
        assert len(PANELS) == len(before)
    finally:
        PANELS[:] = before


def test_importing_the_package_imports_no_widgets() -> None:
    heavy = "{'ipywidgets', 'anywidget', 'bokeh', 'torch'}"
    code = f"import sys, nbloader.dashboard; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_saved_state_of_the_widget_is_small(loader: FakeLoader, screen: Screen) -> None:
    assert len(json.dumps(widget.dashboard_of(loader).widget.get_state(), default=str)) < 4_000


class Opened:
    """Stands for an explorer."""

    def __init__(self) -> None:
        self.widget = SimpleNamespace(model_id=str(id(self)))
        self.index: int | None = None
        self.closed = threading.Event()

    def open(self, index: int) -> None:
        if index > 99:
            raise IndexError(f"there is no sample {index}: there are 100, from 0")
        self.index = index

    def close(self) -> None:
        self.closed.set()


def test_a_click_on_a_sample_or_a_batch_opens_it_in_the_explorer(loader: FakeLoader, screen: Screen) -> None:
    opened: list[Opened] = []
    asked: list[tuple[int, int]] = []

    def explore() -> Opened:
        opened.append(Opened())
        return opened[-1]

    def replay(epoch: int, batch: int) -> SimpleNamespace:
        asked.append((epoch, batch))
        return SimpleNamespace(explore=explore)

    vars(loader).update(explore=explore, replay=replay)
    dashboard = widget.dashboard_of(loader)
    say(dashboard, kind="explore", view="a", index=7)
    reply = screen.next("explorer")
    assert (reply["to"], reply["model"], opened[0].index) == ("a", opened[0].widget.model_id, 7)

    say(dashboard, kind="explore", view="a", index=700)  # what is on screen stays
    assert "there is no sample 700" in screen.next("explorer")["said"]
    assert not opened[0].closed.is_set()

    say(dashboard, kind="explore", view="a", epoch=2, batch=117)
    assert screen.next("explorer")["model"] == opened[-1].widget.model_id
    assert asked == [(2, 117)]
    assert opened[0].closed.wait(TIMEOUT), "a view shows one at a time"
    say(dashboard, kind="gone", view="a")
    assert opened[-1].closed.wait(TIMEOUT)
    say(dashboard, kind="explore", view="b", index=1)
    loader.close()
    assert opened[-1].closed.wait(TIMEOUT)


def test_samples_say_what_a_click_opens(loader: FakeLoader) -> None:
    slow = [SlowSample(index, 0.1, batch=2, epoch=0, worker=1) for index in (7, "key", True)]
    frame = Frame(dataclasses.replace(loader.stats(), slowest=tuple(slow)), now=time.perf_counter_ns())
    listed = Samples().payload(frame)["lists"][0]["samples"]
    assert [(sample["index"], sample["number"]) for sample in listed] == [("7", 7), ("key", None), ("True", None)]


def test_a_sample_that_fails_in_each_epoch_is_listed_once_with_a_count(loader: FakeLoader) -> None:
    def failed(batch: int, sample: object, error: str) -> SampleFailed:
        return SampleFailed(0, 0, batch, 1, sample, error, "", "skipped")

    events = [failed(batch, 7, "OSError: no") for batch in range(30)]
    events += [failed(31, [1], "KeyError"), failed(32, 7, "TypeError"), failed(33, 7, "OSError: no")]
    frame = Frame(dataclasses.replace(loader.stats(), failed_samples=tuple(events)), now=time.perf_counter_ns())
    listed = Samples().payload(frame)["lists"][1]["samples"]
    assert [(sample["index"], sample["what"], sample["where"]) for sample in listed] == [
        ("7", "OSError: no", "31 times, last in batch 33, skipped, worker 1"),
        ("7", "TypeError", "batch 32, skipped, worker 1"),
        ("[1]", "KeyError", "batch 31, skipped, worker 1"),
    ]


def test_rows_of_the_timeline_say_what_a_click_opens(screen: Screen) -> None:
    with DataLoader(list(range(8)), batch_size=4, num_workers=0) as loader:
        list(loader)
        list(loader)
        dashboard = widget.dashboard_of(loader)
        say(dashboard, kind="ready", view="a")
        rows = screen.next("full")["news"]["timeline"]
        assert {tuple(row["batch"]) for row in rows} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    dashboard._publisher.thread.join(TIMEOUT)


@pytest.mark.unit
def test_a_script_goes_on_without_a_dashboard_and_says_what_to_use_instead(capsys) -> None:
    with DataLoader(list(range(4))) as loader:
        assert loader.dashboard() is None
        assert "loader.progress()" in capsys.readouterr().out
        assert loader.explore() is None
        assert nbloader.explore([1, 2, 3]) is None
        assert capsys.readouterr().out.count("needs a notebook (Jupyter or marimo)") == 2
