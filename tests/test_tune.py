"""The search for better settings while a loop runs: which are tried, kept and undone, and that it changes no batch."""

from __future__ import annotations

import copy
import html.parser
import itertools
import math
import multiprocessing
import random
import re
import statistics
import threading
import time

import numpy as np
import pytest
import torch
from datasets import wait_for
from hypothesis import given
from hypothesis import strategies as st

from nbloader import DataLoader, LoaderClosedError, get_worker_info
from nbloader import events as ev
from nbloader.diagnose.tune import (
    GAIN,
    MAX_PREFETCH,
    Measurement,
    Search,
    Setting,
    Trial,
    is_faster,
    measure,
    outcome,
    table,
)
from nbloader.engine import engine
from nbloader.events import BatchRecord
from nbloader.loader import tuning as tuning_module
from nbloader.loader.tuning_html import html_of
from nbloader.metrics.snapshot import Verdict

MS = 1_000_000


def search(rate, start, max_workers=16, wait_share=0.5, **options):
    found = Search(Setting(*start), max_workers, **options)
    while (setting := found.next()) is not None:
        found.measured(setting, Measurement(rate(*setting[:2]), 0.001, wait_share, 100, 1.0))
    return found


def loaded(waiting, computing, step, cores=1.9):
    """The rate of a loop, and its share of waiting: workers wait and compute, and share the cores."""

    def rate(workers, _prefetch=None):
        made, limit = min(workers / (waiting + computing), cores / computing), 1 / step
        got = (made**-8 + limit**-8) ** (-1 / 8)
        return got, 1 - got / limit

    return rate


def record(number, delivered, *, epoch=0, waited=0):
    blank = BatchRecord(*(0,) * len(BatchRecord._fields))
    return blank._replace(epoch=epoch, index=number, delivered=delivered * MS, requested=(delivered - waited) * MS)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("rate", "start", "best"),
    [
        (lambda workers, _: min(workers, 6), (1, 2), (8, 2)),
        (lambda workers, _: min(workers, 6), (6, 2), (6, 2)),
        (lambda workers, _: min(workers, 100), (3, 2), (16, 2)),  # as many as allowed
        (lambda workers, _: 20 - workers, (8, 2), (1, 2)),  # too many
        (lambda workers, prefetch: min(workers, 4) * min(prefetch, 8), (1, 2), (4, 8)),
        (lambda workers, prefetch: min(workers, 4) * (1 + (prefetch >= 8)), (1, 2), (4, 8)),  # not at first
        (lambda _workers, _prefetch: 10, (4, 2), (4, 2)),  # nothing helps
    ],
)
def test_the_search_finds_the_best_setting(rate, start, best):
    found = search(rate, start)
    assert found.best.setting == Setting(*best)
    assert len(found.trials) <= 12
    assert len({trial.setting for trial in found.trials}) == len(found.trials)


@pytest.mark.unit
@given(
    rates=st.dictionaries(st.tuples(st.integers(1, 32), st.integers(1, 64)), st.floats(1, 100)),
    start=st.tuples(st.integers(1, 32), st.integers(1, 40)),
    most=st.integers(1, 32),
)
def test_whatever_the_rates_are_the_search_ends_within_its_limits(rates, start, most):
    found = search(lambda *setting: rates.get(setting, 10.0), start, most)
    assert found.trials[0].setting == Setting(*start)
    assert len(found.trials) < 30
    for trial in found.trials[1:]:
        assert 1 <= trial.setting.num_workers <= max(most, start[0])
        assert 1 <= trial.setting.prefetch_factor <= max(MAX_PREFETCH, start[1])
    kept = [trial.measured.rate for trial in found.trials if trial.kept]
    assert all(later > (1 + GAIN) * earlier for earlier, later in itertools.pairwise(kept))
    reached, before = found.best.measured.rate, found.trials[0].measured.rate
    assert all(trial.measured.rate <= (1 + GAIN) * reached for trial in found.trials)
    assert found.result == Setting(*start) or reached > (1 + GAIN) * before


