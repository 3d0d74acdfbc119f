"""The aggregation of events into snapshots, verdicts, and the text and HTML of snapshots."""

from __future__ import annotations

import dataclasses
import functools
import html.parser
import itertools
import math
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbloader.report  # noqa: F401 - registers the renderer that `str(snapshot)` uses
from nbloader._util.format import clean, duration, factor, megabytes, number, percent, plural
from nbloader.diagnose.bottleneck import judge
from nbloader.events import (
    BatchFailed,
    BatchRecord,
    DatasetReloaded,
    EpochEnded,
    EpochStarted,
    Event,
    LoaderClosed,
    LoaderPaused,
    LoaderResumed,
    LoopStopped,
    Machine,
    Placed,
    SampleFailed,
    SupervisorFailed,
    WorkerDied,
    WorkerReady,
    WorkerRestarted,
    WorkerStarted,
)
from nbloader.events.gauges import FetchProgress, Gauges, ProducedBatch, WorkerGauge
from nbloader.metrics.aggregator import Aggregator
from nbloader.metrics.evidence import MachineLoad
from nbloader.metrics.snapshot import OPTIONAL_STAGES, STAGES, Snapshot
from nbloader.metrics.stage_times import placing_ns, upload_stats
from nbloader.metrics.usage import Usage

pytestmark = pytest.mark.unit

new_stats = functools.partial(Aggregator, judge)
MS = 1_000_000
S = 1000 * MS
START = 100 * S


def gauge(worker: int = 0, **changes: Any) -> WorkerGauge:
    fields = {
        "worker": worker,
        "pid": 1000 + worker,
        "state": "idle",
        "batch": None,
        "since": START,
        "sample": None,
        "queued": 0,
        "exit_reason": "",
        "stderr_tail": "",
        "cpu_percent": None,
        "rss": None,
    }
    return WorkerGauge(**(fields | changes))


def gauges(now: int, *workers: WorkerGauge, **changes: Any) -> Gauges:
    fields = {
        "now": now,
        "state": "running",
        "window": 4,
        "in_flight": 2,
        "reordering": 0,
        "ready": 0,
        "waiting_since": None,
        "waiting_for": None,
        "workers": workers,
    }
    return Gauges(**(fields | changes))


def record(requested: int, *, wait: int = 0, step: int = 10 * MS, make: int = 20 * MS, **changes: Any) -> BatchRecord:
    """A batch requested at `requested`, for which the consumer waited, and which it then processed, for so many ns."""
    delivered = requested + wait
    collated = delivered - MS
    fields = {
        "epoch": 0,
        "index": 0,
        "worker": 0,
        "pid": 1000,
        "attempt": 1,
        "samples": 16,
        "nbytes": 1_000_000,
        "transport": "segment",
        "requested": requested,
        "dispatched": collated - make - 5 * MS,
        "fetch_begin": collated - make,
        "fetched": collated - make // 10,
        "collated": collated,
        "received": collated + MS // 2,
        "in_order": collated + MS // 2,
        "delivered": delivered,
        "returned": delivered + step,
        "fetch_cpu": make * 9 // 10,
        "collate_cpu": make // 10,
        "in_flight": 2,
        "reordering": 0,
        "ready": 1,
        "slowest_index": 7,
        "slowest_ns": 2 * MS,
    }
    fields["pid"] = 1000 + changes.get("worker", 0)
    return BatchRecord(**(fields | changes))


def loop(
    stats: Aggregator,
    batches: int,
    *,
    begin: int = START,
    epoch: int = 0,
    workers: int = 2,
    cycle: Any = None,
    **how: Any,
) -> int:
    """Feed the start of an epoch and consecutive batches; return when the consumer was done with the last one."""
    stats.update(EpochStarted(begin, epoch, 100, workers))
    now = begin
    for index in range(batches):
        changes = how | {"worker": index % workers if workers else -1} | (cycle(index) if cycle else {})
        batch = record(now, index=index, epoch=epoch, **changes)
        stats.update(batch)
        now = batch.returned or batch.delivered
    return now


def pair(**changes: Any) -> tuple[WorkerGauge, WorkerGauge]:
    return gauge(0, **changes), gauge(1, **changes)


# --- counting and rates


def test_rates_and_shares_are_computed_from_the_records():
    stats = new_stats()
    now = loop(stats, 50, wait=30 * MS, step=10 * MS)
    s = stats.snapshot(gauges(now, *pair(), waiting_since=now, waiting_for=50))
    assert (s.epoch, s.batches_done, s.batches_total, s.samples_done) == (0, 50, 100, 800)
    assert s.elapsed == pytest.approx(50 * 0.04)
    assert s.batches_per_second == pytest.approx(25)
    assert s.samples_per_second == pytest.approx(400)
    assert s.mb_per_second == pytest.approx(25)
    assert s.wait_share == s.wait_share_epoch == pytest.approx(0.75)
    assert s.eta == pytest.approx(50 / 25)
    assert s.cpu_share == pytest.approx(1)
    by_name = {stage.name: stage for stage in s.stages}
    assert tuple(by_name) == tuple(name for name in STAGES if name not in OPTIONAL_STAGES)
    assert by_name["queue"].mean == pytest.approx(5)
    assert by_name["fetch"].p50 == pytest.approx(18)
    assert by_name["collate"].max == pytest.approx(2)
    assert by_name["step"].p95 == pytest.approx(10)
    assert [w.batches for w in s.workers] == [25, 25]
    assert s.workers[0].batches_per_second == pytest.approx(12.5, rel=0.05)


def test_headspace_is_the_rate_without_the_time_in_which_the_loop_waits():
    stats = new_stats()
    now = loop(stats, 50, wait=30 * MS, step=20 * MS, make=100 * MS)
    s = stats.snapshot(gauges(now, *pair(), waiting_since=now, waiting_for=50))
    assert s.batches_per_second == pytest.approx(20)
    assert (s.headspace, s.headspace_epoch) == (pytest.approx(50), pytest.approx(50))
    assert "headspace: 50.0 batches/s if loading took no time" in str(s)
    assert "headspace 50.0 batches/s" in s._repr_html_()
    assert "but the loop could consume 50.0" in s.verdict, "the sentence has the same number"
    later = stats.snapshot(gauges(now + S, *pair(), waiting_since=now, waiting_for=50))
    assert later.headspace == pytest.approx(50), "a wait that goes on costs no headspace"


