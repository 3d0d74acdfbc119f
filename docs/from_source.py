"""A Sphinx extension: parts of the reference that are made from the code, so that they cannot become outdated.

- `{public} exceptions`, `{public} others`: the public names, from their docstrings.
- `{fields} nbloader.metrics.snapshot.Snapshot`: a table of the fields of a record, from their docstrings.
- `{events}`: every event, with such a table.
- `{words} causes`: a table of words and colors that the dashboard shows. The page gives the meanings, `word: meaning`
  one a line. A word that is missing, or that the code does not have, is an error of the build.
- `{remedies}`: the slow lines for which `loader.remedies()` knows something faster.
- `{messages}`: every error message in the source.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ForwardRef, NamedTuple

import vocabulary
from docutils import nodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

import nbloader
from nbloader.events import records
from nbloader.remedies import kinds

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PACKAGE = Path(nbloader.__file__).parent


# ---- nodes ----------------------------------------------------------------------------------------------------------


def inline(text: str) -> list[nodes.Node]:
    """A text in which `code` stands between backticks."""
    parts = re.split(r"`+([^`]+)`+", text)
    made: list[nodes.Node] = []
    for i, part in enumerate(parts):
        if part:
            made.append(nodes.literal(part, part) if i % 2 else nodes.Text(part))
    return made


def table(heads: Sequence[str], rows: Iterable[Sequence[list[nodes.Node]]], classes: Sequence[str] = ()) -> nodes.table:
    """A table whose cells are lists of inline nodes."""
    group = nodes.tgroup(cols=len(heads))
    group += [nodes.colspec(colwidth=1) for _ in heads]
    head, body = nodes.thead(), nodes.tbody()
    head += _row([[nodes.Text(text)] for text in heads])
    body += [_row(cells) for cells in rows]
    group += [head, body]
    return nodes.table("", group, classes=["from-source", *classes])


def _row(cells: Sequence[list[nodes.Node]]) -> nodes.row:
    row = nodes.row()
    row += [nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells]
    return row


def swatch(color: str) -> list[nodes.Node]:
    """A color as a patch with its value."""
    if not color:
        return []
    patch = f'<span class="swatch" style="background: {color}"></span>'
    return [nodes.raw("", patch, format="html"), nodes.literal(color, color)]


# ---- public names ---------------------------------------------------------------------------------------------------


class Public(SphinxDirective):
    """The public names of nbloader from their docstrings: "exceptions", or "others" except `DataLoader`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """One entry per name, in the order of `nbloader.__all__`."""
        directives = []
        for name in nbloader.__all__:
            thing = getattr(nbloader, name)
            is_error = inspect.isclass(thing) and issubclass(thing, Exception)
            if is_error != (self.arguments[0] == "exceptions") or thing is nbloader.DataLoader:
                continue
            kind = "exception" if is_error else "class" if inspect.isclass(thing) else "function"
            directives.append(f".. auto{kind}:: nbloader.{name}\n")
        return self.parse_text_to_nodes("```{eval-rst}\n" + "".join(directives) + "```\n")


# ---- fields of records ----------------------------------------------------------------------------------------------


class Fields(SphinxDirective):
    """The fields of a named tuple or dataclass."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A table of names, types and meanings."""
        module, _, name = self.arguments[0].rpartition(".")
        cls = getattr(importlib.import_module(module), name)
        self.env.note_dependency(str(inspect.getfile(cls)))
        return [fields(cls)]


class Events(SphinxDirective):
    """Every event record of `nbloader.events`, in the order of the source."""

    def run(self) -> list[nodes.Node]:
        """A section per record."""
        self.env.note_dependency(records.__file__)
        made: list[nodes.Node] = []
        for name, cls in vars(records).items():
            if not inspect.isclass(cls) or cls.__module__ != records.__name__:
                continue
            section = nodes.section("", nodes.title(name, name), ids=[nodes.make_id(name)])
            section += [nodes.paragraph("", "", *inline(text)) for text in inspect.getdoc(cls).split("\n\n")]
            section += fields(cls)
            made.append(section)
        return made


