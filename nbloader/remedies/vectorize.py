"""Python loops over numbers as operations on whole arrays, which NumPy executes. Pure.

    for r in range(h):                      r = np.arange(h)[:, None]
        for c in range(w):           ->     c = np.arange(w)[None, :]
            out[r, c] = lut[img[r, c]]      out[r, c] = lut[img[r, c]]

The statements of the loop stay as they are, except for what arrays cannot do. Whether a loop's steps depend on each
other is not analyzed: a trial compares the values.
"""

from __future__ import annotations

import ast
import copy
from typing import NamedTuple

MATH = frozenset({
    "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "tanh", "sinh", "cosh", "floor",
    "ceil", "trunc", "fabs", "hypot", "degrees", "radians", "isnan", "isinf", "isfinite",
})  # fmt: skip
"""Functions of `math` that NumPy has with the same name."""
RENAMED = {
    "atan2": "arctan2", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "abs": "abs", "min": "minimum",
    "max": "maximum",
}  # fmt: skip
CASTS = {"int": "int64", "float": "float64", "bool": "bool"}
FOLDS = {"sum": "sum", "max": "max", "min": "min", "any": "any", "all": "all"}


class CannotVectorizeError(Exception):
    """The loop does something that arrays cannot do, or that is not known here."""


class Range(NamedTuple):
    """What a variable of a loop has for values."""

    name: str
    values: str
    """An expression of an array."""
    axis: int | None
    """The axis of the values, of one-dimensional ones; None if they have all axes."""
    is_position: bool = False
    """Whether the values are non-negative integers of which each occurs once."""


def vectorized_loop(loop: ast.For, np: str, item: str = "") -> str:
    """Return statements that do what a loop does.

    Args:
        loop: The loop.
        np: The name of NumPy.
        item: What makes a Python number of a sum: ".item()"; "" if it is one of NumPy.

    Raises:
        CannotVectorizeError: This is not known for the loop.
    """
    ranges: list[Range] = []
    body: list[ast.stmt] = [loop]
    axes = 0
    while len(body) == 1 and isinstance(body[0], ast.For):
        if body[0].orelse or any(one.axis is None for one in ranges):
            raise CannotVectorizeError
        used = {node.id for node in ast.walk(body[0].iter) if isinstance(node, ast.Name)}
        rows = next((one for one in ranges if one.name in used), None)
        if rows is not None and isinstance(body[0].iter, ast.Name) and rows.axis == axes - 1:
            ranges.remove(rows)
            ranges.append(_range(body[0].target, rows.values, None))
        elif rows is not None:
            raise CannotVectorizeError  # how often it runs depends on an outer loop
        else:
            ranges += _ranges(body[0].target, body[0].iter, axes, np)
        axes += 1
        body = body[0].body
    inner = _Elementwise(np, ranges)
    lines = []
    for one in ranges:
        spread = "" if axes == 1 or one.axis is None else _spread(one.axis, axes)
        lines.append(f"{one.name} = {one.values}{spread}")
    inner.item = item
    for stmt in body:
        lines += _statement(stmt, inner, np, axes)
    return "\n".join(lines)


def _spread(axis: int, axes: int) -> str:
    places = ["None"] * axes
    places[axis] = ":"
    return f"[{', '.join(places)}]"


def _range(target: ast.expr, values: str, axis: int | None) -> Range:
    if not isinstance(target, ast.Name):
        raise CannotVectorizeError
    return Range(target.id, values, axis)


