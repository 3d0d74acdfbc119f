"""The documentation names what exists, and its code is code that the tests run.

A code block after `<!-- source: path -->` or `<!-- source: path [region] -->` is a copy of that file, or of its lines
between `# [region]` and `# [end]`. After a change of the file, `python tests/test_docs.py` copies it anew.
"""

from __future__ import annotations

import pathlib
import re
import time

import pytest

from nbloader.cache import sample_cache
from nbloader.cache.digest import SETTLED

unit = pytest.mark.unit
ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
INCLUDE = re.compile(r"(<!-- source: (\S+)(?: \[([\w ]+)\])? -->\n```\w+\n)(.*?)(^```\n)", re.DOTALL | re.MULTILINE)


def prose(page):
    """The text of a page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def code(page):
    """The Python code blocks of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def source(path, region):
    """A file, or one region of it, as it stands in the documentation."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if region:
        (text,) = re.findall(rf"^[^\n\w]*\[{region}\]\n(.*?)^[^\n\w]*\[end\]", text, re.DOTALL | re.MULTILINE)
    return text.strip()


def included(text):
    """The text of a page with fresh copies of its sources."""
    return INCLUDE.sub(lambda found: f"{found[1]}{source(found[2], found[3])}\n{found[5]}", text)


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


@unit
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_code_is_that_of_its_source(page):
    text = page.read_text(encoding="utf-8")
    assert text == included(text), "run python tests/test_docs.py"


@unit
def test_the_table_of_packages_has_the_order_of_the_import_contract():
    contract = re.search(r"^layers = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    layers = [set(re.findall(r"\w+", line)) - {"demo"} for line in contract[1].splitlines()]
    page = prose(ROOT / "docs/architecture.md")
    table = page[page.index("| package | owns |") :].split("\n\n")[0]
    assert [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines()[2:]] == layers


def test_the_example_in_the_readme_runs():
    create, loop, *_others = code(ROOT / "README.md")
    names = {"__name__": "__main__"}
    exec(create.replace("loader.dashboard()", "") + loop, names)
    with names["loader"] as loader:
        assert loader.stats().batches_done == 313


def test_the_example_of_a_cached_function_in_the_readme_runs(tmp_path):
    image = pytest.importorskip("PIL.Image").new("RGB", (40, 30), (1, 2, 3))
    image.save(tmp_path / "photo.png")
    time.sleep(2 * SETTLED)  # a file that was changed just now is not kept
    (example,) = [block for block in code(ROOT / "README.md") if "nbloader.cached" in block]
    names = {"__name__": "__main__", "random_crop": lambda pixels: pixels[:2, :2]}
    exec(example, names)
    photos = names["Photos"]([str(tmp_path / "photo.png")])
    assert photos[0].tolist() == photos[0].tolist() == [[[1, 2, 3]] * 2] * 2
    assert (sample_cache.gauge().hits, sample_cache.gauge().misses) == (1, 1)


if __name__ == "__main__":
    for changed in PAGES:
        changed.write_text(included(changed.read_text(encoding="utf-8")), encoding="utf-8")
