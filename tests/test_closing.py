"""Closing a loader while it is used: from other threads, subscribers, callbacks, signal handlers and finalizers."""

from __future__ import annotations

import collections
import gc
import itertools
import os
import signal
import threading
import types

import pytest
import torch
from datasets import Numbers, Slow, flat, wait_for
from interleave import Line
from stand_in import StandIn

from nbloader import DataLoader, LoaderClosedError, NbloaderError, WorkerStartError
from nbloader import events as ev
from nbloader.device import placement
from nbloader.device.transfer import BatchKey, DeviceLane, DeviceTransfer
from nbloader.engine.local_iteration import LocalIteration
from nbloader.engine.receiver import Receiver
from nbloader.engine.timeouts import WaitTimer

BATCHES = 4


def threads(prefix):
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


def dataset_loader(**options):
    return DataLoader(Slow(2 * BATCHES, wait=0.001), 2, **options)


def source_loader(**options):
    left = iter(range(BATCHES))
    return DataLoader.from_source(lambda size: [next(left)] * size, 2, **options)


def device_loader(**options):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(placement, "device_transfer", lambda *_, **__: DeviceTransfer([StandIn()], 1))
        return dataset_loader(**options)


LOADERS = {
    "threads": lambda: dataset_loader(num_workers=1, workers="thread"),
    "threads and a device": lambda: device_loader(num_workers=1, workers="thread"),
    "chunks": lambda: dataset_loader(num_workers=1, workers="thread", chunk_size=1),
    "source": lambda: source_loader(num_workers=1, workers="thread"),
    "inline": dataset_loader,
    "inline source": source_loader,
}


@pytest.mark.unit
@pytest.mark.parametrize("create", LOADERS.values(), ids=LOADERS)
def test_a_loader_can_be_closed_at_any_line_of_the_loop(create):
    """The loop ends with LoaderClosedError, unless it had all of its batches. (Process workers share this code.)"""

    def iterate(line=None):
        loader, closed = create(), []
        gc.disable()  # a finalizer of another loader would add lines
        got = 0
        loop = getattr(loader._engine, "_loop", None)
        here = Line("engine", "device/transfer.py", unless=lambda: loop is not None and loop._not_running._is_owned())
        try:
            with here:
                here.at(line, lambda: closed.append(loader.close()))
                try:
                    for _batch in loader:
                        got += 1
                except LoaderClosedError:
                    assert closed, line
                else:
                    assert got == BATCHES, line
        finally:
            gc.enable()
            loader.close()
        return list(here.lines)

    for line in iterate():
        iterate(line)


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_closing_a_loader_whose_consumer_is_about_to_wait(workers, monkeypatch):
    """The descriptor that it would wait for is closed then."""
    check = WaitTimer.check

    def close_first(*args, **options):
        closer = threading.Thread(target=loader.close)
        closer.start()
        closer.join()
        return check(*args, **options)

    with DataLoader(Slow(8, wait=0.01), 2, num_workers=1, workers=workers) as loader:
        monkeypatch.setattr(WaitTimer, "check", close_first)
        with pytest.raises(LoaderClosedError, match="closed during the iteration"):
            list(loader)


@pytest.mark.unit
def test_closing_while_the_consumer_waits_for_uploads():
    class Emptied(collections.deque):
        """Another thread empties it after this one has looked."""

        lengths = iter([1])

        def __len__(self):
            return next(self.lengths, super().__len__())

    lane = DeviceLane(StandIn(), 0)
    lane._in_flight = Emptied()
    payload = types.SimpleNamespace(open=lambda: torch.ones(2), mapping=None)
    assert len(lane.deliver(BatchKey(0, 0), payload).batch) == 2


@pytest.mark.parametrize("workers", [None, "thread"])
def test_a_subscriber_can_close_the_loader_at_any_event(workers):
    options = {} if workers is None else {"num_workers": 1, "workers": workers}
    for at in itertools.count(1):
        with DataLoader(Numbers(4), 2, **options) as loader:
            seen = itertools.count(1)
            loader.events.subscribe(lambda _event, count=seen, close=loader.close, at=at: next(count) == at and close())
            got = []
            try:
                got.extend(loader)
            except LoaderClosedError:
                assert flat(got) == list(range(2 * len(got)))
            else:
                assert flat(got) == list(range(4))
            if next(seen) <= at:
                break
    assert at > 3


def test_concurrent_calls_close_a_loader_once():
    with DataLoader(Slow(40), 2, num_workers=1, workers="thread") as loader:
        closed = loader.events.subscribe()
        next(iter(loader))
        closers = [threading.Thread(target=loader.close) for _ in range(4)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
        assert [type(event) for event in closed.drain()].count(ev.LoaderClosed) == 1
        assert not threads("nbloader-worker")


def test_a_loader_that_is_closed_while_its_dataset_is_pickled_keeps_nothing():
    class Closes(Numbers):
        def __getstate__(self):
            loader.close()
            return vars(self)

    with DataLoader(Closes(4), 2, num_workers=1, multiprocessing_context="forkserver") as loader:
        with pytest.raises(LoaderClosedError):
            iter(loader)
        assert not loader._engine.loaded


@pytest.mark.parametrize("workers", [None, "thread", "process"])
def test_a_signal_handler_can_close_a_loader_that_it_has_interrupted(workers, monkeypatch):
    """As at the end of a job's time: SIGTERM. It must not wait for what it has interrupted."""
    options = {} if workers is None else {"num_workers": 1, "workers": workers}
    cls, name = (LocalIteration, "_produce") if workers is None else (Receiver, "take")
    original, states = getattr(cls, name), []

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGUSR1)
        return original(*args)

    def handle(_number, _frame):
        loader.close()
        states.append(loader.stats().state)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with DataLoader(Numbers(8), 2, **options) as loader:
            it = iter(loader)
            with monkeypatch.context() as patched:
                patched.setattr(cls, name, interrupted)
                with pytest.raises(LoaderClosedError):
                    list(it)
        assert set(states) == {"closed"}
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_callback_that_waits_for_a_batch_of_its_own_loader_is_an_error():
    """The thread that calls it receives the batches."""
    errors = []

    def iterate(event):
        if isinstance(event, ev.LoaderPaused):
            loader.resume()
            try:
                next(epoch)
            except NbloaderError as error:
                errors.append(str(error))

    with DataLoader(Slow(8, wait=0.2), 2, num_workers=1) as loader:
        epoch = iter(loader)
        with loader.events.subscribe(iterate):
            loader.pause()
            wait_for(lambda: errors)
        assert "Iterate on another thread" in errors[0]
        assert flat(epoch) == list(range(8))


# ---- threads that cannot be started


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_loop_that_cannot_be_started_is_an_error_and_the_next_epoch_works(workers, monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "nbloader-loop":
            raise RuntimeError("can't start new thread")
        start(thread)

    with DataLoader(Numbers(4), 2, num_workers=1, workers=workers) as loader:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(
                WorkerStartError, match=r"supervises the workers .* can't start .*RLIMIT_NPROC.*ulimit -u"
            ):
                iter(loader)
            assert not threads("nbloader")
            assert loader._engine._group.pool is None
        assert flat(loader) == list(range(4))


def test_a_source_whose_thread_cannot_be_started_is_an_error(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with source_loader() as loader, monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(NbloaderError, match=r"calls the source .*ulimit -u"):
            iter(loader)