def test_without_a_batch_or_a_step_of_the_loop_there_is_no_headspace():
    stats = new_stats()
    assert stats.snapshot(gauges(START, state="new")).headspace is None
    now = loop(stats, 50, wait=30 * MS, step=0)
    s = stats.snapshot(gauges(now, *pair(), waiting_since=now, waiting_for=50))
    assert s.headspace is None
    assert "headspace" not in str(s)
    now = loop(stats, 50, begin=now, epoch=1, wait=30 * MS, step=MS // 100)
    s = stats.snapshot(gauges(now, *pair(), waiting_since=now, waiting_for=50))
    assert "headspace: over 10,000 batches/s" in str(s), "such steps are not measured precisely"


def test_percentiles_use_the_nearest_rank():
    stats = new_stats()
    now = loop(stats, 100, cycle=lambda index: {"step": (index + 1) * MS})
    step = stats.snapshot(gauges(now)).stages[-1]
    assert (step.p50, step.p95, step.max, step.mean) == (50, 95, 100, 50.5)


def test_the_rate_falls_while_no_batch_arrives():
    stats = new_stats()
    now = loop(stats, 50, wait=10 * MS, step=10 * MS)
    rates, shares = [], []
    for later in (0, 1, 3, 10, 100):
        s = stats.snapshot(gauges(now + later * S, *pair(), waiting_since=now, waiting_for=50))
        rates.append(s.batches_per_second)
        shares.append(s.wait_share)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(50)
    assert rates[-1] < 0.1
    assert shares == sorted(shares)
    assert shares[-1] > 0.99


def test_the_rate_covers_the_last_five_seconds():
    stats = new_stats()
    now = loop(stats, 200, cycle=lambda index: {"step": (40 if index < 100 else 100) * MS})
    assert stats.snapshot(gauges(now)).batches_per_second == pytest.approx(10, rel=0.05)


def test_a_loop_that_waits_far_longer_than_usual_is_stalled_and_has_no_rate():
    stats = new_stats()
    now = loop(stats, 50, wait=30 * MS, step=10 * MS)
    for seconds, stalled in ((1.9, False), (2.1, True), (60.0, True)):
        s = stats.snapshot(gauges(now + int(seconds * S), *pair(), waiting_since=now, waiting_for=50))
        assert (s.stalled is not None, s.eta is None) == (stalled, stalled)
        assert (s.batches_per_second > 0) is (s.samples_per_second > 0) is not stalled
    assert s.stalled == 60
    assert not any(w.batches_per_second for w in s.workers)
    assert s.wait_share > 0.9, "the wait itself counts"
    assert "stalled for 60 s" in str(s)
    assert "no batch for 60 s" in str(s)
    assert "batches/s, loop" not in repr(s)
    assert "stalled for 60 s" in s._repr_html_()
    stats.update(LoaderPaused(now))
    paused = stats.snapshot(gauges(now + 9 * S, *pair(), state="paused", waiting_since=now, waiting_for=50))
    assert paused.stalled is None
    stats.update(LoaderResumed(now + 9 * S))
    resumed = stats.snapshot(gauges(now + 10 * S, *pair(), waiting_since=now, waiting_for=50))
    assert resumed.stalled is None, "a pause is no stall"


def test_slow_batches_and_the_end_of_an_epoch_are_no_stall():
    stats = new_stats()
    now = loop(stats, 6, wait=MS, make=3 * S)
    waits = {"waiting_since": now, "waiting_for": 6}
    assert stats.snapshot(gauges(now + 20 * S, **waits)).stalled is None, "ten times as long as a batch takes"
    assert stats.snapshot(gauges(now + 31 * S, **waits)).stalled == 31
    assert stats.snapshot(gauges(now + 31 * S)).stalled is None, "the loop itself is busy"
    stats.update(EpochEnded(now, 0, 6, "exhausted"))
    assert stats.snapshot(gauges(now + 60 * S, state="idle", **waits)).stalled is None


def run_ten_batches() -> tuple[Aggregator, int]:
    """Statistics of a loop that waits 90 ms for each batch, and when it asked for the eleventh."""
    stats = new_stats()
    stats.update(EpochStarted(START, 0, 100, 2))
    now = START
    for i in range(10):
        stats.update(record(now, wait=90 * MS, step=10 * MS, index=i))
        now += 100 * MS
    return stats, now


def test_after_an_error_the_loop_has_stopped_until_it_comes_back():
    stats, now = run_ten_batches()
    stats.update(LoopStopped(now + 90 * MS, 0, 10, "ValueError: image 7 is truncated", interrupted=False))
    at = {"epoch": 0, "delivered": 10, "at": 9, "at_since": now - 10 * MS}
    s = stats.snapshot(gauges(now + 60 * S, *pair(), **at))
    assert (s.state, s.eta, s.at, s.stalled) == ("stopped", None, None, None)
    assert s.failure.endswith("batch 10 raised ValueError: image 7 is truncated.")
    assert s.verdict.startswith(s.failure)
    assert s.elapsed == pytest.approx(1.09), "it does not go on counting"
    assert s.wait_share_epoch == pytest.approx(0.99 / 1.09)
    assert s.verdict.startswith(
        "Epoch 0 stopped after 10 of 100 batches in 1.1 s: batch 10 raised ValueError: image 7 is truncated. "
    )
    closed = stats.snapshot(gauges(now + 90 * S, state="closed"))
    assert closed.elapsed == pytest.approx(1.09)
    assert "and the loader is closed" in closed.verdict
    back = stats.snapshot(gauges(now + 61 * S, *pair(), waiting_since=now + 60 * S, waiting_for=11, epoch=0))
    assert (back.state, back.failure) == ("running", "")
    stats.update(record(now + 60 * S, wait=90 * MS, index=11))
    assert stats.snapshot(gauges(now + 62 * S, *pair(), **at)).state == "running"


def test_an_interrupted_wait_counts_as_waiting_and_is_named():
    stats, now = run_ten_batches()
    stats.update(LoopStopped(now + 5 * S, 0, 10, "KeyboardInterrupt", interrupted=True))
    s = stats.snapshot(gauges(now + 60 * S, *pair(), epoch=0))
    assert (s.state, s.failure) == ("stopped", "")
    assert "was interrupted after 10 of 100 batches in 6.0 s, while the loop waited for batch 10 (5.0 s)" in s.verdict
    assert s.wait_share_epoch == pytest.approx(5.9 / 6)
    assert s.cause == "stall"
    stats.update(EpochStarted(now + 70 * S, 1, 100, 2))
    assert stats.snapshot(gauges(now + 71 * S, *pair(), epoch=1)).state == "running"


def test_skipped_samples_of_the_epoch_are_named_in_its_verdict():
    stats, now = run_ten_batches()
    for sample in (3, 8):
        stats.update(SampleFailed(now, 0, 2, 0, sample, f"OSError: {sample}.png", "", "skipped"))
    stats.update(SampleFailed(now, 0, 2, 0, None, "OSError", "", "retried"))
    named = "2 samples were skipped. The last one was sample 8 of batch 2: OSError: 8.png."
    assert stats.snapshot(gauges(now, *pair(), epoch=0)).verdict.endswith(named)
    stats.update(EpochEnded(now, 0, 10, "exhausted"))
    assert stats.snapshot(gauges(now, state="idle")).verdict.endswith(named)
    stats.update(EpochStarted(now, 1, 100, 2))
    assert "skipped" not in stats.snapshot(gauges(now + S, *pair(), epoch=1)).verdict


def test_before_the_second_batch_the_time_left_is_estimated_from_the_samples_that_are_there():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, 100, 2))
    waits = {"waiting_since": START, "waiting_for": 0, "epoch": 0}
    s = stats.snapshot(gauges(START + 6 * S, *pair(), **waits))
    assert (s.first_batch_in, s.eta, s.eta_rough) == (None, None, False), "nothing is known yet"
    fetching = FetchProgress(0, START + S, 2, 16), FetchProgress(1, START + S, 15, 16)
    s = stats.snapshot(gauges(START + 6 * S, *pair(), fetching=fetching, **waits))
    assert s.first_batch_in == pytest.approx(32 - 5), "5 s for two and a half of 16 samples"
    assert (s.eta, s.eta_rough) == (pytest.approx(27 + 99 * 32 / 2), True)
    assert "about 26 min 51 s left" in str(s)
    assert "no batch yet. At this pace, it comes in 27.0 s." in s.verdict
    ready = tuple(ProducedBatch(0, n, 1, START, START, START + 2 * S, START, 0) for n in range(1, 10))
    s = stats.snapshot(gauges(START + 6 * S, *pair(), fetching=fetching, made=ready, **waits))
    assert s.eta == pytest.approx(27 + 90 * 2 / 2), "others are there, and took 2 s each"
    s = stats.snapshot(gauges(START + 40 * S, *pair(), epoch=0, delivered=1, at=0, at_since=START + 33 * S))
    assert (s.first_batch_in, s.eta, s.eta_rough) == (None, pytest.approx(99 * 2 / 2), True), "the loop works on it"
    now = loop(stats, 10, wait=30 * MS)
    s = stats.snapshot(gauges(now, *pair(), waiting_since=now, waiting_for=10))
    assert (s.eta, s.eta_rough) == (pytest.approx(90 / 25), False)


