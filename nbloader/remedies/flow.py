"""What statements read, assign and draw at random: whether they can be moved to a function of their own. Pure."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from nbloader._util.attributes import attributes_of
from nbloader.cache.code_names import all_names, global_names
from nbloader.remedies.changes import changes_shared, takes_shared
from nbloader.remedies.site import UNKNOWN, Node, Site
from nbloader.workers.reachable import is_generator, reachable

OUTSIDE = r"^print$|perf_counter|^time$|^now$"
RANDOM = re.compile(
    r"rand|rng|augment|jitter|dropout|(?<!de)noise|shuffle|permut|choice|uniform|bernoulli|gauss|worker_info|"
    rf"{OUTSIDE}",
    re.IGNORECASE,
)
"""Names that stand for something that is not the same in each epoch, or for output. A trial finds what they miss.

Those of `OUTSIDE` may be variables of the function that stand for something else.
"""
MAX_OBJECTS = 300
"""Maximum number of objects in which generators and names are looked for."""
MAX_TRANSFORMS = 50
"""Maximum number of items of a list that are looked at as transforms."""
LEAVES = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.AsyncFor, ast.AsyncWith)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))
LATER = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.GeneratorExp)
"""Code that may run after the statement that contains it."""
BRANCHES = (
    ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.For, ast.AsyncFor, ast.While, *TRIES, *COMPREHENSIONS, *LATER,
)  # fmt: skip
"""Code of which parts do not always run."""
ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def inside(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Return some nodes, and the nodes in them."""
    return itertools.chain.from_iterable(map(ast.walk, nodes))


def statements(site: Site) -> list[ast.stmt]:
    """Return the statements of the function, without its docstring."""
    body = site.tree.body
    return body[1:] if ast.get_docstring(site.tree) is not None else list(body)


def parameters(site: Site) -> list[str]:
    """Return the names of the function's parameters."""
    given = site.tree.args
    extra = [one for one in (given.vararg, given.kwarg) if one is not None]
    return [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *extra)]


def read(nodes: Sequence[ast.AST]) -> list[str]:
    """Return the names that nodes read, in the order of their first use."""
    names = []
    for node in inside(nodes):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return list(dict.fromkeys(names))


