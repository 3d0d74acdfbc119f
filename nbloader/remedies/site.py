"""A slow line in its function: what it calls, and the function with the line rewritten.

HotLine -> locate() -> Site -> a remedy looks at its calls -> Site.rewritten() -> source of the function

A lambda is looked at as the function that could be written instead of it. A function of a library is looked at if users
can pass their own one in its place (`REPLACEABLE`).
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from nbloader._util.attributes import attributes_of
from nbloader.cache.cached_function import CachedFunction
from nbloader.events.stack_samples import CodeLine
from nbloader.metrics.hot_lines import HotLine
from nbloader.remedies.calls import Returned
from nbloader.workers.reachable import reachable

_LruCache: Any = type(functools.lru_cache(len))
UNKNOWN: Any = object()
"""What a name refers to if that is only known while the function runs."""
LAMBDA = "<lambda>"
NAMED = "applied"
"""Name of the function that is written instead of a lambda."""
REPLACEABLE = {(str(Path("torchvision/datasets/folder.py")), "pil_loader"): "ImageFolder(..., loader={})"}
"""Functions of libraries, as file and name, and how users can pass their own one instead."""


class Facts(NamedTuple):
    """What is known about the samples of a dataset."""

    picture: tuple[int, int] | None = None
    """Width and height of the largest picture in a sample; None if a sample has none."""
    samples: int = 0
    """Number of samples; 0 if it is not known."""
    nbytes: int = 0
    """Size of a sample's arrays, or of its pickle if it has none, bytes."""
    floats: int = 0
    """The part of `nbytes` that is floating point."""
    blas_threads: int | None = None
    """Number of threads of linear algebra in a worker that has produced a sample; None if it is not known."""
    opencv_threads: int | None = None
    """The same for OpenCV."""
    other_threads: float = 0.0
    """Share of the CPU time for a sample in threads other than the one that produces it."""
    returned: tuple[Returned, ...] = ()
    """What functions of the user have returned."""
    calls: Mapping[tuple[str, int], int] = {}
    """Number of calls of each function of the user for a sample, by file and first line."""
    seconds: float = 0.0
    """Time to produce a sample; 0 if it was not measured."""


NO_FACTS = Facts()
Node: TypeAlias = ast.expr | ast.stmt


class Edit(NamedTuple):
    """A piece of code that is replaced, or before which code is inserted."""

    node: ast.expr | ast.stmt
    text: str
    """The new code. The lines of a statement after the first one are indented as the statement is."""
    before: bool = False
    """Whether the code is inserted before the node, which is a statement then."""


class Imported(NamedTuple):
    """A module that rewritten code uses."""

    name: str
    """Its name in the user's code."""
    helper: str
    """The import statement, if the user's code does not import it; otherwise ""."""