def test_slow_batches_still_have_a_rate():
    stats = new_stats()
    now = loop(stats, 6, wait=5 * S, step=5 * S)
    s = stats.snapshot(gauges(now + S, waiting_since=now))
    assert s.batches_per_second == pytest.approx(0.1)
    assert s.wait_share == pytest.approx(0.5, abs=0.05)


def test_the_wait_for_the_first_batch_counts_only_for_the_epoch():
    stats = new_stats()
    now = loop(stats, 20, cycle=lambda index: {"wait": 3 * S if index == 0 else 0, "step": 50 * MS})
    s = stats.snapshot(gauges(now))
    assert s.wait_share == 0
    assert s.wait_share_epoch == pytest.approx(3 / 4)


def test_paused_time_is_left_out_of_rates_and_shares():
    stats = new_stats()
    now = loop(stats, 20, wait=10 * MS, step=30 * MS)
    before = stats.snapshot(gauges(now))
    stats.update(LoaderPaused(now))
    paused = stats.snapshot(gauges(now + 60 * S, state="paused", waiting_since=now, waiting_for=20, ready=2))
    assert paused.wait_share == pytest.approx(before.wait_share)
    assert paused.batches_per_second == pytest.approx(before.batches_per_second)
    assert paused.verdict == "Paused for 60 s with 2 batches ready. Call resume() to continue."
    assert paused.eta is None
    stats.update(LoaderResumed(now + 60 * S))
    stats.update(record(now, wait=60 * S + 10 * MS, step=30 * MS, index=20))
    after = stats.snapshot(gauges(now + 60 * S + 40 * MS))
    assert after.wait_share == pytest.approx(0.25, abs=0.02)
    assert after.wait_share_epoch == pytest.approx(0.25, abs=0.02)


def test_a_second_epoch_resets_progress_and_keeps_the_slowest_samples():
    stats = new_stats()
    now = loop(stats, 10, cycle=lambda index: {"slowest_index": index, "slowest_ns": (index + 1) * MS})
    stats.update(EpochEnded(now, 0, 10, "exhausted"))
    now = loop(stats, 3, begin=now + S, epoch=1, slowest_index="b", slowest_ns=5 * MS)
    s = stats.snapshot(gauges(now))
    assert (s.epoch, s.batches_done, s.samples_done) == (1, 3, 48)
    assert s.elapsed == pytest.approx(0.03)
    assert [x.index for x in s.slowest[:3]] == [9, 8, 7]
    assert [x.seconds for x in s.slowest] == sorted((x.seconds for x in s.slowest), reverse=True)
    assert [(x.epoch, x.seconds) for x in s.slowest if x.index == "b"] == [(1, 0.005)]
    for epoch in (2, 3):
        now = loop(stats, 1, begin=now + S, epoch=epoch, slowest_index="c", slowest_ns=MS)
    assert [x.index for x in stats.snapshot(gauges(now)).slowest] == ["b", "c"], "epoch 0 is three iterators ago"


def test_the_ten_slowest_of_many_samples_are_found():
    stats = new_stats()
    order = [1008, *range(1008)]  # the slowest first, then in increasing order
    now = loop(stats, 1009, cycle=lambda index: {"slowest_index": order[index], "slowest_ns": (order[index] + 1) * MS})
    slowest = stats.snapshot(gauges(now)).slowest
    assert [x.index for x in slowest] == list(range(1008, 998, -1))
    assert slowest[0].seconds == pytest.approx(1.009)


def test_samples_with_unhashable_indices_are_kept():
    stats = new_stats()
    now = loop(stats, 3, slowest_index={"key": [1]})
    assert len(stats.snapshot(gauges(now)).slowest) == 3


def test_with_several_iterators_progress_is_that_of_the_newest():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, 10, 2))
    stats.update(EpochStarted(START, 1, 20, 2))
    now = START
    for index in range(10):
        for epoch in (0, 1):
            stats.update(record(now, epoch=epoch, index=index, step=10 * MS))
            now += 10 * MS
    s = stats.snapshot(gauges(now))
    assert (s.epoch, s.batches_done, s.batches_total) == (1, 10, 20)
    assert s.batches_per_second == pytest.approx(100, rel=0.1)
    assert s.eta == pytest.approx(10 / 50, rel=0.15)
    stats.update(EpochEnded(now, 0, 10, "exhausted"))
    assert stats.snapshot(gauges(now + S)).elapsed > s.elapsed, "the end of an older epoch is not the end of this one"


def test_a_late_epoch_start_keeps_the_batches_before_it():
    stats = new_stats()
    stats.update(record(START + 10 * MS, epoch=3))
    assert stats.snapshot(gauges(START + 30 * MS)).batches_total is None
    stats.update(EpochStarted(START, 3, 5, 1))
    stats.update(EpochStarted(START - S, 2, 99, 1))
    s = stats.snapshot(gauges(START + 30 * MS))
    assert (s.epoch, s.batches_done, s.batches_total) == (3, 1, 5)
    assert s.elapsed == pytest.approx(0.03)


def test_an_unknown_number_of_batches_has_no_eta():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, None, 2))
    stats.update(record(START))
    stats.update(record(START + 10 * MS))
    s = stats.snapshot(gauges(START + 20 * MS))
    assert (s.batches_total, s.eta) == (None, None)
    assert "2 batches" in str(s)


def test_a_batch_that_the_consumer_never_finished_has_no_step():
    stats = new_stats()
    loop(stats, 5, step=10 * MS)
    stats.update(record(START + 50 * MS, returned=0))
    s = stats.snapshot(gauges(START + 60 * MS))
    assert s.batches_done == 6
    assert s.stages[-1].mean == pytest.approx(10)


def test_an_abandoned_epoch_does_not_advance():
    stats = new_stats()
    now = loop(stats, 20)
    stats.update(EpochEnded(now, 0, 21, "abandoned"))
    first, later = (stats.snapshot(gauges(now + t * S, state="idle")) for t in (1, 1000))
    assert first == dataclasses.replace(later, now=first.now)
    assert (first.batches_done, first.eta) == (21, None)
    assert first.elapsed == pytest.approx(0.2)
    assert first.verdict.startswith(
        "Epoch 0 was abandoned after 21 of 100 batches in 200 ms. Make the steps of your loop faster. Your loop is the "
        "bottleneck: it waited for 0%"
    )


def test_faults_are_counted_by_worker():
    stats = new_stats()
    stats.update(WorkerStarted(START, 1, 11))
    stats.update(WorkerReady(START, 1, 11, MS))
    stats.update(WorkerDied(START, 1, 11, -9, "killed by SIGKILL", expected=False, batches=(3,), stderr_tail=""))
    stats.update(WorkerRestarted(START, 1, "killed by SIGKILL"))
    stats.update(WorkerDied(START, 0, 10, 0, "restarted by request", expected=True, batches=(), stderr_tail=""))
    stats.update(WorkerRestarted(START, 0, "request"))
    stats.update(BatchFailed(START, 0, 3, 1, 17, "ValueError: no"))
    s = stats.snapshot(gauges(START + S, *pair()))
    assert (s.errors, s.deaths, s.restarts) == (1, 1, 2)
    assert [(w.restarts, w.errors) for w in s.workers] == [(1, 0), (1, 1)]
    assert "1 failed batch, 1 worker death, 2 restarts" in str(s)
    assert s.supervisor_failures == 0
    assert "supervisor" not in str(s) + s._repr_html_()


def test_failed_samples_are_counted_by_what_was_done():
    stats = new_stats()
    for index, done in enumerate(("skipped", "replaced", "retried", "retried")):
        stats.update(SampleFailed(START, 0, index, 1, 17, "ValueError: no", "Traceback ...", done))
    s = stats.snapshot(gauges(START + S, *pair()))
    assert (s.skipped, s.replaced, s.retried) == (1, 1, 2)
    assert [x.index for x in s.failed_samples] == [0, 1, 2, 3]


