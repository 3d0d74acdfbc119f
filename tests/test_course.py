"""The course: the checks accept the key and reject wrong answers, and the notebooks run with the key filled in.

One kernel runs all units, one after the other, since a kernel that imports torch takes longer than most units. After
each check that accepts the key, the wrong answers to its task and other right ones follow, in the state that the
notebook has at that cell.
"""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import nbconvert
import numpy as np
import psutil
import pytest
from jupyter_client import BlockingKernelClient, KernelManager

from nbloader import DataLoader

ROOT = pathlib.Path(__file__).parents[1]
COURSE = ROOT / "notebooks" / "course"
sys.path.insert(0, str(COURSE))
import checks  # noqa: E402
import instructor  # noqa: E402

sys.path.remove(str(COURSE))
UNITS = instructor.units()
TIMEOUT = 90
RESET = """
for _name in [_n for _n in globals() if not _n.startswith("_") and _n not in get_ipython().user_ns_hidden]:
    del globals()[_name]
"""
"""Removes what a unit has defined. (`%reset` also removes `__spec__`, which `multiprocessing` needs.)"""

unit = pytest.mark.unit
each = pytest.mark.parametrize("path", UNITS, ids=lambda p: p.stem)


class Waits:
    """Sample i is i, after a wait."""

    def __init__(self, length, seconds):
        self.length, self.seconds = length, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return i


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code_cells(path):
    return [cell for cell in cells(path) if cell["cell_type"] == "code"]


def is_check(cell):
    return "check" in cell["metadata"].get("tags", ())


def tasks_of(path):
    """The answer cells that each check cell checks: those since the check before."""
    found, since = {}, []
    for cell in code_cells(path):
        if instructor.is_answer(cell):
            since.append(cell["id"])
        elif is_check(cell):
            found[cell["id"]], since = since, []
    assert not since, f"no check follows {since}"
    return found


def names_in(source, kind):
    tree = ast.parse(source)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, kind)}
    if kind is ast.Store:
        names = {n for s in tree.body for n in names_in_statement(s)}
    return names


