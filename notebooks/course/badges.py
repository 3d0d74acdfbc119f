"""What a hand-out needs so that its notebooks open on Colab and Binder.

The instructor publishes the hand-out as a public repository on GitHub. The badges name
that repository, and it contains nbloader as a wheel, since nbloader is on no index.

- Colab opens a notebook and nothing else. A cell fetches the rest, and installs it.
- Binder reads `.binder`, with repo2docker, and opens JupyterLab in the repository.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
ON_GITHUB = re.compile(
    r"(?:https://github\.com/)?(?P<owner>\w[\w-]*)/(?P<name>[\w.][\w.-]*?)(?:\.git)?/?",
    re.ASCII,
)
BRANCH = re.compile(r"\w[\w.-]*", re.ASCII)
PYTHON = "3.11"
"""The Python that Binder installs. nbloader is developed with this version."""
SETUP = """\
# On Colab, this fetches the course and installs nbloader. Elsewhere it does nothing.
import os
import sys

if "google.colab" in sys.modules and not os.path.isdir("checks"):
    !git clone --quiet --depth 1 --branch {branch} {address}
    %cd {name}
    %pip install --quiet ./{wheel}
    sys.path.insert(0, os.getcwd())  # worker processes need the full path
"""
REQUIREMENTS = """\
# Binder has no GPU, and these builds of torch are smaller.
--extra-index-url https://download.pytorch.org/whl/cpu
./{wheel}
"""
"""The dot matters: without it, repo2docker runs pip before it copies the repository."""


@dataclass(frozen=True)
class Repository:
    """A public repository on GitHub that holds the hand-out, and nothing above it."""

    owner: str
    name: str
    branch: str

    @classmethod
    def named(cls, text: str, branch: str) -> Repository:
        """The repository that the command line names.

        Raises:
            ValueError: This is not the form of a repository or of a branch.
        """
        found = ON_GITHUB.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} does not name a repository on GitHub. It must have the form"
                " OWNER/NAME, such as ada/loaders. https://github.com/ may precede it"
            )
        if BRANCH.fullmatch(branch) is None:
            raise ValueError(
                f"{branch!r} is no branch that badges can name. Use letters, digits,"
                " '.', '_' and '-'. Colab could take what follows a '/' for a folder"
            )
        return cls(found["owner"], found["name"], branch)

    @property
    def path(self) -> str:
        """The owner and the name."""
        return f"{self.owner}/{self.name}"

    def badges(self, notebook: str) -> str:
        """Two pictures that open a notebook, as Markdown."""
        colab = "https://colab.research.google.com"
        binder = "https://mybinder.org"
        return (
            f"[![Open in Colab]({colab}/assets/colab-badge.svg)]"
            f"({colab}/github/{self.path}/blob/{self.branch}/{notebook})\n"
            f"[![Open in Binder]({binder}/badge_logo.svg)]"
            f"({binder}/v2/gh/{self.path}/{self.branch}?urlpath=lab/tree/{notebook})"
        )

    def setup(self, wheel: str) -> str:
        """The code that makes Colab ready for a notebook."""
        return SETUP.format(
            branch=self.branch,
            address=f"https://github.com/{self.path}",
            name=self.name,
            wheel=wheel,
        )

    def badged(self, notebook: Notebook, file: str, wheel: str) -> Notebook:
        """A copy of a notebook that begins with the badges and the code for Colab.

        Its drawings are read from GitHub: Colab lacks them in a copy that a student has
        saved.
        """
        raw = f"https://raw.githubusercontent.com/{self.path}/{self.branch}/drawings/"
        cells = [
            {
                "cell_type": "markdown",
                "id": "badges",
                "metadata": {},
                "source": self.badges(file).splitlines(keepends=True),
            },
            {
                "cell_type": "code",
                "execution_count": None,
                "id": "colab",
                "metadata": {"tags": ["colab"]},
                "outputs": [],
                "source": self.setup(wheel).rstrip().splitlines(keepends=True),
            },
        ]
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                source = [s.replace("](drawings/", f"]({raw}") for s in cell["source"]]
                cells.append(cell | {"source": source})
            else:
                cells.append(cell)
        return notebook | {"cells": cells}


def publish(notebooks: list[Path], repository: Repository) -> None:
    """Add what Colab and Binder need to notebooks, and to their folder."""
    folder = notebooks[0].parent
    wheel = build_wheel(folder)
    for path in notebooks:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        made = repository.badged(notebook, path.name, wheel)
        text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8")
    binder = folder / ".binder"
    binder.mkdir(exist_ok=True)
    requirements = REQUIREMENTS.format(wheel=wheel)
    (binder / "requirements.txt").write_text(requirements, encoding="utf-8")
    (binder / "runtime.txt").write_text(f"python-{PYTHON}\n", encoding="utf-8")


def build_wheel(folder: Path) -> str:
    """Put a wheel of this clone into a folder, and return its name.

    It is built from a copy: in the clone, setuptools would also pack what an earlier
    build has left in `build/`.

    Raises:
        RuntimeError: pip fails.
    """
    with tempfile.TemporaryDirectory() as temporary:
        source, built = Path(temporary, "source"), Path(temporary, "built")
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "nbloader", source / "nbloader", ignore=unwanted)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*pip, "--wheel-dir", built, source],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                f"pip could not build a wheel of nbloader. Perhaps it could not get"
                f" setuptools, which it downloads for this. It said:\n{done.stderr}"
            )
        (wheel,) = built.glob("*.whl")
        shutil.copy(wheel, folder)
        return wheel.name
