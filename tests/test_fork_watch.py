"""Which forked workers hang, by what their threads do."""

from __future__ import annotations

import types

import pytest

from nbloader.engine import fork_watch
from nbloader.engine.fork_watch import HANG, IDLE, ForkWatch
from nbloader.workers.status import WorkerState

pytestmark = pytest.mark.unit


def worker(uid, *, produced=0):
    status = types.SimpleNamespace(state=WorkerState.FETCHING)
    return types.SimpleNamespace(uid=uid, pid=uid, ready=True, produced=produced, status=status)


@pytest.fixture
def processes(monkeypatch):
    """CPU time in seconds, by process; and the processes that do not wait for a lock."""
    cpu, working = {}, set()
    monkeypatch.setattr(fork_watch, "stat_of", lambda pid: types.SimpleNamespace(cpu=round(cpu[pid] * 1e9)))
    monkeypatch.setattr(fork_watch, "waits_for_locks", lambda pid: pid not in working)
    return cpu, working


def test_workers_whose_lines_are_sampled_hang_nevertheless(processes):
    cpu, _working = processes
    watch, workers = ForkWatch(), [worker(1), worker(2)]
    cpu.update({1: 0.3, 2: 0.3})
    assert watch.look(2.0, workers) is None, "nothing to compare with"
    assert watch.left(2.0) == HANG
    cpu.update({1: 0.31, 2: 0.3 + IDLE})
    assert watch.look(7.0, workers) is workers[0]


@pytest.mark.parametrize("works", ["computes", "waits for something else", "has produced"])
def test_a_worker_that_works_holds_up_the_verdict_about_all(processes, works):
    cpu, working = processes
    watch, workers = ForkWatch(), [worker(1), worker(2, produced=int(works == "has produced"))]
    cpu.update({1: 0.3, 2: 0.3})
    if works == "waits for something else":
        working.add(2)
    assert watch.look(2.0, workers) is None
    if works == "computes":
        cpu[2] += 2 * IDLE
    assert watch.look(7.0, workers) is None
