"""States and pickles saved by the version before the packages load. `saved_by_0_1.json` holds them literally."""

from __future__ import annotations

import base64
import json
import pathlib
import pickle
import random
import sys

import pytest
import torch
from resumption import epochs, make

import nbloader
from nbloader import DataLoader, FilterSampler, IntervalSampler

SAVED = json.loads((pathlib.Path(__file__).parent / "saved_by_0_1.json").read_text())
STATES = SAVED["states"]
"""By name: the loader (of `resumption.make`) and its arguments, the state, and what that version yielded after it."""


def unpickle(name):
    return pickle.loads(base64.b64decode(SAVED["pickles"][name]))


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_saved_state_yields_what_the_version_that_saved_it_yielded(name, workers):
    saved = STATES[name]
    torch.manual_seed(99)
    random.seed(99)
    rest = saved["rest"]
    if saved["state"]["kind"] == "iterable" and workers != saved["state"]["epoch"]["count"]:
        rest = rest[:1]  # later epochs have as many shards as there are workers here
    with make(saved["loader"], workers, **saved["arguments"]) as loader:
        loader.load_state_dict(saved["state"])
        assert loader.state_dict() == saved["state"]
        assert json.loads(json.dumps(epochs(loader, len(rest)))) == rest


def test_every_key_of_a_saved_state_is_still_written():
    for name, saved in STATES.items():
        with make(saved["loader"], **saved["arguments"]) as loader:
            next(iter(loader))
            written = loader.state_dict()
            assert list(written) == list(saved["state"]), name
            if saved["state"]["epoch"] is not None:
                assert set(written["epoch"]) == set(saved["state"]["epoch"]), name


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("rollover", [4, 4]),
        ("interval sampler", [[0, 3, 6, 9], [1, 4, 7, 2], [5, 8]]),
        ("filter sampler", [[1, 2, 3, 4], [5, 6, 7, 8], [9]]),
    ],
)
def test_a_pickled_loader_is_a_loader_with_the_same_batches(name, batches):
    with unpickle(name) as loader:
        assert type(loader) is DataLoader
        got = [batch.tolist() for batch in loader]
        assert batches in (got, [len(batch) for batch in got])


def test_a_pickled_generator_is_in_its_state():
    with unpickle("shuffled, with a generator") as loader:
        reference = torch.utils.data.DataLoader(
            list(range(10)), 4, shuffle=True, generator=torch.Generator().manual_seed(3)
        )
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in reference]


def test_pickled_samplers_and_the_class_are_those_of_today():
    assert unpickle("the class itself") is DataLoader
    with (
        unpickle("interval sampler") as one,
        unpickle("filter sampler") as other,
        unpickle("large and shuffled") as big,
    ):
        assert (type(one.sampler), type(other.sampler)) == (IntervalSampler, FilterSampler)
        assert len(big) == 25_000_000
        assert len(set(next(iter(big)).tolist())) == 4
    package = pathlib.Path(nbloader.__file__).parent
    for name in ("torchlike", "order", "sampler"):
        assert pathlib.Path(sys.modules[f"nbloader.{name}"].__file__).parent == package / "_v0_1"
