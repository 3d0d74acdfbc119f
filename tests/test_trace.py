"""The trace file, the Bokeh timeline and the report of an epoch."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from datasets import Numbers, all_pids, wait_for

from nbloader import DataLoader, LoaderClosedError
from nbloader._util.format import final_message, tail
from nbloader.dashboard.page import Report
from nbloader.dashboard.timeline_figure import timeline
from nbloader.events import (
    BatchFailed,
    BatchRecord,
    DatasetReloaded,
    EpochEnded,
    EpochStarted,
    LoaderClosed,
    LoaderPaused,
    LoaderResumed,
    SampleFailed,
    SupervisorFailed,
    WorkerDied,
    WorkerReady,
    WorkerRestarted,
    WorkersResized,
    WorkerStarted,
)
from nbloader.metrics.stage_times import histogram
from nbloader.metrics.time_series import points_of
from nbloader.report.eventlog import line_of
from nbloader.report.slices import consumer_lanes, loop_lane, slices, stalls, worker_lane
from nbloader.report.trace import Trace

MS = 1_000_000


def record(number: int, begin: int, *, worker: int = 0, wait: int = 5, step: int = 10, **changes: Any) -> BatchRecord:
    """A batch requested at `begin` (ms); times in ms."""
    delivered = begin + wait
    given = {
        "epoch": 0, "index": number, "worker": worker, "pid": 100 + worker, "attempt": 1, "samples": 4,
        "nbytes": 1000, "transport": "segment", "requested": begin * MS, "dispatched": (delivered - 6) * MS,
        "fetch_begin": (delivered - 5) * MS, "fetched": (delivered - 3) * MS, "collated": (delivered - 2) * MS,
        "received": (delivered - 2) * MS, "in_order": delivered * MS, "delivered": delivered * MS,
        "returned": (delivered + step) * MS, "fetch_cpu": MS, "collate_cpu": MS, "in_flight": 1, "reordering": 0,
        "ready": 0, "slowest_index": 4 * number, "slowest_ns": MS, "indices": tuple(range(4 * number, 4 * number + 4)),
    }  # fmt: skip
    return BatchRecord(**(given | changes))


def epoch(count: int, begin: int = 1000, **changes: Any) -> list[BatchRecord]:
    return [record(i, begin + 15 * i, worker=i % 2, **changes) for i in range(count)]


LIFECYCLE = [
    WorkerStarted(990 * MS, 0, 100),
    WorkerReady(995 * MS, 0, 100, 5 * MS),
    EpochStarted(999 * MS, 0, 10, 2),
    WorkerDied(1010 * MS, 1, 101, -9, "was killed by SIGKILL", False, (3,), "<script>\x00\nlast"),
    WorkerRestarted(1011 * MS, 1, "was killed by SIGKILL"),
    BatchFailed(1020 * MS, 0, 4, 1, "<b>\x00", "ValueError: bad"),
    LoaderPaused(1030 * MS),
    LoaderResumed(1031 * MS),
    DatasetReloaded(1032 * MS),
    SupervisorFailed(1033 * MS, "OSError: broken"),
    SampleFailed(1033 * MS, 0, 4, 1, "<b>\x00", "ValueError: bad", "", "skipped"),
    WorkersResized(1034 * MS, 2, 3),
    EpochEnded(1200 * MS, 0, 10, "exhausted"),
    LoaderClosed(1201 * MS),
]


def load(text: str) -> dict[str, list[dict[str, Any]]]:
    """Check what must hold for every event of the format, and group the events by phase."""
    by_phase = defaultdict(list)
    for event in json.loads(text)["traceEvents"]:
        by_phase[event["ph"]].append(event)
        assert isinstance(event["name"], str)
        if event["ph"] != "M":
            assert event["ts"] >= 0
    return by_phase


def test_a_trace_of_a_real_epoch_has_a_lane_per_worker_and_an_arrow_per_batch(tmp_path: Path):
    with DataLoader(Numbers(40), batch_size=4, num_workers=2) as loader:
        epoch = iter(loader)
        all_pids(loader)
        for _ in epoch:
            pass
        path = loader.trace.save(tmp_path / "epoch.json")
    by_phase = load(path.read_text())
    lanes = {e["tid"]: e["args"]["name"] for e in by_phase["M"] if e["name"] == "thread_name"}
    assert sorted(lanes.values()) == ["worker 0", "worker 1", "your loop"]
    assert len({e["id"] for e in by_phase["s"]}) == 10
    assert {e["id"] for e in by_phase["s"]} == {e["id"] for e in by_phase["f"]}
    fetched = [e for e in by_phase["X"] if e["cat"] == "fetch"]
    assert sorted(e["args"]["batch"] for e in fetched) == list(range(10))
    assert fetched[0]["args"]["indices"].count(",") == 3


def test_slices_of_a_lane_do_not_overlap_and_arrows_begin_and_end_in_slices():
    by_phase = load(Trace([*LIFECYCLE[:3], *epoch(10), *LIFECYCLE[3:]]).to_json())
    lanes = defaultdict(list)
    for e in by_phase["X"]:
        lanes[e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["cat"]))
    assert len(lanes) == 3
    for spans in lanes.values():
        assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(sorted(spans)))
    for e in by_phase["s"] + by_phase["f"]:
        assert any(begin <= e["ts"] <= end for begin, end, _ in lanes[e["tid"]]), e
    assert {len(by_phase["s"]), len(by_phase["f"]), len(by_phase["C"])} == {10}
    assert [e["id2"] for e in by_phase["b"]] == [e["id2"] for e in by_phase["e"]]


def test_times_are_microseconds_from_the_first_event():
    by_phase = load(Trace([LIFECYCLE[0], record(0, 1000)]).to_json())
    assert min(e["ts"] for e in by_phase["i"]) == 0
    fetch = next(e for e in by_phase["X"] if e["cat"] == "fetch")
    assert (fetch["ts"], fetch["dur"]) == (10_000, 2_000)


def test_lifecycle_events_are_instants_with_printable_names():
    instants = load(Trace(LIFECYCLE).to_json())["i"]
    assert len(instants) == len(LIFECYCLE)
    assert all(e["name"].isprintable() for e in instants)
    assert {e["s"] for e in instants} == {"p", "t"}


@pytest.mark.parametrize("event", [*LIFECYCLE, record(0, 1000)], ids=lambda e: type(e).__name__)
def test_every_event_has_a_line(event: Any):
    line = line_of(event)
    assert line.text
    assert line.text.isprintable()
    assert line.kind in {"worker", "error", "epoch", "command"}


def test_any_kind_of_index_gives_valid_json():
    class Odd:
        def __str__(self) -> str:
            raise ValueError

    odd = record(0, 1000, slowest_index=Odd(), indices=(Odd(), float("nan"), "\x00" * 10_000))
    text = Trace([odd]).to_json()
    assert "NaN" not in text
    assert len(text) < 5_000


def test_loops_that_run_at_the_same_time_have_different_lanes_and_later_ones_reuse_them():
    two = [*epoch(3), *(r._replace(epoch=1) for r in epoch(3)), *(r._replace(epoch=2) for r in epoch(3, begin=5000))]
    lanes = consumer_lanes(two)
    assert len({lanes[0], lanes[1]}) == 2
    assert lanes[2] in {lanes[0], lanes[1]}


def test_lanes_sort_in_the_reverse_order_of_the_path():
    lanes = [worker_lane(10), worker_lane(2), worker_lane(-1), loop_lane(0), loop_lane(1)]
    assert [lane.label for lane in sorted(lanes)] == [
        "your loop", "your loop 2", "this process", "worker 2", "worker 10",
    ]  # fmt: skip


def test_a_stall_is_an_unusually_long_wait():
    records = epoch(10)
    slow = record(10, 2000, wait=900)
    assert stalls([*records, slow]) == [slow]
    assert stalls(records) == []
    assert stalls([]) == []


def test_paused_time_is_no_wait_in_trace_and_timeline():
    ordinary, late = epoch(10), record(10, 2000, wait=900)
    pause = [LoaderPaused(2040 * MS), LoaderResumed(2900 * MS)]
    trace = Trace([*ordinary, *pause, late])
    assert stalls([*ordinary, late]) == [late]
    assert stalls([*ordinary, late], trace.pauses) == []
    waits = [s for s in slices(trace.batches, trace.pauses) if s.kind == "wait" and s.record is late]
    assert [(s.begin, s.end) for s in waits] == [(2000 * MS, 2040 * MS)]
    assert trace.epoch().pauses is trace.pauses
    assert [e["dur"] for e in load(trace.to_json())["X"] if e["name"] == "wait 10"] == [40_000]


def test_the_last_words_of_a_crash_name_the_signal_and_the_line():
    dump = """about to go wrong