def _ranges(target: ast.expr, values: ast.expr, axis: int, np: str) -> list[Range]:
    """Return the values of the variables of a loop or comprehension."""
    called = values.func.id if isinstance(values, ast.Call) and isinstance(values.func, ast.Name) else ""
    given = [] if not isinstance(values, ast.Call) else values.args
    if isinstance(values, ast.Call) and (values.keywords or any(isinstance(one, ast.Starred) for one in given)):
        raise CannotVectorizeError
    if called == "range":
        found = _range(target, f"{np}.arange({', '.join(map(ast.unparse, given))})", axis)
        first = given[0] if len(given) == 2 else ast.Constant(0)  # noqa: PLR2004
        from_zero = isinstance(first, ast.Constant) and len(given) < 3  # noqa: PLR2004
        return [found._replace(is_position=from_zero)]
    if called in ("enumerate", "zip"):
        parts = target.elts if isinstance(target, ast.Tuple) else []
        if called == "enumerate" and len(parts) == 2 and len(given) == 1:  # noqa: PLR2004
            place = _range(parts[0], f"{np}.arange({_length(given[0])})", axis)._replace(is_position=True)
            return [place, *_ranges(parts[1], given[0], axis, np)]
        if called == "zip" and len(parts) == len(given) > 0:
            shortest = f"[:{_length(values)}]"
            ranges = [one for pair in zip(parts, given, strict=True) for one in _ranges(*pair, axis, np)]
            return [one._replace(values=one.values + shortest) for one in ranges]
        raise CannotVectorizeError
    return [_range(target, f"{np}.asarray({ast.unparse(values)})", axis)]


def _length(values: ast.expr) -> str:
    """Return the number of items of what a loop iterates over."""
    for node in ast.walk(values):
        called = node.func if isinstance(node, ast.Call) else None
        wraps = isinstance(called, ast.Name) and called.id in ("range", "enumerate", "zip", "len")
        if called is not None and not wraps and getattr(called, "attr", "") != "tolist":
            raise CannotVectorizeError  # it would be called twice
    if isinstance(values, ast.Call) and isinstance(values.func, ast.Name) and values.func.id in ("enumerate", "zip"):
        lengths = list(dict.fromkeys(map(_length, values.args)))
        return f"min({', '.join(lengths)})" if len(lengths) > 1 else lengths[0]
    return f"len({ast.unparse(values)})"


def _statement(stmt: ast.stmt, inner: _Elementwise, np: str, axes: int) -> list[str]:
    if isinstance(stmt, ast.If):
        (first, *more) = stmt.body
        if isinstance(first, ast.Continue) and not stmt.orelse:
            return [inner.skip(stmt.test)]
        if isinstance(first, ast.AugAssign) and isinstance(first.op, (ast.Add, ast.Sub)) and not (more or stmt.orelse):
            value = ast.IfExp(stmt.test, first.value, ast.Constant(0))
            return [_sum(ast.AugAssign(first.target, first.op, value), inner, np, axes)]
        return [_condition(stmt, inner, np, axes)]
    if isinstance(stmt, ast.Assign) and len(stmt.targets) == 1:
        return [_fold(stmt, inner, np, axes) or _assignment(stmt.targets[0], stmt.value, inner, np)]
    if isinstance(stmt, ast.AugAssign):
        return [_sum(stmt, inner, np, axes)]
    called = stmt.value if isinstance(stmt, ast.Expr) else None
    appends = isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr == "append"
    if isinstance(called, ast.Call) and appends and axes == 1 and len(called.args) == 1:
        values = inner.whole(called.args[0])
        return [f"{ast.unparse(called.func.value)}.extend({values}.tolist())"]  # type: ignore[attr-defined]
    raise CannotVectorizeError


def _assignment(target: ast.expr, value: ast.expr, inner: _Elementwise, np: str) -> str:
    """Return what `x = value`, `r, g, b = value` or `out[i, j] = value` does."""
    if isinstance(value, (ast.List, ast.Tuple)) and not isinstance(target, ast.Tuple):
        parts = ", ".join(inner.text(one) for one in value.elts)
        text = f"{np}.stack({np}.broadcast_arrays({parts}), -1)"
    else:
        text = inner.text(value)
    if isinstance(target, ast.Subscript):
        return f"{ast.unparse(inner.target(target))} = {text}"
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    if not inner.varies(value):
        raise CannotVectorizeError
    for name in names:
        if not isinstance(name, ast.Name):
            raise CannotVectorizeError
        inner.assign(name.id)
    return f"{ast.unparse(target)} = " + (text if len(names) == 1 else f"{np}.moveaxis({text}, -1, 0)")


