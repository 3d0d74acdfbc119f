"""`on_error`: a sample that raises ends the loop, is skipped or is replaced; and it is reported."""

from __future__ import annotations

import collections
import importlib
import os
import pkgutil
import random
import traceback

import numpy as np
import pytest
import torch
from datasets import Numbers, flat, wait_for
from torch.utils.data import IterableDataset

import nbloader.batch
import nbloader.workers
from nbloader import DataLoader, DatasetTransferError
from nbloader import events as ev
from nbloader.engine.skipped_samples import SkippedSamples
from nbloader.report.eventlog import line_of

WORKERS = pytest.mark.parametrize(
    "workers",
    [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}],
    ids=["in process", "processes", "threads"],
)


class Holes(Numbers):
    """Raises at the indices in `bad`."""

    bad = frozenset()

    def __getitem__(self, i):
        if i in self.bad:
            raise OSError(f"no sample {i}")
        return i


class AtOnce(Holes):
    """Returns a whole batch, so it is unknown which of its samples is bad."""

    def __getitems__(self, indices):
        return [self[i] for i in indices]


def failed(loader):
    return [event for event in list(loader.events.history) if isinstance(event, ev.SampleFailed)]


def samples_failed(loader, retried):
    """The events of samples. There are `retried` more, of batches that were fetched again sample by sample."""
    events = failed(loader)
    assert sum(event.done == "retried" for event in events) == loader.stats().retried == retried
    return [event for event in events if event.done != "retried"]


def batches_failed(loader):
    return [event for event in list(loader.events.history) if isinstance(event, ev.BatchFailed)]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "workers": "thread"}], ids=["in process", "threads"])
def test_the_cell_says_once_that_samples_are_skipped_and_how_many_were(workers, capfd):
    with DataLoader(Holes(40, bad={3, 8, 9}), 4, **workers, on_error="skip") as loader:
        batches = iter(loader)
        next(batches)
        line = capfd.readouterr().err
        assert line.startswith("nbloader: sample 3 of batch 0 was skipped"), "at once, not at the end"
        assert "OSError: no sample 3. Later ones are only counted, in loader.stats().skipped" in line
        next(batches)
        next(batches)
        assert not capfd.readouterr().err
        collections.deque(batches, maxlen=0)
        assert capfd.readouterr().err.startswith("nbloader: 3 samples of this epoch were skipped")
        collections.deque(loader, maxlen=0)
        assert loader.stats().skipped == 6
        assert not capfd.readouterr().err, "the same samples again"
    with DataLoader(Holes(8, bad={3}), 4, **workers, on_error="skip") as loader:
        collections.deque(loader, maxlen=0)
        assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.unit
def test_an_epoch_is_mentioned_if_it_skips_more_than_those_before_it():
    skipped = SkippedSamples()
    lines = []
    for epoch, count in enumerate([1, 3, 3, 2, 4]):
        lines += [skipped.add(ev.SampleFailed(0, epoch, 0, 0, i, "OSError: a\nb", "", "skipped")) for i in range(count)]
        lines.append(skipped.exhausted(epoch))
        skipped.closed(epoch)
    assert [line[:24] for line in lines if line] == [
        "nbloader: sample 0 of ba", "nbloader: 3 samples of t", "nbloader: 4 samples of t",
    ]  # fmt: skip
    assert all(line.count("\n") == 1 for line in lines if line)
    assert not skipped.add(ev.SampleFailed(0, 9, 0, 0, 1, "OSError", "", "replaced"))


@WORKERS
@pytest.mark.parametrize("dataset", [Holes, AtOnce])
def test_skip_leaves_the_batch_with_the_other_samples(workers, dataset):
    with DataLoader(dataset(20, bad={3, 8, 9, 17}), 4, **workers, on_error="skip") as loader:
        got = [batch.tolist() for batch in loader]
        assert got == [[0, 1, 2], [4, 5, 6, 7], [10, 11], [12, 13, 14, 15], [16, 18, 19]]
        events = samples_failed(loader, retried=3 if dataset is AtOnce else 0)
        assert [(e.epoch, e.index, e.sample, e.done) for e in sorted(events, key=lambda e: e.sample)] == [
            (0, 0, 3, "skipped"), (0, 2, 8, "skipped"), (0, 2, 9, "skipped"), (0, 4, 17, "skipped"),
        ]  # fmt: skip
        event = next(e for e in events if e.sample == 8)
        assert event.error == "OSError: no sample 8"
        assert "in __getitem__" in event.traceback
        assert "nbloader/" not in event.traceback
        assert (event.worker >= 0) == bool(workers)
        stats = loader.stats()
        assert (stats.skipped, stats.replaced, stats.errors) == (4, 0, 0)
        assert set(stats.failed_samples) == set(failed(loader))
        assert [r.samples for r in loader.events.batches()] == [3, 4, 2, 4, 3]
        assert flat(loader) == [i for i in range(20) if i not in {3, 8, 9, 17}]
        assert loader.stats().skipped == 8