@pytest.mark.unit
@pytest.mark.parametrize(
    "rate",
    [
        loaded(0.064, 0.0001, 0.006),
        loaded(0.048, 0.016, 0.002),
        loaded(0.0001, 0.032, 0.002),
        lambda workers, _: (10 * workers**0.8, 0.6),  # other programs' share of the cores sinks with each worker
    ],
    ids=["waits", "computes and waits", "computes", "other programs"],
)
def test_the_search_comes_close_to_the_best_of_a_grid_where_rates_vary(rate):
    """As on a busy machine: each measurement is off by 15%, and all of them by the load, which drifts."""
    grid = [rate(workers, 2)[0] for workers in (1, 2, 3, 4, 6, 8, 12, 16)]
    reached = []
    for seed in range(40):
        draw, drift, used = random.Random(seed), 0.0, 0.0
        found = Search(Setting(1, None), 16)
        while (setting := found.next()) is not None:
            drift = 0.9 * drift + draw.gauss(0, 0.05)
            true, waited = rate(setting.num_workers, 2)
            rates = [true * math.exp(drift + draw.gauss(0, 0.15 * 6**0.5)) for _ in range(6)]  # of parts of the window
            seconds = max(2.5, 24 / true, 4 * setting.num_workers / true)
            used += 0.5 + 1.15 * seconds
            if used > 60:
                break
            error = statistics.stdev(rates) / statistics.mean(rates) / 6**0.5
            found.measured(setting, Measurement(statistics.mean(rates), error, waited, 100, seconds))
        reached.append(rate(found.result.num_workers, 2)[0] / max(grid))
    assert sorted(reached)[2] >= 0.95, reached  # in 95% of the searches


@pytest.mark.unit
def test_the_climb_begins_where_the_gain_is_predicted_and_elsewhere_if_that_was_wrong():
    def tried(rate, predict):
        found = search(rate, (1, 2), predict=predict)
        return [trial.setting.num_workers for trial in found.trials if trial.setting.prefetch_factor == 2], found.result

    right, best = tried(lambda workers, _: min(workers, 8), lambda workers: min(workers, 8))
    assert right == [1, 8, 16, 4, 12]
    assert best == (8, 2, "")
    wrong, best = tried(lambda workers, _: workers if workers < 4 else 0.5, lambda workers: workers)
    assert wrong == [1, 16, 2, 4, 3]
    assert best == (3, 2, "")
    assert tried(lambda workers, _: workers, lambda _workers: None)[0] == [1, 2, 4, 8, 16]


@pytest.mark.unit
def test_a_gain_that_does_not_recur_in_the_finals_is_undone():
    rates = {1: [10, 11, 11, 11], 2: [11, 10, 10, 10], 4: [10, 10, 10, 10]}

    def measured(setting):
        rest = rates.setdefault(setting.num_workers, [1])
        value = rest.pop(0) if len(rest) > 1 else rest[0]
        return Measurement(value, 0.06, 0.5, 10 * value, 10.0)

    found = Search(Setting(1, 2), 4)
    order = []
    while (setting := found.next()) is not None:
        order.append(setting.num_workers)
        found.measured(setting, measured(setting) if setting.prefetch_factor == 2 else Measurement(1, 0.01, 0.5, 9, 1))
    assert found.result == (1, 2, "")
    assert found.best.measured.rate == 11, "of the finals alone"
    assert found.best.measured.batches > 100
    finals = order[order.index(3) + 1 :]
    assert finals == [1, 2, 4, 4, 2, 1], "in turns, in both orders"
    assert "The current settings are the best" in found.summary(finished=True)


@pytest.mark.unit
def test_a_loop_that_hardly_waits_ends_the_search():
    found = search(lambda workers, _: workers, (2, 2), wait_share=0.01)
    assert [trial.setting for trial in found.trials] == [Setting(2, 2)]
    assert found.free


