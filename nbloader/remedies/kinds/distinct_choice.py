"""A few different items, for which NumPy shuffles all."""

from __future__ import annotations

import ast
from typing import NamedTuple

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

HELPER = '''\
def distinct_choice(values, size):
    """As np.random.choice(values, size, replace=False), with other random numbers: it does not shuffle all values."""
    number = values if isinstance(values, (int, NUMPY.integer)) else len(values)
    if not isinstance(size, (int, NUMPY.integer)) or 2 * size * size > number:
        return NUMPY.random.choice(values, size, replace=False)
    index = NUMPY.random.randint(number, size=size)
    while len(set(index.tolist())) < size:
        index = NUMPY.random.randint(number, size=size)
    if isinstance(values, (int, NUMPY.integer)):
        return index
    return values[index] if isinstance(values, NUMPY.ndarray) else NUMPY.array([values[i] for i in index.tolist()])
'''


class DistinctChoice:
    """`np.random.choice(items, 4, replace=False)`: it converts all items to an array, and draws a whole permutation."""

    name = "distinct-choice"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        here = set(site.nodes)
        draws = [draw for call in site.calls("numpy.random.choice", anywhere=True) if (draw := _draw(site, call))]
        if not any(draw.call in here for draw in draws):
            return []
        numpy = site.module("numpy", "np")
        return [
            Proposal(
                why="To draw a few different items, NumPy shuffles all of them.",
                instead="Draw again if two are the same, as below. All items are as likely, but others are drawn.",
                code=site.rewritten(*(Edit(draw.call, draw.text) for draw in draws)),
                helper=f"{numpy.helper}\n\n{HELPER.replace('NUMPY', numpy.name)}".lstrip(),
                must_differ=True,
                short="Draw a few items without shuffling all",
                is_certain=False,
            )
        ]


class _Draw(NamedTuple):
    """A draw without replacement."""

    call: ast.Call
    text: str
    """What to write instead."""


def _draw(site: Site, call: ast.Call) -> _Draw | None:
    """Return a draw of different items that are equally likely."""
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        return None
    given = dict(zip(("a", "size", "replace", "p"), call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    again = given.get("replace")
    if given.keys() != {"a", "size", "replace"} or not (isinstance(again, ast.Constant) and again.value is False):
        return None
    return _Draw(call, f"distinct_choice({site.text(given['a'])}, {site.text(given['size'])})")


REMEDY = DistinctChoice()
