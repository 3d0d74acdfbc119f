"""Check the explorer for memory leaks: someone scrolls through a million samples for minutes.

    make soak-explorer             ten minutes (SECONDS=60 for a first look)

First it measures how long the first picture takes, from the start of the cell, and then jumps to random samples, from
the key press to the picture. Then it scrolls by wheel and by keys, jumps, opens samples, and changes between gallery
and table; memory is sampled and checked as by `soak_dashboard.py`. The kernel keeps 64 MB of samples and 100,000 rows,
which ten minutes do not fill: the limits are lower here, so that whatever grows beyond them shows.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from typing import Any

from soak_dashboard import soak

JUMPS = 20
OPEN = """
import nbloader, numpy as np
from nbloader.explorer import fetcher, table
from gallery import Shapes
fetcher.CACHE_BYTES, table.MAX_ROWS = 2 << 20, 500
view = nbloader.explore(Shapes(1_000_000))
view
"""
WAIT = """
import os, time
while not os.path.exists("stop"): time.sleep(0.1)
"""
JUMP = """async (index) => {
    const live = document.querySelector(".nbl-live .nbx"), go = live.querySelector(".nbx-go");
    go.value = index;
    const began = performance.now();
    go.dispatchEvent(new Event("change"));
    while (!live.querySelector(`img[alt="sample ${index}"]`)) await new Promise(requestAnimationFrame);
    return performance.now() - began;
}"""


def measure(page: Any) -> None:
    """Print how long the first picture and jumps take. The cells were started a moment ago."""
    began = time.monotonic()
    page.locator(".nbl-live .nbx-card img[alt='sample 0']").wait_for()
    print(f"first picture after {time.monotonic() - began:.2f} s")
    took = [page.evaluate(JUMP, random.randrange(1_000_000)) for _ in range(JUMPS)]
    print(f"{JUMPS} jumps: median {statistics.median(took):.0f} ms, longest {max(took):.0f} ms, with the fetch")


def scroll(page: Any, seconds: float) -> None:
    """Scroll, jump, open and close for some seconds."""
    live = page.locator(".nbl-live .nbx")
    scroller = live.get_by_role("listbox")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        box = scroller.bounding_box()
        page.mouse.move(box["x"] + 100, box["y"] + 100)
        for _ in range(40):
            page.mouse.wheel(0, random.choice((200, 900, 900, -400)))
            page.wait_for_timeout(50)
        page.evaluate(JUMP, random.randrange(1_000_000))
        scroller.focus()
        for key in ("PageDown", "PageDown", "Enter"):
            page.keyboard.press(key)
        live.locator(".nbx-detail .nbx-field").first.wait_for()
        page.keyboard.press("Escape")
        live.get_by_role("button", name=random.choice(("Show a table", "Show a gallery"))).click()
        live.get_by_role("button", name="Show a gallery").click()


if __name__ == "__main__":
    sys.exit(soak((OPEN, WAIT), measure, scroll))
