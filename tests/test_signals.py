"""What a signal handler raises reaches the program as it is, whatever it has interrupted."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import signal
import threading
import time

import leaks
import numpy as np
import pytest
from datasets import PATIENCE, Numbers, flat
from interleave import CountedInterrupt, Interrupts
from stand_in import StandIn

from nbloader import DataLoader, LoaderClosedError
from nbloader._util import rng
from nbloader._util.signals import raised_by_handler
from nbloader.events import SampleFailed


class Expired(Exception):
    """The user's own, as of a handler that limits the time of a cell."""


def expire(_number, _frame):
    raise Expired("too long")


@pytest.fixture(autouse=True)
def handler():
    before = signal.signal(signal.SIGUSR1, expire)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupt():
    os.kill(os.getpid(), signal.SIGUSR1)


HARMLESS = {"len", "isinstance", "getattr", "hasattr", "min", "sum", "any", "values", "items", "perf_counter_ns"}
"""C functions after which a signal loses nothing."""


UPLOADS = ("device/transfer.py", "device/pinning.py", "batch/payload.py")
"""Modules that build and upload a batch."""


class Interrupted:
    """Its pickling is interrupted, in the process that the test runs in."""

    def __init__(self):
        self.pid = os.getpid()

    def __reduce__(self):
        if os.getpid() == self.pid:
            interrupt()
        return Interrupted, ()


class Sampler:
    def __len__(self):
        return 4

    def __iter__(self):
        yield 0
        interrupt()
        yield 1


class Rows(Numbers):
    """Its batches are sent in segments."""

    def __getitem__(self, i):
        return np.full(50_000, i)


class Hanging(Numbers):
    def __getitem__(self, i):
        if i == 1:
            time.sleep(PATIENCE)
        return i


class Fetched(Numbers):
    def __getitem__(self, i):
        if i == 2 and self.flags:
            self.flags.pop()
            interrupt()
        return i


PICKLED = {
    "dataset": lambda: DataLoader(Numbers(4, held=Interrupted()), num_workers=1, multiprocessing_context="forkserver"),
    "collate_fn": lambda: DataLoader(
        Numbers(4),
        collate_fn=functools.partial(print, Interrupted()),
        num_workers=1,
        multiprocessing_context="forkserver",
    ),
    "indices": lambda: DataLoader(Numbers(4), batch_sampler=[[Interrupted()]], num_workers=1),
    "sampler": lambda: DataLoader(Numbers(4), sampler=Sampler()),
}


@pytest.mark.parametrize("create", PICKLED.values(), ids=PICKLED)
def test_what_a_signal_handler_raises_is_raised_as_it_is(create):
    with create() as loader, pytest.raises(Expired, match="too long") as raised:
        list(loader)
    assert raised.value.__cause__ is None


def test_without_workers_it_is_no_error_of_a_sample_and_no_batch_is_lost():
    with DataLoader(Fetched(6, flags=[1]), 2, on_error="skip") as loader:
        it, got = iter(loader), []
        got.append(next(it))
        with pytest.raises(Expired):
            next(it)
        got.extend(it)
        assert flat(got) == list(range(6))
        assert not [event for event in loader.events.recent() if isinstance(event, SampleFailed)]


def test_an_epoch_whose_sampler_was_interrupted_does_not_seem_to_be_over():
    """A sampler that is a generator has ended then."""

    class Sampler(list):
        def __iter__(self):
            yield 0
            raise KeyboardInterrupt

    with DataLoader(Numbers(4), sampler=Sampler(range(4))) as loader:
        it = iter(loader)
        assert next(it).item() == 0
        with pytest.raises(KeyboardInterrupt):
            next(it)
        with pytest.raises(LoaderClosedError, match="sampler was interrupted: iterate over the loader again"):
            next(it)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "workers": "thread"}], ids=["inline", "thread"])
def test_an_interrupt_at_any_point_costs_no_batch_silently(options):
    """Whoever goes on with the same iterator gets all other batches, or an error; the next epoch is complete."""
    outcomes = collections.Counter()

    def iterate(at=None):
        epoch, got = iter(loader), []
        with Interrupts(at) as interrupts, contextlib.suppress(KeyboardInterrupt):
            for _ in range(3):  # what comes after the last batch costs none
                got.append(int(next(epoch)[0]))  # noqa: PERF401 - those before the interrupt are kept
        try:
            got.extend(int(batch[0]) for batch in epoch)
        except LoaderClosedError:
            outcomes["ended"] += 1
            assert got == [0, 2, 4, 6][: len(got)], at
        else:
            outcomes["went on"] += 1
            assert got == [0, 2, 4, 6], at
        return interrupts.points

    with DataLoader(Numbers(8), 2, **options) as loader:
        for point in iterate():
            iterate(point)
            assert flat(loader) == list(range(8)), point
    assert min(outcomes["ended"], outcomes["went on"]) > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt of a finalizer
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_interrupt_at_any_point_of_an_upload_costs_no_batch_silently_and_changes_none(num_workers):
    """The device copies late: it would read the next batch if the memory of one were released too early."""
    outcomes = collections.Counter()

    def iterate(at=None):
        epoch, got = iter(loader), []
        with contextlib.suppress(KeyboardInterrupt), Interrupts(at) as interrupts:
            for _ in range(4):  # what comes after the last batch costs none
                got.append(next(epoch))  # noqa: PERF401 - those before the interrupt are kept
        try:
            got += epoch
        except LoaderClosedError:
            outcomes["ended"] += 1
        else:
            outcomes["went on"] += 1
            assert len(got) == 5, at
        device.synchronize()
        assert [batch.unique().tolist() for batch in got] == [[i] for i in range(len(got))], at
        return [point for point in interrupts.points if point[0].endswith(UPLOADS)]

    device = StandIn(1)
    with DataLoader(
        Rows(5), 1, num_workers=num_workers, persistent_workers=num_workers > 0, device=device, upload_ahead=1
    ) as loader:
        iterate()
        for point in iterate():
            iterate(point)
    assert outcomes["went on"] > max(10, 5 * outcomes["ended"]), "those that end it come while batches are received"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt of a finalizer