def _sum(stmt: ast.AugAssign, inner: _Elementwise, np: str, axes: int) -> str:
    """Return what `total += value` or `out[i, j] += value` does."""
    operator = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}.get(type(stmt.op))
    target = stmt.target
    if isinstance(target, ast.Subscript) and operator:
        found = inner.target(target)
        if inner.is_unique(found, axes):
            return f"{ast.unparse(found)} {operator}= {inner.text(stmt.value)}"
        function = {"+": "add", "-": "subtract"}.get(operator)
        if function:
            return _at(function, target, stmt.value, inner, np, axes)
    if isinstance(target, ast.Name) and isinstance(stmt.op, ast.Add) and target.id not in inner.arrays:
        return f"{target.id} += {inner.whole(stmt.value)}.sum(){inner.item}"
    raise CannotVectorizeError


def _fold(stmt: ast.Assign, inner: _Elementwise, np: str, axes: int) -> str:
    """Return what `out[i] = min(out[i], value)` does; "" for another assignment."""
    (target,), value = stmt.targets, stmt.value
    if not isinstance(target, ast.Subscript) or not isinstance(value, ast.Call) or len(value.args) != 2:  # noqa: PLR2004
        return ""
    function = {"min": "minimum", "max": "maximum"}.get(ast.unparse(value.func))
    others = [one for one in value.args if ast.unparse(one) != ast.unparse(target)]
    if not function or len(others) != 1 or value.keywords or inner.is_unique(inner.target(target), axes):
        return ""
    return _at(function, target, others[0], inner, np, axes)


def _at(function: str, target: ast.Subscript, value: ast.expr, inner: _Elementwise, np: str, axes: int) -> str:
    """Return what an operator does step by step, also if a place in what it changes occurs several times."""
    found = inner.target(target)
    base, place = found.value, found.slice
    where = ast.unparse(place)
    if not inner.has_all_axes(target.slice, axes):
        places = place.elts if isinstance(place, ast.Tuple) else [place]
        parts = ", ".join(map(ast.unparse, places))
        where = f"tuple({np}.broadcast_arrays({parts}, {inner.all})[:{len(places)}])"
    return f"{np}.{function}.at({ast.unparse(base)}, {where}, {inner.text(value)})"


def _condition(stmt: ast.If, inner: _Elementwise, np: str, axes: int) -> str:
    """Return what `if condition: out[i] = a`, with or without `else: out[i] = b`, does."""
    (first, *more), other = stmt.body, stmt.orelse
    if more or len(other) > 1 or not isinstance(first, ast.Assign) or len(first.targets) != 1:
        raise CannotVectorizeError
    target = first.targets[0]
    value = inner.text(first.value)
    if not isinstance(target, (ast.Subscript, ast.Name)) or (isinstance(target, ast.Name) and not other):
        raise CannotVectorizeError
    text = target.id if isinstance(target, ast.Name) else ast.unparse(inner.target(target))
    otherwise = text
    if isinstance(target, ast.Subscript) and not other and not inner.is_unique(inner.target(target), axes):
        raise CannotVectorizeError  # the last step with a place would decide, also if its condition is false
    if other:
        last = other[0]
        if not isinstance(last, ast.Assign) or ast.unparse(last.targets[0]) != ast.unparse(target):
            raise CannotVectorizeError
        otherwise = inner.text(last.value)
    if isinstance(target, ast.Name):
        inner.assign(target.id)
    return f"{text} = {np}.where({inner.text(stmt.test)}, {value}, {otherwise})"


def vectorized_comprehension(node: ast.ListComp | ast.GeneratorExp, np: str) -> str:
    """Return an array with the items of a comprehension.

    Raises:
        CannotVectorizeError: This is not known for the comprehension.
    """
    if len(node.generators) != 1 or node.generators[0].ifs or node.generators[0].is_async:
        raise CannotVectorizeError
    (loop,) = node.generators
    ranges = _ranges(loop.target, loop.iter, 0, np)
    inner = _Elementwise(np, ranges, {one.name: one.values for one in ranges})
    kinds = (ast.BinOp, ast.Subscript, ast.IfExp, ast.Attribute)
    if not inner.varies(node.elt) or not any(isinstance(one, kinds) for one in ast.walk(node.elt)):
        raise CannotVectorizeError
    return inner.text(node.elt)