Fatal Python error: Segmentation fault

Current thread 0x00007f532ee47b80 (most recent call first):
  File "mine.py", line 9 in __getitem__
  File "fetch.py", line 61 in fetch

Extension modules: numpy._core._multiarray_umath, numpy.linalg._umath_linalg (total: 2)
"""
    assert final_message(dump) == 'Fatal Python error: Segmentation fault: File "mine.py", line 9 in __getitem__'
    assert final_message("one\ntwo\n\n") == "two"
    assert final_message("") == ""
    assert "".join(tail(dump)).endswith("in fetch")


def test_missing_time_stamps_make_no_slice():
    assert {s.kind for s in slices([record(0, 1000, fetch_begin=0, in_order=0)])} == {"collate", "wait", "step"}


def test_the_table_has_a_row_per_batch():
    pytest.importorskip("pandas")
    table = Trace(epoch(10)).to_pandas()
    assert len(table) == 10
    assert table.batch.tolist() == list(range(10))
    assert table.wait_ms.tolist() == [5.0] * 10
    assert table.requested[1] - table.requested[0] == pytest.approx(0.015)


def test_without_pandas_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        Trace(epoch(1)).to_pandas()


def test_one_epoch_can_be_selected():
    trace = Trace([*epoch(4), *(r._replace(epoch=1) for r in epoch(6, begin=3000)), LIFECYCLE[3]])
    assert len(trace.epoch()) == 6
    assert len(trace.epoch(0)) == 4
    assert trace.epoch(0).events[-1] == LIFECYCLE[3]
    assert len(trace.epoch(7)) == len(Trace([]).epoch()) == 0


def test_the_timeline_figure_has_tooltips_for_every_kind_of_slice():
    fig = timeline(Trace(epoch(10)))
    sources = [r.data_source.data for r in fig.renderers if "tip" in getattr(r, "data_source", r).data]
    assert {len(s["left"]) for s in sources} == {10}
    assert len(sources) == 5
    assert "0, 1, 2, 3" in sources[0]["tip"][0]
    assert timeline(Trace([])) is not None


def test_plots_of_an_epoch_that_has_ended_add_up():
    records = epoch(100)
    points = points_of(records, 20)
    width = points[1].time - points[0].time
    assert sum(p.batches_per_second * width for p in points) == pytest.approx(100)
    assert sum(p.wait_share * width for p in points) == pytest.approx(0.5, rel=0.05)
    assert points_of([]) == []


def test_the_histogram_counts_every_batch_in_its_bin():
    times = histogram([*epoch(9), record(9, 3000, fetch_begin=1000 * MS)])
    assert sum(times.counts) == 10
    assert times.counts[0] == 9
    assert times.edges[0] <= 3 <= times.edges[1]
    assert times.edges[-2] <= 2003 <= times.edges[-1]
    assert histogram([]).counts == ()


def test_a_report_needs_no_network_and_escapes_foreign_text(tmp_path: Path):
    with DataLoader(Numbers(40), batch_size=4, num_workers=0) as loader:
        for _ in loader:
            pass
        snapshot, trace = loader.stats(), loader.trace
    evil = dataclasses.replace(LIFECYCLE[5], time=trace.batches[0].delivered)
    page = Report(snapshot, Trace([*trace.events, evil])).save(tmp_path / "report.html").read_text()
    assert "<script src=" not in page
    assert "cdn.bokeh.org" not in page.partition("<body>")[2]
    assert "&lt;b&gt;" in page
    assert len(page) < 2_000_000
    assert "save('report.html')" in Report(snapshot, trace)._repr_html_()


def test_a_loader_has_a_trace_a_report_and_a_timeline():
    with DataLoader(Numbers(8), batch_size=4) as loader:
        assert len(loader.trace) == 0
        assert "epoch" in loader.report().html()
        for _ in range(2):
            list(loader)
        assert len(loader.trace) == 4
        assert len(loader.report(0).trace) == 2
        assert loader.timeline().renderers


def test_the_progress_bar_counts_batches_and_shows_how_much_the_loop_waited():
    out = io.StringIO()
    with DataLoader(Numbers(40), batch_size=4, num_workers=2) as loader:
        batches = list(loader.progress(file=out))
    assert len(batches) == 10
    last = out.getvalue().split("\r")[-1]
    assert "epoch 0: 100%" in last
    assert "10/10" in last
    assert "loop waited" in last
    assert "Epoch 0 ended after 10 batches" in last, "what limited the loop"


class Halting:
    """A dataset of which one sample waits for an event; only for workers in this process."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.go_on = threading.Event()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            assert self.go_on.wait(60)
        return index


