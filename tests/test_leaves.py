"""What of a batch is moved, and that its structure stays."""

from __future__ import annotations

import collections
import types
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from nbloader.batch.pytree import map_leaves

pytestmark = pytest.mark.unit


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Frozen:
    x: Any
    name: str
    derived: Any = field(init=False, default=None)


class Movable:
    def __init__(self, where="here"):
        self.where = where

    def to(self, where):
        return Movable(where)


class Tagged(dict):
    """A mapping that carries more than its items."""

    tag = None


def doubled(batch):
    return map_leaves(batch, lambda leaf: leaf * 2)


ONE, TWO = torch.ones(2), torch.full((2,), 2.0)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (ONE, TWO),
        ([ONE, 3, "x"], [TWO, 3, "x"]),
        ((ONE, (ONE,)), (TWO, (TWO,))),
        ({"a": ONE, "b": [ONE]}, {"a": TWO, "b": [TWO]}),
        (Pair(ONE, 1), Pair(TWO, 1)),
        (collections.OrderedDict(a=ONE), collections.OrderedDict(a=TWO)),
        (collections.deque([ONE]), collections.deque([TWO])),
        (types.MappingProxyType({"a": ONE}), types.MappingProxyType({"a": TWO})),
        (range(3), [0, 1, 2]),
        (bytearray(b"ab"), bytearray(b"ab")),
        (None, None),
    ],
)
def test_containers_keep_their_type_and_leaves_are_changed(batch, expected):
    got = doubled(batch)
    assert type(got) is type(expected)
    assert str(got) == str(expected)
    assert str(ONE) == str(torch.ones(2)), "the batch itself is left alone"


def test_dataclasses_keep_their_type_and_may_be_frozen():
    batch = Frozen(ONE, "a")
    got = doubled(batch)
    assert torch.equal(got.x, TWO)
    assert (got.name, got.derived, type(got)) == ("a", None, Frozen)
    assert torch.equal(batch.x, ONE)


def test_a_mapping_keeps_what_it_carries_beside_its_items():
    batch = Tagged(a=ONE)
    batch.tag = "kept"
    got = doubled(batch)
    assert (type(got), got.tag) == (Tagged, "kept")
    assert torch.equal(got["a"], TWO)
    assert torch.equal(batch["a"], ONE)


def test_own_types_are_leaves_by_their_method_only():
    batch = [Movable(), Movable, np.ones(2)]
    got = map_leaves(batch, lambda leaf: leaf.to("there"))
    assert got[0].where == "there"
    assert got[1] is Movable, "a class is no leaf"
    assert got[2] is batch[2]
    assert map_leaves([Movable()], pytest.fail, method="pin_memory")[0].where == "here"
