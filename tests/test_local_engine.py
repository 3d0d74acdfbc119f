"""`num_workers=0`: batches are produced on the consumer's thread."""

from __future__ import annotations

import os
import random
import threading
import time
import traceback
import warnings

import numpy as np
import pytest
import torch
from datasets import Numbers, flat, wait_for
from same import assert_same

from nbloader import DataLoader, LoaderClosedError
from nbloader._util import rng
from nbloader._util.rng import PreservedRandomState


class Calls(Numbers):
    """Calls a function with the index before each sample."""

    def __init__(self, n, call):
        super().__init__(n)
        self.call = call

    def __getitem__(self, i):
        self.call(i)
        return super().__getitem__(i)


def test_batches_are_produced_on_the_thread_that_iterates_and_no_thread_is_started():
    threads = set()
    before = threading.active_count()
    with DataLoader(Calls(8, lambda _i: threads.add(threading.current_thread())), 2) as loader:
        for _ in loader:
            assert threading.active_count() == before
    assert threads == {threading.current_thread()}


def test_statistics_from_another_thread_never_run_the_dataset():
    threads = set()
    inside, done = threading.Event(), threading.Event()

    def call(i):
        threads.add(threading.current_thread())
        if i == 4:
            inside.set()
            done.wait(60)

    with DataLoader(Calls(12, call), 2) as loader:
        got = []
        consumer = threading.Thread(target=lambda: got.extend(flat(loader)))
        consumer.start()
        inside.wait(60)
        stats = [loader.stats() for _ in range(5)]
        done.set()
        consumer.join()
    assert {(s.state, s.waiting_for, s.workers) for s in stats} == {("running", 2, ())}
    assert got == list(range(12))
    assert threads == {consumer}


def test_the_dataset_may_ask_its_own_loader_for_statistics_and_for_batches_of_another_iterator():
    states, nested = [], []

    def call(i):
        states.append(loader.stats().state)
        if i == 2 and not nested:
            nested.append(None)
            nested.append(next(other).tolist())

    with DataLoader(Calls(8, call), 2) as loader:
        other = iter(loader)
        assert flat(loader) == list(range(8))
        assert nested == [None, [0, 1]]
        assert flat(other) == list(range(2, 8))
    assert set(states) == {"running"}


