"""Records the README's moving picture in a browser: `python docs/moving_picture.py`, which takes half a minute.

A loop runs in a notebook, one of its workers hangs, and a click restarts it. It needs what the browser tests need.
"""

from __future__ import annotations

import io
import itertools
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from conftest import BROWSER_ARGS, BROWSERS, Notebook, Server  # noqa: E402

TO = ROOT / "docs" / "dashboard.webp"
LARGEST = 2_000_000
WINDOW = {"width": 960, "height": 1000}
COLORS = 255
FRAME = {"x": 30, "width": 930, "height": 860}
"""What is in the picture, from the top of the cell; CSS pixels."""
BEFORE = 2.5
"""How long the picture shows the loop before a worker is stuck, seconds: the hang is what it is about."""
INTERVAL = 250
"""Milliseconds between two frames, as between two messages to the dashboard."""
SETUP = """
import pathlib, tempfile, time
import numpy as np
from PIL import Image
from nbloader import DataLoader, demo

mark = pathlib.Path(tempfile.mkdtemp()) / "hung"


class Photographs:
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*/*.jpg")) * 5

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        if i == 640 and not mark.exists():
            mark.touch()
            time.sleep(3600)
        with Image.open(self.paths[i]) as file:
            image = file.convert("RGB").resize((224, 224))
        return np.asarray(image), i // 200


def train(images, labels):
    time.sleep(0.1)


photographs = Photographs(demo.photographs())
"""
LOOP = """loader = DataLoader(photographs, batch_size=16, num_workers=2)
loader.dashboard()
for images, labels in loader:
    train(images, labels)"""
POINTER = """([x, y, pressed]) => {
    let node = document.querySelector('#pointer');
    if (!node) {
        node = document.body.appendChild(document.createElement('div'));
        node.id = 'pointer';
        node.style.cssText = 'position:fixed; z-index:99999; pointer-events:none; left:70%; top:90%;'
            + 'transition: left .7s, top .7s';
        node.innerHTML = '<svg width="22" height="30" viewBox="0 0 11 15"><path fill="black" stroke="white"'
            + ' stroke-width=".8" d="M0 0v12.5l3-2.8 1.9 4.6 1.9-.8-1.9-4.5h4.1z"/></svg>';
        node.offsetLeft;
    }
    node.style.left = `${x}px`;
    node.style.top = `${y}px`;
    node.style.filter = pressed ? 'drop-shadow(0 0 5px #1565c0) drop-shadow(0 0 5px #1565c0)' : '';
}"""
STUCK = ".nbl-live tr.nbl-stuck"
RESTART = ".nbl-live button:has-text('Restart worker')"
FOLDED = ".nbl-live :is(.nbl-panel-lines, .nbl-panel-plots)[open] > summary"
"""What does not fit into the picture."""


class Camera:
    """Takes frames of the notebook."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.cell = page.locator(".jp-Notebook-cell").nth(1)
        self.frames: list[tuple[float, Image.Image]] = []
        """When each was taken, in seconds, and what was on screen."""

    def film(self, seconds: float) -> None:
        """Take frames for some time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.shot()

    def film_until(self, selector: str) -> None:
        """Take frames until an element is there.

        Raises:
            TimeoutError: It has not appeared within half a minute.
        """
        end = time.monotonic() + 30
        while not self.page.locator(selector).count():
            if time.monotonic() > end:
                raise TimeoutError(f"no {selector}")
            self.shot()

    def keep(self, seconds: float) -> None:
        """Drop frames that are older than this."""
        begin = self.frames[-1][0] - seconds
        self.frames = [(at, frame) for at, frame in self.frames if at >= begin]

    def shot(self) -> None:
        """Take a frame."""
        began = time.monotonic()
        png = self.page.screenshot(clip=FRAME | {"y": self.cell.bounding_box()["y"]})
        frame = Image.new("RGB", (FRAME["width"], FRAME["height"]), "white")
        with Image.open(io.BytesIO(png)) as image:
            frame.paste(image)
        self.frames.append((began, frame))
        self.page.wait_for_timeout(max(0.0, INTERVAL - 1000 * (time.monotonic() - began)))

    def save(self, path: Path) -> None:
        """Write a moving picture in which time passes as it did, and whose end stays for three seconds.

        All frames have the same few colors, those of three of them: antialiased text has too many.
        """
        times = [at for at, _frame in self.frames] + [self.frames[-1][0] + 3]
        durations = [round(1000 * (after - at)) for at, after in itertools.pairwise(times)]
        some = Image.new("RGB", (FRAME["width"], 3 * FRAME["height"]))
        for third in range(3):
            some.paste(self.frames[(third + 1) * len(self.frames) // 3 - 1][1], (0, third * FRAME["height"]))
        palette = some.quantize(COLORS, kmeans=1)
        first, *others = [frame.quantize(palette=palette, dither=0).convert("RGB") for _at, frame in self.frames]
        first.save(path, save_all=True, append_images=others, duration=durations, loop=0, lossless=True, quality=60)


def main() -> None:
    """Record it."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(BROWSER_ARGS))
        server = Server(Path(folder))
        try:
            server.wait_until_ready()
            page = browser.new_page(viewport=WINDOW)
            page.set_default_timeout(60_000)
            cells = [nbformat.v4.new_code_cell(text) for text in (SETUP, LOOP)]  # type: ignore[no-untyped-call]
            notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
            notebook.metadata.kernelspec = {"name": "current", "display_name": "current", "language": "python"}
            file = Path(folder) / "train.ipynb"
            nbformat.write(notebook, file)  # type: ignore[no-untyped-call]
            record(Notebook(server, page, "notebook", file)).save(TO)
        finally:
            server.close()
            browser.close()
    size = TO.stat().st_size
    print(f"{TO}: {size / 1e6:.2f} MB")
    if size > LARGEST:
        sys.exit(f"it may have {LARGEST / 1e6} MB")


def record(notebook: Notebook) -> Camera:
    """Run the cells, and click when the worker hangs."""
    page = notebook.page
    notebook.wait_until_responsive()
    notebook.run(0)
    notebook.wait_until_run(0)
    camera = Camera(page)
    camera.cell.evaluate("node => node.scrollIntoView()")
    notebook.run(1)
    page.locator(".nbl-live .nbl-chip").wait_for()
    for panel in page.locator(FOLDED).all():
        panel.click()
    camera.cell.evaluate("node => node.scrollIntoView()")
    camera.film_until(STUCK)
    camera.keep(BEFORE)
    camera.film(1.5)
    box = page.locator(RESTART).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.evaluate(POINTER, [x, y, False])
    camera.film(1.2)
    page.evaluate(POINTER, [x, y, True])
    camera.shot()
    page.mouse.click(x, y)
    camera.film(0.4)
    page.evaluate(POINTER, [x, y, False])
    camera.film_until(".nbl-live .nbl-chip:has-text('idle')")
    camera.film(0.6)
    return camera


if __name__ == "__main__":
    main()
