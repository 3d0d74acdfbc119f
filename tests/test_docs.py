"""The documentation names what exists, and its code is code that the tests run.

The Python blocks of a guide are run one after the other, except one after `<!-- run by tests/file.py -->`, which needs
what that test provides. The examples of docs/extend.md are files of their own, which other tests run. A text block
after `<!-- message: path -->` quotes messages of that module of nbloader, with `…` for each value. Text blocks after
`<!-- output -->` are together all that the blocks of the page print. A block after `<!-- needs package -->` is a
program of its own, and is run with that package.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest
import torch

from nbloader import DataLoader
from nbloader.diagnose.causes import BY_NAME

unit = pytest.mark.unit
ROOT = pathlib.Path(__file__).parents[1]
SITE = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *SITE.rglob("*.md")])
GUIDES = sorted(SITE.rglob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
WIDTH = 88
"""Columns of the code that readers see: the site and Colab show it in a narrow column."""
RUN_BY = re.compile(r"<!-- run by (\S+) -->\n```python\n.*?^```\n", re.DOTALL | re.MULTILINE)
MESSAGE = re.compile(r"<!-- message: (\S+) -->\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NEEDS = re.compile(
    r"<!-- needs (\S+) -->\n```python\n(.*?)^```\n\n<!-- output -->\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
RECIPES = pathlib.Path(sys.prefix) / "recipes"
"""The packages of these programs (Makefile)."""
OUTPUT = re.compile(r"<!-- output -->\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def load(path):
    """A module of docs/, which is not a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prose(page):
    """The text of a page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def code(page):
    """The Python code blocks of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def output(page, word):
    """A pattern for what a program of a page prints, by a word of the program; numbers and `…` stand for any others."""
    blocks = re.findall(
        r"```python\n((?:(?!```).)*?)```\n\n<!-- output -->\n```text\n(.*?)```",
        page.read_text(encoding="utf-8"), re.DOTALL,
    )  # fmt: skip
    (text,) = [printed for program, printed in blocks if word in program]
    return re.compile(r"\s+".join(map(any_value, text.split())), re.DOTALL)


def any_value(word):
    """A pattern for a word, whatever its numbers are."""
    if word == "…":
        return ".*"
    if word in ("us", "ms", "s"):
        return "[um]?s"
    parts = re.findall(r"\d[\d.,]*(?<=\d)|\D+", word)
    number = r"(?:<\s)?\d[\d.,]*"
    return "".join(number if part[0].isdigit() else re.escape(part) for part in parts)


def examples(page):
    """The Python code blocks of a page that no other test runs, as one program, and what they print."""
    text = NEEDS.sub("", RUN_BY.sub("", page.read_text(encoding="utf-8")))
    blocks = re.findall(r"^( *)```python\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return "\n".join(textwrap.dedent(block) for _indentation, block in blocks), "".join(OUTPUT.findall(text))


def strings(path):
    """The strings of a module without white space; values within them are `…`."""
    tree = ast.parse((ROOT / "nbloader" / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        if all(isinstance(part, ast.FormattedValue) or isinstance(getattr(part, "value", None), str) for part in parts):
            yield "".join("…" if isinstance(p, ast.FormattedValue) else "".join(p.value.split()) for p in parts)


@unit
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose(page))
    assert not [target for target in targets if not (page.parent / target).exists()]


@unit
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_modules_that_are_named_exist(page):
    """They are named by their path below nbloader/ or below the repository."""
    names = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|js|css|md|ipynb|toml))`", prose(page))
    places = (ROOT / "nbloader", ROOT)
    assert not [name for name in names if not any((place / name).exists() for place in places)]


def too_wide(sources):
    """The lines of code that have more than `WIDTH` columns."""
    return [line for source in sources for line in source.splitlines() if len(line) > WIDTH]


@unit
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_code_of_notebooks_is_at_most_88_columns_wide(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not too_wide("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@unit
@pytest.mark.parametrize("page", [ROOT / "README.md", *GUIDES], ids=lambda p: p.name)
def test_code_of_pages_is_at_most_88_columns_wide(page):
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^( *)```(?:python|py|sh|diff)\b[^\n]*\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    assert not too_wide(textwrap.dedent(block) for _indentation, block in blocks)