def names_in_statement(statement):
    """The names that a statement of a cell defines."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


@unit
def test_there_is_a_key_for_each_unit():
    assert UNITS
    assert {*UNITS.values()} == {*(COURSE / "key").glob("unit_*.py")}


@unit
@each
def test_the_notebook_is_that_of_a_student(path):
    """Answer cells are empty, outputs give nothing away, and the first cell says what a reader must know."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert set(notebook["metadata"]) <= {"kernelspec", "language_info", "panels"}
    first, *_others = notebook["cells"]
    assert first["cell_type"] == "markdown"
    for said in ("**What you learn.**", "**What you need.**", "**How long.**"):
        assert said in "".join(first["source"])
    for before, cell in itertools.pairwise(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert cell["execution_count"] is None, cell["id"]
            assert not (cell["outputs"] and (instructor.is_answer(cell) or is_check(cell))), cell["id"]
            folded = "hide-output" in cell["metadata"].get("tags", ())
            hidden = cell["metadata"].get("jupyter", {}).get("outputs_hidden", False)
            assert folded == hidden == bool(cell["outputs"]), f"{cell['id']}: run docs/store_outputs.py"
            assert before["cell_type"] == "markdown" or instructor.is_answer(before), f"{cell['id']} has no text"
        if instructor.is_answer(cell):
            source = "".join(cell["source"])
            assert "..." in source or "NotImplementedError" in source, f"{cell['id']} is not empty"
    for text in ("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"):
        for target in [part.split(")")[0] for part in text.split("](")[1:]]:
            assert target.startswith("http") or (COURSE / target).exists(), target


@unit
@each
def test_the_minutes_are_those_of_the_table(path):
    long = re.search(r"\*\*How long\.\*\* About (two hours|(\d+) minutes)", "".join(cells(path)[0]["source"]))
    row = re.search(rf"{path.stem}\.ipynb\) \| (\d+) \|", (ROOT / "docs" / "course.md").read_text(encoding="utf-8"))
    assert (long[2] or "120") == row[1]


@unit
@each
def test_the_key_answers_each_task_and_has_wrong_answers(path):
    key = instructor.read_key(UNITS[path])
    tasks = tasks_of(path)
    theirs = [cell["id"] for cell in cells(path) if instructor.is_answer(cell) or instructor.is_explanation(cell)]
    assert sorted(key) == sorted(theirs)
    assert sum(len(answer.mistakes) for answer in key.values()) >= 10
    for answers in filter(None, tasks.values()):
        assert any(key[name].mistakes for name in answers), f"{answers} has no wrong answer"


@unit
@each
def test_each_prompt_to_explain_has_a_cell_and_a_model_answer(path):
    key = instructor.read_key(UNITS[path])
    for before, cell in itertools.pairwise(cells(path)):
        prompt = before["cell_type"] == "markdown" and "**Explain**" in "".join(before["source"])
        assert prompt == instructor.is_explanation(cell), cell["id"]
        if prompt:
            assert cell["cell_type"] == "markdown"
            assert cell["source"] == ["*Your explanation:*"], f"{cell['id']} is not empty"
            answer = key[cell["id"]]
            assert not answer.mistakes, f"no check reads {cell['id']}"
            assert not answer.alternatives, f"no check reads {cell['id']}"
            lines = answer.source.splitlines()
            assert lines, f"{cell['id']} is empty"
            assert all(line.startswith("# ") for line in lines), f"{cell['id']} is no comment"


@unit
@each
def test_a_notebook_runs_without_answers(path):
    """What students write is used by checks only, which accept an empty answer; so "Run All" reaches the end."""
    key = instructor.read_key(UNITS[path])
    theirs = set().union(*(names_in(answer.source, ast.Store) for answer in key.values()))
    written = {}
    for cell in code_cells(path):
        source = "".join(cell["source"])
        if instructor.is_answer(cell):
            defined = names_in(source, ast.Store)
            assert defined <= names_in(key[cell["id"]].source, ast.Store), f"{cell['id']}: not in the key"
            theirs |= defined
        elif not is_check(cell):
            used = names_in(source, ast.Load) - set(vars(builtins)) - set(written)
            assert not used & theirs, f"{cell['id']} uses {used & theirs}"
            written |= dict.fromkeys(names_in(source, ast.Store))


@unit
@each
def test_the_instructors_notebook_is_the_students_with_the_key(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    key = instructor.read_key(UNITS[path])
    made = instructor.filled(copy.deepcopy(notebook), key)
    for before, after in zip(notebook["cells"], made["cells"], strict=True):
        expected = "".join(before["source"])
        if instructor.is_answer(before):
            expected = key[before["id"]].source
        elif instructor.is_explanation(before):
            expected = f"**Model answer.** {key[before['id']].source}".replace("# ", "")
        assert "".join(after["source"]) == expected
        assert {**after, "source": None} == {**before, "source": None}


def test_the_instructors_notebooks_are_written_with_what_they_need(tmp_path):
    subprocess.run([sys.executable, COURSE / "instructor.py", tmp_path / "key"], check=True, capture_output=True)
    names = {p.name for p in (tmp_path / "key").iterdir()}
    assert names == {*(p.name for p in UNITS), "checks", "drawings"}


def test_students_get_the_same_notebooks_without_the_key(tmp_path):
    command = [sys.executable, COURSE / "instructor.py", "--students", tmp_path / "students"]
    subprocess.run(command, check=True, capture_output=True)
    assert {p.name for p in (tmp_path / "students").iterdir()} == {*(p.name for p in UNITS), "checks", "drawings"}
    for path in UNITS:
        assert (tmp_path / "students" / path.name).read_bytes() == path.read_bytes()


@unit
class TestSlides:
    """The slides are one notebook, without code cells: a slide, and then its notes."""

    SLIDES = cells(COURSE / "slides.ipynb")

    @staticmethod
    def kind(cell):
        return cell["metadata"]["slideshow"]["slide_type"]

    def test_each_slide_has_one_drawing_or_code_and_notes_with_a_question(self):
        assert {cell["cell_type"] for cell in self.SLIDES} == {"markdown"}
        assert [self.kind(cell) for cell in self.SLIDES] == ["slide", "notes"] * (len(self.SLIDES) // 2)
        told = set()
        for slide, notes in zip(self.SLIDES[::2], self.SLIDES[1::2], strict=True):
            shown, said = "".join(slide["source"]), "".join(notes["source"])
            assert "**Ask:**" in said, slide["id"]
            title = re.match(r"## (\d+)\. ", shown)
            if title is None:
                assert slide["id"] in ("title", "end")
                continue
            assert f"**Unit {title[1]}**" in said, slide["id"]
            told.add(int(title[1]))
            drawings, code = re.findall(r"\]\((.*?)\)", shown), re.findall(r"```python\n(.*?)```", shown, re.DOTALL)
            assert len(drawings) + len(code) == 1, slide["id"]
            assert all((COURSE / drawing).exists() for drawing in drawings), slide["id"]
            for block in code:
                ast.parse(block)
                assert max(map(len, block.splitlines())) <= 64, f"{slide['id']}: a line is wrapped"
        assert {int(path.name[:2]) for path in UNITS} <= told

    def test_nbconvert_makes_slides_of_it(self):
        html, _ = nbconvert.SlidesExporter().from_filename(COURSE / "slides.ipynb")
        assert html.count('class="notes"') == html.count("<section>") // 2 == len(self.SLIDES) // 2


@unit
class TestChecks:
    """What all checks have in common."""

    @staticmethod
    def result(check, *answers):
        lesson = checks.Unit()
        lesson.task("1.1 A task")(check)(*answers)
        return lesson.results["1.1 A task"]

    def test_an_answer_that_is_still_empty_is_not_wrong(self, capsys):
        assert not self.result(lambda answer: "Good.", ...).solved
        assert capsys.readouterr().out.startswith("1.1 A task: Not answered yet")
        self.result(lambda answer: str(checks.attempt(answer)), lambda: ...)
        assert "Not answered yet" in capsys.readouterr().out

    def test_a_number_of_numpy_is_a_number(self, capsys):
        assert self.result(lambda answer: f"{checks.number(answer, 'bytes')} bytes", np.prod((2, 3))).solved
        assert not self.result(lambda answer: f"{checks.number(answer, 'bytes')} bytes", np.bool_(True)).solved

    def test_an_answer_of_another_form_is_wrong_and_no_error_of_the_check(self, capsys):
        assert not self.result(lambda answer: f"Half of it is {answer / 2}.", [1]).solved
        said = capsys.readouterr().out
        assert f": {checks.WRONG} the check cannot use your answer (TypeError" in said

    def test_an_error_in_the_answer_is_shown_with_its_line(self, capsys):
        self.result(lambda answer: str(checks.attempt(answer, 0)), lambda x: 1 / x)
        said = capsys.readouterr().out
        assert "raised ZeroDivisionError: division by zero" in said
        assert "1 / x" in said

    def test_an_answer_that_never_ends_is_given_up(self, capsys):
        import threading

        end = threading.Event()
        self.result(lambda answer: str(checks.attempt(answer, limit=0.05)), end.wait)
        end.set()
        assert "did not end within" in capsys.readouterr().out

    def test_progress_counts_what_is_solved(self, capsys):
        lesson = checks.Unit()
        lesson.task("1.1 First")(lambda answer: "Good.")(1)
        lesson.task("1.2 Second")(lambda answer: "Good.")
        capsys.readouterr()
        lesson.progress()
        assert capsys.readouterr().out.endswith("1 of 2 tasks are solved\n")


@pytest.mark.slow
class TestProof:
    """The end of unit 6 measures loader A again, which may have changed since its check."""

    @staticmethod
    def result(cured):
        from checks import unit_6

        def sick():
            return DataLoader(Waits(160, 0.002), batch_size=4)

        def speedup(before, after):
            return statistics.median(before) / statistics.median(after)

        unit_6.prove(2, speedup, cured, sick)
        return unit_6.unit.results["Proof"]

    def test_a_loader_with_workers_is_a_proof(self):
        result = self.result(lambda: DataLoader(Waits(160, 0.002), batch_size=4, num_workers=4, workers="thread"))
        assert result.solved, result.text
        assert "You predicted 2" in result.text

    @pytest.mark.parametrize(
        ("length", "seconds", "workers", "hint"),
        [
            pytest.param(160, 0.002, 0, "still made one after the other", id="the sick one"),
            pytest.param(40, 0.002, 4, "the batches are not the same", id="a quarter of the data"),
            pytest.param(160, 0.02, 4, "is not faster", id="slower"),
        ],
    )
    def test_another_loader_is_none(self, length, seconds, workers, hint):
        arguments = {"num_workers": workers, "workers": "thread"} if workers else {}
        result = self.result(lambda: DataLoader(Waits(length, seconds), batch_size=4, **arguments))
        assert not result.solved
        assert hint in result.text


@pytest.fixture(scope="module")
def kernel() -> Iterator[BlockingKernelClient]:
    """A client of a kernel that runs in the folder of the course."""
    manager = KernelManager()
    manager.start_kernel(cwd=COURSE, env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"})
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=TIMEOUT)
    process = psutil.Process(manager.provisioner.pid)
    yield client
    family = process.children(recursive=True)
    client.stop_channels()
    manager.shutdown_kernel()
    manager.cleanup_resources()
    manager.context.destroy()
    _gone, left = psutil.wait_procs(family, timeout=TIMEOUT)
    assert not left


def run(client: BlockingKernelClient, cell: str, source: str) -> str:
    """Run a cell and return what it printed; fail if it raised."""
    printed: list[str] = []

    def show(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            printed.append(content["text"])
        elif message["msg_type"] == "error":
            pytest.fail(f"cell {cell} raised:\n{chr(10).join(content['traceback'])}", pytrace=False)

    client.execute_interactive(source, output_hook=show, timeout=TIMEOUT, store_history=False)
    return "".join(printed)


@pytest.mark.slow
@pytest.mark.timeout(400)  # the notebooks run many loaders, one after the other
@pytest.mark.leaves_behind("the kernel, with its processes, runs all units and ends after the last one")
@each
def test_the_checks_accept_the_key_and_reject_wrong_answers(path, kernel):
    key = instructor.read_key(UNITS[path])
    tasks = tasks_of(path)
    run(kernel, "reset", RESET)
    said = ""
    for cell in code_cells(path):
        name = cell["id"]
        source = "".join(cell["source"]).replace("patience = 20 ", "patience = 1 ")  # nobody clicks here
        said = run(kernel, name, key[name].source if instructor.is_answer(cell) else source)
        for line in said.splitlines() if is_check(cell) else ():
            assert f": {checks.RIGHT} " in line, f"the key of {name} is rejected: {line}"
        for answer in tasks.get(name, ()):
            for mistake in key[answer].mistakes:
                run(kernel, answer, mistake.source)
                hint = run(kernel, name, "".join(cell["source"]))
                where = f"{answer}, {mistake.what}: {hint}"
                assert f": {checks.WRONG} " in hint, where
                assert mistake.hint in hint, where
                run(kernel, answer, key[answer].source)
            for other in key[answer].alternatives:
                run(kernel, answer, other.source)
                praise = run(kernel, name, "".join(cell["source"]))
                assert f": {checks.RIGHT} " in praise, f"{answer}, {other.how}: {praise}"
                run(kernel, answer, key[answer].source)
        if tasks.get(name):
            run(kernel, name, "".join(cell["source"]))
    solved, _of, total, *_rest = said.splitlines()[-1].split()
    assert solved == total, said
