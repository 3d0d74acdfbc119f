"""Each kind of value in a real browser: on a card and in full, light and dark, wide and narrow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .test_explorer import LOW_CONTRAST, screenshot, set_dark

pytestmark = [
    pytest.mark.browser,
    pytest.mark.leaves_behind("the browser's driver keeps threads of its own"),
]

OPEN = """
import nbloader
from every_kind import EveryKind
view = nbloader.explore(EveryKind(), workers="thread")
view
"""
COLUMNS = """
import nbloader, numpy as np
from gallery import Shapes
view = nbloader.explore(Shapes(60), workers="thread", num_workers=1)
view.add_column("loss", np.linspace(0, 3, 60) ** 2)
view.add_column("prediction", [0 if i % 7 == 0 else i % 2 for i in range(60)])
view
"""
RESULT = """
print("indices", view._conversation._arranged.indices.tolist())
print(view.code())
"""
TABLE = """
import pandas as pd
nbloader.explore(pd.DataFrame({name: range(50) for name in map(str, range(40))}))
"""
MISALIGNED = """(root) => [...root.querySelectorAll(".nbx-columns > .nbx-sorts")].map((heading, at) => {
  const cells = root.querySelectorAll(".nbx-scroll .nbx-line > .nbx-cell:not(.nbx-index, .nbx-thumb, .nbx-number)");
  return Math.abs(heading.getBoundingClientRect().left - cells[at].getBoundingClientRect().left);
}).filter((distance) => distance > 1)"""
"""Distances in pixels between a heading and the first cell below it."""
DRAWN = {
    0: [("img", "1")],
    1: [("img", "1.masks"), ("img", "1.boxes")],
    2: [("img", "1")],
    3: [("img", "keypoints"), ("img", "flow")],
    6: [("img", "4,000 points. Arrow keys turn the point cloud.")],
    7: [("img", "sample: 12 nodes, 18 edges")],
    8: [("slider", "slice of scan"), ("combobox", "axis of scan"), ("combobox", "window of scan")],
    9: [("slider", "picture of the sample"), ("button", "play the sample")],
    11: [("img", "jpg")],
}
"""What is in the detail of a sample: role and name."""


LAID_OUT = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Waits until a new size has reached all observers."""


def test_each_kind_is_drawn_on_a_card_and_in_full(open_notebook: Any) -> None:
    notebook = open_notebook(OPEN)
    page = notebook.page
    page.set_viewport_size({"width": 1400, "height": 1400})
    notebook.run_all()
    live = page.locator(".nbl-live .nbx")
    live.locator(".nbx-card", has_text="KeyError: 'gone'").wait_for()
    error = live.locator(".nbx-card .nbx-error")
    assert error.evaluate("(node) => [getComputedStyle(node).fontSize, node.textContent]") == [
        "12px",
        "KeyError: 'gone'",
    ]
    live.locator(".nbx-card svg.nbx-graph").wait_for()
    page.mouse.move(0, 0)
    screenshot(page, "kinds-light-1400")
    detail = live.locator(".nbx-detail")
    for index in range(13):
        live.get_by_label("go to the sample with this index").fill(str(index))
        live.get_by_label("go to the sample with this index").press("Enter")
        live.locator(f".nbx-card[aria-label^='sample {index},']").click()
        detail.locator("strong", has_text=f"Sample {index}").wait_for()
        detail.locator(".nbx-field").first.wait_for()
        for role, name in DRAWN.get(index, []):
            detail.get_by_role(role, name=name, exact=True).wait_for()
        waves = detail.locator(".nbx-signal svg").evaluate_all("(found) => found.map((wave) => wave.clientHeight)")
        assert all(height > 20 for height in waves), waves
        assert index != 12 or waves
        assert live.evaluate(LOW_CONTRAST) == []
        screenshot(page, f"kind-{index}-light")

    _change_what_is_drawn(live)

    set_dark(page)
    page.mouse.move(0, 0)
    live.get_by_label("go to the sample with this index").fill("0")
    live.get_by_label("go to the sample with this index").press("Enter")
    live.locator(".nbx-card[aria-label^='sample 0,'] img").wait_for()  # which others are drawn depends on the scrolling
    assert live.evaluate(LOW_CONTRAST) == []
    screenshot(page, "kinds-dark-1400")
    before = live.evaluate("(node) => node.clientWidth")
    page.set_viewport_size({"width": 900, "height": 1400})
    page.wait_for_function("(before) => document.querySelector('.nbl-live .nbx').clientWidth < before", arg=before)
    page.evaluate(LAID_OUT)  # the list scrolls to the opened sample then
    lines: list[str] = []
    for index in (2, 3, 7, 8, 10):
        live.get_by_label("go to the sample with this index").fill(str(index))
        live.get_by_label("go to the sample with this index").press("Enter")
        live.locator(f".nbx-card[aria-label^='sample {index},']").click()
        detail.locator("strong", has_text=f"Sample {index}").wait_for()
        detail.locator(".nbx-field").first.wait_for()
        bars = detail.locator(".nbx-bars rect")
        lines += bars.evaluate_all("(found) => found.map((bar) => getComputedStyle(bar).stroke)")
        screenshot(page, f"kind-{index}-dark-900")
    assert set(lines) == {"none"}, "a line around a bar of a histogram hides those beside it"


