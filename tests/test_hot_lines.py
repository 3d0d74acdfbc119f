"""The lines that workers spend their time on: samples are merged and attributed, and planted slow lines are found."""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import light
import pytest
from datasets import run_script, wait_for
from hypothesis import given
from hypothesis import strategies as st

from nbloader import DataLoader, LoaderClosedError
from nbloader._platform import SAMPLE_SIGNAL, UNKNOWN, Activity, CpuTimes, state_of
from nbloader._util.code_places import is_library, place_of, source_line, with_source_lines
from nbloader.events import EpochEnded
from nbloader.events.stack_samples import STAGE_FILE, CodeLine, StackCount
from nbloader.loader import line_profiler
from nbloader.metrics import hot_lines
from nbloader.metrics.hot_lines import HotLines, LineProfile, find_hot_lines
from nbloader.workers import line_sampler, run_state
from nbloader.workers.line_sampler import LineSampler, user_lines
from nbloader.workers.run_state import RunState, RunStateReader
from nbloader.workers.status import SharedStatus, WorkerState

LINES = st.builds(CodeLine, st.sampled_from(["data.py", "lib.py", "cell"]), st.sampled_from("fg"), st.integers(1, 3))
STACKS = st.lists(LINES, min_size=1, max_size=4).map(tuple)
COUNTS = st.lists(st.builds(StackCount, STACKS, st.integers(0, 9), st.integers(9, 18), st.integers(0, 9)), max_size=30)


def found(stacks: tuple[StackCount, ...]) -> HotLines:
    return find_hot_lines(
        stacks,
        profiling=True,
        is_library=lambda file: file == "lib.py",
        source=lambda file, line: f"text of {file} {line}",
        place=lambda file, line: f"{file}:{line}",
    )


def totals(counts: list[StackCount] | tuple[StackCount, ...]) -> tuple[float, float, float]:
    return sum(c.computing for c in counts), sum(c.waiting for c in counts), sum(c.queued for c in counts)


# ---- merging ------------------------------------------------------------------------------------------------------


@pytest.mark.unit
@given(COUNTS, st.integers(1, 8))
def test_merging_loses_no_sample_and_keeps_few_stacks(counts: list[StackCount], most: int):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hot_lines, "MAX_STACKS", most)
        profile = LineProfile()
        for count in counts:
            profile.add([count])
        merged = profile.stacks()
    assert totals(merged) == totals(counts)
    assert len(merged) <= most + len({count.stack[0] for count in counts})
    assert len({count.stack for count in merged}) == len(merged)


@pytest.mark.unit
@given(COUNTS, COUNTS)
def test_the_order_of_workers_does_not_matter(one: list[StackCount], other: list[StackCount]):
    first, second = LineProfile(), LineProfile()
    for profile, parts in ((first, (one, other)), (second, (other, one))):
        for part in parts:
            profile.add(part)
    assert first.stacks() == second.stacks()


@pytest.mark.unit
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(0, 30))
def test_of_short_epochs_as_many_count_as_have_enough_samples(sizes: list[int], enough: int):
    profile = LineProfile(enough)
    for epoch, size in enumerate(sizes):
        profile.begin_epoch()
        profile.add([StackCount((CodeLine("data.py", "get", epoch),), 1.0, 0.0)] * size)
    with_samples = [(epoch, size) for epoch, size in enumerate(sizes) if size]
    expected: dict[int, int] = {}
    for epoch, size in reversed(with_samples):
        if expected and sum(expected.values()) >= enough:
            break
        expected[epoch] = size
    assert {count.stack[0].line: count.computing for count in profile.stacks()} == expected


@pytest.mark.unit
def test_samples_are_those_of_an_epoch_before_until_the_newest_one_has_some():
    profile = LineProfile(enough=2)
    early, late = (StackCount((CodeLine("data.py", "get", line),), 2.0, 0.0) for line in (1, 2))
    profile.add([early])
    profile.begin_epoch()
    profile.add([])
    assert (profile.stacks(), profile.is_current) == ((early,), False)
    profile.add([late])
    assert (profile.stacks(), profile.is_current) == ((late,), True)
    profile.begin_epoch()
    profile.clear()
    assert (profile.stacks(), profile.is_current) == ((), True)


