"""Checks what can be measured of the style of the documentation: `python docs/prose.py`, a part of `make lint`.

It reads the pages and the markdown cells of the notebooks. Code, tables, quotations, comments and targets of links are
left out. It prints `file:line: what, and what to write instead`.
"""

from __future__ import annotations

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
RULES = (
    (rf"\b\w*(?:{_IZE})is(?:e[drs]?|ing|ations?)\b", "American spelling: -ize"),
    (r"\b\w*(?:behavi|col|fav|hon|neighb)our\w*", "American spelling: -or"),
    (r"\b(?:grey|centre|metre|catalogue|licence|defence|artefact|whilst|amongst|fulfil)s?\b", "American spelling"),
    (r"\banalys(?:e|ed|er|ing)\b", "American spelling: analyze"),
    (r"\b(?:cancel|label|model|signal|travel)l(?:ed|ing)\b", "American spelling: one l"),
    (r"\d\s+%", "a number and % without a space: 35%"),
    (r"\d\s+x\b(?!\s+\d)", "a number and x without a space: 14x"),
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
    lines, kind, inside = [], "", False
    for line in notebook.splitlines():
        if found := re.match(r'\s*"cell_type": "(\w+)"', line):
            kind = found[1]
        text = line.strip().removesuffix(",")
        inside = inside and text != "]"
        lines.append(json.loads(text).rstrip("\n") if inside and kind == "markdown" else "")
        inside = inside or text == '"source": ['
    return "\n".join(lines)


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
    failed = False
    for path in [*pages, *sorted((ROOT / "docs").rglob("*.md")), *sorted(notebooks)]:
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        for line, problem in problems(prose(cells(text) if path.suffix == ".ipynb" else text)):
            failed = True
            print(f"{name}:{line}: {problem}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
