"""A Jupyter server without anywidget's extension: the page says what is missing, and the plain form moves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from .test_live import LOW_CONTRAST, screenshot

pytestmark = [
    pytest.mark.browser,
    pytest.mark.leaves_behind("the browser's driver keeps threads of its own"),
]

MAKE = """
import tempfile, time
from pathlib import Path
from nbloader import DataLoader, explore
from sleepy import Sleepy

dataset = Sleepy(4000, hang_at=-1, mark=Path(tempfile.mkdtemp(dir=".")) / "mark")
loader = DataLoader(dataset, batch_size=4, num_workers=2)
loader
"""
LOOP = """
stop = dataset.mark.parent / "stop"
while not stop.exists():
    for batch in loader:
        time.sleep(0.05)
        if stop.exists(): break
print("stopped")
"""
NOTICE = ".nbl-static .nbl-silent"
PROGRESS = ".nbl-static .nbl-progress"
CONTRAST = LOW_CONTRAST[LOW_CONTRAST.index("(root)") :].strip().removesuffix(";")


@pytest.fixture
def without_anywidget(server: Any) -> Iterator[None]:
    """The pages of the server lack anywidget, as on a server that does not have the package."""
    server.disable_extension("anywidget")
    yield
    server.enable_extensions()


def stop(notebook: Any) -> None:
    """End the loop."""
    for folder in notebook.server.root.glob("tmp*"):
        (folder / "stop").touch()


def low_contrast(page: Any) -> str:
    """List the texts of the form whose contrast is too low, as JSON: at one moment, since the form is replaced."""
    form = "document.querySelector('.nbl-static')"
    return str(page.wait_for_function(f"() => {form} && JSON.stringify(({CONTRAST})({form}))").json_value())


@pytest.mark.parametrize("kernel", ["ipykernel-6.30", "current"])
def test_a_server_without_anywidget_is_named_and_the_form_moves_in_the_busy_cell(
    open_notebook: Any, without_anywidget: None, kernel: str
) -> None:
    notebook = open_notebook(MAKE, LOOP, kernel=kernel)
    page = notebook.page
    notebook.run_all()
    notice = page.locator(NOTICE)
    notice.wait_for()
    assert "pip install anywidget" in notice.inner_text()
    assert "loader.restart_workers()" in notice.inner_text()
    for _ in range(2):
        before = page.locator(PROGRESS).inner_text()
        page.wait_for_function(
            "([selector, before]) => document.querySelector(selector)?.innerText !== before", arg=[PROGRESS, before]
        )
    screenshot(page, f"silent-{kernel}")
    assert low_contrast(page) == "[]"

    notebook.save()
    notebook.server.enable_extensions()  # "pip install anywidget"
    notebook.open()
    page.locator(".nbl-live .nbl-progress").wait_for()
    page.get_by_role("button", name="Pause the loader").click()
    page.locator(".nbl-live .nbl-chip", has_text="paused").wait_for()
    assert not notice.locator("visible=true").count()
    page.get_by_role("button", name="Resume the loader").click()
    page.locator(".nbl-live .nbl-chip", has_text="running").wait_for()
    stop(notebook)
    page.locator(".nbl-live .nbl-chip", has_text=re.compile("stopped|idle")).wait_for()


def test_without_anywidget_a_call_in_a_cell_does_what_its_button_would(
    open_notebook: Any, without_anywidget: None
) -> None:
    pause = "batches = iter(loader)\nnext(batches)\nloader.pause()"
    notebook = open_notebook(MAKE, "explore(dataset)", pause)
    page = notebook.page
    notebook.run_all()
    notebook.wait_until_run(2)
    page.locator(NOTICE).nth(1).wait_for()
    assert "dataset[i]" in page.locator(".nbx .nbl-silent").inner_text()
    page.locator(".nbx.nbl-static .nbx-card").nth(5).wait_for()
    notebook.run(2)
    page.locator(".nbl-static .nbl-chip", has_text="paused").wait_for()
    page.evaluate("() => jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function(
        "() => getComputedStyle(document.querySelector('.nbl-static')).backgroundColor !== 'rgb(255, 255, 255)'"
    )
    page.evaluate("notice => document.querySelector(notice).scrollIntoView()", NOTICE)  # at once: it is replaced soon
    screenshot(page, "silent-dark")
    assert low_contrast(page) == "[]"


def test_a_server_without_any_widgets_closes_the_comm_and_the_next_dashboard_opens_it_again(
    open_notebook: Any, server: Any
) -> None:
    server.disable_extension("@jupyter-widgets/jupyterlab-manager")
    try:
        notebook = open_notebook(MAKE, "loader.dashboard()")
        page = notebook.page
        notebook.run(0)
        page.locator(NOTICE).wait_for()
        screenshot(page, "silent-without-widgets")
        notebook.save()
    finally:
        server.enable_extensions()
    notebook.open()
    notebook.run(1)
    page.locator(".jp-CodeCell").nth(1).locator(".nbl-live .nbl-chip", has_text="new").wait_for()
