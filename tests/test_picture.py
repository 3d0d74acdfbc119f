"""All that is shown of one snapshot agrees: the dashboard's panels, the text form, and the line of the progress bar."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_agreement import looks, runs
from test_metrics import MS, START, S, gauge, gauges, loop, new_stats, pair

from nbloader import DataLoader
from nbloader._util.format import age, duration, percent, plural
from nbloader.dashboard.panels.base import Frame
from nbloader.dashboard.panels.controls import Controls
from nbloader.dashboard.panels.path import describe
from nbloader.dashboard.panels.summary import Summary
from nbloader.dashboard.panels.workers import Workers
from nbloader.diagnose.causes import BY_NAME
from nbloader.diagnose.outlook import Present, by_settings, changes, outlook
from nbloader.diagnose.tune import GAIN, Measurement, Setting, Trial, outcome
from nbloader.diagnose.what_if import Prediction
from nbloader.events import (
    BatchFailed,
    EpochEnded,
    EpochStarted,
    LoaderClosed,
    LoopStopped,
    SettingTried,
    WorkerDied,
    WorkerLeaving,
    WorkersResized,
)
from nbloader.events.gauges import FetchProgress, Gauges, ProducedBatch
from nbloader.metrics.aggregator import Aggregator
from nbloader.metrics.snapshot import Snapshot
from nbloader.report import render

pytestmark = pytest.mark.unit

BUSY = {"state": "fetching", "sample": 7}
ADVICE = re.compile(
    r"restart(?!s)|stuck|usually takes|use more|use a larger|delays the loop|is the bottleneck|starved|full:",
    re.IGNORECASE,
)


def texts(s: Snapshot) -> list[str]:
    """Every text that the panels show of a snapshot, and the lines of its text form."""
    frame = Frame(s, num_workers=len(s.workers), prefetch_factor=2)
    summary = Summary().payload(frame)
    found = [summary["verdict"], summary["outlook"], summary["progress"]["text"]]
    found += [f"{t['label']}: {t['value']} {t['unit']} ({t['note']})" for t in summary["tiles"]]
    found += [f"{box.title}: {box.note} {box.alarm}" for box in describe(s).boxes]
    found += [" | ".join(row["cells"]) for row in Workers().news(frame)]
    return [text.replace("\N{NO-BREAK SPACE}", " ") for text in (*found, *str(s).splitlines())]


def tiles(s: Snapshot) -> dict[str, dict[str, Any]]:
    """The tiles by the first part of their label."""
    return {tile["label"].split(",")[0]: tile for tile in Summary().payload(Frame(s))["tiles"]}


def made(number: int, took: int, epoch: int = 0) -> ProducedBatch:
    """A batch that waits for an earlier one."""
    return ProducedBatch(epoch, number, 1, START, START + took, START + took, START + took, 0)


# ---- ages


def hang(*, first: bool, lasts: float, late: float, others: int = 4) -> Snapshot:
    """A worker hangs in the batch for which the loop waits.

    Args:
        first: Whether it is the first batch of the epoch.
        lasts: How long the loop has been waiting, seconds.
        late: How much later than the loop began to wait the worker began the batch, seconds; it may be negative.
        others: Number of batches that wait behind it.
    """
    stats = new_stats(cores=8)
    if first:
        stats.update(EpochStarted(START, 0, 100, 2))
        now, batch = START, 0
    else:
        now, batch = loop(stats, 40, wait=10 * MS, step=10 * MS), 40
    begun = now + round(late * S)
    busy = gauge(0, batch=batch, since=begun, **BUSY)
    produced = tuple(made(n, 20 * MS) for n in range(batch + 1, batch + 1 + others))
    return stats.snapshot(
        gauges(
            now + round(lasts * S), busy, gauge(1), waiting_since=now, waiting_for=batch, epoch=0, made=produced,
            reordering=len(produced), delivered=batch,
        )
    )  # fmt: skip


@settings(deadline=None)
@given(st.booleans(), st.floats(2.5, 90), st.floats(-0.45, 0.45), st.integers(0, 5))
def test_a_hang_has_one_age_in_a_picture(first: bool, lasts: float, late: float, others: int):
    s = hang(first=first, lasts=lasts, late=late, others=others)
    other = r"$^" if first else r"\(\d+ s so far\)|^Time +\d+ s"  # how long the epoch has lasted is another thing
    found = {shown for text in texts(s) for shown in re.findall(r"(?<![\d.])\d+ s\b", re.sub(other, "", text))}
    assert found == {age(s.workers[0].batch_age or 0.0)}, texts(s)


@given(st.floats(0, 5000))
def test_an_age_is_rounded_down_and_changes_slowly(seconds: float):
    text = age(seconds)
    if seconds >= 2:
        assert "." not in text
        assert text == age(int(seconds))
    else:
        assert text == "< 0.1 s" or float(text.removesuffix(" s")) <= round(seconds, 6)


# ---- nothing is advised before it is measured


times = st.integers(0, 40 * S)
present_workers = st.lists(
    st.tuples(
        st.sampled_from(["starting", "idle", "fetching", "collating", "sending", "dead"]),
        st.none() | st.integers(0, 3),
        times,
    ),
    max_size=4,
)


def at_the_start(stats: Aggregator, now: int, found: list[tuple[str, int | None, int]], **how: Any) -> Snapshot:
    """A snapshot of an epoch whose loop waits for the first batch."""
    stats.update(EpochStarted(START, 0, 20, len(found)))
    workers = [
        gauge(i, state=state, batch=batch, since=START + min(since, now))
        for i, (state, batch, since) in enumerate(found)
    ]
    return stats.snapshot(gauges(START + now, *workers, waiting_since=START, waiting_for=0, epoch=0, **how))


@settings(deadline=None)
@given(times, present_workers, st.integers(0, 9), st.sampled_from(["starting", "running"]))
def test_nothing_is_advised_before_a_batch_was_measured(now: int, found: Any, fetched: int, state: str):
    progress = FetchProgress(0, START, fetched, 16)
    s = at_the_start(new_stats(cores=8), now, found, fetching=(progress,), state=state)
    assert s.restart == ()
    assert s.stalled is None
    assert not any(w.stuck for w in s.workers)
    assert not by_settings(s)
    if now < S // 4:
        assert not [text for text in texts(s) if ADVICE.search(text)]
    assert not re.search(r"usually takes|restart", " ".join(texts(s)).replace("restarts", ""), re.IGNORECASE)


@settings(deadline=None)
@given(st.integers(1, 30), st.floats(0, 60))
def test_times_that_were_not_measured_are_no_usual_time(batches: int, waits: float):
    stats = new_stats(cores=8)
    now = loop(stats, batches, wait=MS, cycle=lambda _: {"fetch_begin": 0, "fetched": 0, "collated": 0})
    busy = gauge(0, batch=batches, since=now, **BUSY)
    s = stats.snapshot(gauges(now + round(waits * S), busy, waiting_since=now, waiting_for=batches, epoch=0))
    assert "0 us" not in s.verdict
    assert s.restart == ()
    assert s.stalled is None


def test_a_hang_in_the_first_batch_is_compared_with_the_batches_behind_it():
    early, late = hang(first=True, lasts=3, late=0.03), hang(first=True, lasts=11, late=0.03)
    assert (
        early.verdict == "Starting up for 2 s: no batch yet. Worker 0 has been processing batch 0, sample 7, for 2 s."
    )
    assert (early.eta, early.stalled, early.restart) == (None, None, ())
    assert "Worker 0 seems stuck: it has been processing batch 0" in late.verdict
    assert "A batch usually takes 20.0 ms" in late.verdict
    assert late.restart == (0,)
    assert (late.stalled, late.eta, late.first_batch_in) == (11, None, None)
    assert hang(first=True, lasts=60, late=0.03, others=0).restart == (), "nothing to compare it with"


def test_a_sample_that_hangs_ends_the_estimate_of_the_first_batch():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, 20, 1))
    busy = gauge(0, batch=0, since=START, **BUSY)

    def left(seconds: float, fetched: int) -> float | None:
        present = gauges(
            START + round(seconds * S), busy, waiting_since=START, waiting_for=0, epoch=0,
            fetching=(FetchProgress(0, START, fetched, 16),),
        )  # fmt: skip
        return stats.snapshot(present).first_batch_in

    assert left(1, 3) == pytest.approx(16 / 3.5 - 1)
    assert left(2, 3) is not None
    assert left(4, 3) is None
    assert left(5, 8) is not None, "it goes on"


def test_no_batch_yet_is_never_said_beside_a_batch_that_was_delivered():
    stats = new_stats()
    stats.update(EpochStarted(START, 0, 20, 2))
    for delivered in (1, 2, 5):  # the record of the last one has not come
        s = stats.snapshot(gauges(START + S, *pair(), waiting_since=START + S // 2, epoch=0, delivered=delivered))
        assert f"batch {delivered} of 20" in " ".join(texts(s))
        assert "no batch yet." not in s.verdict


# ---- suggestions


intervals = st.tuples(*[st.floats(0.2, 9) for _ in range(3)]).map(sorted)


@given(intervals, intervals, st.sampled_from(sorted(BY_NAME)))
def test_what_may_be_no_faster_is_not_suggested(workers: list[float], window: list[float], cause: str):
    def predict(changed: dict[str, int]) -> Prediction:
        low, speedup, high = workers if "num_workers" in changed else window
        return Prediction(change="", measured=10.0, speedup=speedup, low=low, high=high)

    found = outlook(changes(cause, Present(2, 2, 16), predict))
    for suggestion in found.suggestions:
        low, _speedup, _high = workers if suggestion.num_workers else window
        assert low > 1


@settings(max_examples=60, deadline=None)
@given(runs, st.lists(st.floats(0.0, 0.99), min_size=1, max_size=4))
def test_settings_are_suggested_only_beside_what_limits_the_loop(run: Any, moments: list[float]):
    for s in looks(run, moments):
        if by_settings(s):
            shown = s.epoch_verdict if s.state == "idle" else s.now_verdict
            assert s.cause == shown.cause
            assert "estart" not in s.verdict
            assert s.stalled is None


@pytest.mark.parametrize("cause", ["new", "closed", "paused", "starting", "idle", "worker", "stall", "consumer"])
def test_no_settings_are_suggested_beside_a_state(cause: str):
    s = hang(first=False, lasts=0.1, late=0.0)
    assert not by_settings(dataclasses.replace(s, cause=cause, restart=(1,) if cause == "worker" else ()))


# ---- numbers


gauge_counts = st.integers(0, 60)


@settings(deadline=None)
@given(gauge_counts, gauge_counts, gauge_counts, gauge_counts, st.sampled_from(["running", "paused", "idle"]))
def test_no_count_exceeds_what_it_is_a_part_of(in_flight: int, reordering: int, ready: int, window: int, state: str):
    stats = new_stats()
    now = loop(stats, 30)
    present: Gauges = gauges(
        now, *pair(), in_flight=in_flight, reordering=reordering, ready=ready, window=window, state=state, epoch=0
    )
    for text in texts(stats.snapshot(present)):
        for part, whole in re.findall(r"\b([\d,]+) of ([\d,]+)\b", text):
            assert int(part.replace(",", "")) <= int(whole.replace(",", "")), text


@given(st.integers(1, 16), st.integers(1, 16))
def test_the_prefetch_slider_and_the_workers_slider_make_the_window(workers: int, ahead: int):
    s = dataclasses.replace(hang(first=False, lasts=0.1, late=0.0), window=workers * ahead)
    payload = Controls().payload(Frame(s, num_workers=workers, prefetch_factor=2))
    assert payload["workers"] * payload["prefetch"] == s.window
    assert f"window {s.window}" in " ".join(texts(s))


@settings(max_examples=60, deadline=None)
@given(runs, st.lists(st.floats(0.0, 0.99), min_size=1, max_size=4))
def test_the_text_form_has_the_figures_of_the_tiles(run: Any, moments: list[float]):
    for s in looks(run, moments):
        found, text = tiles(s), str(s)
        (rate,) = re.findall(r"^Rate +(.*)$", text, re.MULTILINE)
        (waits,) = re.findall(r"^Loop +(.*)$", text, re.MULTILINE)
        throughput = found["Throughput"]
        expected = (
            "no batch" if throughput["value"] == "\N{EN DASH}" or s.stalled else f"{throughput['value']} batches/s"
        )
        assert rate.startswith(expected)
        assert found["Loop waiting"]["value"] in waits
        assert s.stalled is not None or render.span(s) in rate
        for produced in re.findall(r"produces? ([\d.,]+) batches/s", s.verdict):
            assert throughput["value"] == produced, s.verdict
        assert found["Loop waiting"]["label"].endswith(render.span(s))
        time = found.get("Time left", found.get("Epoch duration"))
        assert time is not None
        assert time["value"] == "\N{EN DASH}" or time["value"] in text


@settings(max_examples=60, deadline=None)
@given(runs, st.lists(st.floats(0.05, 0.99), min_size=2, max_size=8))
def test_what_is_said_of_the_epoch_has_the_numbers_of_the_snapshot(run: Any, moments: list[float]):
    for s in looks(run, moments):
        waited = re.search(r"waited for (.*?) of the epoch's (.*?)[,;.] ", f"{s.epoch_verdict.evidence} ")
        if waited is not None and s.epoch_verdict.cause != "interpreter_lock":
            assert waited[1] == percent(s.wait_share_epoch)
            assert waited[2] == duration(s.elapsed)


# ---- an epoch that has ended


ENDINGS = st.lists(st.sampled_from(["died", "leaving", "resized", "tried", "closed"]), max_size=5)


@settings(deadline=None)
@given(runs, st.sampled_from(["exhausted", "error", "abandoned"]), ENDINGS, st.integers(0, 99))
def test_what_is_said_of_an_epoch_that_has_ended_stays(run: Any, reason: str, events: list[str], window: int):
    stats = new_stats(cores=8)
    records = run.records()
    stats.update(EpochStarted(START, 0, run.batches, len(run.makes)))
    for r in records:
        stats.update(r)
    end = records[-1].returned
    stats.update(EpochEnded(end, 0, run.batches, reason))

    def said(now: int, **how: Any) -> list[str]:
        s = stats.snapshot(gauges(now, **{"state": "idle", "in_flight": 0} | how))
        verdicts = (s.verdict, s.now_verdict.sentence, s.epoch_verdict.sentence, render.other_verdict(s))
        return [*verdicts, render.so_far(s), *(t["value"] for t in Summary().payload(Frame(s))["tiles"])]

    first = said(end)
    for i, name in enumerate(events):
        now = end + (i + 1) * S
        happened = {
            "died": WorkerDied(now, 0, 1000, 0, "ended with the epoch", True, (), ""),
            "leaving": WorkerLeaving(now, 0, 1000),
            "resized": WorkersResized(now, 2, 8),
            "tried": SettingTried(now, 2, 4, 10.0, True),
            "closed": LoaderClosed(now),
        }[name]
        stats.update(happened)
        assert said(now, window=window) == first


def test_an_epoch_that_has_ended_is_not_running():
    """The engine may notice a moment later that the loop was dropped."""
    stats = new_stats()
    now = loop(stats, 9)
    stats.update(EpochEnded(now, 0, 9, "abandoned"))
    late = stats.snapshot(gauges(now, *pair(), state="running", epoch=0, ready=4))
    assert late.state == "idle"
    assert late.verdict.startswith("Epoch 0 was abandoned")
    older = stats.snapshot(gauges(now, *pair(), state="running", epoch=-1, iterators=1))
    assert older.state == "running", "another iterator runs"


def test_one_batch_is_not_batches():
    stats = new_stats()
    now = loop(stats, 1)
    stats.update(EpochEnded(now, 0, 1, "exhausted"))
    assert stats.snapshot(gauges(now, state="idle")).verdict.startswith(f"Epoch 0 ended after {plural(1, 'batch')} in")


@pytest.mark.parametrize(
    ("failed", "place"),
    [
        (BatchFailed(0, 0, 9, 1, 77, "ValueError: bad"), "sample 77 of batch 9 raised"),
        (BatchFailed(0, 0, 9, 1, None, "ValueError: bad", "collate"), "the collate function of batch 9 raised"),
        (
            BatchFailed(0, 0, 9, 1, None, "ValueError: bad", "fetch", (72, 73, 74)),
            "one of the samples 72, 73, 74, ... of batch 9 raised",
        ),
        (BatchFailed(0, 0, 9, 1, None, "ValueError: bad", "fetch", (72,)), "sample 72 of batch 9 raised"),
        (BatchFailed(0, 0, 4, 1, 33, "ValueError: bad"), ": batch 9 raised"),  # that one was caught, and others came
    ],
)
def test_a_loop_that_stopped_names_what_failed(failed: BatchFailed, place: str):
    stats = new_stats()
    now = loop(stats, 9)
    stats.update(failed)
    stats.update(LoopStopped(now, 0, 9, "ValueError: bad", interrupted=False))
    assert place in stats.snapshot(gauges(now, *pair(), state="running", epoch=0)).verdict


class Batched:
    """A dataset that fetches whole batches, one of which fails."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        if 17 in indices:
            raise OSError("truncated file")
        return indices


