"""A panel that is registered from outside of nbloader shows up in the page: the worked example of the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from .test_live import LOW_CONTRAST, screenshot

pytestmark = [
    pytest.mark.browser,
    pytest.mark.leaves_behind("the browser's driver keeps threads of its own"),
]

SHOW = """
import sample_rate  # registers the panel
from nbloader import DataLoader
loader = DataLoader(list(range(400)), batch_size=4, num_workers=1)
loader
"""


def look_at(panel: Any, name: str) -> None:
    """Check the contrast and the width of a panel, and take screenshots, in both themes and at two widths."""
    page = panel.page
    for theme in ("light", "dark"):
        if theme == "dark":
            page.evaluate("() => jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
            page.locator("body[data-jp-theme-light='false']").wait_for(state="attached")
            page.locator("#jupyterlab-splash").wait_for(state="detached")
        page.mouse.move(0, 0)
        assert panel.evaluate(LOW_CONTRAST) == []
        for width in (1400, 900):
            page.set_viewport_size({"width": width, "height": 1100})
            panel.scroll_into_view_if_needed()
            assert panel.evaluate("node => node.scrollWidth - node.clientWidth") <= 1
            screenshot(page, f"{name}-{theme}-{width}")


def test_a_registered_panel_shows_up_and_its_buttons_work(open_notebook: Any) -> None:
    notebook = open_notebook(SHOW, "for batch in loader: pass", "loader.close()")
    page = notebook.page
    notebook.run(0)
    panel = page.locator(".nbl-live .nbl-panel-sample_rate")
    panel.locator(".nbl-title", has_text="Samples per second").wait_for()
    panel.locator(".nbl-value", has_text="0 samples/s").wait_for()
    notebook.run(1)
    panel.locator("li", has_text="epoch 0: ").wait_for()
    panel.locator(".nbl-note", has_text="1 ended").wait_for()
    panel.get_by_role("button", name="Pause from the example").click()
    page.locator(".nbl-live .nbl-chip", has_text="paused").wait_for()
    notebook.run(2)
    # While JupyterLab replaces the output, the old and the new one are both in the page.
    page.locator(".nbl-static:visible", has_text="Samples per second: epoch 0: ").first.wait_for()


HOT = """\
import json, time
import numpy as np
from nbloader import DataLoader

def prepare(index):
    text = json.dumps([index] * 3000, indent=1)
    return sum(k * k for k in range(20_000)) + len(text)

class Photos:
    def __len__(self): return 100_000
    def __getitem__(self, index):
        time.sleep(0.008)  # <b>a disk</b>
        return np.full(8, prepare(index))

loader = DataLoader(Photos(), batch_size=4, num_workers=2)
loader
"""


def test_lines_of_a_cell_are_sampled_after_a_click_while_the_loop_runs(open_notebook: Any) -> None:
    notebook = open_notebook(HOT, "for batch in loader: pass", "loader.close()")
    page = notebook.page
    notebook.run(0)
    panel = page.locator(".nbl-live .nbl-panel-lines")
    panel.locator(".nbl-note", has_text="no samples").wait_for()
    notebook.run(1)
    panel.get_by_role("button", name="Sample the lines").click()
    first = panel.locator("tbody tr").first
    first.locator(".nbl-source", has_text="time.sleep(0.008)  # <b>a disk</b>").wait_for()
    first.locator("td", has_text="cell 1 line 12, Photos.__getitem__").wait_for()
    panel.locator(".nbl-flame div", has_text="return np.full(8, prepare(index))").wait_for()
    panel.get_by_role("button", name="Sample the lines").filter(has_text="Stop sampling").wait_for()
    look_at(panel, "lines")
    page.evaluate(f"() => {{ {notebook._PANEL}.context.sessionContext.session.kernel.interrupt(); }}")
    notebook.wait_until_run(1)
    notebook.run(2)
    page.locator(".nbl-static:visible", has_text="time.sleep(0.008)  # <b>a disk</b>").first.wait_for()


PHOTOS = """\
import copy, json, tempfile
import numpy as np
from PIL import Image
from nbloader import DataLoader

folder = tempfile.mkdtemp()
coarse = np.random.default_rng(0).integers(0, 256, (15, 20, 3), dtype=np.uint8)
for number in range(2):
    Image.fromarray(coarse).resize((1600, 1200), Image.BICUBIC).save(f"{folder}/{number}.jpg", quality=90)

class Photos:
    def __len__(self): return 100_000
    def __getitem__(self, index):
        picture = Image.open(f"{folder}/{index % 2}.jpg").convert("RGB").resize((224, 224))
        return np.array(picture), index

