"""The loader in normal operation: batches equal to torch's, the workers' environment, events, and lifetimes."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import random
import resource
import subprocess
import sys
import threading
import time
import warnings

import light
import numpy as np
import psutil
import pytest
import torch
from datasets import (
    Augmented,
    Environment,
    Images,
    Numbers,
    Raises,
    Slow,
    Structured,
    Sums,
    all_pids,
    begin,
    flat,
    pids,
    run_script,
    wait_for,
    without_address,
    worker_processes,
)
from same import assert_same

import nbloader
from nbloader import DataLoader, LoaderClosedError
from nbloader import events as ev
from nbloader.sampling.epoch_plan import MapEpochPlan


def squares(samples):
    return {
        "n": len(samples),
        "squares": torch.tensor([s * s for s in samples]),
        "big": np.ones((100, 100)) * len(samples),
    }


def both(dataset, *args, **kwargs):
    """The batches of a loader with workers, of one without, and of torch's."""
    with DataLoader(dataset, *args, num_workers=2, **kwargs) as workers, DataLoader(dataset, *args, **kwargs) as local:
        return list(workers), list(local), list(torch.utils.data.DataLoader(dataset, *args, **kwargs))


# ---- batches


@pytest.mark.parametrize(
    ("dataset", "args", "kwargs"),
    [
        (Numbers(40), (7,), {}),
        (Numbers(40), (7,), {"drop_last": True}),
        (Numbers(3), (5,), {}),
        (Numbers(3), (), {}),
        (Numbers(3), (None,), {}),
        (Numbers(9), (None,), {"sampler": [3, 1, 4, 1, 5]}),
        (Numbers(9), (2,), {"sampler": [3, 1, 4, 1, 5]}),
        (Numbers(9), (), {"batch_sampler": [[3, 1], [4], [1, 5, 8]]}),
        (Numbers(9), (), {"batch_sampler": [np.array([3, 1]), (2, 0)]}),
        (Numbers(9), (3,), {"collate_fn": squares}),
        (Numbers(9), (None,), {"collate_fn": str}),
        (Images(12), (4,), {}),
        (Structured(8), (3,), {}),
        (Structured(2), (None,), {}),
        (list("abcdefg"), (2,), {}),
        (np.arange(12).reshape(6, 2), (4,), {}),
        (torch.arange(12.0).reshape(6, 2), (4,), {}),
        (torch.utils.data.TensorDataset(torch.arange(6), torch.rand(6, 3)), (4,), {}),
        (torch.utils.data.Subset(Numbers(20), [3, 1, 4]), (2,), {}),
        ([np.zeros((0, 3))] * 4, (2,), {}),
    ],
    ids=lambda x: without_address(x)[:40],
)
def test_batches_equal_those_of_torch_with_and_without_workers(dataset, args, kwargs):
    workers, local, theirs = both(dataset, *args, **kwargs)
    assert_same(local, theirs)
    assert_same(workers, theirs)


@pytest.mark.portable
def test_shuffled_batches_are_the_same_with_and_without_workers():
    epochs = []
    for workers in (0, 1, 3):
        torch.manual_seed(11)
        with DataLoader(Numbers(50), 8, shuffle=True, num_workers=workers) as loader:
            epochs.append([flat(loader), flat(loader)])
    assert epochs[0] == epochs[1] == epochs[2]
    assert epochs[0][0] != epochs[0][1]
    assert sorted(epochs[0][0]) == list(range(50))


def test_augmentation_does_not_depend_on_the_number_of_workers_or_change_the_global_generators():
    epochs = []
    states = []
    for workers in (0, 1, 3):
        torch.manual_seed(5)
        random.seed(1)
        np.random.seed(2)
        with DataLoader(Augmented(30), 4, shuffle=True, num_workers=workers) as loader:
            epochs.append([[x.tolist() for x in batch] for _ in range(2) for batch in loader])
        states.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert epochs[0] == epochs[1] == epochs[2]
    assert states[0] == states[1] == states[2]
    drawn = [x for batch in epochs[0] for x in batch[1]]
    assert len(set(drawn)) == len(drawn), "each sample gets its own random numbers"