@pytest.mark.parametrize("how", [{}, {"num_workers": 1, "workers": "thread"}])
def test_a_dataset_that_fetches_whole_batches_names_the_samples(how: dict[str, Any]):
    with DataLoader(Batched(), 4, **how) as loader:
        with pytest.raises(OSError, match="truncated"):
            list(loader)
        assert "one of the samples 16, 17, 18, 19, ... of batch 4" in loader.stats().verdict


# ---- the tuner and predictions


measurements = st.builds(
    Measurement, st.floats(0.1, 1e4), st.floats(0, 0.5), st.floats(0, 1), st.integers(8, 99), st.floats(0.5, 9)
)


@given(st.lists(measurements, min_size=1, max_size=7), st.integers(0, 6))
def test_the_words_of_the_tuner_agree_with_its_rates(found: list[Measurement], best: int):
    trials = [Trial(Setting(i + 1, None), m, kept=i == 0) for i, m in enumerate(found)]
    chosen = trials[min(best, len(trials) - 1)]
    words = [outcome(trial, chosen, trials) for trial in trials]
    before = trials[0].measured.rate
    for trial, word in zip(trials, words, strict=True):
        rate = trial.measured.rate
        if word == "faster":
            assert before * (1 + GAIN) < rate <= chosen.measured.rate
        elif word == "slower":
            assert rate < before
        elif word == "best":
            assert rate >= before
    assert words.count("best") <= 1


def test_a_prediction_is_a_table():
    found = Prediction(change="num_workers=4", measured=90.0, speedup=2.0, low=1.8, high=2.2)
    assert repr(found).splitlines() == [
        "               batches/s         gain",
        "now            90.0",
        "num_workers=4  180 (162 to 198)  2.00x (1.80 to 2.20)",
    ]
    for cell in ("num_workers=4", "180 (162 to 198)", "2.00x (1.80 to 2.20)"):
        assert f"<td>{cell}</td>" in found._repr_html_()
    unknown = Prediction(change="num_workers=4", measured=0.0, reason="20 batches are needed")
    assert "cannot tell: 20 batches are needed" in repr(unknown)
    assert "not measured" in repr(unknown)