loader = DataLoader(Photos(), batch_size=4, num_workers=2)
loader
"""
DECODED = "() => [...document.querySelectorAll('.nbl-live .nbl-panel-remedies img')].every((node) => node.naturalWidth)"
"""Whether all pictures have a size: that of one that was just inserted is 0."""
LOOPING = """\
indices = []
for pictures, numbers in loader:
    indices += numbers.tolist()
"""


def test_remedies_are_tried_after_a_click_while_the_loop_runs(open_notebook: Any) -> None:
    notebook = open_notebook(PHOTOS, LOOPING, "print(indices == list(range(len(indices))))", "loader.close()")
    page = notebook.page
    notebook.run(0)
    panel = page.locator(".nbl-live .nbl-panel-remedies")
    button = panel.get_by_role("button", name="Try faster code for the slowest lines")
    panel.get_by_text("The slowest lines are not known yet").wait_for()
    assert button.is_disabled()
    notebook.run(1)
    panel.get_by_text("Looks for what you could write instead").wait_for()
    button.click()
    panel.locator(".nbl-label", has_text=re.compile(r"trying \d+ of")).wait_for()
    screenshot(page, "remedies-trying")
    row = panel.locator("tbody tr", has_text="decoded at its full size").first
    row.wait_for()
    panel.locator("tbody td", has_text=re.compile(r"^\d+\.\dx$")).first.wait_for()
    panel.locator("figure", has_text="difference").locator("img").wait_for()
    assert panel.locator("figcaption").all_inner_texts()[:2] == ["before", "after"]
    page.wait_for_function(DECODED)
    sizes = panel.locator("img").evaluate_all("nodes => nodes.map(node => node.naturalWidth)")
    assert sizes == [224] * len(sizes)
    code = panel.locator("details", has=page.locator("pre", has_text=".draft("))
    code.locator("summary", has_text="Code").first.click()
    assert "def __getitem__" in code.locator("pre").first.inner_text()
    panel.get_by_role("button", name="Copy the code").first.click()
    panel.get_by_text("Copied").wait_for()
    look_at(panel, "remedies")
    page.evaluate(f"() => {{ {notebook._PANEL}.context.sessionContext.session.kernel.interrupt(); }}")
    notebook.wait_until_run(1)
    notebook.run(2)
    assert "True" in notebook.wait_until_run(2)
    notebook.run(3)
    page.locator(".nbl-static:visible", has_text="decoded at its full size").first.wait_for()


UPLOADS = f"""
import sys, time
sys.path.append({str(Path(__file__).parents[1])!r})
from datasets import Images
from stand_in import PacedStandIn
from nbloader import DataLoader
device = PacedStandIn(4 * 64 * 64 * 4 / 0.004, name="cuda:0")  # 4 ms a batch
loader = DataLoader(Images(100_000), 4, num_workers=2, device=device)
loader
"""


def test_the_panel_of_the_device_is_shown_where_batches_are_uploaded(open_notebook: Any) -> None:
    notebook = open_notebook(UPLOADS, "for batch in loader: time.sleep(0.01)", "loader.close()")
    page = notebook.page
    notebook.run(0)
    panel = page.locator(".nbl-live .nbl-panel-device")
    panel.locator(".nbl-title", has_text="Device").wait_for()
    panel.locator(".nbl-device-line", has_text="not measured yet").wait_for()
    notebook.run(1)
    panel.locator(".nbl-device-line", has_text="hidden behind the step").wait_for()
    panel.locator(".nbl-device-line", has_text="shared memory, without a copy; ").wait_for()
    panel.locator(".nbl-device-line", has_text="315 MB in tensors, 440 MB reserved by torch, of 1.07 GB").wait_for()
    panel.locator(".nbl-note", has_text="of the uploads hidden").wait_for()
    look_at(panel, "device")
    page.evaluate(f"() => {{ {notebook._PANEL}.context.sessionContext.session.kernel.interrupt(); }}")
    notebook.wait_until_run(1)
    notebook.run(2)
    page.locator(".nbl-static:visible", has_text="Memory of cuda:0").first.wait_for()


def test_without_a_device_its_panel_is_hidden(open_notebook: Any) -> None:
    notebook = open_notebook(SHOW)
    notebook.run(0)
    notebook.page.locator(".nbl-live .nbl-panel-samples").wait_for()
    notebook.page.locator(".nbl-live .nbl-panel-device").wait_for(state="hidden")