@pytest.mark.unit
def test_where_draws_depend_on_the_workers_only_the_window_is_searched():
    found = Search(Setting(4, 2), 16)
    found.measured(found.next(), Measurement(10, 0.001, 0.5, 100, 1.0))
    found.keep_workers()
    assert found.next() == Setting(4, 4)
    assert {trial.setting.num_workers for trial in search(lambda w, p: w * p, (4, 2), 4).trials} == {4}


@pytest.mark.unit
def test_a_measurement_leaves_out_the_time_between_epochs():
    records = [record(i, 10 * i, waited=4) for i in range(31)]
    records += [record(i, 5000 + 10 * i, epoch=1, waited=4) for i in range(31)]
    measured = measure(records)
    assert measured.rate == pytest.approx(100)
    assert measured.wait_share == pytest.approx(0.4)
    assert (measured.batches, measured.seconds) == (60, pytest.approx(0.6))
    assert measured.error == pytest.approx(0)
    assert measure(records[:1]) is measure([]) is None


@pytest.mark.unit
def test_a_gain_within_the_noise_is_none():
    exact = Measurement(100, 0.0, 0.5, 100, 1.0)
    assert is_faster(exact._replace(rate=104), exact)
    assert not is_faster(exact._replace(rate=102), exact)
    assert not is_faster(exact._replace(rate=110, error=0.06), exact)


@pytest.mark.unit
def test_the_table_shows_what_was_kept():
    found = search(lambda workers, _: min(workers, 2), (1, 2), 4)
    lines = table(found.trials, found.best).splitlines()
    assert [line.split()[-1] for line in lines[:3]] == ["before", "best", "faster"]
    assert lines[0].startswith("num_workers=1, prefetch_factor=2")


class Page(html.parser.HTMLParser):
    """Checks that each element is closed, and collects texts."""

    def __init__(self, page):
        super().__init__()
        self.open, self.texts = [], []
        self.dots = 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.dots += tag == "circle"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.unit
def test_the_plot_has_a_dot_for_each_trial_and_the_line_of_code_can_be_copied():
    found = search(lambda workers, _: min(workers, 2) / 7e3, (1, 2), 4)
    page = Page(html_of(found.trials, found.best, found.start, found.result, "a < b"))
    assert not page.open
    assert page.dots == len(found.trials)
    assert page.texts[-1] == "DataLoader(..., num_workers=2, prefetch_factor=2)"
    assert "a < b" in page.texts
    outcomes = [text for text in page.texts if text in ("before", "best", "faster", "no faster", "slower")]
    assert outcomes == [outcome(trial, found.best, found.trials) for trial in found.trials]
    assert any(text == "before: num_workers=1, prefetch_factor=2" for text in page.texts)
    nothing = Page(html_of([], None, found.start, found.start, "Waiting for a loop."))
    assert (nothing.dots, nothing.open) == (0, [])


@pytest.mark.unit
@given(rates=st.lists(st.tuples(st.floats(1e-6, 1e9), st.floats(0, 10)), min_size=1, max_size=9))
def test_any_measurements_can_be_drawn(rates):
    trials = [Trial(Setting(i, None), Measurement(r, e, 0.5, 9, 1.0), kept=i == 0) for i, (r, e) in enumerate(rates)]
    page = html_of(trials, trials[0], Setting(0, None), Setting(0, None), "")
    assert Page(page).dots == len(trials)
    heights = [float(y) for y in re.findall(r'c?y[12]?="([-0-9.e]+)"', page)]
    assert all(0 <= y <= 230 for y in heights)


class Waiting:
    """Samples of some milliseconds, with a draw each."""

    def __init__(self, length, seconds=0.01):
        self.length, self.seconds = length, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        time.sleep(self.seconds)
        worker = get_worker_info()  # a thread has generators of its own, which are seeded for each batch
        draws = random if worker is None or worker.rng is None else worker.rng.random_generator
        return i, draws.randrange(1 << 30)


def loop(loader, until, batches):
    """Iterate until a condition holds."""
    while not until():
        for batch in loader:
            batches.append(batch)
            if until():
                break


