"""`loader.replay`: batches that were delivered are made again, equal to the byte, and nothing else changes."""

from __future__ import annotations

import functools
import json
import queue
import random
import threading

import numpy as np
import pytest
import torch
import waits
from datasets import Augmented, Numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from iterables import Plain
from resumption import SAMPLERS, N, make, plain
from torch.utils.data import BatchSampler, ConcatDataset, Subset, TensorDataset, WeightedRandomSampler

from nbloader import DataLoader, ReplayError, get_worker_info
from nbloader.loader import replay as replay_module
from nbloader.sampling import epoch_order, samplers
from nbloader.sampling.epoch_order import Numbering

RNG = random.Random(5)


def raw(thing):
    """The bytes of everything in a batch."""
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        return type(thing), thing.dtype, tuple(thing.shape), np.asarray(thing).tobytes()
    if isinstance(thing, dict):
        return {key: raw(value) for key, value in thing.items()}
    return [raw(part) for part in thing] if isinstance(thing, (list, tuple)) else thing


def generators():
    return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()


def check(loader, epochs, sample=None):
    """Replay batches of some epochs, in random order, and compare them with what was delivered.

    Args:
        loader: The loader.
        epochs: What it delivered, by epoch.
        sample: Makes a sample of a batch and a position, to compare single samples too.
    """
    before = generators()
    every = [(epoch, number) for epoch, batches in enumerate(epochs) for number in range(len(batches))]
    for epoch, number in RNG.sample(every, min(len(every), 12)):
        again = loader.replay(epoch, number)
        assert raw(again.batch) == raw(epochs[epoch][number]), (epoch, number)
        if sample is not None:
            position = RNG.randrange(len(again))
            assert raw(again.sample(position)) == raw(sample(epochs[epoch][number], position)), (epoch, number)
    assert generators() == before


class Pictures(Numbers):
    """Random augmentation: how many numbers a sample draws is random, too."""

    def __getitem__(self, i):
        noise = torch.randn(random.randrange(1, 5)).sum().reshape(1)
        crop = np.random.randint(0, 8, 2)
        return {"i": i, "crop": crop, "noise": noise, "flip": random.random(), "name": f"{i} {random.random()}"}


def of_pictures(batch, position):
    return {
        "i": batch["i"][position].item(),
        "crop": batch["crop"][position].numpy(),
        "noise": batch["noise"][position],
        "flip": batch["flip"][position].item(),
        "name": batch["name"][position],
    }


def test_a_long_epoch_and_what_is_left_of_it_after_resuming():
    with DataLoader(Augmented(400), 2, shuffle=True) as loader:
        batches, state = [], None
        for number, batch in enumerate(loader):
            batches.append(batch)
            if number == 29:
                state = loader.state_dict()
        check(loader, [batches])
    with DataLoader(Augmented(400), 2, shuffle=True) as loader:
        loader.load_state_dict(state)
        assert [raw(batch) for batch in loader] == [raw(batch) for batch in batches[30:]]


def test_batches_of_five_epochs_with_restarts_and_resizes_between():
    with DataLoader(Pictures(90), 7, shuffle=True, num_workers=2) as loader:
        epochs = [list(loader)]
        loader.num_workers = 3
        epochs.append([])
        for number, batch in enumerate(loader):
            epochs[1].append(batch)
            if number == 4:
                loader.restart_workers()
            if number == 8:
                loader.num_workers = 1
        loader.state_dict()  # from now on, orders and seeds come from a seed of the loader
        epochs.append(list(loader))
        loader.num_workers = 0
        epochs += [list(loader), list(loader)]
        check(loader, epochs, of_pictures)
        for record in RNG.sample(loader.events.batches(), 5):
            assert raw(loader.replay(record).batch) == raw(epochs[record.epoch][record.index])


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_and_the_epochs_after_it_are_as_without_replay(name):
    def run(*, replayed):
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        with make(name) as loader:
            epochs = [list(loader)]
            interrupted, second = [], iter(loader)
            interrupted = [next(second), next(second)]
            state = json.dumps(loader.state_dict())
            epochs.append([*interrupted, *second])
            if replayed:
                check(loader, epochs)
            epochs += [list(loader), list(loader)]
            if replayed:
                check(loader, epochs)
        with make(name) as loader:
            loader.load_state_dict(json.loads(state))
            resumed = [[*interrupted, *loader], list(loader)]
            if replayed and loader.replay(1, 0):
                for epoch, batches in enumerate(resumed):
                    for number in range(0 if epoch else 2, len(batches)):
                        assert raw(loader.replay(epoch, number).batch) == raw(batches[number])
        return plain(epochs), plain(resumed)

    assert run(replayed=True) == run(replayed=False)