def test_torch_is_seeded_and_has_worker_info_if_a_sample_imports_it_first(tmp_path, monkeypatch):
    (tmp_path / "late.py").write_text(
        "class Late:\n"
        "    def __len__(self): return 12\n"
        "    def __getitem__(self, i):\n"
        "        name = 'tor' + 'ch'\n"
        "        late = __import__(name)\n"
        "        return float(late.rand(())), late.utils.data.get_worker_info().id\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    drawn = []
    for workers in (1, 2):
        with DataLoader(
            __import__("late").Late(),
            2,
            num_workers=workers,
            generator=torch.Generator().manual_seed(3),
            multiprocessing_context="spawn",
        ) as loader:
            batches = list(loader)
        drawn.append([numbers.tolist() for numbers, _ids in batches])
        assert {int(i) for _numbers, ids in batches for i in ids} <= set(range(workers))
    sys.modules.pop("late")
    assert drawn[0] == drawn[1]


def test_the_generator_determines_order_and_seeds():
    def epochs(seed):
        with DataLoader(Augmented(12), 4, True, num_workers=2, generator=torch.Generator().manual_seed(seed)) as loader:
            return [[x.tolist() for x in batch] for _ in range(2) for batch in loader]

    torch.manual_seed(1)
    first = epochs(7)
    torch.manual_seed(2)
    assert epochs(7) == first
    assert epochs(8) != first


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch": 0},
        {"prefetch_factor": 0},
        {"prefetch": 1},
        {"prefetch": 100},
        {"multiprocessing_context": "spawn"},
        {"persistent_workers": True},
        {"timeout": 60},
    ],
    ids=str,
)
def test_options_do_not_change_the_batches(options):
    with DataLoader(light.Images(30), 4, num_workers=2, **options) as loader:
        for _ in range(2):
            batches = list(loader)
            assert [i for _, indices in batches for i in indices.tolist()] == list(range(30))
            assert all(
                (image == i).all() for images, indices in batches for image, i in zip(images, indices, strict=True)
            )


@pytest.mark.portable
def test_with_in_order_false_every_batch_is_delivered_once():
    with DataLoader(Slow(40), 2, num_workers=3, in_order=False) as loader:
        assert sorted(flat(loader)) == list(range(40))


@pytest.mark.parametrize("workers", [0, 2])
def test_numpy_output(workers):
    with DataLoader(Structured(6), 3, num_workers=workers, output="numpy") as loader:
        batch = next(iter(loader))
        assert type(batch["image"]) is np.ndarray
        assert batch["image"][:, 0, 0].tolist() == [0, 1, 2]
        assert type(batch["nested"][0][0]) is np.ndarray
    with DataLoader(Numbers(6), None, num_workers=workers, output="numpy") as loader:
        assert [int(x) for x in loader] == list(range(6))


@pytest.mark.parametrize("how", [{}, {"num_workers": 1}, {"num_workers": 1, "workers": "thread"}], ids=str)
def test_numpy_output_with_every_kind_of_collation(how):
    samples = [{"x": np.ones(3), "y": (1, 2.5), "z": [i, np.float32(i) if i % 2 else float(i)]} for i in range(4)]
    with DataLoader(samples, 2, output="numpy", **how) as loader:
        for batch in loader:
            leaves = [batch["x"], *batch["y"], *batch["z"]]
            assert [type(leaf) for leaf in leaves] == [np.ndarray] * 5
            assert batch["x"].tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_length_equals_that_of_torch(workers):
    for args in (
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
        {"batch_sampler": [[1]] * 3},
    ):
        with DataLoader(Numbers(10), num_workers=workers, **args) as loader:
            assert len(loader) == len(torch.utils.data.DataLoader(Numbers(10), **args)) == len(list(loader))


@pytest.mark.portable
def test_kept_batches_are_not_overwritten():
    with DataLoader(Images(120), 2, num_workers=2) as loader:
        kept = list(loader)
        views = [images[1, 3:, ::2] for images, _ in kept[::2]]
        del kept[::2]
        list(loader)
    for i, view in enumerate(views):
        assert (view == 4 * i + 1).all()
    for i, (images, _) in enumerate(kept):
        assert (images[0] == 4 * i + 2).all()
    images[:] = 5  # batches are writable


# ---- iterators


def test_concurrent_iterators_each_yield_all_batches():
    with DataLoader(Numbers(30), 3, num_workers=2) as loader:
        one, two = [], []
        for a, b in zip(loader, loader, strict=True):
            one.append(a)
            two.append(b)
        assert flat(one) == flat(two) == list(range(30))


def test_an_older_iterator_continues_after_a_newer_one():
    with DataLoader(Slow(40, wait=0.002), 2, num_workers=1) as loader:
        for _ in range(4):
            older = iter(loader)
            start = flat([next(older), next(older)])
            assert flat(loader) == list(range(40))
            assert start + flat(older) == list(range(40))