@pytest.mark.unit
@given(COUNTS)
def test_shares_are_sorted_and_add_up(counts: list[StackCount]):
    profile = LineProfile()
    profile.add(counts)
    hot = found(profile.stacks())
    assert [line.share for line in hot] == sorted((line.share for line in hot), reverse=True)
    assert sum(line.share for line in hot) == pytest.approx(1 if any(totals(counts)) else 0)
    assert all(line.share == pytest.approx(line.computing + line.waiting) for line in hot)
    assert all(line.queued <= line.waiting for line in hot)
    assert all(line.share <= line.total + 1e-9 <= 1 + 2e-9 for line in hot)


@pytest.mark.unit
def test_a_line_has_the_time_of_libraries_that_it_calls_and_not_of_the_users_functions():
    caller, helper = CodeLine("data.py", "get", 3), CodeLine("data.py", "help", 9)
    library, inside = CodeLine("lib.py", "resize", 70), CodeLine("data.py", "get.<lambda>", 3)
    hot = found(
        (
            StackCount((caller, library), 4, 0),
            StackCount((caller, helper), 0, 3),
            StackCount((caller, inside), 2, 0),
            StackCount((library,), 1, 0),
        )
    )
    assert [(line.place, line.function, line.share, line.total) for line in hot] == [
        ("data.py:3", "get", 0.6, 0.9),
        ("data.py:9", "help", 0.3, 0.3),
        ("lib.py:70", "resize", 0.1, 0.5),
    ]
    assert (hot[0].computing, hot[0].waiting, hot[1].waiting) == (0.6, 0.0, 0.3)
    assert (hot.samples, hot.computing, hot.waiting, len(hot)) == (10, 0.7, 0.3, 3)
    assert str(hot[1]) == "30%  text of data.py 9  (data.py:9; 0% computing, 30% waiting)"
    assert (
        repr(hot)
        == """\
Where the workers' time goes, 10 samples: 70% computing, 30% waiting
share  computing  waiting  line               place
  60%        60%       0%  text of data.py 3  data.py:3, in get
  30%         0%      30%  text of data.py 9  data.py:9, in help
  10%        10%       0%  text of lib.py 70  lib.py:70, in resize"""
    )


@pytest.mark.unit
def test_a_wait_for_a_core_is_no_computing():
    line = CodeLine("data.py", "get", 3)
    hot = found((StackCount((line,), 1, 15, 15), StackCount((line, CodeLine("lib.py", "f", 1)), 0, 4, 0)))
    assert (hot.computing, hot.waiting, hot.queued) == (0.05, 0.95, 0.75)
    assert str(hot).startswith("Where the workers' time goes, 20 samples: 5% computing, 95% waiting (75% for a core)\n")
    assert "data.py:3; 5% computing, 95% waiting (75% for a core)" in str(hot[0])
    assert hot.on_stack(hot[0]) == StackCount((), 0.05, 0.95, 0.75)


@pytest.mark.unit
@pytest.mark.parametrize(("running", "waiting"), [(1, 0), (1, 1), (1, 15), (3, 1), (0, 1)])
def test_moments_on_the_run_queue_are_divided_as_the_scheduler_counts_them(running, waiting, monkeypatch):
    state, times = "R", CpuTimes(10**9, 10**9)
    monkeypatch.setattr(run_state, "state_of", lambda *_: state)
    monkeypatch.setattr(run_state, "cpu_times", lambda _pid: times)
    reader = RunStateReader()
    reader.read(7)
    found = []
    for _ in range(160):
        times = CpuTimes(times.running + running * 1000, times.waiting + waiting * 1000)
        found.append(reader.read(7))
    assert found.count(RunState.QUEUED) == pytest.approx(160 * waiting / (running + waiting), abs=1)
    assert found.count(RunState.WAITING) == 0
    state = "S"
    assert reader.read(7) is RunState.WAITING
    state, times = "R", None
    assert reader.read(8) is RunState.COMPUTING, "the system does not tell"