@pytest.mark.parametrize("in_order", [True, False])
def test_batches_that_were_delivered_out_of_order_before_the_epoch_was_resumed(in_order):
    torch.manual_seed(3)
    with make("shuffle", in_order=in_order) as loader:
        epoch = iter(loader)
        first = [next(epoch) for _ in range(3)]
        state = loader.state_dict()
    state["epoch"]["position"], state["epoch"]["beyond"] = 1, [2, 4]
    with make("shuffle", in_order=in_order) as loader:
        loader.load_state_dict(state)
        rest = list(loader)
        assert raw(loader.replay(0, 0).batch) == raw(first[0])
        assert raw(loader.replay(0, 3).batch) == raw(first[1])
        for record, batch in zip(loader.events.batches(), rest, strict=True):
            assert raw(loader.replay(record).batch) == raw(batch)
        with pytest.raises(ReplayError, match="delivered before the state was saved"):
            loader.replay(0, 2)


@given(st.integers(0, 20), st.sets(st.integers(0, 40)), st.sets(st.integers(0, 59)))
def test_the_numbers_of_a_resumed_epoch(position, above, skipped):
    beyond = tuple(sorted(position + 1 + each for each in above))
    numbering = Numbering(position, beyond)
    later = [drawn for drawn in range(position, position + 60) if drawn not in beyond]
    for drawn in [drawn for drawn in later if drawn - position in skipped]:
        numbering = numbering.without(drawn)
        later.remove(drawn)
        assert numbering.number(drawn) is None
    first = position + len(beyond)
    for number, drawn in enumerate(later, first):
        assert numbering.drawn(number) == drawn
        assert numbering.number(drawn) == number
    assert [numbering.drawn(number) for number in range(position)] == list(range(position))
    assert all(numbering.number(drawn) is None for drawn in beyond)


class Broken(Augmented):
    """Every third sample draws, and raises."""

    def __getitem__(self, i):
        sample = super().__getitem__(i)
        if i % 3 == 1:
            raise ValueError(f"broken {i}")
        return sample


class AtOnce(Augmented):
    def __getitems__(self, indices):
        together = random.random()
        return [(*self[i], together) for i in indices]


def replaced(index, _error):
    return index, random.random(), np.random.rand(), torch.rand(2), 0


def stacked(samples):
    return torch.tensor([sample[0] for sample in samples]), np.random.rand(len(samples)), torch.rand(3)


def as_samples(samples):
    return samples


def drawing(samples):
    return samples, torch.rand(2), np.random.rand(2), random.random()


OPTIONS = {
    "collate_fn": lambda: DataLoader(Augmented(N), 5, shuffle=True, collate_fn=stacked),
    "chunks": lambda: DataLoader(Augmented(N), 6, shuffle=True, chunk_size=2),
    "chunks, collate_fn": lambda: DataLoader(Augmented(N), 6, shuffle=True, chunk_size=2, collate_fn=as_samples),
    "chunks, drawing collate_fn": lambda: DataLoader(Augmented(N), 6, shuffle=True, chunk_size=2, collate_fn=drawing),
    "skip": lambda: DataLoader(Broken(N), 5, shuffle=True, on_error="skip"),
    "replace": lambda: DataLoader(Broken(N), 5, shuffle=True, on_error=replaced),
    "replace, chunks": lambda: DataLoader(Broken(N), 6, shuffle=True, on_error=replaced, chunk_size=3),
    "subset": lambda: DataLoader(Subset(Augmented(90), range(3, 60)), 5, shuffle=True),
    "subset, skip": lambda: DataLoader(Subset(Broken(90), range(3, 60)), 5, shuffle=True, on_error="skip"),
    "concat": lambda: DataLoader(ConcatDataset([Augmented(9), Pictures(9)]), shuffle=True, collate_fn=as_samples),
    "at once": lambda: DataLoader(AtOnce(N), 5, shuffle=True),
    "in memory": lambda: DataLoader(TensorDataset(torch.rand(N, 3), torch.arange(N)), 5, shuffle=True),
    "list": lambda: DataLoader([float(i) for i in range(N)], 5, shuffle=True),
    "names": lambda: DataLoader(Augmented(N), 5, shuffle=True, names=["i", "a", "b", "c", "d"]),
    "numpy": lambda: DataLoader(Augmented(N), 5, shuffle=True, output="numpy"),
    "asynchronous": lambda: DataLoader(waits.Augmented(N, 3), 5, shuffle=True, concurrency=4),
    "persistent": lambda: DataLoader(
        Augmented(N), 5, shuffle=True, persistent_workers=True, num_workers=1, workers="thread"
    ),
    "out of order": lambda: DataLoader(Augmented(N), 5, shuffle=True, in_order=False, num_workers=2, workers="thread"),
}


