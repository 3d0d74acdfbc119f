"""Checks what can be measured of the style of the documentation: `python docs/prose.py`, a part of `make lint`.

It reads the pages and the markdown cells of the notebooks. Code, tables, quotations, comments and targets of links are
left out. It prints `file:line: what, and what to write instead`.

The figures with % and x must look the same wherever a user sees them. So it also reads the tables, the stored outputs,
and the strings of the programs that print them.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG, LONGEST = 25, 45
"""Words that a sentence may have if nine of ten are shorter, and that no sentence exceeds."""

_IZE = (
    "author|categor|character|emphas|final|general|initial|local|maxim|memor|minim|normal|optim|organ|parallel|priorit"
    "|random|real|recogn|serial|special|summar|synchron|token|util|vector|visual"
)
_PERCENT, _FACTOR = "a number and % without a space: 35%", "a number and x without a space: 14x"
RULES = (
    (rf"\b\w*(?:{_IZE})is(?:e[drs]?|ing|ations?)\b", "American spelling: -ize"),
    (r"\b\w*(?:behavi|col|fav|hon|neighb)our\w*", "American spelling: -or"),
    (r"\b(?:grey|centre|metre|catalogue|licence|defence|artefact|whilst|amongst|fulfil)s?\b", "American spelling"),
    (r"\banalys(?:e|ed|er|ing)\b", "American spelling: analyze"),
    (r"\b(?:cancel|label|model|signal|travel)l(?:ed|ing)\b", "American spelling: one l"),
    (r"\d\s+%", _PERCENT),
    (r"\d\s+x\b(?!\s+\d)", _FACTOR),
    (r";", "two sentences, or a comma"),
    (r"\buntil now\b", "what is true now"),
    (r"\bin mid-epoch\b", "in the middle of an epoch"),
    (r"\bof one's own\b", "your own"),
    (r"\banew\b", "again"),
    (r"\bto and fro\b", "back and forth"),
    (r"\bat the begin\b", "at the beginning"),
    (r"\b(?:crew|outlook)s?\b", "workers, prediction"),
    (r"\bplanted\b", "example, or deliberate"),
    (r"\balso (?:while|if)\b", "even while, even if"),
)
_SPACE, _TIMES = r"(?:[^\S\n]|&nbsp;)", r"[x\u00d7](?![\w:=])"
FIGURES = (
    (rf"[\d}}]{_SPACE}%(?!\s*[\d{{])", _PERCENT),
    (rf"\d\.\d+{_SPACE}{_TIMES}(?=\s*\()", _FACTOR),
    (rf"[\d}}]{_SPACE}{_TIMES}(?!\s*[\d({{$])", _FACTOR),
)
"""The same for texts that also contain code: neither a remainder (`7 % 5`) nor a product (224 x 224) is a fault."""
PROGRAMS = "nbloader", "notebooks/course", "tests/bench"
"""Folders of programs whose texts users see."""
LEFT_OUT = (
    r"\A---\n.*?^---\n",
    r"^ *(`{3,}|~{3,}).*?^ *\1[^\n]*$",
    r"<!--.*?-->",
    r"^ *(?:\||>|:::|:[\w-]+:)[^\n]*$",
    r"^\[[^\]\n]+\]: [^\n]*$",
    r"<[^<>]+>",
    r"(?<=\])\([^)]*\)",
    r"&#?\w+;",
)
_BLOCKS = re.compile(r"^ *(`{3,}|~{3,})([^\n]*).*?^ *\1[^\n]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_BLOCK = re.compile(r"\s*(?:[-*+]|\d+[.)])\s|\s*#+ |\s*$")
_END = re.compile(r"[.!?][\"')*_\]]*$")


def prose(text: str) -> str:
    """Return a text without what is no prose. Each line stays where it is."""
    for pattern in LEFT_OUT:
        text = re.sub(pattern, lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    return _CODE.sub(lambda found: "code" + "\n" * found[0].count("\n"), text)


def cells(notebook: str) -> str:
    """Return the markdown cells of a notebook. Each line stays where it is in the file."""
    return "\n".join(
        json.loads(line.strip().removesuffix(",")).rstrip("\n") if kind == "markdown" else ""
        for line, kind in _notebook_lines(notebook)
    )


def outputs(notebook: str) -> str:
    """Return a notebook without the sources of its cells. Each line stays where it is in the file."""
    return "\n".join("" if kind else line for line, kind in _notebook_lines(notebook))


def _notebook_lines(notebook: str) -> Iterator[tuple[str, str]]:
    """Yield each line of a notebook's file, and the type of the cell whose source it is a part of, or ""."""
    kind, inside = "", False
    for line in notebook.splitlines():
        if found := re.match(r'\s*"cell_type": "(\w+)"', line):
            kind = found[1]
        text = line.strip().removesuffix(",")
        inside = inside and text != "]"
        yield line, kind if inside else ""
        inside = inside or text == '"source": ['


