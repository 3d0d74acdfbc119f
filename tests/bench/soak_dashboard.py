"""Does the dashboard grow? A loader runs for minutes with its dashboard in a browser, and memory is looked at.

    make soak-dashboard            ten minutes (SECONDS=1800 for half an hour)

Every half minute: resident memory of the kernel, the page's JavaScript heap after a collection, its DOM nodes, and the
CPU time of the thread that feeds the dashboard. Fails when the last third stands above the first by more than a
tenth and 15 MB.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "browser"))
from conftest import BROWSER_ARGS, BROWSERS, Notebook, Server  # noqa: E402

SECONDS = float(os.environ.get("SECONDS", "600"))
EVERY = 30.0
SETTLED = 60.0
"""Seconds until which histories have filled."""

MAKE = """
import time, os
from nbloader import DataLoader
class Numbers:
    def __len__(self): return 20_000
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


def look(page: Any, cdp: Any, kernel: psutil.Process) -> tuple[float, float, int, float]:
    cdp.send("HeapProfiler.collectGarbage")
    metrics = {m["name"]: m["value"] for m in cdp.send("Performance.getMetrics")["metrics"]}
    cpu = kernel.cpu_times()
    return kernel.memory_info().rss / 1e6, metrics["JSHeapUsedSize"] / 1e6, int(metrics["Nodes"]), cpu.user + cpu.system


def kernel_of(server: Server) -> psutil.Process:
    children = psutil.Process(server._process.pid).children()
    return next(p for p in children if "ipykernel_launcher" in " ".join(p.cmdline()))


def main() -> int:
    root = Path(tempfile.mkdtemp())
    server = Server(root)
    rows = []
    try:
        server.wait_until_ready()
        with sync_playwright() as playwright:
            path = next(filter(None, map(shutil.which, BROWSERS)))
            browser = playwright.chromium.launch(executable_path=path, args=list(BROWSER_ARGS))
            notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (MAKE, LOOP)])
            notebook.metadata.kernelspec = {"name": "current", "display_name": "current", "language": "python"}
            nbformat.write(notebook, root / "soak.ipynb")
            page = browser.new_page(viewport={"width": 1300, "height": 1400})
            page.set_default_timeout(60_000)
            opened = Notebook(server, page, "lab", root / "soak.ipynb")
            opened.run_all()
            page.locator(".nbl-live .nbl-verdict").wait_for()
            for part in ("plots", "samples", "events"):
                page.locator(f".nbl-part-{part} > summary").click()
            page.locator(".nbl-live .nbl-plot canvas").nth(3).wait_for()
            cdp = page.context.new_cdp_session(page)
            cdp.send("Performance.enable")
            kernel = kernel_of(server)
            began, before = time.monotonic(), None
            print("seconds  kernel MB  page heap MB  nodes  kernel CPU %", flush=True)
            while (now := time.monotonic() - began) < SECONDS:
                row = look(page, cdp, kernel)
                share = 0.0 if before is None else 100 * (row[3] - before) / EVERY
                before = row[3]
                print(f"{now:7.0f}  {row[0]:9.1f}  {row[1]:12.1f}  {row[2]:5d}  {share:.1f}", flush=True)
                if now > SETTLED:
                    rows.append(row)
                page.wait_for_timeout(1000 * EVERY)
            (root / "stop").touch()
            opened.wait_until_run(1)
            browser.close()
    finally:
        server.close()
        shutil.rmtree(root, ignore_errors=True)
    return report(rows)


def report(rows: list[tuple[float, float, int, float]]) -> int:
    third = max(1, len(rows) // 3)
    failed = 0
    for i, name in enumerate(("kernel MB", "page heap MB")):
        first, last = (sorted(row[i] for row in part)[len(part) // 2] for part in (rows[:third], rows[-third:]))
        grew = last > 1.1 * first and last > first + 15
        failed |= grew
        print(f"{name}: {first:.1f} in the first third, {last:.1f} in the last{': it grows' if grew else ''}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