def test_a_collate_fn_that_joins_chunks_leaves_the_generators_of_the_notebook_alone():
    def drawn(loader):
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        for _ in loader:
            pass
        return generators()

    with DataLoader(Numbers(12), 6, chunk_size=2, collate_fn=drawing) as loader, DataLoader(Numbers(12), 6) as other:
        assert drawn(loader) == drawn(other)


class Gate:
    """A point at which one thread waits until another one has done something."""

    def __init__(self):
        self.reached, self.passed = threading.Event(), threading.Event()

    def wait(self):
        self.reached.set()
        assert self.passed.wait(90)


class Gated(Augmented):
    """Random augmentation; a sample waits at a gate, if there is one, before and after it has drawn."""

    gates = ()

    def __getitem__(self, i):
        for gate in self.gates[:1]:
            gate.wait()
        sample = super().__getitem__(i)
        for gate in self.gates[1:]:
            gate.wait()
        self.gates = ()
        return sample


def drawn_beside(gates, call):
    """Call a function on another thread; draw on this one while it waits. Returns its result and the draws."""
    result = queue.Queue()
    thread = threading.Thread(target=lambda: result.put(call()))
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    draws = []
    thread.start()
    for gate in gates:
        assert gate.reached.wait(90)
        draws.append((random.random(), np.random.rand(), torch.rand(1).item()))
        gate.passed.set()
    thread.join()
    draws.append((random.random(), np.random.rand(), torch.rand(1).item()))
    return result.get_nowait(), draws


def test_another_thread_can_replay_what_worker_threads_drew_while_this_one_draws():
    """Clicks are handled beside a running cell."""
    expected = drawn_beside([], lambda: None)[1]
    options = {"num_workers": 1, "workers": "thread", "worker_init_fn": lambda worker: None}
    with DataLoader(Gated(30), 6, shuffle=True, **options) as loader:
        batches = list(loader)
        gates = [Gate(), Gate()]

        def replay():
            again = loader.replay(0, 3)
            loader.dataset.gates = gates
            return raw(again.batch)

        batch, draws = drawn_beside(gates, replay)
        assert batch == raw(batches[3])
        assert draws[:1] == expected


@pytest.mark.parametrize("name", OPTIONS)
def test_every_way_in_which_a_batch_is_made(name):
    with OPTIONS[name]() as loader:
        for epoch in range(2):
            delivered = list(loader)
            for record, batch in zip([r for r in loader.events.batches() if r.epoch == epoch], delivered, strict=True):
                if record.index % 3 == 0:
                    assert raw(loader.replay(record).batch) == raw(batch), record.index


@pytest.mark.parametrize("name", ["chunks", "skip", "replace", "subset", "subset, skip", "at once", "asynchronous"])
def test_a_sample_is_what_the_dataset_returned(name):
    with OPTIONS[name]() as loader:
        batch = next(iter(loader))
        again = loader.replay(0, 0)
        parts = [plain(part) for part in batch] if isinstance(batch, (list, tuple)) else plain(batch)
        delivered = list(zip(*parts, strict=True))
        for position, index in enumerate(again.indices):
            broken = isinstance(loader.dataset, Broken) and index % 3 == 1
            broken |= name == "subset, skip" and (index + 3) % 3 == 1
            if not broken:
                assert list(map(plain, again.sample(position))) in [list(sample) for sample in delivered]
                continue
            with pytest.raises(ValueError, match=r"broken \d+"):
                again.sample(position)
        if not broken:
            assert raw(again.sample(-1)) == raw(again.sample(len(again) - 1))
        with pytest.raises(IndexError, match="samples, and none at position 99"):
            again.sample(99)


def test_an_error_is_raised_again_and_names_the_sample_before_it():
    with DataLoader(Broken(9), 9) as loader:
        with pytest.raises(ValueError, match="broken 1") as raised:
            list(loader)
        assert raised.value.__notes__[-1] == "to debug this sample: loader.debug(epoch=0, batch=0, index=1)"
        again = loader.replay(0, 0)
        assert len(again) == 9
        again.sample(0)
        for wanted in (lambda: again.batch, lambda: again.sample(1)):
            with pytest.raises(ValueError, match="broken 1"):
                wanted()
        with pytest.raises(ValueError, match="broken 1") as raised:
            again.sample(2)
        assert raised.value.__notes__ == ["raised by sample 1, which precedes 2 in the batch"]


