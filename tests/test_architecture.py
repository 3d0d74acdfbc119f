"""The import contracts in pyproject.toml hold for the package, and fail when they should."""

from __future__ import annotations

import graphlib
import pathlib
import shutil
import subprocess
import sys

import grimp
import pytest

pytestmark = pytest.mark.unit

ROOT = pathlib.Path(__file__).parents[1]
LINT = "import importlinter.cli; importlinter.cli.lint_imports_command()"


def lint_imports(folder):
    """Run the contracts on the package in `folder`. Returns the exit status and the output in one line."""
    done = subprocess.run(
        [sys.executable, "-c", LINT, "--no-logo", "--no-cache"],
        cwd=folder, env={"PYTHONPATH": str(folder), "COLUMNS": "200"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def copy(tmp_path):
    """A folder with a copy of the package and of its contracts."""
    shutil.copytree(ROOT / "nbloader", tmp_path / "nbloader", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_package_keeps_its_contracts():
    status, output = lint_imports(ROOT)
    assert status == 0, output


def test_no_module_takes_part_in_an_import_cycle():
    """The linter compares siblings; this looks at modules, a package's `__init__` included."""
    graph = grimp.build_graph("nbloader", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) - {module} for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the cycle


@pytest.mark.parametrize(
    "statement",
    [
        "from nbloader.engine import loop",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from nbloader.engine import loop",
        "def late():\n    from nbloader.engine import loop",
    ],
    ids=["at the top", "for type checking", "in a function"],
)
def test_an_upward_import_breaks_the_contract(copy, statement):
    (copy / "nbloader/events/planted.py").write_text(statement + "\n")
    status, output = lint_imports(copy)
    assert status != 0
    assert "nbloader.events is not allowed to import nbloader.engine" in output
    assert "nbloader.events.planted -> nbloader.engine.loop" in output


def test_an_import_between_independent_packages_breaks_the_contract(copy):
    (copy / "nbloader/scheduler/planted.py").write_text("from nbloader.workers import api\n")
    status, output = lint_imports(copy)
    assert status != 0
    assert "nbloader.scheduler.planted -> nbloader.workers.api" in output


def test_a_cycle_inside_a_package_breaks_the_contract(copy):
    (copy / "nbloader/events/planted_a.py").write_text("from nbloader.events import planted_b\n")
    (copy / "nbloader/events/planted_b.py").write_text("from nbloader.events import planted_a\n")
    status, output = lint_imports(copy)
    assert status != 0
    assert "No cycles are allowed in nbloader.events" in output


def test_a_package_without_a_layer_breaks_the_contract(copy):
    (copy / "nbloader/planted").mkdir()
    (copy / "nbloader/planted/__init__.py").touch()
    status, output = lint_imports(copy)
    assert status != 0
    assert "planted" in output
