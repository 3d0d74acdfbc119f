"""Recorded runs in a real browser: on a page without a kernel, and in a notebook whose kernel has gone.

It runs what docs/how-to/record-and-play.md shows, with the runs that the documentation plays.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nbloader

from .conftest import ROOT
from .test_live import LOW_CONTRAST, screenshot

pytestmark = [
    pytest.mark.browser,
    pytest.mark.leaves_behind("the browser's driver keeps threads of its own"),
]

RECORDINGS = ROOT / "docs/recordings"
GUIDE = ROOT / "docs/how-to/record-and-play.md"
RUNS = {"Do nothing": RECORDINGS / "do-nothing.nbl", "Restart it": RECORDINGS / "restart-worker.nbl"}
FORK = "a worker hangs"
SEEK = "(slider, ms) => { slider.value = ms; slider.dispatchEvent(new Event('input')); }"
POSITION = "slider => Number(slider.value)"


class Screen:
    """What is on a page with a player."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.slider = page.get_by_label("Position in the run")
        self.play = page.locator(".nbl-play")
        self.progress = page.locator(".nbl-recorded .nbl-progress")

    def position(self) -> float:
        """In milliseconds."""
        position: float = self.slider.evaluate(POSITION)
        return position

    def wait_until_after(self, ms: float) -> None:
        """Wait until the run has been played up to a moment."""
        self.page.wait_for_function("([node, ms]) => Number(node.value) > ms", arg=[self.slider.element_handle(), ms])

    def run(self, name: str) -> Any:
        """The button of a run."""
        return self.page.get_by_role("button", name=f"{name}: play this run")

    def progress_with(self, text: str) -> Any:
        """Wait until the progress of the epoch contains a text."""
        self.progress.filter(has_text=text).wait_for()


def shown(page: Any, *names: str) -> list[bool]:
    """Whether each of some panels, of which the page has one each, is shown."""
    return [
        page.locator(f".nbl-panel-{name}").is_visible() for name in names if page.locator(f".nbl-panel-{name}").count()
    ]


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """An empty page whose problems are collected: messages of the console, and requests to anywhere."""
    page = browser.new_page(viewport={"width": 1400, "height": 1300}, color_scheme="light", reduced_motion="reduce")
    page.set_default_timeout(90_000)
    page.problems = []
    page.on("console", lambda m: page.problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("request", lambda r: None if re.match(r"file:|blob:|data:", r.url) else page.problems.append(r.url))
    yield page
    page.close()


def test_a_page_plays_runs_at_any_moment_and_speed_and_loads_nothing(page: Any, tmp_path: Path) -> None:
    path = nbloader.play(RUNS, fork=FORK).save(tmp_path / "run.html", title="A worker hangs")
    assert path.stat().st_size < 1_500_000
    page.goto(path.as_uri())
    screen = Screen(page)
    page.locator(".nbl-recorded .nbl-chip", has_text="running").wait_for()
    fork = screen.position()
    assert screen.play.inner_text() == "▶ Play"
    page.locator(".nbl-forks.nbl-asking", has_text="When a worker hangs:").wait_for()
    page.locator("tr.nbl-stuck").wait_for()
    assert shown(page, "controls", "remedies") == [False, False], "their buttons need a loader"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.locator(f"body[data-jp-theme-light={'true' if scheme == 'light' else 'false'!r}]").wait_for()
        assert page.locator("#player").evaluate(LOW_CONTRAST) == []
        for width in (1400, 900):
            page.set_viewport_size({"width": width, "height": 1300})
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            screenshot(page, f"player-{scheme}-{width}")

    # One end: the worker is restarted, and the epoch goes on.
    page.get_by_label("Speed").select_option("8")
    screen.run("Restart it").click()
    screen.progress_with("batch 90 of 90")
    screen.play.filter(has_text="Again").wait_for()
    page.locator(".nbl-player-event", has_text="epoch 0 ended after 90 batches").wait_for()
    assert page.locator("tr.nbl-stuck").count() == 0
    # The other one begins where they part, and the epoch still stands still long after.
    page.get_by_label("Speed").select_option("1")
    screen.run("Do nothing").click()
    page.locator("tr.nbl-stuck").wait_for()
    screen.wait_until_after(fork + 500)
    screen.play.click()
    paused_at = screen.position()
    screen.progress_with("batch 24 of 90")
    screenshot(page, "player-do-nothing")
    # Scrubbing, also backwards, shows what was on screen at that time.
    screen.slider.evaluate(SEEK, 0)
    screen.progress_with("no epoch yet")
    assert page.locator("tr.nbl-stuck").count() == 0
    screen.slider.evaluate(SEEK, fork)
    screen.slider.press("ArrowRight")
    assert screen.position() == pytest.approx(fork + 250, abs=1)
    page.locator("tr.nbl-stuck").wait_for()
    page.get_by_role("button", name="Back to the moment before").click()
    assert screen.position() < fork
    page.get_by_role("button", name="On to the next moment").click()
    assert screen.position() == pytest.approx(fork, abs=1)
    screen.slider.evaluate(SEEK, paused_at)
    # From the beginning it stops where the runs part, and asks.
    screen.slider.evaluate(SEEK, fork - 600)
    screen.slider.press(" ")
    page.locator(".nbl-forks.nbl-asking").wait_for()
    assert screen.position() == pytest.approx(fork, abs=1)
    page.locator(".nbl-panel-plots > summary").click()
    page.locator(".nbl-plot canvas").nth(3).wait_for()
    screenshot(page, "player-plots")
    assert page.problems == []


def test_a_notebook_plays_runs_without_its_kernel(open_notebook: Any, server: Any) -> None:
    (play,) = re.findall(r"^recordings = .*\n.*$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    for name, path in (("wait.nbl", RUNS["Do nothing"]), ("restart.nbl", RUNS["Restart it"])):
        shutil.copy(path, server.root / name)
    notebook = open_notebook(f"import nbloader\n{play}")
    page = notebook.page
    page.emulate_media(reduced_motion="no-preference")
    notebook.run(0)
    screen = Screen(page)
    screen.wait_until_after(300)  # it plays by itself
    page.wait_for_function("() => [...globalThis.__nbloader.keys()].some((key) => key.startsWith('bokeh '))")
    kernel = notebook.kernel_id()
    notebook.shut_down_kernel()
    page.wait_for_function(f"() => !{notebook._PANEL}.context.sessionContext.session?.kernel")
    assert kernel not in [entry["id"] for entry in server.get("/api/kernels")]
    page.get_by_label("Speed").select_option("8")
    screen.run("Restart it").click()
    screen.progress_with("batch 90 of 90")
    page.locator(".nbl-recorded .nbl-panel-plots > summary").click()
    page.locator(".nbl-recorded .nbl-plot canvas").nth(3).wait_for()
    screenshot(page, "player-notebook")
    notebook.save()
    assert notebook.path.stat().st_size < 60_000
    notebook.open()
    page.locator(".nbl-static:visible", has_text="run this cell again to play it").wait_for()
    screenshot(page, "player-static")
    notebook.wait_until_responsive()  # opening it has started a kernel, which can be shut down only when it has started
