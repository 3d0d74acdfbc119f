"""The outputs that are stored in the notebooks: there, as the cells are, and without what belongs to one machine."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("panels_digest", ROOT / "docs" / "panels_digest.py")
assert spec is not None and spec.loader is not None  # noqa: PT018
panels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(panels)
TUTORIALS = sorted((ROOT / "notebooks").glob("0[1234]_*.ipynb"))
COURSE = sorted((ROOT / "notebooks" / "course").glob("[0-9]*.ipynb"))
PATH = re.compile(r"(?<![\w.])/(tmp|home|root|work|usr|var|opt|Users|private)/\S*")
"""A path of a machine."""
SHOWS = re.compile(r"^ *print\(|^(view|loader|loader\.(stats|dashboard)\(\))$", re.MULTILINE)
"""Code that has an output."""
LARGEST = 600_000
"""Bytes of a notebook: as many as a page that shows it may take."""

each = pytest.mark.parametrize("path", [*TUTORIALS, *COURSE], ids=lambda path: path.stem)


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@each
def test_outputs_are_stored_and_hold_nothing_of_the_machine(path: Path) -> None:
    cells = code_cells(path)
    outputs = [(cell["id"], output) for cell in cells for output in cell["outputs"]]
    assert len(outputs) >= 2, "run docs/store_outputs.py"
    for cell, output in outputs:
        assert output["output_type"] in ("stream", "display_data", "execute_result"), cell
        assert output.get("name", "stdout") == "stdout", cell
        data = output.get("data", {})
        assert not [kind for kind in data if "widget" in kind or "html" in kind], f"{cell}: not shown on the web"
        found = PATH.search("".join(output.get("text", ())) + "".join(data.get("text/plain", ())))
        assert not found, f"{cell}: {found}"
    assert path.stat().st_size < LARGEST


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_was_run_from_top_to_bottom_and_what_never_changes_is_compared(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert sum("nbval-check-output" in cell["metadata"].get("tags", ()) for cell in cells) >= 2
    for cell in cells:
        shows = SHOWS.search("".join(cell["source"]))
        assert cell["outputs"] or not shows, f"{cell['id']}: run docs/store_outputs.py"


def test_the_outputs_of_the_quickstart_are_newer_than_the_panels() -> None:
    metadata = json.loads(TUTORIALS[0].read_text(encoding="utf-8"))["metadata"]
    stored, now = metadata.get(panels.KEY), panels.panels_digest()
    assert stored == now, "the panels have changed: run docs/store_outputs.py notebooks/01_quickstart.ipynb"
