"""When idle workers release memory and are stopped."""

from __future__ import annotations

import types

import pytest

from nbloader.engine import idle
from nbloader.engine.idle import MEMORY_RELEASE_DELAY, SUPERSEDED_TIMEOUT, IdleWatch

pytestmark = pytest.mark.unit


@pytest.fixture
def clock(monkeypatch):
    clock = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(idle.time, "monotonic", lambda: clock.now)
    return clock


def consumer(requested=0.0, taken=0.0, awaited=None):
    return types.SimpleNamespace(requested_at=requested, taken_at=taken, awaited=awaited)


def test_memory_is_released_once_between_epochs(clock):
    receivers = {}
    watch = IdleWatch(None, receivers)
    assert watch.seconds_to_memory_release() == MEMORY_RELEASE_DELAY
    receivers[0] = consumer(1000, 1003)
    watch.epoch_began()
    assert watch.seconds_to_memory_release() is None, "an iteration is open"
    watch.epoch_ended(receivers.pop(0))
    clock.now = 1004.0
    assert watch.seconds_to_memory_release() == MEMORY_RELEASE_DELAY - 1, "since the last batch was taken"
    watch.memory_released = True
    assert watch.seconds_to_memory_release() is None
    watch.epoch_began()
    assert not watch.memory_released


def test_workers_are_stopped_when_no_consumer_has_requested_anything(clock):
    receivers = {}
    watch = IdleWatch(300.0, receivers)
    clock.now = 1100.0
    assert watch.seconds_to_stop() == 200
    receivers[0] = consumer(1090)
    assert watch.seconds_to_stop() == 290
    receivers[0] = consumer(1090, awaited=object())
    assert watch.seconds_to_stop() is None, "a consumer waits"
    assert IdleWatch(None, {}).seconds_to_stop() is None, "never"


def test_workers_of_a_cell_that_was_run_again_are_stopped_soon(clock):
    watch = IdleWatch(None, {})
    watch.superseded = True
    clock.now += 0.5
    assert watch.seconds_to_stop() == SUPERSEDED_TIMEOUT - 0.5
    watch.epoch_began()
    assert watch.seconds_to_stop() is None, "the loader is in use"