class Slow:
    """Two batches of samples that take a quarter of a second each."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        time.sleep(0.25)
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_batch_is_expected_from_its_first_samples_and_the_bar_says_so(workers, monkeypatch):
    monkeypatch.setattr("nbloader.report.progress.LOOK", 0.02)
    out = io.StringIO()
    with DataLoader(Slow(), batch_size=8, num_workers=workers, workers="thread") as loader:
        loop = threading.Thread(target=lambda: list(loader.progress(file=out, mininterval=0)))
        loop.start()
        wait_for(lambda: "At this pace, it comes in" in loader.stats().verdict, "an estimate")
        s = loader.stats()
        assert s.first_batch_in is not None
        assert s.batches_done == 0
        assert s.eta_rough
        wait_for(lambda: "first batch in about" in out.getvalue(), "the bar")
        loop.join()
        assert loader.stats().first_batch_in is None


def test_the_progress_bar_has_neither_rate_nor_time_left_while_no_batch_comes(monkeypatch):
    monkeypatch.setattr("nbloader.report.progress.LOOK", 0.02)
    monkeypatch.setattr("nbloader.metrics.rates.STUCK_S", 0.05)
    monkeypatch.setattr("nbloader.metrics.rates.STUCK_TIMES", 0)
    dataset, out = Halting(32), io.StringIO()
    with DataLoader(dataset, batch_size=8, num_workers=2, workers="thread") as loader:
        loop = threading.Thread(target=lambda: list(loader.progress(file=out, mininterval=0)))
        loop.start()
        wait_for(lambda: "stalled" in out.getvalue(), "the bar")
        shown = out.getvalue().split("\r")[-1]
        assert "<stalled, no batch for" in shown
        assert "batch/s" not in shown
        assert "4/5" in shown
        dataset.go_on.set()
        loop.join()
    last = out.getvalue().split("\r")[-1]
    assert "stalled" not in last.split("Epoch 0")[0]
    assert "batch/s, loop waited" in last


def test_the_bar_is_not_watched_after_its_loader_was_closed_even_if_the_loop_remains(monkeypatch):
    monkeypatch.setattr("nbloader.report.progress.LOOK", 0.02)
    with DataLoader(Numbers(40), batch_size=4, num_workers=2, workers="thread") as loader:
        loop = loader.progress(file=io.StringIO())
        next(loop)
        assert any(thread.name == "nbloader-progress" for thread in threading.enumerate())
    wait_for(lambda: not any(thread.name == "nbloader-progress" for thread in threading.enumerate()))
    with pytest.raises(LoaderClosedError):
        next(loop)


def test_without_tqdm_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with DataLoader(Numbers(4)) as loader, pytest.raises(ModuleNotFoundError, match="pip install tqdm"):
        loader.progress()