@WORKERS
def test_an_error_of_getitems_that_does_not_recur_is_reported_for_its_batch(workers, tmp_path):
    class FailsOnce(AtOnce):
        def __getitems__(self, indices):
            if 5 in indices and not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                raise TimeoutError("try again")
            return super().__getitems__(indices)

    with DataLoader(FailsOnce(12), 4, **workers, on_error="skip") as loader:
        assert flat(loader) == list(range(12))
        (event,) = failed(loader)
        assert (event.index, event.sample, event.error, event.done) == (1, None, "TimeoutError: try again", "retried")
        stats = loader.stats()
        assert stats.failed_samples == (event,)
        assert (stats.skipped, stats.replaced) == (0, 0)
        assert "batch 1 was retried: TimeoutError: try again" in line_of(event).text


@WORKERS
@pytest.mark.parametrize("ahead", [{}, {"prefetch": 0}, {"prefetch": 1}, {"in_order": False}])
def test_a_batch_without_samples_is_not_delivered(workers, ahead):
    if "prefetch" in ahead and not workers:
        pytest.skip("nothing is prefetched without workers")
    bad = {*range(8), *range(12, 16), 17, *range(32, 40)}
    with DataLoader(Holes(40, bad=bad), 4, **workers, on_error="skip", **ahead) as loader:
        for _ in range(2):
            assert sorted(batch.tolist() for batch in loader) == [
                [8, 9, 10, 11], [16, 18, 19], [20, 21, 22, 23], [24, 25, 26, 27], [28, 29, 30, 31],
            ]  # fmt: skip
    with DataLoader(Holes(40, bad=set(range(40))), 4, **workers, on_error="skip") as loader:
        assert list(loader) == []
        assert loader.stats().skipped == 40


@WORKERS
def test_without_batching_a_sample_that_raises_is_skipped(workers):
    with DataLoader(Holes(9, bad={0, 4, 8}), None, **workers, on_error="skip") as loader:
        assert list(loader) == [1, 2, 3, 5, 6, 7]
        assert sorted(e.sample for e in failed(loader)) == [0, 4, 8]


@WORKERS
@pytest.mark.parametrize(("dataset", "size"), [(Holes, 4), (AtOnce, 4), (Holes, None)])
def test_a_function_returns_a_replacement(workers, dataset, size):
    seen = {3: "no sample 3", 8: "no sample 8"}

    def other(index, error):
        assert str(error) == seen[index]
        return -index

    with DataLoader(dataset(12, bad={3, 8}), size, **workers, on_error=other) as loader:
        want = [0, 1, 2, -3, 4, 5, 6, 7, -8, 9, 10, 11]
        assert (flat(loader) if size else list(loader)) == want
        events = samples_failed(loader, retried=2 if dataset is AtOnce else 0)
        assert sorted((e.sample, e.done) for e in events) == [(3, "replaced"), (8, "replaced")]
        stats = loader.stats()
        assert (stats.skipped, stats.replaced, stats.errors) == (0, 2, 0)


@WORKERS
def test_a_function_that_raises_fails_its_batch(workers):
    def other(index, _error):
        raise LookupError(f"nothing for {index}")

    with DataLoader(Holes(12, bad={5}), 4, **workers, on_error=other) as loader:
        epoch = iter(loader)
        assert next(epoch).tolist() == [0, 1, 2, 3]
        with pytest.raises(LookupError, match="nothing for 5") as raised:
            next(epoch)
        text = f"{raised.value.__cause__} {raised.value.__context__}"
        assert "no sample 5" in text, "the error that the function was called with"
        assert next(epoch).tolist() == [8, 9, 10, 11]
        assert [e.sample for e in batches_failed(loader)] == [5]
        assert failed(loader) == []


