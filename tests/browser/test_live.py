"""The dashboard in a real browser: it is live, and its buttons work, while a cell is busy."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.browser,
    pytest.mark.leaves_behind("the browser's driver keeps threads of its own"),
]

MAKE = """
import tempfile, time, os
from pathlib import Path
from nbloader import DataLoader
from nbloader.events import WorkerDied, WorkerRestarted
from sleepy import Sleepy

dataset = Sleepy(400, hang_at=130, mark=Path(tempfile.mkdtemp(dir=".")) / "mark")
loader = DataLoader(dataset, batch_size=4, num_workers=3)
loader
"""
LOOP = """
pid = os.getpid()
batches, times = [], []
for batch in loader:
    batches.append(batch[:, 0].tolist())
    times.append(time.perf_counter_ns())
restarted = [e.time for e in list(loader.events.history) if isinstance(e, WorkerRestarted)]
print("in order:", sum(batches, []) == list(range(400)), "batches:", len(batches), "restarts:", len(restarted))
print("stall after restart: %.3f s" % ((min(t for t in times if t > restarted[0]) - restarted[0]) / 1e9))
print("pid:", pid == os.getpid())
"""
"""The first batch delivered after the restart is the one that the loop was waiting for."""

STUCK = ".nbl-live tr.nbl-stuck"
LOW_CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
"""Lists the texts whose contrast with their background is too low."""


def screenshot(page: Any, name: str) -> None:
    """Save a screenshot of the page in the folder NBLOADER_SCREENSHOTS, if it is set."""
    folder = os.environ.get("NBLOADER_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


UNTITLED = """(root) => [...root.querySelectorAll(
    "button, input, select, canvas[tabindex], .nbl-tile, .nbl-chip, .nbl-box, .nbl-bar, thead th, thead td, .nbl-plot")]
  .filter((node) => node.checkVisibility() && !node.closest("[title]:not([title='']), label[title]")
    && !node.querySelector("[title]:not([title=''])") && !node.getAttribute("aria-label"))
  .map((node) => `${node.tagName} ${node.className} ${node.textContent}`)"""
"""Controls, tiles and columns below a node without a tooltip or a description."""
IN_VIEW = """(node) => {
  const box = node.getBoundingClientRect();
  const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return node.contains(top);
}"""
"""Whether a node can be seen: it is in the window, and nothing lies above it."""


def restart_stuck_worker(page: Any) -> None:
    """Click the restart button of the stuck worker."""
    page.locator(STUCK).get_by_role("button", name="Restart worker").click()


def assert_epoch_is_whole(output: str) -> None:
    """Check in what LOOP printed that the click ended the stall, and that no batch was lost."""
    assert "in order: True batches: 100 restarts: 1" in output, output
    assert "pid: True" in output, output
    stall = re.search(r"stall after restart: ([0-9.]+) s", output)
    assert stall, output
    assert float(stall[1]) < 10, output  # a tenth of a second; the machine may be busy, and the worker sleeps an hour


def test_pages_may_load_nothing_from_elsewhere(server: Any) -> None:
    """All tests of this folder run under this policy."""
    with urllib.request.urlopen(f"{server.url}/lab", timeout=10) as answer:
        assert "default-src 'self'; " in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("kernel", "app"),
    [
        ("ipykernel-6.30", "lab"),
        ("ipykernel-7.0", "lab"),
        ("ipykernel-7.3", "lab"),
        ("current", "lab"),
        ("current", "notebook"),
    ],
)
def test_a_click_restarts_a_hung_worker_while_the_cell_is_busy(open_notebook: Any, kernel: str, app: str) -> None:
    notebook = open_notebook(MAKE, LOOP, app=app, kernel=kernel)
    page = notebook.page
    notebook.run_all()
    page.locator(STUCK).wait_for()
    kernel_id = notebook.kernel_id()
    before = page.locator(STUCK).inner_text()
    page.wait_for_function(
        "([selector, before]) => document.querySelector(selector)?.innerText !== before", arg=[STUCK, before]
    )  # it moves
    screenshot(page, f"stuck-{app}-{kernel}")
    restart_stuck_worker(page)
    assert_epoch_is_whole(notebook.wait_until_run(1))
    assert notebook.kernel_id() == kernel_id
    page.locator(".nbl-live .nbl-chip", has_text="idle").wait_for()
    screenshot(page, f"ended-{app}-{kernel}")


def test_the_dashboard_and_its_buttons_work_after_the_page_is_reloaded_during_an_epoch(open_notebook: Any) -> None:
    show_end = "print('stored', sum(batches, []) == list(range(400)))"
    notebook = open_notebook(MAKE, LOOP, show_end)
    page = notebook.page
    notebook.run_all()
    page.locator(STUCK).wait_for()
    notebook.save()
    notebook.open()
    page.locator(STUCK).wait_for()
    page.locator(".nbl-live .nbl-panel-plots > summary").click()
    page.locator(".nbl-live .nbl-plot canvas").nth(3).wait_for()
    restart_stuck_worker(page)
    page.locator(".nbl-live .nbl-progress", has_text="batch 100 of 100").wait_for()
    # What was printed meanwhile went to the old page; the kernel knows the result.
    notebook.run(2)
    assert "stored True" in notebook.wait_until_run(2)


def test_two_views_show_the_same_and_pausing_in_one_shows_in_both(open_notebook: Any) -> None:
    loop = "for epoch in range(1000):\n    for batch in loader: pass\n    if stop.exists(): break\nprint('stopped')"
    notebook = open_notebook(
        MAKE.replace("hang_at=130", "hang_at=-1") + "stop = Path(dataset.mark.parent) / 'stop'; loader",
        "dashboard = loader.dashboard()",
        loop,
    )
    page = notebook.page
    notebook.run_all()
    views = page.locator(".nbl-live")
    views.nth(1).wait_for()
    assert views.count() == 2
    views.nth(1).get_by_role("button", name="Pause the loader").click()
    for i in range(2):
        views.nth(i).locator(".nbl-chip", has_text="paused").wait_for()
    screenshot(page, "paused-two-views")
    views.nth(0).get_by_role("button", name="Resume the loader").click()
    for i in range(2):
        views.nth(i).locator(".nbl-chip", has_text="running").wait_for()
    for mark in notebook.server.root.glob("tmp*"):
        (mark / "stop").touch()
    assert "stopped" in notebook.wait_until_run(2)


LEFT_BEHIND = """() => {
  const live = document.querySelector(".nbl-live");
  const shown = [...document.querySelectorAll(".nbl-static")].filter((node) => node.checkVisibility());
  if (!live) return shown.length === 1 && shown[0].innerText.includes("batch 100 of 100");
  const restart = [...live.querySelectorAll("button")].find((node) => node.ariaLabel === "Restart all workers");
  return live.querySelector(".nbl-chip")?.innerText.includes("kernel gone") && restart?.disabled;
}"""
"""If the kernel has the time, its static form replaces the live view on exit, perhaps after that has noticed the end.
Otherwise the live view stays."""


def test_the_static_form_remains_when_the_kernel_is_gone(open_notebook: Any) -> None:
    notebook = open_notebook(MAKE.replace("hang_at=130", "hang_at=-1"), "for batch in loader: pass")
    page = notebook.page
    notebook.run_all()
    notebook.wait_until_run(1)
    page.locator(".nbl-live .nbl-progress", has_text="batch 100 of 100").wait_for()
    page.wait_for_function("() => document.querySelector('.nbl-static')?.innerText.includes('batch 100 of 100')")
    assert not page.locator(".nbl-static").is_visible()

    saved = notebook.save()
    outputs = saved.cells[0].outputs
    static = next(o.data["text/html"] for o in outputs if "text/html" in o.get("data", {}))
    assert "batch 100 of 100" in static
    assert len(static) < 100_000
    rest = notebook.path.stat().st_size - len(json.dumps(static))
    assert rest < 5_000
    shown = [o for o in outputs if o.output_type != "stream"]  # torch's warning of more workers than cores
    assert {o.data["text/plain"] for o in shown} == {"nbloader dashboard"}

    notebook.shut_down_kernel()
    page.wait_for_function(LEFT_BEHIND)
    screenshot(page, "kernel-gone")
    notebook.open()
    page.locator(".nbl-static:visible", has_text="batch 100 of 100").first.wait_for()
    page.get_by_text("Error displaying widget").wait_for(state="hidden")
    screenshot(page, "reopened")


def test_a_closed_loader_leaves_only_the_static_form(open_notebook: Any) -> None:
    notebook = open_notebook(MAKE.replace("hang_at=130", "hang_at=-1"), "for batch in loader: pass\nloader.close()")
    page = notebook.page
    notebook.run_all()
    notebook.wait_until_run(1)
    page.locator(".nbl-static:visible", has_text="batch 100 of 100").first.wait_for()
    page.locator(".nbl-live").wait_for(state="detached")
    assert "widget-view" not in notebook.outputs(0)


LABEL_LIGHTNESS = """(node) => {
  const { data } = node.getContext("2d").getImageData(0, 0, Math.round(80 * devicePixelRatio), node.height);
  let lightness = 0, weight = 0;
  for (let i = 0; i < data.length; i += 4) {
    lightness += (data[i] + data[i + 1] + data[i + 2]) / 3 * data[i + 3];
    weight += data[i + 3];
  }
  return weight ? lightness / weight : -1;
}"""
"""Mean lightness of the labels that the timeline draws beside its lanes, 0 to 255; -1 if there are none."""


@pytest.mark.parametrize("state", ["finished", "running"])
def test_the_timeline_has_the_colors_of_the_theme_after_a_switch(open_notebook: Any, state: str) -> None:
    batches = "loader" if state == "finished" else "itertools.chain.from_iterable(itertools.repeat(loader))"
    make = MAKE.replace("hang_at=130", "hang_at=-1")
    notebook = open_notebook(make, f"import itertools\nfor batch in {batches}: pass")
    page = notebook.page
    notebook.run_all()
    # A loop without end is at its hundredth batch only for a moment, which the page may not show.
    batch = "100" if state == "finished" else r"\d+"
    page.locator(".nbl-live .nbl-progress", has_text=re.compile(f"batch {batch} of 100")).wait_for()
    if state == "finished":
        notebook.wait_until_run(1)
    timeline = page.locator(".nbl-live .nbl-frame canvas")
    for theme, is_right in (("Dark", "> 128"), ("Light", "< 128"), ("Dark", "> 128")):
        page.evaluate(f"() => jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {theme}'}})")
        page.locator(f"body[data-jp-theme-light='{str(theme == 'Light').lower()}']").wait_for(state="attached")
        drawn = f"(node) => {{ const light = ({LABEL_LIGHTNESS})(node); return light >= 0 && light {is_right}; }}"
        page.wait_for_function(drawn, arg=timeline.element_handle())


def test_the_view_is_served_by_the_kernel_and_responds_to_theme_width_and_keyboard(
    open_notebook: Any, window: Any
) -> None:
    asked: list[str] = []
    window.on("request", lambda request: asked.append(request.url))
    notebook = open_notebook(MAKE.replace("hang_at=130", "hang_at=-1"), "for batch in loader: pass")
    page = notebook.page
    notebook.run_all()
    notebook.wait_until_run(1)
    live = page.locator(".nbl-live .nbl")
    live.locator(".nbl-panel-plots > summary").click()
    live.locator(".nbl-plot canvas").nth(3).wait_for()
    elsewhere = [url for url in asked if not url.startswith((notebook.server.url, "data:", "blob:"))]
    assert not elsewhere, "everything comes from the server: nothing from a CDN, no other port"

    page.mouse.move(0, 0)
    assert live.evaluate(LOW_CONTRAST) == []
    assert live.evaluate(UNTITLED) == []
    verdict = live.locator(".nbl-verdict")
    light = verdict.evaluate("node => getComputedStyle(node).color")
    page.evaluate("() => jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function(
        "light => getComputedStyle(document.querySelector('.nbl-live .nbl-verdict')).color !== light", arg=light
    )
    page.locator("#jupyterlab-splash").wait_for(state="detached")
    screenshot(page, "dark")
    assert live.evaluate(LOW_CONTRAST) == []

    timeline = live.locator(".nbl-frame canvas")
    note = live.locator(".nbl-panel-timeline .nbl-note")
    timeline.hover(position={"x": timeline.bounding_box()["width"] - 20, "y": 18})
    live.locator(".nbl-tip", has_text="loop worked").wait_for()
    timeline.focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    note.filter(has_text="not live").wait_for()
    page.keyboard.press("Escape")
    note.filter(has_not_text="not live").wait_for()
    produced = live.get_by_role("columnheader", name="Produced")
    produced.get_by_role("button").press("Enter")
    live.locator('th[aria-sort="descending"]', has_text="Produced").wait_for()
    workers = live.locator(".nbl-panel-workers")
    rows = [int(text) for text in workers.locator("tbody tr:not(.nbl-detail) td:nth-child(5)").all_inner_texts()]
    assert rows == sorted(rows, reverse=True)
    summary = live.locator(".nbl-panel-workers > summary")
    summary.press("Enter")
    workers.locator("table").wait_for(state="hidden")
    summary.press("Enter")
    workers.locator("table").wait_for()

    live.evaluate("node => { node.style.width = '420px'; }")
    page.wait_for_function(  # nothing overflows a narrow cell, once the plots have followed
        "() => { const n = document.querySelector('.nbl-live .nbl'); return n.scrollWidth - n.clientWidth <= 1; }"
    )
    clipped = live.locator(".nbl-box-title, .nbl-alarm, .nbl-controls button")
    assert clipped.evaluate_all("nodes => nodes.filter((n) => n.scrollWidth > n.clientWidth + 1).length") == 0
    screenshot(page, "narrow")
