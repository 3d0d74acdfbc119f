"""Badges for Colab and Binder: the hand-out of the course works as a repository.

Colab, GitHub and Binder are not reached. Git takes a folder for the address on GitHub,
and pip installs into a folder.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[1]
COURSE = ROOT / "notebooks" / "course"
sys.path.insert(0, str(COURSE))
import badges  # noqa: E402
import instructor  # noqa: E402

sys.path.remove(str(COURSE))
UNITS = list(instructor.units())
ADA = badges.Repository("ada", "loaders", "main")
WHEEL = "nbloader_torch-1-py3-none-any.whl"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
"""pip reads the last one as "build isolation: no"."""
COLAB = """
import multiprocessing  # from here on, new processes start in the folder of this moment
import sys
import types

output = types.ModuleType("google.colab.output")
output.enable_custom_widget_manager = lambda: None
output._widgets = types.SimpleNamespace(_installed_url="https://manager")
sys.modules["google.colab"] = types.ModuleType("google.colab")
sys.modules["google.colab.output"] = output
"""
"""What the kernel of Colab has, as far as nbloader and anywidget use it."""
WHAT_IS_THERE = """
import json
from concurrent.futures import ProcessPoolExecutor
import checks
import nbloader
from checks.worker_side import Straggler

with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool:
    length = pool.submit(len, Straggler(8)).result()
