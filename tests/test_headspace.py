"""Headspace: what a loop would do if loading took no time, measured on loops whose steps and waits are known."""

from __future__ import annotations

import statistics
import time

import pytest
from light import Slow

from nbloader import DataLoader
from nbloader.dashboard.panels.base import Frame
from nbloader.dashboard.panels.summary import Summary
from nbloader.report.render import headspace

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
