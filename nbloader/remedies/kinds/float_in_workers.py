"""Pixels that workers convert to floating point: four times the bytes, and work that the loop could do for a batch."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

from nbloader.remedies import flow
from nbloader.remedies.parts import MEASURES
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import UNKNOWN, Edit, Site

OPERATORS = {ast.Div: "/", ast.Sub: "-", ast.Add: "+", ast.Mult: "*"}
METHODS = {"div": "/", "div_": "/", "sub": "-", "sub_": "-", "mul": "*", "mul_": "*"}
FLOATS = ("numpy.float32", "torch.float32", "torch.float")
LARGE = 10_000
"""Size of a sample's floats from which their conversion is looked for on other lines than the slow one, too, bytes."""
CHANNELS_FIRST = re.compile(
    r"(permute|transpose)\(\(?2, ?0, ?1\)|moveaxis\([^()]*, (2|-1), 0\)|to_?tensor\(", re.IGNORECASE
)
"""Code that moves the channels of a picture to the front."""
MOVES = frozenset({
    "from_numpy", "as_tensor", "tensor", "array", "asarray", "ascontiguousarray", "contiguous", "copy", "clone",
    "permute", "transpose", "moveaxis", "swapaxes", "flip", "fliplr", "flipud", "rot90", "reshape", "view", "squeeze",
    "unsqueeze", "expand_dims",
})  # fmt: skip
"""Functions and methods that move values and do not calculate with them: bytes would overflow, or be rounded."""
SHORT = "Convert to float in the loop, not in the workers"
ARRAYS = ("numpy.array", "numpy.asarray", "numpy.ascontiguousarray")


@dataclass(frozen=True)
class _Step:
    """An expression that converts values of another expression, and calculates with them."""

    node: ast.expr
    """The whole expression."""
    source: str
    """What remains of it in the worker."""
    base: ast.expr
    """The innermost expression, which is not changed."""
    dtype: str = ""
    """Method of the tensor that converts it: "float", "double"; "" if nothing converts it."""
    calculations: tuple[tuple[str, str], ...] = ()
    """Operators and their right operands."""