print(json.dumps([nbloader.__file__, checks.__file__, length]))
"""

unit = pytest.mark.unit
each = pytest.mark.parametrize("path", UNITS, ids=lambda p: p.stem)


def hand_out(*arguments):
    return subprocess.run(
        [sys.executable, COURSE / "instructor.py", *map(str, arguments)],
        env=os.environ | OFFLINE,
        capture_output=True,
        text=True,
        check=False,
    )


def modules(package):
    return {path.relative_to(package) for path in package.rglob("*.py")}


@unit
@each
def test_a_notebook_begins_with_badges_that_open_it(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    made = ADA.badged(notebook, path.name, WHEEL)
    nbformat.validate(made)
    first, second, *others = made["cells"]
    assert re.findall(r"\]\((.*?)\)\]\((.*?)\)", "".join(first["source"])) == [
        (
            "https://colab.research.google.com/assets/colab-badge.svg",
            f"https://colab.research.google.com/github/ada/loaders/blob/main/{path.name}",
        ),
        (
            "https://mybinder.org/badge_logo.svg",
            f"https://mybinder.org/v2/gh/ada/loaders/main?urlpath=lab/tree/{path.name}",
        ),
    ]
    assert second["metadata"]["tags"] == ["colab"]
    ids = [cell["id"] for cell in made["cells"]]
    assert len({*ids}) == len(ids)
    raw = "https://raw.githubusercontent.com/ada/loaders/main/drawings/"
    for before, after in zip(notebook["cells"], others, strict=True):
        drawn = "".join(after["source"]).replace(f"]({raw}", "](drawings/")
        assert drawn == "".join(before["source"])
        assert after | {"source": None} == before | {"source": None}
    text = json.dumps(others)
    assert "](drawings/" not in text
    for drawing in re.findall(rf"\]\({re.escape(raw)}(.*?)\)", text):
        assert (COURSE / "drawings" / drawing).exists()


@unit
@pytest.mark.parametrize(
    "text",
    [
        "ada/loaders",
        "https://github.com/ada/loaders",
        "https://github.com/ada/loaders.git",
        "https://github.com/ada/loaders/",
    ],
)
def test_a_repository_is_named_by_its_owner_and_name_or_by_its_address(text):
    assert badges.Repository.named(text, "main") == ADA


@unit
@pytest.mark.parametrize(
    "text",
    [
        "ada",
        "ada/loaders/main",
        "ada/",
        "/loaders",
        "-ada/loaders",
        "ada/lo aders",
        "ada/loaders\n",
        "ada/{x}",
        "https://github.com/ada/my loaders",
        "https://example.org/ada/loaders",
    ],
)
def test_what_names_no_repository_is_an_error_that_says_what_does(text):
    with pytest.raises(ValueError, match="OWNER/NAME, such as ada/loaders"):
        badges.Repository.named(text, "main")


@unit
@pytest.mark.parametrize("branch", ["", "a b", "unit/1", "-b", "$HOME", "{x}"])
def test_a_branch_that_an_address_or_a_shell_would_misread_is_an_error(branch):
    with pytest.raises(ValueError, match="is no branch that badges can name"):
        badges.Repository.named("ada/loaders", branch)


@unit
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--students", "--github", "ada"], "OWNER/NAME, such as ada/loaders"),
        (["--github", "ada/loaders"], "--github needs --students"),
    ],
)
def test_a_wrong_command_writes_nothing(tmp_path, options, said):
    done = hand_out(*options, tmp_path / "students")
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "students").exists()


@unit
def test_binder_gets_a_python_that_nbloader_supports():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"Programming Language :: Python :: {badges.PYTHON}"' in pyproject


@unit
def test_the_course_needs_no_extra():
    """Binder and Colab get what nbloader depends on, and not its extra packages."""
    for path in [*UNITS, *COURSE.glob("checks/*.py"), *COURSE.glob("key/*.py")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\b(nbloader\.demo|PIL|skimage|ray|pandas)\b", text), path


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The hand-out as a repository, and an environment in which it is ada/loaders."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path_factory.mktemp("published") / "students"
    done = hand_out("--students", folder, "--github", "ada/loaders")
    assert done.returncode == 0, done.stderr
    author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (["init", "--initial-branch=main"], ["add", "."], ["commit", "-m1"]):
        git = ["git", "-C", folder, *author, *command]
        subprocess.run(git, check=True, capture_output=True)
    return folder, os.environ | OFFLINE | {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{folder}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/ada/loaders",
    }


@pytest.mark.slow
def test_on_colab_a_notebook_fetches_and_installs_what_it_needs(published, tmp_path):
    """It is alone in its folder, and runs from top to bottom, with worker processes."""
    folder, env = published
    content, installed = tmp_path / "content", tmp_path / "installed"
    content.mkdir()
    installed.mkdir()
    path = folder / UNITS[0].name
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(COLAB))
    # Who runs the cell again is told nothing and loses nothing.
    notebook.cells.insert(3, nbformat.v4.new_code_cell(notebook.cells[2].source))
    notebook.cells.append(nbformat.v4.new_code_cell(WHAT_IS_THERE))
    nbformat.write(notebook, content / "unit.ipynb")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute"),
            *("--output", "done", content / "unit.ipynb"),
        ],
        env=env | {"PIP_TARGET": str(installed), "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = nbformat.read(content / "done.ipynb", as_version=4).cells
    package, checks, length = json.loads(cells[-1].outputs[-1].text)
    assert package == str(installed / "nbloader" / "__init__.py")
    assert checks == str(content / "loaders" / "checks" / "__init__.py")
    assert length == 8
    assert not cells[3].outputs


@unit
def test_elsewhere_the_cell_for_colab_does_nothing(tmp_path):
    """Also without git, pip and a connection."""
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        f"InteractiveShell().run_cell({ADA.setup(WHEEL)!r}).raise_error()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PATH": "", "HOME": str(tmp_path / "home"), "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert not (tmp_path / "loaders").exists()


@pytest.mark.slow
def test_binder_installs_the_wheel_of_the_repository(published, tmp_path):
    """repo2docker runs pip in the root of the repository.

    It does so before it copies the repository if no path in the file begins with a dot.
    """
    folder, env = published
    files = {p.name: p.read_text() for p in (folder / ".binder").iterdir()}
    assert {*files} == {"requirements.txt", "runtime.txt"}
    (wheel,) = folder.glob("*.whl")
    assert f"./{wheel.name}" in files["requirements.txt"].splitlines()
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-r", ".binder/requirements.txt"],
        cwd=folder,
        env=env | {"PIP_TARGET": str(tmp_path / "installed")},
        capture_output=True,
        check=True,
    )
    assert modules(tmp_path / "installed" / "nbloader") == modules(ROOT / "nbloader")
