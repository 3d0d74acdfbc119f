"""A lock that is held while a sample is not only read, but also decoded."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

_HOLE = "..."
"""Stands for a statement that is written again elsewhere."""
WHY = "Each worker holds the lock while it produces its sample, so the workers take turns."
SHORT = "Hold the lock only while the file is read"


class LockHeld:
    """`with self.lock:` around the whole fetch: only what touches the shared file needs the lock."""

    name = "lock-held"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        for block in site.body:
            if not isinstance(block, ast.With) or len(block.items) != 1:
                continue
            inside = block.lineno <= site.number <= (block.end_lineno or block.lineno)
            if inside and _is_lock(site, block.items[0].context_expr):
                return [_shorter(site, block)]
        return []


def _is_lock(site: Site, node: ast.expr) -> bool:
    target = site.target(node)
    if hasattr(target, "acquire") and hasattr(target, "release"):
        return True
    return "lock" in site.text(node).lower().rpartition(".")[2]


def _shorter(site: Site, block: ast.With) -> Proposal:
    """Propose to hold the lock up to the last statement that touches something shared."""
    own = [number for number, statement in enumerate(block.body) if _touches(site, statement)]
    last = own[-1] if own else 0
    if last + 1 >= len(block.body):
        instead = (
            "Give each worker its own file or connection (open it in the worker, not in __init__), and drop the lock."
        )
        return Proposal(WHY, instead, saves="lock", untried="whether the lock is still needed is for you to judge")
    instead = (
        "Hold it only while the shared file is read, and decode after that. Check that what follows touches nothing "
        "that the lock protects. If each worker has its own file, no lock is needed."
    )
    lines = [site.text(part) for part in block.body[last + 1 :]]
    deeper = block.body[0].col_offset
    after = "\n".join(_dedented(text, deeper) for text in lines)
    kept = site.rewritten(*(Edit(part, _HOLE) for part in block.body[last + 1 :]))
    # The statements are removed where they stand, and written again after the block.
    source = "".join(line for line in kept.splitlines(keepends=True) if line.strip() != _HOLE)
    at = block.body[last].end_lineno or block.body[last].lineno
    rows = source.splitlines(keepends=True)
    indent = " " * block.col_offset
    added = "".join(f"{indent}{line}\n" if line else "\n" for line in after.split("\n"))
    code = "".join([*rows[:at], added, *rows[at:]])
    return Proposal(WHY, instead, code, saves="lock", short=SHORT, is_certain=False)


def _dedented(text: str, columns: int) -> str:
    """Remove the indentation of a statement from its lines after the first one."""
    first, *rest = text.split("\n")
    return "\n".join([first, *(line[columns:] if not line[:columns].strip() else line for line in rest)])


def _touches(site: Site, statement: ast.stmt) -> bool:
    """Whether a statement may use what the lock protects: an attribute or a global that is no function or constant."""
    called = {id(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == site.instance:
            target = site.target(node)
            if id(node) not in called or not callable(target) or hasattr(type(site.owner), node.attr):
                return True
        if isinstance(node, ast.Name) and hasattr(site.target(node), "read"):
            return True  # an open file
    return False


REMEDY = LockHeld()
