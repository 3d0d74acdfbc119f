"""`state_dict()` and `load_state_dict()`: the rest of the epoch and all later epochs are equal to the byte."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from datasets import Augmented, Numbers, Raises, Slow, flat, pids
from iterables import Plain, Range, Unsavable
from resumption import SAMPLERS, STREAMS, N, Shuffling, Tuples, epochs, generator, make, plain
from torch.utils.data import DistributedSampler

from nbloader import DataLoader
from nbloader.sampling import samplers


def interrupted(name, leave_at, workers=0, **changes):
    """A loader's state during its second epoch, and what it yields after that: the rest and two epochs."""
    torch.manual_seed(7)
    random.seed(7)
    with make(name, workers, **changes) as loader:
        list(loader)
        epoch = iter(loader)
        for _ in range(leave_at):
            next(epoch)
        state = json.dumps(loader.state_dict())
        return json.loads(state), [plain(list(epoch)), *epochs(loader, 2)]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("leave_at", [0, 1, 4])
def test_the_rest_and_later_epochs_do_not_depend_on_the_number_of_workers(name, leave_at):
    state, want = interrupted(name, leave_at)
    for workers in (0, 2):
        torch.manual_seed(99)
        random.seed(99)
        with make(name, workers) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert epochs(loader) == want


@pytest.mark.parametrize("name", [n for n in SAMPLERS if n != "unbatched"])
def test_prefetched_batches_do_not_count_as_delivered(name):
    state, want = interrupted(name, 3, workers=2, prefetch=8)
    with make(name) as loader:
        loader.load_state_dict(state)
        assert epochs(loader) == want


