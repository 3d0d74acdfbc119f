"""An item in the middle of a long deque, which is found by stepping through it."""

from __future__ import annotations

import ast
from collections import deque

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

MANY = 1000
"""Number of items from which a deque takes longer for one in its middle than the call of `list_of`."""
HELPER = '''\
_lists = {}

def list_of(items):
    """The items of a deque as a list, which is made again when items were added or removed."""
    values, steps, of = _lists.get(id(items), (None, iter(()), None))
    try:
        next(steps)  # raises RuntimeError if items were added or removed
    except (RuntimeError, StopIteration):
        of = None
    if of is not items:
        if len(_lists) > 8:
            _lists.clear()
        steps = iter(items)  # before the list: another thread may add an item meanwhile
        values = list(items)
        _lists[id(items)] = values, steps, items
    return values
'''


class DequeIndex:
    """`self.buffer[index]` and `random.sample(self.buffer, 32)` where the buffer is a `collections.deque`."""

    name = "deque-index"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        here = set(site.nodes)
        found = [(node, held) for node in site.body if (held := _indexed(site, node)) is not None]
        if not any(node in here for node, _held in found) or _replaces_items(site, found):
            return []
        longest = max(found, key=lambda one: len(site.target(one[1])))[1]
        length = len(site.target(longest))
        return [
            Proposal(
                why=(
                    f"A deque finds an item by stepping to it from its nearer end, and {site.text(longest)} has "
                    f"{length:,} items."
                ),
                instead=(
                    "Keep them in a list, in which each is found at once: if it is full, replace the oldest item, "
                    "`items[count % size] = item`. Or let the code below make a list of the deque, again whenever "
                    "items were added or removed. It does not notice items that are replaced or shuffled."
                ),
                code=site.rewritten(*(Edit(held, f"list_of({site.text(held)})") for _node, held in found)),
                helper=HELPER,
                must_be_equal=True,
                short="Use a list instead of a deque",
                is_certain=False,
            )
        ]


def _indexed(site: Site, node: ast.AST) -> ast.expr | None:
    """Return the deque of which an expression takes items somewhere; None if it is none, or a short one."""
    held: ast.expr | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and not isinstance(node.slice, ast.Slice):
        held = None if _is_end(node.slice) else node.value
    elif isinstance(node, ast.Call) and node in site.calls("random.sample", anywhere=True) and node.args:
        held = node.args[0]
    if held is None or isinstance(held, ast.Starred):
        return None
    items = site.target(held)
    return held if isinstance(items, deque) and len(items) >= MANY else None


def _is_end(index: ast.expr) -> bool:
    """Whether an index is that of the first or the last item."""
    number = index.operand if isinstance(index, ast.UnaryOp) else index
    return isinstance(number, ast.Constant) and number.value in (0, 1)


def _replaces_items(site: Site, found: list[tuple[ast.AST, ast.expr]]) -> bool:
    """Whether the function replaces items of the deque."""
    names = {site.text(held) for _node, held in found}
    stored = [node for node in site.body if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)]
    return any(site.text(node.value) in names for node in stored)


REMEDY = DequeIndex()
