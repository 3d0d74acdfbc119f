"""Features of paddle.io.DataLoader."""

from __future__ import annotations

import itertools
import os
import signal
import threading

import pytest
import torch
from datasets import Deadly, Images, Numbers, Slow, Structured, alive, all_pids, flat, sigkill, wait_for
from same import assert_same

from nbloader import DataLoader, get_worker_info
from nbloader import events as ev


class ThreadIds(Numbers):
    """Each sample is the id of the thread that produced it."""

    def __getitem__(self, i):
        return threading.get_ident()


# ---- prefetching


def test_without_workers_prefetch_loads_ahead_on_one_thread():
    with DataLoader(ThreadIds(20), 2, prefetch=3) as loader:
        assert loader.num_workers == 0
        batches = iter(loader)
        wait_for(lambda: loader.stats().ready == 3, "three batches ahead")
        (thread,) = set(flat(batches))
        assert thread != threading.get_ident()
    orders = []
    for prefetch in (0, 3):
        generator = torch.Generator().manual_seed(1)
        with DataLoader(Numbers(20), 3, shuffle=True, prefetch=prefetch, generator=generator) as loader:
            orders.append(flat(loader))
    assert orders[0] == orders[1]


def test_without_workers_and_prefetch_loading_is_synchronous():
    with DataLoader(ThreadIds(6), 2, prefetch=0) as loader:
        assert set(flat(loader)) == {threading.get_ident()}


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_an_error_of_the_prefetch_thread_is_raised_in_the_loop(error):
    class Bad(Numbers):
        def __getitem__(self, i):
            if i == 3:
                raise error("sample 3")
            return i

    with DataLoader(Bad(8), 2, prefetch=2) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1]
        with pytest.raises(error, match="sample 3"):
            next(batches)
        assert flat(batches) == [4, 5, 6, 7]


def test_outstanding_batches_are_bounded_by_the_window(with_workers):
    with DataLoader(Slow(60, wait=0.001), 2, prefetch_factor=3, **with_workers) as loader:
        for _ in loader:
            stats = loader.stats()
            assert stats.in_flight + stats.reordering + stats.ready <= 6 + 2 * 16, "the window and its extension"


# ---- workers


def test_workers_persist_between_epochs(with_workers):
    with DataLoader(Numbers(8), 2, persistent_workers=True, **with_workers) as loader:
        workers = []
        for _ in range(3):
            assert flat(loader) == list(range(8))
            workers.append(all_pids(loader))
    assert workers[0] == workers[1] == workers[2]


def test_batch_size_none_disables_batching(how):
    with DataLoader(Numbers(3), batch_size=None, **how) as loader:
        assert list(loader) == [0, 1, 2]


def test_a_dead_worker_is_replaced_and_reported_with_its_pid(tmp_path):
    flag = tmp_path / "once"
    flag.touch()
    with DataLoader(Deadly(12, bad=5, how=sigkill, flag=str(flag)), 2, num_workers=2) as loader:
        seen = []
        with loader.events.subscribe(seen.append):
            assert flat(loader) == list(range(12))
        (death,) = [event for event in seen if isinstance(event, ev.WorkerDied)]
        assert (death.worker, death.pid) in {(e.worker, e.pid) for e in seen if isinstance(e, ev.WorkerReady)}
        assert not alive(death.pid)
        assert not death.expected


class Missing(Exception):
    pass


class Broken(Numbers):
    def __getitem__(self, i):
        if i == 3:
            raise Missing("no file")
        return i


def test_an_error_in_a_worker_is_raised_with_its_type_traceback_and_sample(with_workers):
    with (
        DataLoader(Broken(4), 2, **with_workers) as loader,
        pytest.raises(Missing, match="no file") as raised,
    ):
        list(loader)
    assert "sample 3 of batch 1" in raised.value.__notes__[0]
    if with_workers.get("workers") != "thread":
        assert 'raise Missing("no file")' in str(raised.value.__cause__)


def test_nested_structures_are_preserved(how):
    with DataLoader(Structured(6), 3, **how) as loader:
        assert_same(list(loader), list(torch.utils.data.DataLoader(Structured(6), 3)))


# ---- several devices, names