class _Elementwise(ast.NodeTransformer):
    """Makes of an expression of numbers one of arrays.

    Args:
        np: The name of NumPy.
        ranges: The variables of the loops.
        values: Expressions to put in place of names.
    """

    def __init__(self, np: str, ranges: list[Range], values: dict[str, str] | None = None) -> None:
        self._np = np
        self.arrays = {one.name for one in ranges}
        self._values = values or {}
        self._ranges = {one.name: one for one in ranges}
        self.all = ", ".join(one.name for one in ranges)
        """The variables of the loops."""
        self._is_flat = False
        self.item = ""
        """See `vectorized_loop`."""

    def assign(self, name: str) -> None:
        """A name is assigned an array of values."""
        self.arrays.add(name)
        self._ranges.pop(name, None)

    def skip(self, test: ast.expr) -> str:
        """Return what `if test: continue` does: the arrays have only the other steps from here on, as one axis."""
        names = ", ".join([self.all, *sorted(self.arrays - set(self.all.split(", ")))])
        kept = f"{self._np}.logical_not({self.whole(test)})"
        self._is_flat = True
        return f"[{names}] = [one[{kept}] for one in {self._np}.broadcast_arrays({names})]"

    def text(self, node: ast.expr) -> str:
        """Return the expression of arrays."""
        return ast.unparse(self.visit(copy.deepcopy(node)))

    def whole(self, node: ast.expr) -> str:
        """Return the expression as an array with one element for each step of the loops."""
        return f"{self._np}.broadcast_arrays({self.text(node)}, {self.all})[0]"

    def target(self, node: ast.Subscript) -> ast.Subscript:
        """Return what is assigned to."""
        if not self.varies(node.slice):
            raise CannotVectorizeError
        found = self.visit_Subscript(copy.deepcopy(node))
        if not isinstance(found, ast.Subscript):
            raise CannotVectorizeError
        if isinstance(found.value, ast.Call):  # asarray: may be a copy of a list
            found.value = found.value.args[0]
        return found

    def is_unique(self, target: ast.Subscript, axes: int) -> bool:
        """Whether each step of the loops has a place of its own in what is assigned to."""
        places = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        counted = {one.axis for place in places if (one := self._counter(place)) is not None}
        return counted >= set(range(axes))

    def has_all_axes(self, place: ast.expr, axes: int) -> bool:
        """Whether the place of each step is in an array with the axes of all loops."""
        read = {one.id for one in ast.walk(place) if isinstance(one, ast.Name)}
        found = {one.axis for name, one in self._ranges.items() if name in read}
        return axes == 1 or self._is_flat or None in found or found >= set(range(axes))

    def _counter(self, node: ast.AST) -> Range | None:
        """Return the range of a variable that alone tells a place, such as `j` or `7 - j`; None if none does."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
            return self._counter(node.func.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            sides = [side for side in (node.left, node.right) if self.varies(side)]
            return self._counter(sides[0]) if len(sides) == 1 else None
        if isinstance(node, ast.IfExp):  # its condition is the same for all steps
            one, other = self._counter(node.body), self._counter(node.orelse)
            return one if one == other else None
        found = self._ranges.get(node.id) if isinstance(node, ast.Name) else None
        return found if found is not None and found.is_position else None

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace a variable of a comprehension by its values."""
        return _parsed(self._values[node.id]) if node.id in self._values else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """`rows[i][j]` is `rows[i, j]`, and rows may be a list."""
        if not self.varies(node.slice):
            if self.varies(node.value):
                raise CannotVectorizeError  # an item of each item
            return node
        places: list[ast.expr] = []
        base: ast.expr = node
        while isinstance(base, ast.Subscript) and self.varies(base.slice):
            inner = base.slice.elts if isinstance(base.slice, ast.Tuple) else [base.slice]
            places = [self._place(one) for one in inner] + places
            base = base.value
        if any(isinstance(one, ast.Slice) for one in places):
            raise CannotVectorizeError
        place = places[0] if len(places) == 1 else ast.Tuple(places, ast.Load())
        array = ast.Call(_parsed(f"{self._np}.asarray"), [self.visit(base)], [])
        return ast.Subscript(array, place, node.ctx)

    def _place(self, node: ast.expr) -> ast.expr:
        """Return a place in an array. What is read from an empty list is an array of floats, which is no place."""
        known = (ast.BinOp, ast.operator, ast.Name, ast.expr_context, ast.Constant)
        inner = list(ast.walk(node))
        read = [one for one in inner if isinstance(one, ast.Name) and one.id in self.arrays]
        counts = all(self._counter(one) for one in read) and all(isinstance(one, known) for one in inner)
        found: ast.expr = self.visit(node)
        if counts or not read or isinstance(node, ast.Slice):
            return found
        return ast.Call(ast.Attribute(found, "astype", ast.Load()), [ast.Name("int", ast.Load())], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace functions of numbers by those of arrays."""
        if not self.varies(node):
            return node
        function = node.func
        attribute = isinstance(function, ast.Attribute)
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
        args = [self.visit(one) for one in node.args]
        if node.keywords:
            raise CannotVectorizeError
        if (name in CASTS and not attribute) or (
            name in ("float32", "float64", "int64", "int32") and owner == self._np
        ):
            call = f"{self._np}.asarray({ast.unparse(args[0])}).astype({self._np}.{CASTS.get(name, name)})"
            return _parsed(call)
        if name == "item" and not args and isinstance(function, ast.Attribute):
            inner: ast.AST = self.visit(function.value)
            return inner
        if owner not in ("math", self._np, "") or (name in ("min", "max") and len(args) != 2):  # noqa: PLR2004
            raise CannotVectorizeError
        if name in MATH or name in RENAMED or owner == self._np:
            known = RENAMED.get(name, name) if owner != self._np else name
            return ast.Call(_parsed(f"{self._np}.{known}"), args, [])
        raise CannotVectorizeError

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Leave powers of integers alone: integers of Python have any size, those of NumPy have 64 bits."""
        squared = isinstance(node.right, ast.Constant) and node.right.value in (1, 2, 0.5)
        grows = isinstance(node.op, ast.LShift) or (isinstance(node.op, ast.Pow) and not squared)
        if grows and self.varies(node) and not is_float(node.left) and not is_float(node.right):
            raise CannotVectorizeError
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Replace `a if condition else b`, unless the condition is the same for all steps."""
        if not self.varies(node.test):
            return ast.IfExp(node.test, self.visit(node.body), self.visit(node.orelse))
        parts = [self.visit(one) for one in (node.test, node.body, node.orelse)]
        return ast.Call(_parsed(f"{self._np}.where"), parts, [])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Replace `a and b`."""
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        found: ast.expr
        found, *rest = (self.visit(one) for one in node.values)
        for one in rest:
            found = ast.Call(_parsed(f"{self._np}.{name}"), [found, one], [])
        return found

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Replace `not a`."""
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return ast.Call(_parsed(f"{self._np}.logical_not"), [operand], [])
        return ast.UnaryOp(node.op, operand)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Replace `a < b < c`."""
        if any(isinstance(one, (ast.In, ast.NotIn, ast.Is, ast.IsNot)) for one in node.ops):
            raise CannotVectorizeError
        sides = [self.visit(one) for one in (node.left, *node.comparators)]
        found: ast.expr = ast.Compare(sides[0], [node.ops[0]], [sides[1]])
        for place in range(1, len(node.ops)):
            right = ast.Compare(sides[place], [node.ops[place]], [sides[place + 1]])
            found = ast.Call(_parsed(f"{self._np}.logical_and"), [found, right], [])
        return found

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Leave attributes of what does not vary alone."""
        if self.varies(node):
            raise CannotVectorizeError
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit arithmetic and constants; everything else is not known."""
        known = (ast.BinOp, ast.operator, ast.expr_context, ast.Name)
        texts = isinstance(node, (ast.List, ast.Tuple, ast.Dict, ast.JoinedStr)) or (
            isinstance(node, ast.Constant) and not isinstance(node.value, (int, float))
        )
        if texts or (self.varies(node) and not isinstance(node, known)):
            raise CannotVectorizeError
        return super().generic_visit(node)

    def varies(self, node: ast.AST) -> bool:
        """Whether some code depends on a variable of the loops."""
        return any(isinstance(one, ast.Name) and one.id in self.arrays for one in ast.walk(node))


def is_float(node: ast.expr) -> bool:
    """Whether the code alone tells that a value is floating point."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div) or is_float(node.left) or is_float(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_float(node.operand)
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in ("float", "float32", "float64") or name in MATH - {"floor", "ceil", "trunc"}
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
