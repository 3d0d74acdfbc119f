"""The explorer's requests, sources and workers: what is read, in which order, and what happens when it fails."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import threading
import time

import numpy as np
import pytest
import torch
from datasets import run_script, wait_for

from nbloader import DataLoader
from nbloader.explorer import fetcher as fetcher_module
from nbloader.explorer.adapters import EndOfStreamError, Stream
from nbloader.explorer.fetcher import SampleFetcher
from nbloader.explorer.reader import ReadSample, Request
from nbloader.explorer.requests import RequestQueue, SampleCache
from nbloader.explorer.sources import delivered, source_of

unit = pytest.mark.unit
TIMEOUT = 90


def taken(queue):
    """All requests, in order, as indices."""
    return [request.index for request in iter(queue.take, None)]


@unit
def test_what_was_scrolled_past_is_dropped():
    queue = RequestQueue()
    queue.want("a", range(100), ())
    assert queue.take() == Request(0)
    queue.want("a", [500, 501], ())
    assert taken(queue) == [500, 501]
    assert not queue.waiting
    assert len(queue.reading) == 3


@unit
def test_one_sample_in_full_comes_before_what_is_on_screen_and_views_are_served_in_turn():
    queue = RequestQueue()
    queue.want("a", [1, 2, 3], ())
    queue.want("b", [2, 9], [Request(9)])
    queue.ask(Request(7, draw=1))
    assert taken(queue) == [7, 1, 2, 3]
    queue.finish(Request(2))
    queue.want("b", [2], ())
    assert queue.take() == Request(2)


@unit
def test_a_view_that_is_gone_and_a_request_that_is_being_read_are_not_taken():
    queue = RequestQueue()
    queue.want("a", [1], ())
    queue.want("b", [2], ())
    queue.forget("b")
    assert taken(queue) == [1]
    queue.want("a", [1], ())
    assert not queue.waiting
    assert queue.take() is None


@unit
def test_the_cache_is_bounded_and_keeps_what_was_used_last():
    cache = SampleCache(250)
    for index in range(3):
        cache.put(Request(index), ReadSample("x" * 100, [], 0, 0))
        cache.get(Request(0))
    assert Request(0) in cache
    assert Request(1) not in cache
    cache.put(Request(5), ReadSample("x", [bytes(1000)], 0, 0))
    assert Request(5) in cache  # one that is larger than the cache is kept alone
    assert Request(0) not in cache


@unit
def test_what_can_be_explored():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(6)), batch_size=2)
    columns = {"data": np.zeros((5, 2)), "target": [0, 1, 0, 1, 0], "target_names": ["a", "b"], "DESCR": "text"}
    source = source_of(columns, 10)
    assert (source.total, source.names) == (5, {"*": ["a", "b"]})
    assert set(source.dataset[3]) == {"data", "target"}
    assert source_of({"x": 1, "y": 2}, 10).dataset[1] == {"key": "y", "value": 2}
    assert source_of(loader, 10).total == 6
    assert source_of(np.zeros((4, 3)), 10).total == 4
    for wrong in (3, "text", None):
        with pytest.raises(TypeError, match="explore"):
            source_of(wrong, 10)
    with DataLoader(list(range(12)), batch_size=4, shuffle=False) as ours:
        list(ours)
        source = source_of(ours, 10)
        assert source.total == 12
        assert source.loader is ours
        assert delivered(ours, 6) == [8, 9, 10, 11, 4, 5]


class Awkward:
    """Most samples are random numbers; some raise, hang or end the worker."""

    def __init__(self, release=None):
        self.release = release
        self.waiting = None if release is None else threading.Event()

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 3:
            raise ValueError("bad sample")
        if index == 4 and self.release is not None:
            self.waiting.set()
            self.release.wait()
        if index == 5:
            os._exit(3)
        return np.random.rand(2)


class Collected:
    """A fetcher, and what it has read."""

    def __init__(self, x, kind, **options):
        self.read, self.reports, self.notes, self.problems = {}, [], [], []
        self._changed = threading.Condition()
        self.fetcher = SampleFetcher(
            source_of(x, 50), (), num_workers=options.get("num_workers", 2), kind=kind, seed=0,
            on_read=self._add, on_note=self.notes.append, on_problem=self.problems.append,
        )  # fmt: skip

    def _add(self, samples):
        with self._changed:
            self.reports.append([request.index for request, _ in samples])
            self.read.update(samples)
            self._changed.notify_all()

    def wait_for(self, *indices, draw=0):
        """Wait until these were read. Returns their contents."""
        requests = [Request(index, draw) for index in indices]
        with self._changed:
            assert self._changed.wait_for(lambda: all(r in self.read for r in requests), TIMEOUT), self.read.keys()
        return [json.loads(self.read[request].content) for request in requests]

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.fetcher.close()


def value_of(content):
    """What the card of a sample says of its value."""
    return content["fields"][0]["summary"]


def test_samples_are_read_by_worker_processes_and_failures_stay_in_their_place():
    with Collected(Awkward(), "process") as reader:
        assert reader.fetcher.want("view", [0, 3, 5, 6, 7]) == []
        one, bad, dead, six, _ = reader.wait_for(0, 3, 5, 6, 7)
        assert "bad sample" in bad["error"]
        assert "__getitem__" in bad["traceback"]
        assert dead["error"] == "The worker exited with code 3."
        assert value_of(one) != value_of(six)
        # What was read is there; the same draw gives the same sample, another one does not.
        assert {request.index for request, _ in reader.fetcher.want("view", [0, 3])} == {0, 3}
        reader.fetcher.ask(Request(0, draw=1))
        (other,) = reader.wait_for(0, draw=1)
        assert value_of(other) != value_of(one)


def test_samples_without_tensors_are_read_without_importing_torch(tmp_path):
    """Importing torch takes seconds, for which a notebook that has only used NumPy would wait for its first sample."""
    done = run_script(
        """
        import sys
        import threading

        import numpy as np
        from nbloader.explorer.fetcher import SampleFetcher
        from nbloader.explorer.sources import source_of

        class Pictures:
            def __len__(self):
                return 3

            def __getitem__(self, i):
                return np.zeros((8, 8, 3), np.uint8), i

        read = threading.Event()
        fetcher = SampleFetcher(
            source_of(Pictures(), 1), (), num_workers=2, kind="process", seed=0,
            on_read=lambda _samples: read.set(), on_note=lambda _line: None, on_problem=print,
        )
        fetcher.want("view", range(3))
        print(read.wait(60), "torch" in sys.modules)
        fetcher.close()
        """,
        tmp_path,
    )
    assert (done.stdout.split(), done.stderr) == (["True", "False"], "")


def test_a_hung_sample_can_be_given_up_and_the_others_are_read_meanwhile(monkeypatch):
    monkeypatch.setattr(fetcher_module, "PATIENCE", 0.05)
    release = threading.Event()
    with Collected(Awkward(release), "thread", num_workers=1) as reader:
        reader.fetcher.want("view", [4, 10, 11])
        reader.wait_for(10, 11)  # another worker was started
        assert Request(4) not in reader.read
        reader.fetcher.give_up(4)
        (given_up,) = reader.wait_for(4)
        assert "nbloader gave up after" in given_up["error"]
        release.set()
        del reader.read[Request(4)]
        reader.fetcher.retry([4])
        (again,) = reader.wait_for(4)
        assert "error" not in again


class Guarded:
    """Samples are read under one lock. Sample 4 waits, with the lock, for a file."""

    def __init__(self, folder):
        self.lock = multiprocessing.get_context("spawn").Lock()
        self.inside, self.go = folder / "inside", folder / "go"

    def __len__(self):
        return 100

    def __getitem__(self, index):
        with self.lock:
            if index == 4:
                self.inside.touch()
                while not self.go.exists():
                    time.sleep(0.002)
            return index


@pytest.mark.parametrize("how", ["give up", "retry"])
def test_a_worker_whose_sample_is_dropped_releases_its_lock(how, tmp_path):
    dataset = Guarded(tmp_path)
    with Collected(dataset, "process", num_workers=2) as reader:
        reader.fetcher.want("view", [4])
        wait_for(dataset.inside.exists)
        if how == "give up":
            reader.fetcher.give_up(4)
            reader.wait_for(4)
        else:
            reader.fetcher.retry([5])
        dataset.go.touch()
        reader.fetcher.want("view", [6, 7])
        reader.wait_for(6, 7)


def test_what_cannot_be_pickled_is_read_in_processes():
    dataset = Awkward()
    dataset.lines = (line for line in ())  # a generator cannot be pickled
    with Collected(dataset, "process") as reader:
        reader.fetcher.want("view", [0])
        assert "error" not in reader.wait_for(0)
        assert not any("Read in threads" in note for note in reader.notes)


def test_the_thread_and_the_workers_end_when_nothing_is_asked_for_and_come_back(monkeypatch):
    monkeypatch.setattr(fetcher_module, "IDLE", 0.05)
    with Collected(Awkward(), "thread") as reader:
        reader.fetcher.want("view", [0])
        reader.wait_for(0)
        thread = next((t for t in threading.enumerate() if t.name == "nbloader-explorer"), None)
        if thread is not None:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
        reader.fetcher.want("view", [1])
        reader.wait_for(1)


def test_the_most_urgent_sample_is_reported_at_once_and_the_others_together(monkeypatch):
    monkeypatch.setattr(fetcher_module, "COLLECT", 1000.0)
    with Collected(Awkward(), "thread", num_workers=1) as reader:
        for wanted in ([10, 11, 12, 13], [20, 21, 22]):
            reader.fetcher.want("view", wanted)
            reader.wait_for(*wanted)
        assert reader.reports == [[10], [11, 12, 13], [20], [21, 22]]


def test_what_was_asked_for_does_not_wait_for_what_is_on_screen(monkeypatch):
    monkeypatch.setattr(fetcher_module, "COLLECT", 1000.0)
    release = threading.Event()
    with Collected(Awkward(release), "thread", num_workers=1) as reader:
        reader.fetcher.want("view", [1])
        reader.wait_for(1)
        reader.fetcher.want("view", [4, 50])  # the worker hangs with the first one
        reader.fetcher.ask(Request(7, draw=1))
        release.set()
        reader.wait_for(50)
        assert [7] in reader.reports


def test_what_was_read_before_try_again_is_not_reported(monkeypatch):
    monkeypatch.setattr(fetcher_module, "COLLECT", 1000.0)
    dataset = Awkward(threading.Event())
    with Collected(dataset, "thread", num_workers=1) as reader:
        reader.fetcher.want("view", [1, 2, 4])
        assert dataset.waiting.wait(TIMEOUT)  # 2 is held back while the worker reads 4
        reader.fetcher.retry([2])
        dataset.release.set()
        reader.fetcher.want("view", [60])  # is read after what was asked for
        reader.wait_for(60)
        assert [index for report in reader.reports for index in report].count(2) == 1


class Asynchronous:
    """Samples are awaited; what they share belongs to the event loop of the first one."""

    def __init__(self):
        self.loops = set()

    def __len__(self):
        return 9

    async def __getitem__(self, index):
        await asyncio.sleep(0)
        self.loops.add(asyncio.get_running_loop())
        return index


def test_asynchronous_samples_are_awaited_on_one_event_loop():
    dataset = Asynchronous()
    with Collected(dataset, "thread", num_workers=1) as reader:
        reader.fetcher.want("view", [3, 4])
        assert [value_of(content) for content in reader.wait_for(3, 4)] == ["3", "4"]
    assert len(dataset.loops) == 1


def test_a_stream_is_read_as_far_as_it_is_looked_at_and_its_end_is_found():
    asked = []

    def numbers():
        for number in range(5):
            asked.append(number)
            yield number

    with Collected(numbers(), "thread") as reader:
        assert len(reader.fetcher._source.dataset) == 50
        reader.fetcher.want("view", [2, 1])
        assert [value_of(content) for content in reader.wait_for(1, 2)] == ["1", "2"]
        assert asked == [0, 1, 2]
        reader.fetcher.want("view", [9])
        reader.wait_for(9)
        assert reader.read[Request(9)].end == 5


def test_a_sample_of_a_stream_that_raised_raises_again():
    def numbers():
        yield 1
        raise KeyError("record 1")

    stream = Stream(numbers(), 10)
    assert stream[0] == 1
    for _ in range(2):
        with pytest.raises(KeyError, match="record 1"):
            stream[1]
    with pytest.raises(EndOfStreamError):
        stream[2]
