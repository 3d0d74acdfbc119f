"""A queued task belongs to one side: to the worker that begins it, or to the pool that takes it back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
from datasets import Slow, flat
from hypothesis import given, settings
from hypothesis import strategies as st

from nbloader import DataLoader
from nbloader.shm.segment import anonymous_file, mapped
from nbloader.workers.task_claims import CLAIMS_SIZE, MAX_BLOCK, REVOCABLE, TaskClaims, TaskRevoker


class Sides:
    """Both sides in one process: record locks do not exclude each other then, but nothing is concurrent either."""

    def __init__(self):
        self.fd = anonymous_file(CLAIMS_SIZE)
        self.worker = TaskClaims(mapped(self.fd, CLAIMS_SIZE), 0, self.fd)
        self.pool = TaskRevoker(mapped(self.fd, CLAIMS_SIZE), 0, self.fd)

    def claim(self, number):
        """As the loop of a worker does it."""
        return number <= self.worker.unrevoked or self.worker.claim(number)


@pytest.fixture
def sides():
    sides = Sides()
    yield sides
    os.close(sides.fd)


def test_what_is_revoked_cannot_be_claimed_and_what_is_claimed_not_revoked(sides):
    assert sides.worker.claim(1)
    assert sides.pool.revoke([1]) == set()
    after = MAX_BLOCK + 2  # beyond what the worker may have claimed at once
    assert sides.pool.revoke([after]) == {after}
    assert not sides.worker.claim(after)
    assert sides.worker.claim(after + 1)


def test_more_tasks_than_the_ring_has_places_are_not_revoked(sides):
    assert sides.pool.revoke([REVOCABLE, REVOCABLE + 1]) == {REVOCABLE}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_task_is_either_claimed_or_revoked(data):
    sides = Sides()
    try:
        claimed, revoked, number, sent = set(), set(), 1, 0
        for _ in range(data.draw(st.integers(1, 60))):
            what = data.draw(st.sampled_from(["send", "claim", "revoke"]))
            if what == "send":
                sent += data.draw(st.integers(1, 30))
            elif what == "claim" and number <= sent:
                if sides.claim(number):
                    claimed.add(number)
                number += 1
            elif what == "revoke" and number <= sent:
                first = data.draw(st.integers(number, sent))
                revoked |= sides.pool.revoke(range(first, sent + 1))
        for rest in range(number, sent + 1):
            if sides.claim(rest):
                claimed.add(rest)
        assert not claimed & revoked
        assert claimed | revoked == set(range(1, sent + 1))
    finally:
        os.close(sides.fd)


CLAIMS = """
import mmap, sys
from nbloader.workers.task_claims import *
fd = int(sys.argv[1])
claims = TaskClaims(mmap.mmap(fd, CLAIMS_SIZE), 0, fd)
print("ready", flush=True)
for number in range(1, 20001):
    if number <= claims.unrevoked or claims.claim(number):
        print(number)
"""


def test_two_processes_never_have_the_same_task(sides):
    command = [sys.executable, "-c", CLAIMS, str(sides.fd)]
    with subprocess.Popen(command, pass_fds=(sides.fd,), stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout.readline() == "ready\n"
        revoked = set()
        for first in range(10, 20000, 37):
            revoked |= sides.pool.revoke(range(first, first + 20))
        claimed = {int(line) for line in worker.stdout}
    assert not claimed & revoked
    assert claimed | revoked == set(range(1, 20001))


def test_a_worker_that_is_stopped_while_it_has_the_lock_does_not_stop_the_pool(sides):
    hold = "import fcntl, sys; fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX, 1); print('locked', flush=True); input()"
    command = [sys.executable, "-c", hold, str(sides.fd)]
    with subprocess.Popen(
        command, pass_fds=(sides.fd,), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout.readline() == "locked\n"
        os.kill(worker.pid, signal.SIGSTOP)
        assert sides.pool.revoke([5]) == set(), "later perhaps"
        os.kill(worker.pid, signal.SIGKILL)
    assert sides.pool.revoke([5]) == {5}, "the lock goes with its owner"


# ---- with a loader


class Counted(Slow):
    """Counts how often each sample is fetched, in all processes; every 16th batch of 4 takes long."""

    def __init__(self, n, **options):
        super().__init__(n, **options)
        self.fetched = torch.zeros(n, dtype=torch.int64).share_memory_()

    def __getitem__(self, i):
        self.fetched[i] += 1
        return super().__getitem__(i) if i % 64 == 0 else i


@pytest.mark.parametrize("options", [{}, {"workers": "thread"}, {"chunk_size": 2}, {"prefetch": 40}], ids=str)
def test_without_a_fault_each_sample_is_fetched_exactly_once(options):
    """Idle workers steal what is queued behind slow batches, and must not find it begun."""
    dataset = Counted(640, wait=0.004)
    with DataLoader(dataset, 4, num_workers=3, **options) as loader:
        for epoch in range(1, 6):
            assert flat(loader) == list(range(640))
            assert set(dataset.fetched.tolist()) == {epoch}


def test_iterations_that_take_turns_fetch_each_sample_once():
    dataset = Counted(256, wait=0.002)
    with DataLoader(dataset, 4, num_workers=2, prefetch_factor=4) as loader:
        one, other = iter(loader), iter(loader)
        for _ in range(64):
            next(one)
            next(other)
    assert set(dataset.fetched.tolist()) == {2}
