"""For instructors: the notebooks of the course with the key filled in, or without the key.

    python instructor.py ../../build/key    write the notebooks, with the key in the answer cells, into a folder
    python instructor.py --students ../../build/students    write what students get: the notebooks without the key
    python instructor.py --students ../../build/students --github ada/loaders    also make them work on Colab and Binder

The text of the course is stored once, in the students' notebooks, and the answers once, in `key/`. A file there
consists of cells: `# %% window` begins the answer to the cell `window` of the notebook, and `# %% window | mistake:
... | hint: ...` a wrong answer that students give, with words of the hint that the check then prints. `# %% window |
also right: ...` begins another answer that the check accepts. A comment below `# %% window-explain` is the model answer
to a prompt "Explain ...", for the markdown cell below the prompt.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import badges

COURSE = Path(__file__).resolve().parent
HEAD = re.compile(
    r"^# %% (?P<cell>[\w-]+)(?: \| mistake: (?P<what>.*?) \| hint: (?P<hint>.*?)| \| also right: (?P<how>.*?))?$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Mistake:
    """A wrong answer."""

    what: str
    """What is wrong with it."""
    hint: str
    """Words of the hint that the check prints."""
    source: str
    """The code of the answer cell."""


@dataclass(frozen=True)
class Alternative:
    """Another right answer."""

    how: str
    """How it differs from the key."""
    source: str
    """The code of the answer cell."""


@dataclass(frozen=True)
class Answer:
    """The key to one answer cell."""

    source: str
    """The code that the cell should hold, or a comment if it is a markdown cell."""
    mistakes: tuple[Mistake, ...] = ()
    alternatives: tuple[Alternative, ...] = ()


def units() -> dict[Path, Path]:
    """Each notebook of the course and the file with its key."""
    return {
        path: COURSE / "key" / f"unit_{int(path.name[:2])}.py"
        for path in sorted(COURSE.glob("[0-9]*.ipynb"))
    }


def read_key(path: Path) -> dict[str, Answer]:
    """The answers of a key, by the id of the answer cell.

    Raises:
        ValueError: A heading does not name a cell, or another answer comes before the key's.
    """
    text = path.read_text(encoding="utf-8")
    heads = list(HEAD.finditer(text))
    if len(heads) != text.count("\n# %%"):
        raise ValueError(
            f"{path} has {text.count('# %%')} headings, and {len(heads)} of them can be read"
        )
    answers: dict[str, Answer] = {}
    for head, after in zip(heads, [*heads[1:], None], strict=True):
        source = text[head.end() : after.start() if after else len(text)].strip()
        cell = head["cell"]
        if head["what"] is None and head["how"] is None:
            if cell in answers:
                raise ValueError(f"{path} has two answers to {cell}")
            answers[cell] = Answer(source)
            continue
        if cell not in answers:
            raise ValueError(
                f"{path} has another answer to {cell} before that of the key"
            )
        known = answers[cell]
        if head["what"] is not None:
            mistake = Mistake(head["what"], head["hint"], source)
            answers[cell] = replace(known, mistakes=(*known.mistakes, mistake))
        else:
            alternative = Alternative(head["how"], source)
            answers[cell] = replace(
                known, alternatives=(*known.alternatives, alternative)
            )
    return answers


def filled(notebook: dict[str, Any], key: dict[str, Answer]) -> dict[str, Any]:
    """A copy of a student's notebook with the key in its answer cells, and model answers below "Explain ..."."""
    cells = []
    for cell in notebook["cells"]:
        if is_answer(cell):
            cells.append(
                cell | {"source": key[cell["id"]].source.splitlines(keepends=True)}
            )
        elif is_explanation(cell):
            cells.append(
                cell
                | {"source": model_answer(key[cell["id"]]).splitlines(keepends=True)}
            )
        else:
            cells.append(cell)
    return notebook | {"cells": cells}


def model_answer(answer: Answer) -> str:
    """The text for a cell that holds an explanation."""
    return "**Model answer.** " + re.sub("^# ?", "", answer.source, flags=re.MULTILINE)


def is_answer(cell: dict[str, Any]) -> bool:
    """Whether students write into this cell."""
    return "answer" in cell["metadata"].get("tags", ())


def is_explanation(cell: dict[str, Any]) -> bool:
    """Whether students explain something in this cell."""
    return "explain" in cell["metadata"].get("tags", ())


def is_check(cell: dict[str, Any]) -> bool:
    """Whether this cell checks an answer."""
    return "check" in cell["metadata"].get("tags", ())


def main() -> None:
    """Write the notebooks into the folder that the command line names, with what they need beside them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--students", action="store_true", help="leave the key out")
    parser.add_argument(
        "--github",
        metavar="OWNER/NAME",
        help="the public repository that will hold what is written",
    )
    parser.add_argument(
        "--branch", default="main", help="its branch (default: %(default)s)"
    )
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    if asked.github and not asked.students:
        parser.error("--github needs --students: the key should not be published")
    try:
        repository = (
            badges.Repository.named(asked.github, asked.branch)
            if asked.github
            else None
        )
    except ValueError as error:
        parser.error(str(error))
    to, with_key = asked.folder, not asked.students
    to.mkdir(parents=True, exist_ok=True)
    for path, key in units().items():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if with_key:
            notebook = filled(notebook, read_key(key))
        (to / path.name).write_text(
            json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    for folder in ("checks", "drawings"):
        shutil.copytree(
            COURSE / folder,
            to / folder,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    if repository:
        badges.publish([to / path.name for path in units()], repository)
    print(f"{len(units())} notebooks {'with' if with_key else 'without'} the key: {to}")


if __name__ == "__main__":
    main()
