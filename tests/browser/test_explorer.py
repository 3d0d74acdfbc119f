"""The explorer in a real browser: a million samples scroll, a hung one is given up, no text becomes markup."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.browser,
    pytest.mark.leaves_behind("the browser's driver keeps threads of its own"),
]

OPEN = """
import nbloader, numpy as np
from gallery import Shapes
dataset = Shapes(1_000_000, raise_at=5, hang_at=777_777)
view = nbloader.explore(dataset)
wants = []
view.widget.on_msg(lambda _widget, message, _buffers: wants.append(message) if message["kind"] == "want" else None)
send, lost = view.widget.send, []
def lossy(message, buffers=None):
    if not lost and any(card["index"] == 777_776 for card in message.get("cards", ())): lost.append(message)
    else: send(message, buffers=buffers)
view.widget.send = lossy
view
"""
BUSY = """
import time
while not view.selected: time.sleep(0.05)
print("selected", view.selected)
"""
END = """
last = [want for want in wants if 999_999 in want["screen"]]
print("failed", view.failed, "lost", len(lost), "requested what had come", any(not want["indices"] for want in last))
view.close()
"""
OPENED_IS_WHOLE = """() => {
    const [list, card, detail] = ["scroll", "opened", "detail"].map(
        (name) => document.querySelector(`.nbl-live .nbx-${name}`)?.getBoundingClientRect() ?? {});
    const narrow = detail.top >= list.bottom && card.right > list.right - 40;
    return narrow && card.top - 3 >= list.top && card.bottom + 3 <= list.bottom;
}"""
"""The detail is below the list, in which the opened sample is in the last column now, whole, with its outline."""
CUT_OFF = """(root) => [...root.querySelectorAll(".nbx-hist-head > .nbl-note")]
    .filter((note) => note.scrollWidth > note.clientWidth).map((note) => note.textContent)"""
"""Notes of histograms that are not shown in full."""
UNSAID = """(root) => {
  const words = (text) => text.toLowerCase().replace(/[^\\p{L}\\p{N}]+/gu, " ").trim();
  return [...root.querySelectorAll("button")].map((node) => [node.textContent, node.ariaLabel ?? node.textContent])
    .filter(([text, name]) => !words(name).includes(words(text)));
}"""
"""Lists the buttons whose names for screen readers and speech input do not have the words on them."""
LOW_CONTRAST = (Path(__file__).parent / "contrast.js").read_text()


def screenshot(page: Any, name: str) -> None:
    """Save a screenshot of the page in the folder NBLOADER_SCREENSHOTS, if it is set."""
    folder = os.environ.get("NBLOADER_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"explorer-{name}.png"))


def set_dark(page: Any) -> None:
    """Change JupyterLab's theme and wait for it; the next test begins with the light one."""
    page.evaluate("() => jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    page.locator("#jupyterlab-splash").wait_for(state="detached")


def test_a_million_samples_scroll_and_one_is_shown_in_full(  # noqa: PLR0915 - one kernel and one page for all
    open_notebook: Any, window: Any
) -> None:
    asked: list[str] = []
    window.on("request", lambda request: asked.append(request.url))
    notebook = open_notebook(OPEN, BUSY, END)
    page = notebook.page
    notebook.run_all()
    live = page.locator(".nbl-live .nbx")
    scroller = live.get_by_role("listbox")
    live.locator(".nbx-card img").nth(8).wait_for()
    live.locator(".nbx-card.nbx-failed", has_text="truncated file").wait_for()
    page.mouse.move(0, 0)
    screenshot(page, "light")
    count = live.locator(".nbx-card").count()
    live.get_by_role("slider", name="size of the pictures").focus()
    page.keyboard.press("End")
    page.wait_for_function("n => document.querySelectorAll('.nbl-live .nbx-card').length < n", arg=count)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert live.evaluate(LOW_CONTRAST) == []

    # Any row: nodes only for what is on screen. The hung sample is given up while its neighbours are read, one of which
    # is requested again, as its message was lost.
    live.get_by_label("go to the sample with this index").fill("777777")
    live.get_by_label("go to the sample with this index").press("Enter")
    live.locator(".nbx-card img[alt='sample 777778']").wait_for()
    live.locator(".nbx-card img[alt='sample 777776']").wait_for()
    assert live.locator(".nbx-card").count() < 60
    live.get_by_role("button", name="Give up reading sample 777777").wait_for()
    scroller.press("Enter")  # the button on the card is for a pointer, that in the detail also for the keyboard
    detail = live.locator(".nbx-detail")
    detail.get_by_role("button", name="Give up reading sample 777777").press("Enter")
    live.locator(".nbx-card.nbx-failed", has_text="nbloader gave up after").wait_for()
    detail.locator(".nbx-error", has_text="nbloader gave up after").wait_for()
    page.keyboard.press("Escape")
    scroller.focus()
    page.keyboard.press("End")
    live.locator(".nbx-card img[alt='sample 999999']").wait_for()
    page.keyboard.press("Home")
    live.locator(".nbx-card img[alt='sample 0']").wait_for()

    # One sample in full, with the keyboard. Texts are texts.
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    detail.get_by_text("<script>window.hacked = 1</script> shape 1").wait_for()
    assert page.evaluate("() => window.hacked") is None
    detail.get_by_text("square (1)").wait_for()
    assert detail.locator("img").count() == 3  # image, mask and boxes over it
    detail.get_by_role("button", name="Eight draws").click()
    detail.locator(".nbx-draw img").nth(7).wait_for()
    screenshot(page, "detail")
    page.keyboard.press("Escape")
    detail.wait_for(state="hidden")

    live.get_by_role("button", name="Show a table").click()
    live.locator(".nbx-columns", has_text="meta.exposure").wait_for()
    live.locator(".nbx-line img").nth(5).wait_for()
    screenshot(page, "table")

    # An error, in the dark.
    live.get_by_role("button", name="Show a gallery").click()
    live.locator(".nbx-card.nbx-failed", has_text="truncated file").click()
    detail.locator("pre", has_text="gallery.py").wait_for()
    detail.get_by_text("/data/5.jpg").last.wait_for()
    set_dark(page)
    page.mouse.move(0, 0)
    live.locator(".nbx-card img").nth(4).wait_for()  # all rows are drawn again
    screenshot(page, "dark-error")
    assert live.evaluate(LOW_CONTRAST) == []
    page.keyboard.press("Escape")

    # A selection reaches Python while a cell is busy; the output then has what was on screen.
    scroller.focus()
    page.keyboard.press(" ")
    assert "selected [5]" in notebook.wait_until_run(1)
    output = notebook.wait_until_run(2)
    assert "failed [5, 777777] lost 1 requested what had come False" in output
    page.locator(".nbl-static:visible img").first.wait_for()
    saved = notebook.save()
    static = next(
        o.data["text/html"] for o in saved.cells[0].outputs if "nbl-static" in o.get("data", {}).get("text/html", "")
    )
    assert len(static) < 300_000
    assert notebook.path.stat().st_size - len(json.dumps(static)) < 5_000
    screenshot(page, "static")
    elsewhere = [url for url in asked if not url.startswith((notebook.server.url, "data:", "blob:"))]
    assert not elsewhere, "everything comes from the server: nothing from a CDN, no other port"


RUN = """
import time, nbloader
from gallery import Shapes
loader = nbloader.DataLoader(Shapes(400), batch_size=4, num_workers=1, collate_fn=len)
view = loader.explore(workers="thread")
view
"""
LOOP = """
epochs = 0
while not view.selected:
    for batch in loader: pass
    epochs += 1
print("selected", view.selected)
view.close(); loader.close()
"""


def test_the_explorer_of_a_loader_works_while_the_loader_is_iterated(open_notebook: Any) -> None:
    """On a kernel that handles messages during a cell only because `__next__` does."""
    notebook = open_notebook(RUN, LOOP, kernel="ipykernel-6.30")
    live = notebook.page.locator(".nbl-live .nbx")
    notebook.run_all()
    live.locator(".nbx-card img[alt='sample 0']").wait_for()
    live.get_by_label("which samples are shown").select_option("delivered")
    live.locator(".nbx-status", has_text=re.compile(r"^1 to")).wait_for()
    live.get_by_role("listbox").focus()
    notebook.page.keyboard.press("Enter")
    live.locator(".nbx-detail").get_by_text("of CPU time").wait_for()  # the sample came: its buttons stay as they are
    live.get_by_role("button", name="Eight draws").press("Enter")
    live.get_by_text("As the loader delivered it").wait_for()
    live.locator(".nbx-draw img").nth(8).wait_for()
    screenshot(notebook.page, "delivered")
    live.get_by_role("listbox").focus()
    notebook.page.keyboard.press(" ")
    assert "selected [" in notebook.wait_until_run(1)


UNRESPONSIVE = """
import time
from pathlib import Path
while not Path("requested").exists(): time.sleep(0.05)
"""


def test_a_list_that_is_not_there_yet_is_announced_as_loading(open_notebook: Any) -> None:
    """On a kernel that handles no messages while this cell is busy."""
    notebook = open_notebook(RUN, UNRESPONSIVE, kernel="ipykernel-6.30")
    page = notebook.page
    notebook.wait_until_responsive()
    notebook.run(0)
    live = page.locator(".nbl-live .nbx")
    live.locator(".nbx-card img[alt='sample 0']").wait_for()
    notebook.run(1)
    live.get_by_label("which samples are shown").select_option("duplicate")
    live.locator(".nbx-status", has_text="Loading the list: duplicates").wait_for()
    (notebook.path.parent / "requested").touch()
    live.get_by_text("No samples: duplicates.").wait_for()
    live.locator(".nbx-status", has_text="Loading").wait_for(state="detached")


CLICK = """
from nbloader import DataLoader
from gallery import Shapes
loader = DataLoader(Shapes(400, raise_at=5), batch_size=4, num_workers=1, workers="thread", on_error="skip")
loader
"""
UNTIL = """
while not Path("done").exists():
    for batch in loader: pass
"""


def test_a_click_in_the_dashboard_opens_a_sample_and_a_batch_while_a_cell_is_busy(open_notebook: Any) -> None:
    notebook = open_notebook(CLICK, "from pathlib import Path\n" + UNTIL)
    page = notebook.page
    notebook.run_all()
    dashboard = page.locator(".nbl-live .nbl").first
    samples = dashboard.locator(".nbl-panel-samples")
    samples.locator("summary").press("Enter")  # a panel above may appear between a press and a release of the mouse
    samples.get_by_role("button", name="Open sample 5 in the explorer").first.click()
    drawer = dashboard.locator(".nbl-drawer")
    drawer.locator(".nbx-detail", has_text="truncated file").wait_for()
    screenshot(page, "from-dashboard")
    canvas = dashboard.locator(".nbl-panel-timeline canvas")
    canvas.press("Enter")
    drawer.locator(".nbx-title", has_text="of epoch").wait_for()
    shape = re.compile("[34]\N{MULTIPLICATION SIGN}96\N{MULTIPLICATION SIGN}128")  # one batch lacks the failed sample
    drawer.locator(".nbl-note", has_text=shape).first.wait_for()
    drawer.get_by_role("button", name="Show the batch as the loop got it").click()
    drawer.locator(".nbx-detail").get_by_role("slider", name="picture of image").wait_for()
    screenshot(page, "batch-from-dashboard")
    drawer.get_by_role("button", name="Close the explorer").press("Enter")  # as above
    drawer.wait_for(state="hidden")
    (notebook.path.parent / "done").touch()
    notebook.wait_until_run(1)


PROBLEMS = """
import nbloader, numpy as np, threading
from gallery import Shapes
drawing = threading.Lock()
class Faulty(Shapes):
    def __getitem__(self, index):
        with drawing:  # threads share the generator
            np.random.seed(0)
            sample = super().__getitem__(30 if index == 90 else index)
        if index % 10 == 3:
            import time; time.sleep(0.02)
        return sample | {"night": index % 10 == 3} | ({"wave": sample["wave"] * np.nan} if index == 41 else {})
view = nbloader.explore(Faulty(120, raise_at=5), workers="thread")
view
"""


def test_a_scan_finds_problems_and_histograms_filter_by_dragging_and_by_keys(  # noqa: PLR0915 - one kernel and one page
    open_notebook: Any,
) -> None:
    notebook = open_notebook(PROBLEMS, "print('chosen', view.selected)")
    page = notebook.page
    notebook.wait_until_responsive()
    notebook.run(0)
    live = page.locator(".nbl-live .nbx")
    live.locator(".nbx-card img[alt='sample 0']").wait_for()
    statistics = live.locator(".nbx-stats")
    statistics.locator("summary").click()
    statistics.get_by_role("button", name="Scan all samples").click()
    statistics.get_by_role("button", name="List the problem: duplicate").click()
    live.locator(".nbx-card", has_text="the same as 30").wait_for()
    assert live.locator(".nbx-card").count() == 2
    live.get_by_role("button", name="Select all samples of this list").click()
    statistics.get_by_text("among 119 scanned samples").wait_for()
    statistics.get_by_label("costs by this field").select_option("night")
    statistics.locator(".nbx-costs tr", has_text="True").wait_for()
    statistics.get_by_text("night True is 10% of the samples").wait_for()
    page.mouse.move(0, 0)
    screenshot(page, "statistics")
    assert live.evaluate(LOW_CONTRAST) == []
    assert live.evaluate(CUT_OFF) == []

    statistics.get_by_text("The same, or nearly, in all").wait_for()
    histogram = statistics.locator(".nbx-hist", has_text="meta.exposure").first
    histogram.scroll_into_view_if_needed()
    box = histogram.locator("svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 10, steps=4)
    page.mouse.up()
    live.locator(".nbx-card img[alt='sample 0']").wait_for()
    live.locator(".nbx-status", has_text=re.compile(r"of \d\d?$")).wait_for()
    statistics.get_by_text("pass the filters").wait_for()
    screenshot(page, "filtered")
    histogram.focus()
    page.keyboard.press("Escape")
    live.locator(".nbx-status", has_text="of 120").wait_for()
    label = statistics.locator(".nbx-hist", has_text="label").first
    label.focus()
    page.keyboard.press("ArrowRight")
    live.locator(".nbx-status", has_text="of 60").wait_for()
    set_dark(page)
    page.set_viewport_size({"width": 1400, "height": 1400})
    live.get_by_role("listbox").focus()
    for key in ("Home", *["ArrowRight"] * 3, "Enter"):  # to the second row of three, then of two
        page.keyboard.press(key)
    live.locator(".nbx-detail img").first.wait_for()
    page.set_viewport_size({"width": 900, "height": 1400})
    page.wait_for_function(OPENED_IS_WHOLE)
    screenshot(page, "opened-dark-900")
    page.keyboard.press("Escape")
    live.locator(".nbx-card img").nth(2).wait_for()
    screenshot(page, "statistics-dark-900")
    assert live.evaluate(LOW_CONTRAST) == []
    assert live.evaluate(CUT_OFF) == []
    notebook.run(1)
    assert "chosen [30, 90]" in notebook.wait_until_run(1)


KEYS = """
import nbloader
from gallery import Shapes
view = nbloader.explore(Shapes(60), workers="thread", num_workers=1)
view.selected = [2]
view
"""


def test_a_button_that_goes_away_leaves_the_focus_in_the_explorer(open_notebook: Any) -> None:
    """Or the next key would be a shortcut of JupyterLab, such as D D, which deletes the cell."""
    notebook = open_notebook(KEYS)
    page = notebook.page
    notebook.run_all()
    live = page.locator(".nbl-live .nbx")
    live.locator(".nbx-card img[alt='sample 0']").wait_for()
    focused = lambda name: page.wait_for_function(  # noqa: E731
        "(name) => document.activeElement.ariaLabel === name && document.activeElement.offsetParent", arg=name
    )
    clear = live.get_by_role("button", name="Clear the selection")
    clear.press("Enter")
    clear.wait_for(state="hidden")
    focused("samples")
    page.keyboard.press("Enter")
    live.get_by_role("button", name="The same sample under another seed").press("Enter")
    assert live.evaluate(UNSAID) == []
    first = live.get_by_role("button", name="The first draw")
    first.press("Enter")
    first.wait_for(state="hidden")
    focused("Previous sample")
    page.keyboard.press("Escape")
    live.get_by_role("button", name="Show a table").press("Enter")
    live.get_by_role("button", name="Sort by label").press("Enter")
    live.locator(".nbx-columns", has_text="label \N{UPWARDS ARROW}").wait_for()
    focused("Sort by label")
    page.keyboard.press("d")
    page.keyboard.press("d")
    page.keyboard.press("Enter")
    live.locator(".nbx-columns", has_text="label \N{DOWNWARDS ARROW}").wait_for()
    focused("Sort by label")


GAZE = """
import gaze, nbloader, numpy as np  # registers the kind
class Faces:
    def __len__(self): return 12
    def __getitem__(self, index):
        image = np.full((64, 96, 3), 40 + index, np.uint8)
        points = np.array([[10.0, 8.0], [80.0, 50.0 + index]])
        return {"image": image, "gaze": points, "scan": np.stack([image] * 6)}
view = nbloader.explore(Faces(), num_workers=1, workers="process")
view
"""


def test_a_kind_that_is_registered_outside_of_the_package_is_drawn_in_a_page(open_notebook: Any) -> None:
    """The worked example of the docs, and what the user chooses to see of a field of another kind."""
    notebook = open_notebook(GAZE)
    page = notebook.page
    notebook.run_all()
    live = page.locator(".nbl-live .nbx")
    live.locator(".nbx-card img[alt='sample 3']").click()
    detail = live.locator(".nbx-detail")
    detail.get_by_text("2 gaze points from (10, 8) to (80, 53)").wait_for()
    detail.get_by_role("img", name="gaze", exact=True).wait_for()
    detail.get_by_text("over image", exact=True).wait_for()
    slider = detail.get_by_role("slider", name="picture of scan")
    slider.focus()
    page.keyboard.press("End")
    detail.get_by_text("picture 5 of 6").wait_for()
    screenshot(page, "gaze")
    set_dark(page)
    page.mouse.move(0, 0)
    live.locator(".nbx-card img").nth(4).wait_for()
    screenshot(page, "gaze-dark")
    assert live.evaluate(LOW_CONTRAST) == []