def _change_what_is_drawn(live: Any) -> None:
    """Use what a detail offers: slices, annotations that can be hidden, and a point cloud that turns."""
    detail = live.locator(".nbx-detail")

    # The slices of a volume: another axis, another window, and a player.
    live.locator(".nbx-card[aria-label^='sample 8,']").click()
    detail.get_by_text("soft tissue: level 40, width 400; slice 20 of 40").wait_for()
    detail.get_by_label("axis of scan").select_option("2")
    detail.get_by_text("slice 48 of 96").wait_for()
    detail.get_by_label("window of scan").select_option("2")
    detail.get_by_text("bone: level 400, width 1800; slice 48 of 96").wait_for()
    detail.get_by_role("button", name="play scan").click()
    detail.locator("canvas").wait_for()
    detail.get_by_role("button", name="pause scan").press("Enter")
    detail.get_by_role("button", name="play scan").wait_for()  # the slice at which it stopped, in full
    live.page.wait_for_function("() => document.activeElement.ariaLabel === 'play scan'")

    # What is drawn over a picture can be hidden.
    live.get_by_label("go to the sample with this index").fill("1")
    live.get_by_label("go to the sample with this index").press("Enter")
    live.locator(".nbx-card[aria-label^='sample 1,']").click()
    annotations = detail.get_by_label("with annotations")
    annotations.wait_for()
    picture = detail.get_by_role("img", name="0", exact=True)
    annotated = picture.get_attribute("src")
    annotations.uncheck()
    assert picture.get_attribute("src") != annotated

    # A point cloud is turned by keys, which are not those of the list.
    live.get_by_label("go to the sample with this index").fill("6")
    live.get_by_label("go to the sample with this index").press("Enter")
    live.locator(".nbx-card[aria-label^='sample 6,']").click()
    cloud = detail.locator("canvas.nbx-cloud")
    cloud.wait_for()
    before = cloud.evaluate("(node) => node.toDataURL()")
    cloud.press("ArrowLeft")
    assert cloud.evaluate("(node) => node.toDataURL()") != before


def _open_a_table(notebook: Any) -> None:
    """The rows of a data frame are a table from the start, which says how many columns have no room."""
    notebook.run(2)
    table = notebook.page.locator(".nbl-live .nbx").nth(1)
    table.locator(".nbx-line[aria-label^='sample 0,']").wait_for()
    more = table.locator(".nbx-more")
    more.wait_for()
    assert more.inner_text() == f"+{24 - table.locator('.nbx-columns > .nbx-sorts').count()}"
    assert "or more" in more.get_attribute("title")
    assert table.evaluate(MISALIGNED) == []
    table.scroll_into_view_if_needed()
    screenshot(notebook.page, "table-of-a-data-frame")


def test_columns_of_the_user_sort_group_and_compare_samples(open_notebook: Any) -> None:
    notebook = open_notebook(COLUMNS, RESULT, TABLE)
    page = notebook.page
    page.set_viewport_size({"width": 1400, "height": 1600})
    notebook.run(0)
    live = page.locator(".nbl-live .nbx").first
    live.locator(".nbx-card img").nth(8).wait_for()

    # The largest loss first, then smallest first; also for samples that were not read.
    live.get_by_label("sort by", exact=True).focus()
    live.get_by_label("sort by", exact=True).locator("option[value=loss]").wait_for(state="attached")
    live.get_by_label("sort by", exact=True).select_option("loss")
    live.get_by_role("button", name="Sort in descending order").click()
    live.locator(".nbx-card[aria-posinset='1'][aria-label^='sample 59,'] img").wait_for()
    screenshot(page, "columns-sorted")

    # Labels against predictions: a click on a cell lists its samples.
    live.get_by_text("Statistics and problems").click()
    live.get_by_role("button", name="Scan all samples").click()
    live.get_by_text("among 60 scanned samples").wait_for()
    live.get_by_text("label and prediction are the same in").wait_for()
    live.get_by_role("button", name="label square, prediction disc: list 4").wait_for()
    assert live.evaluate(LOW_CONTRAST) == []
    live.get_by_label("field in the rows of the table of pairs").scroll_into_view_if_needed()
    screenshot(page, "columns-confusion")
    live.get_by_role("button", name="label square, prediction disc: list 4").click()
    live.locator(".nbx-card[aria-setsize='4']").first.wait_for()
    notebook.run(1)
    output = notebook.wait_until_run(1)
    assert "indices [49, 35, 21, 7]" in output
    assert "str(row['label']) in ('square',) and str(row['prediction']) in ('disc',)" in output
    assert "view.sort('loss', descending=True)" in output
    live.get_by_role("button", name="Show the selection, filters and order as Python").click()
    live.locator("pre", has_text="view.sort('loss', descending=True)").wait_for()

    # Groups, whose headings list all of their samples; and words in texts.
    live.get_by_label("which samples are shown").select_option("all")
    live.get_by_label("group by", exact=True).select_option("label")
    live.locator(".nbx-heading", has_text="disc").wait_for()
    live.locator(".nbx-heading", has_text="30 samples, the first 12 here").first.wait_for()
    live.locator(".nbx-status", has_text="of 24").wait_for()  # headings are no samples
    set_dark(page)
    page.mouse.move(0, 0)
    live.locator(".nbx-card img").nth(4).wait_for()
    assert live.evaluate(LOW_CONTRAST) == []
    screenshot(page, "columns-groups-dark")
    live.locator(".nbx-heading", has_text="disc").click()
    live.locator(".nbx-card[aria-setsize='30']").first.wait_for()
    live.get_by_label("which samples are shown").select_option("all")
    page.set_viewport_size({"width": 900, "height": 1600})
    live.get_by_role("searchbox").fill("shape 5")
    live.get_by_role("searchbox").press("Enter")
    live.locator(".nbx-card[aria-setsize='15']", has_text="shape 50").wait_for()
    screenshot(page, "columns-search-dark-900")
    _open_a_table(notebook)


