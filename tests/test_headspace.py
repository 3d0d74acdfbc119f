"""Headspace: what a loop would do if loading took no time, measured on loops whose steps and waits are known."""

from __future__ import annotations

import statistics
import time

import pytest
from light import Numbers, Slow

from nbloader import DataLoader
from nbloader.dashboard.panels.base import Frame
from nbloader.dashboard.panels.summary import Summary
from nbloader.report.render import SLOWEST, headspace

STEP, WAIT = 0.02, 0.03


@pytest.mark.parametrize(
    ("settings", "sample"),
    [({"num_workers": 0}, WAIT), ({"num_workers": 1, "workers": "thread"}, STEP + WAIT)],
    ids=["in the loop", "by a worker"],
)
def test_a_loop_that_waits_30_ms_for_steps_of_20_ms_would_do_50_batches_a_second(settings, sample):
    with DataLoader(Slow(40, wait=sample), batch_size=1, **settings) as loader:
        steps = []
        for number, _batch in enumerate(loader):
            begin = time.perf_counter()
            time.sleep(STEP)
            if number == 30:
                running = loader.stats()
            steps.append(time.perf_counter() - begin)
        ended = loader.stats()
    usual = max(statistics.mean(steps[:30]), statistics.mean(steps))
    for s in (running, ended):  # sleeps take longer on a busy machine, never less
        assert s.epoch_rate < 1 / (STEP + WAIT) < 1 / STEP
    for found in (running.headspace, running.headspace_epoch, ended.headspace_epoch):
        assert 0.7 / usual < found <= 1 / STEP
    assert (
        f"headspace {headspace(ended).removesuffix(' batches/s')}"
        in Summary().payload(Frame(ended))["tiles"][0]["note"]
    )
    assert f"headspace: {headspace(ended)} if loading took no time" in str(ended)


DRAWING = 0.5


class SlowOrder:
    """Draws the order of an epoch at the beginning."""

    def __len__(self):
        return 20

    def __iter__(self):
        time.sleep(DRAWING)
        return iter(range(20))


class SlowBatches(SlowOrder):
    """Does so when the first batch is drawn: a generator."""

    def __iter__(self):
        yield from ([index] for index in super().__iter__())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "settings", [{"sampler": SlowOrder()}, {"batch_sampler": SlowBatches()}], ids=["in __iter__", "generator"]
)
def test_a_loop_waits_for_a_sampler_that_draws_while_the_iterator_is_created(workers, settings):
    with DataLoader(Numbers(20), num_workers=workers, workers="thread", **settings) as loader:
        for _epoch in range(2):
            begin = time.perf_counter()
            steps = []
            for _batch in loader:
                step = time.perf_counter()
                time.sleep(STEP)
                steps.append(time.perf_counter() - step)
            took = time.perf_counter() - begin
            s = loader.stats()
            assert DRAWING <= s.wait_share_epoch * s.elapsed <= s.elapsed <= took
            assert s.headspace_epoch == pytest.approx(1 / statistics.mean(steps), rel=0.3)
    assert s.epoch_verdict.cause == "sampler", s.verdict


def test_a_loop_does_not_wait_for_a_sampler_that_draws_while_it_runs_before_the_epoch():
    with DataLoader(Numbers(20), sampler=SlowOrder(), num_workers=2, workers="thread") as loader:
        loader.refresh()
        for _batch in loader:
            pass
        s = loader.stats()
    assert s.elapsed < DRAWING
    assert s.epoch_verdict.cause != "sampler", s.verdict


def test_samples_that_the_loop_fetched_itself_are_listed_under_this_process():
    with DataLoader(Slow(4, wait=0.001), batch_size=2, num_workers=0) as loader:
        for _batch in loader:
            pass
        s = loader.stats()
    assert s.slowest
    for text in (str(s), s._repr_html_()):
        table = text[text.index(SLOWEST) :]
        assert table.count("this process") == len(s.slowest)
        assert "-1" not in table
