"""What a function computes for each sample although it is the same for all samples."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nbloader.remedies import flow
from nbloader.remedies.changes import changed_by_class, changed_in_place, is_change, root_of
from nbloader.remedies.moved import Arguments, are_whole_lines, text_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Node, Site

CHEAP = frozenset({"len", "int", "float", "str", "range", "isinstance", "getattr", "min", "max", "super", "type"})
"""Built-in functions whose calls take next to no time."""
ITERATORS = frozenset({
    "open", "zip", "map", "filter", "iter", "reversed", "enumerate", "reader", "DictReader", "islice", "chain", "File",
    "connect", "cursor", "execute", "ZipFile", "Dataset", "Session", "Popen", "scandir", "iterdir", "glob",
})  # fmt: skip
"""Functions whose results can be used only once, or hold a file or a connection open."""
OWN = frozenset({"deepcopy", "copy", "clone", "zeros", "ones", "full", "empty"})
"""Functions whose result is meant to be another object for each sample, which may be changed."""
READS = frozenset(
    {"open", "read_text", "read_bytes", "load", "loadtxt", "genfromtxt", "fromfile", "imread", "read_csv", "read_table"}
)
"""Functions that read a file."""
ONCE = '''\
_computed = {}

def computed_once(function, *values):
    """What a function returns for some values, computed once per process."""
    key = function, *((type(one), one) if isinstance(one, (int, float, str)) else id(one) for one in values)
    if key not in _computed:
        _computed[key] = function(*values), values  # objects that are kept alive keep their ids
    return _computed[key][0]
'''


class Constant(NamedTuple):
    """Code whose result is the same for all samples."""

    nodes: tuple[Node, ...]
    """Statements of the function, in their order, or one expression."""
    results: tuple[str, ...] = ()
    """The names that the statements assign and later code reads."""
    opened: ast.withitem | None = None
    """What opens the file that the expression reads; None if it reads none of a `with` statement."""
    iterated: bool = False
    """Whether the expression is what a loop iterates over."""

    @property
    def reads(self) -> bool:
        """Whether it reads a file."""
        calls = [node for node in flow.inside(self.nodes) if isinstance(node, ast.Call)]
        return self.opened is not None or any(_called(call) in READS for call in calls)

    @property
    def name(self) -> str:
        """Name of the function that computes it."""
        called = next((_called(node) for node in flow.inside(self.nodes) if isinstance(node, ast.Call)), "")
        return f"fixed_{(*self.results, called or 'value')[0]}"

    def proposal(self, site: Site, why: str, instead: str, short: str, *, is_certain: bool) -> Proposal | None:
        """Propose to compute it once; None if it cannot be a function of its own.

        Args:
            site: The slow line.
            why: See `Proposal`.
            instead: See `Proposal`.
            short: See `Proposal`.
            is_certain: See `Proposal`.
        """
        nodes = [*self.nodes, *([] if self.opened is None else [self.opened.context_expr])]
        available = {*site.function.__code__.co_freevars, *flow.global_values(site, nodes)}
        given = Arguments(site, nodes, available, by_contents=False)
        if given.impossible:
            return None
        names = given.names_with([])
        call = f"computed_once({', '.join([self.name, *names.values()])})"
        if self.results:
            body = [node for node in self.nodes if isinstance(node, ast.stmt)]
            if not all(are_whole_lines(site, [node]) for node in body):
                return None
            text = "\n".join(
                text_of(site, [node], [edit for edit in given.edits if _is_in(edit.node, node)]) for node in body
            )
            text += f"\nreturn {', '.join(self.results)}"
            code = _without(site, body, f"{', '.join(self.results)} = {call}")
        else:
            (value,) = self.nodes
            new = ast.unparse(given.nodes[0])
            text = f"return list({new})" if self.iterated else f"return {new}"
            if self.opened is not None and self.opened.optional_vars is not None:
                handle = site.text(self.opened.optional_vars)
                text = f"with {ast.unparse(given.nodes[1])} as {handle}:\n    {text}"
            code = site.rewritten(Edit(value, call))
        body_text = text.replace("\n", "\n    ")
        helper = f"{ONCE}\ndef {self.name}({', '.join(names)}):\n    {body_text}\n"
        return Proposal(
            why, instead, code, helper, must_help=True, must_be_equal=True, short=short, is_certain=is_certain,
            shortens_waits=True,
        )  # fmt: skip


def constant_parts(site: Site) -> Iterator[Constant]:
    """Return what is computed on the slow line, and what leads to it, if that is the same for all samples."""
    if inspect.isgeneratorfunction(site.function) or isinstance(site.tree, ast.AsyncFunctionDef):
        return  # it may run once for many samples
    body = flow.statements(site)
    fixed = _fixed(site, body)
    slow = next((stmt for stmt in body if stmt.lineno <= site.number <= (stmt.end_lineno or 0)), None)
    if slow in fixed:
        needed = _leading_to(fixed, body, slow)
        rest = [stmt for stmt in body if stmt not in needed]
        later = flow.read(rest)
        results = tuple(name for name in flow.assigned(needed) if name in later)
        changed = {name for stmt in rest for name in _changed(stmt)}
        filled = {name for stmt in needed for name in _modified(stmt)}
        kept = not any(_is_used_up(stmt, results, filled) for stmt in needed)
        if results and kept and changed.isdisjoint(flow.assigned(needed)) and any(map(_computes, needed)):
            yield Constant(tuple(needed), results)
    elif slow is not None:
        yield from _expressions(site, slow)


def _is_used_up(stmt: ast.stmt, results: Sequence[str], filled: set[str]) -> bool:
    """Whether a statement assigns an iterator, an open file or a copy to one of some names.

    Args:
        stmt: The statement.
        results: The names.
        filled: Names of new objects that later statements fill once.
    """
    for node in ast.walk(stmt):
        if isinstance(node, ast.withitem) and node.optional_vars is not None:
            names = flow.assigned([node.optional_vars])
        elif isinstance(node, ast.Assign) and (_is_iterator(node.value) or isinstance(node.value, ast.GeneratorExp)):
            names = flow.assigned([node])
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _called(node.value) in OWN:
            names = [name for name in flow.assigned([node]) if name not in filled]
        else:
            continue
        if set(names) & set(results):
            return True
    return False


def _is_iterator(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _called(node) in ITERATORS


def _called(node: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _fixed(site: Site, body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements that do the same for all samples: they read only globals, attributes and each other."""
    changed = changed_by_class(site)
    fixed = [stmt for stmt in body if flow.can_move(site, [stmt]) and not changed.is_read(site, stmt)]
    while True:
        others = [stmt for stmt in body if stmt not in fixed]
        varying = {*flow.parameters(site), *(name for stmt in others for name in _changed(stmt))} - {_instance(site)}
        kept = [
            stmt for stmt in fixed
            if varying.isdisjoint([*flow.read([stmt]), *_changed(stmt)]) and not _uses_whole(site, stmt)
        ]  # fmt: skip
        if len(kept) == len(fixed):
            return kept
        fixed = kept


