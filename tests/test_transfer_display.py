"""How transfers to a device, and from machines, are shown: lanes, stages, arrows, tokens, text. Needs no device."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import defaultdict
from typing import Any

import pytest
from datasets import Images
from fake_loader import FakeLoader
from stand_in import PacedStandIn
from test_trace import MS, load, record

from nbloader import DataLoader
from nbloader.dashboard.charts import columns_of
from nbloader.dashboard.page import Report
from nbloader.dashboard.panels import Frame
from nbloader.dashboard.panels.device import Device
from nbloader.dashboard.panels.path import describe
from nbloader.dashboard.panels.plots import Plots
from nbloader.dashboard.panels.timeline import Timeline as TimelinePanel
from nbloader.dashboard.panels.timeline import svg
from nbloader.dashboard.panels.workers import Workers as WorkerTable
from nbloader.dashboard.timeline_figure import timeline
from nbloader.events import BatchRecord, NodeTransfer, Placed
from nbloader.metrics.snapshot import OPTIONAL_STAGES, STAGES
from nbloader.metrics.stage_times import durations, stage_stats
from nbloader.recording.codec import decode_batches, encode_events
from nbloader.report.slices import KINDS, LaneKind, slices
from nbloader.report.timeline import SINGLE, Timeline
from nbloader.report.trace import Trace


def sent(number: int, *, device: str = "cuda:0", late: bool = False, begin: int | None = None, **changes: Any) -> Any:
    """A batch that was pinned in 2 ms and copied to the device in 4 ms, started before it was requested.

    Args:
        number: Batch number.
        device: Its device.
        late: Whether the copy begins only when the loop has the batch.
        begin: When it was requested, ms.
        **changes: Other fields of the record.
    """
    r = record(number, 1000 + 15 * number if begin is None else begin, worker=number % 2, **changes)
    took_up = r.delivered - (1 * MS if late else 7 * MS)
    r = r._replace(in_order=took_up, dispatched=took_up - 20 * MS, fetch_begin=took_up - 8 * MS,
                   fetched=took_up - 3 * MS, collated=took_up - MS, received=took_up - MS)  # fmt: skip
    copied = took_up + (3 * MS if late else 2 * MS)
    placed = Placed(device, "copied", took_up, took_up + 2 * MS, copied, copied + 4 * MS, copied + 3 * MS, 8_000_000)
    return r._replace(placed=placed)


def epoch(count: int, **changes: Any) -> list[BatchRecord]:
    return [sent(i, **changes) for i in range(count)]


def test_pinning_and_each_device_have_lanes_between_loop_and_workers():
    two = [sent(i, device=f"cuda:{i % 2}") for i in range(6)]
    lanes = sorted({s.lane for s in slices(two)})
    assert [lane.label for lane in lanes] == [
        "your loop",
        "upload to cuda:0",
        "upload to cuda:1",
        "pin",
        "worker 0",
        "worker 1",
    ]
    took = {s.kind: s.end - s.begin for s in slices(two) if s.kind in ("pin", "upload")}
    assert took == {"pin": 2 * MS, "upload": 4 * MS}


@pytest.mark.parametrize("late", [False, True])
def test_an_arrow_leads_from_the_worker_through_the_upload_to_the_loop(late: bool):
    by_phase = load(Trace(epoch(10, late=late)).to_json())
    lanes: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for e in by_phase["X"]:
        lanes[e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for phase in "stf":
        assert len(by_phase[phase]) == 10
        for e in by_phase[phase]:
            assert any(begin <= e["ts"] <= end for begin, end in lanes[e["tid"]]), e
    for start, step, end in zip(by_phase["s"], by_phase["t"], by_phase["f"], strict=True):
        assert start["id"] == step["id"] == end["id"]
        assert start["ts"] <= step["ts"] <= end["ts"]
    names = {e["tid"]: e["args"]["name"] for e in by_phase["M"] if e["name"] == "thread_name"}
    assert {names[e["tid"]] for e in by_phase["t"]} == {"upload to cuda:0"}


def test_the_slice_of_an_upload_has_bytes_throughput_and_hidden_share():
    by_phase = load(Trace(epoch(3)).to_json())
    uploads = [e["args"] for e in by_phase["X"] if e["cat"] == "upload"]
    assert uploads[0] == {
        "epoch": 0, "batch": 0, "bytes": 8_000_000, "GB/s": 2.0, "from": "copied memory", "hidden": 0.75,
    }  # fmt: skip


def test_pin_and_upload_are_stages_of_batches_that_go_through_them():
    took = dict(zip(STAGES, durations(sent(0)), strict=True))
    assert (took["pin"], took["upload"]) == (2 * MS, 4 * MS)
    took = dict(zip(STAGES, durations(record(0, 1000)), strict=True))
    assert (took["pin"], took["upload"]) == (0, 0)


def test_the_figure_has_hover_text_with_the_throughput():
    sources = [r.data_source.data for r in timeline(Trace(epoch(10))).renderers]
    tips = [s["tip"][0] for s in sources if "tip" in s]
    assert len(tips) == 7
    assert "batch 0\n8.00 MB to cuda:0 in 4.00 ms: 2.00 GB/s\n75% hidden behind the work of the loop" in tips


def test_the_live_timeline_has_rows_for_pinning_and_uploads():
    rows = Timeline().take([sent(0, begin=20)])
    pin, upload = (next(row for row in rows if row.lane.kind is kind) for kind in (LaneKind.PIN, LaneKind.UPLOAD))
    assert pin.blocks == (("pin", 18 * MS, 20 * MS),)
    assert pin.tip == "batch 0\npinned by a copy in 2.00 ms"
    assert upload.blocks == (("upload", 20 * MS, 24 * MS),)
    assert upload.tip == "batch 0\n8.00 MB to cuda:0 in 4.00 ms: 2.00 GB/s\n75% hidden behind the work of the loop"
    drawn = svg(rows)
    assert drawn.index("your loop") < drawn.index("to cuda:0") < drawn.index("pin<") < drawn.index("worker 0")
    assert drawn.count(KINDS["upload"].color) == drawn.count(KINDS["pin"].color) == 1


def test_the_uploads_of_very_many_batches_are_merged_into_one_row():
    rows = Timeline().take([r._replace(returned=10**10) for r in epoch(2 * SINGLE)])
    (upload,) = (row for row in rows if row.lane.kind is LaneKind.UPLOAD)
    assert upload.batches == 2 * SINGLE
    assert upload.tip.splitlines()[1].startswith("960 MB to cuda:0 in 480 ms")
    assert upload.end - upload.begin == 2 * SINGLE * 4 * MS


def test_a_slow_device_is_visible_in_every_view_of_a_loader():
    device = PacedStandIn(4 * 64 * 64 * 4 / 0.025, way="copied")  # 25 ms a batch
    begun: list[tuple[int, ...]] = []
    with DataLoader(Images(160), 4, num_workers=2, device=device, persistent_workers=True) as loader:
        next(iter(loader))  # in the epoch after it no worker starts, which takes long on a busy machine
        for number, _batch in enumerate(loader):
            if number > 5:
                begun.append(loader.stats().begun)
        s, trace, points = loader.stats(), loader.trace, loader.points()
        page = loader.report().html()
    stages = {stage.name: stage for stage in s.stages}
    assert stages["upload"].mean == pytest.approx(25, rel=0.1)
    assert stages["pin"].mean > 0
    assert any(begun), "the next batch is on its way while the loop works on this one"
    assert s.now_verdict.cause == s.cause == "upload"
    assert "The transfer to stand-in:0 is the bottleneck" in s.now_verdict.sentence
    assert {"upload to stand-in:0", "pin"} <= {x.lane.label for x in slices(trace.batches)}
    upload = next(box for box in describe(s).boxes if box.id == "upload")
    assert "GB/s" in upload.note
    assert columns_of(points)["stage_upload"][-1] > 0
    assert "Pinning and upload" in page
    lines = Device().payload(Frame(s))
    assert lines["warn"]
    assert [line["label"] for line in lines["lines"]] == [
        "Upload to stand-in:0", "Pinned memory", "Memory of stand-in:0",
    ]  # fmt: skip
    assert "the device waits" in lines["lines"][0]["text"]
    assert lines["lines"][1]["text"].startswith("batches are copied to it, ")
    assert lines["lines"][2]["text"] == "315 MB in tensors, 440 MB reserved by torch, of 1.07 GB"
    assert lines["lines"][2]["bar"] == [["used", 29.3], ["kept", 11.7]]
    panel = Plots()
    html = panel.html(panel.payload(Frame(s, points)))
    assert "Pinning and upload" in html
    reply = panel.respond({"name": "figures"}, loader)
    assert reply is not None
    assert reply.content["charts"][-1]["name"] == "device"


def test_a_batch_in_transfer_is_in_the_upload_box():
    device = PacedStandIn(4 * 64 * 64 * 4 / 0.5)  # half a second a batch
    with DataLoader(Images(40), 4, num_workers=2, device=device) as loader:
        batches = iter(loader)
        next(batches)
        deadline = time.monotonic() + 30
        while loader.stats().ready < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        next(batches)
        s = loader.stats()
        boxes = {box.id: box for box in describe(s).boxes}
    assert s.begun == (2,)
    assert list(boxes["upload"].tokens) == [2]
    assert 2 not in boxes["ready"].tokens


def test_without_a_device_no_view_mentions_one():
    with DataLoader(Images(40), 4, num_workers=1) as loader:
        list(loader)
        s, page = loader.stats(), Report(loader.stats(), loader.trace).html()
    assert {stage.name for stage in s.stages} == set(STAGES) - set(OPTIONAL_STAGES)
    assert "Pinning and upload" not in page
    assert "device" not in Plots().payload(Frame(s))["y"]
    assert Device().payload(Frame(s)) == {"lines": []}
    assert not Device().html(Device().payload(Frame(s)))
    kinds = {kind["name"] for kind in TimelinePanel().payload(Frame(s))["kinds"]}
    assert kinds == set(KINDS) - {"transfer", "pin", "upload", "lost"}


# ---- batches from other machines -------------------------------------------------------------------------------------


def from_node(number: int) -> BatchRecord:
    """A batch that another machine sends for 4 ms, 1 ms after it was collated."""
    r = record(number, 1000 + 15 * number, worker=number % 2)
    begin, end = r.collated + MS, r.collated + 5 * MS
    r = r._replace(received=end, in_order=end + 2 * MS)
    return r._replace(transfer=NodeTransfer(f"10.0.0.{number % 2} (aa)", begin, end, 8_000_000))


def test_the_transfer_from_another_machine_is_a_stage_of_its_own():
    took = dict(zip(STAGES, durations(from_node(0)), strict=True))
    assert (took["transport"], took["transfer"], took["reorder"]) == (1 * MS, 4 * MS, 2 * MS)
    local = dict(zip(STAGES, durations(record(0, 1000)), strict=True))
    assert local["transfer"] == 0
    stages = {stage.name: stage.mean for stage in stage_stats([from_node(0), from_node(1)])}
    assert stages["transfer"] == 4
    assert "transfer" not in {stage.name for stage in stage_stats([record(0, 1000)])}


def test_the_transfer_from_another_machine_is_drawn_and_named():
    cut = [s for s in slices([from_node(0)]) if s.kind == "transfer"]
    assert [(s.lane.label, s.end - s.begin) for s in cut] == [("worker 0", 4 * MS)]
    row = next(row for row in Timeline().take([from_node(0)]) if row.lane.kind is LaneKind.WORKER)
    assert "8.00 MB sent from 10.0.0.0 (aa) in 4.00 ms" in row.tip
    (begun,) = [e for e in load(Trace([from_node(0)]).to_json())["b"] if e["cat"] == "transfer"]
    assert begun["args"] == {"epoch": 0, "batch": 0, "node": "10.0.0.0 (aa)", "bytes": 8_000_000}
    (entry,) = encode_events([from_node(0)])
    assert decode_batches(json.loads(json.dumps(entry))["batches"]) == [from_node(0)]


def test_workers_are_grouped_by_their_machines():
    s = FakeLoader(workers=4).stats()
    nodes = ("b <2>", "a", "b <2>", "a")
    workers = tuple(dataclasses.replace(w, node=node) for w, node in zip(s.workers, nodes, strict=True))
    frame = Frame(dataclasses.replace(s, workers=workers))
    table = WorkerTable()
    assert [row["node"] for row in table.news(frame)] == list(nodes)
    payload = table.payload(frame)
    assert list(payload["nodes"]) == ["a", "b <2>"]
    assert payload["nodes"]["a"].startswith("2 workers · ")
    drawn = table.html(payload)
    parts = [drawn.index(text) for text in (">a <", ">1 · pid", ">3 · pid", ">b &lt;2&gt; <", ">0 · pid", ">2 · pid")]
    assert parts == sorted(parts)
    box = next(box for box in describe(frame.snapshot).boxes if box.id == "shared")
    assert box.title == "From 2 nodes"
    panel = TimelinePanel()
    panel.news(frame)
    shown = panel.payload(frame)
    assert shown["lanes"] == ["your loop", "a", "worker 1", "worker 3", "b <2>", "worker 0", "worker 2"]
    assert shown["nodes"] == ["a", "b <2>"]
    assert "transfer" in {kind["name"] for kind in shown["kinds"]}
