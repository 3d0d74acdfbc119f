"""Predictions of the rate with other settings: the model of the loader, and that it abstains where it does not fit."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import light
import pytest

import nbloader
from nbloader import DataLoader
from nbloader.cache.hit_cost import hit_seconds
from nbloader.diagnose.what_if import CostChange, Job, Prediction, Settings, costs_of, predict, replay, settings_of
from nbloader.diagnose.without_line import LineTime, gain_without
from nbloader.events import BatchRecord, NodeTransfer
from nbloader.metrics.evidence import Evidence, MachineLoad, Place
from nbloader.metrics.usage import Usage
from nbloader.scheduler import prefetch

MS = 1_000_000
S = 1000 * MS


def settings(workers: int, window: int | None = None, cores: float = 8, **more: Any) -> Settings:
    window = 2 * workers if window is None else window
    return Settings(workers=workers, window=window, cores=cores, **({"blocked": 32 * window} | more))


def per_batch(jobs: list[Job], now: Settings) -> float:
    finished = replay(jobs, now)
    return (finished[-1] - finished[20]) / (len(finished) - 21)


WAITING, COMPUTING = [Job(0.1, 0, 0.01)] * 100, [Job(0, 0.1, 0.01)] * 100


@pytest.mark.unit
@pytest.mark.parametrize(
    ("jobs", "now", "seconds"),
    [
        (WAITING, settings(0), 0.11),
        (WAITING, settings(1), 0.1),
        (WAITING, settings(4), 0.025),
        (WAITING, settings(20), 0.01),  # the loop limits
        (WAITING, settings(4, cores=1), 0.025),  # waiting needs no core
        (WAITING, settings(4, window=1), 0.1),
        (WAITING, settings(4, window=2), 0.05),
        (COMPUTING, settings(1, cores=2), 0.1),
        (COMPUTING, settings(2, cores=2), 0.05),
        (COMPUTING, settings(6, cores=2), 0.05),  # no core is free
        ([Job(0.05, 0.05, 0.001)] * 100, settings(2, cores=1), 0.05),
        ([Job(0.05, 0.05, 0.001)] * 100, settings(8, cores=1), 0.05),
        ([Job(1.0 if i % 10 == 5 else 0.1, 0, 0.001) for i in range(200)], settings(2), 0.095),
    ],
)
def test_the_model(jobs: list[Job], now: Settings, seconds: float):
    assert per_batch(jobs, now) == pytest.approx(seconds, rel=0.06)


@pytest.mark.unit
def test_the_loop_and_the_workers_share_the_cores():
    jobs = [Job(0, 0.1, 0.1, 0.1)] * 100
    assert per_batch(jobs, settings(1, cores=2)) == pytest.approx(0.1, rel=0.02)
    assert per_batch(jobs, settings(1, cores=1)) == pytest.approx(0.2, rel=0.02)
    assert per_batch([job._replace(step_cpu=0) for job in jobs], settings(1, cores=1)) == pytest.approx(0.1, rel=0.02)


@pytest.mark.unit
def test_workers_of_other_machines_share_the_cores_there():
    full = settings(8, cores=1, elsewhere=(MachineLoad(8, 2),))
    assert per_batch(COMPUTING, full) == pytest.approx(0.05, rel=0.06)
    assert per_batch(COMPUTING, full.unlimited) == pytest.approx(0.0125, rel=0.06)
    mixed = settings(4, 16, cores=1, elsewhere=(MachineLoad(2, 2),))
    assert per_batch(COMPUTING, mixed) == pytest.approx(0.1 / 3, rel=0.06)
    assert full.with_workers(4).elsewhere == (MachineLoad(4, 2),)
    more = settings(6, elsewhere=(MachineLoad(2, 4), MachineLoad(1, 2))).with_workers(12)
    assert (more.machines[0].workers, *more.elsewhere) == (6, MachineLoad(4, 4), MachineLoad(2, 2))
    assert settings(0).with_workers(3) == settings(3, window=0)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("job", "cores", "sending", "interval"),
    [
        (Job(0.1, 0.0, 0.005), 2, 0.001, (2, 2)),  # waiting needs no core
        (Job(0.0, 0.1, 0.005), 8, 0.001, (2, 2)),  # there are cores for all
        (Job(0.0, 0.1, 0.005), 2, 0.001, None),  # only if others are free
        (Job(0.1, 0.0, 0.005), 2, 0.1, None),  # the node may not be able to send more
        (Job(0.1, 0.0, 0.005), 2, 0.035, (1.43, 2)),
    ],
    ids=["waiting", "cores", "no cores", "no room", "some room"],
)
def test_more_workers_on_other_machines_are_predicted_if_their_cores_and_nodes_hardly_matter(
    job: Job, cores: int, sending: float, interval: tuple[float, float] | None
):
    now = settings(2, 8, cores=1, elsewhere=(MachineLoad(2, cores),), nodes=1)
    records = [
        r._replace(transfer=NodeTransfer("node", r.delivered - round(sending * 1e9), r.delivered, 10))
        for r in recorded([job] * 200, now)
    ]
    found = predict(records, Evidence(), now, now.with_workers(4), "workers_compute", "num_workers=4")
    if interval is None:
        assert found.speedup is None
        assert "how many cores of the other machines are free" in found.reason
    else:
        assert (found.low, found.high) == pytest.approx(interval, rel=0.06)


@pytest.mark.unit
def test_batches_that_a_node_sends_together_share_the_time():
    now = settings(2, 8, elsewhere=(MachineLoad(2, 8),), nodes=1)
    together = []
    for r in recorded([Job(0.1, 0.0, 0.001)] * 200, now):  # in groups of ten, each for 0.1 s
        begin = 10**9 + r.index // 10 * S
        together.append(r._replace(transfer=NodeTransfer("node", begin, begin + S // 10, 10)))
    found = predict(together, Evidence(), now, now.with_workers(4), "workers_wait", "num_workers=4")
    assert found.low == pytest.approx(2, rel=0.06)


@pytest.mark.unit
def test_any_order_does_not_wait_for_a_slow_batch():
    jobs = [Job(1.0 if i % 10 == 5 else 0.1, 0, 0.02) for i in range(200)]
    assert per_batch(jobs, settings(2, window=2, in_order=False)) < 0.95 * per_batch(jobs, settings(2, window=2))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("speedup", "low", "gain", "rate"),
    [
        (9.9, 9.0, "9.90x as fast (9.00 to 11.00)", "49.5 batches/s"),
        (58.8, 52.1, "over 10x as fast", "over 50.0 batches/s"),
        (12.4, 9.1, "over 9x as fast", "over 45.0 batches/s"),
        (12.4, 0.3, "12.40x as fast (0.30 to 80.00)", "62.0 batches/s"),
    ],
)
def test_a_large_gain_is_said_without_the_precision_that_it_lacks(speedup: float, low: float, gain: str, rate: str):
    found = Prediction(change="x", measured=5.0, speedup=speedup, low=low, high=11.0 if speedup < 10 else 80.0)
    assert found.gain(" as fast") == gain
    assert f", {rate} instead of 5" in str(found)
    assert gain.partition(" as fast")[0] in repr(found)
    assert found.speedup == speedup


def nothing_beyond(load: prefetch.Load) -> prefetch.Plan:
    """Plan the usual window and, while a batch blocks others, nothing beyond it."""
    plan = prefetch.by_time(load)
    return plan._replace(credit=plan.size)


@pytest.mark.unit
def test_the_prefetch_policy_in_use_is_in_the_model(monkeypatch):
    jobs = [Job(0.4 if i % 8 == 5 else 0.02, 0, 0.001) for i in range(200)]
    load, e = prefetch.Load(num_workers=2, nbytes=1000), Evidence(workers=2, cores=2)
    beyond = per_batch(jobs, settings_of(load, e, in_order=True))
    large = per_batch(jobs, settings_of(load._replace(nbytes=prefetch.WINDOW_BYTES + 1), e, in_order=True))
    monkeypatch.setattr(prefetch, "POLICY", nothing_beyond)
    assert per_batch(jobs, settings_of(load, e, in_order=True)) == large > 1.3 * beyond


def recorded(jobs: list[Job], now: Settings, *, stretched: float = 1) -> list[BatchRecord]:
    """Records as if the model were the loader, in whose steps `stretched` times the measured time passes."""
    records, before = [], 10**9
    for index, (job, end) in enumerate(zip(jobs, replay(jobs, now), strict=True)):
        returned = 10**9 + round(end * stretched * 1e9)
        delivered = returned - round(job.step * 1e9)
        make = round((job.waiting + job.cpu) * 1e9)
        fields = dict.fromkeys(BatchRecord._fields, 0) | {
            "index": index, "requested": before, "in_order": delivered, "delivered": delivered, "returned": returned,
            "fetch_begin": delivered - make, "fetched": delivered, "collated": delivered,
            "fetch_cpu": round(job.cpu * 1e9), "collate_cpu": 0, "placed": None, "transfer": None,
        }  # fmt: skip
        records.append(BatchRecord(**fields))
        before = returned
    return records


@pytest.mark.unit
def test_without_a_window_a_batch_is_requested_when_the_loop_waits_for_it():
    jobs = [Job(0.01, 0.001, 0.001, 0.0)] * 3
    assert replay(jobs, Settings(workers=2, window=0, cores=2)) == pytest.approx([0.012, 0.024, 0.036])


@pytest.mark.unit
def test_a_prediction_has_an_interval_and_the_error_of_the_replay():
    jobs = [Job(0.08 + 0.002 * (i * 7 % 20), 0, 0.005) for i in range(200)]
    found = predict(recorded(jobs, settings(2)), Evidence(), settings(2), settings(4), "workers_wait", "num_workers=4")
    assert found.speedup == pytest.approx(2, rel=0.05)
    assert found.low <= found.speedup <= found.high < 2.2
    assert found.replay_error == pytest.approx(0, abs=0.02)
    assert found.measured == pytest.approx(2 / 0.099, rel=0.03)
    assert str(found).startswith("num_workers=4: 2.0")
    assert "batches/s instead of 20." in str(found)
    more = predict(recorded(jobs, settings(2)), Evidence(), settings(2), settings(2, window=9), "workers_wait", "x")
    assert more.speedup == pytest.approx(1, abs=0.02)


def with_gaps(gaps: list[int], *, own: float = 0.0) -> Job:
    """A job of two workers that use `own` cores each, with such gaps between their batches, ns; others use the rest."""
    jobs = [Job(0.1, 0, 0.005)] * 60
    records = [
        r._replace(worker=r.index % 2, dispatched=1, returned=round(1e9 + 0.06e9 * r.index), delivered=1, requested=1)
        for r in recorded(jobs, settings(2))
    ]
    late = [sum(gaps[i % len(gaps)] for i in range(r.index // 2)) for r in records]
    records = [
        r._replace(fetch_begin=r.fetch_begin + by, collated=r.collated + by)
        for r, by in zip(records, late, strict=True)
    ]
    fields: dict[str, float] = dict.fromkeys((f.name for f in dataclasses.fields(Usage)), 0)
    usage = Usage(**(fields | {"worker_cores": own}))  # type: ignore[arg-type]
    return costs_of(records, Evidence(usage=usage, workers=2, cores=2, utilization=1.0))[30].job


@pytest.mark.unit
def test_the_time_between_two_batches_of_a_worker_counts():
    assert with_gaps([20 * MS]).waiting == pytest.approx(0.12, abs=0.002)


@pytest.mark.unit
@pytest.mark.parametrize(("own", "waiting"), [(0.9, 0.12), (0.2, 0.19)], ids=["full", "taken"])
def test_gaps_that_other_threads_of_the_loader_prolong_are_no_part_of_a_batch(own: float, waiting: float):
    assert with_gaps([20 * MS, 90 * MS, 90 * MS], own=own).waiting == pytest.approx(waiting, abs=0.002)


@pytest.mark.unit
@pytest.mark.parametrize(("own", "step"), [(0.9, 0.001), (0.2, 0.007)], ids=["full", "taken"])
def test_batches_are_opened_faster_without_the_workers_on_the_core_of_the_loop(own: float, step: float):
    fields: dict[str, float] = dict.fromkeys((f.name for f in dataclasses.fields(Usage)), 0)
    e = Evidence(usage=Usage(**(fields | {"worker_cores": own})), workers=2, cores=2)  # type: ignore[arg-type]
    records = [
        r._replace(requested=r.delivered - took, in_order=r.delivered - took, returned=r.delivered)
        for r, took in zip(recorded([Job(0.1, 0, 0)] * 60, settings(2)), [MS, 10 * MS, 10 * MS] * 20, strict=True)
    ]
    assert sum(cost.job.step for cost in costs_of(records, e)) / 60 == pytest.approx(step)


@pytest.mark.unit
@pytest.mark.parametrize(("own", "waiting"), [(0.9, 0.05), (0.2, 0.08)])
def test_a_wait_for_a_core_is_left_out_if_the_loader_itself_uses_the_cores(own: float, waiting: float):
    fields: dict[str, float] = dict.fromkeys((f.name for f in dataclasses.fields(Usage)), 0)
    usage = Usage(**(fields | {"core_wait": 0.3, "worker_cores": own}))  # type: ignore[arg-type]
    e = Evidence(usage=usage, workers=2, cores=2, utilization=1.0, fetch_cpu=0.2)
    job = costs_of(recorded([Job(0.08, 0.02, 0.005)] * 9, settings(2)), e)[0].job
    assert (job.waiting, job.cpu) == pytest.approx((waiting, 0.02))


@pytest.mark.unit
def test_a_loader_predicts_from_its_newest_epoch():
    with DataLoader(list(range(400)), 4) as loader:
        assert "20 consecutive batches are needed, but there are 0 so far" in str(loader.what_if(num_workers=2))
        for _batch in loader:
            pass
        found = loader.what_if(num_workers=2, prefetch_factor=4)
        assert found.change == "num_workers=2, prefetch_factor=4"
        assert found.measured > 0
        assert (found.speedup is None) is bool(found.reason)
        with pytest.raises(ValueError, match="such as num_workers=4"):
            loader.what_if()
        with pytest.raises(ValueError, match="not negative"):
            loader.what_if(num_workers=-1)
        with pytest.raises(ValueError, match="prefetch_factor of at least 1, not 0"):
            loader.what_if(prefetch_factor=0)
    assert loader.what_if(num_workers=2).measured == found.measured, "closing loses nothing"


@pytest.mark.unit
def test_no_prediction_where_the_model_does_not_fit():
    jobs, now = [Job(0.1, 0, 0.005)] * 60, settings(2)
    slower = predict(recorded(jobs, now, stretched=1.5), Evidence(), now, settings(4), "workers_wait", "num_workers=4")
    assert slower.speedup is None
    assert slower.batches_per_second is None
    assert "differs from what was measured by 5" in str(slower)
    locked = predict(recorded(jobs, now), Evidence(), now, settings(4), "lock", "num_workers=4")
    instead = "(loader.tune(num_workers=4) measures it)"
    assert str(locked) == f"num_workers=4: cannot tell, because a lock makes the workers take turns {instead}"
    few = predict(recorded(jobs, now)[:9], Evidence(), now, settings(4), "workers_wait", "num_workers=4")
    assert "20 consecutive batches are needed, but there are 9 so far" in str(few)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("workers", "batches", "changed", "speedup"),
    [
        (0, 4, settings(2), 1.9),
        (2, 8, settings(4), 1.9),
        (4, 4, settings(8), 1.0),  # more workers than batches
        (2, 6, settings(4), 1.5),  # three rounds, then two
    ],
)
def test_a_short_epoch_is_replayed_as_a_whole(workers: int, batches: int, changed: Settings, speedup: float):
    now = settings(workers)
    records = recorded([Job(0.1, 0, 0.002)] * batches, now)
    found = predict(records, Evidence(), now, changed, "workers_wait", "other workers", whole=True)
    assert found.speedup == pytest.approx(speedup, rel=0.1), found
    assert found.low <= 0.8 * found.speedup < 1.2 * found.speedup <= found.high, "as wide as the error may be"
    few = predict(records[:3], Evidence(), now, changed, "workers_wait", "x", whole=True)
    assert (
        str(few)
        == "x: cannot tell, because an epoch of 3 batches is too short to replay (measure it in a longer epoch)"
    )


def test_an_epoch_that_has_few_batches_is_predicted_after_its_end():
    with DataLoader(light.Slow(48, wait=0.01), 8, num_workers=2, output="numpy") as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        assert "20 consecutive batches are needed" in loader.what_if(num_workers=6).reason, "it goes on"
        assert len(list(batches)) == 1
        found = loader.what_if(num_workers=6)
        assert "consecutive" not in found.reason, "other programs may use the cores"
        assert found.measured > 0


def change(jobs: list[Job], costs: CostChange, now: Settings, changed: Settings | None = None, **fields: object):
    records = [record._replace(samples=10, **fields) for record in recorded(jobs, now)]
    return predict(records, Evidence(), now, changed or now, "workers_wait", "x", costs)


SLOW = [Job(0.06, 0.02, 0.005)] * 120


@pytest.mark.unit
def test_a_cache_whose_hits_cost_much_gains_little():
    (none, some, much) = [
        change(SLOW, CostChange(cached=1.0, hit_seconds=s), settings(2, cores=2)) for s in (0, 1e-3, 6e-3)
    ]
    assert none.speedup == pytest.approx(8, rel=0.05), "the loop limits"
    assert some.speedup == pytest.approx((8 + 6.4) / 2, rel=0.1), "8 to 12.5 ms for ten samples, of two workers"
    assert much.speedup == pytest.approx((80 / 48 + 80 / 75) / 2, rel=0.1)
    assert much.low < 80 / 60 < much.high


@pytest.mark.unit
def test_what_a_hit_costs_is_measured():
    small, large = hit_seconds(100), hit_seconds(50e6)
    assert small is not None
    assert large is not None
    assert 1e-6 < small < large < 10
    assert hit_seconds(100) == small, "once for each size"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("costs", "speedup", "interval"),
    [
        (CostChange(cached=1.0), 0.04 / 0.005, (7, 8.2)),  # the loop limits
        (CostChange(cached=0.5), 2, (1.95, 2.05)),
        (CostChange(line=LineTime(0.0, 0.5, 1000)), 2, (1.85, 2.2)),
        (CostChange(line=LineTime(0.25, 0.25, 1000)), 2, (1.85, 2.2)),
        (CostChange(line=LineTime(0.5, 0.0, 1000)), 2, (1.85, 2.2)),  # half of that waited for a core
        (CostChange(line=LineTime(0.3, 0.7, 1000)), 8, (7.8, 8.2)),
        (CostChange(transport=False), 1, (0.98, 1.02)),
        (CostChange(batch_size=40), 1, (0.97, 1.03)),  # samples limit, not batches
    ],
)
def test_other_costs_of_batches_are_predicted(costs: CostChange, speedup: float, interval: tuple[float, float]):
    found = change(SLOW, costs, settings(2))
    assert found.speedup == pytest.approx(speedup, rel=0.05), found
    assert interval[0] <= found.low <= found.speedup <= found.high <= interval[1], found


@pytest.mark.unit
def test_threads_are_predicted_where_little_computing_may_hold_the_interpreter_lock():
    little = [Job(0.08, 0.002, 0.005)] * 120
    found = change(little, CostChange(threads=True), settings(2), settings(6))
    assert found.speedup == pytest.approx(3, rel=0.05)
    much = change([Job(0.01, 0.08, 0.005)] * 120, CostChange(threads=True), settings(4))
    assert much.speedup is None
    assert "it may be 0.2" in much.reason
    assert "interpreter lock, which was not measured" in much.reason


@pytest.mark.unit
@pytest.mark.parametrize(("cause", "unlocks"), [("lock", True), ("cores_taken", False)])
def test_a_line_that_becomes_cheaper_is_predicted_beside_a_lock_and_other_programs(cause, unlocks):
    now = settings(2)
    records = recorded([Job(0.1, 0.0, 0.001)] * 120, now)
    cheaper = CostChange(line=LineTime(0.0, 0.5, 5000), unlocks=unlocks)
    assert predict(records, Evidence(), now, now, cause, "x", cheaper).speedup == pytest.approx(2, rel=0.1)
    assert predict(records, Evidence(), now, settings(4), cause, "x").speedup is None


@pytest.mark.unit
def test_a_pickled_batch_is_predicted_without_transport():
    now = settings(1)
    jobs = [Job(0.05, 0.0, 0.055)] * 120
    records = [
        r._replace(transport="pickle", pickled=10**6, received=r.collated, in_order=r.delivered - 50 * MS)
        for r in recorded(jobs, now)
    ]
    records = [r._replace(delivered=r.returned - 5 * MS, in_order=r.returned - 55 * MS) for r in records]
    assert predict(records, Evidence(), now, now, "pickle", "x").reason.startswith("batches are pickled")
    found = predict(records, Evidence(), now, now, "pickle", "x", CostChange(transport=False))
    assert found.speedup == pytest.approx(0.055 / 0.05, rel=0.05), found


@pytest.mark.unit
def test_larger_batches_save_steps_only_if_a_step_does_not_grow():
    fast = [Job(0.001, 0.0, 0.05)] * 400
    found = change(fast, CostChange(batch_size=20), settings(1))
    assert found.speedup is None
    assert "how long a step with such a batch takes" in found.reason
    found = change(SLOW, CostChange(batch_size=5), settings(2))
    assert found.batches_per_second == pytest.approx(2 * found.measured, rel=0.05)
    assert "as many samples/s" in str(found)
    few = change(SLOW, CostChange(batch_size=64), settings(2))
    assert few.reason.startswith(
        "the 1200 samples of the last batches make fewer than 20 batches of this size (measure it"
    )


HALF = LineTime(0.4, 0.1, 400)
OF_WORKERS = Evidence(
    wait_share=0.8, producing_wait=0.8, utilization=1.0, seconds=10.0, batches=200, workers=2, place=Place.PROCESSES
)


@pytest.mark.unit
def test_few_samples_of_a_line_only_widen_the_interval():
    widths = []
    for samples in (10, 40, 400):
        found = change(SLOW, CostChange(line=LineTime(0.2, 0.2, samples)), settings(2))
        assert found.low <= found.speedup <= found.high
        assert found.speedup == pytest.approx(1 / 0.6, rel=0.1)
        widths.append(found.high / found.low)
    assert widths == sorted(widths, reverse=True)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("cause", "stretched", "batches"),
    [
        ("workers_compute", 1.5, 60),  # the replay does not match
        ("workers_compute", 1, 9),  # too few batches
        ("workers_compute", 1, 0),  # none that can be replayed
        ("threads", 1, 60),
        ("memory", 1, 60),
        ("pickle", 1, 60),
    ],
)
def test_what_a_line_would_gain_is_always_predicted_from_its_share(cause: str, stretched: float, batches: int):
    records = recorded([Job(0.06, 0.02, 0.005)] * 60, settings(2), stretched=stretched)[:batches]
    now, line = settings(2), CostChange(line=HALF)
    found = predict(records, OF_WORKERS, now, now, cause, "without it", line)
    assert found.speedup == pytest.approx(2, rel=0.01), "workers that limit the loop make batches in half the time"
    assert found.low == pytest.approx(1 / (1 - 0.45 * 0.8), rel=0.05), "or each wait is as much shorter"
    assert found.low <= found.speedup <= found.high < 2.4
    assert found.measured > 0
    assert not found.reason
    other = predict(records, OF_WORKERS, now, settings(4), cause, "both", line)
    assert other.speedup is None, "other settings at the same time need the model"


@pytest.mark.unit
def test_the_loop_itself_and_a_lock_bound_what_a_line_gains():
    most = LineTime(0.95, 0.0, 4000)
    assert gain_without(most, OF_WORKERS, serialized=False).speedup == pytest.approx(5), "the loop's own 20%"
    locked = gain_without(HALF, OF_WORKERS, serialized=True)
    assert (locked.speedup, locked.high) == (pytest.approx(2), pytest.approx(5)), "if this line holds the lock"
    own = dataclasses.replace(OF_WORKERS, place=Place.CONSUMER)
    assert gain_without(HALF, own, serialized=False).speedup == pytest.approx(1 / 0.6), "nothing overlaps"
    idle = dataclasses.replace(OF_WORKERS, utilization=0.5)
    assert 1 / 0.6 < gain_without(HALF, idle, serialized=False).speedup < 2
    waits_little = dataclasses.replace(OF_WORKERS, wait_share=0.05, producing_wait=0.02)
    assert gain_without(HALF, waits_little, serialized=False).high < 1.03


class Sleeps:
    def __len__(self) -> int:
        return 400

    seconds = 0.002

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


def test_a_cache_that_only_other_loaders_use_can_be_predicted():
    @nbloader.cached
    def doubled(number: int) -> int:
        return 2 * number

    assert [doubled(1), doubled(1)] == [2, 2]
    with DataLoader(Sleeps(), 4, num_workers=1, workers="thread") as loader:
        for number, _batch in enumerate(loader):
            if number == 60:
                assert "already" not in loader.what_if(cache=1.0).reason
                doubled(1)
                assert "with 1 hits in this epoch" in loader.what_if(cache=1.0).reason
                break


def test_a_window_that_was_given_as_batches_is_in_the_model():
    dataset = Sleeps()
    with DataLoader(dataset, 4, num_workers=4, prefetch=1, workers="thread") as loader:
        for slower in range(5):  # on a busy machine threads wait for a core, which no model foresees
            dataset.seconds = 0.002 * 2**slower
            for _batch in loader:
                pass
            found = loader.what_if(prefetch_factor=2)
            if "replay" not in found.reason:
                break
        assert "replay" not in found.reason
        same = loader.what_if(num_workers=8)
    assert found.speedup is None or found.speedup > 2
    assert same.speedup is None or same.speedup < 1.2, "of more workers only one has a batch"


def test_a_loader_predicts_other_arguments():
    with DataLoader(Sleeps(), 4, num_workers=2, workers="thread") as loader:
        loader.profile_lines()
        for _batch in loader:
            pass
        for asked, told in (
            ({"cache": 1.0}, "cache=1.0: "),
            ({"batch_size": 8}, "batch_size=8: "),
            ({"in_order": False}, "in_order=False: "),
            ({"transport": "none"}, "transport=none: "),
            ({"num_workers": 4, "workers": "thread"}, "num_workers=4, workers=thread: "),
        ):
            found = loader.what_if(**asked)
            assert str(found).startswith(told)
            assert (found.speedup is None) is bool(found.reason)
            assert found.measured > 0
        assert "was not measured" in loader.what_if(workers="process").reason
        slow = next(line for line in loader.hot_lines() if "sleep" in line.source)
        assert loader.what_if(line=slow).change == f"without {slow.place}"
        assert loader.what_if(line=slow.place).change == loader.what_if(line=slow.line).change
        for wrong, message in (
            ({"workers": "fibre"}, "workers must be one of"),
            ({"batch_size": 0}, "positive integer"),
            ({"cache": 2}, "share of samples"),
            ({"transport": "pickle"}, "can only be predicted"),
            ({"line": 99_999}, "no line is 99999; lines that were sampled: '"),
        ):
            with pytest.raises(ValueError, match=message):
                loader.what_if(**wrong)
        loader.num_workers = 3
        assert "there are 0" in loader.what_if(num_workers=4).reason, "the batches were made with other settings"


def test_a_loader_without_batches_of_its_own_predicts_no_batch_size():
    with DataLoader(list(range(30)), batch_size=None) as loader:
        for _sample in loader:
            pass
        assert "its batch_size is None" in loader.what_if(batch_size=4).reason
