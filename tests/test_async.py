"""Datasets with `async def __getitem__`: many samples wait at a time, and everything else is as for other datasets."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import heapq
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from datasets import alive, all_pids, flat, pids, wait_for
from same import assert_same
from test_dispatcher import Played
from test_docs import OUTPUT, ROOT, code
from torch.utils.data import ConcatDataset, Subset
from waits import AtOnce, Augmented, Backwards, Gated, Hangs, Kills, Raises, Together, Waits, WithTorch

import nbloader
from nbloader import DataLoader, LoaderTimeoutError, WorkerDiedError
from nbloader.events import BatchRecord
from nbloader.report.trace import Trace
from nbloader.scheduler.dispatcher import MAX_DEATHS
from nbloader.scheduler.prefetch import Load, Window
from nbloader.workers.fetcher import is_async

KINDS = {
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "workers": "thread"},
    "forked processes": {"num_workers": 1, "multiprocessing_context": "fork"},
    "no workers": {"num_workers": 0},
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def threaded(dataset, *args, **kwargs):
    """A loader with one worker thread, which uses the dataset itself."""
    return DataLoader(dataset, *args, **{"num_workers": 1, "workers": "thread", **kwargs})


# ---- concurrency and order


@every_kind
def test_as_many_samples_as_concurrency_says_wait_at_a_time_across_batches(kind):
    # So many samples that a worker that starts late gets 48 of them, too.
    with DataLoader(Together(1_000_000, 48), batch_size=5, concurrency=48, **kind) as loader:
        for number, (indices, peaks) in enumerate(loader):
            assert indices.tolist() == list(range(5 * number, 5 * number + 5))
            assert peaks.max() <= 48
            if number >= 120 and peaks.max() == 48:
                break


def test_batches_are_delivered_in_order_whichever_is_complete_first():
    dataset = Backwards(60, count=40, step=4)
    with threaded(dataset, batch_size=4, concurrency=40) as loader:
        assert flat(loader) == list(range(60))
    assert dataset.ended[:4] == [36, 37, 38, 39]


def test_out_of_order_what_is_complete_is_delivered():
    with threaded(Backwards(40, count=40, step=4), batch_size=4, concurrency=40, in_order=False) as loader:
        assert flat(loader)[:4] == [36, 37, 38, 39]


def test_samples_that_end_start_the_next_ones_before_batches_are_collated():
    """Those that end in one turn of the event loop: collating all of their batches first would delay the next ones."""
    log: list[object] = []

    class Opened(Waits):
        async def wait(self, i):
            log.append(i)
            if i < 16:
                if not i:
                    self.loop, self.gate = asyncio.get_running_loop(), asyncio.Event()
                await self.gate.wait()

    def collate(samples):
        log.append("collate")
        return samples

    dataset = Opened(48)
    with threaded(dataset, batch_size=4, concurrency=16, prefetch=12, collate_fn=collate) as loader:
        epoch = iter(loader)
        wait_for(lambda: len(log) == 16 and loader.stats().in_flight == 12, "the first samples, and all in the queue")
        dataset.loop.call_soon_threadsafe(dataset.gate.set)
        assert flat(epoch) == list(range(48))
    assert set(range(32)) <= set(log[: log.index("collate")])


@pytest.mark.parametrize("arguments", [{"batch_size": None}, {"batch_size": 8, "chunk_size": 2}], ids=str)
def test_samples_without_batches_and_batches_in_chunks(arguments):
    with threaded(Together(96, 32), concurrency=32, num_workers=1, **arguments) as loader:
        samples = [batch[0] for batch in loader]
    assert (samples if arguments["batch_size"] is None else flat(samples)) == list(range(96))


def test_batches_of_any_size_from_a_batch_sampler():
    batches = [list(range(i, i + 1 + i % 7)) for i in range(100)]
    with threaded(Together(200, 64), batch_sampler=[*batches, []], collate_fn=list, concurrency=64) as loader:
        assert [[i for i, _peak in batch] for batch in loader] == [*batches, []]


def test_a_loader_works_in_a_running_event_loop_as_in_a_notebook():
    async def cell():
        with DataLoader(Waits(20), batch_size=5) as loader:
            return flat(loader)

    with ThreadPoolExecutor(1) as thread:  # on the main thread the loop of the browser tests may be running
        assert thread.submit(asyncio.run, cell()).result() == list(range(20))


def test_getitems_is_one_call_a_batch_and_counts_as_its_samples():
    with threaded(AtOnce(120, 40), batch_size=5, concurrency=40) as loader:
        assert flat(loader) == list(range(120))


def test_subsets_and_concatenations_are_looked_through():
    dataset = ConcatDataset([Subset(Together(100, 1), range(10, 50)), list(range(3)), Waits(5)])
    assert is_async(dataset)
    assert is_async(Subset(AtOnce(1, 1), [0]))
    assert not is_async(Subset(list(range(3)), [0]))
    expected = [(i, 1) for i in range(10, 50)] + list(range(3)) + list(range(5))
    with threaded(dataset, batch_size=6, concurrency=1, collate_fn=list) as loader:
        assert [sample for batch in loader for sample in batch] == expected
    with threaded(Subset(Together(100, 16), range(50)), batch_size=4, concurrency=16) as loader:
        assert flat(indices for indices, _peak in loader) == list(range(50))
    with threaded(Subset(AtOnce(100, 16), range(50)), batch_size=4, concurrency=16) as loader:
        assert flat(loader) == list(range(50))


def test_what_asyncio_cannot_load_is_an_error():
    class Stream:
        async def __aiter__(self):
            yield 1

    with pytest.raises(TypeError, match=r"only __aiter__.*async def __getitem__"):
        next(iter(DataLoader(Stream())))
    with pytest.raises(ValueError, match="concurrency must be at least 1, not 0"):
        DataLoader(Waits(3), concurrency=0)

    class Wrapper(Waits):
        def __getitem__(self, i):
            self.coroutine = super().__getitem__(i)
            return self.coroutine

    dataset = Wrapper(3)
    with pytest.raises(TypeError, match="sample 0 is a coroutine"):
        next(iter(DataLoader(dataset)))
    dataset.coroutine.close()


# ---- errors


@every_kind
def test_an_error_names_the_sample_and_the_other_batches_come(kind):
    with DataLoader(Raises(40, 13), batch_size=4, **kind) as loader:
        epoch = iter(loader)
        assert flat(next(epoch) for _ in range(3)) == list(range(12))
        with pytest.raises(ValueError, match="bad sample 13") as raised:
            next(epoch)
        assert flat(epoch) == list(range(16, 40))
    assert any("13" in note for note in raised.value.__notes__)
    where = str(raised.value.__cause__) if kind.get("workers") is None and kind["num_workers"] else ""
    assert "in wait" in where or any(entry.name == "wait" for entry in raised.traceback)


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
@pytest.mark.parametrize("dataset", [Raises, AtOnce])
def test_samples_that_raise_are_skipped_or_replaced(dataset, error):
    make = (lambda: AtOnce(24, 1, bad=(5, 6, 17))) if dataset is AtOnce else (lambda: Raises(24, 5, 6, 17, error=error))
    with threaded(make(), batch_size=4, on_error="skip") as loader:
        assert flat(loader) == [i for i in range(24) if i not in {5, 6, 17}]
        assert loader.stats().skipped == 3
    with threaded(make(), batch_size=4, on_error=lambda i, error: -i) as loader:
        assert flat(loader) == [-i if i in {5, 6, 17} else i for i in range(24)]


def test_what_the_replacement_raises_is_raised():
    def fail(index, error):
        raise KeyError(index)

    with threaded(Raises(8, 5), batch_size=4, on_error=fail) as loader:
        epoch = iter(loader)
        next(epoch)
        with pytest.raises(KeyError, match="5"):
            next(epoch)


def test_a_replacement_may_raise_what_is_not_an_exception():
    def cancel(_index, _error):
        raise asyncio.CancelledError

    with threaded(Raises(12, 5), batch_size=4, on_error=cancel) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(RuntimeError, match="CancelledError"):
            next(batches)
        assert next(batches).tolist() == [8, 9, 10, 11]


def test_a_sample_that_never_ends_is_named_by_the_timeout():
    with (
        threaded(Hangs(40, 13), batch_size=4, timeout=1) as loader,
        pytest.raises(LoaderTimeoutError, match=r"batch 3 for .*, at sample 13[\s\S]*waits.py\", line \d+ in never"),
    ):
        list(loader)


def test_after_a_timeout_another_worker_produces_the_batch():
    dataset = Hangs(40, 13, once=True)
    with threaded(dataset, batch_size=4, timeout=1, on_timeout="restart") as loader:
        assert flat(loader) == list(range(40))
        wait_for(lambda: dataset.cancelled == [13])


# ---- random numbers


def test_a_sample_draws_the_same_numbers_whatever_the_order_and_the_worker():
    def epoch(dataset, **arguments):
        torch.manual_seed(5)
        with DataLoader(dataset, batch_size=4, **arguments) as loader:
            return list(loader)

    expected = epoch(WithTorch(32, 0), concurrency=1)
    assert_same(epoch(WithTorch(32, 3), concurrency=32), expected)
    assert_same(epoch(WithTorch(32, 5), concurrency=32, num_workers=1), expected)
    drawn = torch.cat([batch[1] for batch in expected]).tolist()
    assert len(set(drawn)) == 32


def test_context_variables_that_a_sample_sets_end_with_it():
    """Samples are started by the tasks of others."""
    last = contextvars.ContextVar("last", default=-1)

    class SetsVariable(Waits):
        def sample(self, i):
            before = last.get()
            last.set(i)
            return before

    with threaded(SetsVariable(24), batch_size=4, concurrency=8) as loader:
        assert flat(loader) == [-1] * 24


def test_a_resumed_epoch_draws_the_same_numbers():
    def loader():
        return threaded(Augmented(32, 3), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))

    with loader() as first:
        epoch = iter(first)
        next(epoch), next(epoch)
        state = first.state_dict()
        expected = list(epoch)
    with loader() as second:
        second.load_state_dict(state)
        assert_same(list(second), expected)


def test_the_generators_of_the_notebook_are_not_touched():
    np.random.seed(3)
    expected = np.random.RandomState(3).rand(2).tolist()
    with DataLoader(Augmented(8, 1), batch_size=4) as loader:
        drawn = [np.random.rand()]
        list(loader)
    assert [*drawn, np.random.rand()] == expected


def test_a_collate_function_draws_by_the_seed_of_its_batch():
    def draw(_samples):
        return nbloader.get_worker_info().rng.numpy_generator.random()

    def epoch(concurrency):
        torch.manual_seed(5)
        with threaded(Augmented(24, 3), 4, concurrency=concurrency, collate_fn=draw) as loader:
            return list(loader)

    assert epoch(1) == epoch(24)


# ---- the end of an iteration


def test_samples_of_an_iteration_that_has_ended_are_cancelled():
    dataset = Hangs(80, first=8, last=79)
    with threaded(dataset, batch_size=4, concurrency=32) as loader:
        for batch in loader:
            if 7 in batch:
                break
        wait_for(lambda: dataset.cancelled, "the cancellation")
        wait_for(lambda: not (dataset.running and loader.stats().workers[0].batch), "that of all of them")
        dataset.hang = False
        assert flat(loader) == list(range(80))
        assert sorted(dataset.cancelled)[:4] == [8, 9, 10, 11]


def test_processes_cancel_them_too_and_the_next_epoch_begins():
    dataset = Hangs(80, first=8, last=79)
    with DataLoader(dataset, batch_size=4, concurrency=32, num_workers=1) as loader:
        epoch = iter(loader)
        assert flat([next(epoch), next(epoch)]) == list(range(8))
        wait_for(lambda: loader.stats().workers[0].sample == 8, "the worker at sample 8")
        wait_for(lambda: "in never" in loader.stack(0))  # it may not be there yet
        dataset.hang = False
        assert flat(loader) == list(range(80))  # `epoch` is still open: iterations of one worker do not overlap
        del epoch


def test_closing_a_loader_ends_its_samples_and_closes_the_dataset(tmp_path):
    dataset = Gated(40, tmp_path)
    loader = DataLoader(dataset, batch_size=4, concurrency=16, num_workers=1)
    epoch = iter(loader)
    wait_for(lambda: len(dataset.begun()) >= 16, "sixteen samples")
    (pid,) = all_pids(loader)
    loader.close()
    assert not alive(pid)
    assert (tmp_path / "closed").read_text() == f"{pid}\n"
    assert len(dataset.begun()) == 16
    del epoch


# ---- workers that end


def test_what_a_killed_worker_was_processing_is_produced_by_others_once(tmp_path):
    dataset = Gated(120, tmp_path)
    with DataLoader(dataset, batch_size=4, concurrency=16, num_workers=2) as loader:
        epoch = iter(loader)
        wait_for(lambda: len(dataset.begun()) >= 32, "samples in both workers")
        killed = all_pids(loader)[0]
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: not alive(killed), "the end of the worker")
        wait_for(lambda: killed not in pids(loader), "its replacement")
        dataset.gate.touch()
        assert flat(epoch) == list(range(120))
    by_killed = [i for pid, i in dataset.begun() if pid == killed]
    by_others = [i for pid, i in dataset.begun() if pid != killed]
    assert len(by_killed) == 16
    assert sorted(by_others) == list(range(120))


def test_the_batch_that_ends_workers_is_found_among_those_in_flight():
    with DataLoader(Kills(80, bad=21), batch_size=4, concurrency=32, num_workers=1, max_restarts=MAX_DEATHS) as loader:
        epoch = iter(loader)
        assert flat(next(epoch) for _ in range(5)) == list(range(20))
        with pytest.raises(WorkerDiedError, match="batch 5"):
            next(epoch)
        assert flat(epoch) == list(range(24, 80))


def test_a_worker_is_replaced_and_a_loader_paused_while_samples_wait():
    dataset = Hangs(40, first=6, last=39)
    with threaded(dataset, batch_size=4, concurrency=16) as loader:
        epoch = iter(loader)
        assert flat([next(epoch)]) == [0, 1, 2, 3]
        loader.pause()
        dataset.hang = False
        loader.restart_workers()
        wait_for(lambda: dataset.cancelled, "the end of the worker")
        assert loader.stats().state == "paused"
        loader.resume()
        assert flat(epoch) == list(range(4, 40))


# ---- what is shown


def test_records_say_how_long_a_batch_took_and_which_sample_was_slowest():
    class SlowAtFive(Waits):
        async def wait(self, i):
            while i == 5 and not self.others_done:  # noqa: ASYNC110 - a turn for each sample
                await asyncio.sleep(0)
            self.others_done = i == 19

        others_done = False

    records: list[BatchRecord] = []
    with threaded(SlowAtFive(20), batch_size=4, concurrency=20) as loader:
        loader.events.subscribe(lambda event: records.append(event) if isinstance(event, BatchRecord) else None)
        assert flat(loader) == list(range(20))
    assert [record.index for record in records] == list(range(5))
    slow = records[1]
    assert slow.slowest_index == 5
    assert slow.fetched - slow.fetch_begin >= slow.slowest_ns > 0
    assert slow.fetched >= records[-1].fetch_begin  # they overlap
    entries = json.loads(Trace(records).to_json())["traceEvents"]
    begins, ends = ([e for e in entries if e["ph"] == phase and e["name"].startswith("fetch")] for phase in "be")
    assert [e["name"] for e in begins] == [e["name"] for e in ends] == [f"fetch {i}" for i in range(5)]
    assert all(record.fetch_cpu is not None for record in records[:1])


# ---- a real server


@contextlib.contextmanager
def web_server(needed: int):
    """A server whose responses wait until `needed` requests are there at the same time. Gives (url, seen)."""
    web = pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")
    started, loop = threading.Event(), asyncio.new_event_loop()
    seen: dict[str, int] = {"now": 0, "most": 0}

    async def respond(request):
        seen["now"] += 1
        seen["most"] = max(seen["most"], seen["now"])
        if seen["most"] >= needed:
            enough.set()
        await enough.wait()
        seen["now"] -= 1
        return web.Response(text=request.match_info["i"])

    async def start():
        app = web.Application()
        app.router.add_get("/{i}", respond)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        seen["port"] = runner.addresses[0][1]
        return runner

    def run():
        runner = loop.run_until_complete(start())
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    enough = asyncio.Event()
    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        yield f"http://127.0.0.1:{seen['port']}", seen
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def test_the_example_of_the_guide_fetches_pages_from_a_web_server(capsys):
    pytest.importorskip("aiohttp")
    page = ROOT / "docs/how-to/load-asynchronously.md"
    example, output = next(zip(code(page), OUTPUT.findall(page.read_text(encoding="utf-8")), strict=False))
    with web_server(needed=60) as (url, seen):
        exec(example.replace("http://localhost:8000", url).replace("concurrency=20", "concurrency=30"), {})
        assert seen["most"] == 60
    printed = capsys.readouterr()
    assert printed.out == output
    assert "Unclosed" not in printed.err


# ---- decisions


def test_the_window_holds_the_batches_in_flight_and_some_more():
    window = Window(Load(num_workers=2, concurrency=500))
    assert window.plan.size == 4
    window.expect(10)
    assert (window.plan.size, window.depth(0)) == (2 * (50 + 13), 63)
    assert window.depth(1) == 4 * 51
    assert window.room(window.plan.size, 0) == 0
    assert window.room(10 * window.plan.size, 10 * window.plan.size - 1) > 0
    window.expect(1000)
    assert window.plan.size < 2 * 63
    one = Window(Load(num_workers=1, prefetch_factor=0, concurrency=64))
    assert one.prefetches
    one.expect(32)
    assert one.plan.size == 3
    total = Window(Load(num_workers=1, prefetch=5, concurrency=64))
    assert total.plan.size == 5
    assert total.room(5, 4) == 0


class SimulatedWorkers:
    """Two workers with `concurrency` samples in flight each, whose waits are distributed exponentially."""

    def __init__(self, concurrency, size):
        self.concurrency, self.size = concurrency, size
        self.waits = np.random.default_rng(1)
        self.now = 0.0
        self.unstarted = [collections.deque(), collections.deque()]
        self.running, self.left, self.ends = [0, 0], {}, []

    def submit(self, worker, jobs):
        self.unstarted[worker].extend([job, self.size] for job in jobs)
        self.left.update(dict.fromkeys(jobs, self.size))

    def start_samples(self):
        for worker, queue in enumerate(self.unstarted):
            while queue and self.running[worker] < self.concurrency:
                job = queue[0][0]
                queue[0][1] -= 1
                self.running[worker] += 1
                heapq.heappush(self.ends, (self.now + self.waits.exponential(), worker, job))
                if not queue[0][1]:
                    queue.popleft()

    def next_end(self):
        """The next sample ends. Gives (worker, job), the latter None if its batch is not complete."""
        self.now, worker, job = heapq.heappop(self.ends)
        self.running[worker] -= 1
        self.left[job] -= 1
        return worker, None if self.left[job] else job


@pytest.mark.parametrize("round_robin", [False, True])
@pytest.mark.parametrize(("concurrency", "size", "least"), [(100, 16, 0.9), (64, 32, 0.7)])
def test_samples_stay_in_flight_although_some_take_longer(concurrency, size, least, round_robin):
    policy = Window(Load(num_workers=2, prefetch_factor=2, concurrency=concurrency))
    policy.expect(size)
    dispatcher = Played(policy, round_robin=round_robin)
    dispatcher.slots = 2
    dispatcher.open_iteration(0)
    workers = SimulatedWorkers(concurrency, size)
    dispatcher.worker_ready(0, 0)
    dispatcher.worker_ready(1, 1)
    batches, taken = 200 * concurrency // size, 0
    while True:
        while dispatcher.take(0) is not None:
            taken += 1
        if taken == batches:
            break
        for _ in range(min(dispatcher.refill_size(0), batches - dispatcher.iterations[0].added)):
            dispatcher.add(0, None, 0)
        for worker, tasks in dispatcher.assignments():
            workers.submit(worker, [task.job for task in tasks])
        workers.start_samples()
        worker, job = workers.next_end()
        if job is not None:
            dispatcher.result(worker, 0, job, "batch", 0)
    assert batches * size / (2 * concurrency) / workers.now > least, "of the waits that are possible"


def test_of_several_jobs_in_flight_none_is_poisoned_before_it_is_alone():
    dispatcher = Played(Window(Load(num_workers=1, prefetch_factor=3, concurrency=8)))
    dispatcher.open_iteration(0)
    tasks = [dispatcher.add(0, [i], 0) for i in range(3)]
    for worker in range(MAX_DEATHS + 1):
        dispatcher.worker_ready(worker)
        dispatcher.assignments()
        assert dispatcher.worker_gone(worker, blame=True, suspects=tasks[:2]).poisoned is None
    assert [task.deaths for task in tasks] == [MAX_DEATHS + 1, MAX_DEATHS + 1, 0]
    dispatcher.worker_ready(9)
    dispatcher.assignments()
    assert dispatcher.worker_gone(9, blame=True, suspects=tasks[1:2]).poisoned is tasks[1]


class DiesOnce:
    """Sample 0 ends the first worker while others wait. Then it returns how many samples of other batches run."""

    def __init__(self, folder):
        self._died = folder / "died"
        self._running = set()

    def __len__(self):
        return 8

    async def __getitem__(self, i):
        self._running.add(i)
        first = not self._died.exists()
        if i == 0 and first:
            while len(self._running) < len(self):  # noqa: ASYNC110 - a turn for each sample
                await asyncio.sleep(0)
            self._died.touch()
            os._exit(1)
        if first:
            await asyncio.Event().wait()  # for the end of the process
        for _ in range(100):  # turns of the event loop, in which other samples start if they may
            await asyncio.sleep(0)
        return len(self._running) - 2 if i == 0 else 0


def test_a_batch_whose_worker_has_died_is_produced_alone(tmp_path):
    with DataLoader(DiesOnce(tmp_path), batch_size=2, num_workers=1, concurrency=8) as loader:
        assert flat(loader) == [0] * 8
    assert (tmp_path / "died").exists()


def test_all_jobs_of_a_closed_iteration_are_cancelled():
    dispatcher = Played(Window(Load(num_workers=1, prefetch_factor=3, concurrency=8)), cancels_begun=True)
    dispatcher.worker_ready(0)
    dispatcher.open_iteration(0)
    for i in range(3):
        dispatcher.add(0, [i], 0)
    dispatcher.assignments()
    (cancel,) = dispatcher.close_iteration(0).cancels
    assert cancel.jobs == (0, 1, 2)
    assert not dispatcher.held_by(0)


def test_info_of_the_worker_is_available_to_samples():
    class Info(Waits):
        def sample(self, i):
            return nbloader.get_worker_info().id

    with threaded(Info(6), batch_size=3) as loader:
        assert flat(loader) == [0] * 6
