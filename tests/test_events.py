"""Events and the event bus."""

from __future__ import annotations

import dataclasses
import gc
import logging
import threading
import weakref
from typing import get_args

import pytest

from nbloader import events
from nbloader.events import BatchRecord, EventBus, LoaderPaused, WorkerStarted

pytestmark = pytest.mark.unit

RECORD = BatchRecord(
    **dict.fromkeys(BatchRecord._fields, 0) | {"transport": "segment", "requested": 10, "delivered": 35}  # type: ignore[arg-type]
)


def test_every_kind_of_subscriber_receives_events_in_order():
    bus = EventBus()
    seen: list[events.Event] = []
    sent = [LoaderPaused(1), RECORD, LoaderPaused(3)]
    with bus.subscribe() as buffered, bus.subscribe(seen.append):
        for event in sent:
            bus.publish(event)
        assert seen == sent
        assert buffered.drain() == sent
        assert buffered.drain() == []
        bus.publish(sent[0])
        assert list(buffered) == [sent[0]]
    assert list(bus.history) == [*sent, sent[0]]


def test_only_events_after_the_subscription_are_buffered():
    bus = EventBus()
    bus.publish(LoaderPaused(1))
    with bus.subscribe() as subscription:
        bus.publish(LoaderPaused(2))
        assert subscription.drain() == [LoaderPaused(2)]


def test_a_callback_that_raises_is_removed_and_logged(caplog: pytest.LogCaptureFixture):
    bus = EventBus()
    calls: list[events.Event] = []

    def broken(event: events.Event) -> None:
        calls.append(event)
        raise RuntimeError("this callback is broken")

    bus.subscribe(broken)
    with bus.subscribe() as healthy, caplog.at_level(logging.ERROR, logger="nbloader.events.bus"):
        bus.publish(LoaderPaused(1))
        bus.publish(LoaderPaused(2))
        assert healthy.drain() == [LoaderPaused(1), LoaderPaused(2)], "the other subscribers are unaffected"
    assert calls == [LoaderPaused(1)]
    assert len(caplog.records) == 1
    assert "this callback is broken" in caplog.text


def test_a_full_buffer_drops_the_oldest_and_counts():
    bus = EventBus()
    with bus.subscribe(maxlen=3) as subscription:
        for time in range(10):
            bus.publish(LoaderPaused(time))
        assert subscription.dropped == 7
        assert subscription.drain() == [LoaderPaused(7), LoaderPaused(8), LoaderPaused(9)]
        bus.publish(LoaderPaused(10))
        assert subscription.dropped == 7, "drained in time"


def test_the_history_is_bounded():
    bus = EventBus(history=5)
    for time in range(20):
        bus.publish(LoaderPaused(time))
    assert [event.time for event in bus.history] == [15, 16, 17, 18, 19]  # type: ignore[union-attr]


def test_batches_returns_only_batch_records():
    bus = EventBus()
    for event in (LoaderPaused(1), RECORD, LoaderPaused(2), RECORD._replace(index=1)):
        bus.publish(event)
    assert bus.batches() == [RECORD, RECORD._replace(index=1)]


@pytest.mark.parametrize("maxlen", [0, -1])
def test_an_invalid_buffer_size_is_rejected(maxlen: int):
    with pytest.raises(ValueError, match=rf"maxlen must be at least 1, not {maxlen}"):
        EventBus().subscribe(maxlen=maxlen)


def test_a_callback_that_is_not_callable_is_rejected():
    with pytest.raises(TypeError, match=r"callback must be callable or None, not int: 3"):
        EventBus().subscribe(3)  # type: ignore[arg-type]


def test_a_closed_subscription_receives_nothing_and_can_be_closed_again():
    bus = EventBus()
    subscription = bus.subscribe()
    bus.publish(LoaderPaused(1))
    subscription.close()
    subscription.close()
    bus.publish(LoaderPaused(2))
    assert subscription.drain() == [LoaderPaused(1)]


def test_a_callback_may_close_its_own_subscription():
    bus = EventBus()
    seen: list[events.Event] = []

    def once(event: events.Event) -> None:
        seen.append(event)
        subscription.close()

    subscription = bus.subscribe(once)
    bus.publish(LoaderPaused(1))
    bus.publish(LoaderPaused(2))
    assert seen == [LoaderPaused(1)]


def test_a_subscription_can_be_closed_while_the_garbage_collector_publishes():
    """A finalizer may publish in the middle of any call on the same thread, and so call a subscriber that closes."""
    bus = EventBus()
    closed = threading.Event()

    class Garbage:
        pass

    def close_one(collected_after: int) -> None:
        def close_inner(_event: events.Event) -> None:
            inner.close()

        inner, outer = bus.subscribe(close_inner), bus.subscribe()
        gc.collect()
        cycle = Garbage()
        cycle.itself = cycle  # type: ignore[attr-defined]
        weakref.finalize(cycle, bus.publish, LoaderPaused(1))
        del cycle
        gc.set_threshold(collected_after)  # allocations
        outer.close()
        gc.set_threshold(*thresholds)
        gc.collect()

    def close_all() -> None:
        for collected_after in range(1, 60):
            close_one(collected_after)
        closed.set()

    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()  # collections look at new objects only, and so are fast
    threading.Thread(target=close_all, daemon=True).start()
    finished = closed.wait(90)
    gc.set_threshold(*thresholds)
    assert finished, "deadlock"
    assert len(bus.history) == 59
    assert not bus._subscribers


def test_concurrent_publishing_subscribing_and_reading():
    bus = EventBus(history=100)
    stop = threading.Event()
    failures: list[BaseException] = []

    def publish() -> None:
        try:
            while not stop.is_set():
                bus.publish(RECORD)
        except BaseException as error:
            failures.append(error)

    def subscribe_and_close() -> None:
        try:
            for _ in range(300):
                with bus.subscribe(maxlen=10) as subscription:
                    subscription.drain()
                    bus.batches()
        except BaseException as error:
            failures.append(error)

    publishers = [threading.Thread(target=publish) for _ in range(2)]
    subscribers = [threading.Thread(target=subscribe_and_close) for _ in range(4)]
    for thread in publishers + subscribers:
        thread.start()
    for thread in subscribers:
        thread.join()
    stop.set()
    for thread in publishers:
        thread.join()
    assert failures == []
    assert not bus._subscribers, "closed subscriptions are removed"


def test_events_are_immutable():
    kinds = [kind for kind in get_args(events.Event) if kind is not BatchRecord]
    assert len(kinds) > 10
    for kind in kinds:
        event = kind(*[0] * len(dataclasses.fields(kind)))
        with pytest.raises(dataclasses.FrozenInstanceError):
            event.time = 1
        assert not hasattr(event, "__dict__"), "slotted"
    with pytest.raises(AttributeError):
        RECORD.index = 1  # type: ignore[misc]


def test_events_compare_by_value():
    assert WorkerStarted(1, 2, 3) == WorkerStarted(1, 2, 3) != WorkerStarted(1, 2, 4)


def test_a_record_says_how_long_the_consumer_waited():
    assert RECORD.waited == 25