def tables_and_outputs(page: str) -> str:
    """Return a page without its code, but with its tables and with what programs print. Each line stays in place."""
    return _BLOCKS.sub(lambda found: found[0] if found[2] == "text" else "\n" * found[0].count("\n"), page)


def texts(program: str) -> Iterator[tuple[int, str]]:
    """Yield the strings of a Python program and their lines. In an f-string, figures stand for its values."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(map(_part, node.values))


def _part(part: ast.expr) -> str:
    """Return a part of an f-string. A value with digits after the point stays recognizable, a name is no figure."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    if not isinstance(part, ast.FormattedValue) or ast.unparse(part.value).endswith("name"):
        return "name"
    return "0.0" if part.format_spec is not None and "." in ast.unparse(part.format_spec) else "0"


def figures(text: str, first: int = 1) -> list[tuple[int, str]]:
    """Return the figures of a text that are apart from their sign, as lines and texts. `first` is the first line."""
    return sorted(
        {
            (text.count("\n", 0, match.start()) + first, f"{match[0]!r}: {advice}")
            for pattern, advice in FIGURES
            for match in re.finditer(pattern, text)
        }
    )


def figures_of(path: Path) -> list[tuple[int, str]]:
    """Return the figures of a file that are apart from their sign: a page, a notebook, or a program."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return sorted({found for line, string in texts(text) for found in figures(string, line)})
    if path.suffix in (".md", ".ipynb"):
        text = tables_and_outputs(text) if path.suffix == ".md" else outputs(text)
    return figures(text)


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the line and the number of words of each sentence, but not of headings."""
    first, words = 0, 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if words and _BLOCK.match(line):
            yield first, words
            words = 0
        for word in () if line.lstrip().startswith("#") else _BLOCK.sub("", line, count=1).split():
            first = first if words else number
            words += bool(re.search(r"\w", word))
            if words and _END.search(word) and word not in ("e.g.", "i.e.", "vs."):
                yield first, words
                words = 0


def problems(text: str) -> list[tuple[int, str]]:
    """Return what is wrong with the prose of a page, as lines and texts."""
    found = [
        (text.count("\n", 0, match.start()) + 1, f"{match[0]!r}: {advice}")
        for pattern, advice in RULES
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]
    lengths = list(sentences(text))
    long = [(line, words) for line, words in lengths if words > LONG]
    limit = LONG if len(long) > max(1, len(lengths) // 10) else LONGEST
    said = f"split it; {len(long)} of {len(lengths)} sentences have more than {LONG}"
    return sorted(found + [(line, f"{words} words: {said}") for line, words in long if words > limit])


def main() -> None:
    """Check all pages."""
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    notebooks = [*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "notebooks" / "course").glob("*.ipynb")]
    pages += [*sorted((ROOT / "docs").rglob("*.md")), *sorted(notebooks)]
    programs = [path for name in PROGRAMS for ext in ("py", "js") for path in sorted((ROOT / name).rglob(f"*.{ext}"))]
    failed = False
    for path in [*pages, *programs]:
        found = set(figures_of(path))
        if path in pages:
            text = path.read_text(encoding="utf-8")
            found |= set(problems(prose(cells(text) if path.suffix == ".ipynb" else text)))
        for line, problem in sorted(found):
            failed = True
            print(f"{path.relative_to(ROOT).as_posix()}:{line}: {problem}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