def assigned(nodes: Sequence[ast.AST]) -> list[str]:
    """Return the names that nodes assign, except those of comprehensions, in their order."""
    own = {id(name) for node in inside(nodes) if isinstance(node, ast.comprehension) for name in ast.walk(node.target)}
    names = []
    for node in inside(nodes):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in own:
            names.append(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [one.asname or one.name.partition(".")[0] for one in node.names]
    return list(dict.fromkeys(names))


def always_assigned(body: Sequence[ast.stmt]) -> set[str]:
    """Return the names that statements assign whichever way they take."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            found |= set(assigned([node]))
        elif isinstance(node, ast.With):
            found |= always_assigned(node.body) | set(assigned(node.items))
        elif isinstance(node, ast.If):
            found |= always_assigned(node.body) & always_assigned(node.orelse)
    return found


def around(site: Site, node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> list[ast.AST]:
    """Return the code of some kinds, within the function, that a node is inside."""
    return [
        outer for outer in site.body
        if isinstance(outer, kinds) and outer is not site.tree and node in set(ast.walk(outer))
    ]  # fmt: skip


def always_follows(site: Site, node: Node, first: Node) -> bool:
    """Whether a node runs each time that an earlier one has run, unless something is raised."""
    ends = [one for one in site.body if isinstance(one, ENDS) and first.lineno < one.lineno < node.lineno]
    passes = any(node not in set(ast.walk(one)) for one in ends)
    return not passes and set(around(site, node, BRANCHES)) <= set(around(site, first, BRANCHES))


def global_values(site: Site, nodes: Sequence[ast.AST]) -> list[str]:
    """Return the global variables that nodes read, except modules, classes and functions."""
    names = set(read(nodes)) & set(global_names(site.function.__code__)) & site.function.__globals__.keys()
    named = (ModuleType, type, FunctionType, BuiltinFunctionType)
    return sorted(name for name in names if not isinstance(site.function.__globals__[name], named))


def can_move(site: Site, nodes: Sequence[ast.AST]) -> bool:
    """Whether nodes do the same in another function, and the same in each epoch, as far as the code tells."""
    for node in inside(nodes):
        if isinstance(node, LEAVES) or (isinstance(node, ast.Name) and node.id in ("super", "__class__", "locals")):
            return False
    if any(changes_shared(site, node) or takes_shared(site, node) for node in nodes):
        return False
    return not is_random(site, nodes)


def is_random(site: Site, nodes: Sequence[ast.AST]) -> bool:
    """Whether nodes seem to draw random numbers."""
    known: set[ast.AST] = set()
    for node in inside(nodes):
        chosen = _chosen(site, node) if isinstance(node, ast.Subscript) else None
        if chosen is not None:
            known |= set(ast.walk(node.value))  # type: ignore[attr-defined]
            if any(map(draws, chosen)):
                return True
        if node in known or not isinstance(node, (ast.Name, ast.Attribute)):
            continue
        name = node.id if isinstance(node, ast.Name) else node.attr
        own = isinstance(node, ast.Name) and name in site.function.__code__.co_varnames
        if RANDOM.search(name) and not (own and re.search(OUTSIDE, name)):
            return True
        target = site.target(node)
        if target is UNKNOWN or isinstance(target, (ModuleType, type)):
            continue
        if _draws(target) if callable(target) else any(map(is_generator, _parts(target))):
            return True
        if isinstance(target, (list, tuple)) and any(draws(one) for one in target[:MAX_TRANSFORMS] if callable(one)):
            return True
        own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == site.instance
        if own and isinstance(target, FunctionType) and _method_draws(target, site.owner, set()):
            return True
    return False


def _chosen(site: Site, node: ast.Subscript) -> Sequence[Any] | None:
    """Return the transforms that an expression such as `self.transforms[:2]` stands for; None if it is none like it."""
    bounds = node.slice
    if not isinstance(bounds, ast.Slice) or bounds.step is not None:
        return None
    values: list[Any] = [one.value if isinstance(one, ast.Constant) else one for one in (bounds.lower, bounds.upper)]
    items = site.target(node.value)
    if items is UNKNOWN and isinstance(node.value, ast.Attribute):  # of an object that applies them
        items = attributes_of(site.target(node.value.value)).get(node.value.attr)
    if not isinstance(items, (list, tuple)) or not all(one is None or isinstance(one, int) for one in values):
        return None
    return items[slice(*values)] if all(map(callable, items)) else None


def _method_draws(method: FunctionType, owner: Any, seen: set[str]) -> bool:
    """Whether a method uses attributes or other methods of its object that draw random numbers."""
    attributes = attributes_of(owner)
    for name in all_names(method.__code__) - seen:
        seen.add(name)
        if name in attributes:
            value = attributes[name]
            if draws(value) if callable(value) else any(map(is_generator, _parts(value))):
                return True
        inner = getattr(type(owner), name, None)
        if isinstance(inner, FunctionType) and (_draws(inner) or _method_draws(inner, owner, seen)):
            return True
    return False


def draws(function: Any) -> bool:
    """Whether something that can be called, such as a transform, seems to draw random numbers."""
    name = getattr(function, "__name__", type(function).__name__)
    return bool(RANDOM.search(name)) or _draws(function)


def _draws(function: Any) -> bool:
    """Whether something that can be called refers to a generator, or to names of `RANDOM`."""
    for part in _parts(function):
        if is_generator(part):
            return True
        if isinstance(part, type) and RANDOM.search(part.__name__):
            return True
        if isinstance(part, FunctionType) and any(map(RANDOM.search, all_names(part.__code__))):
            return True
    return False


def _parts(obj: Any) -> Iterator[Any]:
    """Return the nearest objects that an object refers to, itself included."""
    return itertools.islice(reachable(obj), MAX_OBJECTS)
