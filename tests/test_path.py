"""Claims about the drawing of a batch's path, and about the rows of the timeline."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

from fake_loader import FakeLoader

from nbloader.dashboard import lanes_svg
from nbloader.dashboard.path import path_of
from nbloader.dashboard.spans import SINGLE, Spans
from nbloader.events import BatchRecord
from nbloader.snapshot import Made, Snapshot, UploadStats

MS = 1_000_000


def snapshot(workers: int = 3, **changes: Any) -> Snapshot:
    loader = FakeLoader(workers=workers)
    loader.state, loader.epoch = "running", 0
    base = dataclasses.replace(loader.stats(), reordering=0, ready=0, made=(), waiting=None, waiting_for=None)
    return dataclasses.replace(base, **changes)


def made(number: int, *, in_order: bool) -> Made:
    return Made(0, number, 1, MS, 2 * MS, 3 * MS, 4 * MS, 5 * MS if in_order else 0)


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
    assert (on["pin"]["note"], on["upload"]["note"]) == ("in place", "cuda:0, 720 us, 98 % hidden")
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
    assert spans.take([record(20, wait=400)])[1][8] == 1
    assert spans.take([record(21, begin=9000)])[1][8] == 0


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
