"""Epochs of a few slow batches: what limits them, and which line of code takes the time."""

from __future__ import annotations

import dataclasses
import time

import light
import pytest
from datasets import wait_for
from test_agreement import assert_consistent
from test_diagnose import BUSY, COMPUTING, evidence, usage

from nbloader import DataLoader
from nbloader.diagnose.findings import find_causes
from nbloader.diagnose.verdict import verdict
from nbloader.diagnose.work import taken_by_others
from nbloader.metrics.evidence import Place

LINE = "`time.sleep(self.wait)`"
AS_MANY_AS_WORKERS = "use epochs of more batches than workers."


def after_epoch(loader):
    for _batch in loader:
        pass
    return loader.stats()


@pytest.mark.linux("whether a line waits is known for each line")
@pytest.mark.parametrize(
    ("workers", "batches", "prefetch_factor"),
    [(0, 4, None), (0, 6, None), (2, 4, None), (2, 4, 2), (2, 7, 1), (4, 4, None), (4, 4, 1), (4, 6, None), (4, 8, 2)],
)
def test_a_few_slow_batches_have_the_cause_that_many_would_have(workers, batches, prefetch_factor):
    slow = light.Slow(8 * batches, wait=0.04)
    with DataLoader(slow, 8, num_workers=workers, prefetch_factor=prefetch_factor, output="numpy") as loader:

        def right():  # on a busy machine, workers may start late in some epochs
            s = after_epoch(loader)
            cause = "workers_wait" if workers else "in_process"
            alone = (AS_MANY_AS_WORKERS in s.verdict) == (batches == workers)
            return s.epoch_verdict.cause == cause and LINE in s.verdict and alone

        wait_for(right)


@pytest.mark.linux("whether a line waits is known for each line")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_line_is_named_if_there_are_too_few_batches_to_tell_a_cause(workers):
    with DataLoader(light.Slow(32, wait=0.04), 16, num_workers=workers, output="numpy") as loader:

        def named():
            s = after_epoch(loader)
            assert "too few batches to tell why." in s.verdict
            assert (LINE in s.verdict) == ("Try loader.remedies()." in s.verdict)
            return LINE in s.verdict and LINE in s.epoch_verdict.sentence

        wait_for(named)


class Opens(light.Slow):
    """The first sample of each process takes long, as if it opened a file."""

    opened = False

    def __getitem__(self, i):
        if not self.opened:
            time.sleep(0.5)
            self.opened = True
        return super().__getitem__(i)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_is_left_after_a_few_batches_is_told_what_limits_the_epoch(workers):
    with DataLoader(Opens(4000, wait=0.005), 8, num_workers=workers, output="numpy") as loader:

        def right():
            for number, _batch in enumerate(loader):
                if number == 8:
                    break
            s = loader.stats()
            told = "after start-up" in s.verdict and "Start-up took" in s.verdict
            return told and s.cause == ("workers_wait" if workers else "in_process")

        wait_for(right)


@pytest.mark.unit
def test_an_epoch_whose_batches_were_all_requested_at_once_is_not_limited_by_the_window():
    idle = {"workers": 4, "window": 4, "utilization": 0.25, "full": 1.0}
    assert verdict(evidence(BUSY, idle)).cause == "window"
    assert "window" not in verdict(evidence(BUSY, idle | {"batches": 4})).sentence


@pytest.mark.unit
def test_first_batches_that_take_as_long_as_any_are_no_start_up():
    first = {"workers": 4, "batches": 4, "seconds": 0.4, "wait_share": 0.95, "producing_wait": 0.0, "first_wait": 0.95}
    assert verdict(evidence(BUSY, first)).cause == "workers_wait"
    assert AS_MANY_AS_WORKERS in verdict(evidence(BUSY, first)).sentence
    assert verdict(evidence(BUSY, first)).sentence.endswith(" More workers would not help.")
    assert verdict(evidence(COMPUTING, first)).sentence.endswith(" More workers would not help.")
    assert_consistent(verdict(evidence(BUSY, first)), evidence(BUSY, first))
    slow_loop = first | {"seconds": 1.2, "wait_share": 0.35, "first_wait": 0.35}
    v = verdict(evidence(BUSY, slow_loop))
    assert v.cause == "startup"
    assert "100% of that for the first batch" in v.sentence


@pytest.mark.unit
def test_other_programs_are_not_blamed_if_no_worker_was_measured():
    opening = {
        "cores": 2, "wait_share": 0.7, "producing_wait": 0.1, "opening_wait": 0.6, "utilization": 0.95,
        "usage": usage(loop_cores=0.1, consumer_core_wait=0.5),
    }  # fmt: skip
    measured = evidence(COMPUTING, opening)
    unread = dataclasses.replace(measured, usage=usage(loop_cores=0.1, consumer_core_wait=0.5, workers_unread=True))
    assert [taken_by_others(e) for e in (measured, unread)] == [True, False]
    assert [find_causes(e)[0].cause.name for e in (measured, unread)] == ["cores_taken", "workers_compute_full"]


@pytest.mark.unit
def test_without_workers_a_wait_for_a_core_of_no_account_is_not_the_remedy():
    alone = {"workers": 1, "place": Place.CONSUMER, "fetch_cpu": 0.985}
    e = evidence(BUSY, alone | {"usage": usage(consumer_core_wait=0.01)})
    assert verdict(e).sentence.startswith("Use num_workers=2 or more")
