"""Runs notebooks in JupyterLab and stores their outputs in them: `python docs/store_outputs.py [notebook ...]`.

What somebody sees who reads them on the web: what each cell printed, and pictures of the dashboards, galleries and
tables as they were in a browser, since sites that show notebooks run no widgets and remove styles. What belongs to one
machine is left out: standard error, logs of Ray, folders in tracebacks, states of widgets, times of execution. It needs
what the browser tests need.

Where a worker hangs, it does what the notebook asks its reader to do: it clicks the restart button.

In the course a prediction comes before each experiment. So outputs are folded there, and answers and checks have none.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from PIL import Image, ImageChops
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tests" / "browser")]

from conftest import BROWSER_ARGS, BROWSERS, Notebook, Server  # noqa: E402
from panels_digest import KEY, panels_digest  # noqa: E402

COURSE = ROOT / "notebooks" / "course"
NOTEBOOKS = [*sorted((ROOT / "notebooks").glob("0[1234]_*.ipynb")), *sorted(COURSE.glob("[0-9]*.ipynb"))]
WINDOW = {"width": 1060, "height": 2400}
"""CSS pixels. A view that is higher is cut off."""
SHARPNESS = 1.25
COLORS = 256
PHOTOGRAPH = 20_000
"""Colors that no dashboard has."""
FOLDERS = re.compile(r"(?<![\w.])/(?:tmp|home|root|work|usr|var|opt|Users)/(?:[^/\s\"']+/)*")
RAYLET = "\x1b[33m(raylet)"
"""Begins what Ray prints of a node that has died: the end of its log."""
TEARDOWN = "teardown"
"""Tag of a cell after which a dashboard no longer shows what the text before it is about."""
SETTLED = 1500
"""Milliseconds after which a view shows what the loader has done last."""
DONE = """([panel, cell]) => {
    const { model } = eval(panel).content.widgets[cell];
    return model.executionCount != null && model.executionState !== 'running';
}"""
ASKS_FOR_A_CLICK = "patience = "
"""In the source of a cell that waits until its reader has restarted a worker."""
STUCK = ".nbl-live tr.nbl-stuck"
VIEWS = ".jp-OutputArea-output:has(.nbl):visible, .jp-OutputArea-output:has(.nbloader-report):visible"


class Reader:
    """Runs a notebook as a reader does, and looks at what it shows."""

    def __init__(self, notebook: Notebook, cells: list[Any]) -> None:
        self.notebook, self.page = notebook, notebook.page
        self.code = [at for at, cell in enumerate(cells) if cell.cell_type == "code"]
        self.teardown = {at for at in self.code if TEARDOWN in cells[at].metadata.get("tags", ())}
        self.clicks = {at for at in self.code if ASKS_FOR_A_CLICK in cells[at].source}
        self.pictures: dict[int, bytes] = {}
        """What was on screen, by cell."""
        self._watched: int | None = None
        """The cell with the dashboard that the next cells change."""

    def read(self) -> None:
        """Run all cells."""
        for cell in self.code:
            self.notebook.run(cell)
            self._wait(cell)
            output = self._view(cell)
            if output.count():
                self._watched = cell
            if cell in self.teardown:
                self._watched = None
            if self._watched is not None:
                self._look(self._watched)
                if self._view(self._watched).locator(".nbx, .nbloader-report").count():
                    self._watched = None  # it shows what it has found, whatever comes after it

    def _wait(self, cell: int) -> None:
        """Wait until a cell has ended; click the restart button of a worker that hangs, if it asks for that."""
        panel = f"({self.notebook._PANEL})"
        while not self.page.evaluate(DONE, [panel, cell]):
            if self._watched is not None and cell in self.clicks and self.page.locator(STUCK).count():
                self.page.wait_for_timeout(2 * SETTLED)
                self._look(self._watched)
                self._watched = None
                self.page.locator(STUCK).get_by_role("button", name="Restart worker").first.click()
            self.page.wait_for_timeout(100)

    def _view(self, cell: int) -> Any:
        return self.page.locator(".jp-Notebook-cell").nth(cell).locator(VIEWS).first

    def _look(self, cell: int) -> None:
        self.page.wait_for_timeout(SETTLED)
        view = self._view(cell)
        view.evaluate("node => node.scrollIntoView()")
        self.page.wait_for_function("() => [...document.querySelectorAll('.nbl img')].every(image => image.complete)")
        self.pictures[cell] = view.screenshot()


def main() -> None:
    """Run the notebooks that the command line names, or all."""
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or NOTEBOOKS
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(BROWSER_ARGS))
        server = Server(Path(folder))
        try:
            server.wait_until_ready()
            context = browser.new_context(viewport=WINDOW, device_scale_factor=SHARPNESS)
            for notebook in chosen:
                store(notebook, server, context.new_page())
                print(f"{notebook.name}: {notebook.stat().st_size / 1e3:,.0f} kB")
                server.delete_kernels()
        finally:
            server.close()
            browser.close()


def store(path: Path, server: Server, page: Any) -> None:
    """Run a notebook beside a copy of what is in its folder, and write it with its outputs."""
    page.set_default_timeout(120_000)
    shutil.copytree(path.parent, server.root, dirs_exist_ok=True)
    stored = json.loads(path.read_text(encoding="utf-8"))
    copy = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.metadata.pop("jupyter", None)
    copy.metadata.kernelspec = {"name": "current", "display_name": "current", "language": "python"}
    nbformat.write(copy, server.root / path.name)  # type: ignore[no-untyped-call]
    notebook = Notebook(server, page, "notebook", server.root / path.name)
    notebook.wait_until_responsive()
    reader = Reader(notebook, copy.cells)
    reader.read()
    run = json.loads(page.evaluate(f"() => JSON.stringify({Notebook._PANEL}.content.model.toJSON())"))
    course = path.parent == COURSE
    for at, (cell, executed) in enumerate(zip(stored["cells"], run["cells"], strict=True)):
        if cell["cell_type"] == "code":
            own = {"answer", "check"} & set(cell["metadata"].get("tags", ())) or cell["id"] == "progress"
            picture = reader.pictures.get(at)
            cell["outputs"] = [] if course and own else outputs_of(executed["outputs"], picture)
            cell["execution_count"] = None if course else executed["execution_count"]
            if course:
                fold(cell)
    stored["metadata"][KEY] = panels_digest()
    path.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page.close()


def outputs_of(outputs: list[dict[str, Any]], picture: bytes | None) -> list[dict[str, Any]]:
    """What is stored of the outputs of a cell.

    Raises:
        SystemExit: The cell has failed.
    """
    kept: list[dict[str, Any]] = []
    for output in outputs:
        if output["output_type"] == "error":
            sys.exit("\n".join(output["traceback"]))
        if output["output_type"] == "stream":
            text = FOLDERS.sub(".../", "".join(output["text"])).splitlines(keepends=True)
            if text and text[0].startswith(RAYLET):
                continue
            if output["name"] == "stdout" and kept and kept[-1]["output_type"] == "stream":
                kept[-1]["text"] += text
            elif output["name"] == "stdout":
                kept.append({"name": "stdout", "output_type": "stream", "text": text})
            continue
        data = dict(output["data"])
        if any("html" in kind or "widget" in kind for kind in data):
            if picture is None:
                continue  # the second output of a dashboard, for the time when its kernel is gone
            data = smaller(picture) | {"text/plain": data["text/plain"]}
            picture = None
        if "image/jpeg" in data:
            data.pop("image/png", None)
        kept.append({name: value for name, value in output.items() if name != "transient"} | {"data": data})
        kept[-1]["metadata"] = {}
    return kept


def smaller(png: bytes) -> dict[str, str]:
    """A picture without its margin, as notebooks store it: one of photographs as JPEG, others with fewer colors."""
    with Image.open(io.BytesIO(png)) as image:
        picture = image.convert("RGB")
    margin = ImageChops.difference(picture, Image.new("RGB", picture.size, picture.getpixel((0, 0))))
    picture = picture.crop(margin.getbbox())
    buffer = io.BytesIO()
    if picture.getcolors(PHOTOGRAPH) is None:
        kind = "image/jpeg"
        picture.save(buffer, "JPEG", quality=85, optimize=True)
    else:
        kind = "image/png"
        small = picture.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        small.save(buffer, "PNG", optimize=True)
    return {kind: base64.b64encode(buffer.getvalue()).decode() + "\n"}


def fold(cell: dict[str, Any]) -> None:
    """Fold the outputs of a cell, on the site and in JupyterLab, which unfolds them when the cell runs."""
    metadata = cell["metadata"]
    tags = [tag for tag in metadata.pop("tags", ()) if tag != "hide-output"]
    metadata.pop("jupyter", None)
    if cell["outputs"]:
        tags.append("hide-output")
        metadata["jupyter"] = {"outputs_hidden": True}
    if tags:
        metadata["tags"] = tags


if __name__ == "__main__":
    main()
