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
LIVE, MOVES, RESTART, PAUSE, STEP, RESIZE, EXPLORER, RELOAD = STEPS = (
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
HAS_FORM = "runs to its end, with a plain form"
HAS_LINES = "runs to its end, with a line for each view"
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


class LiveView:
    """The steps on a page on which the loop has been started.

    Args:
        page: The page.
        reload: Reloads the page while the cell is busy; None to leave this out.
    """

    def __init__(self, page: Any, reload: Callable[[], object] | None) -> None:
        self.page, self._reload = page, reload
        self.progress = page.locator(".nbl-live .nbl-progress")
        self.chip = page.locator(".nbl-live .nbl-chip").first

    def use(self) -> Results:
        """Go through the steps."""
        results: Results = {}
        attempt(results, LIVE, lambda: self.page.locator(STUCK).wait_for(timeout=FIRST))
        if results[LIVE] != "yes":
            return results
        steps = {
            MOVES: lambda: changes(self.page, self.page.locator(STUCK)),
            RESTART: self.restart,
            PAUSE: self.pause,
            STEP: self.step,
            RESIZE: self.resize,
            EXPLORER: self.explore,
        }
        for name, function in steps.items():
            attempt(results, name, function)
        if self._reload is not None:
            attempt(results, RELOAD, self.reload)
        return results

    def press(self, name: str) -> None:
        named = re.compile(f"(^|: ){re.escape(name)}$")
        self.page.locator(".nbl-live").get_by_role("button", name=named).first.click(timeout=TIMEOUT)

    def restart(self) -> None:
        button = self.page.locator(STUCK).get_by_role("button", name=re.compile("^Restart worker"))
        button.click(timeout=TIMEOUT)
        self.page.locator(STUCK).wait_for(state="detached", timeout=TIMEOUT)
        changes(self.page, self.progress)

    def pause(self) -> None:
        self.press("Pause the loader")
        self.chip.filter(has_text="paused").wait_for(timeout=TIMEOUT)

    def step(self) -> None:
        before = self.progress.first.inner_text()
        self.press("Deliver one batch to the loop, then pause")
        changes(self.page, self.progress, before)
        self.press("Resume the loader")
        self.chip.filter(has_text="running").wait_for(timeout=TIMEOUT)

    def resize(self) -> None:
        self.page.get_by_role("slider", name="Number of workers").press("ArrowRight", timeout=TIMEOUT)
        self.page.locator(".nbl-live tr", has_text="2 · pid").first.wait_for(timeout=TIMEOUT)

    def explore(self) -> None:
        card = self.page.locator(".nbl-live .nbx-card").nth(3)
        card.wait_for(timeout=TIMEOUT)
        card.click(timeout=TIMEOUT)
        self.page.locator(".nbl-live .nbx-detail").locator("visible=true").first.wait_for(timeout=TIMEOUT)

    def reload(self) -> None:
        assert self._reload is not None
        self._reload()
        self.progress.first.wait_for(timeout=FIRST)
        changes(self.page, self.progress)


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
