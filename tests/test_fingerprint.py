"""A fingerprint changes when the pickle would: when a dataset of the notebook has changed."""

from __future__ import annotations

import functools
import sys
import types

import numpy as np
import pytest
import torch

from nbloader import DataLoader
from nbloader.transport import fingerprint
from nbloader.transport.dataset_payload import SharedPickle

pytestmark = pytest.mark.unit

CELL = """
import numpy as np
scale = 2
table = {"a": [1, 2]}
unrelated = open
def helper(x, by=1, *, also=[]):
    return x * scale + len(table["a"])
def wrapped(f):
    return functools.wraps(f)(lambda self, i: f(self, i))
class Base:
    kind = "base"
class Plain:
    kind = "base"
class Slotted:
    __slots__ = ("slot",)
class Dataset(Base):
    offset = 1
    slotted = Slotted()
    def __init__(self):
        self.items = [1, 2, 3]
    def __len__(self):
        return len(self.items)
    @property
    def first(self):
        return helper(self.items[0])
    @wrapped
    def __getitem__(self, i):
        return [np.full(3, helper(x)) + np.linalg.norm(i) for x in self.items]
"""
CHANGES = {
    "a number that a function uses": "scale = 3",
    "what a function uses, in place": "table['a'].append(3)",
    "a function that a method uses": "def helper(x): return x",
    "a default": "helper.__defaults__ = (2,)",
    "a default, in place": "helper.__kwdefaults__['also'].append(1)",
    "an attribute": "dataset.items = [1, 2]",
    "an attribute, in place": "dataset.items[0] = 5",
    "a method": "Dataset.__len__ = lambda self: 1",
    "an attribute of the class": "Dataset.offset = 2",
    "an attribute of the base": "Base.kind = 'other'",
    "a base": "Dataset.__bases__ = (Plain,)",
    "the name of the class": "Dataset.__name__ = 'Version2'",
    "the name of a function": "helper.__name__ = 'other'",
    "the text of a function": "helper.__doc__ = 'other'",
    "a slot": "Dataset.slotted.slot = 1",
    "a class like it": "class Slotted: __slots__ = ('slot',)\nDataset.slotted.__class__ = Slotted",
    "a property": "Dataset.first = property(lambda self: 0)",
    "code": "helper.__code__ = (lambda x, by=1, *, also=[]: 0).__code__",
    "an attribute of a function": "helper.note = 1",
    "its class": "class New(Dataset): pass\ndataset.__class__ = New",
    "a large array": "dataset.items = np.zeros(100_000)",
    "a name that was not there": "del scale",
}


def notebook() -> dict:
    """A dataset as a notebook cell defines it."""
    names: dict = {"__name__": "__main__", "functools": functools}
    exec(CELL, names)
    exec("dataset = Dataset()", names)
    return names


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_the_pickle_changes_the_fingerprint(change):
    names = notebook()
    dataset = names["dataset"]
    pickled, before = SharedPickle(dataset), fingerprint.fingerprint(dataset)
    assert fingerprint.worthwhile(pickled.data)
    assert SharedPickle(dataset).identity == pickled.identity
    assert fingerprint.fingerprint(dataset) == before
    exec(change, names)
    assert SharedPickle(dataset).identity != pickled.identity
    assert fingerprint.fingerprint(dataset) != before


def test_a_new_submodule_of_what_a_function_uses_changes_both(monkeypatch):
    """Code that failed without it works in new workers."""
    names = notebook()
    exec("def helper(x): return np.late.one(x)", names)
    pickled, before = SharedPickle(names["dataset"]), fingerprint.fingerprint(names["dataset"])
    monkeypatch.setitem(sys.modules, "numpy.late", types.ModuleType("numpy.late"))
    assert SharedPickle(names["dataset"]).identity != pickled.identity
    assert fingerprint.fingerprint(names["dataset"]) != before


def test_a_submodule_that_numpy_imports_by_itself_changes_nothing(monkeypatch):
    """Otherwise workers are replaced between epochs because something else, such as torch.optim, has imported it."""
    names = notebook()
    exec("import random\ndef helper(x): return x + random.random() + np.fft.fft([x])[0]", names)
    for module in ("numpy.random", "numpy.fft"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    pickled = SharedPickle(names["dataset"])
    for module in ("numpy.random", "numpy.fft"):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    assert SharedPickle(names["dataset"]).identity == pickled.identity


def test_closures():
    def make(by):
        def inner(i):
            return i + by + (later if i else 0)

        if by > 5:
            later = by
        if by < 0:
            later = None
        return inner

    one = make(1)
    before = fingerprint.fingerprint(one)
    assert fingerprint.fingerprint(one) == before == fingerprint.fingerprint(make(1))
    assert fingerprint.fingerprint(make(2)) != before
    assert fingerprint.fingerprint(make(6)) != fingerprint.fingerprint(make(7))
    unset = make(-1)
    with_none = fingerprint.fingerprint(unset)
    del unset.__closure__[unset.__code__.co_freevars.index("later")].cell_contents
    assert fingerprint.fingerprint(unset) != with_none


def test_a_function_that_calls_itself():
    names: dict = {"__name__": "__main__"}
    exec("def count(n): return n and 1 + count(n - 1)", names)
    before = fingerprint.fingerprint(names["count"])
    assert fingerprint.fingerprint(names["count"]) == before


def test_functions_of_modules_are_identified_by_name():
    assert fingerprint.fingerprint(np.full) == fingerprint.fingerprint(np.full) != fingerprint.fingerprint(np.ones)


def test_no_fingerprint_is_taken_of_data_without_code():
    assert not fingerprint.worthwhile(SharedPickle(list(range(100))).data)
    assert not fingerprint.worthwhile(SharedPickle((notebook()["dataset"], "x" * 100_000)).data)


def stacked(loader) -> torch.Tensor:
    return torch.stack([torch.stack(batch) for batch in loader])


def test_a_dataset_that_did_not_change_is_pickled_once(monkeypatch):
    names = notebook()
    with DataLoader(names["dataset"], num_workers=1) as loader:
        before = stacked(loader)
        monkeypatch.setattr("nbloader.transport.process_setup.SharedPickle", None)
        assert torch.equal(stacked(loader), before)
        exec("scale = 3", names)
        monkeypatch.undo()
        assert not torch.equal(stacked(loader), before)