@dataclass(frozen=True, eq=False)
class Site:
    """A slow line, and the function that contains it."""

    line: HotLine
    function: FunctionType
    source: str
    """The function's source, without the indentation of its first line."""
    tree: ast.FunctionDef | ast.AsyncFunctionDef
    """The function. Line numbers count from 1 at the first line of `source`."""
    number: int
    """Number of the slow line in `source`, from 1."""
    facts: Facts = NO_FACTS
    owner: Any = None
    """The object whose method the function is; None if there is none, or if it was not found."""
    is_kept: bool = False
    """Whether the line runs only for values that are not in a cache yet: its function, or each one that calls it, has a
    decorator such as `functools.lru_cache` or `nbloader.cached`."""

    @property
    def paste(self) -> str:
        """Where to put the function if that is not where it stands now, as a sentence; otherwise ""."""
        if self.function.__name__ == LAMBDA:
            return f" Use {NAMED} in place of the lambda."
        passed = _replaceable(self.line.file, self.line.function)
        return f" Pass it: {passed.format(self.tree.name)}." if passed else ""

    @property
    def in_class(self) -> str:
        """Name of the class whose method the function is; "" if it is none."""
        if self.owner is None:
            return ""
        classes = type(self.owner).__mro__
        return next((c.__name__ for c in classes if any(one is self.function for one in vars(c).values())), "")

    @property
    def body(self) -> Iterator[ast.AST]:
        """All nodes of the function."""
        return ast.walk(self.tree)

    @property
    def nodes(self) -> Iterator[ast.AST]:
        """The nodes that are, at least in part, on the slow line; of statements with a body, only their first lines."""
        for node in self.body:
            if isinstance(node, ast.expr) and node.lineno <= self.number <= (node.end_lineno or node.lineno):
                yield node

    def calls(self, *targets: str, anywhere: bool = False) -> list[ast.Call]:
        """Return the calls of some functions.

        Args:
            targets: Such as "numpy.load" or "PIL.Image.open". The names that the user's code gives them do not matter.
            anywhere: Whether calls on other lines of the function count, too.
        """
        found = [node for node in (self.body if anywhere else self.nodes) if isinstance(node, ast.Call)]
        wanted = [obj for target in targets if (obj := _named(target)) is not UNKNOWN]
        return [call for call in found if any(self.target(call.func) is obj for obj in wanted)]

    def methods(self, *names: str, anywhere: bool = False) -> list[ast.Call]:
        """Return the calls of methods with some names, of objects that are known only while the function runs."""
        found = [node for node in (self.body if anywhere else self.nodes) if isinstance(node, ast.Call)]
        return [
            call for call in found
            if isinstance(call.func, ast.Attribute) and call.func.attr in names and self.target(call.func) is UNKNOWN
        ]  # fmt: skip

    def target(self, node: ast.expr) -> Any:
        """Return what a name, or an attribute of a module or class, refers to; `UNKNOWN` if that is not certain."""
        if isinstance(node, ast.Name):
            if node.id in self.function.__code__.co_varnames or node.id in self.names_inside:
                return UNKNOWN
            cells = dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))
            if node.id in cells:
                try:
                    return cells[node.id].cell_contents
                except ValueError:  # it is not assigned yet
                    return UNKNOWN
            return self.function.__globals__.get(node.id, getattr(builtins, node.id, UNKNOWN))
        return self._member(node) if isinstance(node, ast.Attribute) else UNKNOWN

    @functools.cached_property
    def names_inside(self) -> frozenset[str]:
        """The variables of comprehensions, lambdas and functions inside the function."""
        inner = (ast.comprehension, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [
            node
            for outer in self.body
            if isinstance(outer, inner) and outer is not self.tree
            for node in ast.walk(outer.target if isinstance(outer, ast.comprehension) else outer)
        ]
        stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        return frozenset(stored | {node.arg for node in nodes if isinstance(node, ast.arg)})

    def _member(self, node: ast.Attribute) -> Any:
        """Return what an attribute of the method's object, or of a module or class, refers to."""
        if self.owner is not None and isinstance(node.value, ast.Name) and node.value.id == self.instance:
            return attributes_of(self.owner).get(node.attr, getattr(type(self.owner), node.attr, UNKNOWN))
        owner = self.target(node.value)
        return getattr(owner, node.attr, UNKNOWN) if isinstance(owner, (ModuleType, type)) else UNKNOWN

    @property
    def instance(self) -> str:
        """The name of the method's first argument; "" if it has none."""
        names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
        return names[0] if names else ""

    def local(self, node: ast.AST) -> list[str]:
        """Return the names in an expression that are variables of the function, in the order of their first use."""
        own = {*self.function.__code__.co_varnames, *self.function.__code__.co_cellvars}
        bound = {
            name.id
            for inner in ast.walk(node)
            if isinstance(inner, ast.comprehension)
            for name in ast.walk(inner.target)
            if isinstance(name, ast.Name)
        }
        names = [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]
        return [name for name in dict.fromkeys(names) if name in own and name not in bound]

    def module(self, module: str, name: str) -> Imported:
        """Return how to refer to a module, before the function.

        Args:
            module: Such as "numpy".
            name: Such as "np", for the import statement if the user's code has no name for the module.
        """
        for key, value in self.function.__globals__.items():
            if isinstance(value, ModuleType) and value.__name__ == module:
                return Imported(key, "" if self._is_imported_before(key) else _import(module, key))
        return Imported(name, _import(module, name))

    def _is_imported_before(self, name: str) -> bool:
        """Whether a global name is not imported only after the function, as by code that was pasted there."""
        code = self.function.__code__
        statement = re.compile(rf"(?:import|from)\b.*\b{re.escape(name)}\b")
        lines = linecache.getlines(code.co_filename)
        imports = [number for number, line in enumerate(lines, 1) if statement.match(line)]
        return not imports or imports[0] < code.co_firstlineno

    def size(self, node: ast.expr) -> tuple[int, int] | None:
        """Return the value of a constant (width, height), also if it is a global variable; None if it is not known."""
        value = self.target(node) if isinstance(node, ast.Name) else constant_of(node)
        if isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(side, int) for side in value):  # noqa: PLR2004
            return value[0], value[1]
        return None

    def is_fixed(self, call: ast.Call) -> bool:
        """Whether the arguments of a call are the same for all samples: constants, globals, attributes of `self`.

        A generator, such as `__iter__`, may make the call once for many samples: then this is False.
        """
        own = {self.instance} if self.owner is not None else set()
        inner = [node for part in (*call.args, *call.keywords) for node in ast.walk(part)]
        computed = any(isinstance(node, (ast.Call, ast.Subscript)) for node in inner)
        once = inspect.isgeneratorfunction(self.function)
        return own.issuperset(self.local(call)) and not computed and not once

    def in_loop_or_lambda(self, node: ast.AST) -> bool:
        """Whether a node is inside a comprehension or a lambda, so that no statement can precede it."""
        kinds = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
        return any(isinstance(outer, kinds) and node in set(ast.walk(outer)) for outer in self.body)

    @property
    def is_in_loop(self) -> bool:
        """Whether the line runs once for each step of a loop."""
        loops = (ast.For, ast.While)
        return any(isinstance(one, loops) and one.lineno < self.number <= (one.end_lineno or 0) for one in self.body)

    def loops_around(self, node: ast.AST) -> int:
        """Return the number of loops and comprehensions of the function that a node is inside."""
        kinds = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
        return sum(isinstance(outer, kinds) and node in set(ast.walk(outer)) for outer in self.body)

    def calls_kept(self, node: ast.AST) -> bool:
        """Whether a node calls a function that keeps what it has returned."""
        return any(isinstance(inner, ast.Call) and self.keeps(inner) for inner in ast.walk(node))

    def keeps(self, call: ast.Call) -> bool:
        """Whether a call is one of a function that keeps what it has returned."""
        return keeps(self.target(call.func))

    def text(self, node: ast.AST) -> str:
        """Return the source of a node."""
        return ast.get_source_segment(self.source, node) or ast.unparse(node)

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that contains a node."""
        around = [stmt for stmt in self.body if isinstance(stmt, ast.stmt) and node in set(ast.walk(stmt))]
        return min(around, key=lambda stmt: sum(1 for _ in ast.walk(stmt)))

    def rewritten(self, *edits: Edit, part: tuple[Node, Node] | None = None) -> str:
        """Return the source of the function with some nodes replaced, which do not overlap.

        Args:
            edits: What is replaced.
            part: The first and the last node of the part to return; None for the whole function. All edits are inside.
        """
        lines = self.source.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line.encode()))
        data = self.source.encode()  # columns count bytes
        in_order = sorted(edits, key=lambda edit: (edit.node.lineno, edit.node.col_offset, not edit.before))
        for node, text, before in reversed(in_order):
            begin = starts[node.lineno - 1] + node.col_offset
            end = begin if before else starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            code = f"{text}\n" if before else text
            if isinstance(node, ast.stmt):
                code = code.replace("\n", "\n" + " " * node.col_offset)
            data = data[:begin] + code.encode() + data[end:]
        if part is None:
            return data.decode()
        first, last = part
        rest = starts[-1] - starts[(last.end_lineno or last.lineno) - 1] - (last.end_col_offset or 0)
        return data[starts[first.lineno - 1] + first.col_offset : len(data) - rest].decode()


def _import(module: str, name: str) -> str:
    return f"import {module}" if module == name else f"import {module} as {name}"


def constant_of(node: ast.expr) -> Any:
    """Return the value of a literal; `UNKNOWN` for other code."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNKNOWN


