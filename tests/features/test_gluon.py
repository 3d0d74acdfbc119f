"""Features of Gluon's DataLoader (MXNet)."""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from datasets import Held, Images, Numbers, Slow, Structured, alive, all_pids, flat, pids, wait_for, worker_processes
from same import assert_same

from nbloader import DataLoader, FilterSampler, IntervalSampler, LoaderTimeoutError
from nbloader import events as ev
from nbloader.sampling.samplers import FullBatches

# ---- dataset, batches


@pytest.mark.parametrize("dataset", [Numbers(5), [0, 1, 2, 3, 4], np.arange(5), torch.arange(5), range(5)], ids=type)
def test_a_dataset_is_any_object_with_len_and_getitem(dataset, how):
    with DataLoader(dataset, 2, **how) as loader:
        assert [b.tolist() for b in loader] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    ("arguments", "both"),
    [
        ({"shuffle": True, "sampler": [1]}, ("sampler", "shuffle")),
        ({"batch_sampler": [[1]], "batch_size": 2}, ("batch_sampler", "batch_size")),
        ({"batch_sampler": [[1]], "shuffle": True}, ("batch_sampler", "shuffle")),
        ({"batch_sampler": [[1]], "sampler": [1]}, ("batch_sampler", "sampler")),
        ({"batch_sampler": [[1]], "last_batch": "keep"}, ("batch_sampler", "last_batch='keep'")),
        ({"batch_size": None, "last_batch": "rollover"}, ("batch_size", "last_batch='rollover'")),
        ({"drop_last": True, "last_batch": "rollover"}, ("drop_last", "last_batch='rollover'")),
        ({"last_batch": "drop"}, ("last_batch", "'keep', 'discard', 'rollover', not 'drop'")),
    ],
    ids=str,
)
def test_mutually_exclusive_arguments_are_errors_that_name_both(arguments, both):
    with pytest.raises(ValueError, match=f"(?s){both[0]}.*{both[1]}|{both[1]}.*{both[0]}"):
        DataLoader(Numbers(4), **arguments)


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ({}, [4, 4, 2]),
        ({"last_batch": "keep"}, [4, 4, 2]),
        ({"last_batch": "discard"}, [4, 4]),
        ({"drop_last": True}, [4, 4]),
        ({"drop_last": True, "last_batch": "discard"}, [4, 4]),
    ],
    ids=str,
)
def test_last_batch_keep_and_discard(arguments, sizes, how):
    with DataLoader(Numbers(10), 4, **arguments, **how) as loader:
        assert loader.drop_last == (sizes == [4, 4])
        for _ in range(2):
            assert len(loader) == len(sizes)
            assert [len(b) for b in loader] == sizes


def test_last_batch_rollover_neither_loses_nor_repeats_samples(how):
    """Every epoch starts with the samples that the one before left over, and `len()` is correct each time."""
    with DataLoader(Numbers(10), 4, shuffle=True, last_batch="rollover", **how) as loader:
        seen = []
        for expected in (2, 3, 2, 3, 2):
            assert len(loader) == expected
            batches = [b.tolist() for b in loader]
            assert [len(b) for b in batches] == [4] * expected
            seen += itertools.chain(*batches)
        passes = [sorted(seen[start : start + 10]) for start in range(0, 40, 10)]
        assert passes == [list(range(10))] * 4, "each pass over the dataset has every sample once"


def test_an_abandoned_epoch_rolls_nothing_over(how):
    with DataLoader(Numbers(10), 4, last_batch="rollover", **how) as loader:
        for batch in loader:
            assert batch.tolist() == [0, 1, 2, 3]
            break
        assert flat(loader) == list(range(8))
        state = loader.batch_sampler.state_dict()
        assert state == {"carried": [8, 9]}
        assert flat(loader) == [8, 9, *range(10)]
        loader.batch_sampler.load_state_dict(state)
        assert len(loader) == 3
        assert flat(loader) == [8, 9, *range(10)]


def test_with_fewer_samples_than_a_batch_they_accumulate_over_epochs():
    batches = FullBatches(range(3), 4, group=1, rollover=True)
    epochs = []
    for _ in range(4):
        epochs.append((len(batches), list(batches)))
        batches.epoch_over()
    assert epochs == [(0, []), (1, [[0, 1, 2, 0]]), (1, [[1, 2, 0, 1]]), (1, [[2, 0, 1, 2]])]


@pytest.mark.parametrize(
    ("sampler", "order"),
    [
        (IntervalSampler(7, 3), [0, 3, 6, 1, 4, 2, 5]),
        (IntervalSampler(7, 3, rollover=False), [0, 3, 6]),
        (FilterSampler(lambda x: x % 3 == 1, Numbers(7)), [1, 4]),
        (torch.utils.data.SequentialSampler(Numbers(3)), [0, 1, 2]),
    ],
    ids=lambda s: type(s).__name__,
)
def test_sequential_interval_and_filter_samplers(sampler, order, how):
    assert len(sampler) == len(order)
    with DataLoader(Numbers(7), 2, sampler=sampler, **how) as loader:
        assert flat(loader) == flat(loader) == order


