"""No sentence of a verdict contradicts its own numbers, another sentence, a tile, or a prediction."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_diagnose import any_evidence
from test_metrics import START, gauge, gauges, new_stats, record

from nbloader._util.format import percent
from nbloader.dashboard.panels.base import Frame
from nbloader.dashboard.panels.path import describe
from nbloader.dashboard.panels.summary import Summary
from nbloader.diagnose.findings import LARGE_START
from nbloader.diagnose.outlook import Present, changes, outlook
from nbloader.diagnose.parts import INNER, SMALL_WAIT, Part, divide
from nbloader.diagnose.verdict import verdict
from nbloader.diagnose.what_if import Prediction
from nbloader.diagnose.work import split_work
from nbloader.events import BatchRecord, EpochEnded, EpochStarted
from nbloader.metrics.evidence import Evidence, Place
from nbloader.metrics.snapshot import Snapshot, Verdict
from nbloader.metrics.span import SpanOptions, measure, thin_out
from nbloader.report import render

pytestmark = pytest.mark.unit

MS, S = 1_000_000, 1_000_000_000
MOST = SMALL_WAIT + LARGE_START
"""A loop that waits for a larger share of its time is not the bottleneck, whatever it waits for."""
LOOP = ("consumer", "consumer_python")


def shares(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(\d+)%", text)]


def assert_consistent(v: Verdict, e: Evidence) -> None:
    """A sentence agrees with the numbers in it, with the evidence, and with itself."""
    text = v.sentence
    waited = re.search(r"waited for ((?:< )?\d+%)", text)
    if waited is not None:
        assert waited[1] == percent(e.wait_share), text
    if v.cause in LOOP:
        assert e.wait_share < MOST, text
        assert "Your loop is the bottleneck" in text
    assert "keeps 0" not in text
    rates = re.search(r"([\d,.]+) batches/s, but the loop could consume (over )?([\d,.]+)", text)
    if rates is not None:
        produced, could = (float(x.replace(",", "").rstrip(".")) for x in (rates[1], rates[3]))
        assert could >= 0.99 * produced or rates[2], text
    cores = re.search(r"use only ([\d.,]+) of (\d+) core", text)
    if cores is not None:
        assert float(cores[1].rstrip(".,")) < int(cores[2])
    busy = re.search(r"busy for only (\d+)%", text)
    assert busy is None or int(busy[1]) <= 70
    split = re.search(r"on each batch, (.*?CPU.*?)\.(?: |$)", text)
    assert split is None or sum(shares(split[1])) <= 101, text
    assert not re.search(r"(?<!\d[.,])\b1 (?:batches|workers|cores|threads|samples|looks|others)\b(?!/)", text), text
    assert "its device" not in text
    # what helps, and what does not
    remedy = text.partition(v.evidence[:20])[0]
    denies_workers = bool(re.search(r"[Mm]ore (?:workers|threads)[^.]* not help|A faster loader would not help", text))
    denies_window = bool(re.search(r"larger prefetch window[^.]* not help|A faster loader would not help", text))
    assert denies_workers == (v.more_workers is False), text
    assert denies_window == (v.larger_window is False), text
    if v.more_workers:
        assert re.search(r"more workers|num_workers", remedy), text
    assert not (denies_workers and re.search(r"more workers|num_workers", remedy)), text
    assert not (denies_window and "window of" in text), text
    assert v.larger_window is not True or "larger prefetch_factor" in remedy
    if v.cause != "unknown":
        more = remedy.count(". Or ") + (v.cause == "threads")  # which has a call for each kind of threads
        assert remedy.count(". ") <= 1 + more, remedy
        assert re.match(r"[A-Z][^.]+", remedy), "it begins with what to do"
    assert not re.search(r"\bhelps?\b", v.evidence), "what to do is not part of the evidence"


@settings(max_examples=300)
@given(any_evidence, st.sampled_from(["", "cuda:0"]), st.floats(0, 1))
def test_no_sentence_contradicts_its_own_numbers(e: Evidence, device: str, first_wait: float):
    e = dataclasses.replace(e, device=device, first_wait=first_wait)
    assert_consistent(verdict(e), e)


@settings(max_examples=300)
@given(any_evidence)
def test_production_is_divided_without_rest(e: Evidence):
    for work in split_work(e):
        assert min(work) >= 0
        assert sum(work) == pytest.approx(1)


@settings(max_examples=300)
@given(any_evidence)
def test_the_parts_within_a_part_of_the_time_add_up_to_it(e: Evidence):
    found = divide(e)
    assert found.keys() == set(Part)
    for part, inner in INNER.items():
        assert sum(found[p] for p in inner) == pytest.approx(found[part])
        assert min(found[p] for p in inner) >= -1e-12, "but for rounding"


# ---- recorded runs


@dataclass(frozen=True)
class Run:
    """A loader whose workers and loop always take the same time."""

    makes: tuple[int, ...]
    """Time of each worker for a batch, ms."""
    step: int
    """Of the loop, ms."""
    ahead: int
    """Batches per worker that are requested ahead."""
    startup: int
    """Until the workers are ready, ms."""
    batches: int
    stall: int
    """Number of a batch that takes 2 s longer; -1 for none."""
    drawing: int
    """Time of the sampler for a batch, ms."""

    def records(self) -> list[BatchRecord]:
        """Simulate the run."""
        count = len(self.makes)
        free = [START + self.startup * MS] * count
        requested, in_order, found = START, START, []
        collated: list[int] = []
        for index in range(self.batches):
            worker = index % count
            earlier = index - self.ahead * count
            dispatched = START if earlier < 0 else found[earlier].delivered
            begin = max(free[worker], dispatched) + MS // 100
            make = self.makes[worker] * MS + (2 * S if index == self.stall else 0)
            free[worker] = begin + make
            collated.append(free[worker])
            in_order = max(in_order, free[worker])
            delivered = max(requested + self.drawing * MS, in_order) + MS // 20
            found.append(
                record(
                    requested, step=self.step * MS, index=index, worker=worker, dispatched=dispatched,
                    fetch_begin=begin, fetched=begin + make * 9 // 10, collated=free[worker],
                    received=free[worker] + MS // 100, in_order=in_order, delivered=delivered,
                    returned=delivered + self.step * MS, fetch_cpu=make // 20, collate_cpu=0,
                    in_flight=min(self.ahead * count, self.batches - index), sampling=self.drawing * MS,
                    slowest_ns=make // 20,
                )
            )  # fmt: skip
            requested = found[-1].returned
        return found


runs = st.builds(
    Run,
    makes=st.integers(1, 8).flatmap(lambda n: st.sampled_from([(40,) * n, (100,) * n, (40,) * (n - 1) + (120,)])),
    step=st.sampled_from([0, 2, 10, 30, 80]),
    ahead=st.integers(1, 3),
    startup=st.sampled_from([0, 50, 800]),
    batches=st.sampled_from([4, 30, 150, 600]),
    stall=st.sampled_from([-1, 20]),
    drawing=st.sampled_from([0, 0, 5]),
)


def looks(run: Run, moments: list[float]) -> list[Snapshot]:
    """Snapshots while the run goes on, and one after its end."""
    records = run.records()
    stats, found = new_stats(cores=8), []
    stats.update(EpochStarted(START, 0, run.batches, len(run.makes)))
    workers = [gauge(i, state="fetching") for i in range(len(run.makes))]
    end = records[-1].returned
    left = list(records)
    for now in sorted(round(START + moment * (end - START)) for moment in moments):
        while left and left[0].returned <= now:
            stats.update(left.pop(0))
        present: dict[str, Any] = {"window": run.ahead * len(run.makes), "epoch": 0}
        if left and left[0].delivered > now:
            present |= {"waiting_since": left[0].requested, "waiting_for": left[0].index}
            present["delivered"] = left[0].index
        elif left:
            present |= {"at": left[0].index, "at_since": left[0].delivered, "delivered": left[0].index + 1}
        ready = sum(r.in_order <= now < r.delivered for r in left)
        found.append(stats.snapshot(gauges(now, *workers, **present, ready=ready)))
    for r in left:
        stats.update(r)
    stats.update(EpochEnded(end, 0, run.batches, "exhausted"))
    found.append(stats.snapshot(gauges(end + S, *workers, state="idle")))
    return found


def assert_agree(s: Snapshot) -> None:
    """The verdicts, the tiles, the path and the predictions of a snapshot agree about who waits."""
    ended = s.state == "idle"
    spans = ((s.epoch_verdict, s.wait_share_epoch),) if ended else ((s.now_verdict, s.wait_share),)
    for v, share in spans:
        if v.cause in LOOP:
            assert share < MOST, v.sentence
        elif v.cause not in ("unknown", "", "interpreter_lock"):
            assert share >= SMALL_WAIT, v.sentence
        said = re.search(r"waited for ((?:< )?\d+%)", v.sentence)
        tile = next(tile for tile in Summary().payload(Frame(s)).get("tiles", ()) if "Loop waiting" in tile["label"])
        assert said is None or said[1] == percent(share) == tile["value"], (v.sentence, tile)
    if s.epoch_verdict.cause in LOOP:
        waited = [int(x) for x in re.findall(r"waited for (\d+)%", s.epoch_verdict.sentence)]
        assert all(x < 100 * MOST for x in waited)
    ready = next((box for box in describe(s).boxes if box.id == "ready"), None)
    if ready is not None and "your loop is slower" in ready.alarm:
        assert s.wait_share < SMALL_WAIT or s.cause == "upload"
    other = render.other_verdict(s)
    assert not re.search(r"\bhelps?\b", other), "only one sentence says what to do"

    def predict(changed: dict[str, int]) -> Prediction:
        return Prediction(change="", measured=10.0, speedup=2.0, low=1.9, high=2.1)

    shown = s.epoch_verdict if ended else s.now_verdict
    predicted = outlook(changes(s.epoch_verdict.cause, Present(2, 2, 16), predict), shown)
    for suggestion in predicted.suggestions:
        denied = shown.more_workers if suggestion.num_workers else shown.larger_window
        assert denied is not False, (shown.sentence, suggestion)


@settings(max_examples=60, deadline=None)
@given(runs, st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4))
def test_now_the_epoch_the_tiles_and_the_predictions_agree_about_who_waits(run: Run, moments: list[float]):
    for s in looks(run, moments):
        assert_agree(s)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
def test_workers_in_step_are_the_bottleneck_at_every_moment(workers: int):
    run = Run((40,) * workers, step=1, ahead=2, startup=0, batches=800, stall=-1, drawing=0)
    for s in looks(run, [i / 16 for i in range(2, 16)]):
        assert s.now_verdict.cause == s.epoch_verdict.cause == "workers_wait", (s.now_verdict, s.epoch_verdict)


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_one_slow_worker_is_found_at_every_moment(workers: int):
    run = Run((20,) * (workers - 1) + (120,), step=1, ahead=2, startup=0, batches=1200, stall=-1, drawing=0)
    for s in looks(run, [i / 8 for i in range(2, 8)]):
        assert s.now_verdict.cause == s.epoch_verdict.cause == "worker", (s.now_verdict, s.epoch_verdict)


@given(runs, st.integers(0, 500), st.booleans(), st.integers(0, 3000), st.floats(1, 50))
@settings(deadline=None, max_examples=60)
def test_the_parts_of_the_wait_add_up_to_it(run: Run, skipped: int, opening: bool, waiting: int, one_in: float):
    records = run.records()
    kept = thin_out(records[min(skipped, len(records) - 2) :], one_in) or records
    seconds = (records[-1].returned - records[0].requested) / 1e9
    share = sum(r.waited for r in records) / seconds / 1e9
    options = SpanOptions(
        span="epoch", seconds=seconds, wait_share=min(1.0, share), batches=len(records), workers=len(run.makes),
        place=Place.PROCESSES, cores=4, window=4, opening=records[:32] if opening else (), worst=records[-4:],
        waiting=waiting * MS, waiting_for=len(records),
    )  # fmt: skip
    e = measure(kept, options)
    parts = (e.first_wait, e.stall_wait, e.sampler_wait, e.placing_wait, e.opening_wait, e.producing_wait)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(e.wait_share, abs=1e-6)
    assert e.startup_wait <= e.first_wait


def test_a_thinned_out_sample_has_no_rhythm():
    records = [record(START, index=index) for index in range(10_000)]
    for one_in in (2, 4, 16, 61.3):
        found = thin_out(records, one_in)
        assert len(found) == pytest.approx(10_000 / one_in, rel=0.25)
        assert set(found) <= set(thin_out(records, one_in / 2)), "a larger sample contains it"
        for rhythm in range(2, 33):
            expected = len(found) / rhythm
            assert sum(r.index % rhythm == 0 for r in found) == pytest.approx(expected, abs=4 * expected**0.5)


def test_a_loop_that_waits_for_a_reloaded_dataset_is_not_the_bottleneck():
    e = measure((), SpanOptions(span="epoch", seconds=5.0, wait_share=0.9, batches=80, workers=2, place=Place.PROCESSES,
                                cores=4, window=4))  # fmt: skip
    assert verdict(e).cause == "unknown"
    assert_consistent(verdict(e), e)


def after(run: Run, batches: int) -> Snapshot:
    """A snapshot after the loop has left an epoch."""
    records = run.records()[:batches]
    stats, workers, end = new_stats(cores=8), len(run.makes), records[-1].returned
    stats.update(EpochStarted(START, 0, run.batches, workers))
    for one in records:
        stats.update(one)
    stats.update(EpochEnded(end, 0, batches, "exhausted" if batches == run.batches else "abandoned"))
    present: dict[str, Any] = {"epoch": 0, "window": run.ahead * workers}
    return stats.snapshot(gauges(end + 1, *map(gauge, range(workers)), **present))


@settings(max_examples=100)
@given(runs, st.integers(6, 40), st.sampled_from([0, 800, 3000]))
def test_an_epoch_that_is_left_early_has_a_cause_of_the_whole_epoch(run: Run, left: int, startup: int):
    makes = (run.makes[0],) * max(1, min(len(run.makes), left // 3))  # few batches cannot tell that one worker is slow
    run = dataclasses.replace(run, makes=makes, startup=startup, batches=600, stall=-1)
    early, whole = after(run, left), after(run, run.batches)
    assert early.epoch_verdict.cause in (whole.epoch_verdict.cause, whole.epoch_verdict.also)
    assert ("Start-up took" in early.verdict) <= (startup > 0)
