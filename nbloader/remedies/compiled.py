"""A loop as a function that Numba compiles: which loops it knows, what becomes an argument, and the code. Pure."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from nbloader.remedies import flow
from nbloader.remedies.changes import changed_in_place, root_of
from nbloader.remedies.frames import COLUMNS_OF
from nbloader.remedies.moved import Arguments, are_whole_lines, text_of
from nbloader.remedies.site import NO_FACTS, UNKNOWN, Edit, Node, Site, site_of

BUILTINS = frozenset({
    "len", "range", "min", "max", "abs", "int", "float", "bool", "round", "sum", "enumerate", "zip", "ord", "divmod",
    "pow",
})  # fmt: skip
"""Built-in functions that Numba compiles."""
NUMPY = frozenset({
    "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "arcsin", "arccos", "arctan",
    "arctan2", "sinh", "cosh", "tanh", "floor", "ceil", "abs", "absolute", "fabs", "sign", "maximum", "minimum",
    "power", "hypot", "zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "arange", "linspace",
    "dot", "sum", "mean", "max", "min", "argmax", "argmin", "any", "all", "isnan", "isfinite", "float32", "float64",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "cumsum", "prod", "std", "var", "median",
    "mod", "square", "floor_divide", "interp", "sort", "argsort", "searchsorted", "bincount", "diff",
})  # fmt: skip
"""Functions of NumPy that Numba compiles, at least with some arguments."""
FUNCTIONS = {"numpy": NUMPY, "numpy.linalg": frozenset({"norm", "det", "inv", "solve"})}
METHODS = frozenset({"append", "sum", "mean", "max", "min", "copy", "any", "all", "argmax", "argmin", "pop", "fill"})
"""Methods that Numba compiles for arrays and lists."""
ATTRIBUTES = frozenset({"shape", "size", "ndim", "T", "real", "imag"})
"""Attributes of arrays that Numba knows."""
NODES = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Break, ast.Continue, ast.Pass, ast.Expr,
    ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Slice,
    ast.Tuple, ast.List, ast.ListComp, ast.Dict, ast.comprehension, ast.Call, ast.Attribute, ast.Return, ast.keyword,
    ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
"""Syntax that Numba compiles."""
SHORT = 16
"""A loop inside another one that has at most so many steps is not worth a function of its own."""


class Compiled(NamedTuple):
    """A function of which a part is compiled."""

    code: str
    """The function, which calls the part."""
    helper: str
    """The part as a function of its own, and the functions that it calls."""


class CannotCompileError(Exception):
    """Numba does not compile the code, as far as that is known here."""


def is_installed() -> bool:
    """Whether Numba is installed."""
    return importlib.util.find_spec("numba") is not None


def compiled_loops(site: Site) -> list[list[Compiled]]:
    """Return the ways to write a function with a loop around the slow line as a compiled function, outer loops first.

    What the code uses may turn out to be nothing that Numba knows, such as the pixels of a picture. An inner loop may
    do without it.
    """
    loops = [
        node for node in site.body
        if isinstance(node, (ast.For, ast.While)) and node.lineno <= site.number <= (node.end_lineno or node.lineno)
    ]  # fmt: skip
    found = []
    for number, loop in enumerate(sorted(loops, key=lambda node: node.lineno)):
        if number and _is_short(loop):
            continue  # a call of a compiled function takes longer
        with contextlib.suppress(CannotCompileError):
            found.append(_ways(site, _region(site, loop)))
    return found


def _is_short(loop: ast.For | ast.While) -> bool:
    """Whether a loop has a few steps, such as `for axis in range(3)`."""
    steps = loop.iter.args if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) else []
    count = steps[0].value if len(steps) == 1 and isinstance(steps[0], ast.Constant) else None
    return isinstance(count, int) and count <= SHORT


def _ways(site: Site, region: Sequence[ast.stmt]) -> list[Compiled]:
    """Pass what is not known to be an array as it is, and, in a second way, as an array."""
    ways = [_compiled(site, region, as_arrays=as_arrays) for as_arrays in (False, True)]
    return list(dict.fromkeys(ways))


def _compiled(site: Site, region: Sequence[ast.stmt], *, as_arrays: bool) -> Compiled:
    called: dict[str, FunctionType] = {}
    for stmt in region:
        _check(site, stmt, called)
    if any(isinstance(node, ast.Return) for node in flow.inside(region)):
        raise CannotCompileError
    if not are_whole_lines(site, region) or inspect.isgeneratorfunction(site.function):
        raise CannotCompileError
    before = [node for node in site.body if isinstance(node, ast.stmt) and node.lineno < region[0].lineno]
    outer = [stmt for stmt in before if stmt is not site.tree]
    available = {*flow.parameters(site), *flow.assigned(_targets(outer)), *flow.global_values(site, region)}
    available -= _own_counters(region)
    given = Arguments(site, region, available, by_contents=False)
    if given.impossible:
        raise CannotCompileError
    passing = _Passing(site, region, as_arrays=as_arrays)
    changed = {root.id for stmt in region for one in changed_in_place(stmt) if (root := root_of(one)) is not None}
    results = [name for name in flow.assigned(region) if name in _live_after(site, region)]
    results += [name for name in given.local if name in changed and name not in results and passing.copies(name)]
    unsure = [name for name in results if name in available and name not in flow.always_assigned(region)]
    if not _dicts(region).isdisjoint(results):  # what Numba returns is no dict of Python
        raise CannotCompileError
    items = _items(site, region, changed)
    replaced = {_place(edit.node) for edit in given.edits} | {_place(node) for one in items for node in one.nodes}
    if any(_has_text_key(node) and _place(node) not in replaced for node in flow.inside(region)):
        raise CannotCompileError
    names = given.names_with(unsure) | {one.name: one.text for one in items}
    whole = {one.container for one in items}.difference(flow.read(_without_items(given.nodes, items)))
    names = {name: text for name, text in names.items() if name not in whole}
    if not (names or results):
        raise CannotCompileError
    name = f"compiled_{site.tree.name.strip('_') or 'loop'}"
    call = f"{name}({', '.join(map(passing.text, names.values()))})"
    edits = [*given.edits, *_renamed(region, called), *_means(site, region)]
    edits += [Edit(node, one.name) for one in items for node in one.nodes]
    edits += passing.arrays(region)
    body = textwrap.indent(text_of(site, region, edits), "    ")
    end = f"\n    return {', '.join(results)}" if results else ""
    functions = "".join(f"compiled_{one} = numba.njit({one}, boundscheck=True)\n\n" for one in called)
    head = f"@numba.njit(boundscheck=True)\ndef {name}({', '.join(names)}):"
    imports = "import numba\n" + (f"{passing.np.helper}\n" if passing.np.helper and passing.uses_numpy else "")
    imports += f"\n{COLUMNS_OF}" if passing.uses_columns else ""
    first = f"{', '.join(results)} = {call}" if results else call
    lines = site.source.splitlines(keepends=True)
    last = region[-1].end_lineno or region[-1].lineno
    code = [*lines[: region[0].lineno - 1], " " * region[0].col_offset + first + "\n", *lines[last:]]
    return Compiled("".join(code), f"{imports}\n{functions}{head}\n{body.rstrip()}{end}\n")


def _region(site: Site, loop: ast.For | ast.While) -> list[ast.stmt]:
    """Return a loop, and the statements right before it from the first one that makes what it fills: a list or dict."""
    body = next(part for node in site.body for part in _bodies(node) if loop in part)
    position = body.index(loop)
    first, names = position, set(flow.read([loop]))
    for number in range(position - 1, -1, -1):
        stmt = body[number]
        if not isinstance(stmt, (ast.Assign, ast.AnnAssign)):
            break
        try:
            _check(site, stmt, {})
        except CannotCompileError:
            break
        is_filled = any(isinstance(one, (ast.List, ast.Dict)) for one in ast.walk(stmt))
        if is_filled and names & set(flow.assigned([stmt])):
            first = number
    return body[first : position + 1]


def _dicts(region: Sequence[ast.stmt]) -> set[str]:
    """Return the variables to which a dict is assigned."""
    made = [node for node in flow.inside(region) if isinstance(getattr(node, "value", None), ast.Dict)]
    return set(flow.assigned(made))


def _bodies(node: ast.AST) -> list[list[ast.stmt]]:
    found = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    return [part for part in found if isinstance(part, list)]


def _targets(stmts: Sequence[ast.stmt]) -> list[ast.AST]:
    """Return statements without their bodies: of a loop around the region, only its variable."""
    return [stmt.target if isinstance(stmt, ast.For) else stmt for stmt in stmts if not isinstance(stmt, ast.While)]


def _own_counters(region: Sequence[ast.stmt]) -> set[str]:
    """Return the variables of loops in the region that are read only inside these loops."""
    loops = [node for node in flow.inside(region) if isinstance(node, ast.For)]
    found = set()
    for name in flow.assigned([loop.target for loop in loops]):
        own = [loop for loop in loops if name in flow.assigned([loop.target])]
        reads = [node for node in flow.inside(region) if isinstance(node, ast.Name) and node.id == name]
        if all(any(node in set(ast.walk(loop)) for loop in own) for node in reads):
            found.add(name)
    return found


def _check(site: Site, node: ast.AST, called: dict[str, FunctionType]) -> None:
    """Raise an error if a statement contains something that Numba does not compile; collect the functions it calls."""
    for inner in ast.walk(node):
        if not isinstance(inner, NODES):
            raise CannotCompileError
        if isinstance(inner, ast.Constant) and not isinstance(inner.value, (int, float, bool, str, type(None))):
            raise CannotCompileError
        if isinstance(inner, (ast.For, ast.While)) and inner.orelse:
            raise CannotCompileError
        if isinstance(inner, ast.Dict) and inner.keys:
            raise CannotCompileError
        if isinstance(inner, ast.Call):
            _check_call(site, inner, called)
        elif isinstance(inner, ast.Attribute) and not _is_known_attribute(site, inner):
            raise CannotCompileError


def _check_call(site: Site, call: ast.Call, called: dict[str, FunctionType]) -> None:
    target, function = site.target(call.func), call.func
    if isinstance(function, ast.Attribute):
        module = site.target(function.value)
        if isinstance(module, ModuleType):
            known = module.__name__ == "math" or function.attr in FUNCTIONS.get(module.__name__, ())
        else:
            known = function.attr in METHODS
        if not known:
            raise CannotCompileError
    elif isinstance(target, FunctionType) and isinstance(function, ast.Name):
        _check_function(site, target)
        called[function.id] = target
    elif not (isinstance(function, ast.Name) and function.id in BUILTINS and hasattr(builtins, function.id)):
        raise CannotCompileError


def _check_function(site: Site, function: FunctionType) -> None:
    """Raise an error if Numba does not compile a function of the user, or if that function calls others."""
    code = function.__code__
    line = replace(site.line, line=code.co_firstlineno, function=function.__qualname__, file=code.co_filename)
    inner = site_of(function, line, NO_FACTS, None)
    if inner is None or code.co_freevars or inner.tree.decorator_list:
        raise CannotCompileError
    called: dict[str, FunctionType] = {}
    for stmt in flow.statements(inner):
        _check(inner, stmt, called)
    if called or not flow.can_move(inner, _without_returns(flow.statements(inner))):
        raise CannotCompileError


def _is_known_attribute(site: Site, node: ast.Attribute) -> bool:
    own = isinstance(node.value, ast.Name) and node.value.id == site.instance and site.owner is not None
    return own or node.attr in ATTRIBUTES or node.attr in METHODS or isinstance(site.target(node.value), ModuleType)


def _without_returns(nodes: Sequence[ast.stmt]) -> list[Node]:
    """Return statements, and of those that return something only what they return."""
    return [node.value if isinstance(node, ast.Return) and node.value is not None else node for node in nodes]


def _renamed(region: Sequence[ast.stmt], called: dict[str, FunctionType]) -> list[Edit]:
    calls = [node for node in flow.inside(region) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [Edit(call.func, f"compiled_{call.func.id}") for call in calls if call.func.id in called]  # type: ignore[attr-defined]


def _means(site: Site, region: Sequence[ast.stmt]) -> list[Edit]:
    """Write `x.mean(axis=0)`, which Numba does not know, as a sum that is divided."""
    found = []
    for call in (node for node in flow.inside(region) if isinstance(node, ast.Call)):
        whole = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "mean" else None
        axes = [one.value for one in call.keywords if one.arg == "axis"] + call.args
        simple = isinstance(whole, (ast.Name, ast.Subscript)) and not any(
            isinstance(one, (ast.Call, ast.Attribute)) for one in ast.walk(whole)
        )
        if simple and len(axes) == 1 and len(call.args) + len(call.keywords) == 1:
            array, axis = site.text(whole), site.text(axes[0])  # type: ignore[arg-type]
            found.append(Edit(call, f"({array}.sum(axis={axis}) / {array}.shape[{axis}])"))
    return found


class _Item(NamedTuple):
    """`item["tokens"]` of a variable, which is looked up before the loop."""

    container: str
    name: str
    """What it is called in the compiled function."""
    text: str
    nodes: list[ast.Subscript]


def _items(site: Site, region: Sequence[ast.stmt], changed: set[str]) -> list[_Item]:
    """Return the items of dicts that the code reads by a constant key: Numba takes no dicts."""
    found: dict[str, _Item] = {}
    fixed = {*flow.parameters(site), *site.function.__code__.co_varnames} - {*flow.assigned(region), *changed}
    for node in flow.inside(region):
        if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in fixed):
            continue
        if _has_text_key(node):
            name = f"{node.value.id}_" + re.sub(r"\W+|'", "_", ast.unparse(node.slice)).strip("_")
            text = site.text(node)
            found.setdefault(text, _Item(node.value.id, name, text, [])).nodes.append(node)
    return list(found.values())


def _place(node: Any) -> tuple[int, int, int | None]:
    """Return where an expression stands: copies of it have the same place."""
    return node.lineno, node.col_offset, node.end_col_offset


def _has_text_key(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    )


def _without_items(nodes: Sequence[ast.AST], items: Sequence[_Item]) -> list[ast.AST]:
    """Return the names in some code, except those of containers whose items are looked up before."""
    texts = {ast.unparse(ast.parse(one.text)) for one in items}
    kept: list[ast.AST] = []
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Subscript) and ast.unparse(node) in texts:
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Name):
            kept.append(node)
    return kept


def _live_after(site: Site, region: Sequence[ast.stmt]) -> set[str]:
    """Return the names that are read after the region, unless they are assigned before that."""
    first, last = region[0], region[-1]
    if [one for one in flow.around(site, first, (ast.For, ast.While)) if one is not first]:
        rest = [node for node in site.body if isinstance(node, ast.Name) and not _is_inside(node, first, last)]
        loops = [node for node in site.body if isinstance(node, ast.For) and not _is_inside(node, first, last)]
        return set(flow.read(rest)) - set(flow.assigned([loop.target for loop in loops]))
    live: set[str] = set()
    killed: set[str] = set()
    around = set(flow.around(site, first, flow.BRANCHES))
    for stmt in (node for node in site.body if isinstance(node, ast.stmt) and node is not site.tree):
        before = stmt.lineno <= (last.end_lineno or last.lineno)
        if before or not around.issuperset(one for one in flow.around(site, stmt, flow.BRANCHES) if one is not stmt):
            continue  # what is inside an `if` or a loop is read with it
        own = [one.target for one in ast.walk(stmt) if isinstance(one, (ast.comprehension, ast.For))]
        bound = {name.id for name in flow.inside(own) if isinstance(name, ast.Name)}
        live |= set(flow.read([stmt])) - killed - bound
        killed |= flow.always_assigned([stmt])
    return live


def _is_inside(node: ast.AST, first: ast.stmt, last: ast.stmt) -> bool:
    return first.lineno <= getattr(node, "lineno", 0) <= (last.end_lineno or last.lineno)


class _Passing:
    """How values are passed to the compiled function.

    Args:
        site: The slow line.
        region: The statements that are compiled.
        as_arrays: Whether what has items is passed as an array unless it is known to be one.
    """

    def __init__(self, site: Site, region: Sequence[ast.stmt], *, as_arrays: bool) -> None:
        self._site = site
        self._as_arrays = as_arrays
        self._indexed = {
            node.value.id for node in flow.inside(region)
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
        }  # fmt: skip
        self.np = site.module("numpy", "np")
        self.uses_numpy = False
        """Whether a value is passed as an array of NumPy."""
        self.uses_columns = False
        """Whether a value is a column of a data frame."""

    def text(self, value: str) -> str:
        """Return how to pass a value: of a tensor, the array that shares its memory; of a list, an array.

        Raises:
            CannotCompileError: Numba takes no such value.
        """
        node = ast.parse(value, mode="eval").body
        name = node.id if isinstance(node, ast.Name) else ""
        known: Any = self._site.target(node)
        if any(isinstance(one, (ast.Dict, ast.DictComp)) for one in self._values(name)):
            raise CannotCompileError
        if isinstance(node, ast.Subscript) and type(self._site.target(node.value)).__name__ == "DataFrame":
            self.uses_columns = True
            return f"columns_of({ast.unparse(node.value)})[{ast.unparse(node.slice)}]"
        if isinstance(known, torch.Tensor) or self._comes_from(name, "torch"):
            return f"{value}.numpy()"
        numbers = isinstance(known, (list, tuple)) and bool(known) and all(isinstance(x, (int, float)) for x in known)
        if numbers or self.copies(name) or (self._as_arrays and isinstance(node, ast.Subscript)):
            self.uses_numpy = True
            return f"{self.np.name}.asarray({value})"
        if known is UNKNOWN or isinstance(known, (np.ndarray, np.generic, int, float, str)):
            return value
        raise CannotCompileError

    def arrays(self, region: Sequence[ast.stmt]) -> list[Edit]:
        """Return what to write instead of `[0] * n` and `[[0] * n for _ in range(m)]` if arrays are wanted."""
        found = []
        for node in flow.inside(region):
            value = node.value if isinstance(node, ast.Assign) and self._as_arrays else None
            if isinstance(value, ast.ListComp) and len(value.generators) == 1 and not value.generators[0].ifs:
                count = value.generators[0].iter
                ranged = isinstance(count, ast.Call) and self._site.text(count.func) == "range" and len(count.args) == 1
                if ranged and (row := self._filled(value.elt)):
                    shape = f"({self._site.text(count.args[0])}, {row[0]})"  # type: ignore[attr-defined]
                    found.append(Edit(value, f"{self.np.name}.full({shape}, {row[1]})"))
            elif value is not None and (row := self._filled(value)):
                found.append(Edit(value, f"{self.np.name}.full({row[0]}, {row[1]})"))
        self.uses_numpy |= bool(found)
        return found

    def _filled(self, node: ast.expr) -> tuple[str, str] | None:
        """Return the length of a list such as `[0] * n`, and what it is filled with; None if it is something else."""
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List)):
            return None
        items = node.left.elts
        if len(items) != 1 or not isinstance(items[0], ast.Constant) or isinstance(items[0].value, str):
            return None
        return self._site.text(node.right), self._site.text(items[0])

    def copies(self, name: str) -> bool:
        """Whether a variable is passed as an array, so that changes in place are not those of the variable itself."""
        if name not in self._indexed or self._comes_from(name, "numpy") or self._comes_from(name, "torch"):
            return False
        lists = (ast.List, ast.ListComp)
        made = any(isinstance(one, lists) for value in self._values(name) for one in ast.walk(value))
        return made or (self._as_arrays and self._site.target(ast.Name(name, ast.Load())) is UNKNOWN)

    def _values(self, name: str) -> list[ast.expr]:
        """Return what a variable of the function is assigned."""
        found = [node for node in self._site.body if isinstance(node, ast.Assign)]
        return [node.value for node in found if any(isinstance(t, ast.Name) and t.id == name for t in node.targets)]

    def _comes_from(self, name: str, module: str) -> bool:
        """Whether a variable is assigned what a function of a module returns."""
        roots = [root_of(value.func) for value in self._values(name) if isinstance(value, ast.Call)]
        modules = [self._site.target(root) for root in roots if root is not None]
        return any(isinstance(one, ModuleType) and one.__name__ == module for one in modules)