@WORKERS
def test_errors_of_collate_fn_are_always_raised(workers):
    def collate(samples):
        if 5 in samples:
            raise ZeroDivisionError
        return samples

    with DataLoader(Holes(12, bad={4}), 4, **workers, on_error="skip", collate_fn=collate) as loader:
        epoch = iter(loader)
        assert next(epoch) == [0, 1, 2, 3]
        with pytest.raises(ZeroDivisionError):
            next(epoch)
        assert next(epoch) == [8, 9, 10, 11]
        assert [e.sample for e in failed(loader)] == [4], "it was skipped all the same"


def test_the_other_samples_are_the_same_for_any_number_of_workers():
    class Random(Holes):
        def __getitem__(self, i):
            value = random.random(), np.random.rand(), float(torch.rand(1))
            super().__getitem__(i)
            return value

    def epoch(workers):
        torch.manual_seed(3)
        with DataLoader(Random(40, bad={1, 2, 30}), 4, num_workers=workers, on_error="skip") as loader:
            return [[column.tolist() for column in batch] for batch in loader]

    assert epoch(0) == epoch(1) == epoch(3)


def test_errors_are_counted_once_if_a_worker_dies_with_its_batch(tmp_path):
    class Dies(Holes):
        def __getitem__(self, i):
            if i == 7 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()

                os._exit(1)
            return super().__getitem__(i)

    with DataLoader(Dies(16, bad={5}), 4, num_workers=2, on_error="skip") as loader:
        assert flat(loader) == [i for i in range(16) if i != 5]
        assert (loader.stats().skipped, loader.stats().deaths) == (1, 1)


def test_a_step_continues_to_a_batch_that_has_samples():
    for workers in (0, 1):
        with DataLoader(Holes(12, bad={0, 1, 4, 5, 6, 7}), 2, num_workers=workers, on_error="skip") as loader:
            loader.step()
            epoch = iter(loader)
            assert next(epoch).tolist() == [2, 3]
            loader.step()
            assert next(epoch).tolist() == [8, 9]
            loader.step()
            assert next(epoch).tolist() == [10, 11]
            assert loader.stats().state == "paused"
            loader.resume()
            assert next(epoch, None) is None


def test_only_the_latest_errors_are_kept():
    with DataLoader(Holes(300, bad=set(range(250))), 10, num_workers=2, on_error="skip") as loader:
        list(loader)
        stats = loader.stats()
        assert (stats.skipped, len(stats.failed_samples)) == (250, 100)


@pytest.mark.parametrize("wrong", ["ignore", None, 3, True, b"skip"])
def test_an_unknown_value_of_on_error_is_rejected(wrong):
    with pytest.raises(ValueError, match=r"on_error must be 'raise', 'skip' or a function .* not "):
        DataLoader(Numbers(4), on_error=wrong)


def test_a_function_that_cannot_be_sent_to_workers_is_named():

    generator = (i for i in range(4))
    with DataLoader(
        Numbers(4), num_workers=1, on_error=lambda i, e: generator, multiprocessing_context="forkserver"
    ) as loader:
        with pytest.raises(DatasetTransferError, match=r"^on_error cannot be sent"):
            iter(loader)
        wait_for(lambda: loader.stats().state in ("new", "idle"))


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("workers", ["process", "thread"])
def test_failed_samples_are_reported_once_with_their_batch_even_if_it_is_produced_again(workers, chunk_size):
    """`reload(keep=False)`, `clean()` and leaving the loop drop batches that were produced and not delivered."""
    dataset = Holes(24, bad={2, 9, 13, 17, 22})
    with DataLoader(
        dataset, 4, num_workers=2, workers=workers, on_error="skip", prefetch=4, chunk_size=chunk_size
    ) as loader:
        epoch = iter(loader)
        assert next(epoch).tolist() == [0, 1, 3]
        wait_for(lambda: loader.stats().ready >= 4, "the whole window")
        assert loader.stats().skipped == 1
        loader.reload(keep=False)
        assert flat(epoch) == [i for i in range(4, 24) if i not in dataset.bad]
        assert sorted(event.sample for event in failed(loader)) == sorted(dataset.bad)
        loader.refresh()
        wait_for(lambda: loader.stats().ready >= 4, "the next epoch's first batches")
        loader.clean()
        next(iter(loader))
        assert loader.stats().skipped == 6


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_a_batch_that_raises_is_counted_once_even_if_it_is_produced_again(workers):
    with DataLoader(Holes(12, bad={5}), 4, num_workers=2, workers=workers, prefetch=2) as loader:
        epoch = iter(loader)
        assert next(epoch).tolist() == [0, 1, 2, 3]
        wait_for(lambda: loader.stats().ready >= 2, "all batches")
        assert loader.stats().errors == 0
        loader.reload(keep=False)
        with pytest.raises(OSError, match="no sample 5"):
            next(epoch)
        assert next(epoch).tolist() == [8, 9, 10, 11]
        assert loader.stats().errors == 1