def test_an_interval_longer_than_the_dataset_is_refused():
    with pytest.raises(ValueError, match="interval must be from 1 to length=3, not 4"):
        IntervalSampler(3, 4)


def test_the_default_batchify_function_is_torchs_and_custom_ones_are_accepted(how):
    with DataLoader(Structured(6), 3, **how) as loader:
        assert_same(list(loader), list(torch.utils.data.DataLoader(Structured(6), 3)))
    with DataLoader(Numbers(6), 3, collate_fn=sum, **how) as loader:
        assert list(loader) == [3, 12]


@pytest.mark.parametrize(("output", "kind"), [("torch", torch.Tensor), ("numpy", np.ndarray)])
def test_output_selects_tensors_or_arrays(output, kind, how):
    with DataLoader(Images(4), 2, output=output, **how) as loader:
        assert all(type(part) is kind for batch in loader for part in batch)


# ---- workers


def test_the_dataset_is_pickled_at_most_once_for_all_workers():
    for method, times in (("forkserver", 1), ("fork", 0)):
        how = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": method}
        with DataLoader(CountsPickling(8), 2, **how) as loader:
            assert flat(loader) == flat(loader) == [times] * 8


class CountsPickling(Numbers):
    """Each sample is the number of times that the dataset was pickled."""

    times = 0

    def __getstate__(self):
        self.times += 1
        return dict(self.__dict__)

    def __getitem__(self, i):
        return self.times


def test_batches_are_sent_by_shared_memory():
    with DataLoader(Images(4), 2, num_workers=1) as loader:
        assert {record.transport for record in records(loader)} == {"segment"}
        assert_same(list(loader), list(torch.utils.data.DataLoader(Images(4), 2)))


def records(loader):
    """The records of one epoch."""
    got = []
    with loader.events.subscribe(got.append):
        list(loader)
    return [event for event in got if isinstance(event, ev.BatchRecord)]


class FirstIsLast(Numbers):
    """The first sample waits until another worker has produced one; with a file `seen`, until that exists."""

    seen = None

    def __init__(self, n, folder, **attributes):
        super().__init__(n, **attributes)
        self.made = folder / "made"

    def __getitem__(self, i):
        if i == 0:
            wait_for((self.seen or self.made).exists)
        else:
            self.made.touch()
        return i


def test_batches_are_delivered_in_order_whichever_worker_finishes_first(with_workers, tmp_path):
    with DataLoader(FirstIsLast(8, tmp_path), 2, **with_workers) as loader:
        assert flat(loader) == list(range(8))
    seen = tmp_path / "seen"
    with DataLoader(FirstIsLast(8, tmp_path, seen=seen), 2, in_order=False, **with_workers) as loader:
        batches = iter(loader)
        got = flat([next(batches)])
        seen.touch()
        got += flat(batches)
        assert sorted(got) == list(range(8))
        assert got[:2] != [0, 1]


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_prefetch_is_the_number_of_batches_requested_ahead(prefetch, with_workers):
    requested = []

    class Counting:
        def __iter__(self):
            for i in range(40):
                requested.append(i)
                yield i

        def __len__(self):
            return 40

    with DataLoader(Numbers(40), 2, sampler=Counting(), prefetch=prefetch, **with_workers) as loader:
        batches = iter(loader)
        assert len(requested) == 2 * prefetch
        for taken in range(1, 4):
            next(batches)
            assert len(requested) >= 2 * taken
            if not prefetch:
                assert len(requested) == 2 * taken
        del batches