@pytest.mark.parametrize(
    ("last_batch", "epochs"),
    [
        ("keep", [[[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9]]]] * 2),
        ("discard", [[[[0, 1, 2], [3, 4, 5]]]] * 2),
        ("rollover", [[[[0, 1, 2], [3, 4, 5]]], [[[6, 7, 8], [9, 0, 1]], [[2, 3, 4], [5, 6, 7]]]]),
    ],
)
def test_a_list_of_devices_gives_one_batch_per_device(last_batch, epochs, how):
    with DataLoader(Numbers(10), 3, device=["cpu", "cpu"], last_batch=last_batch, **how) as loader:
        for expected in epochs:
            assert len(loader) == len(expected)
            assert [[b.tolist() for b in group] for group in loader] == expected


def test_an_incomplete_list_of_batches_is_kept_or_discarded(how):
    for last_batch, sizes in (("keep", [2, 1]), ("discard", [2])):
        with DataLoader(Numbers(6), 2, device=["cpu", "cpu"], last_batch=last_batch, **how) as loader:
            assert len(loader) == len(sizes)
            assert [len(group) for group in loader] == sizes


def test_batches_of_a_list_are_on_their_devices():
    with DataLoader(Numbers(8), 2, device=["cpu", "meta"][:1] * 2) as loader:
        assert all(batch.device.type == "cpu" for group in loader for batch in group)
    with pytest.raises(ValueError, match=r"device must name at least one device, not \[\]"):
        DataLoader(Numbers(8), device=[])
    with pytest.raises(ValueError, match=r"device must be a torch device.*'warp'"):
        DataLoader(Numbers(8), device=["cpu", "warp"])


def test_an_error_within_a_list_of_batches_does_not_lose_the_others(how):
    with DataLoader(Broken(8), 2, device=["cpu", "cpu"], **how) as loader:
        groups = iter(loader)
        with pytest.raises(Missing):
            next(groups)
        assert [[b.tolist() for b in group] for group in groups] == [[[0, 1], [4, 5]], [[6, 7]]]


def test_names_turn_tuples_into_dicts(how):
    with DataLoader(Images(4), 2, names=("image", "label"), **how) as loader:
        for batch in loader:
            assert list(batch) == ["image", "label"]
            assert batch["image"].shape == (2, 64, 64)
    with DataLoader(Structured(4), 2, names=("image", "label"), **how) as loader:
        assert next(iter(loader)).keys() == {"image", "large", "name", "nested"}


def test_names_that_do_not_fit_are_errors(how):
    with (
        DataLoader(Images(4), 2, names=("image",), **how) as loader,
        pytest.raises(ValueError, match=r"names=\('image',\) are for batches of 1 parts, but this one has 2 parts"),
    ):
        next(iter(loader))
    with pytest.raises(TypeError, match=r"names must be a sequence of strings .* not 'image'"):
        DataLoader(Images(4), names="image")
    with pytest.raises(ValueError, match="different strings"):
        DataLoader(Images(4), names=("x", "x"))


# ---- others


def set_worker(worker):
    get_worker_info().dataset.worker = worker


class WorkerIds(Numbers):
    worker = -1

    def __getitem__(self, i):
        return self.worker


def test_worker_init_fn_drop_last_and_timeout(with_workers):
    with DataLoader(WorkerIds(9), 4, worker_init_fn=set_worker, drop_last=True, timeout=90, **with_workers) as loader:
        assert [len(b) for b in loader] == [4, 4]
        assert set(flat(loader)) <= {0, 1}


def test_each_next_is_a_range_of_torchs_profiler(how):
    with DataLoader(Numbers(6), 2, **how) as loader:
        list(loader)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            assert len(list(loader)) == 3
    ranges = {event.key: event.count for event in profile.key_averages()}
    assert ranges["enumerate(DataLoader)#Epoch.__next__"] == 4, "three batches and the end"


def test_the_loader_works_after_an_interrupt_of_the_loop(how):
    with DataLoader(Slow(20, wait=0.02), 2, **how) as loader:

        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.15, interrupt)
        old = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                list(itertools.chain.from_iterable(itertools.repeat(loader, 50)))
        finally:
            signal.signal(signal.SIGINT, old)
            timer.join()
        assert flat(loader) == list(range(20))