def _leading_to(fixed: Sequence[ast.stmt], body: Sequence[ast.stmt], slow: ast.stmt) -> list[ast.stmt]:
    """Return a statement, those that it needs, and those after it that compute something from these alone."""
    names = set(flow.read([slow])) | set(_changed(slow))
    chosen = [slow]
    for stmt in reversed(fixed[: fixed.index(slow)]):
        if names & set(_changed(stmt)):
            chosen.insert(0, stmt)
            names |= set(flow.read([stmt]))
    known = {name for stmt in chosen for name in _changed(stmt)}
    for stmt in fixed[fixed.index(slow) + 1 :]:
        local = set(flow.read([stmt])) & {name for one in body for name in flow.assigned([one])}
        if known & local and local <= known | set(_changed(stmt)):
            chosen.append(stmt)
            known |= set(_changed(stmt))
    return chosen


def _expressions(site: Site, slow: ast.stmt) -> Iterator[Constant]:
    """Return the largest expressions on the slow line that are the same for all samples and that compute something.

    What a loop iterates over counts for all lines of the loop.
    """
    local = {*flow.parameters(site), *flow.assigned(flow.statements(site)), *_bound(slow)} - {_instance(site)}
    changed = changed_by_class(site)
    opened, modified = _opened(site, slow, local), set(_modified(site.tree))
    waiting: list[tuple[ast.AST, ast.AST]] = [(slow, slow)]
    while waiting:
        node, parent = waiting.pop(0)
        loops = isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is node
        around = parent if loops and isinstance(parent, ast.For) else node
        here = isinstance(around, (ast.expr, ast.For)) and around.lineno <= site.number <= (around.end_lineno or 0)
        if here and isinstance(node, (ast.Call, ast.BinOp, ast.Name, ast.ListComp, ast.SetComp, ast.DictComp)):
            read = flow.read([node])
            handle = next((name for name in read if name in opened), "")
            own = isinstance(node, ast.Call) and _called(node) in OWN
            used_up = _is_iterator(node) or (isinstance(node, ast.Name) and bool(handle))
            fixed = (local - set(_bound(node)) - {handle}).isdisjoint(read) and not _uses_whole(site, node)
            returned = isinstance(parent, (ast.Return, ast.Tuple)) and not handle
            method = isinstance(parent, ast.Attribute) and is_change(parent.attr)
            shared = method or not modified.isdisjoint(flow.assigned([site.statement(node)]))
            computes = bool(handle) or (_computes(node) and not _is_cheap(site, node))
            if (
                fixed
                and computes
                and (loops or not used_up)
                and not (returned or shared or own or changed.is_read(site, node))
                and flow.can_move(site, [node])
            ):
                yield Constant((node,), (), opened.get(handle), used_up)
                continue
        if not isinstance(node, ast.Lambda):
            waiting = [(child, node) for child in ast.iter_child_nodes(node)] + waiting


