"""Features of DI-engine's AsyncDataLoader."""

from __future__ import annotations

import threading
import time

import light
import numpy as np
import pytest
import torch
from datasets import Deadly, Images, Numbers, Raises, Slow, Structured, flat, pids, sigkill, wait_for
from same import assert_same

import nbloader
from nbloader import DataLoader, LoaderClosedError
from nbloader import events as ev

# ---- sources


class Counter:
    """A source that returns the numbers from 0 on, as functions, as samples, or both; and counts its calls."""

    def __init__(self, kind="functions", calls=10**9, wait=0.0):
        self.kind = kind
        self.calls = calls
        self.wait = wait
        self.called = 0

    def __call__(self, batch_size):
        if self.called == self.calls:
            raise StopIteration
        first = self.called * batch_size
        self.called += 1
        time.sleep(self.wait)
        numbers = range(first, first + batch_size)
        return [self.item(i) for i in numbers]

    def item(self, i):
        ready = self.kind == "samples" or (self.kind == "mixed" and i % 2)
        return i if ready else lambda: i


@pytest.mark.parametrize("kind", ["functions", "samples", "mixed"])
def test_a_source_returns_functions_samples_or_both(kind, how):
    with DataLoader.from_source(Counter(kind, calls=5), 4, **how) as loader:
        assert [b.tolist() for b in loader] == [list(range(i, i + 4)) for i in range(0, 20, 4)]


def test_samples_of_a_source_are_collated_by_default(how):
    def source(batch_size):
        return [{"obs": np.full(3, i), "reward": float(i)} for i in range(batch_size)]

    with DataLoader.from_source(source, 4, **how) as loader:
        batch = next(iter(loader))
        assert batch["obs"].shape == (4, 3)
        assert batch["reward"].tolist() == [0, 1, 2, 3]


def test_functions_run_in_the_workers(with_workers):
    with DataLoader.from_source(lambda n: [nbloader.get_worker_info] * n, 2, collate_fn=ids, **with_workers) as it:
        assert set(next(iter(it))) <= {0, 1}


def ids(infos):
    return [info.id for info in infos]


def test_a_source_is_endless_until_it_raises_stop_iteration(how):
    with DataLoader.from_source(Counter(), 2, **how) as loader:
        batches = iter(loader)
        assert flat(next(batches) for _ in range(50)) == list(range(100))
        with pytest.raises(TypeError):
            len(loader)
    with DataLoader.from_source(Counter(calls=3), 2, **how) as loader:
        assert flat(loader) == list(range(6))
        assert list(loader) == []


def test_an_error_of_a_source_is_raised_after_the_batches_before_it(how):
    def source(batch_size, counter=Counter(calls=3)):  # noqa: B008 - one counter for all calls
        try:
            return counter(batch_size)
        except StopIteration:
            raise OSError("the buffer is gone") from None

    with DataLoader.from_source(source, 2, **how) as loader:
        batches = iter(loader)
        assert flat(next(batches) for _ in range(3)) == list(range(6))
        with pytest.raises(OSError, match="the buffer is gone"):
            next(batches)


def broken():
    raise KeyError("frame 7")


def test_a_failing_function_is_reported_and_iteration_can_continue(how):
    given = iter([[int, int], [int, broken], [int, int]])
    with DataLoader.from_source(lambda _n: next(given), 2, **how) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 0]
        with pytest.raises(KeyError, match="frame 7") as raised:
            next(batches)
        assert "sample 3 of batch 1" in raised.value.__notes__[0]
        assert next(batches).tolist() == [0, 0]


@pytest.mark.parametrize("given", [None, [], 5, "abc"], ids=repr)
def test_a_source_with_an_invalid_result_is_an_error(given, how):
    with (
        DataLoader.from_source(lambda _n: given, 2, **how) as loader,
        pytest.raises(TypeError, match="the source must return a list of functions or samples"),
    ):
        next(iter(loader))


def test_a_slow_source_overlaps_with_the_loop(with_workers):
    """During a step of the loop, the source is called for a later batch."""
    source = Counter(wait=0.001)
    with DataLoader.from_source(source, 2, **with_workers) as loader:
        batches = iter(loader)
        for taken in range(1, 11):
            next(batches)
            wait_for(lambda taken=taken: source.called > taken, "the next call")


@pytest.mark.parametrize("prefetch", [1, 4])
def test_backpressure_reaches_the_source(prefetch, with_workers):
    source = Counter("samples")
    with DataLoader.from_source(source, 2, prefetch=prefetch, **with_workers) as loader:
        batches = iter(loader)
        for taken in range(1, 6):
            next(batches)
            wait_for(lambda taken=taken: source.called > taken or prefetch == 1, "the source is asked ahead")
            assert source.called <= taken + prefetch + 3
        del batches


def test_records_of_a_source_do_not_hold_samples(how):
    with DataLoader.from_source(Counter("samples", calls=3), 2, **how) as loader:
        list(loader)
        records = [event for event in loader.events.recent() if isinstance(event, ev.BatchRecord)]
    assert [record.indices for record in records] == [[0, 1], [2, 3], [4, 5]]


