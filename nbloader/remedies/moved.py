"""Code that is moved to a function of its own: what becomes an argument, and the text."""

from __future__ import annotations

import ast
import copy
import os
import sys
import textwrap
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from nbloader._util.attributes import attributes_of
from nbloader.cache.digest import DigestError, Walk
from nbloader.cache.owner import is_users_module
from nbloader.remedies import flow
from nbloader.remedies.changes import changed_by_class
from nbloader.remedies.site import UNKNOWN, Edit, Node, Site

LONG = 100_000
"""Size of an array, a table or a list, with its items, from which it is compared once per process, bytes."""
WHOLE = "dataset"
"""Name of the argument that `self` becomes as a whole."""
HANDLES = frozenset({
    "open", "connect", "cursor", "execute", "reader", "DictReader", "iter", "File", "ZipFile", "Dataset", "Session",
    "Popen", "scandir", "Lock", "RLock", "Semaphore", "Condition", "memmap", "mmap",
})  # fmt: skip
"""Functions whose results stand for something open, such as a file or a connection, and have no contents to compare."""


def are_whole_lines(site: Site, kept: Sequence[ast.stmt]) -> bool:
    """Whether statements share no line with others, and have no strings whose indentation counts."""
    lines = site.source.splitlines()
    before = lines[kept[0].lineno - 1].encode()[: kept[0].col_offset]
    last = kept[-1].end_lineno or kept[-1].lineno
    after = lines[last - 1].encode()[kept[-1].end_col_offset or 0 :].strip()
    texts = [node for node in flow.inside(kept) if isinstance(node, (ast.Constant, ast.JoinedStr))]
    return not before.strip() and after[:1] in (b"", b"#") and all(node.lineno == node.end_lineno for node in texts)


def text_of(site: Site, nodes: Sequence[ast.stmt], edits: Sequence[Edit]) -> str:
    """Return the source of statements without their indentation, with some nodes replaced."""
    first, last = nodes[0], nodes[-1]
    return textwrap.dedent(" " * first.col_offset + site.rewritten(*edits, part=(first, last)))


