"""Check the dashboard for memory leaks: a loader runs for minutes with its dashboard in a browser.

    make soak-dashboard            ten minutes (SECONDS=1800 for half an hour)

Sampled every half minute: resident memory of the kernel, the page's JavaScript heap after a garbage collection, DOM
nodes (all in the page, and those of the dashboard), listeners, and CPU time of the kernel, which includes the loop.
Epochs are short, so that bounded buffers such as the 300 lines of the log are full when the measurement begins. Fails
if the last third of the samples exceeds the first by more than `ALLOWED`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import psutil
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "browser"))
from conftest import BROWSER_ARGS, BROWSERS, Notebook, Server  # noqa: E402

SECONDS = float(os.environ.get("SECONDS", "600"))
EVERY = 30.0
SETTLED = min(180.0, SECONDS / 3)
"""Seconds after which all histories are full."""

MAKE = """
import time, os
from nbloader import DataLoader
class Numbers:
    def __len__(self): return 2_000
    def __getitem__(self, i):
        time.sleep(0.001)
        return i
loader = DataLoader(Numbers(), batch_size=8, num_workers=4, shuffle=True)
loader
"""
LOOP = f"""
end = time.time() + {SECONDS + 600}
while time.time() < end and not os.path.exists("stop"):
    for batch in loader:
        if os.path.exists("stop"): break
"""


class Sample(NamedTuple):
    """One sample of the kernel and the page."""

    kernel_mb: float
    heap_mb: float
    nodes: int
    ours: int
    """Nodes of the dashboard."""
    listeners: int
    cpu: float
    """Seconds."""


ALLOWED = {"kernel_mb": (0.1, 15), "heap_mb": (0.1, 15), "nodes": (0.05, 200), "listeners": (0.05, 20)}
"""Relative and absolute increase from the first to the last third that together count as growth."""
COUNT = """() => {
    let nodes = 0;
    for (const root of document.querySelectorAll(".nbl")) {
        const walk = document.createTreeWalker(root, NodeFilter.SHOW_ALL);
        do nodes++; while (walk.nextNode());
    }
    return nodes;
}"""


def sample(page: Any, cdp: Any, kernel: psutil.Process) -> Sample:
    cdp.send("HeapProfiler.collectGarbage")
    metrics = {m["name"]: m["value"] for m in cdp.send("Performance.getMetrics")["metrics"]}
    times = kernel.cpu_times()
    return Sample(
        kernel.memory_info().rss / 1e6,
        metrics["JSHeapUsedSize"] / 1e6,
        int(metrics["Nodes"]),
        page.evaluate(COUNT),
        int(metrics["JSEventListeners"]),
        times.user + times.system,
    )


def kernel_of(server: Server) -> psutil.Process:
    children = psutil.Process(server._process.pid).children()
    return next(p for p in children if "ipykernel_launcher" in " ".join(p.cmdline()))


def unfold(page: Any) -> None:
    """Show all panels."""
    page.locator(".nbl-live .nbl-verdict").wait_for()
    for part in ("plots", "samples", "events"):
        page.locator(f".nbl-panel-{part} > summary").click()
    page.locator(".nbl-live .nbl-plot canvas").nth(3).wait_for()


def wait(page: Any, seconds: float) -> None:
    """Only look."""
    page.wait_for_timeout(1000 * seconds)


def soak(cells: Sequence[str], begin: Callable[[Any], object], act: Callable[[Any, float], object]) -> int:
    """Run a notebook in a browser, and check that nothing grows.

    Args:
        cells: Of the notebook; the last one ends when there is a file `stop`.
        begin: Is called with the page at the beginning.
        act: Is called with the page and a number of seconds between two samples.

    Returns:
        0 if nothing grows.
    """
    root = Path(tempfile.mkdtemp())
    server = Server(root)
    rows = []
    try:
        server.wait_until_ready()
        with sync_playwright() as playwright:
            path = next(filter(None, map(shutil.which, BROWSERS)))
            browser = playwright.chromium.launch(executable_path=path, args=list(BROWSER_ARGS))
            notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
            notebook.metadata.kernelspec = {"name": "current", "display_name": "current", "language": "python"}
            nbformat.write(notebook, root / "soak.ipynb")
            page = browser.new_page(viewport={"width": 1300, "height": 1400})
            page.set_default_timeout(60_000)
            opened = Notebook(server, page, "lab", root / "soak.ipynb")
            opened.run_all()
            begin(page)
            cdp = page.context.new_cdp_session(page)
            cdp.send("Performance.enable")
            kernel = kernel_of(server)
            began, before = time.monotonic(), None
            print("seconds  kernel MB  page heap MB  nodes (ours)  listeners  kernel CPU %", flush=True)
            while (now := time.monotonic() - began) < SECONDS:
                row = sample(page, cdp, kernel)
                share = 0.0 if before is None else 100 * (row.cpu - before) / EVERY
                before = row.cpu
                sizes = f"{now:7.0f}  {row.kernel_mb:9.1f}  {row.heap_mb:12.1f}"
                counts = f"{f'{row.nodes} ({row.ours})':>12}  {row.listeners:9d}"
                print(f"{sizes}  {counts}  {share:.1f}", flush=True)
                if now > SETTLED:
                    rows.append(row)
                act(page, EVERY)
            (root / "stop").touch()
            opened.wait_until_run(len(cells) - 1)
            browser.close()
    finally:
        server.close()
        shutil.rmtree(root, ignore_errors=True)
    return report(rows)


def report(rows: list[Sample]) -> int:
    if not rows:
        print("too short to compare anything")
        return 0
    third = max(1, len(rows) // 3)
    failed = 0
    for name, (share, amount) in ALLOWED.items():
        values = [getattr(row, name) for row in rows]
        first, last = (sorted(part)[len(part) // 2] for part in (values[:third], values[-third:]))
        grew = last > (1 + share) * first and last > first + amount
        failed |= grew
        print(f"{name}: {first:.1f} in the first third, {last:.1f} in the last{': it grows' if grew else ''}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(soak((MAKE, LOOP), unfold, wait))