def test_more_workers_are_found_while_the_loop_runs_and_no_batch_changes():
    with DataLoader(Waiting(40_000), 2, num_workers=1, workers="thread") as loader:
        tuning = loader.tune(10, max_workers=2)
        assert loader.tuning is tuning
        assert loader.stats().tuning.running
        torch.manual_seed(5)
        batches = []
        for batch in loader:
            batches.append(batch)
            if tuning.finished and loader.num_workers == tuning.best.setting.num_workers:
                break
        assert tuning.best.setting.num_workers > 1, str(tuning)
        assert tuning.code == str(tuning.best.setting)
        assert "times as fast" in str(tuning)
        tried = [e for e in loader.events.recent() if isinstance(e, ev.SettingTried)]
        first = {}
        for e in tried:  # in the finals, settings come again
            first.setdefault((e.num_workers, e.prefetch_factor, e.workers), e.kept)
        assert list(first.items()) == [(tuple(t.setting), t.kept) for t in tuning.trials]
        assert loader.stats().tuning.changed
        tuning.undo()
        assert (loader.num_workers, loader.prefetch_factor) == (1, 2)
        assert vars(loader)["prefetch_factor"] is None, "the window adapts itself again"
        assert not loader.stats().tuning.changed
    torch.manual_seed(5)
    with DataLoader(Waiting(40_000, 0), 2, num_workers=2, workers="thread") as plain:
        for mine, expected in zip(batches, plain, strict=False):
            assert all(map(torch.equal, mine, expected))


def test_an_epoch_that_begins_while_the_kind_changes_packs_the_dataset_for_the_new_kind(monkeypatch):
    data = np.arange(64, dtype=np.float32).reshape(-1, 4)
    with DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="forkserver") as loader:
        expected = [batch.tolist() for batch in loader]
        group = loader._engine._group
        use_kind, pack = group.use_kind, engine.pack
        changing, packed = threading.Event(), threading.Event()

        def change(*arguments):  # the engine has the new kind, its group the old one
            changing.set()
            assert packed.wait(90)
            use_kind(*arguments)

        def pack_meanwhile(*arguments):
            try:
                return pack(*arguments)
            finally:
                packed.set()

        monkeypatch.setattr(group, "use_kind", change)
        loader._use_kind("thread")
        assert changing.wait(90)
        monkeypatch.setattr(engine, "pack", pack_meanwhile)
        monkeypatch.setattr(loader._engine, "is_taken", lambda: False)  # it would wait for the end of the change
        monkeypatch.setattr(loader._parts.monitor, "keep_verdict", lambda: None)  # so would this
        assert [batch.tolist() for batch in loader] == expected
        assert {worker.kind for worker in loader.stats().workers} == {"thread"}


def test_both_kinds_of_workers_are_tried_if_that_is_allowed_and_no_batch_changes(monkeypatch):
    monkeypatch.setattr(tuning_module, "LONGEST", 0.3)
    data = np.arange(1 << 20, dtype=np.float32).reshape(-1, 16)
    arguments = {"batch_size": 256, "shuffle": True, "num_workers": 1, "workers": "thread"}
    torch.manual_seed(5)
    epochs = []
    with DataLoader(data, **arguments) as loader:
        tuning = loader.tune(600, max_workers=1, kinds=("process", "thread"))
        while not tuning.finished:
            epochs.append([])
            for batch in loader:
                epochs[-1].append(batch)
                if tuning.finished:
                    break
        tried = {trial.setting.kind for trial in tuning.trials}
        assert tried == {"thread", "process"}, str(tuning)
        assert f'workers="{tuning.best.setting.kind}"' in tuning.code
        assert loader.workers == tuning.best.setting.kind
        assert "was not tried" not in str(tuning)
        loader._use_kind("process")
        tuning.undo()
        assert loader.workers == "thread"
        last = iter(loader)
        epochs.append([next(last) for _ in range(20)])
        assert {worker.kind for worker in loader.stats().workers} == {"thread"}, "commands are executed in order"
        copy = DataLoader.from_torch(loader)
        assert copy.workers == "thread"
        copy.close()
    torch.manual_seed(5)
    with DataLoader(data, **arguments) as plain:
        for batches in epochs:
            assert all(map(torch.equal, batches, plain))