def test_a_timeout_names_the_worker_the_sample_and_the_line_of_code(with_workers, tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    with DataLoader(Held(4, flag=str(flag)), 2, timeout=0.5, **with_workers) as loader:
        try:
            batches = iter(loader)
            message = "has been starting"
            while "has been starting" in message:  # on a busy machine the start alone may take longer
                with pytest.raises(LoaderTimeoutError) as raised:
                    next(batches)
                message = str(raised.value)
        finally:
            flag.unlink()  # a thread ends when its sample does
    assert re.search(r"worker \d \(pid \d+\) has been fetching batch 0 for \d+\.\d s, at sample 0\b", message)
    assert re.search(r'light\.py", line \d+ in __getitem__', message)
    assert "slow sample" in message


# ---- the next epoch


def test_nothing_is_fetched_before_the_first_iteration(with_workers):
    others = worker_processes()  # those of an earlier test may not have ended
    with DataLoader(Numbers(4), 2, **with_workers) as loader:
        assert loader.stats().workers == () or not pids(loader)
        assert set(worker_processes()) <= set(others)
        assert flat(loader) == [0, 1, 2, 3]


def ready(loader) -> int:
    return loader.stats().ready


def test_with_auto_reload_the_next_epoch_starts_without_waiting(with_workers):
    with DataLoader(Slow(12, wait=0.01), 2, auto_reload=True, shuffle=True, **with_workers) as loader:
        assert sorted(flat(loader)) == list(range(12))
        durations, computed = [], []
        while len(durations) < 25 and not (durations and min(durations) < 2e-3):  # a busy machine delays the loop
            wait_for(lambda: ready(loader) >= 4, "the next epoch's first batches")
            begin, cpu_begin = time.perf_counter(), time.thread_time()
            batches = iter(loader)
            first = next(batches)
            durations.append(time.perf_counter() - begin)
            computed.append(time.thread_time() - cpu_begin)
            assert sorted(flat([first, *batches])) == list(range(12))
        loader.clean()
    assert min(computed) < 8e-3, computed  # 1 to 2 ms; a machine may be slow
    assert min(durations) < 1e-2, f"as if it waited for a batch, which takes 20 ms: {durations}"


def test_without_auto_reload_nothing_is_loaded_after_an_epoch(with_workers):
    with DataLoader(Numbers(12), 2, **with_workers) as loader:
        list(loader)
        assert loader.stats().state == "idle"


def test_refresh_starts_the_next_epoch_and_clean_discards_it(with_workers):
    with DataLoader(Numbers(12), 2, shuffle=True, generator=torch.Generator().manual_seed(2), **with_workers) as loader:
        loader.refresh()
        loader.refresh()
        wait_for(lambda: ready(loader) >= 2, "the first batches")
        epochs = [event for event in loader.events.recent() if isinstance(event, (ev.EpochStarted, ev.EpochEnded))]
        assert not epochs, "an epoch starts when it is iterated"
        loader.clean()
        loader.clean()
        wait_for(lambda: ready(loader) == 0, "the batches to be discarded")
        assert sorted(flat(loader)) == list(range(12))
        loader.refresh()
        one, other = iter(loader), iter(loader)
        assert sorted(flat(one)) == sorted(flat(other)) == list(range(12))


def test_a_changed_dataset_discards_the_prefetched_epoch():
    dataset = Added(8)
    with DataLoader(dataset, 2, num_workers=1) as loader:
        loader.refresh()
        wait_for(lambda: ready(loader) >= 2, "the first batches")
        dataset.more = 100
        assert flat(loader) == list(range(100, 108))
        loader.refresh()
        other = Added(8)
        other.more = 50
        loader.reload(other)
        assert flat(loader) == list(range(50, 58))
        loader.refresh()  # and close() discards it


class Added(Numbers):
    more = 0

    def __getitem__(self, i):
        return i + self.more


def test_the_workers_of_a_refreshed_and_unreferenced_loader_end():
    loader = DataLoader(Numbers(12), 2, num_workers=1)
    loader.refresh()
    (pid,) = wait_for(functools.partial(pids, loader), "the worker")
    del loader
    wait_for(lambda: not alive(pid), "the end of the worker")


def test_refresh_without_workers_does_nothing():
    with DataLoader(Numbers(4), 2, auto_reload=True) as loader:
        loader.refresh()
        assert flat(loader) == flat(loader) == [0, 1, 2, 3]


def test_concurrent_iterators_are_each_complete_and_in_order(how):
    with DataLoader(Numbers(12), 2, **how) as loader:
        pairs = zip(loader, loader, loader, strict=True)
        assert [[b.tolist() for b in three] for three in pairs] == [[[i, i + 1]] * 3 for i in range(0, 12, 2)]


# ---- the end


def test_workers_ignore_sigint_and_end_with_the_loader():
    with DataLoader(Slow(40), 2, num_workers=2) as loader:
        batches = iter(loader)
        first = next(batches).tolist()
        workers = all_pids(loader)
        for pid in workers:
            os.kill(pid, signal.SIGINT)
        seen = pids(loader)
        assert first + flat(batches) == list(range(40))
        assert seen == workers
    wait_for(lambda: not any(map(alive, workers)), "the end of the workers")


def test_a_loader_without_workers_publishes_the_same_events():
    kinds = []
    for workers in (0, 1):
        with DataLoader(Numbers(4), 2, num_workers=workers) as loader:
            seen = []
            loader.events.subscribe(lambda event, seen=seen: seen.append(type(event)))
            list(loader)
        kinds.append([kind for kind in seen if not kind.__name__.startswith("Worker")])
    assert kinds[0] == kinds[1] == [ev.EpochStarted, ev.BatchRecord, ev.BatchRecord, ev.EpochEnded, ev.LoaderClosed]


def test_a_script_that_ends_during_an_epoch_ends_cleanly(tmp_path):
    code = (
        "from nbloader import DataLoader\n"
        "loader = DataLoader(list(range(100)), 2, num_workers=2, auto_reload=True)\n"
        "list(loader)\nprint(next(iter(loader)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "tensor([0, 1])\n", "")