def _named(target: str) -> Any:
    """Return the function or class with a full name, such as "numpy.load"; `UNKNOWN` if its module is not imported."""
    module, _dot, name = target.rpartition(".")
    return getattr(sys.modules.get(module or "builtins"), name, UNKNOWN)


def locate(line: HotLine, roots: Sequence[Any], facts: Facts = NO_FACTS) -> Site | None:
    """Find the function that contains a line.

    Args:
        line: The line.
        roots: The dataset, the collate function and the like, from which the function is reachable.
        facts: What is known about the samples.

    Returns:
        The line in its function; None if the function or its source is not found.
    """
    if _replaceable(line.file, line.function):
        found = _in_library(line)
        return None if found is None else site_of(found, line, facts)
    site = _found(reachable(*roots, closed=keeps), line, facts)
    if site is not None:
        return site
    kept = _found(reachable(*roots), line, facts)
    return None if kept is None else replace(kept, is_kept=True)


def _found(objects: Iterator[Any], line: HotLine, facts: Facts) -> Site | None:
    before: list[Any] = []
    for obj in objects:
        if isinstance(obj, FunctionType) and _contains(obj, line):
            owner = next((one for one in before if _has_method(type(one), obj)), None)
            return site_of(obj, line, facts, owner)
        before.append(obj)
    return None