def open_file(_worker):
    get_worker_info().dataset.file = 100


class NeedsFile(Numbers):
    file: int

    def __getitem__(self, i):
        return self.file + i, random.random()


def test_worker_init_fn_prepares_a_copy_of_the_dataset():
    dataset = NeedsFile(10)
    with DataLoader(dataset, 5, num_workers=1, worker_init_fn=open_file) as loader:
        delivered = list(loader)
        assert raw(loader.replay(0, 1).batch) == raw(delivered[1])
        assert raw(loader.replay(0, 1).sample(2)) == [107, delivered[1][1][2].item()]
    assert not hasattr(dataset, "file")
    assert get_worker_info() is None


def test_the_dataset_is_used_as_it_is_now():
    dataset = Numbers(10)
    with DataLoader(dataset, 5) as loader:
        list(loader)
        loader.reload([-i for i in range(10)])
        assert loader.replay(0, 1).batch.tolist() == [-5, -6, -7, -8, -9]


def test_the_order_of_an_epoch_does_not_change_with_the_dataset_or_the_samplers():
    torch.manual_seed(1)
    samples = list(range(20))
    weights = torch.ones(20)
    for sampler in (None, WeightedRandomSampler(weights, 20)):
        with DataLoader(samples, 4, shuffle=sampler is None, sampler=sampler) as loader:
            epochs = [list(loader)]
            samples.append(20)
            weights[:10] = 0
            epochs.append(list(loader))
            loader.batch_sampler.batch_size = 3
            check(loader, epochs)
    order = list(range(20))
    with DataLoader(samples, 4, sampler=order) as loader:
        epochs = []
        for _ in range(3):
            random.shuffle(order)
            epochs.append(list(loader))
        check(loader, epochs)


def test_a_batch_of_the_epoch_that_runs():
    with DataLoader(Augmented(40), 4, shuffle=True) as loader:
        for number, batch in enumerate(loader):
            assert raw(loader.replay(0, number).batch) == raw(batch)
            later = loader.replay(0, 9).batch
        assert raw(later) == raw(batch)


