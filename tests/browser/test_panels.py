"""A panel that is registered from outside of nbloader shows up in the page: the worked example of the docs."""

from __future__ import annotations

from typing import Any

import pytest

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