def _opened(site: Site, slow: ast.stmt, local: set[str]) -> dict[str, ast.withitem]:
    """Return what opens the same file for each sample, by the name of the file, if that is used once."""
    read = [node.id for node in site.body if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    found = {}
    for item in (item for node in ast.walk(slow) if isinstance(node, ast.With) for item in node.items):
        opens = _is_iterator(item.context_expr) and local.isdisjoint(flow.read([item.context_expr]))
        if opens and isinstance(item.optional_vars, ast.Name) and read.count(item.optional_vars.id) == 1:
            found[item.optional_vars.id] = item
    return found


def _bound(node: ast.AST) -> list[str]:
    """Return the names that the comprehensions and lambdas in some code bind."""
    targets = [one.target for one in ast.walk(node) if isinstance(one, ast.comprehension)]
    given = [one.arg for one in ast.walk(node) if isinstance(one, ast.arg)]
    return [*given, *(name.id for name in flow.inside(targets) if isinstance(name, ast.Name))]


def _computes(node: ast.AST) -> bool:
    """Whether code calls something that may take time."""
    return any(
        isinstance(one, (ast.For, *flow.COMPREHENSIONS)) or (isinstance(one, ast.Call) and _called(one) not in CHEAP)
        for one in ast.walk(node)
    )


def _is_cheap(site: Site, node: ast.AST) -> bool:
    """Whether code only iterates over lists, which takes no time before the first item."""
    if not isinstance(node, ast.Call) or _called(node) not in ("enumerate", "zip", "reversed"):
        return False
    return all(type(site.target(one)) in (list, tuple, dict, range, str) for one in node.args)


def _changed(stmt: ast.stmt) -> list[str]:
    """Return the names that a statement assigns, or whose objects it changes."""
    return list(dict.fromkeys([*flow.assigned([stmt]), *_modified(stmt)]))


def _modified(stmt: ast.AST) -> list[str]:
    """Return the names whose objects some code changes in place."""
    roots = map(root_of, changed_in_place(stmt))
    return [root.id for root in roots if root is not None]


def _instance(site: Site) -> str:
    return site.instance if site.owner is not None else ""


def _uses_whole(site: Site, node: ast.AST) -> bool:
    """Whether code uses `self` other than for its attributes, or calls one of its methods."""
    attributes = [one for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)]
    own = [one for one in attributes if one.value.id == _instance(site)]  # type: ignore[attr-defined]
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name) and one.id == _instance(site)]
    return bool(names) and len(names) != len(own)


def _is_in(node: ast.AST, stmt: ast.stmt) -> bool:
    return stmt.lineno <= getattr(node, "lineno", 0) <= (stmt.end_lineno or stmt.lineno)


def _without(site: Site, nodes: Sequence[ast.stmt], first: str) -> str:
    """Return the function without some statements; another one takes the place of the first of them."""
    lines: list[str | None] = list(site.source.splitlines(keepends=True))
    for node in nodes:
        for number in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[number] = None
    lines[nodes[0].lineno - 1] = " " * nodes[0].col_offset + first + "\n"
    return "".join(line for line in lines if line is not None)
