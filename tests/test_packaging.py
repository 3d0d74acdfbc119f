"""The wheel, the public names, the import time, the types, the notebooks and the Makefile."""

from __future__ import annotations

import importlib.metadata
import inspect
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "nbloader"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy so that the tree stays as it is."""
    copy = tmp_path_factory.mktemp("source")
    shutil.copytree(PACKAGE, copy / "nbloader", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        "dist",
        ".",
    ]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = (copy / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_contains_exactly_the_files_of_the_package(wheel):
    expected = {
        str(p.relative_to(ROOT).as_posix())
        for p in PACKAGE.rglob("*")
        if p.suffix in {".py", ".js", ".css"} or p.name == "py.typed"
    }
    assert {"nbloader/py.typed", "nbloader/__init__.py"} <= expected
    assert any(name.endswith(".js") for name in expected)
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


def test_the_wheel_contains_the_license_and_requires_no_particular_torch(wheel):
    names = wheel.namelist()
    assert any(name.endswith("/LICENSE") for name in names)
    (metadata,) = (wheel.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    needed = set(re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.MULTILINE))
    assert needed == {"numpy", "torch", "cloudpickle", "psutil", "ipywidgets", "anywidget", "bokeh", "tqdm"}
    (torch,) = re.findall(r"^Requires-Dist: torch(?![\w-])(.*)$", metadata, re.MULTILINE)
    assert re.fullmatch(r">=[\d.]+", torch)


@pytest.mark.slow
def test_a_typed_program_passes_mypy_strict_against_the_installed_package(wheel, tmp_path):
    """And each of its lines that ends in a comment has the error that the comment quotes."""
    venv.create(tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    installed = pathlib.Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")}))
    wheel.extractall(installed)
    (installed / "others.pth").write_text(sysconfig.get_path("purelib"))
    program = pathlib.Path(__file__).parent / "typed_example.py"
    # With the options of `make lint`, which contain --strict, and a copy of its cache: to analyze torch takes a minute.
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", tmp_path / "cache")
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", f"--config-file={ROOT / 'pyproject.toml'}", f"--python-executable={python}",
            f"--cache-dir={tmp_path / 'cache'}", "--hide-error-codes", str(program),
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "MYPYPATH"}},
    )  # fmt: skip
    errors = {int(line): text for line, text in re.findall(r":(\d+): error: (.*)$", done.stdout, re.MULTILINE)}
    expected = {
        number: comment
        for number, line in enumerate(program.read_text().splitlines(), 1)
        if (comment := line.partition(")  # ")[2])
    }
    assert errors.keys() == expected.keys(), done.stdout + done.stderr
    for number, comment in expected.items():
        assert comment in errors[number]


def test_the_version_is_the_one_in_the_metadata():
    import nbloader

    assert nbloader.__version__ == importlib.metadata.version("nbloader-torch")


def test_python_m_checks_an_installation():
    done = subprocess.run([sys.executable, "-m", "nbloader"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"nbloader {importlib.metadata.version('nbloader-torch')}, Python ")
    assert "torch 2." in done.stdout
    assert "2 workers delivered 1,000 samples, each once and in order" in done.stdout
    assert not done.stderr


def test_the_citation_and_the_readme_name_the_version():
    import nbloader

    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == nbloader.__version__
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"\bversion (\d[\w.]*\w)", readme)[1] == nbloader.__version__


def test_files_for_the_hosting_site_are_yaml_and_run_commands_that_exist():
    yaml = pytest.importorskip("yaml")
    files = [ROOT / "CITATION.cff", *(ROOT / ".github").rglob("*.yml")]
    assert len(files) == 4
    assert all(isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict) for path in files)
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    targets = [command.split()[1].removeprefix(".venv/.made") for command in commands if command.startswith("make ")]
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets
    assert not [t for t in targets if not re.search(rf"^(\$\(MADE\))?{t}:", rules, re.MULTILINE)]
    tested = {workflow["jobs"]["everything"]["steps"][1]["with"]["python-version"]}
    tested.update(workflow["jobs"]["test"]["strategy"]["matrix"]["python"])
    claimed = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert tested >= set(claimed)


def test_there_are_at_most_two_dozen_public_names_and_all_have_docstrings():
    import nbloader

    assert 0 < len(nbloader.__all__) <= 24
    for name in nbloader.__all__:
        thing = getattr(nbloader, name)
        assert isinstance(thing, str) or (thing.__doc__ or "").strip(), f"nbloader.{name} has no docstring"


def test_dir_of_the_package_shows_the_public_names_only():
    """Also after subpackages and names have been imported."""
    code = """
import nbloader, nbloader.dashboard, nbloader.loader.dataloader, nbloader.demo
names = [getattr(nbloader, name) for name in nbloader.__all__]
shown = {name for name in dir(nbloader) if not (name.startswith("__") and name.endswith("__"))}
assert shown == set(nbloader.__all__), shown
assert {"loader", "errors"} <= set(vars(nbloader))
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_dir_of_a_loader_shows_no_helper():
    """What a user sees after `loader.` and Tab: methods for users, and the arguments."""
    import torch

    import nbloader

    methods = {
        "clean", "close", "dashboard", "debug", "deliveries", "events", "explore", "from_source", "from_torch",
        "hot_lines", "load_state_dict", "on_wait", "pause", "points", "profile_lines", "progress", "record", "refresh",
        "reload", "remedies", "replay", "report", "restart_workers", "resume", "stack", "state_dict", "stats", "step",
        "timeline", "trace", "tune", "tuning", "what_if",
    }  # fmt: skip
    arguments = set(inspect.signature(nbloader.DataLoader).parameters) - {"shuffle"}  # as in torch
    with nbloader.DataLoader([1, 2]) as loader:
        theirs = set(dir(torch.utils.data.DataLoader([1, 2])))
        shown = {name for name in dir(loader) if not name.startswith("_")}
        assert shown - theirs == (methods | arguments) - theirs
        assert shown >= methods | arguments
        for name in methods:
            assert name == "events" or (inspect.getdoc(getattr(nbloader.DataLoader, name)) or "").strip(), name