# ---- the user's exceptions are never taken for internal ones


class ExhaustedError(Exception):
    """The dataset's own; there was an internal exception of this name."""


def internal_exceptions():
    """The exceptions that are defined where the user's code is called, by name."""
    for package in (nbloader.workers, nbloader.batch):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    pending, found = [Exception], {"ExhaustedError": ExhaustedError}
    while pending:
        for kind in pending.pop().__subclasses__():
            pending.append(kind)
            if kind.__module__.startswith("nbloader.") and not kind.__module__.startswith("nbloader.explorer."):
                found[kind.__name__] = kind
    return found


INTERNAL = internal_exceptions()


class Raising:
    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 3:
            raise INTERNAL[self.name]("raised by the dataset")
        return index


class RaisingStream(Raising, IterableDataset):
    def __iter__(self):
        return map(self.__getitem__, range(6))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("dataset", [Raising, RaisingStream])
@pytest.mark.parametrize(("workers", "kind"), [(0, "process"), (1, "process"), (1, "thread")])
@pytest.mark.parametrize("name", INTERNAL)
def test_an_exception_of_the_user_is_not_taken_for_an_internal_one(dataset, workers, kind, name):
    with DataLoader(dataset(name), 2, num_workers=workers, workers=kind) as loader:
        epoch = iter(loader)
        assert next(epoch).tolist() == [0, 1]
        with pytest.raises(INTERNAL[name], match="raised by the dataset"):
            next(epoch)


# ---- samples that are None


class Nones(Numbers):
    """Returns None at index 5, and raises at index 4 if `raises`."""

    def __init__(self, length, value, raises):
        super().__init__(length)
        self.value = value
        self.raises = raises

    def __getitem__(self, i):
        if i == 4 and self.raises:
            raise OSError("no sample 4")
        return None if i == 5 else self.value


@WORKERS
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    "value", [1, np.zeros(3, np.float32), {"a": 1}, torch.zeros(2)], ids=["number", "array", "dict", "tensor"]
)
def test_a_sample_that_is_none_is_named(workers, chunk, raises, value):
    if chunk and not workers:
        pytest.skip("chunks are for workers")
    dataset = Nones(8, value, raises)
    with DataLoader(dataset, 4, **workers, chunk_size=chunk, on_error="skip") as loader:
        epoch = iter(loader)
        next(epoch)
        with pytest.raises(TypeError, match=r"default_collate: sample 5 is None, .*on_error='skip'") as caught:
            next(epoch)
    assert "NotPlanned" not in "".join(traceback.format_exception(caught.type, caught.value, caught.tb))


@WORKERS
def test_other_samples_that_make_no_batch_show_no_internal_exception(workers):
    with DataLoader([1, "a"], 2, **workers) as loader, pytest.raises(TypeError) as caught:
        list(loader)
    assert "NotPlanned" not in "".join(traceback.format_exception(caught.type, caught.value, caught.tb))


@WORKERS
def test_each_repeated_fetch_is_counted_also_if_samples_fail_again(workers):
    with DataLoader(AtOnce(12, bad={5}), 4, **workers, on_error="skip") as loader:
        assert flat(loader) == [i for i in range(12) if i != 5]
        assert [(e.index, e.sample, e.error, e.done) for e in failed(loader)] == [
            (1, None, "OSError: no sample 5", "retried"),
            (1, 5, "OSError: no sample 5", "skipped"),
        ]
        stats = loader.stats()
        assert (stats.retried, stats.skipped, stats.errors) == (1, 1, 0)