@unit
def test_the_examples_of_extensions_are_files_that_tests_run():
    page = (SITE / "extend.md").read_text(encoding="utf-8")
    examples = {(SITE / path).resolve() for path in re.findall(r"\]\((\.\./[^)]+)\)", page)}
    assert {path.stem for path in examples} >= {"sample_rate", "gaze", "test_worker_kinds", "sampler", "test_prefetch"}
    for example in examples - {ROOT / "nbloader/diagnose/causes/sampler.py"}:  # one of CAUSES, as the tests of all are
        tests = [example] if example.stem.startswith("test_") else example.parent.glob("test_*.py")
        names = (f"import {example.stem}", f"from {example.stem} ", example.name)
        found = (test == example or any(name in test.read_text(encoding="utf-8") for name in names) for test in tests)
        assert any(found), example


@unit
def test_the_table_of_packages_has_the_order_of_the_import_contract():
    contract = re.search(r"^layers = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    layers = [set(re.findall(r"\w+", line)) - {"demo"} for line in contract[1].splitlines()]
    page = prose(ROOT / "docs/architecture.md")
    table = page[page.index("| package | owns |") :].split("\n\n")[0]
    assert [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines()[2:]] == layers


@unit
def test_each_cause_of_a_verdict_is_a_leaf_and_a_section_of_the_page_about_slow_loaders():
    causes = BY_NAME.keys() - {"unknown"}
    page = (SITE / "slow.md").read_text(encoding="utf-8")
    leaves = re.findall(r'href="#([\w-]+)"', (SITE / "_static" / "slow.svg").read_text(encoding="utf-8"))
    assert {leaf.replace("-", "_") for leaf in leaves} == causes
    sections = re.findall(r"^<a id=\"([\w-]+)\"></a>\n\n## .+ \(`(\w+)`\)$", page, re.MULTILINE)
    assert {cause for _anchor, cause in sections} == causes
    assert all(anchor.replace("-", "_") == cause for anchor, cause in sections)


@unit
@pytest.mark.parametrize("page", [page for page in PAGES if MESSAGE.search(page.read_text(encoding="utf-8"))], ids=str)
def test_messages_are_those_of_the_source(page):
    for path, block in MESSAGE.findall(page.read_text(encoding="utf-8")):
        known = list(strings(path))
        for line in block.splitlines():
            quoted = "".join(line.split()).strip("…")
            assert any(quoted in text for text in known), f"{path} has no message {line!r}"


@unit
def test_the_documentation_gives_a_meaning_to_each_word_of_the_dashboard_and_no_other():
    vocabulary = load(SITE / "vocabulary.py")
    pages = [(SITE / name).read_text(encoding="utf-8") for name in ("reference/dashboard.md", "diagnosis.md")]
    blocks = re.findall(r"^```\{words\} (\w+)\n(.*?)^```$", "".join(pages), re.DOTALL | re.MULTILINE)
    assert sorted(name for name, _lines in blocks) == sorted(vocabulary.VOCABULARIES)
    for name, lines in blocks:
        assert not vocabulary.problem(name, vocabulary.meanings(lines.splitlines()))
    assert vocabulary.problem("columns", {"Worker": ""}).startswith("columns: no meaning for CPU, Current batch")
    assert "the code has no Age" in vocabulary.problem("columns", dict.fromkeys([*vocabulary.COLUMNS, "Age"]))


@unit
@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_pages_that_the_site_includes_link_only_to_its_pages(name):
    targets = re.findall(r"\]\(([^)]+)\)", prose(ROOT / name))
    assert not [target for target in targets if not target.startswith(("docs/", "https:", "#"))]


@unit
def test_what_is_wrong_with_a_site_is_found(tmp_path):
    navigation = '<nav class="bd-docs-nav"><a href="page.html">1</a></nav>'
    (tmp_path / "home.html").write_text('<nav class="bd-docs-nav"></nav><a href="page.html">1</a>')
    (tmp_path / "page.html").write_text(
        f'{navigation}<h1 id="a">A</h1><a href="#a">1</a><a href="page.html#b">2</a><a href="gone.html">3</a><a href="http://x.y">4</a>'
        '<script src="https://x.y/z.js"></script>'
    )
    assert load(SITE / "check_site.py").problems(tmp_path, ["a", "c"]) == [
        "page.html: links to page.html#b, but there is no such element",
        "page.html: links to gone.html, which does not exist",
        "page.html: loads https://x.y/z.js",
        "home.html: no navigation",
        "c is not in the reference",
    ]


@pytest.mark.parametrize("page", [page for page in GUIDES if examples(page)[0]], ids=lambda p: p.name)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    program, expected = examples(page)
    try:
        exec(compile(program, str(page), "exec"), names)
    finally:
        for value in names.values():
            if isinstance(value, DataLoader):
                value.close()
    if expected:
        assert capsys.readouterr().out == expected


def block_with(page, words):
    """The Python block of a page that contains some words."""
    (block,) = [block for block in code(page) if words in block]
    return block


PROGRAMS = [found for page in GUIDES for found in NEEDS.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("package", "program", "output"), PROGRAMS, ids=[package for package, *_others in PROGRAMS])
def test_a_program_that_needs_a_package_prints_what_its_page_says(package, program, output, tmp_path):
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    path = os.pathsep.join([str(RECIPES), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if f"No module named '{package}'" in run.stderr and not RECIPES.exists():
        pytest.skip(f"{package} is not installed: `make test` installs it")
    assert (run.stdout, run.returncode) == (output, 0), run.stderr


def test_the_example_in_the_readme_runs():
    create, loop, *_others = code(ROOT / "README.md")
    names = {"__name__": "__main__"}
    exec(create.replace("loader.dashboard()", "") + loop, names)
    with names["loader"] as loader:
        assert loader.stats().batches_done == 40


@pytest.mark.parametrize(
    ("page", "word"),
    [
        ("docs/fix/idle-gpu.md", "headspace_epoch"),
        ("docs/fix/worker-killed.md", "except WorkerDiedError"),
        ("docs/how-to/watch-and-control.md", "slowest.waited"),
    ],
)
def test_a_program_prints_what_its_page_says_but_for_the_numbers(page, word, capsys):
    names = {"__name__": "__main__"}
    exec(block_with(ROOT / page, word), names)
    names["loader"].close()
    assert output(ROOT / page, word).fullmatch(capsys.readouterr().out.strip())


@unit
def test_the_arguments_to_remove_for_torchs_loader_are_those_that_only_nbloader_has():
    section = (SITE / "install.md").read_text(encoding="utf-8").split("## Go back")[1].split("\n3. ")[0]
    ours, theirs = (inspect.signature(loader).parameters for loader in (DataLoader, torch.utils.data.DataLoader))
    newer = {"in_order"}  # torch 2.4 has no such argument
    assert set(re.findall(r"`(\w+)`", section)) == (ours.keys() - theirs.keys()) | newer


def test_the_program_for_distributed_training_runs_with_torchrun(tmp_path):
    page = ROOT / "docs/fix/hangs.md"
    (tmp_path / "train.py").write_text(block_with(page, "set_epoch(epoch)"), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "train.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    (printed,) = OUTPUT.findall(page.read_text(encoding="utf-8"))
    ranks = re.findall(r"rank \d: \d+ samples, \d+ batches", run.stdout)  # they write at the same time
    assert sorted(ranks) == printed.splitlines()


def rows(text):
    """The cells of each row of the tables in a text."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


@unit
def test_the_figures_of_the_readme_are_those_of_the_benchmarks():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    measured = rows((SITE / "explanation" / "benchmarks.md").read_text(encoding="utf-8"))
    glance = readme.split("## Benchmarks at a glance")[1].split("\n## ")[0]
    for workload, *figures in rows(glance)[2:]:
        assert any(set(figures) <= set(row) for row in measured), workload
    first = re.search(r"\*\*First batch\.\*\*.*?(?=^- )", readme, re.DOTALL | re.MULTILINE)[0]
    starts = {figure for row in measured if "ms" in row for figure in row}
    assert set(re.findall(r"\d+(?= to | ms)", first)) <= starts


@unit
def test_a_block_that_another_test_runs_is_named_there():
    named = [(page, test) for page in PAGES for test in RUN_BY.findall(page.read_text(encoding="utf-8"))]
    assert named
    for page, test in named:
        assert f"docs/{page.relative_to(SITE)}" in (ROOT / test).read_text(encoding="utf-8")