def handles(site: Site) -> set[str]:
    """Return the variables of a function that stand for something open: what `with` binds, or what `HANDLES` return."""
    names: set[str] = set()
    for node in site.body:
        if isinstance(node, ast.withitem) and node.optional_vars is not None:
            names |= set(flow.assigned([node.optional_vars]))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
            called = node.value.func
            if (called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")) in HANDLES:
                names |= set(flow.assigned([node]))
    return names


def _can_compare(value: Any) -> bool:
    """Whether a value has contents that can be compared."""
    if value is UNKNOWN:
        return True
    try:
        Walk().visit(value)
    except DigestError:
        return False
    return True


def _is_long(value: Any) -> bool:
    """Whether a value, with the items and attributes in it, is longer than `LONG`."""
    total, waiting, seen = 0, [value], set()
    while waiting:
        obj = waiting.pop()
        if id(obj) in seen or isinstance(obj, (type, ModuleType, FunctionType, BuiltinFunctionType)):
            continue
        seen.add(id(obj))
        nbytes = getattr(obj, "nbytes", 0) if hasattr(type(obj), "nbytes") else 0
        total += max(sys.getsizeof(obj), nbytes if isinstance(nbytes, int) else 0)
        if total > LONG:
            return True
        if isinstance(obj, dict):
            waiting += [*obj, *obj.values()]
        elif isinstance(obj, (list, tuple, set, frozenset)):
            waiting += obj
        waiting += attributes_of(obj).values()
    return False


class Arguments(ast.NodeTransformer):
    """Makes arguments of the attributes of `self` in some code, and of the items of such attributes.

    Args:
        site: The slow line.
        nodes: The code.
        available: Names that have a value before the code is run.
        by_contents: Whether the contents of the arguments are compared for each sample.
        whole: Whether `self` itself becomes an argument, instead of its attributes: for code that calls its methods.
    """

    def __init__(
        self, site: Site, nodes: Sequence[Node], available: set[str], *, by_contents: bool = True, whole: bool = False
    ) -> None:
        self._site = site
        self._by_contents = by_contents
        self._whole = whole
        self._before = available - set(flow.assigned(nodes))
        self._text_depth = 0
        self.names: dict[str, str] = {}
        """Expressions by the names of the arguments."""
        self.fixed: list[str] = []
        """The arguments that are large: they are compared once per process."""
        self.edits: list[Edit] = []
        """What is replaced in the code."""
        self.impossible = isinstance(site.tree, ast.AsyncFunctionDef) or not all(
            flow.can_move(site, [node.value if isinstance(node, ast.Return) and node.value is not None else node])
            for node in nodes
        )
        """Whether there is a method of `self`, the whole of `self`, or something random."""
        if whole:
            attributes = attributes_of(site.owner).values()
            self.impossible |= not self._instance or bool(changed_by_class(site).attributes)
            self.impossible |= not all(_is_long(one) or _can_compare(one) for one in attributes)
        self.nodes = [self.visit(copy.deepcopy(node)) for node in nodes]
        """The code, with the arguments."""
        if whole:
            self.fixed += [name for name, text in self.names.items() if text == self._instance]
        self.local = [name for name in flow.read(self.nodes) if name in available and name not in self.names]
        """Names that the code reads."""
        self.impossible |= bool(self._instance) and self._instance in self.local
        self.impossible |= by_contents and not handles(site).isdisjoint(self.local)

    def names_with(self, others: Sequence[str]) -> dict[str, str]:
        """Return the arguments, with some other names, and their expressions."""
        read = dict.fromkeys([*flow.read(self.nodes), *others])
        return {name: self.names.get(name, name) for name in read if name in {*self.names, *self.local, *others}}

    @property
    def _instance(self) -> str:
        return self._site.instance if self._site.owner is not None else ""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace `self` by an argument, if it is one as a whole."""
        return self._argument(node, WHOLE) if self._whole and node.id == self._instance else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace `self.path` by `path`."""
        if self._whole:
            return self.generic_visit(node)
        if not self._is_own(node):
            return self._argument(node, node.attr) if self._is_setting(node) else self.generic_visit(node)
        value = self._site.target(node)
        cls = type(self._site.owner)
        if callable(getattr(cls, node.attr, None)):
            inner = next((vars(base)[node.attr] for base in cls.__mro__ if node.attr in vars(base)), None)
            known = self._site.function.__globals__.get(cls.__name__) is cls
            self.impossible |= not (known and isinstance(inner, (staticmethod, classmethod)))
            return self._replaced(node, ast.Attribute(ast.Name(cls.__name__, ast.Load()), node.attr, ast.Load()))
        self.impossible |= isinstance(getattr(cls, node.attr, None), property)  # it may return another object each time
        argument = self._argument(node, node.attr)
        if self._by_contents and not self.impossible and value is not UNKNOWN and _is_long(value):
            self.impossible |= changed_by_class(self._site).is_read(self._site, node)
            self.fixed.append(next(name for name, text in self.names.items() if text == ast.unparse(node)))
        elif self._by_contents:  # to compare a large one would take long here: a trial does it
            self.impossible |= not _can_compare(value)
        return argument

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace `self.paths[i]` by an argument: a key of all paths would be computed for each sample.

        The item of a data frame is a column, or many rows.
        """
        if self._whole:
            return self.generic_visit(node)
        own = isinstance(node.value, ast.Attribute) and self._is_own(node.value)
        table = own and type(self._site.target(node.value)).__name__ == "DataFrame"
        if own and table and not self._by_contents and isinstance(node.slice, ast.Constant):
            return self._argument(node, str(node.slice.value))
        if own and not table and self._is_known(node.slice):
            return self._argument(node, f"one_of_{ast.unparse(node.value).rpartition('.')[2].strip('_')}")
        return self._argument(node, "setting") if self._is_setting(node) else self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Replace `self.folder + "/" + name` by a path."""
        return self._argument(node, "path") if self._is_path(node) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace `os.path.join(self.folder, name)` by a path."""
        joins = self._site.target(node.func) is os.path.join and self._is_path(node)
        return self._argument(node, "path") if joins else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Replace the whole of an f-string: Python 3.11 does not know the places of its parts."""
        if self._is_path(node):
            return self._argument(node, "path")
        before = ast.unparse(node)
        self._text_depth += 1
        found = self.generic_visit(node)
        self._text_depth -= 1
        return found if ast.unparse(found) == before else self._replaced(node, found)

    def _is_path(self, node: ast.expr) -> bool:
        """Whether an expression makes a path from an attribute of `self`, or from a global variable.

        Changes of a file are noticed by its path, and samples of one file share what is kept.
        """
        parts = [inner for inner in ast.walk(node) if isinstance(inner, (ast.Attribute, ast.Name))]
        if self._whole:
            return False
        known = [
            inner for inner in parts if self._by_contents or (isinstance(inner, ast.Attribute) and self._is_own(inner))
        ]
        texts = [inner for inner in known if isinstance(self._site.target(inner), (str, os.PathLike))]
        return bool(texts) and self._is_known(node)

    def _is_known(self, node: ast.expr) -> bool:
        """Whether the value of an expression is known before the code is run."""
        own = {*self._site.function.__code__.co_varnames, *self._site.names_inside}
        return self._before.issuperset(own & set(flow.read([node])))

    def _is_setting(self, node: ast.expr) -> bool:
        """Whether an expression is a part of something that can get another value, while contents are not compared.

        Examples are `self.config.size`, `CONFIG["size"]` and the attributes of a module or class of the user.
        """
        value = UNKNOWN if self._by_contents else self._value_of(node)
        return value is not UNKNOWN and not callable(value) and not isinstance(value, ModuleType)

    def _value_of(self, node: ast.expr) -> Any:
        """Return the present value of a variable, or of a part of it, without running code; `UNKNOWN` if not known."""
        if isinstance(node, ast.Name):
            return self._site.owner if node.id == self._instance else self._site.target(node)
        if isinstance(node, ast.Attribute):
            base = self._value_of(node.value)
            if not isinstance(base, (ModuleType, type)):
                return attributes_of(base).get(node.attr, UNKNOWN)
            module = base if isinstance(base, ModuleType) else sys.modules.get(base.__module__)
            changes = module is None or is_users_module(module)
            return vars(base).get(node.attr, UNKNOWN) if changes else UNKNOWN
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            base, key = self._value_of(node.value), node.slice.value
            if type(base) is dict or (
                type(base) in (list, tuple) and type(key) is int and -len(base) <= key < len(base)
            ):
                return base.get(key, UNKNOWN) if type(base) is dict else base[key]
        return UNKNOWN

    def _is_own(self, node: ast.Attribute) -> bool:
        return bool(self._instance) and isinstance(node.value, ast.Name) and node.value.id == self._instance

    def _argument(self, node: ast.expr, name: str) -> ast.AST:
        text = ast.unparse(node)
        name = name.lstrip("_") or "value"
        taken = {inner.id for inner in self._site.body if isinstance(inner, ast.Name)}
        while name in taken or self.names.get(name, text) != text:
            name += "_"
        self.names[name] = text
        return self._replaced(node, ast.Name(name, ast.Load()))

    def _replaced(self, node: ast.expr, new: ast.AST) -> ast.AST:
        if not self._text_depth:
            self.edits.append(Edit(node, ast.unparse(new)))
        return new