def test_failures_of_the_supervisor_are_counted_and_shown():
    stats = new_stats()
    for _ in range(2):
        stats.update(SupervisorFailed(START, "KeyError: 3"))
    stats.update(EpochStarted(START, 0, 10, 2))
    s = stats.snapshot(gauges(START + S, *pair()))
    assert s.supervisor_failures == 2
    assert "2 supervisor failures" in str(s)
    assert "2 supervisor failures" in s._repr_html_()


def test_reloading_the_dataset_resets_stage_times_and_slowest_samples():
    stats = new_stats()
    now = loop(stats, 20, make=S)
    stats.update(DatasetReloaded(now))
    s = stats.snapshot(gauges(now))
    assert (s.stages, s.slowest, s.cpu_share) == ((), (), None)
    assert s.batches_done == 20


def test_concurrent_updates_are_all_counted():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, None, 2))
    records = [record(START + i * MS) for i in range(2000)]

    def feed() -> None:
        for batch in records:
            stats.update(batch)

    threads = [threading.Thread(target=feed) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        stats.snapshot(gauges(START + S))
    for thread in threads:
        thread.join()
    assert stats.snapshot(gauges(START + S)).batches_done == 8000


# --- points


@pytest.mark.slow
def test_snapshots_add_points_which_are_bounded():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, None, 2))
    now = START
    for _ in range(1500):
        now += 100 * MS
        stats.update(record(now - 100 * MS, wait=75 * MS, step=25 * MS))
        stats.snapshot(gauges(now))
    points = stats.points()
    times = [p.time for p in points]
    assert 590 <= len(points) <= 601
    assert times[-1] - times[0] <= 120
    assert all(b - a >= 0.2 - 1e-9 for a, b in itertools.pairwise(times))
    assert points[-1].batches_per_second == pytest.approx(10)
    assert points[-1].wait_share == pytest.approx(0.75)
    assert points[-1].stages[-1] == pytest.approx(25)
    assert points[-1].ready == pytest.approx(2 / 3), "two batches saw 1, the gauge says 0"


def test_a_wait_counts_in_the_points_while_it_lasts_and_only_once():
    stats = new_stats()
    now = loop(stats, 10, step=25 * MS)
    stats.snapshot(gauges(now))
    seen = []
    for _ in range(8):  # waits two seconds, then works two; its record comes at the end
        now += 250 * MS
        stats.snapshot(gauges(now, waiting_since=START + 250 * MS, waiting_for=10))
        seen.append(stats.points()[-1].wait_share)
    for _ in range(8):
        now += 250 * MS
        stats.snapshot(gauges(now))
        seen.append(stats.points()[-1].wait_share)
    stats.update(record(START + 250 * MS, wait=2 * S, step=2 * S))
    stats.snapshot(gauges(now + 250 * MS))
    seen.append(stats.points()[-1].wait_share)
    assert seen == [1.0] * 8 + [0.0] * 9


def test_an_idle_loader_adds_no_points_and_a_gap_is_a_flat_line():
    stats = new_stats()
    now = loop(stats, 50)
    stats.snapshot(gauges(now))
    stats.update(EpochEnded(now, 0, 50, "exhausted"))
    for i in range(1, 100):
        stats.snapshot(gauges(now + i * 250 * MS, state="idle", in_flight=0))
    assert len(stats.points()) == 2
    now = loop(stats, 5, begin=now + 30 * S, epoch=1)
    stats.snapshot(gauges(now, in_flight=4))
    _, idle, held, fresh = stats.points()
    assert dataclasses.replace(idle, time=0) == dataclasses.replace(held, time=0)
    assert held.time == pytest.approx(fresh.time - 0.2)


def test_without_events_there_are_no_points():
    stats = new_stats()
    stats.snapshot(gauges(START, state="new"))
    assert stats.points() == []


# --- the verdict


def verdict(stats: Aggregator, g: Gauges) -> tuple[str, str]:
    s = stats.snapshot(g)
    return s.cause, s.verdict


def test_verdict_before_anything():
    assert verdict(new_stats(), gauges(START, *pair(), state="new")) == (
        "new",
        "No batches yet: iterate over the loader to start it.",
    )


def test_verdict_while_starting_up():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, 10, 2))
    workers = gauge(0), gauge(1, state="starting")
    cause, text = verdict(stats, gauges(START + 1200 * MS, *workers, state="starting", waiting_since=START))
    assert (cause, text) == ("starting", "Starting up for 1.2 s: 1 of 2 workers is ready.")
    busy = gauge(0, state="fetching", batch=0, sample=17), gauge(1, state="fetching", batch=1, since=START + S)
    cause, text = verdict(stats, gauges(START + 12 * S, *busy, waiting_since=START, waiting_for=0))
    assert text == "Starting up for 12 s: no batch yet. Worker 0 has been processing batch 0, sample 17, for 12 s."
    stats.update(record(START, wait=13 * S))
    cause, text = verdict(stats, gauges(START + 14 * S, *pair(), waiting_since=START + 13 * S + 10 * MS))
    assert (cause, text) == ("starting", "The first batch came after 13.0 s. One batch is too few for a verdict.")