@pytest.mark.unit
@pytest.mark.parametrize("share", [0.0, 0.15, 0.5, 1.0])
def test_moments_are_divided_by_cpu_time_where_the_system_reports_no_states(share, monkeypatch):
    now = used = 0
    monkeypatch.setattr(run_state, "state_of", lambda *_: UNKNOWN)
    monkeypatch.setattr(run_state, "activity", lambda _pid: Activity(UNKNOWN, int(used)))
    monkeypatch.setattr(run_state.time, "perf_counter_ns", lambda: now)
    reader = RunStateReader()
    reader.read(7)
    found = []
    for _ in range(160):
        now, used = now + 1000, used + 1000 * share
        found.append(reader.read(7))
    assert found.count(RunState.COMPUTING) == pytest.approx(160 * share, abs=1)
    assert found.count(RunState.WAITING) == 160 - found.count(RunState.COMPUTING)


@pytest.mark.unit
def test_without_samples_the_text_says_what_to_do():
    assert "profile_lines()" in str(HotLines())
    assert str(HotLines(profiling=True)) == "No samples of the workers' lines yet."
    one = replace(found((StackCount((CodeLine("f", "f", 1),), 0.6, 0.4),)), elsewhere="Your loop is.")
    assert str(one).startswith("Where the workers' time goes, 1 sample:")
    assert str(one).endswith("\nBut fetching is not the bottleneck. Your loop is."), "however few samples there are"
    assert "and 3 more lines" in str(found(tuple(StackCount((CodeLine("f", "f", i),), 1, 0) for i in range(15))))


# ---- stacks and places ----------------------------------------------------------------------------------------------


def frame_here():
    return sys._getframe()


@pytest.mark.unit
def test_stacks_begin_below_the_code_that_produces_a_batch():
    def produce():
        return user_lines(frame_here(), produce.__code__, WorkerState.COLLATING)

    lines = produce()
    assert lines is not None
    assert [line.function.rpartition(".")[2] for line in lines] == ["frame_here"]
    assert user_lines(frame_here(), produce.__code__, WorkerState.FETCHING) is None
    here = frame_here()
    stage = user_lines(here, here.f_code, WorkerState.COLLATING)
    assert stage == (CodeLine(STAGE_FILE, "collating", 0),)
    assert find_hot_lines(
        (StackCount(stage, 1, 0),), profiling=True, is_library=is_library, source=source_line, place=place_of
    )[0].place == "nbloader"  # fmt: skip


@pytest.mark.unit
@pytest.mark.skipif(SAMPLE_SIGNAL is None, reason="this system has no signal for it")
def test_a_signal_that_is_handled_late_counts_for_all_samples(monkeypatch):
    status = SharedStatus()
    sampler = LineSampler(status, test_a_signal_that_is_handled_late_counts_for_all_samples.__code__)
    status.computing, status.waiting, status.queued, status.state = 3, 2, 1, WorkerState.FETCHING
    sampler._count(sys._getframe())
    status.computing += 1
    sampler._count(sys._getframe())
    (count,) = sampler.take()
    assert (count.stack[0].function, count.computing, count.waiting, count.queued) == ("fetching", 4, 2, 1)
    assert not sampler.take()
    monkeypatch.setattr(line_sampler, "MAX_UNSENT", 0)
    status.computing += 1
    sampler._count(sys._getframe())
    assert not sampler.take()