class Reading(Waiting):
    def __init__(self, length):
        super().__init__(length, 0.002)
        self.rows = (i for i in range(3))


@pytest.fixture
def spawn():
    """Forked processes could read what cannot be pickled."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.usefixtures("spawn")
def test_another_kind_of_workers_is_tried_only_if_that_is_allowed(monkeypatch):
    monkeypatch.setattr(tuning_module, "LONGEST", 0.3)
    with DataLoader(Reading(100_000), 2, num_workers=1, workers="thread") as loader:
        tuning = loader.tune(600, max_workers=1)
        assert 'workers="process" was not tried: only you know whether Reading' in str(tuning)
        assert tuning.code == "num_workers=1"
        tuning = loader.tune(600, max_workers=1, kinds=("process", "thread"))
        batches = iter(loader)
        while not tuning.finished:
            next(batches)
        assert 'workers="process" cannot be used' in str(tuning)
        assert "rows" in str(tuning)
        assert {trial.setting.kind for trial in tuning.trials} == {"thread"}
        assert loader.workers == "thread"
        with pytest.raises(TypeError, match="kinds='thread' is one string"):
            loader.tune(kinds="thread")
        with pytest.raises(ValueError, match="kinds"):
            loader.tune(kinds=["ray"])


class Copies(Waiting):
    """Most of the time goes into a copy that nobody needs."""

    def __init__(self, length):
        super().__init__(length)
        self.table = [[i] for i in range(4000)]

    def __getitem__(self, i):
        table = copy.deepcopy(self.table)
        return table[i % 10][0]


@pytest.mark.parametrize("cause", ["workers_compute_full", "workers_compute", "consumer"])
def test_where_all_cores_are_in_use_the_result_begins_with_that_and_lists_what_makes_samples_cheaper(
    cause, monkeypatch
):
    limit = Verdict(cause, evidence="Workers are the bottleneck.")
    monkeypatch.setattr(tuning_module, "limit_of", lambda _snapshot: limit)
    with DataLoader(Copies(100_000), 2, num_workers=1, workers="thread") as loader:
        loader.profile_lines()
        tuning = loader.tune(2, max_workers=1)
        assert tuning.remedies is None
        loop(loader, lambda: tuning.finished, [])
        text = str(tuning)
    full, line = cause == "workers_compute_full", cause != "consumer"
    assert (
        "only cheaper samples would help, because all cores are in use. Workers are" in text.partition("\n")[0]
    ) is full
    assert (tuning.remedies is not None) is line
    assert [one.name for one in tuning.remedies or ()] == ["deep-copy"] * line
    assert ("loader.remedies() tries it on samples" in text) is line
    assert ("loader.remedies() tries it on samples" in tuning._repr_html_()) is line


def test_a_search_is_stopped_undone_and_ended_by_other_changes():
    with DataLoader(Waiting(100_000), 4, num_workers=2, workers="thread") as loader:
        stopped = loader.tune(600, max_workers=2)
        assert "Waiting for a loop" in str(stopped)
        stopped.stop()
        assert stopped.wait(90)
        assert "stopped" in str(stopped)
        changed = loader.tune(600, max_workers=2)
        loader.num_workers = 3
        assert changed.wait(90)
        assert loader.num_workers == 3, "the user's"
        assert "other code" in str(changed)
        undone = loader.tune(600, max_workers=8)
        batches = []
        consumer = threading.Thread(target=loop, args=(loader, lambda: undone.finished, batches))
        consumer.start()
        wait_for(lambda: loader.num_workers != 3 or undone.finished)
        undone.undo()
        consumer.join()
        wait_for(lambda: (loader.num_workers, loader.prefetch_factor) == (3, 2))


@pytest.mark.parametrize(
    ("given", "windows"),
    [({}, set(range(2, 17))), ({"prefetch": 3}, {3}), ({"prefetch_factor": 5}, {5}), ({"prefetch_factor": 0}, {0})],
)
def test_undo_brings_back_the_window_that_was_there(given, windows):
    """A prefetch factor that was tried replaces `prefetch`, and a window that adapts itself."""
    with DataLoader(Waiting(1_000_000, 0), 2, num_workers=1, workers="thread", **given) as loader:
        window, before = loader._engine._supervisor.window, loader.prefetch_factor
        batches = iter(loader)
        next(batches)
        tuning = loader.tune(600, prefetch_factor=7)
        wait_for(lambda: window.plan.size == 7 and not window.load.adaptive)
        assert tuning.code == "num_workers=1, prefetch_factor=7"
        tuning.undo()
        wait_for(lambda: window.plan.size in windows and window.load.adaptive is (not given))
        assert loader.prefetch_factor == before
        copy = DataLoader.from_torch(loader)
        assert [vars(copy)[name] for name in ("prefetch_factor", "prefetch")] == [
            given.get(name) for name in ("prefetch_factor", "prefetch")
        ]
        loader.prefetch_factor = 4
        assert DataLoader.from_torch(loader).prefetch is None, "it was replaced"


def test_one_setting_is_used_at_once_measured_and_undone():
    with DataLoader(Waiting(1_000_000, 0.002), 2, num_workers=1, workers="thread") as loader:
        batches = iter(loader)
        for _ in range(60):
            next(batches)
        tuning = loader.tune(20, num_workers=3)
        assert "num_workers=3 applies now, and is being measured" in loader.stats().tuning.text
        assert loader.stats().tuning.changed
        while not tuning.finished:
            next(batches)
        assert str(tuning).splitlines()[-1].startswith("num_workers=3 is ")
        assert [trial.setting for trial in tuning.trials] == [Setting(1, None), Setting(3, None)]
        assert loader.num_workers == 3
        tuning.undo()
        assert loader.num_workers == 1
        assert "before are back: num_workers=1. num_workers=3 is" in loader.stats().tuning.text
    with pytest.raises(LoaderClosedError):
        tuning.undo()


def test_workers_are_tried_from_the_next_epoch_on_where_there_are_none():
    with DataLoader(Waiting(400, 0.002), 2, workers="thread") as loader:
        batches = iter(loader)
        for _ in range(40):
            next(batches)
        tuning = loader.tune(20, num_workers=2)
        assert tuning.gauge.text == "num_workers=2 applies from the next epoch on, and is being measured."
        for _ in range(4):
            for _batch in loader:
                pass
            if tuning.finished:
                break
        assert [trial.setting.num_workers for trial in tuning.trials] == [0, 2], str(tuning)
        tuning.undo()
        assert loader.num_workers == 0


def test_the_time_is_limited_also_where_batches_are_slow():
    with DataLoader(Waiting(10_000, 0.07), 2, num_workers=1, workers="thread") as loader:
        tuning = loader.tune(1)
        for _batch in loader:
            if tuning.finished:
                break
        assert "The 1.00 s are over" in str(tuning)
        assert not tuning.trials


def test_a_closed_or_forgotten_loader_ends_the_search():
    loader = DataLoader(Waiting(100), 4, num_workers=1, workers="thread")
    closed = loader.tune()
    loader.close()
    assert closed.wait(90)
    assert "closed" in str(closed)
    with pytest.raises(LoaderClosedError):
        loader.tune()
    forgotten = DataLoader(Waiting(100), 4, num_workers=1, workers="thread").tune()
    assert forgotten.wait(90)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"num_workers=0 has none: assign loader.num_workers = 1"):
        DataLoader([1, 2, 3]).tune()
    with DataLoader([1, 2, 3], num_workers=1, workers="thread") as loader:
        with pytest.raises(ValueError, match="seconds=0"):
            loader.tune(0)
        with pytest.raises(ValueError, match="max_workers=0"):
            loader.tune(max_workers=0)