class FloatInWorkers:
    """`np.array(picture, np.float32) / 255`: send bytes, and convert the batch in the loop, or on the GPU."""

    name = "float-in-workers"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`. What the loop computes is tried once as it is, and once for channels that come first."""
        steps = self._steps(site)
        here = any(step.node.lineno <= site.number <= (step.node.end_lineno or step.node.lineno) for step in steps)
        if not steps or not (here or site.facts.floats >= LARGE):
            return []
        dtype = next((step.dtype for step in steps if step.dtype), "")
        calculations = [one for step in steps for one in step.calculations]
        if not dtype and not any(operator == "/" for operator, _operand in calculations):
            return []
        edits = [Edit(step.node, step.source) for step in steps]
        torch = site.module("torch", "torch")
        why = "Each sample is converted to floating point in its worker, and sent as larger numbers."
        instead = "Send them as they are, and convert the batch in the loop: on a GPU that takes next to no time."
        certain = bool(dtype) and any(operator == "/" for operator, _operand in calculations)
        proposals = {}
        shapes = ("", ".view(-1, 1, 1)")
        if CHANNELS_FIRST.search(site.source):  # the first one is shown if nothing is tried
            shapes = shapes[::-1]
        for method in [dtype] if dtype else ["double", "float"]:
            for shape in shapes:
                loop = f"batch.{method}()"
                for operator, operand in calculations:
                    vector = not operand.replace(".", "").isdigit()
                    value = f"{torch.name}.as_tensor({operand}){shape}" if vector else operand
                    left = f"({loop})" if operator in "*/" and " " in loop else loop
                    loop = f"{left} {operator} {value}"
                code = site.rewritten(*edits)
                proposals[loop] = Proposal(why, instead, code, torch.helper, loop=loop, short=SHORT, is_certain=certain)
        return list(proposals.values())

    @staticmethod
    def _steps(site: Site) -> list[_Step]:
        """Return the conversions of one value, in the order in which they are executed."""
        found: list[_Step] = []
        inside: set[int] = set()
        nodes = sorted(
            (node for node in site.body if isinstance(node, (ast.BinOp, ast.Call))),
            key=lambda node: (node.lineno, node.col_offset, -(node.end_lineno or 0), -(node.end_col_offset or 0)),
        )
        for node in nodes:
            if id(node) in inside:
                continue
            step = _step(site, node)
            if step.dtype or step.calculations:
                inside |= {id(inner) for inner in ast.walk(node)}
                found.append(step)
        if not found:
            return []
        # A later step belongs to the first one if it calculates with the variable that the first one was assigned to.
        first = site.statement(found[0].node)
        name = first.targets[0].id if isinstance(first, ast.Assign) and isinstance(first.targets[0], ast.Name) else ""
        rest = [step for step in found[1:] if isinstance(step.base, ast.Name) and step.base.id == name]
        others = [step for step in found[1:] if step not in rest]
        # Another conversion of the variable, such as `torch.tensor(name).float()`, would still send floats.
        if any(step.dtype and name in flow.read([step.node]) for step in others):
            return []
        steps = [found[0], *rest]
        return steps if _is_the_sample(site, steps, name) else []


def _is_the_sample(site: Site, steps: list[_Step], name: str) -> bool:
    """Whether each sample is converted, and what is converted is only moved afterwards.

    The loop would otherwise convert samples that are floats already, or the workers would calculate with bytes.
    """
    if sum(isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) for node in site.body) != 1:
        return False
    if not all(flow.always_follows(site, step.node, site.tree) for step in steps):
        return False
    parents = {inner: outer for outer in site.body for inner in ast.iter_child_nodes(outer)}
    inside = {inner for step in steps for inner in ast.walk(step.node)}
    waiting: list[ast.AST] = [step.node for step in steps]
    names: set[str] = set()
    first = steps[0].node.lineno
    while waiting:
        node = waiting.pop()
        while isinstance(node, ast.expr):
            outer = parents[node]
            if not (outer in inside or _moves(outer, node)):
                return False
            node = outer
        new = set(flow.assigned([node])) | ({name} - {""}) if isinstance(node, ast.Assign) else set()
        uses = [use for use in site.body if isinstance(use, ast.Name) and use.id in new - names and use not in inside]
        waiting += [use for use in uses if use.lineno > first and isinstance(use.ctx, ast.Load)]
        names |= new
    return True


def _moves(outer: ast.AST, node: ast.AST) -> bool:
    """Whether an expression or a statement returns, assigns or moves the values of an expression in it."""
    if isinstance(outer, ast.Call):
        function = outer.func
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return called in MOVES and not outer.keywords
    if isinstance(outer, ast.Subscript):
        return outer.value is node and isinstance(outer.ctx, ast.Load)
    if isinstance(outer, ast.Attribute):
        return outer.attr in MOVES or outer.attr in MEASURES or outer.attr == "T"
    return isinstance(outer, (ast.Return, ast.Assign, ast.Expr, ast.Tuple, ast.List, ast.Dict))


def _step(site: Site, node: ast.expr) -> _Step:
    """Return what an expression converts and calculates."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and _is_constant(site, node.right):
        return _calculated(site, node, node.left, OPERATORS[type(node.op)], node.right)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and site.target(node.func) is UNKNOWN:
            return _method(site, node, node.func)
        types = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "dtype")]
        dtype = _dtype(site, types[0]) if len(types) == 1 else ""
        if node.args and dtype and node in site.calls(*ARRAYS, anywhere=True):
            return _Step(node, f"{site.text(node.func)}({site.text(node.args[0])})", node.args[0], dtype)
        if len(node.args) == 1 and node in site.calls("numpy.float32", anywhere=True):
            return replace(_step(site, node.args[0]), node=node, dtype="float")
    return _Step(node, site.text(node), node)


def _method(site: Site, node: ast.Call, function: ast.Attribute) -> _Step:
    """Return what a method of an array or a tensor converts or calculates."""
    method, value, argument = function.attr, function.value, node.args[0] if len(node.args) == 1 else None
    if method in ("float", "double") and not node.args:
        return replace(_step(site, value), node=node, dtype=method)
    if argument is not None and method in ("astype", "to", "type") and (dtype := _dtype(site, argument)):
        return replace(_step(site, value), node=node, dtype=dtype)
    if argument is not None and method in METHODS and _is_constant(site, argument):
        return _calculated(site, node, value, METHODS[method], argument)
    return _Step(node, site.text(node), node)


def _calculated(site: Site, node: ast.expr, value: ast.expr, operator: str, operand: ast.expr) -> _Step:
    inner = _step(site, value)
    return replace(inner, node=node, calculations=(*inner.calculations, (operator, _operand(site, operand))))


def _dtype(site: Site, node: ast.expr) -> str:
    """Return the method of tensors that converts to this type; "" if it is no type of floating point."""
    text = site.text(node).strip("'\"")
    if isinstance(node, ast.Constant):
        return {"float32": "float", "float64": "double"}.get(text, "")
    if text == "float":
        return "double"
    return {"float32": "float", "float": "float", "float64": "double"}.get(text.rpartition(".")[2], "")


def _is_constant(site: Site, node: ast.expr) -> bool:
    """Whether an expression is the same for all samples: a number, or a global variable that is one or an array."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, (ast.Name, ast.Attribute)):
        target = site.target(node)
        return isinstance(target, (int, float, list, tuple)) or hasattr(target, "__array__")
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(_is_constant(site, part) for part in node.elts)
    arrays = site.calls(*ARRAYS, "torch.tensor", anywhere=True)
    return isinstance(node, ast.Call) and node in arrays and bool(node.args) and _is_constant(site, node.args[0])


def _operand(site: Site, node: ast.expr) -> str:
    """Return an operand as the loop refers to it: the dataset by its name."""
    text = site.text(node)
    return f"dataset.{text.partition('.')[2]}" if site.instance and text.startswith(f"{site.instance}.") else text


REMEDY = FloatInWorkers()