@pytest.mark.unit
@pytest.mark.skipif(SAMPLE_SIGNAL is None, reason="this system has no signal for it")
def test_a_worker_that_cannot_start_a_thread_is_sampled_and_keeps_no_pipe_open(monkeypatch):
    def no_more_threads(*_arguments):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", no_more_threads)
    status = SharedStatus()
    sampler = LineSampler(status, test_a_worker_that_cannot_start_a_thread_is_sampled_and_keeps_no_pipe_open.__code__)
    usual, descriptors = signal.getsignal(SAMPLE_SIGNAL), os.listdir("/proc/self/fd")
    sampler.install()
    try:
        status.computing, status.state = 1, WorkerState.FETCHING
        signal.raise_signal(SAMPLE_SIGNAL)
    finally:
        signal.signal(SAMPLE_SIGNAL, usual)
        woken = signal.set_wakeup_fd(-1)
    assert [count.computing for count in sampler.take()] == [1]
    assert woken == -1
    assert os.listdir("/proc/self/fd") == descriptors


@pytest.mark.unit
def test_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place_of(str(tmp_path / "data" / "photos.py"), 12) == "data/photos.py:12"
    assert place_of("/home/me/project/data.py", 12) == "project/data.py:12"
    assert is_library(json.__file__)
    assert is_library(pytest.__file__)
    assert is_library(line_sampler.__file__)
    assert not is_library(__file__)
    assert source_line(__file__, 1).startswith('"""The lines')
    assert source_line("/nowhere.py", 1) == ""


@pytest.mark.unit
def test_tracebacks_get_the_lines_that_are_missing():
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{__file__}", line 1, in __getitem__\n'
        f'  File "{__file__}", line 3, in f\n    there already\n'
        '  File "/nowhere.py", line 4, in g\n'
        "ValueError: no\n"
    )
    completed = with_source_lines(text)
    assert completed.count("\n") == text.count("\n") + 1
    assert f"line 1, in __getitem__\n    {source_line(__file__, 1)}\n  File" in completed
    assert with_source_lines(completed) == completed


# ---- real workers ---------------------------------------------------------------------------------------------------

KINDS = {"process": {"num_workers": 2}, "thread": {"num_workers": 2, "workers": "thread"}, "inline": {}}
PLANTED = [
    ("process", "computing"),
    ("process", "waiting"),
    ("process", "helping"),
    ("process", "library"),
    ("process", "reading"),
    ("process", "operator"),
    ("process", "returning"),
    ("process", "searching"),
    ("process", "collating"),
    ("thread", "waiting"),
    ("thread", "reading"),
    ("thread", "searching"),
    ("inline", "waiting"),
    ("inline", "reading"),
]


@pytest.mark.parametrize(("kind", "how"), PLANTED)
def test_a_planted_line_is_named_first(kind, how):
    arguments = {"output": "numpy", **KINDS[kind]}
    if how == "collating":
        arguments["collate_fn"] = light.collate_hot
    with DataLoader(light.Hot(16, how), 2, persistent_workers=kind == "process", **arguments) as loader:

        def enough():
            for _ in loader:
                pass
            hot = loader.hot_lines()
            if hot.samples < 12:
                return False
            lead = hot[0].share - (hot[1].share if len(hot) > 1 else 0.0)
            return lead > 2 / hot.samples**0.5  # on a busy machine a few samples may hit any line

        for _attempt in range(4):
            loader.profile_lines()
            wait_for(enough)
            hot = loader.hot_lines()
            named = hot[0].source.endswith(f"# hot: {how}")
            if named or sum(line.queued for line in hot) < 0.2:
                break
        else:
            pytest.skip(
                "other programs used the cores, so the thread that reads the stack ran after the line had ended"
            )
    assert named, hot
    assert hot[0].file == light.__file__
    assert hot[0].share > 0.3
    exact = state_of(os.getpid(), os.getpid()) != UNKNOWN  # elsewhere, the division is that of the process
    if kind != "thread" and exact:  # threads also wait for the interpreter lock
        line = hot[0]  # on a busy machine it may wait for a core most of the time
        assert (line.waiting - line.queued > line.computing + line.queued) == (how == "waiting"), hot
    assert hot[0].function in {f"Hot.{how}", how, "help_hot", "half", "collate_hot"}


def sampling_threads():
    return [thread for thread in threading.enumerate() if thread.name == "nbloader-lines"]


