"""`remedies()` for a deque of which items in the middle are taken, such as a replay buffer."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
from test_remedies import defined, proposals, rewritten

from nbloader.remedies.kinds.deque_index import HELPER, MANY

pytestmark = pytest.mark.unit


class Buffer:
    def __init__(self, length=MANY):
        self.items = deque((f"item {number}" for number in range(length)), maxlen=length)
        self.rows = list(range(length))


TAKEN = {
    "one": ("self.items[i]", True),
    "several": ("[self.items[k] for k in (i, 2 * i, -i)]", True),
    "a sample": ("random.sample(self.items, 5)", True),
    "at the beginning": ("self.items[0] + self.items[1]", False),
    "at the end": ("self.items[-1]", False),
    "of a list": ("self.rows[i] + random.sample(self.rows, 5)[0]", False),
}


@pytest.mark.parametrize(("taken", "found"), TAKEN.values(), ids=TAKEN)
def test_items_of_a_list_are_taken_instead(taken, found, tmp_path):
    function = defined(tmp_path, f"import random\ndef f(self, i):\n    return {taken}")
    owner = type("Own", (Buffer,), {"f": function})()
    listed = proposals("deque-index", function, owner=owner)
    assert len(listed) == found
    for proposal in listed:
        assert proposal.must_be_equal
        new = rewritten(function, proposal)
        for i in range(0, 400, 7):
            random.seed(i)
            usual = function(owner, i)
            random.seed(i)
            assert new(owner, i) == usual
            owner.items.append(f"new {i}")  # the oldest one goes


@pytest.mark.parametrize(
    "body",
    ["return self.items[i]", "self.items[i] = i\n    x = 1\n    return self.items[i + 1]"],
    ids=["short", "items that are replaced"],
)
def test_a_deque_is_left_alone(body, tmp_path):
    function = defined(tmp_path, f"def f(self, i):\n    {body}")
    owner = type("Own", (Buffer,), {"f": function})(MANY - ("=" not in body))
    assert not proposals("deque-index", function, owner=owner)


def test_the_list_is_made_again_when_the_deque_has_changed():
    names = {}
    exec(HELPER, names)
    list_of, items = names["list_of"], deque(range(5), maxlen=5)
    drawn = np.random.default_rng(0)
    for _ in range(200):
        assert list_of(items) == list(items)
        change = drawn.integers(4)
        if change == 0:
            items.append(int(drawn.integers(9)))
        elif change == 1:
            items.appendleft(int(drawn.integers(9)))
        elif change == 2 and items:
            items.pop()
    assert list_of(deque([1])) == [1], "another deque"
    long = deque(range(MANY))
    assert len({id(list_of(long)) for _ in range(MANY // 2)}) == 1, "it is kept while nothing changes"