def test_several_threads_can_iterate_one_loader():
    with DataLoader(Slow(60, wait=0.001), 2, num_workers=2) as loader:
        found: dict[int, list[int]] = {}

        def consume(me):
            found[me] = flat(loader)

        threads = [threading.Thread(target=consume, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(found.values()) == [list(range(60))] * 3


@pytest.mark.linux("it starts eighty workers")
def test_threads_that_begin_to_iterate_one_loader_at_once_leave_nothing_behind():
    for _ in range(10):
        with DataLoader(Numbers(8), 2, num_workers=1) as loader:
            barrier = threading.Barrier(4)

            def consume(loader=loader, barrier=barrier):
                barrier.wait()
                for _ in range(2):
                    assert flat(loader) == list(range(8))

            threads = [threading.Thread(target=consume) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


def test_after_a_break_the_next_epoch_is_complete():
    with DataLoader(Slow(60, wait=0.001), 3, num_workers=2) as loader:
        for left_after in range(5):
            for number, _batch in enumerate(loader):
                if number == left_after:
                    break
        assert flat(loader) == list(range(60))
        gc.collect()
        assert [e.reason for e in events(loader, ev.EpochEnded)] == ["abandoned"] * 5 + ["exhausted"]


def test_unused_iterators_do_not_affect_the_next_epoch():
    with DataLoader(Images(200), 2, num_workers=2) as loader:
        for _ in range(20):
            iter(loader)
        batches = iter(loader)
        mine = sorted(all_pids(loader))
        wait_for(lambda: sorted(process.pid for process in worker_processes()) == mine)
        assert len(list(batches)) == 100


def test_an_exhausted_iterator_stays_exhausted():
    with DataLoader(Numbers(4), 2, num_workers=1) as loader:
        epoch = iter(loader)
        assert len(list(epoch)) == 2
        assert list(epoch) == []
        with pytest.raises(StopIteration):
            next(epoch)


def test_an_error_of_the_sampler_is_raised_after_the_batches_that_it_yielded():
    def sampler():
        yield from range(5)
        raise KeyError("no more")

    with DataLoader(Numbers(10), 1, num_workers=2, sampler=sampler()) as loader:
        epoch = iter(loader)
        assert flat([next(epoch) for _ in range(5)]) == list(range(5))
        with pytest.raises(KeyError, match="no more"):
            next(epoch)


def test_batch_samplers_may_yield_any_iterable():
    for workers in (0, 2):
        batches = [iter([1, 2]), {3}, (i for i in (4, 5)), map(int, "67"), range(8, 10)]
        with DataLoader(Numbers(10), num_workers=workers, batch_sampler=batches) as loader:
            assert flat(loader) == list(range(1, 10))


def test_a_property_of_a_batch_sampler_is_first_read_when_an_epoch_begins():
    class Late(torch.utils.data.BatchSampler):
        def __init__(self):
            self.batch_size, self.drop_last = 2, False

        @property
        def sampler(self):
            raise RuntimeError("not ready")

    with DataLoader(range(4), batch_sampler=Late()) as loader, pytest.raises(RuntimeError, match="not ready"):
        iter(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_sampler_that_yields_single_indices_is_an_error(workers):
    with (
        DataLoader(Numbers(10), num_workers=workers, batch_sampler=[4, 5]) as loader,
        pytest.raises(TypeError, match=r"must yield lists of indices, but yielded 4 \(int\): did you mean sampler=\?"),
    ):
        list(loader)


@pytest.mark.parametrize("name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset"])
def test_attributes_that_would_have_no_effect_cannot_be_assigned(name):
    with DataLoader(Numbers(6), 2) as loader, pytest.raises(ValueError, match=f"{name} attribute should not be set"):
        setattr(loader, name, None)


@pytest.mark.parametrize(
    "kind", [{"num_workers": 0}, {"num_workers": 1, "workers": "thread"}], ids=["inline", "thread"]
)
def test_a_loop_that_got_an_error_has_stopped_unless_it_goes_on(kind):
    class Broken:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return 1 // (index != 1)

    with DataLoader(Broken(), **kind) as loader:
        batches = iter(loader)
        next(batches)
        assert loader.stats().state == "running"
        with pytest.raises(ZeroDivisionError):
            next(batches)
        stopped = loader.stats()
        assert stopped.state == "stopped"
        assert "stopped after 1 of 4 batches" in stopped.verdict
        assert "batch 1 raised ZeroDivisionError" in stopped.verdict
        next(batches)
        assert loader.stats().state == "running"
        assert [e.index for e in loader.events.recent() if isinstance(e, ev.LoopStopped)] == [1]
        list(batches)
        assert loader.stats().state == "idle"


def test_iterating_a_closed_loader_raises():
    for workers in (0, 1):
        loader = DataLoader(Numbers(20), 2, num_workers=workers)
        epoch = iter(loader)
        next(epoch)
        loader.close()
        loader.close()
        with pytest.raises(LoaderClosedError):
            iter(loader)
        with pytest.raises(LoaderClosedError):
            list(epoch)


def test_close_from_another_thread_ends_a_waiting_loop():
    loader = DataLoader(Slow(10, wait=3600), 1, num_workers=1)
    thread = threading.Thread(target=lambda: (wait_for(lambda: loader.stats().waiting is not None), loader.close()))
    thread.start()
    with pytest.raises(LoaderClosedError):
        next(iter(loader))
    thread.join()


# ---- the workers' environment


@pytest.mark.portable
def test_worker_info_is_available_from_nbloader_and_from_torch():
    assert nbloader.get_worker_info() is None
    with DataLoader(Environment(4), None, num_workers=2, generator=torch.Generator().manual_seed(3)) as loader:
        seen = list(loader)
    assert {tuple(s["info"][:2]) for s in seen} <= {(0, 2), (1, 2)}
    assert all(s["info"] == s["theirs"] for s in seen)
    assert all(s["info"][3] == 4 for s in seen)
    assert len({s["info"][2] - s["info"][0] for s in seen}) == 1, "the seed is the base seed plus the id"
    assert {s["threads"] for s in seen} == {1}


class Settings(Numbers):
    """What a worker sees of settings in libraries."""

    def __getitem__(self, i):
        from PIL import Image, ImageFile  # imported late, as by many datasets

        with warnings.catch_warnings(record=True) as caught:
            warnings.warn("one", FutureWarning, stacklevel=1)
            warnings.warn("two", UserWarning, stacklevel=1)
        return {
            "pid": os.getpid(),
            "dtype": str(torch.tensor(0.5).dtype),
            "pillow": (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS),
            "warned": [str(w.message) for w in caught],
            "levels": [logging.getLogger(name).getEffectiveLevel() for name in ("", "nbloader.test.child")],
            "float errors": np.geterr()["under"],
            "printed": repr(np.array([1 / 3])),
            "variable": os.environ.get("NBLOADER_TEST"),
        }


@pytest.mark.portable
def test_workers_take_over_settings_of_libraries_at_the_beginning_of_each_epoch(monkeypatch):
    image = pytest.importorskip("PIL.Image")
    file = pytest.importorskip("PIL.ImageFile")
    dtype = torch.get_default_dtype()
    log = logging.getLogger("nbloader.test")
    plain = {"dtype": "torch.float32", "pillow": (False, image.MAX_IMAGE_PIXELS), "warned": ["one", "two"]}
    with (
        DataLoader(Settings(1), None, num_workers=1, collate_fn=lambda sample: sample) as loader,
        warnings.catch_warnings(),
        np.printoptions(precision=2),
        np.errstate(under="raise"),
    ):
        warnings.simplefilter("always")  # workers have the filters of this process, and here warnings are errors
        [before] = loader
        assert before.items() >= {**plain, "printed": "array([0.33])", "float errors": "raise"}.items()
        try:
            warnings.simplefilter("ignore", FutureWarning)
            torch.set_default_dtype(torch.float64)
            log.setLevel(logging.CRITICAL)
            monkeypatch.setattr(file, "LOAD_TRUNCATED_IMAGES", True)
            monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", None)
            monkeypatch.setenv("NBLOADER_TEST", "between epochs")
            [after] = loader
        finally:
            torch.set_default_dtype(dtype)
            log.setLevel(logging.NOTSET)
        assert after.pop("pid") != before.pop("pid")
        assert after == {
            **before,
            "dtype": "torch.float64",
            "pillow": (True, None),
            "warned": ["two"],
            "levels": [before["levels"][0], logging.CRITICAL],
            "variable": "between epochs",
        }


@pytest.mark.portable
def test_worker_init_fn_is_called_once_per_worker_with_its_id(tmp_path):
    def init(worker):
        (tmp_path / f"{worker} of {nbloader.get_worker_info().num_workers}").touch()

    with DataLoader(Numbers(6), 2, num_workers=3, worker_init_fn=init) as loader:
        batches = iter(loader)
        wait_for(lambda: len(list(tmp_path.iterdir())) == 3)
        list(batches)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0 of 3", "1 of 3", "2 of 3"]


@pytest.mark.portable
def test_workers_inherit_sys_path_folder_and_environment_also_after_a_change(tmp_path, monkeypatch):
    with DataLoader(Environment(1), None, num_workers=1) as loader:
        seen = next(iter(loader))
        assert (seen["cwd"], seen["path"]) == (os.getcwd(), sys.path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path / "x"))
        monkeypatch.setenv("NBLOADER_TEST", "here")
        monkeypatch.delenv("HOME", raising=False)
        loader.restart_workers()
        seen = next(iter(loader))
    assert (seen["cwd"], seen["path"]) == (str(tmp_path), sys.path)
    assert seen["env"]["NBLOADER_TEST"] == "here"
    assert "HOME" not in seen["env"]


def test_restarted_workers_import_edited_modules_anew(tmp_path, monkeypatch):
    module = tmp_path / "edited.py"
    module.write_text("from light import Numbers\nclass Data(Numbers):\n    def __getitem__(self, i): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    edited = __import__("edited")
    with DataLoader(edited.Data(4), 4, num_workers=1, multiprocessing_context="forkserver") as loader:
        assert flat(loader) == [1, 1, 1, 1]
        module.write_text(module.read_text().replace("return 1", "return 22"))
        loader.restart_workers()
        assert flat(loader) == [22, 22, 22, 22]
    sys.modules.pop("edited")


def test_a_changed_dataset_object_reaches_the_workers_of_the_next_epoch():
    data = Raises(6, bad=2, error=KeyError)
    with DataLoader(data, 2, num_workers=2) as loader:
        with pytest.raises(KeyError):
            list(loader)
        data.bad = None
        assert flat(loader) == list(range(6))


def test_persistent_workers_keep_their_copy_of_the_dataset_until_reload():
    data = Sums(np.ones((4, 20_000)))
    with DataLoader(data, 4, num_workers=1, persistent_workers=True) as loader:
        before, pid = flat(loader), all_pids(loader)
        data.array = np.zeros((4, 20_000))
        with pytest.warns(UserWarning, match="`array` of the dataset .* keep the old value"):
            assert flat(loader) == before
        assert pids(loader) == pid
        loader.reload()
        assert flat(loader) == [0, 0, 0, 0]


def test_persistent_workers_are_not_replaced():
    options = {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True}
    with DataLoader(Sums(np.ones((4, 20_000))), 4, **options) as loader:
        list(loader)
        before = all_pids(loader)
        for _ in range(3):
            list(loader)
        assert pids(loader) == before


def test_a_replaced_array_of_the_dataset_reaches_the_workers():
    data = Sums(np.ones((4, 20_000)))
    with DataLoader(data, 4, num_workers=1) as loader:
        for value in range(2, 8):
            data.array = None
            data.array = np.full((4, 20_000), float(value))
            assert flat(loader) == [20_000 * value] * 4


@pytest.mark.portable
def test_large_arrays_are_shared_copy_on_write():
    class Writes(Sums):
        def __getitem__(self, i):
            before = float(self.array[i].sum())
            self.array[i] = 7
            return before

    array = np.ones((6, 20_000))
    with DataLoader(Writes(array), 2, num_workers=3) as loader:
        assert flat(loader) == [20_000] * 6
        loader.restart_workers()
        assert flat(loader) == [20_000] * 6
    assert (array == 1).all()


def test_reload_replaces_the_dataset():
    with DataLoader(Numbers(10), 5, num_workers=2) as loader:
        assert flat(loader) == list(range(10))
        loader.reload(Sums(np.arange(14.0).reshape(7, 2)))
        assert flat(loader) == [1, 5, 9, 13, 17, 21, 25]
        assert len(loader.dataset) == 7
        assert len(events(loader, ev.DatasetReloaded)) == 1


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_produced_before_a_reload_are_kept_or_produced_again(workers, in_order):
    n = 400  # many more than the prefetch window, even if one worker starts before the other
    for keep in (True, False):
        with DataLoader(
            Numbers(n), 2, num_workers=workers, prefetch_factor=4 if workers else None, in_order=in_order
        ) as loader:
            batches = iter(loader)
            first = next(batches)
            if workers:
                wait_for(lambda: loader.stats().ready >= 7)
            loader.reload(Sums(np.arange(1000.0, 1000.0 + 2 * n).reshape(n, 2)), keep=keep)
            rest = [batch.tolist() for batch in batches]
        flat_rest = [x for batch in rest for x in batch]
        new = [x for x in flat_rest if x >= 2000]
        assert len(flat_rest) + len(first) == n
        assert len(set(flat_rest)) == len(flat_rest)
        if keep and workers:
            assert 0 < len(new) <= n - 16
        else:
            assert len(new) == n - 2


@pytest.mark.portable
def test_output_of_the_dataset_is_printed_before_the_epoch_ends(capsys):
    class Prints(Numbers):
        def __getitem__(self, i):
            print("out", i)
            print("err", i, file=sys.stderr)
            os.write(1, f"raw {i}\n".encode())
            if i == self.n - 1:
                print("no line end", end="")
            return i

    with DataLoader(Prints(12), 3, num_workers=2) as loader:
        list(loader)
        out, err = capsys.readouterr()
    assert "no line end" in out
    lines = out.replace("no line end", "").splitlines()  # text of the other worker may follow it
    assert sorted(line for line in lines if line.startswith("out")) == sorted(f"out {i}" for i in range(12))
    assert sorted(line for line in lines if line.startswith("raw")) == sorted(f"raw {i}" for i in range(12))
    assert sorted(err.splitlines()) == sorted(f"err {i}" for i in range(12))


# ---- events


def events(loader, kind):
    return [event for event in list(loader.events.history) if isinstance(event, kind)]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_batch_has_one_record_with_increasing_timestamps(workers):
    with DataLoader(Images(50), 4, num_workers=workers) as loader:
        for _ in range(2):
            for _batch in loader:
                pass
        records = loader.events.batches()
    assert [(r.epoch, r.index) for r in records] == [(epoch, i) for epoch in (0, 1) for i in range(13)]
    for r in records:
        stamps = [r.dispatched, r.fetch_begin, r.fetched, r.collated, r.received, r.in_order, r.delivered, r.returned]
        assert stamps == sorted(stamps)
        assert 0 < r.requested <= r.delivered
        assert (r.samples, r.attempt) == (4 if r.index < 12 else 2, 1)
        assert r.slowest_index in range(4 * r.index, 4 * r.index + 4)
        assert 0 < r.slowest_ns <= r.fetched - r.fetch_begin
        assert (r.fetch_cpu or 0) >= 0
        assert r.nbytes >= r.samples * 64 * 64 * 4
        assert (
            (r.worker, r.transport) == (-1, "local") if workers == 0 else (r.worker in (0, 1), r.transport == "segment")
        )
        assert (r.pid == os.getpid()) == (workers == 0)
    assert records[0].returned <= records[1].delivered


def test_the_cpu_time_of_each_batch_is_measured():
    with DataLoader(Numbers(72), 1, num_workers=1) as loader:
        for _batch in loader:
            pass
        records = loader.events.batches()
        share = loader.stats().cpu_share
    assert len(records) == 72
    fetching = sum(r.fetched - r.fetch_begin for r in records)
    assert share == pytest.approx(min(1.0, sum(r.fetch_cpu for r in records) / fetching))


def test_the_last_batch_before_a_break_has_a_record():
    with DataLoader(Numbers(20), 2, num_workers=1) as loader:
        for number, _batch in enumerate(loader):
            if number == 2:
                break
        gc.collect()
        assert [r.index for r in loader.events.batches()] == [0, 1, 2]
        assert [(e.batches, e.reason) for e in events(loader, ev.EpochEnded)] == [(3, "abandoned")]


def test_the_transport_of_a_batch_is_recorded():
    def transports(dataset, **options):
        with DataLoader(dataset, 2, num_workers=1, **options) as loader:
            list(loader)
            return {r.transport for r in loader.events.batches()}

    assert transports(Images(4)) == {"segment"}
    assert transports(Numbers(4)) == {"inline"}
    assert transports(Images(4), collate_fn=pickle.dumps) == {"pickle"}


def test_a_batch_that_is_ready_does_not_wait_for_more_than_one_draw_of_a_slow_sampler(monkeypatch):
    drawn = []
    take = MapEpochPlan.take

    def slow_take(plan, room, limit_ns=None):
        batches = take(plan, room, None if limit_ns is None else 0)  # the limit is over after the first draw
        drawn.append((limit_ns, len(batches)))
        return batches

    monkeypatch.setattr(MapEpochPlan, "take", slow_take)
    with DataLoader(range(200), 2, num_workers=1, workers="thread", prefetch_factor=16) as loader:
        assert flat(loader) == list(range(200))
    (limit, prefetched), *others = drawn
    assert limit is None
    assert prefetched == 16
    assert {number for _limit, number in others} <= {0, 1}


def test_events_of_workers_and_epochs_are_in_order():
    loader = DataLoader(Numbers(8), 2, num_workers=2, persistent_workers=True)
    list(loader)
    wait_for(lambda: len(events(loader, ev.WorkerReady)) == 2)
    loader.restart_workers([1])
    wait_for(lambda: len(events(loader, ev.WorkerReady)) == 3)
    loader.close()
    mine = [e for e in loader.events.history if getattr(e, "worker", None) == 1 and not isinstance(e, ev.BatchRecord)]
    order = [type(e) for e in mine if not isinstance(e, ev.WorkerDied)]  # a killed process may end later
    assert order == [ev.WorkerStarted, ev.WorkerReady, ev.WorkerRestarted, ev.WorkerStarted, ev.WorkerReady]
    old, new = [e.pid for e in mine if isinstance(e, ev.WorkerReady)]
    died_at, restarted_at = ([type(e) for e in mine].index(kind) for kind in (ev.WorkerDied, ev.WorkerRestarted))
    assert died_at > restarted_at
    assert mine[died_at].pid == old != new
    died = [e for e in mine if isinstance(e, ev.WorkerDied)]
    assert [(e.expected, e.reason) for e in died] == [(True, "restarted by request")] * len(died)
    assert [e.startup_ns > 0 for e in mine if isinstance(e, ev.WorkerReady)] == [True, True]
    (started,), (ended,) = events(loader, ev.EpochStarted), events(loader, ev.EpochEnded)
    assert (started.batches, started.num_workers, started.epoch) == (4, 2, 0)
    assert (ended.batches, ended.reason) == (4, "exhausted")
    assert type(loader.events.history[-1]) is ev.LoaderClosed


def test_the_event_of_a_failed_batch_has_the_sample_index():
    for workers in (0, 1):
        with DataLoader(Raises(20, bad=13, error=KeyError), 5, num_workers=workers) as loader:
            with pytest.raises(KeyError):
                list(loader)
            (failed,) = events(loader, ev.BatchFailed)
        assert (failed.sample, failed.index, failed.worker) == (13, 2, -1 if workers == 0 else 0)
        assert failed.error.startswith("KeyError")


def test_a_subscriber_can_call_the_loader():
    """No deadlock, on any thread and for any event."""
    loader = DataLoader(Slow(40, wait=0.001), 2, num_workers=2)
    seen, restarted = set(), set()

    def ask(event):
        seen.add(type(event))
        loader.stats()
        if isinstance(event, ev.WorkerReady) and not restarted:
            restarted.add(event.worker)
            loader.restart_workers([event.worker])

    loader.events.subscribe(ask)
    with loader:
        assert flat(loader) == list(range(40))
        wait_for(lambda: ev.WorkerRestarted in seen)
    assert {ev.WorkerStarted, ev.WorkerReady, ev.BatchRecord, ev.EpochStarted, ev.EpochEnded} <= seen


def test_pause_stops_delivery_and_dispatch_until_resume():
    with DataLoader(Slow(60, wait=0.001), 2, num_workers=2, timeout=1) as loader:
        epoch = begin(loader)
        got = [next(epoch)]
        loader.pause()
        wait_for(lambda: loader.stats().state == "paused")
        wait_for(lambda: loader.stats().in_flight == 0)
        ready = loader.stats().ready
        thread = threading.Thread(target=lambda: got.extend(epoch))
        thread.start()
        wait_for(lambda: loader.stats().waiting is not None)
        assert (len(got), loader.stats().ready, loader.stats().in_flight) == (1, ready, 0)
        loader.resume()
        thread.join()
        assert flat(got) == list(range(60))
        assert [type(e) for e in events(loader, (ev.LoaderPaused, ev.LoaderResumed))] == [
            ev.LoaderPaused,
            ev.LoaderResumed,
        ]


def test_on_wait_callbacks_run_while_the_consumer_waits_and_are_removed_when_they_raise(caplog):
    calls, raised = [], []
    with DataLoader(Slow(3, wait=0.3), 1, num_workers=1) as loader:
        loader.on_wait(lambda: calls.append(threading.current_thread()))
        remove = loader.on_wait(lambda: raised.append(1) or 1 / 0)
        assert flat(loader) == [0, 1, 2]
        remove()
    assert len(calls) >= 4
    assert set(calls) == {threading.current_thread()}
    assert raised == [1]
    assert "on_wait callback raised" in caplog.text


# ---- lifetimes


@pytest.mark.portable
def test_the_workers_of_an_unreferenced_loader_end():
    loader = DataLoader(Numbers(10), 2, num_workers=2, persistent_workers=True)
    list(loader)
    loader.itself = loader  # a reference cycle, as trainers often have
    assert len(all_pids(loader)) == 2
    del loader
    gc.collect()
    wait_for(lambda: not worker_processes())


def test_the_finalizer_can_run_on_any_thread():
    """The garbage collector may run on any thread, at any point: here on the supervisor."""
    loader = DataLoader(Numbers(10), 2, num_workers=2, persistent_workers=True)
    list(loader)
    running = all_pids(loader)
    loader.itself = loader
    loader.events.subscribe(lambda event: gc.collect() if isinstance(event, ev.WorkerDied) else None)
    gc.disable()
    try:
        del loader
        psutil.Process(running[0]).kill()
        wait_for(lambda: not worker_processes())
    finally:
        gc.enable()


def test_twenty_epochs_do_not_leak():
    process = psutil.Process()

    def belongings():
        return process.num_fds(), threading.active_count(), len(worker_processes())

    with DataLoader(Images(64), 4, num_workers=2) as loader:
        for _ in range(4):
            list(loader)
        wait_for(lambda: not worker_processes())
        before, memory = belongings(), process.memory_info().rss
        for _ in range(20):
            for _batch in loader:
                pass
        wait_for(lambda: belongings() <= before, "the end of the workers of the last epoch")
        assert process.memory_info().rss - memory < 8e6


@pytest.mark.portable
def test_more_batches_can_be_kept_than_files_can_be_opened():
    _soft, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, hard))
    try:
        with DataLoader(Images(300), 1, num_workers=2) as loader:
            kept = list(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert all((image == i).all() for i, (image, _) in enumerate(kept))


def test_an_unused_loader_has_no_process_and_no_thread():
    threads = threading.active_count()
    with DataLoader(Numbers(10), num_workers=4) as loader:
        assert (pids(loader), threading.active_count()) == ([], threads)
        assert loader.stats().state == "new"


# ---- scripts


@pytest.mark.portable
def test_importing_is_fast_and_imports_no_front_end():
    code = "import sys, nbloader; print([m for m in ('torch', 'ipywidgets', 'bokeh', 'anywidget') if m in sys.modules])"
    command, times = [sys.executable, "-X", "importtime", "-c", code], []
    while len(times) < 10 and not (times and min(times) < 150_000):  # a busy machine delays it
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"
        line = next(line for line in done.stderr.splitlines() if line.endswith("| nbloader"))
        times.append(int(line.split("|")[1]))
    assert min(times) < 150_000, f"import nbloader takes {min(times)} us"


@pytest.mark.portable
def test_a_script_without_main_guard_works(tmp_path):
    done = run_script(
        """
        import sys
        from dataclasses import dataclass
        import torch
        from nbloader import DataLoader

        print("top")
        factor = 3

        @dataclass
        class Item:
            x: torch.Tensor
            key: int

        class Data:
            def __len__(self):
                return 6
            def __getitem__(self, i):
                return Item(torch.full((3000,), i * factor), i)

        @dataclass(frozen=True)
        class Key:
            i: int

        class ByKey(Data):
            def __getitem__(self, key):
                return key.i * factor

        class Wrong(Exception):
            pass

        class Fails(Data):
            def __getitem__(self, i):
                raise Wrong

        with DataLoader(Fails(), 2, num_workers=1) as loader:
            try:
                list(loader)
            except Wrong:
                pass
        with DataLoader(Data(), 2, num_workers=2) as loader:
            for batch in loader:
                assert type(batch) is Item
                print(batch.x[:, 0].tolist(), batch.key.tolist())
        with DataLoader(ByKey(), 3, sampler=[Key(2), Key(0), Key(1)], num_workers=1) as loader:
            print([b.tolist() for b in loader], loader.events.batches()[0].slowest_index)
        """,
        tmp_path,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[:4] == ["top", "[0, 3] [0, 1]", "[6, 9] [2, 3]", "[12, 15] [4, 5]"]
    assert lines[4].startswith("[[6, 0, 3]] Key(i=")


def test_reload_uses_the_present_definition_of_the_class(tmp_path):
    done = run_script(
        """
        from nbloader import DataLoader

        class Data:
            def __len__(self):
                return 4
            def __getitem__(self, i):
                return i

        data = Data()
        loader = DataLoader(data, 4, num_workers=2)
        print([b.tolist() for b in loader])

        class Data:
            def __len__(self):
                return 4
            def __getitem__(self, i):
                return -i

        print([b.tolist() for b in loader])
        loader.reload()
        print([b.tolist() for b in loader])

        class Other(Data):
            def __getitem__(self, i):
                return i + 100

        loader.reload(Other())
        print([b.tolist() for b in loader])
        """,
        tmp_path,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "[[0, 1, 2, 3]]",
        "[[0, 1, 2, 3]]",
        "[[0, -1, -2, -3]]",
        "[[100, 101, 102, 103]]",
    ]


class Chained:
    """Sample 0 waits until sample 11 has been produced."""

    def __init__(self, folder):
        self.made = folder / "made"

    def __len__(self):
        return 20

    def __getitem__(self, i):
        if i == 0:
            wait_for(self.made.exists)
        time.sleep(0.005)
        if i == 11:
            self.made.touch()
        return i


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_one_slow_batch_does_not_stop_the_other_workers(tmp_path, workers):
    with DataLoader(Chained(tmp_path), num_workers=2, workers=workers) as loader:
        assert [int(batch) for batch in loader] == list(range(20))
        assert {record.attempt for record in loader.events.batches()} == {1}


def test_an_epoch_gets_another_engine_only_for_what_a_running_engine_cannot_change():
    with DataLoader(Numbers(16), 4, num_workers=1, workers="thread", persistent_workers=True) as loader:
        assert flat(loader) == list(range(16))
        engine = loader._engine
        loader.num_workers, loader.prefetch_factor = 2, 3
        assert flat(loader) == list(range(16))
        loader._use_kind("process")
        assert flat(loader) == list(range(16))
        assert {worker.kind for worker in loader.stats().workers} == {"process"}
        assert loader._engine is engine
        loader.multiprocessing_context = "forkserver"
        assert flat(loader) == list(range(16))
        assert loader._engine is not engine
        engine = loader._engine
        loader.timeout = 50
        assert flat(loader) == list(range(16))
        assert loader._engine is not engine


def test_batches_are_pinned_as_the_attribute_says_when_the_epoch_begins(monkeypatch):
    made = []
    with DataLoader(Numbers(8), 4, num_workers=1, workers="thread") as loader:
        monkeypatch.setattr(loader, "_make_transfer", lambda: made.append(loader.pin_memory))
        engine = loader._engine
        for pin in (False, True, True, False):
            loader.pin_memory = pin
            assert flat(loader) == list(range(8))
        assert made == [True, False]
        assert loader._engine is engine