def test_importing_nbloader_imports_neither_torch_nor_a_front_end():
    code = "import sys, nbloader; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"torch", "ipywidgets", "anywidget", "bokeh", "IPython", "ipykernel", "PIL", "skimage"}
    assert heavy.isdisjoint(done.stdout.split())


def test_importing_nbloader_takes_less_than_150_ms():
    def milliseconds():
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", "import nbloader"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        (cumulative,) = re.findall(r"\|\s*(\d+) \| nbloader$", done.stderr, re.MULTILINE)
        return int(cumulative) / 1000

    # The shortest of several runs: load on the machine can only add to it.
    best = milliseconds()
    for _ in range(20):
        best = min(best, milliseconds())
        if best < 150:
            break
    assert best < 150, f"import nbloader took {best:.0f} ms at best"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_a_notebook_is_saved_without_widget_state_and_what_editors_add(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert set(notebook["metadata"]) <= {"kernelspec", "language_info", "panels"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert set(notebook["metadata"].get("language_info", {})) <= {"name"}
    for cell in notebook["cells"]:
        assert set(cell["metadata"]) <= {"tags"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_each_code_cell_of_a_notebook_follows_a_short_text(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for before, cell in itertools.pairwise(cells):
        if cell["cell_type"] == "code":
            text = "".join(before["source"])
            assert before["cell_type"] == "markdown", f"cell {cell['id']} has no text"
            assert len(text.splitlines()) <= 8, f"the text before cell {cell['id']} is long"


def test_there_is_a_notebook():
    assert NOTEBOOKS, "the tests above had nothing to look at"


def test_exploring_data_without_tensors_imports_no_torch():
    """It would take seconds, before the first picture."""
    code = (
        "import sys, nbloader.explorer.widget as w; from nbloader.explorer.sources import source_of;"
        "source_of([1, 2], 5); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_projects_environments_pin_torch():
    assert re.search(r"^torch==\d", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
class TestMakefile:
    """The commands of the README, as far as they run without installing anything."""

    @staticmethod
    def make(tmp_path, *arguments, **variables):
        shutil.copy(ROOT / "Makefile", tmp_path)
        env = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
        return subprocess.run(
            ["make", *arguments, *(f"{k}={v}" for k, v in variables.items())],
            cwd=tmp_path, capture_output=True, text=True, check=False, env=env,
        )  # fmt: skip

    def test_an_old_python_is_refused_with_a_remedy(self, tmp_path):
        old = tmp_path / "python3.9"
        old.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo Python 3.9.18; exit 0; }\nexit 1\n')
        old.chmod(0o755)
        (tmp_path / "pyproject.toml").touch()
        (tmp_path / "constraints.txt").touch()
        done = self.make(tmp_path, "test", PYTHON=old)
        assert done.returncode != 0
        assert "nbloader needs Python 3.10 or newer" in done.stderr
        assert "is Python 3.9.18" in done.stderr
        assert "make PYTHON=" in done.stderr
        assert not (tmp_path / ".venv").exists()

    def test_a_missing_python_is_reported(self, tmp_path):
        done = self.make(tmp_path, "demo", PYTHON="python3-that-is-not-there")
        assert done.returncode != 0
        assert "There is no python3-that-is-not-there here" in done.stderr

    @pytest.mark.parametrize(
        ("step", "not_run"),
        [
            ("ruff check", "format --check"),
            ("ruff format --check", "mypy"),
            ("mypy", "lint-imports"),
            ("lint-imports", "pytest"),
            ("sphinx", "check_site"),
            ("check_site", None),
            ("-m portable", None),
            ("--nbval-lax", None),
            (None, None),
        ],
    )
    def test_make_test_fails_when_any_of_its_steps_fails(self, tmp_path, step, not_run):
        """Its commands only write that they ran."""
        (tmp_path / ".venv/bin").mkdir(parents=True)
        for command in ("python", "lint-imports"):
            script = tmp_path / ".venv/bin" / command
            script.write_text(
                f"""#!/bin/sh
                echo "$0 $*" >> ran
                case "$0 $*" in
                    *"{step}"*) exit 1;;
                esac
                """
            )
            script.chmod(0o755)
        for name in (
            "pyproject.toml",
            "constraints.txt",
            ".venv/.made",
            ".venv/.made-demo",
            ".venv/.made-test",
            ".venv/.made-docs",
        ):
            (tmp_path / name).touch()
        for folder in ("recipes", *(f"kernels/ipykernel-{version}" for version in ("6.30", "7.0", "7.3"))):
            (tmp_path / ".venv" / folder).mkdir(parents=True)
            (tmp_path / ".venv" / folder / ".made").touch()
        done = self.make(tmp_path, "test")
        assert (done.returncode == 0) == (step is None), done.stdout + done.stderr
        ran = (tmp_path / "ran").read_text()
        assert step is None or step in ran
        assert not_run is None or not_run not in ran