def test_two_threads_iterate_one_loader_at_a_time_each_with_its_own_iterator():
    with DataLoader(Calls(60, lambda _i: time.sleep(0.0005)), 4) as loader:
        got = {}
        epochs = [iter(loader), iter(loader)]
        threads = [threading.Thread(target=lambda e=epoch: got.update({e: flat(e)})) for epoch in epochs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [got[epoch] for epoch in epochs] == [list(range(60))] * 2


def test_an_interrupt_loses_no_batch():
    interrupts = [3, 5]

    def call(i):
        if i in interrupts:
            interrupts.remove(i)
            raise KeyboardInterrupt

    with DataLoader(Calls(8, call), 2) as loader:
        epoch, got = iter(loader), []
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                got.extend(epoch)
        got.extend(epoch)
        assert flat(got) == list(range(8))


def test_a_loader_that_is_closed_by_another_thread_stops_before_the_next_sample():
    began, seen = threading.Event(), []

    def call(i):
        seen.append(i)
        began.set()
        wait_for(lambda: loader.stats().state == "closed")

    with DataLoader(Calls(8, call), 4) as loader:
        thread = threading.Thread(target=lambda: began.wait(60) and loader.close())
        thread.start()
        with pytest.raises(LoaderClosedError, match="closed during the iteration"):
            list(loader)
        thread.join()
    assert seen == [0]


def test_a_dataset_that_is_reloaded_in_mid_epoch_is_used_from_the_next_batch_on():
    with DataLoader(Numbers(8), 2) as loader:
        epoch = iter(loader)
        got = [next(epoch)]
        loader.reload([10 * i for i in range(8)])
        got.extend(epoch)
        assert flat(got) == [0, 1, *range(20, 80, 10)]
        assert not [event for event in loader.events.history if type(event).__name__.startswith("Worker")]


def test_an_error_has_the_traceback_of_the_dataset_and_a_note():
    def call(i):
        if i == 5:
            raise KeyError("broken")

    with DataLoader(Calls(8, call), 2) as loader:
        epoch = iter(loader)
        got = [next(epoch), next(epoch)]
        with pytest.raises(KeyError, match="broken") as raised:
            next(epoch)
        got.extend(epoch)
    assert flat(got) == [0, 1, 2, 3, 6, 7]
    assert raised.value.__cause__ is None
    assert [frame.name for frame in traceback.extract_tb(raised.tb)][-2:] == ["__getitem__", "call"]
    assert raised.value.__notes__ == [
        "raised in this process while fetching sample 5 of batch 2",
        "to debug this sample: loader.debug(epoch=0, batch=2, index=5)",
    ]


def test_a_forked_child_goes_on_with_the_epoch():
    with DataLoader(Numbers(8), 2) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork with threads
        epoch = iter(loader)
        next(epoch)
        child = os.fork()
        if child == 0:
            ok = flat(epoch) == list(range(2, 8)) and flat(loader) == list(range(8))
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert flat(epoch) == list(range(2, 8))


@pytest.mark.parametrize("draws", range(4))
@pytest.mark.parametrize("draw", [np.random.rand, np.random.standard_normal])
@pytest.mark.parametrize("inside", range(3))
def test_numpys_generator_keeps_its_state_with_a_normal_number_left_over_or_not(draws, draw, inside):
    np.random.seed(draws)
    for _ in range(draws):
        draw()
    before = repr(np.random.get_state())
    with PreservedRandomState():
        assert repr(np.random.get_state()) == before
        rng.seed_everything(3)
        for _ in range(inside):
            np.random.standard_normal()
    assert repr(np.random.get_state()) == before


def states():
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()


def test_pythons_generator_keeps_its_state_with_a_normal_number_left_over():
    random.seed(1)
    random.gauss(0, 1)
    before = states()
    with PreservedRandomState():
        assert states() == before
        random.seed(5)
        random.gauss(0, 1)
        random.gauss(0, 1)
    assert states() == before


class Drawing(Numbers):
    """Draws from every generator, before and within each sample."""

    def __getitem__(self, i):
        return draws()


def draws():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.standard_normal(), torch.rand(1).item()


def drawing_collate(samples):
    return [*samples, draws()]


@pytest.mark.parametrize("dataset", [Numbers(12), list(range(12)), Drawing(12)], ids=["plain", "list", "drawing"])
@pytest.mark.parametrize("collate", [None, drawing_collate])
def test_batches_are_seeded_if_code_of_the_user_runs_and_never_change_the_notebooks_generators(dataset, collate):
    def epoch(**options):
        torch.manual_seed(1)
        with DataLoader(dataset, 3, collate_fn=collate, **options) as loader:
            got = []
            epoch = iter(loader)
            before = states()
            for batch in epoch:
                got.append(batch)
                assert states() == before
        return got

    np.random.seed(1)  # no normal number is left over from a pair
    alone = epoch()
    assert_same(epoch(num_workers=2), alone)
    random.seed(9)
    np.random.seed(9)
    assert_same(epoch(), alone)


def test_a_batch_of_a_dataset_that_iterates_its_own_loader_keeps_its_seed():
    def call(i):
        if i % 2:
            next(other, None)

    class Both(Calls):
        def __getitem__(self, i):
            super().__getitem__(i)
            return draws()

    def epoch():
        torch.manual_seed(1)
        return list(loader)

    with DataLoader(Drawing(12), 3) as other_loader, DataLoader(Both(4, call), 2) as loader:
        other = iter([])
        expected = epoch()
        other = iter(other_loader)
        before = states()
        torch.manual_seed(1)
        assert_same(list(loader), expected)
        torch.manual_seed(1)
        assert states()[:2] == before[:2]


def test_a_batch_whose_code_pauses_the_loader_is_delivered_by_a_step_or_when_the_loader_is_resumed():
    fetched = []

    def call(i):
        fetched.append(i)
        if i == 4:
            loader.pause()

    with DataLoader(Calls(8, call), 2) as loader:
        epoch, got = iter(loader), []
        consumer = threading.Thread(target=lambda: got.extend(epoch))
        consumer.start()
        wait_for(lambda: len(fetched) == 6 and loader.stats().waiting_for == 2)
        assert (loader.stats().state, len(got)) == ("paused", 2)
        loader.step()
        wait_for(lambda: len(got) == 3 and loader.stats().waiting_for == 3)
        assert fetched == list(range(6))
        loader.resume()
        consumer.join()
        records = loader.events.batches()
    assert flat(got) == list(range(8))
    assert [record.index for record in records] == [0, 1, 2, 3]
    assert all(record.dispatched <= record.fetch_begin <= record.in_order <= record.delivered for record in records)


def test_a_dataset_that_takes_a_batch_from_the_iterator_that_loads_it_gets_an_error():
    with DataLoader(Calls(4, lambda _i: next(epoch)), 2) as loader:
        epoch = iter(loader)
        with pytest.raises(RuntimeError, match=r"next\(\) is called on an iterator while the same thread waits"):
            next(epoch)


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}])
def test_threads_that_share_an_iterator_take_turns_and_each_batch_is_delivered_once(arguments):
    with DataLoader(Calls(600, lambda _i: None), 2, **arguments) as loader:
        for _ in range(10):  # each is a chance for two threads to meet while a batch is delivered
            epoch, got = iter(loader), []
            threads = [threading.Thread(target=lambda epoch=epoch, got=got: got.extend(epoch)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert sorted(flat(got)) == list(range(600))
