"""The description of the path of a batch, and the rows of the timeline."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from fake_loader import FakeLoader

from nbloader.dashboard.panels import Frame
from nbloader.dashboard.panels.path import Box, Path, WorkerCell, describe
from nbloader.dashboard.panels.timeline import Timeline as TimelinePanel
from nbloader.dashboard.panels.timeline import svg
from nbloader.dashboard.timeline_figure import timeline as timeline_figure
from nbloader.events import BatchRecord, EpochEnded, EpochStarted, LoaderPaused, LoaderResumed, WorkerDied
from nbloader.events.gauges import ProducedBatch
from nbloader.metrics.snapshot import PinnedBatches, Snapshot, UploadStats
from nbloader.report.slices import KINDS, LaneKind, loop_lane, worker_lane
from nbloader.report.timeline import KEPT, SINGLE, Row, Timeline, rows_of
from nbloader.report.trace import Trace

pytestmark = pytest.mark.unit

MS = 1_000_000


def snapshot(workers: int = 3, **changes: Any) -> Snapshot:
    loader = FakeLoader(workers=workers)
    loader.state, loader.epoch = "running", 0
    base = dataclasses.replace(loader.stats(), reordering=0, ready=0, made=(), waiting=None, waiting_for=None)
    return dataclasses.replace(base, **changes)


def received(number: int, *, in_order: bool) -> ProducedBatch:
    return ProducedBatch(0, number, 1, MS, 2 * MS, 3 * MS, 4 * MS, 5 * MS if in_order else 0)


def boxes(s: Snapshot) -> dict[str, Box]:
    return {box.id: box for box in describe(s).boxes}


def test_every_batch_is_in_its_box():
    batches = (received(4, in_order=True), received(9, in_order=False), received(7, in_order=False))
    s = snapshot(made=batches, reordering=2, ready=1, at=3, at_for=0.5, asked=(10, 11))
    held = [dataclasses.replace(w, held=(5 + i, 12 + i), batch=5 + i, queued=1) for i, w in enumerate(s.workers)]
    s = dataclasses.replace(s, workers=tuple(held))
    found = boxes(s)
    assert list(found) == ["sampler", "workers", "shared", "reorder", "ready", "loop"]
    assert list(found["sampler"].tokens) == [10, 11]
    assert found["reorder"].tokens == [7, 9]
    assert found["ready"].tokens == [4]
    assert found["loop"].tokens == [3]
    assert [cell.tokens for cell in describe(s).workers] == [[5, 12], [6, 13], [7, 14]]


def test_pin_and_upload_show_their_times():
    assert not {"pin", "upload"} & boxes(snapshot()).keys(), "stages that are off are hidden"
    uploads = UploadStats((PinnedBatches("registered", 9), PinnedBatches("copied", 1)), 0.0, 0.72, 53.0, 0.98)
    on = boxes(snapshot(pinned=True, device="cuda:0", uploads=uploads))
    assert (on["pin"].note, on["upload"].note) == ("in place", "cuda:0, 720 us, 53.0 GB/s, 98% hidden")
    copied = UploadStats((PinnedBatches("copied", 9),), 4.0, None, None, None)
    on = boxes(snapshot(pinned=True, uploads=copied))
    assert on["pin"].note == "copy, 4.00 ms"
    assert "upload" not in on


def test_a_starved_loop_and_a_full_buffer_raise_an_alarm():
    starved = boxes(snapshot(waiting=1.5, waiting_for=5, window=6))
    assert starved["ready"].mark == "empty"
    assert "starved" in starved["ready"].alarm
    assert starved["loop"].alarm == "waiting for 5: 1.5\N{NO-BREAK SPACE}s"
    full = boxes(snapshot(ready=6, window=6))
    assert full["ready"].mark == "full"


def test_a_moment_between_two_batches_of_a_loop_that_hardly_waits_is_no_alarm():
    moment = snapshot(waiting=0.01, waiting_for=5, window=6, wait_share=0.04)
    moment = dataclasses.replace(moment, workers=tuple(dataclasses.replace(w, batch=None) for w in moment.workers))
    assert {box.mark for box in boxes(moment).values()} == {""}
    assert boxes(moment)["loop"].note == "waiting for 5: <\N{NO-BREAK SPACE}0.1\N{NO-BREAK SPACE}s"
    for notable in ({"wait_share": 0.4, "rate_seconds": 5.0}, {"waiting": 0.5}):
        found = boxes(dataclasses.replace(moment, **notable))
        assert {name for name, box in found.items() if box.mark} == {"workers", "ready", "loop"}


def test_a_batch_out_of_order_is_no_alarm_unless_its_worker_is_stuck():
    s = snapshot(waiting=1.5, waiting_for=5, reordering=4, made=(received(6, in_order=False),))
    workers = (dataclasses.replace(s.workers[0], batch=5), *s.workers[1:])
    behind = boxes(dataclasses.replace(s, workers=workers))["reorder"]
    assert (behind.note, behind.alarm, behind.mark) == ("4 batches behind 5 (worker 0)", "", "")
    assert behind.more == 3
    stuck = (dataclasses.replace(workers[0], stuck=True), *workers[1:])
    behind = boxes(dataclasses.replace(s, workers=stuck))["reorder"]
    assert (behind.alarm, behind.mark) == ("4 batches behind 5 (worker 0)", "waiting")


def test_a_stuck_worker_is_named_and_one_that_finishes_an_abandoned_batch_keeps_its_queue():
    s = snapshot()
    stuck = dataclasses.replace(s.workers[1], stuck=True)
    left = dataclasses.replace(s.workers[2], left=True, held=(8,), queued=1)
    s = dataclasses.replace(s, workers=(s.workers[0], stuck, left))
    assert boxes(s)["workers"].alarm == "worker 1 is stuck"
    assert describe(s).workers[2] == WorkerCell(2, "discarding", "nbl-discarding", [8], 0)


def test_the_description_is_bounded_for_many_workers_and_batches():
    s = snapshot(workers=300, made=tuple(received(i, in_order=False) for i in range(5000)), reordering=5000)
    assert len(json.dumps(Path().payload(Frame(s)))) < 30_000


def test_workers_not_started_are_not_dead_and_idle_workers_of_a_full_loader_raise_no_alarm():
    s = snapshot()
    fresh = tuple(dataclasses.replace(w, pid=0, state="dead", batch=None) for w in s.workers)
    assert {w.state for w in describe(dataclasses.replace(s, workers=fresh)).workers} == {"not started"}
    idle = tuple(dataclasses.replace(w, state="idle", batch=None) for w in s.workers)
    starved = dataclasses.replace(s, workers=idle, waiting=0.5)
    assert boxes(starved)["workers"].alarm == "all idle"
    assert boxes(dataclasses.replace(s, workers=idle, ready=6, window=6))["workers"].alarm == ""


def test_batches_of_threads_do_not_pass_shared_memory():
    s = snapshot()
    threads = tuple(dataclasses.replace(w, kind="thread", in_process=True) for w in s.workers)
    assert "shared" not in boxes(dataclasses.replace(s, workers=threads))


def test_fewer_batches_are_drawn_if_their_numbers_are_long():
    s = snapshot()
    for first, shown in ((7, 5), (63_000, 3)):
        held = dataclasses.replace(s.workers[0], batch=first, held=tuple(range(first, first + 8)), queued=7)
        cell = describe(dataclasses.replace(s, workers=(held,))).workers[0]
        assert (len(cell.tokens), cell.more) == (shown, 8 - shown)


def test_the_path_without_workers_is_shorter():
    s = snapshot(workers=0, waiting=0.1, waiting_for=3)
    assert [box.id for box in describe(s).boxes] == ["sampler", "inprocess", "loop"]
    assert boxes(s)["inprocess"].tokens == [3]


# --- the rows of the timeline


def record(number: int, *, worker: int = 0, wait: int = 1, epoch: int = 0, begin: int | None = None) -> BatchRecord:
    """A batch requested 20 ms after the one before; times in ms."""
    asked = (20 * number if begin is None else begin) * MS + MS
    got = asked + wait * MS
    return BatchRecord(
        epoch, number, worker, 1, 1, 4, 100, "segment", asked, asked, asked, asked + MS, asked + 2 * MS,
        asked + 2 * MS, asked + 3 * MS, got, got + 5 * MS, 0, 0, 0, 0, 0, 1, 1, tuple(range(4)),
    )  # fmt: skip


def ms(row: Row) -> list[tuple[str, float, float]]:
    return [(b.kind, b.begin / MS, b.end / MS) for b in row.blocks]


def stalled(rows: Iterable[Row]) -> list[float]:
    return [row.stall / MS for row in rows if row.stall]


def test_a_batch_has_a_row_on_the_lane_of_its_worker_and_one_on_that_of_the_loop():
    worker, loop = Timeline().take([record(0)])
    assert (worker.lane, loop.lane) == (worker_lane(0), loop_lane(0))
    assert ms(worker) == [("fetch", 1, 2), ("collate", 2, 3), ("reorder", 3, 4)]
    assert ms(loop) == [("wait", 1, 2), ("step", 2, 7)]
    assert worker.tip.splitlines()[:4] == [
        "batch 0", "fetch 1.00 ms, collate 1.00 ms", "reorder buffer 1.00 ms", "4 samples: 0, 1, 2, 3",
    ]  # fmt: skip
    assert loop.tip == "batch 0\nloop waited 1.00 ms\nloop worked 5.00 ms"


def test_a_batch_in_the_reorder_buffer_has_a_row_before_it_is_delivered_which_its_record_replaces():
    timeline = Timeline()
    early = received(7, in_order=False)
    (row,) = timeline.take([], [early])
    assert ms(row) == [("fetch", 1, 2), ("collate", 2, 3), ("reorder", 4, 0)]
    assert "waiting in the reorder buffer" in row.tip
    assert timeline.take([], [early]) == []
    timeline.take([record(7, worker=1)])
    assert [row.tip.count("waiting") for row in timeline.rows] == [0, 0]


def test_consecutive_batches_of_a_worker_are_merged_if_there_are_very_many():
    records = [record(i, worker=i % 4, begin=i // 10) for i in range(4 * SINGLE)]
    rows = Timeline().take(records)
    assert len(rows) == 5
    on_workers = [row for row in rows if row.lane.kind is LaneKind.WORKER]
    assert sum(row.batches for row in on_workers) == sum(row.batches for row in rows if row not in on_workers) == 240
    assert all(a <= b for row in on_workers for _, a, b in ms(row))
    assert "60 batches, 0 to 236" in on_workers[0].tip


def test_the_number_of_rows_kept_is_bounded():
    timeline = Timeline()
    for i in range(KEPT):
        timeline.take([record(i, worker=i % 3)])
    assert len(timeline.rows) == KEPT
    assert [lane.label for lane in timeline.lanes()] == ["your loop", "worker 0", "worker 1", "worker 2"]


def test_an_unusually_long_wait_is_a_stall():
    timeline = Timeline()
    timeline.take([record(i) for i in range(20)])
    assert stalled(timeline.take([record(20, wait=400)])) == [400]
    assert stalled(timeline.take([record(21, begin=9000)])) == []


def test_a_wait_that_recurs_is_no_stall():
    timeline = Timeline()
    rows = [timeline.take([record(i, wait=1 if i % 8 else 160, begin=200 * i)]) for i in range(80)]
    assert not stalled(itertools.chain(*rows[20:]))


def test_a_merged_row_has_its_longest_stall():
    timeline = Timeline()
    timeline.take([record(i) for i in range(20)])
    waits = {7: 300, 30: 90}
    records = [record(i, wait=waits.get(i, 1), begin=1000) for i in range(2 * SINGLE)]
    assert stalled(timeline.take([r._replace(returned=2000 * MS) for r in records])) == [300]


def test_paused_time_is_no_wait_in_the_timeline():
    timeline = Timeline()
    timeline.take([record(i) for i in range(20)])
    timeline.pauses.note(LoaderPaused(1000 * MS))
    timeline.pauses.note(LoaderResumed(1900 * MS))
    loop = timeline.take([record(20, wait=910, begin=994)])[1]
    assert loop.stall == 0
    assert ms(loop) == [("wait", 995, 1000), ("wait", 1900, 1905), ("step", 1905, 1910)]
    assert "loop waited 10.0 ms" in loop.tip


def test_the_live_timeline_shows_pauses():
    panel = TimelinePanel()
    pauses = [LoaderPaused(1000 * MS), LoaderResumed(1900 * MS), LoaderPaused(4000 * MS)]
    frame = Frame(snapshot(), events=pauses, now=5000 * MS)
    panel.news(frame)
    assert panel.payload(frame)["pauses"] == [[1000, 1900], [4000, 5000]]


def test_the_time_that_a_lost_worker_hung_stays_in_the_timeline():
    panel = TimelinePanel()
    died = WorkerDied(9000 * MS, 1, 7, -9, "restarted by request", True, (4, 5), "", since=2000 * MS)
    quiet = Frame(snapshot(), events=[dataclasses.replace(died, since=0)], now=9100 * MS)
    assert panel.news(quiet) == []
    assert "lost" not in {kind["name"] for kind in panel.payload(quiet)["kinds"]}
    frame = Frame(snapshot(), events=[died], now=9200 * MS)
    (row,) = panel.news(frame)
    assert (row["lane"], row["blocks"]) == ("worker 1", [["lost", 2000, 9000]])
    assert "processed for 7.0 s, until worker 1 was restarted" in row["tip"]
    assert "batch" not in row, "there is nothing to open"
    assert panel.payload(frame)["kinds"][-1]["label"] == "lost with its worker"
    again = record(4, worker=1, begin=9050)  # the same worker id produces it in the end
    panel.news(Frame(snapshot(), events=[again], now=9300 * MS))
    assert row in panel.history()
    assert "#b0306a" in panel.html(panel.payload(frame))


def test_the_timeline_fits_the_newest_epoch():
    panel = TimelinePanel()
    events = [EpochStarted(50 * MS, 0, 9, 2), record(3), EpochEnded(90 * MS, 0, 9, "exhausted")]
    frame = Frame(snapshot(), events=events, now=200 * MS)
    panel.news(frame)
    assert panel.payload(frame)["epoch"] == [50, 90]
    frame = Frame(snapshot(), events=[EpochStarted(210 * MS, 1, 9, 2), record(11, epoch=1)], now=300 * MS)
    panel.news(frame)
    assert panel.payload(frame)["epoch"] == [210, None]
    assert "0.017 s" in panel.html(panel.payload(frame)), (
        "from the begin of the epoch to the end of its batch, at 227 ms"
    )


@pytest.mark.parametrize("batches", [3000, 150])
def test_colors_of_the_static_timeline_have_the_shares_of_the_times(batches: int):
    """Blocks far narrower than a pixel must not paint over their neighbours."""
    rows = []
    for i in range(batches):
        begin, took = 30_000 // batches * i, 27_000 // batches
        ends = {"fetched": (begin + took) * MS, "collated": round((begin + 1.01 * took) * MS)}
        fast = record(i, begin=begin)._replace(**ends, in_order=0)
        rows += [row for row in rows_of([fast]) if row.lane.kind is LaneKind.WORKER]
    widths = {
        color: sum(float(width) for width in re.findall(r"h(-?[\d.]+)v", path))
        for color, path in re.findall(r'<path fill="(#\w+)" d="([^"]+)"', svg(rows))
    }
    fetch, collate = widths[KINDS["fetch"].color], widths.get(KINDS["collate"].color, 0.0)
    assert collate / (fetch + collate) < 0.03, "the true share is 0.01"


def test_stages_that_are_off_are_not_in_the_legend():
    frame = Frame(snapshot(workers=0))
    assert [kind["name"] for kind in TimelinePanel().payload(frame)["kinds"]] == ["fetch", "collate", "wait", "step"]


def test_loops_that_run_at_the_same_time_have_different_lanes():
    timeline = Timeline()
    pairs = [(record(i, begin=20 * i), record(i, epoch=1, begin=20 * i + 2)) for i in range(3)]
    lanes = [r.lane.number for r in timeline.take(list(itertools.chain(*pairs))) if r.lane.kind is LaneKind.LOOP]
    assert lanes == [0, 1, 0, 1, 0, 1]
    assert timeline.take([record(0, epoch=2, begin=5000)])[1].lane == loop_lane(0)


def test_the_static_timeline_is_bounded_and_shows_every_lane():
    timeline = Timeline()
    for i in range(3000):
        timeline.take([record(i, worker=i % 5, begin=9 * i)])
    drawn = svg(timeline.rows)
    assert len(drawn) < 60_000
    assert all(f"worker {i}<" in drawn for i in range(5))
    assert svg([]) == ""


def test_live_static_and_bokeh_timelines_draw_the_same_description():
    records = [record(i, worker=i % 2) for i in range(10)]
    panel = TimelinePanel()
    live = panel.news(Frame(snapshot(), events=records, now=MS))
    drawn = rows_of(records)
    assert [entry["tip"] for entry in live] == [row.tip for row in drawn]
    assert [entry["blocks"] for entry in live] == [[list(block) for block in ms(row)] for row in drawn]
    figure = timeline_figure(Trace(records))
    tips = {tip for r in figure.renderers for tip in r.data_source.data.get("tip", ())}
    assert tips == {row.tip for row in drawn}
    colors = {kind["color"] for kind in panel.payload(Frame(snapshot(), now=MS))["kinds"]}
    used = set(re.findall(r'fill="(#\w+)"', svg(drawn)))
    assert used
    assert used <= colors