def test_profiling_can_be_switched_while_a_loop_runs_and_only_busy_workers_are_sampled():
    with DataLoader(light.Hot(10_000, "waiting"), 2, num_workers=1, output="numpy", persistent_workers=True) as loader:
        loader.profile_lines(on=False)
        epoch = iter(loader)
        next(epoch)
        assert not sampling_threads()
        assert not loader.hot_lines().profiling
        loader.profile_lines()
        assert sampling_threads()
        while loader.hot_lines().samples < 5:
            next(epoch)
        loader.profile_lines(on=False)
        wait_for(lambda: not sampling_threads())
        samples = loader.hot_lines().samples
        assert samples >= 5
        loader.profile_lines()
        assert loader.hot_lines().samples < samples, "the count starts again, and the first one may be there already"
        ended = []
        loader.events.subscribe(lambda event: ended.append(event) if isinstance(event, EpochEnded) else None)
        del epoch
        wait_for(lambda: ended and not sampling_threads())
        engine = loader._parts.engine
        (handle,) = engine._group.pool.handles.values()
        wait_for(lambda: handle.status.state == WorkerState.IDLE)
        before = handle.status.computing + handle.status.waiting
        assert engine.sample_stacks(0, 4) == []
        assert handle.status.computing + handle.status.waiting == before


@pytest.mark.portable
@pytest.mark.parametrize("num_workers", [0, 1])
def test_lines_are_sampled_by_themselves_while_a_loop_waits(num_workers):
    with DataLoader(light.Hot(10_000, "waiting"), 2, num_workers=num_workers, output="numpy") as loader:
        epoch = iter(loader)
        while loader.hot_lines().samples < 25:
            next(epoch)
        first = loader.hot_lines()[0]
        assert first.file == light.__file__
        assert not loader.hot_lines().profiling
        del epoch
        wait_for(lambda: not sampling_threads())
        assert f"is spent in `{first.source}` ({first.place})." in loader.stats().epoch_verdict.sentence
        before = loader.hot_lines().samples
        epoch = iter(loader)
        next(epoch)
        assert loader.hot_lines().samples >= before  # until there are samples of the new epoch
        loader.profile_lines(on=False)
        for _ in range(10):  # some samples are under way, with batches that were requested before
            next(epoch)
        samples = loader.hot_lines().samples
        for _ in range(5):
            next(epoch)
        assert not sampling_threads()
        assert loader.hot_lines().samples == samples
        loader.profile_lines(on=None)
        while not sampling_threads():
            next(epoch)


def test_lines_are_named_after_several_epochs_that_are_too_short_for_one():
    with DataLoader(light.Hot(8, "waiting"), 1, num_workers=2, output="numpy") as loader:
        for _ in range(60):
            list(loader)
            sentence = loader.stats().epoch_verdict.sentence
            if light.__file__.rpartition("/")[2] in sentence:
                return
    raise AssertionError(f"no line is named: {sentence}, {loader.hot_lines()}")


class Changes(light.Numbers):
    """A dataset whose slow line changes, as after a change of its code."""

    slow = "first"

    def __getitem__(self, i):
        if self.slow == "first":
            time.sleep(0.01)  # slow: first
        else:
            time.sleep(0.01)  # slow: second
        return i


def has_line(loader, which):
    return any(line.source.endswith(f"# slow: {which}") for line in loader.hot_lines())


@pytest.mark.parametrize("on", [True, None])
def test_lines_of_a_dataset_that_was_replaced_are_forgotten(monkeypatch, on):
    monkeypatch.setattr(line_profiler, "INTERVAL", 0.005)
    with DataLoader(Changes(60), 2, output="numpy") as loader:
        loader.profile_lines(on=on)
        wait_for(lambda: list(loader) and has_line(loader, "first"))
        new = Changes(60)
        new.slow = "second"
        loader.reload(new)
        assert not loader.hot_lines().samples
        wait_for(lambda: list(loader) and has_line(loader, "second"))
        assert not has_line(loader, "first")