MAP = """
import nbloader, numpy as np
from gallery import Shapes
class Shifted(Shapes):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return sample["image"], sample["label"]
dataset = Shifted(40)
view = nbloader.explore(dataset, workers="process", num_workers=1)
angles = np.arange(40) * 2 * np.pi / 40
view.embed(np.stack([np.cos(angles), np.sin(angles)], axis=1))
view
"""
EDITED = """
print("selected", view.selected)
class Shifted(Shapes):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return np.roll(sample["image"], 9, axis=1), sample["label"]
both = view.compare()
both
"""


def test_a_lasso_selects_on_a_map_and_two_versions_are_side_by_side(open_notebook: Any) -> None:
    notebook = open_notebook(MAP, EDITED)
    page = notebook.page
    page.set_viewport_size({"width": 1400, "height": 2400})
    notebook.run(0)
    live = page.locator(".nbl-live .nbx").first
    live.get_by_text("→ map x").wait_for()  # the plot opens by itself
    live.get_by_role("button", name="Drag around samples to select them").click()
    canvas = live.locator(".nbx-scatter canvas")
    box = canvas.bounding_box()
    # Around the right end of the circle: samples 0 and its nearest neighbors on both sides.
    corners = [(0.9, 0.35), (0.999, 0.35), (0.999, 0.65), (0.9, 0.65), (0.9, 0.4)]
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    screenshot(page, "map-lasso")
    page.mouse.up()
    live.locator(".nbx-card[aria-selected='true'][aria-label^='sample 0,'] img").wait_for()
    live.locator(".nbx-card[aria-label^='sample 0,']").click()
    live.get_by_role("button", name="List the most similar samples").click()
    live.locator(".nbx-card[aria-posinset='1'][aria-label^='sample 0,']").wait_for()
    live.locator(".nbx-card[aria-posinset='2'] .nbx-reason", has_text="similar to 0").wait_for()
    screenshot(page, "map-similar")

    # By keyboard: the two points that are farthest to the left.
    canvas.focus()
    said = live.locator(".nbx-scatter + .nbl-note")
    page.keyboard.press("ArrowRight")
    said.get_by_text("sample ").wait_for()
    first = said.inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert said.inner_text() == first
    index = first.partition(":")[0].removeprefix("sample ")
    page.keyboard.press(" ")
    page.keyboard.press("Enter")
    live.locator(".nbx-detail strong", has_text=f"Sample {index}").wait_for()
    screenshot(page, "map-keyboard")
    page.keyboard.press(" ")
    live.get_by_text("Statistics and problems").click()

    notebook.run(1)
    output = notebook.wait_until_run(1)
    selected = sorted(json.loads(output.split("selected ")[1].split("]")[0] + "]"))
    assert selected
    assert selected == [at for at in range(40) if at in (0, 1, 2, 3, 37, 38, 39) and at in selected]
    assert {39, 0, 1} <= set(selected)
    both = page.locator(".nbl-live .nbx").nth(1)
    both.get_by_text("Two versions of Shifted: 40 samples").wait_for()
    both.locator(".nbx-card[aria-label^='sample 3,'] img").click()
    detail = both.locator(".nbx-detail")
    for name in ("before.0", "after.0", "difference.0"):
        detail.get_by_role("img", name=name, exact=True).wait_for()
    assert both.evaluate(LOW_CONTRAST) == []
    screenshot(page, "versions")