def test_verdict_when_the_consumer_is_the_limit():
    stats = new_stats()
    now = loop(stats, 50, wait=MS // 2, step=20 * MS, ready=4)
    assert verdict(stats, gauges(now, *pair())) == (
        "consumer",
        (
            "Make the steps of your loop faster. Your loop is the bottleneck: it waited for 2% of the last 1.0 s. It "
            "spends 20.0 ms on each batch. The loader keeps 4 batches ready. A faster loader would not help."
        ),
    )


def used(**changes: Any) -> Usage:
    fields: dict[str, Any] = dict.fromkeys((f.name for f in dataclasses.fields(Usage)), 0)
    return Usage(**(fields | {"seconds": 5.0, "yielded": None, "preempted": None} | changes))


@pytest.mark.parametrize(
    ("cpu", "cores", "usage", "cause", "advice"),
    [
        (0.97, 8, None, "workers_compute", "Use more workers, up to the number of cores (8), or make transforms"),
        (
            0.97,
            2,
            None,
            "workers_compute_full",
            "the workers and the loop use 1.80 of 2 cores. More workers would not help.",
        ),
        (
            0.45,
            2,
            used(worker_cores=0.98, core_wait=0.45),
            "workers_compute_full",
            "the workers and the loop use 1.96 of 2 cores. More workers",
        ),
        (0.08, 2, None, "workers_wait", "Use more workers, even beyond the number of cores (2). Workers"),
        (0.55, 8, None, "workers_compute", "accounts for 40% of the wait: fetching waits for 45% of"),
    ],
)
def test_verdict_when_the_workers_are_the_limit(cpu: float, cores: int, usage: Usage | None, cause: str, advice: str):
    stats = new_stats(cores=cores)
    now = loop(stats, 50, wait=34 * MS, step=20 * MS, make=100 * MS, fetch_cpu=int(cpu * 90 * MS))
    s = stats.snapshot(gauges(now, *pair()), usage)
    assert s.cause == cause
    head = (
        "Workers are the bottleneck: the loop waited for 63% of the last 2.6 s. The 2 workers produce 18.5 batches/s, "
        "but the loop could consume 50.0."
    )
    assert s.verdict.partition(". ")[2].startswith(head)
    assert advice in s.verdict


def test_verdict_when_other_code_uses_the_cores():
    stats = new_stats(cores=2)
    now = loop(stats, 50, wait=34 * MS, step=20 * MS, make=100 * MS, fetch_cpu=18 * MS)
    s = stats.snapshot(gauges(now, *pair()), used(core_wait=0.5, worker_cores=0.2, loop_cores=0.1))
    assert s.cause == "cores_taken"
    assert "wait for a core during 54% of their work. The workers and the loop use only 0.50 of 2 cores" in s.verdict
    assert stats.snapshot(gauges(now, *pair()), used(core_wait=0.02, worker_cores=0.2)).cause == "workers_wait"


def test_verdict_for_a_single_worker():
    stats = new_stats(cores=4)
    now = loop(stats, 50, workers=1, wait=30 * MS)
    assert "The worker is the bottleneck" in stats.snapshot(gauges(now, gauge())).verdict
    assert "The worker produces 25.0 batches/s" in stats.snapshot(gauges(now, gauge())).verdict


def test_verdict_for_a_stuck_worker():
    stats = new_stats()
    now = loop(stats, 50, make=50 * MS)
    hung = gauge(1, state="fetching", batch=50, sample=938, since=now)
    s = stats.snapshot(gauges(now + 34 * S, gauge(0), hung, waiting_since=now, waiting_for=50, reordering=3))
    assert [w.stuck for w in s.workers] == [False, True]
    assert (s.cause, s.verdict) == (
        "worker",
        (
            "Worker 1 seems stuck: it has been processing batch 50, sample 938, for 34 s, and the loop is waiting for "
            "this batch. A batch usually takes 50.0 ms. Restart the worker: loader.restart_workers([1])."
        ),
    )
    both = (gauge(0, state="fetching", batch=51, since=now + S), hung)
    text = stats.snapshot(gauges(now + 34 * S, *both)).verdict
    assert text.startswith("Worker 1 seems stuck (and 1 other too): it has been processing batch 50")
    assert "restart_workers([0, 1])" in text


@pytest.mark.parametrize(
    ("make", "lasts", "stuck"), [(50 * MS, 1.9, False), (50 * MS, 2.1, True), (S, 9.0, False), (S, 11.0, True)]
)
def test_stuck_means_two_seconds_and_ten_median_batches(make: int, lasts: float, stuck: bool):
    stats = new_stats()
    now = loop(stats, 50, make=make, workers=1)
    busy = gauge(0, state="fetching", batch=50, since=now)
    assert stats.snapshot(gauges(now + int(lasts * S), busy)).workers[0].stuck is stuck


def test_verdict_for_a_worker_that_delays_the_loop():
    stats = new_stats()
    now = loop(stats, 50, make=50 * MS)
    busy = gauge(1, state="fetching", batch=50, sample=938, since=now)
    cause, text = verdict(
        stats, gauges(now + 1400 * MS, gauge(0), busy, waiting_since=now, waiting_for=50, reordering=1)
    )
    assert cause == "worker"
    assert text.startswith("Worker 1 delays the loop: it has been processing batch 50, sample 938, for 1.4 s, and ")
    assert "and 1 later batch is waiting behind it" in text


def test_verdict_for_a_slow_worker():
    stats = new_stats()
    now = START
    stats.update(EpochStarted(START, 0, 100, 2))
    for index in range(40):
        batch = record(now, index=index, worker=index % 2, wait=200 * MS, make=400 * MS if index % 2 else 40 * MS)
        batch = batch._replace(received=batch.delivered - (0 if index % 2 else 180 * MS), in_order=batch.delivered)
        stats.update(batch)
        now = batch.returned
    cause, text = verdict(stats, gauges(now, *pair()))
    assert cause == "worker"
    assert text.startswith("If worker 1 stays slow, restart it: loader.restart_workers([1]). Worker 1 is slow: its ")
    assert "take 400 ms, and those of the other worker take 40.0 ms. On average, a batch waits 90.0 ms" in text
    replaced = gauge(0), gauge(1, pid=4242)
    assert stats.snapshot(gauges(now, *replaced)).cause != "worker", "the slow process was replaced"


def test_verdict_when_transport_is_the_limit():
    stats = new_stats()
    now = loop(stats, 50, wait=60 * MS, make=10 * MS, nbytes=38_000_000)
    assert stats.snapshot(gauges(now, *pair())).cause not in ("transport", "pickle")
    stats = new_stats()
    now = START
    stats.update(EpochStarted(START, 0, 100, 2))
    for _ in range(50):
        batch = record(now, wait=60 * MS, make=10 * MS, nbytes=38_000_000, transport="pickle")
        back = 40 * MS
        batch = batch._replace(
            **{name: getattr(batch, name) - back for name in ("dispatched", "fetch_begin", "fetched", "collated")}
        )
        stats.update(batch)
        now = batch.returned
    cause, text = verdict(stats, gauges(now, *pair()))
    assert cause == "pickle"
    assert "A worker pickles 38.0 MB of each batch (1.00 ms to collate and pickle, 40.5 ms to transport)" in text


def test_right_after_a_resize_the_new_workers_do_not_count_as_idle_before():
    stats = new_stats(cores=8)
    for worker in (0, 1):
        stats.update(WorkerReady(START - S, worker, 1000 + worker, S))
    now = loop(stats, 60, wait=40 * MS, make=95 * MS, fetch_cpu=MS)
    crew = [gauge(worker) for worker in range(8)]
    starting = [*crew[:2], *(gauge(worker, state="starting") for worker in range(2, 8))]
    before = stats.snapshot(gauges(now + 50 * MS, *starting, window=16, waiting_since=now))
    assert before.cause == "workers_wait", "they are not ready"
    for worker in range(2, 8):
        stats.update(WorkerReady(now, worker, 1000 + worker, S))
    after = stats.snapshot(gauges(now + 100 * MS, *crew, window=16, waiting_since=now))
    assert after.cause == "workers_wait", after.verdict
    assert after.epoch_verdict.cause == "workers_wait"
    stats.update(EpochEnded(now + 100 * MS, 0, 60, "closed"))
    stats.update(WorkerDied(now + S, 0, 1000, 0, "", expected=True, batches=(), stderr_tail=""))
    assert stats.snapshot(gauges(now + 2 * S, state="idle")).cause == "workers_wait"


def test_workers_of_another_machine_do_not_use_the_cores_of_this_one():
    stats = new_stats(cores=2)
    for worker in (0, 1):
        stats.update(WorkerReady(START - S, worker, 1000 + worker, S, Machine("far", 8)))
    now = loop(stats, 60, wait=40 * MS, make=95 * MS, fetch_cpu=85 * MS)
    s = stats.snapshot(gauges(now, *pair(kind="ray"), waiting_since=now))
    assert s.cause == s.epoch_verdict.cause == "workers_compute", s.verdict
    stats.update(EpochEnded(now, 0, 60, "closed"))
    assert stats.snapshot(gauges(now + S, state="closed")).epoch_verdict.cause == "workers_compute"
    assert stats.epoch_evidence().elsewhere == (MachineLoad(2, 8),)
    for worker in (0, 1):  # of this machine
        stats.update(WorkerReady(now + S, worker, 2000 + worker, S))
    now = loop(stats, 60, begin=now + S, epoch=1, wait=40 * MS, make=95 * MS, fetch_cpu=85 * MS)
    assert stats.snapshot(gauges(now, *pair(), waiting_since=now)).cause == "workers_compute_full"


def test_verdict_without_workers():
    stats = new_stats()
    now = loop(stats, 50, workers=0, wait=20 * MS, step=10 * MS)
    cause, text = verdict(stats, gauges(now))
    assert cause == "in_process"
    assert "A batch takes 20.0 ms (100% of fetching is CPU time), and a step takes 10.0 ms." in text
    stats = new_stats()
    now = loop(stats, 50, workers=0, wait=MS // 10)
    assert stats.snapshot(gauges(now)).verdict == (
        "Make the steps of your loop faster. Your loop is the bottleneck: it waited for 1% of the last 495 ms. It "
        "spends 10.0 ms on each batch. A faster loader would not help."
    )


def test_verdict_on_a_stall_names_the_sample_at_which_the_worker_was_lost():
    stats = new_stats(cores=8)
    now = loop(stats, 50, wait=MS)
    again = record(now, index=50, wait=3 * S, make=20 * MS, attempt=2, slowest_index=642, lost_sample=640)
    stats.update(again)
    s = stats.snapshot(gauges(again.returned, *pair()))
    for found in (s.now_verdict, s.epoch_verdict):
        assert found.sentence.startswith("Look at sample 640, or limit waits with timeout=")
        assert "batch 50, which was produced again after a worker was lost at sample 640 (attempt 2)." in found.sentence
        assert "642" not in found.sentence


def test_verdict_after_the_epoch_and_after_close():
    stats = new_stats(cores=8)
    now = loop(stats, 100, wait=30 * MS, make=70 * MS)
    stats.update(EpochEnded(now, 0, 100, "exhausted"))
    ended = stats.snapshot(gauges(now + S, *pair(), state="idle"))
    assert ended.cause == "workers_compute"
    assert ended.verdict.startswith(
        "Epoch 0 ended after 100 batches in 4.0 s. Use more workers, up to the number of cores (8), or make transforms "
        "cheaper. Workers are the bottleneck: the loop waited for 75% of the epoch's"
    )
    stats.update(LoaderClosed(now + S))
    closed = stats.snapshot(gauges(now + 60 * S, state="closed"))
    assert closed.cause == "workers_compute", "closing loses nothing"
    assert closed.verdict == ended.verdict.replace("4.0 s. U", "4.0 s, and the loader is closed. U")
    assert (closed.now_verdict, closed.epoch_verdict) == (ended.now_verdict, ended.epoch_verdict)
    assert verdict(new_stats(), gauges(now, state="closed")) == ("closed", "The loader is closed.")


def test_now_and_the_epoch_are_judged_apart():
    stats = new_stats(cores=8)
    now = loop(stats, 400, wait=30 * MS, make=70 * MS)  # 16 s in which the loop waits
    for index in range(400, 1000):  # 6 s in which it does not
        batch = record(now, index=index, worker=index % 2)
        stats.update(batch)
        now = batch.returned
    for s in (
        stats.snapshot(gauges(now, *pair())),
        (stats.update(EpochEnded(now, 0, 1000, "exhausted")), stats.snapshot(gauges(now, state="idle")))[1],
    ):
        assert s.now_verdict.cause == "consumer"
        assert s.now_verdict.sentence.startswith(
            "Make the steps of your loop faster. Your loop is the bottleneck: it waited for 0% of"
        )
        assert s.epoch_verdict.cause == "workers_compute"
        assert "the loop waited for 55% of the epoch's 22.0 s" in s.epoch_verdict.sentence
    assert s.cause == s.epoch_verdict.cause


def test_verdict_after_a_tiny_epoch_names_no_cause():
    stats = new_stats()
    now = loop(stats, 2)
    stats.update(BatchFailed(now, 0, 2, 1, 7, "ValueError: bad sample"))
    stats.update(EpochEnded(now, 0, 2, "error"))
    assert verdict(stats, gauges(now, state="idle")) == (
        "idle",
        (
            "Epoch 0 ended with an error after 2 of 100 batches in 20.0 ms (sample 7 of batch 2: ValueError: bad "
            "sample). The loop waited for 0% of the time, but these are too few batches to tell why."
        ),
    )


def test_the_verdict_about_the_epoch_before_stays_while_the_newest_has_too_few_batches():
    stats = new_stats(cores=8)
    now = loop(stats, 50, wait=34 * MS, step=20 * MS, make=100 * MS)
    stats.update(EpochEnded(now, 0, 50, "exhausted"))
    before = stats.snapshot(gauges(now, state="idle")).epoch_verdict
    assert before.cause == "workers_compute"
    stats.update(EpochStarted(now, 1, 100, 2))
    cause, sentence = verdict(stats, gauges(now + S, *pair(state="starting"), waiting_since=now, waiting_for=0))
    assert (cause, sentence.startswith("Starting up for")) == ("starting", True)
    assert sentence.endswith(f" Epoch 0: {before.sentence}")
    now = loop(stats, 2, begin=now, epoch=1)
    stats.update(EpochEnded(now, 1, 2, "abandoned"))
    s = stats.snapshot(gauges(now, state="idle", epoch=1))
    assert s.cause == before.cause
    assert s.verdict.startswith("Epoch 1 was abandoned after 2 of 100 batches in 20.0 ms. ")
    assert s.verdict.endswith(f"these are too few batches to tell why. Epoch 0: {before.sentence}")
    now = loop(stats, 50, begin=now, epoch=2, wait=0, step=20 * MS)
    stats.update(EpochEnded(now, 2, 50, "exhausted"))
    assert "Epoch 0" not in stats.snapshot(gauges(now, state="idle", epoch=2)).verdict, "it has one of its own"


# --- text and HTML


def full_snapshot(nasty: Any = 3, text: str = "") -> Snapshot:
    stats = new_stats(cores=2)
    stats.update(WorkerRestarted(START, 1, "request"))
    now = loop(stats, 50, wait=34 * MS, step=20 * MS, make=100 * MS, slowest_index=nasty)
    busy = gauge(
        1, state=text or "fetching", batch=50, sample=nasty, exit_reason=text, stderr_tail=text, rss=212_000_000
    )
    return stats.snapshot(gauges(now + 3 * S, gauge(0, cpu_percent=97.2), busy, waiting_since=now, waiting_for=50))


def test_repr_is_one_line():
    line = repr(full_snapshot())
    assert line.startswith("<Snapshot running: epoch 0, 50 of 100 batches, ")
    assert "\n" not in line
    assert len(line) < 160


def test_a_worker_that_has_ended_still_belongs_to_the_node_on_which_it_ran():
    stats = new_stats()
    nodes = lambda *workers: [w.node for w in stats.snapshot(gauges(START, *workers)).workers]  # noqa: E731
    assert nodes(gauge(0, node="a"), gauge(1)) == ["a", ""]
    assert nodes(gauge(0, state="dead", pid=0), gauge(1)) == ["a", ""]
    assert nodes(gauge(0, node="b"), gauge(1)) == ["b", ""]


def test_text_is_complete_aligned_and_fits_a_terminal():
    text = str(full_snapshot(text="was killed by SIGKILL (often because memory ran out)"))
    lines = text.splitlines()
    assert lines[0].startswith("Look at batch 50, or limit waits with timeout= and on_timeout='restart'. One")
    assert "One batch stalled the loop: the loop waited for 85% of the last 5.0 s, 70% of that" in " ".join(lines)
    assert "Batch 50 has not arrived. A batch usually takes 100 ms." in " ".join(lines)
    assert max(map(len, lines)) <= 90
    assert "Epoch   0, running  [############............]  50 of 100 batches (50%)" in lines
    assert "Queues  in flight 2   reorder 0   ready 0   window 4" in lines
    stage_rows = [line for line in lines if line.split(" ")[0] in STAGES]
    assert [row.split()[0] for row in stage_rows] == [s for s in STAGES if s not in OPTIONAL_STAGES]
    assert len({len(row) for row in stage_rows}) == 1, "columns are aligned"
    reason = lines.index("worker 1: the previous process was killed by SIGKILL (often because memory ran")
    assert lines[reason + 1] == "  out)"
    assert "97%" in text
    assert "212 MB" in text


def test_text_and_html_of_an_empty_snapshot():
    s = new_stats().snapshot(gauges(START, state="new"))
    assert str(s).splitlines()[0] == "No batches yet: iterate over the loader to start it."
    assert "State   new" in str(s)
    assert "No batches yet" in s._repr_html_()
    assert "<table" not in s._repr_html_()


class Balanced(html.parser.HTMLParser):
    """Fails on unbalanced tags, and collects tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name not in {"style", "title", "class"}]
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(page: str) -> Balanced:
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


ALLOWED = {"div", "span", "b", "table", "thead", "tbody", "tr", "th", "td", "br", "details", "summary"}


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "nasty",
    [
        "<script>alert(1)</script>",
        "\0\x1b[31m\r\n\u2028\ud800",
        "x" * 1_000_000,
        "\"' onload='x",
        "&lt;",
        Hostile(),
        float("nan"),
    ],
)
def test_untrusted_text_is_harmless(nasty: Any):
    words = nasty if isinstance(nasty, str) else "quiet"
    s = full_snapshot(nasty, words)
    page, text = s._repr_html_(), str(s)
    parsed = parse(page)
    assert parsed.tags <= ALLOWED
    assert len(page) < 40_000
    assert len(text) < 10_000
    for shown in (page, text, repr(s)):
        shown.encode()
        assert not set(shown) & set("\0\x1b\r\u2028")
    assert "x" * 201 not in page


def test_html_contains_what_the_text_contains():
    s = full_snapshot(text="killed by <SIGKILL>")
    parsed = parse(s._repr_html_())
    for needle in (
        s.verdict,
        "Epoch 0",
        "50 of 100 batches (50%)",
        "in flight 2",
        "window 4",
        "Workers",
        "Slowest samples",
    ):
        assert needle in parsed.text
    assert "killed by <SIGKILL>" in parsed.text
    assert "212 MB" in parsed.text


def test_formatting_of_figures():
    assert [number(x) for x in (0, 0.0004, 0.0512, 0.5, 1.834, 18.34, 99.96, 1234.5, -3.2, 1e300)] == [
        *("0", "0", "0.051", "0.50", "1.83", "18.3", "100", "1,234", "-3.20", "1.00e+300")
    ]
    assert [percent(x) for x in (0, 0.001, 0.624, 1)] == ["0%", "< 1%", "62%", "100%"]
    assert [factor(3.94), factor(1.876, ".2f"), factor(51.0, ".3g")] == ["3.9x", "1.88x", "51x"]
    assert [duration(x) for x in (0, 35e-5, 0.0207, 0.9996, 3.21, 200, 7500)] == [
        *("0 us", "350 us", "20.7 ms", "1.0 s", "3.2 s", "3 min 20 s", "2 h 05 min")
    ]
    assert [megabytes(x) for x in (812_000, 38_200_000, 1_240_000_000)] == ["812 kB", "38.2 MB", "1.24 GB"]
    assert [plural(1, "batch"), plural(2, "batch"), plural(1000, "core")] == ["1 batch", "2 batches", "1,000 cores"]
    assert clean("a\nb") == "a\N{REPLACEMENT CHARACTER}b"
    assert len(clean("y" * 500)) == 200


# --- arbitrary events

times = st.integers(0, 2**63) | st.integers(START - 10 * S, START + 200 * S)
small = st.integers(-1, 5)
anything = st.none() | st.integers() | st.text(max_size=20) | st.lists(st.integers(), max_size=3) | st.floats()
counts = st.integers(0, 10**12)
batch_records = st.builds(
    BatchRecord,
    *(small, counts, small, counts, small, counts, counts, st.sampled_from(["segment", "pickle", "local"])),
    *[times] * 9,
    *(times, times, counts, counts, counts, anything, times, st.just(())),
    lost_sample=anything,
)
events: st.SearchStrategy[Event] = st.one_of(
    batch_records,
    st.builds(EpochStarted, times, small, st.none() | counts, small),
    st.builds(EpochEnded, times, small, counts, st.sampled_from(["exhausted", "abandoned", "error", ""])),
    st.builds(WorkerRestarted, times, small, st.text(max_size=5)),
    st.builds(WorkerDied, times, small, counts, st.none(), st.text(), st.booleans(), st.just(()), st.text()),
    st.builds(BatchFailed, times, small, counts, small, anything, st.text(max_size=5)),
    st.builds(LoaderPaused, times),
    st.builds(LoaderResumed, times),
    st.builds(DatasetReloaded, times),
    st.builds(SupervisorFailed, times, st.text(max_size=5)),
    st.builds(LoaderClosed, times),
)
states = st.sampled_from(["idle", "starting", "fetching", "collating", "sending", "dead"])
worker_gauges = st.builds(
    WorkerGauge,
    *(small, counts, states, st.none() | counts, times, anything, counts, st.text(max_size=9), st.text(max_size=9)),
    *(st.none() | st.floats(), st.none() | counts),
)
any_gauges = st.builds(
    Gauges,
    times,
    st.sampled_from(["new", "starting", "running", "paused", "idle", "closed"]),
    *[counts] * 4,
    st.none() | times,
    st.none() | counts,
    st.lists(worker_gauges, max_size=3).map(tuple),
)


def numbers(value: object, path: str = "") -> list[tuple[str, float]]:
    """All floats within a snapshot, with their place, except dataset indices."""
    if isinstance(value, float):
        return [(path, value)]
    if isinstance(value, tuple):
        return [found for item in value for found in numbers(item, path)]
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value) if f.name not in {"sample", "index"}]
        return [found for name in fields for found in numbers(getattr(value, name), f"{path}.{name}")]
    return []


@given(st.lists(events | any_gauges, max_size=30), any_gauges)
def test_snapshots_of_arbitrary_events_are_finite_and_readable(script: list[Event | Gauges], last: Gauges):
    stats = new_stats()
    for item in [*script, last]:
        if not isinstance(item, Gauges):
            stats.update(item)
            continue
        s = stats.snapshot(item)
        for place, value in numbers(s) + numbers(tuple(stats.points())):
            assert math.isfinite(value), place
            assert value >= 0 or place.endswith("cpu_percent"), place
        assert all(0 <= x <= 1 for x in (s.wait_share, s.wait_share_epoch, s.cpu_share or 0))
        assert len(s.slowest) <= 10
        assert s.verdict
        for words in (s.verdict, str(s), repr(s), s._repr_html_()):
            words.encode()
        assert parse(s._repr_html_()).tags <= ALLOWED
    assert len(stats.points()) <= 600


# --- between two records, and after the end


def test_the_batch_that_the_loop_is_processing_counts_as_delivered():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, 100, 2))
    s = stats.snapshot(gauges(START + 3 * S, *pair(), epoch=0, delivered=1, at=0, at_since=START + S))
    assert s.batches_done == 1
    assert s.at_for == pytest.approx(2)
    assert s.verdict == "The first batch came after 1.0 s. The loop has been working on it for 2 s."


def test_many_pauses_do_not_count_as_waiting():
    stats = new_stats()
    now = loop(stats, 10, wait=10 * MS, step=30 * MS)
    for index in range(10, 310):
        stats.update(LoaderPaused(now))
        stats.update(LoaderResumed(now + S))
        stats.update(record(now, wait=S + 10 * MS, step=30 * MS, index=index))
        now += S + 40 * MS
    assert stats.snapshot(gauges(now)).wait_share_epoch == pytest.approx(0.25, abs=0.01)


def test_batches_delivered_by_step_do_not_count_in_the_rate():
    stats = new_stats()
    now = loop(stats, 1)
    stats.update(LoaderPaused(now))
    for index in range(1, 8):
        stats.update(record(now, wait=S, index=index))
        now += S + 10 * MS
    paused = stats.snapshot(gauges(now + S, *pair(), state="paused", waiting_since=now, waiting_for=8))
    assert paused.batches_per_second == paused.samples_per_second == 0
    assert not any(w.batches_per_second for w in paused.workers)
    stats.update(LoaderResumed(now))
    for index in range(8, 18):
        stats.update(record(now, wait=30 * MS, index=index))
        now += 40 * MS
    assert stats.snapshot(gauges(now, *pair())).batches_per_second == pytest.approx(25)


def test_the_batches_of_a_worker_include_those_not_delivered():
    stats = new_stats()
    now = loop(stats, 10)
    s = stats.snapshot(gauges(now, gauge(0, made=7), gauge(1)))
    assert [w.batches for w in s.workers] == [7, 5]


def test_a_worker_without_a_process_is_not_shown_as_dead():
    stats = new_stats()
    idle = [gauge(i, pid=0, state="dead") for i in range(4)]
    new = stats.snapshot(gauges(START, *idle, state="new"))
    assert "4 workers: not started" in str(new)
    assert "4 workers: not started" in new._repr_html_()
    assert "4 workers: ended" in str(dataclasses.replace(new, state="closed"))
    assert "dead" in str(stats.snapshot(gauges(START, gauge(0, pid=0, state="dead", exit_reason="was killed"))))


def test_a_batch_that_will_be_discarded_is_marked():
    s = new_stats().snapshot(gauges(START, gauge(0, state="fetching", batch=7, left=True)))
    assert "fetching, discarding" in str(s)
    assert "an iterator that has ended" in str(s)


def test_several_iterators_are_mentioned():
    stats = new_stats()
    loop(stats, 3)
    s = stats.snapshot(gauges(START + S, iterators=2))
    assert "2 iterators" in str(s)
    assert "2 iterators" in s._repr_html_()


def placed(begin=0, pin=0, upload=(0, 0), needed=0, nbytes=0, memory="registered"):
    return Placed("cuda:0", memory, begin * MS, (begin + pin) * MS, *(t * MS for t in upload), needed * MS, nbytes)


def test_upload_stats_have_memory_throughput_and_hidden_share():
    records = [
        record(0, placed=placed(1, 2, (10, 14), needed=20, nbytes=8_000_000)),  # done before it was needed
        record(0, placed=placed(1, 0, (20, 24), needed=23, nbytes=8_000_000)),  # 1 ms too late
        record(0, placed=placed(1, 1, memory="copied")),  # the times of the device are unknown
        record(0),
    ]
    got = upload_stats(records)
    assert got.ways == (("registered", 2), ("copied", 1))
    assert (got.pin, got.copy, got.gb_per_second) == (1.0, 4.0, 2.0)
    assert got.hidden == pytest.approx(7 / 8)


def test_a_copy_that_began_after_it_was_needed_is_not_hidden():
    assert upload_stats([record(0, placed=placed(1, 0, (20, 24), needed=5, nbytes=1))]).hidden == 0


@pytest.mark.parametrize(
    ("begin", "upload", "step", "explained"),
    [
        (100, (100, 108), 5, 8),  # it was started when it was due
        (90, (90, 98), 5, 3),  # during a step that is shorter
        (90, (90, 98), 20, 0),  # during a step that is longer
        (90, (0, 0), 20, 10),  # the device has not told
    ],
)
def test_an_upload_explains_no_longer_wait_than_it_takes_beyond_a_step(begin, upload, step, explained):
    r = record(0, placed=placed(begin, 0, upload, nbytes=1))
    r = r._replace(requested=100 * MS, delivered=110 * MS, returned=(110 + step) * MS)
    assert placing_ns(r) == explained * MS


def test_without_uploads_there_are_no_upload_stats():
    assert upload_stats([record(0)]) is None
    got = upload_stats([record(0, placed=placed(1, 3, memory="copied"))])
    assert (got.pin, got.copy, got.gb_per_second, got.hidden) == (3.0, None, None, None)


def test_the_start_of_workers_counts_for_the_epoch_that_waited_for_it():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, 20, 2))
    stats.update(WorkerReady(START + 2 * S, 0, 1000, 2 * S))
    stats.update(WorkerReady(START + 3 * S, 1, 1001, 3 * S))
    now = START
    for index in range(20):
        batch = record(now, index=index, worker=index % 2, wait=3100 * MS if not index else MS)
        stats.update(batch)
        now = batch.returned
    stats.update(EpochEnded(now, 0, 20, "exhausted"))
    s = stats.snapshot(gauges(now, state="idle"))
    assert s.cause == "startup"
    assert "The first batch came after 3.1 s, including 3.0 s to start the workers" in s.verdict
    now = loop(stats, 20, begin=now + S, epoch=1, cycle=lambda index: {"wait": 3100 * MS} if not index else {})
    s = stats.snapshot(gauges(now))
    assert s.epoch_verdict.cause == "startup"
    assert "to start" not in s.epoch_verdict.sentence, "these workers ran already"


def test_the_last_seconds_of_a_loader_that_keeps_up_may_contain_the_first_batches_of_its_workers():
    stats = new_stats()
    now = loop(stats, 40, cycle=lambda i: {"worker": i % 4, "wait": 100 * MS if i < 4 else 0, "step": 40 * MS})
    s = stats.snapshot(gauges(now, *map(gauge, range(4))))
    assert s.wait_share == pytest.approx(0.3 / 1.86, abs=0.01)
    assert (s.now_verdict.cause, s.now_verdict.also) == ("consumer", "startup")
    assert "start-up, with 100 ms until the first batch" in s.verdict
    stats.update(EpochEnded(now, 0, 40, "exhausted"))
    assert stats.snapshot(gauges(now, *map(gauge, range(4)))).now_verdict.cause == "consumer"


def test_an_epoch_that_was_looked_at_before_its_first_batch_has_a_verdict_right_after_it():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, 100, 1))
    early = stats.snapshot(gauges(START + 2 * S, gauge(), waiting_since=START, waiting_for=0))
    assert early.epoch_verdict.cause == "unknown"
    now = START
    for index in range(20):
        batch = record(now, index=index, wait=5 * MS if index else 2050 * MS)
        stats.update(batch)
        now = batch.returned
    assert now < START + 3 * S
    assert stats.snapshot(gauges(now, gauge())).epoch_verdict.cause == "startup"


def test_nothing_is_compared_with_a_usual_batch_before_one_is_known():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, 10, 2))
    hung = gauge(1, state="fetching", batch=1, since=START)
    s = stats.snapshot(gauges(START + 30 * S, gauge(0), hung, waiting_since=START, waiting_for=0, reordering=1))
    assert (s.cause, s.restart) == ("starting", ())
    assert "usually" not in s.verdict


@pytest.mark.parametrize(("lasts", "stuck"), [(2.7, False), (9.0, False), (11.0, True)])
def test_the_first_batches_of_an_epoch_may_take_ten_seconds(lasts, stuck):
    stats = new_stats()
    now = loop(stats, 50, make=2 * MS)
    stats.update(EpochEnded(now, 0, 50, "exhausted"))
    stats.update(EpochStarted(now, 1, 100, 2))
    later = now + int(lasts * S)
    busy = gauge(0, state="fetching", batch=0, since=now), gauge(1)
    s = stats.snapshot(gauges(later, *busy, epoch=1, waiting_since=now, waiting_for=0))
    assert s.workers[0].stuck is stuck
    assert ("usually takes 2.00 ms" in s.verdict) is stuck


def test_a_batch_of_an_earlier_iterator_is_not_what_a_new_one_starts_with():
    stats = new_stats()
    now = loop(stats, 50, make=2 * MS)
    stats.update(EpochStarted(now, 1, 20, 2))
    old = gauge(0, state="fetching", batch=7, since=now - 5 * S, left=True), gauge(1)
    _cause, text = verdict(stats, gauges(now + 19 * MS, *old, epoch=1, waiting_since=now, waiting_for=0))
    assert text == "Starting up for < 0.1 s: no batch yet."


def test_the_verdict_about_an_epoch_that_has_ended_does_not_change():
    stats = new_stats()
    now = loop(stats, 50, wait=9 * MS, make=18 * MS)
    stats.update(EpochEnded(now, 0, 50, "exhausted"))
    first = verdict(stats, gauges(now, *pair(), state="idle"))
    assert verdict(stats, gauges(now + 3600 * S, state="idle")) == first
    assert verdict(stats, gauges(now + 7200 * S, gauge(0), state="closed"))[0] == first[0]


def test_a_loop_that_an_error_stopped_names_the_sample():
    stats = new_stats()
    now = loop(stats, 10)
    stats.update(BatchFailed(now, 0, 10, 1, 1234, "ValueError: image is truncated"))
    stats.update(LoopStopped(now + 90 * MS, 0, 10, "ValueError: image is truncated", interrupted=False))
    assert "sample 1234 of batch 10 raised ValueError: image is truncated" in verdict(stats, gauges(now + S))[1]