def keeps(obj: Any) -> bool:
    """Whether an object is a function, or a property, that keeps what it has returned."""
    return isinstance(obj, (_LruCache, functools.cached_property, CachedFunction))


def _has_method(cls: type, function: FunctionType) -> bool:
    return any(vars(base).get(function.__name__) is function for base in cls.__mro__)


def replaceable(stack: Sequence[CodeLine]) -> CodeLine | None:
    """Return the line of a function in `REPLACEABLE` on a stack; None if there is none."""
    return next((line for line in stack if _replaceable(line.file, line.function)), None)


def _replaceable(file: str, function: str) -> str:
    return next((how for (end, name), how in REPLACEABLE.items() if name == function and file.endswith(end)), "")


def _in_library(line: HotLine) -> FunctionType | None:
    for module in list(sys.modules.values()):
        found = getattr(module, line.function, None) if getattr(module, "__file__", None) == line.file else None
        if isinstance(found, FunctionType):
            return found
    return None


def _contains(function: FunctionType, line: HotLine) -> bool:
    code = function.__code__
    if code.co_filename != line.file or getattr(code, "co_qualname", function.__qualname__) != line.function:
        return False
    numbers = [number for _start, _end, number in code.co_lines() if number is not None]
    return min(numbers) <= line.line <= max(numbers)


def site_of(function: FunctionType, line: HotLine, facts: Facts = NO_FACTS, owner: Any = None) -> Site | None:
    """Return a line of a function as a site; None if the function has no source."""
    if function.__name__ == LAMBDA:
        return _of_lambda(function, line, facts)
    try:
        lines, first = inspect.getsourcelines(function)
        source = textwrap.dedent("".join(lines))
        (tree,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if not isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    return Site(line, function, source, tree, line.line - first + 1, facts, owner)


def _of_lambda(function: FunctionType, line: HotLine, facts: Facts) -> Site | None:
    """Write a lambda as a function of two lines, whose second one is the slow line; None if it is not found."""
    code = function.__code__
    try:
        lines, _first = inspect.findsource(function)
        nodes = list(ast.walk(ast.parse("".join(lines))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    names = code.co_varnames[: code.co_argcount]
    found = {
        ast.unparse(node): node
        for node in nodes
        if isinstance(node, ast.Lambda)
        and node.lineno == code.co_firstlineno
        and tuple(arg.arg for arg in (*node.args.posonlyargs, *node.args.args)) == names
        and set(code.co_names) <= {getattr(inner, "id", getattr(inner, "attr", "")) for inner in ast.walk(node)}
    }
    if len(found) != 1:  # two lambdas in a line that look alike
        return None
    (node,) = found.values()
    source = f"def {NAMED}({ast.unparse(node.args)}):\n    return {ast.unparse(node.body)}\n"
    tree: Any = ast.parse(source).body[0]
    return Site(line, function, source, tree, 2, facts)
