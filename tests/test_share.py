"""`nbloader.share` of lists and dicts: read-only, in memory once for all processes."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from datasets import run_script
from hypothesis import given
from hypothesis import strategies as st

import nbloader
from nbloader import DataLoader
from nbloader.transport.dataset_payload import SharedPickle, load_shared

keys = st.recursive(
    st.one_of(st.text(), st.binary(), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none()),
    lambda parts: st.one_of(st.tuples(parts, parts), st.frozensets(parts)),
    max_leaves=4,
)
values = st.recursive(
    keys, lambda parts: st.one_of(st.lists(parts), st.dictionaries(st.text(), parts)), max_leaves=6
)  # fmt: skip
lists = st.one_of(
    st.lists(values), st.lists(st.text()), st.lists(st.binary()), st.lists(st.integers()), st.lists(st.booleans()),
    st.lists(st.floats(allow_nan=False)), st.lists(st.characters(categories=["Cs"])),
)  # fmt: skip


def in_worker(obj):
    """The object as a worker gets it."""
    pickled = SharedPickle(obj)
    return load_shared(pickled.files())


@given(lists)
def test_a_shared_list_has_the_items_of_the_list(items):
    shared = nbloader.share(items)
    assert isinstance(shared, Sequence)
    assert list(shared) == items
    assert list(map(type, shared)) == list(map(type, items))
    assert [shared[i] for i in range(-len(items), len(items))] == items * 2
    assert shared[1:-1:2] == items[1:-1:2]
    assert shared == items == in_worker(shared) == nbloader.share(iter(items))
    assert shared != [*items, 1]
    for index in (len(items), -len(items) - 1):
        with pytest.raises(IndexError, match="out of range for a shared list"):
            shared[index]


@given(st.dictionaries(keys, values), keys)
def test_a_shared_dict_has_the_items_of_the_dict(items, other):
    shared = nbloader.share(items)
    assert isinstance(shared, Mapping)
    assert list(shared) == list(items)
    assert shared == items
    assert (other in shared) == (other in items)
    assert shared.get(other, "none") == items.get(other, "none")
    theirs = in_worker(shared)
    assert [theirs[key] for key in items] == list(items.values())


def test_keys_that_are_equal_find_the_same_item():
    shared = nbloader.share({1: "one", 2.5: "more", (3, "x"): "tuple", "5": "text"})
    assert shared[True] == shared[1.0] == shared[np.int64(1)] == shared[np.float32(1)] == "one"
    assert shared[np.float64(2.5)] == "more"
    assert shared[3.0, "x"] == "tuple"
    assert 5 not in shared
    with pytest.raises(TypeError, match="unhashable"):
        shared[[]]


def test_keys_that_could_not_be_found_are_refused():
    with pytest.raises(TypeError, match=r"keys of a shared dict must be strings, .* not object"):
        nbloader.share({object(): 1})
    assert object() not in nbloader.share({"a": 1})


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *((list, name) for name in ("append", "extend", "remove", "pop", "__delitem__", "__iadd__")),
        *((dict, name) for name in ("update", "setdefault", "pop", "__delitem__", "__ior__")),
    ],
)
def test_a_change_is_an_error_that_says_what_to_do(kind, change):
    shared = nbloader.share([1, 2] if kind is list else {0: 1})
    with pytest.raises(TypeError, match=rf"a shared {kind.__name__} cannot be changed: .*share that again"):
        getattr(shared, change)(0)
    with pytest.raises(TypeError, match="cannot be changed"):
        shared[0] = 5
    assert shared[0] == 1


def test_each_access_gives_a_new_object():
    shared = nbloader.share([{"a": []}])
    shared[0]["a"].append(1)
    assert shared[0] == {"a": []}


def test_containers_are_not_copied_and_say_what_they_are():
    shared = nbloader.share(["x" * 1000] * 1000)
    assert nbloader.share(shared) is copy.deepcopy(shared) is copy.copy(shared) is shared
    assert repr(shared) == "<shared list of 1,000 items, 1.0 MB>"
    assert repr(nbloader.share({1: 2})) == "<shared dict of 1 items, 0.0 MB>"
    assert pickle.loads(pickle.dumps(shared)) == list(shared)


def test_memory_is_one_file_for_all_processes():
    records = [{"id": i, "name": f"{i:09d}"} for i in range(10_000)]
    shared, by_id = nbloader.share(records), nbloader.share({record["id"]: record for record in records})
    pickled = SharedPickle((shared, by_id))
    assert pickled.files().pickle.nbytes < 5_000
    assert {span.file for span in pickled.files().spans} == {1, 2}
    theirs, theirs_by_id = in_worker((shared, by_id))
    assert theirs == records
    assert theirs_by_id[77] == records[77]


@dataclasses.dataclass
class Record:
    """An item of an importable class."""

    number: int


def test_items_may_be_of_any_class():
    class Local(Record):
        """Of no module that could be imported."""

    items = [Record(1), Local(2), Local(3), None, Local]
    shared = nbloader.share(items)
    assert list(shared) == items
    theirs = in_worker(shared)
    assert [item.number for item in theirs[:3]] == [1, 2, 3]
    assert type(theirs[1]) is type(theirs[2]) is theirs[4]


TENSORS = {
    "numbers": torch.arange(12.0).view(3, 4),
    "one number": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "booleans": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
    "transposed": torch.arange(6).view(2, 3).t(),
    "a slice": torch.arange(12).view(3, 4)[:, 1:3],
    "expanded": torch.ones(1, 3).expand(5, 3),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "with a gradient": torch.ones(3, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
    "a parameter": torch.nn.Parameter(torch.ones(2)),
}
TENSORS["with an attribute"] = torch.ones(2)
TENSORS["with an attribute"].label = "cat"


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_keep_what_they_are(name):
    tensor = TENSORS[name]
    shared = nbloader.share([{"x": tensor}, tensor])
    for found in (shared[0]["x"], shared[1], in_worker(shared)[1]):
        assert type(found) is type(tensor)
        assert (found.dtype, found.shape, found.layout) == (tensor.dtype, tensor.shape, tensor.layout)
        assert found.requires_grad == tensor.requires_grad
        assert getattr(found, "label", None) == getattr(tensor, "label", None)
        assert torch.equal(found.to_dense(), tensor.to_dense())
    with torch.no_grad():
        shared[1].zero_()
    assert torch.equal(shared[1].to_dense(), tensor.to_dense()), "each access gives a new object"


def test_a_part_of_a_tensor_takes_its_own_memory_only():
    large = torch.zeros(1_000_000)
    assert nbloader.share([large[start : start + 10] for start in range(0, 100, 10)]).nbytes < 10_000


def test_a_small_tensor_takes_little_more_than_its_memory():
    tensors = [torch.full((8,), float(i)) for i in range(1000)]
    assert nbloader.share(tensors).nbytes < 1000 * (8 * 4 + 230), "torch's own pickle has 400 bytes more"


def test_workers_read_a_shared_list_of_objects_of_the_main_program(tmp_path):
    script = """
import dataclasses, json, nbloader

@dataclasses.dataclass
class Record:
    number: int

class Dataset:
    def __init__(self):
        self.items = nbloader.share([Record(i) for i in range(20_000)])
        self.by_name = nbloader.share({str(i): i for i in range(20_000)})
    def __len__(self):
        return 40
    def __getitem__(self, i):
        item = self.items[i * 100]
        assert type(item) is Record
        return item.number + self.by_name[str(i)]

with nbloader.DataLoader(Dataset(), 10, num_workers=2) as loader:
    print(json.dumps([int(x) for batch in loader for x in batch]))
"""
    assert json.loads(run_script(script, tmp_path).stdout) == [i * 101 for i in range(40)]


def test_a_shared_list_is_a_dataset():
    with DataLoader(nbloader.share([f"text {i}" for i in range(10)]), 5, num_workers=0) as loader:
        assert [text for batch in loader for text in batch] == [f"text {i}" for i in range(10)]
