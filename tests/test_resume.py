"""`state_dict()` and `load_state_dict()`: the rest of the epoch and all later epochs are equal to the byte."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from datasets import Augmented, Numbers, Raises, Slow, all_pids, flat, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st
from iterables import Plain, Range, StatefulDataset, Unsavable
from resumption import SAMPLERS, STREAMS, N, Remembering, Shuffling, Tuples, epochs, generator, make, plain
from torch.utils.data import DistributedSampler, get_worker_info

from nbloader import DataLoader
from nbloader.sampling import samplers
from nbloader.scheduler import dispatcher
from nbloader.workers.iterable_fetcher import _resume


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


@pytest.mark.portable
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
        [sys.executable, "-W", "error", "-W", "ignore:This DataLoader will create", "resumption.py"],
        input=json.dumps(asked),
        capture_output=True, text=True, timeout=90, check=False, cwd=pathlib.Path(__file__).parent,
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
def test_kills_restarts_and_resizes_do_not_change_the_state(name, monkeypatch):
    monkeypatch.setattr(dispatcher, "MAX_DEATHS", 1000)  # on a busy machine, one batch may meet three of the kills

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
                        running = all_pids(loader)
                        with contextlib.suppress(ProcessLookupError):  # its restart has just been carried out
                            os.kill(running[number % len(running)], signal.SIGKILL)
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
        (["nbloader"], 2, "version 2. This nbloader reads version 1"),
        (["nbloader"], KeyError, "version None"),
        (["nbloader"], True, "version True"),
        (["length"], 42, r"state_dict\['length'\] is 42, here len\(dataset\) is 41"),
        (["length"], 10**100, r"state_dict\['length'\] must be up to 9007199254740992, not an integer of 333 bits"),
        (["batch_size"], 8, r"state_dict\['batch_size'\] is 8, here batch_size is 4"),
        (["last_batch"], "rollover", r"state_dict\['last_batch'\] is 'rollover', here last_batch is 'keep'"),
        (["sampler"], "Other", r"state_dict\['sampler'\] is 'Other', here sampler is 'BatchSampler/RandomSampler'"),
        (["kind"], "iterable", r"state_dict\['kind'\] is 'iterable', here kind is 'map'"),
        (["own_seed"], "x", r"state_dict\['own_seed'\] must be int, not 'x'"),
        (
            ["own_seed"],
            1 << 64,
            r"state_dict\['own_seed'\] must be up to 18446744073709551615, not 18446744073709551616",
        ),
        (["next_epoch"], True, r"state_dict\['next_epoch'\] must be int, not True"),
        (["first_seed"], [], r"state_dict\['first_seed'\] must be int, not list"),
        (["generators"], [None], r"state_dict\['generators'\]\[0\] must be str, not None"),
        (["epoch"], [], r"state_dict\['epoch'\] must be dict or None, not list"),
        (["epoch"], {}, r"state_dict\['epoch'\] has no 'number'"),
        (["epoch", "number"], 10**100, r"state_dict\['epoch'\]\['number'\] must be up to .*333 bits"),
        (
            ["epoch", "position"],
            -1,
            r"state_dict\['epoch'\]\['position'\] must be a number that is not negative, not -1",
        ),
        (["epoch", "position"], 1.5, r"state_dict\['epoch'\]\['position'\] must be int, not 1.5"),
        (["epoch", "position"], 12, r"\['position'\] is position 12.*with 11 batches"),
        (["epoch", "beyond"], ["a"], r"state_dict\['epoch'\]\['beyond'\]\[0\] must be int, not 'a'"),
        (["epoch", "beyond"], [3, 2], r"\['beyond'\]\[1\] must be a batch number above 2 and below 11, not 2"),
        (["epoch", "beyond"], [11], r"\['beyond'\]\[0\] must be a batch number above 2 and below 11, not 11"),
        (["epoch", "beyond"], [3, 3], r"\['beyond'\] must not repeat"),
        (["epoch", "seed"], KeyError, r"state_dict\['epoch'\] has no 'seed'"),
        (["epoch", "seed"], 10**100, r"state_dict\['epoch'\]\['seed'\] must be up to"),
        (["epoch", "order"], "x", r"state_dict\['epoch'\]\['order'\] must be int or dict or None, not 'x'"),
        (["epoch", "order"], {"torch": "AAAA"}, r"\['order'\]\['torch'\].*generator.* cannot be read"),
        (["epoch", "order"], {"torch": None}, r"\['order'\]\['torch'\] must be a str"),
        (["epoch", "order"], {}, r"state_dict\['epoch'\]\['order'\] has no 'torch'"),
        (["epoch", "generators"], [7], r"state_dict\['epoch'\]\['generators'\]\[0\] must be str, not 7"),
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


def plain_batches(batches):
    return [[part.tolist() for part in batch] for batch in batches]


class Fussy(StatefulDataset):
    """Accepts only states that it has saved in this shard."""

    def load_state_dict(self, state):
        if state.get("forged"):
            raise LookupError("forged")
        worker = get_worker_info()
        assert worker is None or worker.num_workers == 2
        super().load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_that_the_dataset_refuses_is_named_and_changes_nothing(workers):
    with DataLoader(Fussy(24), 4, num_workers=workers) as loader:
        it = iter(loader)
        next(it)
        wait_for(lambda: any(shard["state"] for shard in loader.state_dict()["epoch"]["shards"]))
        state = loader.state_dict()
        shard = next(i for i, shard in enumerate(state["epoch"]["shards"]) if shard["state"])
        rest = plain_batches(it)
    wrong = modified(state, ["epoch", "shards", shard, "state", 1, "dataset"], {"forged": True})
    wrong["own_seed"] = 1
    with DataLoader(Fussy(24), 4, num_workers=workers) as other:
        other.load_state_dict(state)
        before = random.getstate()
        with pytest.raises(
            ValueError, match=re.escape(f"['shards'][{shard}]['state'][1]['dataset'] was refused by Fussy")
        ):
            other.load_state_dict(wrong)
        assert random.getstate() == before
        assert get_worker_info() is None
        assert other.state_dict() == state
        assert plain_batches(other) == rest


def test_a_state_that_an_iterator_refuses_names_its_shard():
    with pytest.raises(ValueError, match=re.escape("shard 0 (state_dict['epoch']['shards'][0]['state']) was refused")):
        _resume([], {}, 0)


def test_malformed_states_are_refused():
    state, _want = interrupted("skipping", 2, workers=2)
    with make("skipping") as loader:
        for wrong in ("{}", None, [], b""):
            with pytest.raises(TypeError, match="takes what state_dict"):
                loader.load_state_dict(wrong)
        for path, value, message in (
            (["epoch", "count"], 3, "2 shards instead of 3"),
            (["epoch", "shards", 0], 7, r"state_dict\['epoch'\]\['shards'\]\[0\] must be dict, not 7"),
            (["epoch", "shards", 0], {}, r"state_dict\['epoch'\]\['shards'\]\[0\] has no 'position'"),
            (["epoch", "shards", 1, "position"], 10**30, r"\['shards'\]\[1\]\['position'\] must be up to"),
            (["epoch", "shards", 0, "over"], 1, r"\['shards'\]\[0\]\['over'\] must be bool, not 1"),
            (["epoch", "shards", 0, "state"], [1], r"\['shards'\]\[0\]\['state'\] must be a position and a state"),
            (["epoch", "shards", 0, "state"], [9, {}], r"\['state'\]\[0\] must be up to the shard's position 1, not 9"),
            (["epoch", "shards", 0, "state"], [0, []], r"\['shards'\]\[0\]\['state'\]\[1\] must be a dict, not list"),
            (
                ["epoch", "shards", 0, "state"],
                [0, {}],
                r"\['state'\]\[1\] must have one entry, 'dataset' or 'iterator'",
            ),
            (["epoch", "generators"], ["AAAA"], "with 1 generators, here there are 0"),
        ):
            with pytest.raises(ValueError, match=message):
                loader.load_state_dict(modified(state, path, value))
        assert len(list(loader)) == len(list(DataLoader(Plain(53), 4)))


@pytest.mark.parametrize(
    ("name", "in_epoch", "path", "value", "message"),
    [
        ("rollover", True, ["sampler"], KeyError, r"state_dict\['epoch'\] has no 'sampler'"),
        ("rollover", True, ["sampler"], [], r"state_dict\['epoch'\]\['sampler'\] must be dict, not list"),
        ("rollover", True, ["sampler"], {}, r"state_dict\['epoch'\]\['sampler'\] has no 'carried'"),
        (
            "rollover",
            True,
            ["sampler", "carried"],
            [None],
            r"\['sampler'\]\['carried'\]\[0\] must be an index below 41",
        ),
        ("rollover", True, ["sampler", "carried"], [0, 41], r"\['carried'\]\[1\] must be an index below 41, not 41"),
        ("rollover", True, ["sampler", "carried"], [10**100], r"\['carried'\]\[0\] .*, not an integer of 333 bits"),
        (
            "rollover",
            True,
            ["sampler", "carried"],
            [0, 1, 2, 3],
            r"\['carried'\] must have fewer than 4 indices",
        ),
        ("rollover", True, ["position"], 11, r"\['position'\] is position 11, .* with 10 batches"),
        ("rollover", False, ["sampler_state"], None, r"state_dict\['sampler_state'\] must be dict, not None"),
        ("rollover", False, ["sampler_state"], {}, r"state_dict\['sampler_state'\] has no 'carried'"),
        (
            "rollover",
            False,
            ["sampler_state", "carried"],
            {},
            r"\['sampler_state'\]\['carried'\] must be list, not dict",
        ),
        ("rollover", False, ["sampler_state", "carried"], [None], r"\['sampler_state'\]\['carried'\]\[0\] must be an"),
        ("rollover, generator", False, ["sampler_state", "carried"], ["0"], r"\['carried'\]\[0\] .*, not '0'"),
        (
            "rollover, generator",
            False,
            ["generators"],
            ["AAAA"],
            r"state_dict\['generators'\]\[0\]: the state of a gen",
        ),
        (
            "generator",
            True,
            ["generators", 0],
            10**100,
            r"\['epoch'\]\['generators'\]\[0\] must be str, not an integer",
        ),
        ("stateful", True, ["sampler"], KeyError, r"state_dict\['epoch'\] has no 'sampler'"),
        ("stateful", True, ["sampler"], {}, r"\['epoch'\]\['sampler'\] was refused by Remembering.*: KeyError: 'at'"),
        ("stateful", True, ["sampler"], [], r"\['epoch'\]\['sampler'\] was refused by Remembering.*: TypeError"),
        ("stateful", True, ["sampler", "at"], "x", r"\['epoch'\]\['sampler'\] was refused by Remembering.*: TypeError"),
        (
            "stateful",
            False,
            ["sampler_state"],
            {"at": 1},
            r"\['sampler_state'\] was refused by Remem.*: KeyError: 'given'",
        ),
        ("random module", True, ["order", "random"], [3, None, None], r"\['order'\]\['random'\]\[1\] must be str"),
        ("random module", True, ["order", "random", 2], "x", r"\['random'\]\[2\] must be float or int, not 'x'"),
        ("random module", True, ["order", "numpy", 1], 625, r"\['order'\]\['numpy'\]\[1\] must be up to 624, not 625"),
        ("random module", True, ["order", "numpy", 1], 10**100, r"\['order'\]\['numpy'\]\[1\] must be up to"),
        ("random module", True, ["order", "numpy", 0], "AAAA", r"\['epoch'\]\['order'\]: .* cannot be read"),
        ("random module", True, ["order", "numpy", 0], "", r"\['epoch'\]\['order'\]: .* cannot be read"),
        ("random module", True, ["order", "numpy", 0], "AAAAAA==", r"\['epoch'\]\['order'\]: .* cannot be read"),
        ("distributed", True, ["sampler_epoch"], 10**100, r"state_dict\['epoch'\]\['sampler_epoch'\] must be up to"),
        (
            "distributed",
            True,
            ["sampler_epoch"],
            None,
            r"state_dict\['epoch'\]\['sampler_epoch'\] must be int, not None",
        ),
    ],
    ids=str,
)
def test_a_malformed_state_of_a_sampler_or_generator_names_its_field(name, in_epoch, path, value, message):
    state = malformed_source(name, in_epoch=in_epoch)
    refused = modified(state, (["epoch"] if in_epoch else []) + path, value)
    with pytest.raises(ValueError, match=message):
        load_as_if_nothing_had_been_called(name, refused)


def test_a_state_with_a_sampler_that_cannot_be_copied_is_refused_too():
    class Holding(Remembering):
        def __init__(self, n):
            super().__init__(n)
            self.lock = threading.Lock()

    with DataLoader(Augmented(N), 4, sampler=Holding(N)) as loader:
        state = loader.state_dict()
        for wrong in ({}, []):
            with pytest.raises(ValueError, match=r"\['sampler_state'\] was refused by Holding.load_state_dict"):
                loader.load_state_dict({**state, "sampler_state": wrong})
        loader.load_state_dict(state)
        assert len(list(loader)) == 11


@functools.cache
def malformed_source(name, *, in_epoch):
    """A state of the loader, in mid-epoch or between epochs."""
    torch.manual_seed(7)
    random.seed(7)
    with make(name) as loader:
        list(loader)
        epoch = iter(loader)
        if in_epoch:
            next(epoch)
            next(epoch)
        else:
            list(epoch)
        return json.loads(json.dumps(loader.state_dict()))


@functools.cache
def undisturbed(name):
    torch.manual_seed(5)
    random.seed(5)
    with make(name) as loader:
        return epochs(loader, 2), random.random(), torch.rand(2).tolist()


def load_as_if_nothing_had_been_called(name, state):
    """Load a state. If it is refused, the loader and the global generators go on as if it had not been called."""
    want = undisturbed(name)
    torch.manual_seed(5)
    random.seed(5)
    with make(name) as loader:
        first, second = want[0]
        epoch = iter(loader)
        got = [plain(next(epoch))]
        refused = None
        try:
            loader.load_state_dict(state)
        except (ValueError, TypeError) as error:
            refused = error
        if refused is None:  # a custom state that was accepted is a matter of its sampler or dataset
            return epochs(loader, 2) if name not in ("stateful", "iterator") else None
        assert len(str(refused)) < 400
        assert "state_dict" in str(refused)
        assert got + plain(list(epoch)) == first, "the epoch in progress goes on"
        assert (epochs(loader, 1)[0], random.random(), torch.rand(2).tolist()) == (second, *want[1:])
        raise refused


def paths(state, path=()):
    """The paths of all values of a state."""
    yield path
    for key in state if isinstance(state, dict) else range(len(state)) if isinstance(state, list) else ():
        yield from paths(state[key], (*path, key))


JUNK = [
    None, True, -1, 0, 7, 2**53 + 1, 2**63, 2**64, 10**100, -(10**100), 10**5000, 1.5, float("nan"), float("inf"), "",
    "x", "AAAA", "ä" * 3000, [], {}, [None], [[]], [10**100], [0, 0], {"carried": None}, {"torch": 1}, {1: 2}, object(),
    b"", {3}, KeyError,
]  # fmt: skip


MUTATED = [
    "shuffle", "generator", "rollover, generator", "random module", "stateful", "distributed", "skipping", "iterator",
]  # fmt: skip


@given(name=st.sampled_from(MUTATED), in_epoch=st.booleans(), data=st.data())
@settings(max_examples=200)
def test_any_mutated_state_is_refused_at_once_or_loads(name, in_epoch, data):
    state = copy.deepcopy(malformed_source(name, in_epoch=in_epoch))
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from([path for path in paths(state) if path]))
        inner = state
        for key in path[:-1]:
            inner = inner[key]
        value = data.draw(st.sampled_from(JUNK))
        if value is KeyError:
            del inner[path[-1]]
        else:
            inner[path[-1]] = copy.deepcopy(value)  # the next mutation may change it, too
    with contextlib.suppress(ValueError, TypeError):
        load_as_if_nothing_had_been_called(name, state)


def test_a_state_of_another_sampler_is_refused():
    state, _want = interrupted("shuffle", 2)
    with (
        DataLoader(Augmented(N), 4, sampler=Shuffling(N)) as loader,
        pytest.raises(ValueError, match="is 'BatchSampler/RandomSampler', here sampler is 'BatchSampler/Shuffling'"),
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


@pytest.mark.portable
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
    with (
        DataLoader(Augmented(N), 4, True) as loader,
        pytest.raises(ValueError, match=r"\['chunk_size'\] is 2, here chunk_size is None"),
    ):
        loader.load_state_dict(state)