@pytest.mark.parametrize("name", ["chunks", "asynchronous", "subset", "unbatched"])
def test_where_a_sample_was_delivered(name):
    with make(name) if name == "unbatched" else OPTIONS[name]() as loader:
        assert loader.deliveries(7) == []
        list(loader)
        list(loader)
        running = iter(loader)
        next(running)
        next(running)  # with it the record of the first batch is published
        again = [loader.replay(2, number) for number in range(2)]
        first, second = (each.indices[0] if isinstance(each.indices, list) else each.indices for each in again)
        assert [d.epoch for d in loader.deliveries(second)] == [1, 0]
        assert [d.epoch for d in loader.deliveries(first, limit=2)] == [2, 1]
        for delivery in loader.deliveries(first):
            batch = loader.replay(delivery.epoch, delivery.batch)
            indices = batch.indices if isinstance(batch.indices, list) else [batch.indices]
            assert indices[delivery.position] == first
            if name == "chunks":
                assert delivery.before == tuple(indices[delivery.position // 2 * 2 : delivery.position])
            if name in ("asynchronous", "unbatched"):
                assert delivery.before == ()
            if name != "asynchronous":
                random.seed(delivery.seed)
                for index in delivery.before:
                    loader.dataset[index]
                assert batch.sample(delivery.position)[1] == random.random()
    with OPTIONS["at once"]() as loader:
        list(loader)
        with pytest.raises(ReplayError, match=r"AtOnce\.__getitems__ fetches the samples of a batch together"):
            loader.deliveries(7)


def test_where_a_sample_of_a_large_dataset_was_delivered_is_computed_not_searched(monkeypatch):
    monkeypatch.setattr(samplers, "LARGE", 10)
    with DataLoader(Augmented(100), 7, shuffle=True, drop_last=True) as loader:
        list(loader)
        list(loader)
        batches = {(e, n): loader.replay(e, n).indices for e in range(2) for n in range(len(loader))}
        monkeypatch.setattr(epoch_order, "_position", lambda *_: pytest.fail("the order is searched"))
        found = {index: loader.deliveries(index) for index in range(100)}
    for index, deliveries in found.items():
        assert {(d.epoch, d.batch) for d in deliveries} == {at for at, indices in batches.items() if index in indices}
        assert all(batches[d.epoch, d.batch][d.position] == index for d in deliveries)


@pytest.mark.parametrize(("n", "size"), [(1000, 7), (300, 110), (5, 8)])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_batch_of_an_index_is_found(n, size, shuffle, drop_last, monkeypatch):
    monkeypatch.setattr(epoch_order, "BLOCK", 100)
    with DataLoader(range(n), size, shuffle=shuffle, drop_last=drop_last) as loader:
        batches = enumerate(loader)
        where = {index: number for number, batch in batches for index in batch.tolist()}
        order = loader._order(0)
        for index in [*range(0, n, max(1, n // 5)), n - 1, n, -1, "no index"]:
            assert order.find(index, batched=True) == where.get(index)


class OwnGenerator(Numbers):
    def __init__(self, n):
        super().__init__(n)
        self.rng = np.random.default_rng(0)


def seeds(_worker):
    np.random.seed(1)


@pytest.mark.parametrize(
    ("make_loader", "message"),
    [
        (lambda: DataLoader(Plain(20), 5), "cannot be reproduced alone"),
        (lambda: DataLoader(OwnGenerator(20), 5), "has a random generator of its own"),
        (
            lambda: DataLoader(Augmented(20), 5, num_workers=1, worker_init_fn=seeds),
            "worker_init_fn seeds a random generator",
        ),
        (
            lambda: DataLoader.from_source(functools.partial(list, range), 2, num_workers=1, workers="thread"),
            "has not been iterated",
        ),
    ],
)
def test_what_cannot_be_replayed_says_why(make_loader, message):
    with make_loader() as loader:
        if message != "has not been iterated":
            list(loader)
        with pytest.raises(ReplayError, match=message):
            loader.replay(0, 0).batch  # noqa: B018 - made when it is asked for


def test_a_source_has_no_indices():
    items = iter([[1, 2], [3, 4]])

    def source(_size):
        return next(items)

    with DataLoader.from_source(source, 2) as loader:
        assert len(list(loader)) == 2
        with pytest.raises(ReplayError, match="because the samples of a source have no indices"):
            loader.replay(0, 0)


def test_numbers_that_do_not_exist():
    with DataLoader(Numbers(10), 5) as loader:
        with pytest.raises(ReplayError, match="has not been iterated"):
            loader.replay(0, 0)
        list(loader)
        with pytest.raises(ReplayError, match=r"epoch 3 cannot be replayed\. This loader remembers epochs 0 to 0"):
            loader.replay(3, 0)
        for number in (-1, 2):
            with pytest.raises(
                ReplayError, match=f"batch {number} of epoch 0 cannot be replayed: the epoch has 2 batches"
            ):
                loader.replay(0, number)
        with pytest.raises(TypeError, match="or a BatchRecord"):
            loader.replay(0)
        assert str(loader.replay(0, 1)).startswith("<batch 1 of epoch 0: 5 samples")


def test_the_memory_of_old_epochs_is_bounded(monkeypatch):
    monkeypatch.setattr(replay_module, "MAX_EPOCHS", 3)
    monkeypatch.setattr(replay_module, "MAX_LOGGED", 50)
    monkeypatch.setattr(epoch_order, "MAX_LOGGED", 22)
    with DataLoader(Numbers(10), 5, shuffle=True) as loader:
        for _ in range(5):
            list(loader)
        loader.replay(2, 0)
        with pytest.raises(ReplayError, match="remembers epochs 2 to 4"):
            loader.replay(1, 0)
    with DataLoader(Numbers(30), batch_sampler=BatchSampler(list(range(30)), 5, False)) as loader:
        for _ in range(4):
            list(loader)
        assert loader.replay(3, 5).indices == [25, 26, 27, 28, 29]
        with pytest.raises(ReplayError, match=r"came from a custom sampler.*batches 2 to 5"):
            loader.replay(3, 1)
        with pytest.raises(ReplayError, match="remembers epochs 1 to 3"):
            loader.replay(0, 5)


@settings(max_examples=20)
@given(
    st.lists(st.one_of(st.lists(st.integers()), st.lists(st.text()), st.tuples(st.integers(), st.integers()))),
    st.booleans(),
)
def test_logged_indices_are_given_as_they_were_drawn(batches, changed):
    log = epoch_order.LoggedOrder(1, None, Numbering())
    for number, indices in enumerate(batches):
        drawn = list(indices) if isinstance(indices, list) else indices
        log.add(number, drawn)
        if changed and isinstance(drawn, list):
            drawn.clear()
    for number, indices in enumerate(batches):
        again = log.planned(number).indices
        assert (type(again), again) == (type(indices), indices)