@pytest.mark.parametrize("on", [True, None])
def test_lines_are_those_of_the_newest_epoch_if_it_has_enough_samples(monkeypatch, on):
    monkeypatch.setattr(line_profiler, "INTERVAL", 0.005)
    data = Changes(60)
    with DataLoader(data, 2, output="numpy") as loader:
        loader.profile_lines(on=on)
        wait_for(lambda: list(loader) and loader.hot_lines().samples >= line_profiler.ENOUGH)
        assert has_line(loader, "first")
        data.slow = "second"
        wait_for(lambda: list(loader) and not has_line(loader, "first"))
        assert has_line(loader, "second")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_thread_ends_with_the_loader_even_if_an_iterator_remains(num_workers):
    with DataLoader(light.Numbers(400), 2, num_workers=num_workers, output="numpy") as loader:
        epoch = iter(loader)
        next(epoch)
        loader.profile_lines()
        assert sampling_threads()
    wait_for(lambda: not sampling_threads())
    with pytest.raises(LoaderClosedError):
        next(epoch)


def test_a_loop_that_does_not_wait_has_no_sampling_thread():
    wait_for(lambda: not sampling_threads(), "the threads of loaders that other tests have closed")
    with DataLoader(light.Numbers(400), 2, num_workers=1, output="numpy") as loader:
        epoch = iter(loader)
        for number in range(200):
            wait_for(lambda: loader.stats().ready)  # on a busy machine, too, it does not wait in `next()`
            assert next(epoch).tolist() == [2 * number, 2 * number + 1]
            time.sleep(0.005)
            assert not sampling_threads()
        assert next(epoch, None) is None
    assert not loader.hot_lines().samples


def test_a_loop_goes_on_if_there_is_no_thread_to_sample_it(monkeypatch, caplog):
    start = threading.Thread.start

    def refuse(self):
        if self.name == "nbloader-lines":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with DataLoader(light.Numbers(4), 2, output="numpy") as loader:
        loader.profile_lines()
        assert len(list(loader)) == 2
        assert not loader.hot_lines().profiling
        assert loader.stats().batches_done == 2
    assert "can't start new thread" in caplog.text


def test_lines_and_tracebacks_of_cells(tmp_path):
    done = run_script(
        """
        from IPython.core.interactiveshell import InteractiveShell
        from nbloader import DataLoader
        shell = InteractiveShell.instance()
        shell.run_cell('''
        import time
        class InCell:
            def __len__(self):
                return 100
            def __getitem__(self, i):
                time.sleep(0.01)
                if i == 99:
                    raise ValueError("in a cell")
                return i
        ''', store_history=True)
        with DataLoader(shell.user_ns["InCell"](), 1, num_workers=1, output="numpy") as loader:
            loader.profile_lines()
            try:
                for _ in loader:
                    pass
            except ValueError as error:
                print(error.__cause__)
            first = loader.hot_lines()[0]
            print(first.source, "|", first.place)
        """,
        tmp_path,
        warnings="default",
    )
    assert "time.sleep(0.01) | cell 1 line 6" in done.stdout, done
    assert '    raise ValueError("in a cell")\n' in done.stdout


@pytest.mark.unit
def test_a_frame_between_two_lines_counts_for_the_first_line_of_its_loop_or_function():
    def outer():
        """Stands for the function of nbloader that produces a batch."""

    def number(code, offset):
        outermost = SimpleNamespace(f_code=outer.__code__, f_lineno=1, f_lasti=0, f_back=None)
        frame = SimpleNamespace(f_code=code, f_lineno=None, f_lasti=offset, f_back=outermost)
        (line,) = user_lines(frame, outer.__code__, 0)
        return line.line

    code = light.Hot.searching.__code__
    loop = code.co_firstlineno + 2
    jumps = [start for start, _end, line in code.co_lines() if line is None and start > 0]
    assert bool(jumps) == (sys.version_info < (3, 12))
    assert {number(code, jump) for jump in jumps} <= {loop}
    assert number(code, 0) in (code.co_firstlineno, code.co_firstlineno + 1)
