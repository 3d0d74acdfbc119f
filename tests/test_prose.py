"""The linter of the documentation's style finds each fault, and leaves alone what is no prose."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import pytest

pytestmark = pytest.mark.unit

ROOT = pathlib.Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("prose", ROOT / "docs" / "prose.py")
prose = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prose)


def found(text):
    """The lines with problems, and the problems."""
    return prose.problems(prose.prose(text))


@pytest.mark.parametrize(
    "fault",
    [
        "The behaviour.",
        "A grey box.",
        "We initialise it.",
        "It is serialised.",
        "They analyse it.",
        "It was cancelled.",
        "About 35 % of it.",
        "It is 14 x as fast.",
        "One fact; another one.",
        "Until now it failed.",
        "It ends in mid-epoch.",
        "A class of one's own.",
        "It begins anew.",
        "It moves to and fro.",
        "See it at the begin.",
        "The crew.",
        "The outlook.",
        "A planted fault.",
        "It works also while a cell runs.",
        "It works also if it is busy.",
    ],
)
def test_a_fault_is_found_in_its_line(fault):
    ((line, _problem),) = found(f"# Title\n\nThis is fine.\n{fault}\n")
    assert line == 4


@pytest.mark.parametrize(
    "text",
    [
        "The behavior of a gray box: 35% of it, 14x as fast, with 224 x 224 pixels.",
        "```python\na = 1; b = 2\n```",
        "````{note}\n```\na; b\n```\n````",
        "| a; b | 35 % |\n|---|---|",
        "Write `a; b`, or [this](colour;.md).",
        "<!-- a; b -->",
        "> a; b",
        "---\na: 1; 2\n---\n\nText.",
        'A <a id="colour;"></a> mark &amp; text.',
    ],
)
def test_what_is_no_prose_is_left_alone(text):
    assert not found(text)


def test_no_sentence_has_more_than_45_words():
    assert [line for line, _problem in found("Short.\n\n" + "word " * 46 + "end.")] == [3]
    assert not found("Short. " + "word " * 44 + "end.")


def test_one_sentence_in_ten_may_have_more_than_25_words():
    long = "word " * 29 + "end. "
    assert not found("Short. " * 18 + long * 2)
    assert len(found("Short. " * 10 + long * 2)) == 2
    assert not found("- " + "word " * 20 + "\n- " + "word " * 20 + "\n")


def test_the_markdown_cells_of_a_notebook_are_read_in_their_lines():
    notebook = {
        "cells": [
            {"cell_type": "code", "outputs": [], "source": ["a; b\n", "c"]},
            {"cell_type": "markdown", "source": ["Fine.\n", "One; two."]},
        ]
    }
    text = json.dumps(notebook, indent=1)
    ((line, _problem),) = found(prose.cells(text))
    assert "One; two." in text.splitlines()[line - 1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "Fine.\n\n```text\nthe loop waited 99 % of it\n```\n"),
        ("page.md", "\n\n| a | b |\n| 3.9 x (0.7 to 8.3) | 2 |\n"),
        ("page.md", "\n\n\n`3.9 x as fast`\n"),
        ("page.md", "\n\n\n`4 workers: 2.9\N{NO-BREAK SPACE}x (2.6 to 3.1)`\n"),
        ("program.py", "\n\n\n'waited 99 % of it'\n"),
        ("program.py", '\n\n\nf"waited {100 * share:.0f} %"\n'),
        ("program.py", '\n\n\nf"{gain:.1f} x (0.7 to 8.3)"\n'),
        ("program.py", '\n\n\nf"over {limit} x as fast"\n'),
        ("program.py", '\n\n\n"{:.2f} x".format(gain)\n'),
        ("program.js", "\n\n\nconst share = `${value} %`;\n"),
        ("program.js", "\n\n\nconst speed = `${value} \N{MULTIPLICATION SIGN}`;\n"),
        ("program.js", '\n\n\nconst share = "62&nbsp;%";\n'),
    ],
)
def test_a_figure_apart_from_its_sign_is_found_in_whatever_a_user_sees(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert [line for line, _problem in prose.figures_of(tmp_path / name)] == [4]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "99% of it, 3.9x (0.7 to 8.3), `i * 7 % 5`\n\n```python\nrow = 37 % rows  # 2 x 8 x height\n```\n"),
        ("page.md", "| 64 x 3x224x224 | 32 x (8 floats, an int) |\n"),
        ("program.py", "rest = 37 % rows\nf'{height} x {width} pixels, {name} x, {count % 7}, {share:.0%}'\n"),
        ("program.js", "const rest = 37 % 5, size = `${width} x ${height}`, share = `${value}%`;\n"),
    ],
)
def test_remainders_and_products_are_no_faults(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert not prose.figures_of(tmp_path / name)


def test_the_stored_outputs_of_a_notebook_are_read_in_their_lines(tmp_path):
    cell = {"cell_type": "code", "outputs": [{"text": ["3.9x\n", "99 % of it"]}], "source": ["rest = 37 % rows"]}
    notebook = tmp_path / "notebook.ipynb"
    notebook.write_text(json.dumps({"cells": [cell]}, indent=1), encoding="utf-8")
    ((line, _problem),) = prose.figures_of(notebook)
    assert "99 % of it" in notebook.read_text(encoding="utf-8").splitlines()[line - 1]