def test_invalid_arguments_of_from_source_are_refused():
    with pytest.raises(TypeError, match=r"source must be callable with a batch size, not list: \[1\]"):
        DataLoader.from_source([1], 2)
    with pytest.raises(ValueError, match="positive integer value, but got batch_size=0"):
        DataLoader.from_source(Counter(), 0)
    with pytest.raises(ValueError, match="from_source and shuffle are mutually exclusive"):
        DataLoader.from_source(Counter(), 2, shuffle=True)


# ---- order and closing


def test_batches_of_a_source_are_in_order(how):
    with DataLoader.from_source(Counter(calls=30), 3, **how) as loader:
        assert flat(loader) == list(range(90))


def test_a_closed_loader_raises_instead_of_yielding_none(how):
    with DataLoader.from_source(Counter(), 2, **how) as loader:
        batches = iter(loader)
        next(batches)
    with pytest.raises(LoaderClosedError):
        list(batches)
    with pytest.raises(LoaderClosedError):
        iter(loader)


def test_closing_ends_a_loop_that_waits_for_the_source(how):
    held = threading.Event()

    def source(batch_size):
        held.wait(90)
        raise StopIteration

    loader = DataLoader.from_source(source, 2, **how)
    batches = iter(loader)
    timer = threading.Timer(0.2, loader.close)
    timer.start()
    try:
        with pytest.raises(LoaderClosedError):
            next(batches)
    finally:
        timer.join()
        held.set()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_start_with_forkserver_or_spawn(method):
    with DataLoader(light.Numbers(4), 2, num_workers=1, multiprocessing_context=method) as loader:
        epoch = iter(loader)
        first = next(epoch).tolist()
        assert len(pids(loader)) == 1
        assert first + flat(epoch) == [0, 1, 2, 3]


# ---- chunks


def named_squares(samples):
    return {"n": len(samples), "sum": sum(samples)}


@pytest.mark.parametrize(
    ("dataset", "arguments"),
    [
        (Images(20), {}),
        (Structured(20), {}),
        (Numbers(20), {"shuffle": True}),
        (Numbers(20), {"last_batch": "rollover"}),
        (Numbers(20), {"drop_last": True}),
        (Numbers(20), {"collate_fn": named_squares}),
        (Numbers(20), {"prefetch": 0}),
        (["a", "b", "c"] * 5, {}),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, dict) else str(x)[:30],
)
def test_chunked_batches_equal_those_of_one_worker(dataset, arguments, with_workers):
    epochs = []
    for chunk_size in (None, 4):
        torch.manual_seed(3)
        with DataLoader(dataset, 8, chunk_size=chunk_size, **arguments, **with_workers) as loader:
            epochs.append([len(loader), list(loader), list(loader)])
    assert_same(epochs[1], epochs[0])


def test_chunks_of_a_source_are_joined_in_order(with_workers):
    with DataLoader.from_source(Counter("mixed", calls=5), 6, chunk_size=2, **with_workers) as loader:
        assert [b.tolist() for b in loader] == [list(range(i, i + 6)) for i in range(0, 30, 6)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunk_size": 3}, "chunk_size must divide batch_size=8, and chunk_size=3 does not"),
        ({"chunk_size": 0}, "chunk_size must be a positive number of samples, not 0"),
    ],
    ids=str,
)
def test_an_invalid_chunk_size_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        DataLoader(Numbers(20), 8, **arguments)
    with pytest.raises(ValueError, match="chunk_size=2 requires batches"):
        DataLoader(Numbers(20), batch_size=None, chunk_size=2)
    with pytest.raises(ValueError, match="chunk_size=2 requires a map-style dataset"):
        DataLoader(iter([1]), batch_size=2, chunk_size=2)
    with pytest.raises(TypeError, match="chunk_size must be an int or None, not float"):
        DataLoader(Numbers(20), batch_size=2, chunk_size=2.0)


def test_a_chunk_whose_worker_dies_is_produced_again(tmp_path):
    flag = tmp_path / "once"
    flag.touch()
    with DataLoader(Deadly(32, bad=5, how=sigkill, flag=str(flag)), 8, chunk_size=2, num_workers=2) as loader:
        assert [b.tolist() for b in loader] == [list(range(i, i + 8)) for i in range(0, 32, 8)]


def test_a_failing_chunk_fails_its_batch_only(with_workers):
    with DataLoader(Raises(24, bad=9, error=KeyError), 8, chunk_size=2, **with_workers) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == list(range(8))
        with pytest.raises(KeyError):
            next(batches)
        assert [b.tolist() for b in batches] == [list(range(16, 24))]


def test_one_large_batch_is_loaded_in_parallel(with_workers):
    """Two workers, 16 samples of 20 ms: little more than half of 320 ms."""
    with DataLoader(Slow(16, wait=0.02), 16, chunk_size=8, persistent_workers=True, **with_workers) as loader:
        list(loader)

        def duration():
            begin = time.perf_counter()
            list(loader)
            return time.perf_counter() - begin

        wait_for(lambda: duration() < 0.32 * 0.75, "an epoch that no other process disturbs")