@pytest.mark.parametrize("name", ["shuffle", "generator", "rollover", "stateful", "iterator", "skipping"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_can_be_saved_at_any_moment(name, workers):
    """Before the first epoch, in the loop's body, after a break, after the last batch, after the end."""
    torch.manual_seed(3)
    with make(name, workers) as loader:
        states = [loader.state_dict()]
        came = []
        for _ in range(3):
            for batch in loader:
                came.append(plain(batch))
                states.append(loader.state_dict())
            states.append(loader.state_dict())
            came.append("end")
    begun = [0, *[i + 1 for i in range(len(came))]]
    for position, state in list(zip(begun, states, strict=True))[:: 1 if workers == 0 else 5]:
        assert json.loads(json.dumps(state)) == state
        torch.manual_seed(4)
        with make(name, workers) as loader:
            loader.load_state_dict(state)
            got = []
            while len(got) < len(came) - position:
                got += [*epochs(loader, 1)[0], "end"]
        assert got == came[position:], position


def test_after_a_break_the_state_follows_the_last_delivered_batch():
    with make("shuffle", 2) as loader:
        for number, _batch in enumerate(loader):
            if number == 2:
                break
        state = loader.state_dict()
        assert state["epoch"]["position"] == 3
        assert loader.state_dict() == state
        after = epochs(loader, 2)
    with make("shuffle") as loader:
        loader.load_state_dict(state)
        first, *rest = epochs(loader)
        assert len(first) == len(after[0]) - 3
        assert rest == after


ELSEWHERE = {"shuffle": 3, "generator": 0, "iterator": 2, "dataset": 2, "skipping": 2}
"""The loaders that are resumed in another process, and their number of workers there."""


@pytest.fixture(scope="module")
def elsewhere():
    """What each loader must yield there, and what it yields. One process for all: its start takes longest."""
    left = {name: interrupted(name, 2, workers=2) for name in ELSEWHERE}
    asked = [(name, workers, left[name][0]) for name, workers in ELSEWHERE.items()]
    run = subprocess.run(
        [sys.executable, "-W", "error", "resumption.py"], input=json.dumps(asked),
        capture_output=True, text=True, timeout=60, check=False, cwd=pathlib.Path(__file__).parent,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    got = json.loads(run.stdout)
    return {name: (left[name][1], rest) for name, rest in zip(ELSEWHERE, got, strict=True)}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_state_resumes_in_another_process(name, elsewhere):
    want, got = elsewhere[name]
    assert got == json.loads(json.dumps(want))


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("before", [0, 3])
def test_an_iterable_dataset_resumes_with_the_same_number_of_shards(name, before):
    if name == "uneven" and not before:
        pytest.skip("it has three shards")
    state, want = interrupted(name, 5, workers=before, generator=generator())
    for workers in (0, 1, 2, 3):
        with make(name, workers, generator=generator(77)) as loader:
            loader.load_state_dict(state)
            rest = plain(list(loader))
            assert rest == want[0], workers
            if workers == before:
                assert epochs(loader, 2) == want[1:]


def test_a_dataset_state_that_json_would_change_is_reported_and_replaced_by_skipping():
    with DataLoader(Unsavable(40, None), 4, num_workers=2, collate_fn=list) as loader:
        epoch = iter(loader)
        next(epoch)
        with pytest.warns(UserWarning, match=r"changes when it is stored as JSON.*resumed by skipping"):
            state = loader.state_dict()
        rest = list(epoch)
    with DataLoader(Unsavable(40, None), 4, num_workers=1, collate_fn=list) as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert list(loader) == rest
    with DataLoader(Numbers(N), 4, sampler=Tuples(N)) as loader:
        next(iter(loader))
        with pytest.raises(TypeError, match=r"Tuples.state_dict.*plain numbers"):
            loader.state_dict()


@pytest.mark.parametrize("dataset", [Slow(60), Range(60)], ids=["map", "iterable"])
def test_with_in_order_false_no_batch_is_lost_or_repeated(dataset):
    for leave_at in (1, 7, 12):
        with DataLoader(dataset, 3, num_workers=3, in_order=False) as loader:
            epoch = iter(loader)
            came = flat([next(epoch) for _ in range(leave_at)])
            state = json.loads(json.dumps(loader.state_dict()))
        with DataLoader(dataset, 3, num_workers=2, in_order=False) as loader:
            loader.load_state_dict(state)
            epoch = iter(loader)
            came += flat([next(epoch) for _ in range(4)])
            state = json.loads(json.dumps(loader.state_dict()))
        with DataLoader(dataset, 3) as loader:
            loader.load_state_dict(state)
            came += flat(loader)
        assert sorted(came) == list(range(60))


@pytest.mark.parametrize("name", ["shuffle", "generator", "random module", "stateful", "skipping", "iterator"])
def test_kills_restarts_and_resizes_do_not_change_the_state(name):
    def run(disturb):
        torch.manual_seed(6)
        random.seed(6)
        states, came = [], []
        options = {"generator": generator(1)} if name in STREAMS else {}
        with make(name, 2, max_restarts=1000, **options) as loader:
            for _ in range(2):
                for number, batch in enumerate(loader):
                    came.append(plain(batch))
                    if disturb and number % 4 == 1:
                        with contextlib.suppress(ProcessLookupError, IndexError):
                            os.kill(pids(loader)[number % 2], signal.SIGKILL)
                    if disturb and number % 4 == 2:
                        loader.restart_workers()
                    if disturb and name not in STREAMS:
                        loader.num_workers = 1 + number % 3
                    states.append({k: v for k, v in loader.state_dict()["epoch"].items() if k != "shards"})
        return came, states

    assert run(True) == run(False)


def test_the_order_is_torchs_until_the_first_state_and_seeded_by_the_loader_after_it():
    def orders(ask, seed):
        torch.manual_seed(seed)
        with DataLoader(Numbers(30), 7, True) as loader:
            first = flat(loader)
            if ask:
                loader.state_dict()
            torch.manual_seed(seed)
            return first, flat(loader)

    torch.manual_seed(2)
    theirs = flat(torch.utils.data.DataLoader(Numbers(30), 7, True))
    assert orders(False, 2)[0] == theirs
    first, again = orders(False, 2)
    assert first == again
    first, other = orders(True, 2)
    assert first != other, "torch.s global generator is no longer used"
    assert orders(True, 2) == (first, other)
    torch.manual_seed(0)
    with DataLoader(Numbers(30), 7, True) as loader:
        loader.state_dict()
        state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        flat(loader)
        assert (torch.get_rng_state() == state[0]).all()
        assert (random.getstate(), np.random.get_state()[1].tolist()) == state[1:]


@pytest.mark.parametrize("name", ["shuffle", "generator", "skipping"])
@pytest.mark.parametrize("leave_at", [0, 2])
def test_persistent_workers_need_not_be_the_same_in_the_loader_that_resumes(name, leave_at):
    """Only the first epoch draws its seed there, as torch's; a resumed loader does the same."""
    state, want = interrupted(name, leave_at, workers=2, persistent_workers=True)
    state_of_others, wanted_by_others = interrupted(name, leave_at, workers=2)
    for changes in ({}, {"persistent_workers": True}):
        with make(name, 2, **changes) as loader:
            loader.load_state_dict(state)
            assert epochs(loader) == want
            loader.load_state_dict(state_of_others)
            assert epochs(loader) == wanted_by_others


def test_a_large_shuffled_order_is_computed_and_has_a_small_state(monkeypatch):
    monkeypatch.setattr(samplers, "LARGE", 1000)
    with DataLoader(Numbers(100_000_000), 10, True) as loader:
        epoch = iter(loader)
        for _ in range(3):
            next(epoch)
        state = loader.state_dict()
        state["epoch"]["position"] = 9_000_000
    assert len(json.dumps(state)) < 10_000
    with DataLoader(Numbers(100_000_000), 10, True) as loader:
        loader.load_state_dict(state)
        epoch = iter(loader)
        got = flat([next(epoch)])
        assert loader.state_dict()["epoch"]["position"] == 9_000_001
    monkeypatch.setattr(samplers.LargeRandomSampler, "iterate_from", lambda self, at: iter(range(at, at + 10)))
    with DataLoader(Numbers(100_000_000), 10, True) as loader:
        loader.load_state_dict(state)
        assert flat([next(iter(loader))]) == list(range(90_000_000, 90_000_010)), (
            "resumed at its position without iteration"
        )
    assert len(set(got)) == 10


def test_a_computed_order_resumes_at_any_position(monkeypatch):
    monkeypatch.setattr(samplers, "LARGE", 1000)
    with DataLoader(Numbers(9_000), 10, True) as loader:
        epoch = iter(loader)
        next(epoch)
        states = [loader.state_dict()]
        for _ in range(700):
            next(epoch)
        states.append(loader.state_dict())
        rest = [flat(epoch), flat(loader)]
    for state, more in ((states[1], 0), (states[0], 700)):
        with DataLoader(Numbers(9_000), 10, True) as loader:
            loader.load_state_dict(state)
            epoch = iter(loader)
            for _ in range(more):
                next(epoch)
            assert [flat(epoch), flat(loader)] == rest


def test_the_epoch_of_a_distributed_sampler_is_restored():
    sampler = DistributedSampler(range(N), 2, 0)
    with DataLoader(Numbers(N), 4, sampler=sampler) as loader:
        sampler.set_epoch(5)
        epoch = iter(loader)
        next(epoch)
        state = loader.state_dict()
        rest = flat(epoch)
    with DataLoader(Numbers(N), 4, sampler=DistributedSampler(range(N), 2, 0)) as loader:
        loader.load_state_dict(state)
        assert flat(loader) == rest


def test_a_batch_that_raised_counts_as_delivered():
    for workers in (0, 2):
        with DataLoader(Raises(20, bad=5, error=ValueError), 4, num_workers=workers) as loader:
            epoch = iter(loader)
            next(epoch)
            with pytest.raises(ValueError, match="sample 5 of batch 1"):
                next(epoch)
            state = loader.state_dict()
        with DataLoader(Raises(20, bad=5, error=ValueError), 4) as loader:
            loader.load_state_dict(state)
            assert flat(loader) == list(range(8, 20))


def test_with_auto_reload_the_state_follows_the_consumer():
    torch.manual_seed(1)
    with make("shuffle", 2, auto_reload=True) as loader:
        loader.state_dict()
        first = iter(loader)
        next(first)
        states = [loader.state_dict()]
        rest = plain(list(first))
        states.append(loader.state_dict())
        later = epochs(loader, 2)
    for state, want in zip(states, ([rest, *later], later), strict=True):
        with make("shuffle") as loader:
            loader.load_state_dict(state)
            assert epochs(loader, len(want)) == want


def test_a_state_is_small():
    with DataLoader(Numbers(100_000), 10, True, num_workers=2, generator=generator()) as loader:
        epoch = iter(loader)
        for _ in range(20):
            next(epoch)
        assert len(json.dumps(loader.state_dict())) < 10_000
        assert len(list(epoch)) == 10_000 - 20


# ---- states that are refused


def modified(state, path, value):
    state = json.loads(json.dumps(state))
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    if value is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return state


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["nbloader"], 2, "version 2; this nbloader reads version 1"),
        (["nbloader"], KeyError, "version None"),
        (["length"], 42, r"saved with len\(dataset\)=42, here it is 41"),
        (["batch_size"], 8, "saved with batch_size=8, here it is 4"),
        (["last_batch"], "rollover", "saved with last_batch='rollover', here it is 'keep'"),
        (["sampler"], "Other", "saved with sampler='Other', here it is 'BatchSampler/RandomSampler'"),
        (["kind"], "iterable", "saved with kind='iterable', here it is 'map'"),
        (["own_seed"], "x", "'own_seed' of the state must be int, not 'x'"),
        (["next_epoch"], True, "'next_epoch' of the state must be int, not True"),
        (["epoch"], [], "'epoch' of the state must be dict or NoneType"),
        (["epoch", "position"], -1, "'position' of the epoch of the state must not be negative"),
        (["epoch", "position"], 1.5, "'position' of the epoch of the state must be int"),
        (["epoch", "position"], 12, "position 12.*with 11 batches"),
        (["epoch", "beyond"], ["a"], "'beyond'.*batch numbers"),
        (["epoch", "seed"], KeyError, "the epoch of the state has no 'seed'"),
        (["epoch", "order"], "x", "'order' of the epoch of the state must be int or dict or NoneType"),
        (["epoch", "order"], {"torch": "AAAA"}, "state of .*generator.* cannot be read"),
        (["epoch", "order"], {}, "state of the random generators cannot be read"),
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_is_refused_and_the_loader_is_unchanged(path, value, message):
    state, _want = interrupted("shuffle", 2)
    torch.manual_seed(5)
    with make("shuffle") as calm:
        want = epochs(calm, 1)
    torch.manual_seed(5)
    with make("shuffle") as loader:
        with pytest.raises(ValueError, match=message):
            loader.load_state_dict(modified(state, path, value))
        assert epochs(loader, 1) == want


def test_malformed_states_are_refused():
    state, _want = interrupted("skipping", 2, workers=2)
    with make("skipping") as loader:
        for wrong in ("{}", None, [], b""):
            with pytest.raises(TypeError, match="takes what state_dict"):
                loader.load_state_dict(wrong)
        for path, value, message in (
            (["epoch", "count"], 3, "2 shards instead of 3"),
            (["epoch", "shards", 0], 7, "a shard of the state has no 'position'"),
            (["epoch", "shards", 0, "over"], 1, "'over' of a shard of the state must be bool, not 1"),
            (["epoch", "shards", 0, "state"], [1], "'state' of a shard"),
            (["epoch", "shards", 0, "state"], [9, {}], "'state' of a shard"),
            (["epoch", "generators"], ["AAAA"], "with 1 generators, here there are 0"),
        ):
            with pytest.raises(ValueError, match=message):
                loader.load_state_dict(modified(state, path, value))
        assert len(list(loader)) == len(list(DataLoader(Plain(53), 4)))


def test_a_state_of_another_sampler_is_refused():
    state, _want = interrupted("shuffle", 2)
    with (
        DataLoader(Augmented(N), 4, sampler=Shuffling(N)) as loader,
        pytest.raises(ValueError, match="sampler='BatchSampler/RandomSampler', here it is 'BatchSampler/Shuffling'"),
    ):
        loader.load_state_dict(state)


def test_loading_does_not_change_the_global_generators():
    state, _want = interrupted("random module", 3)
    torch.manual_seed(1)
    random.seed(1)
    want = torch.rand(2).tolist(), random.random()
    torch.manual_seed(1)
    random.seed(1)
    with make("random module") as loader, warnings.catch_warnings():
        loader.load_state_dict(state)
        list(loader)
    assert (torch.rand(2).tolist(), random.random()) == want


def test_chunked_batches_resume_between_batches():
    torch.manual_seed(1)
    with DataLoader(Augmented(N), 4, True, num_workers=2, chunk_size=2) as loader:
        epoch = iter(loader)
        next(epoch)
        state = json.loads(json.dumps(loader.state_dict()))
        want = [plain(list(epoch)), *epochs(loader, 1)]
    with DataLoader(Augmented(N), 4, True, num_workers=1, chunk_size=2) as loader:
        loader.load_state_dict(state)
        assert epochs(loader, 2) == want
    with DataLoader(Augmented(N), 4, True) as loader, pytest.raises(ValueError, match="chunk_size=2, here it is None"):
        loader.load_state_dict(state)
