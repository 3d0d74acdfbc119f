"""The thread that owns an engine: requests are executed one after the other, and whoever asks gets an answer."""

from __future__ import annotations

import threading

import pytest
from datasets import wait_for

from nbloader.engine.loop import Loop
from nbloader.errors import NbloaderError

pytestmark = pytest.mark.unit


class Engine:
    """Records on which thread what was called."""

    def __init__(self):
        self.closed = False
        self.failures = []
        self.ended = []
        self.published = 0
        self.planted = None
        self.loop = Loop(self)

    def filenos(self):
        return ()

    def seconds_to_maintenance(self):
        return None

    def receive(self):
        if self.planted is not None:
            error, self.planted = self.planted, None
            raise error

    def act(self):
        pass

    def publish(self):
        self.published += 1

    def show_output(self):
        pass

    def report_failure(self, error):
        self.failures.append(str(error))

    def fail(self, error):
        self.ended.append(str(error))

    def forget(self):
        pass

    def close(self):
        self.closed = True


@pytest.fixture
def engine():
    engine = Engine()
    engine.loop.start()
    yield engine
    engine.loop.ask(engine.close)
    engine.loop.close()
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "nbloader-loop"])


def test_requests_are_executed_on_one_thread_in_the_order_in_which_they_came(engine):
    done = []
    for number in range(100):
        engine.loop.post(lambda number=number: done.append((number, threading.current_thread().name)))
    assert engine.loop.ask(len, done) == 100
    assert done == [(number, "nbloader-loop") for number in range(100)]


def test_many_threads_ask_at_the_same_time(engine):
    counts = {}

    def add(name):
        counts[name] = counts.get(name, 0) + 1  # no lock: only one thread does this
        return counts[name]

    answers = []

    def ask(name):
        answers.append([engine.loop.ask(add, name) for _ in range(200)])

    threads = [threading.Thread(target=ask, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [list(range(1, 201))] * 4


def test_an_answer_comes_after_the_events_of_its_turn_were_published(engine):
    before = engine.published
    engine.loop.ask(lambda: None)
    assert engine.published > before


def test_what_a_requested_action_raises_goes_to_the_thread_that_asked(engine):
    def fail():
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        engine.loop.ask(fail)
    assert engine.loop.ask(lambda: 7) == 7
    assert engine.failures == []


def test_after_a_failure_in_a_turn_the_workers_are_ended_and_the_thread_goes_on(engine, caplog):
    engine.planted = ValueError("planted")
    engine.loop.post(lambda: None)
    wait_for(lambda: engine.ended)
    assert engine.loop.ask(lambda: 7) == 7
    assert (engine.failures, engine.ended) == (["planted"], ["planted"])
    assert "the thread that supervises the workers failed" in caplog.text


def test_a_finalizer_in_the_middle_of_a_change_may_request_but_not_ask(engine):
    done = []

    def change():
        engine.loop.post(lambda: done.append("later"))
        assert done == []
        with pytest.raises(NbloaderError, match="Only these methods may be called there"):
            engine.loop.ask(lambda: None)

    engine.loop.ask(change)
    engine.loop.ask(lambda: None)
    assert done == ["later"]


def test_without_the_thread_the_caller_executes_requests_in_order():
    engine, done = Engine(), []
    engine.loop.post(lambda: done.append(threading.current_thread()))
    assert engine.loop.ask(lambda: list(done)) == [threading.current_thread()]
    assert not engine.loop.started
    engine.close()
    engine.loop.close()
    assert engine.loop.ask(lambda: 7) == 7


def test_requests_that_come_while_the_engine_is_closed_are_answered(engine):
    entered, release, answers = threading.Event(), threading.Event(), []

    def close():
        entered.set()
        assert release.wait(90)
        engine.close()

    engine.loop.post(close)
    assert entered.wait(90)
    threads = [threading.Thread(target=lambda: answers.append(engine.loop.ask(lambda: 7))) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(engine.loop._requests) == 3)
    release.set()
    for thread in threads:
        thread.join()
    assert answers == [7, 7, 7]