@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_an_interrupt_while_descriptors_are_opened_leaves_none_open(method):
    """At each point of the modules that open, receive or close descriptors in the notebook's process."""

    def iterate(at=None):
        loader = DataLoader(Rows(2), num_workers=1, multiprocessing_context=method)
        with loader, Interrupts(at, callers=True) as interrupts, contextlib.suppress(KeyboardInterrupt):
            for _batch in loader:
                pass
        return [point for point in interrupts.points if is_exposed(*point)]

    def is_exposed(file, _line, event, function, _caller):
        """CPython handles no signal between a return and the assignment in the caller (3.11 and newer)."""
        modules = ("descriptors.py", "segment.py", "channel.py")
        if event == "c_return":
            modules += ("process_pool.py", "zygote.py", "interpreter.py", "proc.py", "linux.py", "portable.py")
        return event != "return" and file.endswith(modules) and function not in HARMLESS

    iterate()
    before = leaks.Belongings.now()
    points = iterate()
    for point in points[:: 20 if method == "forkserver" else 2]:  # each starts an interpreter
        iterate(point)
        left = leaks.left_behind(before, PATIENCE)
        assert not left, f"{point}:\n{left}"
    assert len(points) > 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_an_interrupt_while_workers_are_started_leaves_nothing(method):
    """At each point at which the consumer's thread forks, reads the environment, or waits for the loop."""

    def iterate(number=0):
        count = CountedInterrupt(
            "engine/engine.py",
            "engine/starting.py",
            "engine/supervisor.py",
            "engine/loop.py",
            "workers/process_pool.py",
            "transport/zygote.py",
            number=number,
        )
        with DataLoader(Rows(2), num_workers=2, multiprocessing_context=method) as loader:
            epoch = None  # it is dropped later: its finalizer is not part of the start
            with contextlib.suppress(KeyboardInterrupt), count:
                epoch = iter(loader)
            del epoch
            assert len(list(loader)) == 2, number
        return count.passed

    iterate()
    before = leaks.Belongings.now()
    points = iterate()
    for number in range(1, points + 1, 4 if method == "fork" else 40):  # each starts an interpreter
        iterate(number)
        left = leaks.left_behind(before, PATIENCE)
        assert not left, f"point {number}:\n{left}"
    assert points > 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_of_close_leaves_nothing():
    """The second worker ends only after the grace period."""

    def close(number=0):
        count = CountedInterrupt("engine/engine.py", "engine/supervisor.py", "engine/loop.py", number=number)
        loader = DataLoader(Hanging(2), num_workers=2)
        next(iter(loader))
        with contextlib.suppress(KeyboardInterrupt), count:
            loader.close()
        loader.close()
        return count.passed

    close()
    before = leaks.Belongings.now()
    passed = max(close() for _ in range(2))
    for number in range(1, passed):
        close(number)
        left = leaks.left_behind(before, PATIENCE)
        assert not left, f"point {number}:\n{left}"


@pytest.mark.unit
def test_an_interrupt_while_the_random_state_is_saved_leaves_nothing_to_restore(monkeypatch):
    def interrupted(_self):
        raise KeyboardInterrupt

    state = rng.LazyRandomState()
    with monkeypatch.context() as patched:
        patched.setattr(rng.PreservedRandomState, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            state.seed(1)
    state.restore()


@pytest.mark.parametrize("register", ["subscribe", "on_wait"])
def test_a_subscriber_or_callback_that_is_interrupted_stays(register):
    calls = []

    def call(*_event):
        calls.append(1)
        if len(calls) == 1:
            interrupt()

    with DataLoader(Numbers(4), 2) as loader:
        (loader.events.subscribe if register == "subscribe" else loader.on_wait)(call)
        with pytest.raises(Expired):
            list(loader)
        loader._engine.callbacks._called = 0
        assert flat(loader) == list(range(4))
        assert len(calls) > 1


class Handles:
    def method(self, number, frame):
        expire(number, frame)

    def __call__(self, number, frame):
        expire(number, frame)


@pytest.mark.unit
@pytest.mark.parametrize("way", [expire, Handles().method, Handles(), functools.partial(Handles().method)])
def test_handlers_of_all_kinds_are_recognized(way):
    signal.signal(signal.SIGUSR1, way)
    with pytest.raises(Expired) as raised:
        interrupt()
    assert raised_by_handler(raised.value)


@pytest.mark.unit
def test_other_errors_are_not_taken_for_those_of_a_handler():
    with pytest.raises(ZeroDivisionError) as raised:
        1 / 0  # noqa: B018
    assert not raised_by_handler(raised.value)
    found = []

    def call():
        try:
            expire(0, None)
        except Expired as error:
            found.append(raised_by_handler(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert found == [False]  # handlers run on the main thread
