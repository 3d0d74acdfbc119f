"""Items that are drawn with probabilities, whose sums are computed for each draw."""

from __future__ import annotations

import ast
from typing import NamedTuple

import numpy as np

from nbloader.remedies.changes import changed_by_class
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

MANY = 50
"""Number of probabilities from which their sums take more time than the draw."""
HELPER = '''\
_sums = {}

def weighted_choice(values, probabilities, size=None):
    """As np.random.choice(values, size, p=probabilities), with sums that are computed once per process."""
    key = id(probabilities)
    if key not in _sums:
        sums = NUMPY.asarray(probabilities, dtype=NUMPY.float64).cumsum()
        _sums[key] = sums / sums[-1], probabilities  # an object that is kept alive keeps its id
    index = _sums[key][0].searchsorted(NUMPY.random.random(size), side="right")
    if NUMPY.ndim(values):
        return NUMPY.asarray(values)[index]
    return int(index) if size is None else index
'''


class WeightedChoice:
    """`np.random.choice(n, p=self.weights)`: the sums of the probabilities are the same for each draw."""

    name = "weighted-choice"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        here = set(site.nodes)
        draws = [draw for call in site.calls("numpy.random.choice", anywhere=True) if (draw := _draw(site, call))]
        if not any(draw.call in here for draw in draws):
            return []
        numpy = site.module("numpy", "np")
        many = max(draw.number for draw in draws)
        return [
            Proposal(
                why=f"Each draw adds up all {many:,} probabilities, and checks them.",
                instead="Add them up once, as below. The same items are drawn.",
                code=site.rewritten(*(Edit(draw.call, draw.text) for draw in draws)),
                helper=f"{numpy.helper}\n\n{HELPER.replace('NUMPY', numpy.name)}".lstrip(),
                must_be_equal=True,
                short="Add up the probabilities once",
            )
        ]


class _Draw(NamedTuple):
    """A draw with probabilities."""

    call: ast.Call
    number: int
    """Number of probabilities."""
    text: str
    """What to write instead."""


def _draw(site: Site, call: ast.Call) -> _Draw | None:
    """Return a draw whose probabilities are an attribute or a global variable that nothing changes."""
    given = dict(zip(("a", "size", "replace", "p"), call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    again = given.pop("replace", None)
    if "a" not in given or "p" not in given or len(given) - ("size" in given) != 2:  # noqa: PLR2004 - a and p
        return None
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        return None
    if again is not None and not (isinstance(again, ast.Constant) and again.value is True):
        return None
    probabilities = site.target(given["p"])
    if type(probabilities) not in (np.ndarray, list, tuple) or len(probabilities) < MANY:
        return None
    if changed_by_class(site).is_read(site, given["p"]):
        return None
    parts = [site.text(given[name]) for name in ("a", "p", "size") if name in given]
    return _Draw(call, len(probabilities), f"weighted_choice({', '.join(parts)})")


REMEDY = WeightedChoice()
