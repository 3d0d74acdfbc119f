"""What is tried in each front end: a worker hangs in a busy cell, and the view must show it and end it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAKE = """
import threading, time
from pathlib import Path
from nbloader import DataLoader, explore
from sleepy import Sleepy

folder = Path("{folder}")
loader = DataLoader(Sleepy(4000, hang_at=130, mark=folder / "mark"), batch_size=4, num_workers=2)
loader.dashboard()
"""
EXPLORE = """
view = explore(Sleepy(400, hang_at=-1, mark=folder / "none"))
view
"""
LOOP = """
def loop():
    while not (folder / "stop").exists():
        for batch in loader:
            time.sleep(0.05)
            if (folder / "stop").exists():
                break
loop()
"""
LIVE, BUSY, RESTART, PAUSE, STEP, RESIZE, EXPLORER, RELOAD = STEPS = (
    "live in a busy cell",
    "moves",
    "restart",
    "pause",
    "step",
    "resize",
    "explorer",
    "reload",
)
NAMED, REFRESHED = "says what is missing", "plain form is refreshed"
GOES_ON = "goes on, with a form or a line of text"
FIRST, TIMEOUT = 90_000, 30_000
"""Milliseconds for a kernel that imports torch, and for each other step."""
STUCK = ".nbl-live tr.nbl-stuck"
NOTICE = ".nbl-static .nbl-silent"
Results = dict[str, str]
"""For each step "yes", or why not."""


def changes(page: Any, locator: Any, before: str | None = None) -> None:
    """Wait until the text of a node is another one, also in a shadow tree."""
    before = locator.first.inner_text(timeout=TIMEOUT) if before is None else before
    deadline = time.monotonic() + TIMEOUT / 1000
    while locator.first.inner_text(timeout=TIMEOUT) == before:
        if time.monotonic() > deadline:
            raise TimeoutError(f"stays at {before!r}")
        page.wait_for_timeout(200)


def attempt(results: Results, step: str, function: Callable[[], object]) -> None:
    """Try a step, and note the result."""
    try:
        function()
        results[step] = "yes"
    except Exception as error:
        results[step] = "no: " + " ".join(str(error).split("Call log")[0].split())[:160]


def use_live_view(page: Any, reload: Callable[[], object] | None) -> Results:
    """Go through the steps on a page on which the loop has been started.

    Args:
        page: The page.
        reload: Reloads the page while the cell is busy; None to leave this out.
    """
    results: Results = {}
    progress = page.locator(".nbl-live .nbl-progress")
    chip = page.locator(".nbl-live .nbl-chip").first

    def press(name: str) -> None:
        page.locator(".nbl-live").get_by_role("button", name=name, exact=True).first.click(timeout=TIMEOUT)

    def restart() -> None:
        page.locator(STUCK).get_by_role("button", name=re.compile("^Restart worker")).click(timeout=TIMEOUT)
        page.locator(STUCK).wait_for(state="detached", timeout=TIMEOUT)
        changes(page, progress)

    def pause() -> None:
        press("Pause the loader")
        chip.filter(has_text="paused").wait_for(timeout=TIMEOUT)

    def step() -> None:
        before = progress.first.inner_text()
        press("Deliver one batch to the loop, then pause")
        changes(page, progress, before)
        press("Resume the loader")
        chip.filter(has_text="running").wait_for(timeout=TIMEOUT)

    def resize() -> None:
        page.get_by_role("slider", name="Number of workers").press("ArrowRight", timeout=TIMEOUT)
        page.locator(".nbl-live tr", has_text="2 · pid").first.wait_for(timeout=TIMEOUT)

    def explorer() -> None:
        page.locator(".nbl-live .nbx-card").nth(3).wait_for(timeout=TIMEOUT)
        page.locator(".nbl-live .nbx-card").nth(3).click(timeout=TIMEOUT)
        page.locator(".nbl-live .nbx-detail").locator("visible=true").first.wait_for(timeout=TIMEOUT)

    def after_reload() -> None:
        assert reload is not None
        reload()
        progress.first.wait_for(timeout=FIRST)
        changes(page, progress)

    attempt(results, LIVE, lambda: page.locator(STUCK).wait_for(timeout=FIRST))
    if results[LIVE] == "yes":
        attempt(results, BUSY, lambda: changes(page, page.locator(STUCK)))
        for name, function in (
            (RESTART, restart),
            (PAUSE, pause),
            (STEP, step),
            (RESIZE, resize),
            (EXPLORER, explorer),
        ):
            attempt(results, name, function)
        if reload is not None:
            attempt(results, RELOAD, after_reload)
    return results


def use_plain_form(page: Any) -> Results:
    """Look at the form of a page that does not answer, while the loop runs."""
    results: Results = {}
    notice = page.locator(NOTICE).first

    def says() -> None:
        notice.wait_for(timeout=FIRST)
        assert "pip install anywidget" in notice.inner_text()

    attempt(results, NAMED, says)
    attempt(results, REFRESHED, lambda: changes(page, page.locator(".nbl-static")))
    return results


def write_marimo(path: Path, cells: list[str]) -> None:
    """Write a notebook for marimo."""
    names = "DataLoader, Path, Sleepy, explore, folder, loader, threading, time"
    uses = ["", "Path, Sleepy, explore, folder", "folder, loader, time"]
    parts = ["import marimo\n\napp = marimo.App()\n"]
    for used, cell, returned in zip(uses, cells, (names, "view,", "loop,"), strict=True):
        body = "\n".join(f"    {line}" for line in cell.strip().splitlines())
        parts.append(f"\n@app.cell\ndef _({used}):\n{body}\n    return {returned}\n")
    path.write_text("\n".join(parts) + '\nif __name__ == "__main__":\n    app.run()\n')
