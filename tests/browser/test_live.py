"""The dashboard in a real browser: it moves, and its buttons work, while a cell is busy."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

SHOTS = os.environ.get("NBLOADER_SCREENSHOTS")

pytestmark = [pytest.mark.browser, pytest.mark.leaves_behind("the browser's driver keeps threads of its own")]

def shot(page, name):
    if SHOTS:
        page.screenshot(path=str(pathlib.Path(SHOTS) / f"{name}.png"))

MAKE = """
from fake_loader import FakeLoader
from nbloader.dashboard import show
loader = FakeLoader(batches=60, hang_at=20)
dashboard = show(loader)
"""
LOOP = """
seen = []
for batch in loader:
    seen.append(batch)
print("ended", seen == list(range(60)), loader.commands)
"""


@pytest.mark.parametrize("app", ["lab", "notebook"])
@pytest.mark.parametrize("kernel", ["ipykernel-6.30", "ipykernel-7.3", "current"])
def test_a_click_restarts_a_hung_worker_while_the_cell_is_busy(open_notebook: Any, app: str, kernel: str) -> None:
    notebook = open_notebook(MAKE, LOOP, app=app, kernel=kernel)
    page = notebook.page
    page.on("console", lambda m: print("console:", m.type, m.text[:300]))
    page.on("pageerror", lambda e: print("pageerror:", e))
    notebook.run_all()
    page.locator("tr.nbl-stuck").wait_for()
    shot(page, f"stuck-{app}-{kernel}")
    page.get_by_role("button", name="Restart worker 1").click()
    out = notebook.wait_until_run(1)
    assert "ended True ['restart 1']" in out
    shot(page, f"ended-{app}-{kernel}")
