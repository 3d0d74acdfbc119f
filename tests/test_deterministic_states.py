"""States of loaders that draw no random numbers: equal at equal positions, and as exact as others."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbloader import DataLoader

pytestmark = pytest.mark.unit


class Draws:
    """Sample i is (i, a random number), from the moment on when `drawing` is set; (i, 0) before."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.drawing = False

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, float]:
        if not self.drawing:
            return index, 0.0
        drawn = {"random": random.random, "numpy": _numpy, "torch": lambda: torch.rand(()).item()}
        return index, drawn[self.source]()


def _numpy() -> float:
    import numpy as np

    return float(np.random.random())


def plain(batch: Any) -> Any:
    return [part.tolist() for part in batch]


def part_of(loader: DataLoader[Any], batches: int) -> Any:
    """The first batches of an epoch, which is then left."""
    found = []
    for batch in loader:
        found.append(plain(batch))
        if len(found) == batches:
            break
    return found


def saved(loader: DataLoader[Any]) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


def test_states_are_equal_at_equal_positions_whatever_was_drawn_before():
    states = []
    for epochs in (2, 4):
        loader = DataLoader(Draws("random"), batch_size=2)
        for _ in range(epochs):
            torch.rand(7)
            part_of(loader, 2)
            last = saved(loader)
        states.append(last)
    assert states[0] == states[1]
    assert states[0]["epoch"]["position"] == 2


def test_also_those_of_a_resumed_run_and_between_epochs():
    loader = DataLoader(Draws("random"), batch_size=2)
    for _ in range(3):
        part_of(loader, 4)
        first = saved(loader)
    other = DataLoader(Draws("random"), batch_size=2)
    other.load_state_dict(first)
    assert saved(other) == first
    part_of(other, 99)
    saved(other)
    ends = []
    for each in (loader, other):
        part_of(each, 99)
        ends.append(saved(each))
    assert ends[0] == ends[1]
    assert ends[0]["epoch"] is None


def test_they_differ_after_another_torch_manual_seed():
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)  # the fixture restores it
        loader = DataLoader(Draws("random"), batch_size=2)
        for _ in range(2):
            part_of(loader, 2)
            last = saved(loader)
        found.append(last["own_seed"])
    assert found[0] != found[1]


@pytest.mark.parametrize("source", ["random", "numpy", "torch"])
def test_the_epochs_of_a_dataset_that_draws_differ(source):
    dataset = Draws(source)
    dataset.drawing = True
    loader = DataLoader(dataset, batch_size=2)
    epochs = []
    for _ in range(4):
        epochs.append(json.dumps(part_of(loader, 6)))
        saved(loader)
    assert len(set(epochs)) == 4


def test_a_shuffled_order_is_not_restarted():
    loader = DataLoader(range(20), batch_size=2, shuffle=True)
    orders = []
    for _ in range(4):
        orders.append(str([batch.tolist() for batch in loader]))
        saved(loader)
    assert len(set(orders)) == 4


@settings(max_examples=60, deadline=None)
@given(save_at=st.lists(st.integers(0, 17), min_size=1, max_size=4, unique=True), begins=st.integers(0, 17))
def test_an_uninterrupted_run_goes_on_as_the_one_that_resumes(save_at, begins):
    dataset = Draws("random")
    loader = DataLoader(dataset, batch_size=2)
    states, seen = {}, []
    for _epoch in range(3):
        for batch in loader:
            seen.append(plain(batch))
            if len(seen) - 1 in save_at:
                states[len(seen)] = saved(loader)
            dataset.drawing = len(seen) >= begins
    for at, state in states.items():
        copied = Draws("random")
        other = DataLoader(copied, batch_size=2)
        other.load_state_dict(state)
        resumed = seen[:at]
        copied.drawing = at >= begins
        while len(resumed) < len(seen):
            for batch in other:
                resumed.append(plain(batch))
                copied.drawing = len(resumed) >= begins
                if len(resumed) in save_at:
                    saved(other)
        assert resumed == seen


def test_a_batch_that_was_delivered_before_is_made_again_as_it_was():
    dataset = Draws("random")
    loader = DataLoader(dataset, batch_size=2)
    delivered = {}
    for epoch in range(4):
        for number, batch in enumerate(loader):
            delivered[epoch, number] = plain(batch)
            saved(loader)
            dataset.drawing = (epoch, number) >= (2, 3)
    for (epoch, number), batch in delivered.items():
        dataset.drawing = (epoch, number) >= (2, 4)
        assert plain(loader.replay(epoch, number).batch) == batch
