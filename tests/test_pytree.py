"""Containers of a batch keep their type when leaves are changed or chunks are merged."""

from __future__ import annotations

import collections
import types
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from nbloader.batch.pytree import map_leaves, merge

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
    """A mapping with an attribute beside its items."""

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


def test_a_mapping_keeps_its_attributes():
    batch = Tagged(a=ONE)
    batch.tag = "kept"
    got = doubled(batch)
    assert (type(got), got.tag) == (Tagged, "kept")
    assert torch.equal(got["a"], TWO)
    assert torch.equal(batch["a"], ONE)


def test_objects_with_the_method_are_leaves():
    batch = [Movable(), Movable, np.ones(2)]
    got = map_leaves(batch, lambda leaf: leaf.to("there"))
    assert got[0].where == "there"
    assert got[1] is Movable, "a class is no leaf"
    assert got[2] is batch[2]
    assert map_leaves([Movable()], pytest.fail, method="pin_memory")[0].where == "here"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([np.ones(2), np.zeros(1)], np.array([1.0, 1.0, 0.0])),
        ([ONE, TWO], torch.tensor([1.0, 1.0, 2.0, 2.0])),
        ([["a"], ["b", "c"]], ["a", "b", "c"]),
        ([("a",), ("b",)], ("a", "b")),
        ([[ONE, ["a"]], [TWO, ["b"]]], [torch.tensor([1.0, 1.0, 2.0, 2.0]), ["a", "b"]]),
        ([{"a": ONE, "b": ["x"]}, {"b": ["y"], "a": TWO}], {"a": torch.tensor([1.0, 1.0, 2.0, 2.0]), "b": ["x", "y"]}),
        ([Pair(ONE, ["a"]), Pair(TWO, ["b"])], Pair(torch.tensor([1.0, 1.0, 2.0, 2.0]), ["a", "b"])),
        ([Frozen(ONE, ["a"]), Frozen(TWO, ["b"])], Frozen(torch.tensor([1.0, 1.0, 2.0, 2.0]), ["a", "b"])),
        ([Movable], Movable),
    ],
    ids=lambda value: str(value)[:20],
)
def test_collated_chunks_are_merged_to_one_batch_of_their_type(parts, expected):
    got = merge(parts)
    assert type(got) is type(expected)
    assert str(got) == str(expected)


def test_chunks_that_cannot_be_merged_are_refused_by_the_name_of_their_type():
    with pytest.raises(TypeError, match="chunks that hold Movable cannot be joined"):
        merge([{"a": Movable()}, {"a": Movable()}])