def fields(cls: type) -> nodes.table:
    """The fields of a named tuple or dataclass, with their docstrings."""
    docs = ModuleAnalyzer.for_module(cls.__module__).find_attr_docs()
    rows = []
    for field, annotation in cls.__annotations__.items():
        meaning = " ".join(docs.get((cls.__name__, field), [])).strip()
        rows.append([[nodes.literal(field, field)], [nodes.literal("", type_name(annotation))], inline(meaning)])
    return table(["field", "type", "meaning"], rows)


def type_name(annotation: Any) -> str:
    """The annotation of a field as it is written in the source."""
    return str(annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation)


# ---- words and colors -----------------------------------------------------------------------------------------------


class Words(SphinxDirective):
    """Words that the code shows, with their colors, and the meanings that the page gives."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """A table in the order of the page."""
        words = vocabulary.VOCABULARIES[self.arguments[0]]()
        meanings = vocabulary.meanings(self.content)
        if problem := vocabulary.problem(self.arguments[0], meanings):
            raise self.error(problem)
        colored = any(words.values())
        mark = nodes.literal if self.arguments[0] in ("causes", "stages") else nodes.strong  # or words of the language
        rows = [
            [[mark(word, word)], *[swatch(words[word])] * colored, inline(meaning)]
            for word, meaning in meanings.items()
        ]
        return [table(["word", *["color"] * colored, "meaning"], rows)]


# ---- remedies -------------------------------------------------------------------------------------------------------


class Remedies(SphinxDirective):
    """The slow lines that remedies recognize, from the docstrings of their modules."""

    def run(self) -> list[nodes.Node]:
        """A list to unfold, in the order in which the remedies stand."""
        self.env.note_dependency(kinds.__file__)
        items = [nodes.list_item("", nodes.paragraph("", "", *inline(text))) for text in slow_lines()]
        head = f"<details><summary>{len(items)} kinds of slow lines</summary>"
        return [
            nodes.raw("", head, format="html"),
            nodes.bullet_list("", *items),
            nodes.raw("", "</details>", format="html"),
        ]


def slow_lines() -> list[str]:
    """What is slow about the lines of each remedy, in the order of `REMEDIES`."""
    return [inspect.getdoc(sys.modules[type(remedy).__module__]) or "" for remedy in kinds.REMEDIES]


# ---- error messages -------------------------------------------------------------------------------------------------


class Message(NamedTuple):
    """An error that the source raises."""

    error: str
    """Name of its class."""
    template: str
    """Its text, with `…` for each value."""
    path: str
    """The module, below nbloader/."""


def template(node: ast.expr) -> str | None:
    """The text of a string expression with `…` for each value; None if it is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        text = "".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values)  # type: ignore[misc]
        return re.sub(r"…( ?…)+", "…", text)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = (template(node.left), template(node.right))
        return "".join(part or "…" for part in parts) if any(parts) else None
    return None


def messages() -> list[Message]:
    """Every error that is raised with a text, by class and text."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else None
            if not isinstance(call, ast.Call) or not call.args:
                continue
            text = template(call.args[0])
            if text and text.strip("… "):
                name = ast.unparse(call.func).rpartition(".")[2]
                found.add(Message(name, text, path.relative_to(PACKAGE).as_posix()))
    return sorted(found)


class Messages(SphinxDirective):
    """Every error message, one section per class."""

    def run(self) -> list[nodes.Node]:
        """A table per class of error."""
        made: list[nodes.Node] = []
        for error, group in itertools.groupby(messages(), key=lambda m: m.error):
            section = nodes.section("", nodes.title(error, error), ids=[nodes.make_id(f"messages-{error}")])
            rows = [[[nodes.Text(m.template)], [nodes.literal(m.path, m.path)]] for m in group]
            section += table(["message", "raised in"], rows, ["messages"])
            made.append(section)
        return made


def document_call(_app: Sphinx, what: str, _name: str, thing: Any, _options: Any, lines: list[str]) -> None:
    """Document a function that is an instance with `__call__`, such as `nbloader.explore`, by that method."""
    if what == "function" and not inspect.isroutine(thing) and not hasattr(thing, "__wrapped__"):
        lines[:] = [*(inspect.getdoc(type(thing).__call__) or "").splitlines(), ""]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("public", Public)
    app.add_directive("fields", Fields)
    app.add_directive("events", Events)
    app.add_directive("words", Words)
    app.add_directive("remedies", Remedies)
    app.add_directive("messages", Messages)
    app.connect("autodoc-process-docstring", document_call, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
