"""Claims about the drawing of a batch's path, and about the rows of the timeline."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from typing import Any

import pytest
from fake_loader import FakeLoader

from nbloader.dashboard import lanes_svg
from nbloader.dashboard.path import path_of
from nbloader.dashboard.spans import SINGLE, Spans
from nbloader.events import BatchRecord, LoaderPaused, LoaderResumed
from nbloader.events.gauges import ProducedBatch
from nbloader.metrics.snapshot import Snapshot, UploadStats

pytestmark = pytest.mark.unit

MS = 1_000_000


def snapshot(workers: int = 3, **changes: Any) -> Snapshot:
    loader = FakeLoader(workers=workers)
    loader.state, loader.epoch = "running", 0
    base = dataclasses.replace(loader.stats(), reordering=0, ready=0, made=(), waiting=None, waiting_for=None)
    return dataclasses.replace(base, **changes)


def made(number: int, *, in_order: bool) -> ProducedBatch:
    return ProducedBatch(0, number, 1, MS, 2 * MS, 3 * MS, 4 * MS, 5 * MS if in_order else 0)


def boxes(s: Snapshot) -> dict[str, dict[str, Any]]:
    return {box["id"]: box for box in path_of(s)["boxes"]}


def test_every_batch_stands_in_the_box_where_it_is():
    batches = (made(4, in_order=True), made(9, in_order=False), made(7, in_order=False))
    s = snapshot(made=batches, reordering=2, ready=1, at=3, at_for=0.5, asked=(10, 11))
    held = [dataclasses.replace(w, held=(5 + i, 12 + i), batch=5 + i, queued=1) for i, w in enumerate(s.workers)]
    s = dataclasses.replace(s, workers=tuple(held))
    found = boxes(s)
    assert list(found) == ["sampler", "workers", "shared", "reorder", "ready", "pin", "upload", "loop"]
    assert found["sampler"]["tokens"] == [10, 11]
    assert found["reorder"]["tokens"] == [7, 9]
    assert found["ready"]["tokens"] == [4]
    assert found["loop"]["tokens"] == [3]
    assert [member["tokens"] for member in path_of(s)["crew"]] == [[5, 12], [6, 13], [7, 14]]


def test_pin_and_upload_tell_what_they_take():
    off = boxes(snapshot())
    assert (off["pin"]["note"], off["upload"]["note"]) == ("off", "off")
    uploads = UploadStats((("registered", 9), ("copied", 1)), 0.0, 0.72, 53.0, 0.98)
    on = boxes(snapshot(pinned=True, device="cuda:0", uploads=uploads))
    assert (on["pin"]["note"], on["upload"]["note"]) == ("in place", "cuda:0, 720 us, 53.0 GB/s, 98 % hidden")
    copied = UploadStats((("copied", 9),), 4.0, None, None, None)
    on = boxes(snapshot(pinned=True, uploads=copied))
    assert (on["pin"]["note"], on["upload"]["note"]) == ("copy, 4.00 ms", "off")


def test_a_starved_loop_and_a_full_buffer_are_said_in_words():
    starved = boxes(snapshot(waiting=1.5, waiting_for=5, window=6))
    assert starved["ready"]["mark"] == "empty"
    assert "starved" in starved["ready"]["alarm"]
    assert starved["loop"]["alarm"] == "waits for 5: 1.5 s"
    full = boxes(snapshot(ready=6, window=6))
    assert full["ready"]["mark"] == "full"
    behind = boxes(snapshot(waiting=1.5, waiting_for=5, reordering=4, made=(made(6, in_order=False),)))
    assert "4 batches behind 5" in behind["reorder"]["alarm"]
    assert behind["reorder"]["more"] == 3


def test_a_stuck_worker_is_named_and_one_whose_batch_nobody_wants_keeps_its_queue():
    s = snapshot()
    stuck = dataclasses.replace(s.workers[1], stuck=True)
    left = dataclasses.replace(s.workers[2], left=True, held=(8,), queued=1)
    s = dataclasses.replace(s, workers=(s.workers[0], stuck, left))
    assert boxes(s)["workers"]["alarm"] == "worker 1 is stuck"
    assert path_of(s)["crew"][2] == {"id": 2, "state": "unwanted", "tokens": [8], "more": 0}


def test_many_workers_and_batches_make_a_bounded_drawing():
    s = snapshot(workers=300, made=tuple(made(i, in_order=False) for i in range(5000)), reordering=5000)
    assert len(json.dumps(path_of(s))) < 30_000


def test_workers_that_have_not_started_are_not_drawn_as_dead_and_those_of_a_full_loader_may_rest():
    s = snapshot()
    fresh = tuple(dataclasses.replace(w, pid=0, state="dead", batch=None) for w in s.workers)
    assert {w["state"] for w in path_of(dataclasses.replace(s, workers=fresh))["crew"]} == {"not started"}
    idle = tuple(dataclasses.replace(w, state="idle", batch=None) for w in s.workers)
    assert boxes(dataclasses.replace(s, workers=idle))["workers"]["alarm"] == "all idle"
    assert boxes(dataclasses.replace(s, workers=idle, ready=6, window=6))["workers"]["alarm"] == ""


def test_what_threads_make_does_not_pass_shared_memory():
    s = snapshot()
    threads = tuple(dataclasses.replace(w, pid=os.getpid()) for w in s.workers)
    assert "shared" not in boxes(dataclasses.replace(s, workers=threads))


def test_long_numbers_leave_room_for_fewer_batches():
    s = snapshot()
    for first, shown in ((7, 5), (63_000, 3)):
        held = dataclasses.replace(s.workers[0], batch=first, held=tuple(range(first, first + 8)), queued=7)
        member = path_of(dataclasses.replace(s, workers=(held,)))["crew"][0]
        assert (len(member["tokens"]), member["more"]) == (shown, 8 - shown)


def test_without_workers_the_path_is_shorter():
    s = snapshot(workers=0, waiting=0.1, waiting_for=3)
    assert [box["id"] for box in path_of(s)["boxes"]] == ["sampler", "here", "pin", "upload", "loop"]
    assert boxes(s)["here"]["tokens"] == [3]


# --- the timeline's rows


def record(number: int, *, worker: int = 0, wait: int = 1, run: int = 0, begin: int | None = None) -> BatchRecord:
    asked = (20 * number if begin is None else begin) * MS + MS
    got = asked + wait * MS
    return BatchRecord(
        run, run, number, worker, 1, 1, 4, 100, "segment", asked, asked, asked, asked + MS, asked + 2 * MS,
        asked + 2 * MS, asked + 3 * MS, got, got + 5 * MS, 0, 0, 0, 0, 0, 1, 1, tuple(range(4)),
    )  # fmt: skip


def test_a_batch_gets_a_row_of_its_worker_and_one_of_the_loop():
    worker, loop = Spans(0).take([record(0)])
    assert worker == [0, 0, 0, 0, 1, 1.0, 2.0, 3.0, 3.0, 4.0, "0, 1, 2, 3"]
    assert loop == [1, 0, 0, 0, 1, 1.0, 2.0, 7.0, 0, 1.0]


def test_a_batch_that_waits_in_the_reorder_buffer_has_a_row_before_it_is_delivered_and_only_once():
    spans = Spans(0)
    early = made(7, in_order=False)
    assert spans.take([], [early]) == [[0, 1, 0, 7, 1, 1.0, 2.0, 3.0, 4.0, 0, ""]]
    assert spans.take([], [early]) == []


def test_of_very_many_batches_those_of_a_worker_become_one_row():
    records = [record(i, worker=i % 4) for i in range(10 * SINGLE)]
    rows = Spans(0).take(records)
    assert len(rows) == 5
    assert sum(row[4] for row in rows if row[0] == 0) == sum(row[4] for row in rows if row[0] == 1) == len(records)
    assert all(a <= b <= c <= d for _, _, _, _, _, a, b, c, d, *_ in (row for row in rows if row[0] == 0))


def test_a_wait_out_of_the_ordinary_is_a_stall():
    spans = Spans(0)
    spans.take([record(i) for i in range(20)])
    assert spans.take([record(20, wait=400)])[1][8] == 400
    assert spans.take([record(21, begin=9000)])[1][8] == 0


def test_a_wait_that_comes_again_and_again_is_no_stall():
    spans = Spans(0)
    rows = [spans.take([record(i, wait=1 if i % 8 else 160, begin=200 * i)])[1] for i in range(80)]
    assert not any(row[8] for row in rows[20:])


def test_of_merged_batches_the_longest_stall_is_told():
    spans = Spans(0)
    spans.take([record(i) for i in range(20)])
    waits = {7: 300, 30: 90}
    rows = spans.take([record(i, wait=waits.get(i, 1), begin=1000 * (i + 1)) for i in range(2 * SINGLE)])
    assert [row[8] for row in rows if row[0] == 1] == [300]


def test_time_paused_is_no_wait_in_the_timeline():
    spans = Spans(0)
    spans.take([record(i) for i in range(20)])
    spans.pauses.note(LoaderPaused(1000 * MS))
    spans.pauses.note(LoaderResumed(1900 * MS))
    loop = spans.take([record(20, wait=910, begin=994)])[1]
    assert (loop[8], loop[9]) == (0, 10)
    assert spans.paused(3000 * MS) == [[1000, 1900]]
    red = lanes_svg.timeline(spans.rows, spans.paused(3000 * MS)).partition("--nbl-wait")[2].partition("/>")[0]
    assert red != lanes_svg.timeline(spans.rows).partition("--nbl-wait")[2].partition("/>")[0]
    spans.pauses.note(LoaderPaused(4000 * MS))
    assert spans.paused(5000 * MS)[-1] == [4000, 5000]


def test_loops_that_run_at_once_have_lanes_of_their_own():
    spans = Spans(0)
    pairs = [(record(i, begin=20 * i), record(i, run=1, begin=20 * i + 2)) for i in range(3)]
    lanes = [row[1] for row in spans.take(list(itertools.chain(*pairs))) if row[0] == 1]
    assert lanes == [0, 1, 0, 1, 0, 1]
    assert spans.take([record(0, run=2, begin=5000)])[1][1] == 0


def test_a_still_timeline_is_bounded_and_shows_every_lane():
    spans = Spans(0)
    for i in range(3000):
        spans.take([record(i, worker=i % 5, begin=9 * i)])
    svg = lanes_svg.timeline(spans.rows)
    assert len(svg) < 60_000
    assert all(f"worker {i}<" in svg for i in range(5))
    assert lanes_svg.timeline([]) == ""
