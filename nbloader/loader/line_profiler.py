"""Samples the stacks of the workers while an epoch runs: while its loop waits for them, or all the time on request.

One thread of the notebook's process samples a few workers at a time, in turn, so that the cost does not grow with their
number. It exists only while an epoch is open, and begins when it is first needed: a loop that does not wait has none.
Workers that do not produce a batch are left alone.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbloader._util.code_places import PACKAGE, is_library, line_number, place_of, source_line
from nbloader.diagnose.without_line import LineTime
from nbloader.engine import wait_hooks
from nbloader.engine.local_engine import AnyEngine
from nbloader.events.stack_samples import CodeLine, StackCount
from nbloader.metrics.aggregator import RECOMPUTED_S
from nbloader.metrics.evidence import SlowLine
from nbloader.metrics.hot_lines import HotLine, HotLines, LineProfile, find_hot_lines
from nbloader.metrics.process_probe import AT_ONCE

if TYPE_CHECKING:
    from nbloader.remedies.advice import Advice
    from nbloader.remedies.results import Remedies

log = logging.getLogger(__name__)

INTERVAL = 0.05
"""Mean time between two samples of a worker, seconds. The time varies randomly by up to half of it, so that samples do
not lock onto a rhythm of the dataset."""
SAMPLING = str(Path(PACKAGE, "sampling")) + os.sep
"""The directory of the modules that call samplers."""
PROMPT = 1e-4
"""Seconds; see `_prompt_switches`."""
ENOUGH, NOTABLE = 20, 0.2
"""A line is named in a verdict from this number of samples, and from this share of the workers' time on. If an epoch is
so short that it has fewer samples, those of the epochs before it count, too. Fewer are enough if the share cannot be
smaller by chance."""


class LineProfiler:
    """Turns sampling on and off, and keeps the samples.

    Args:
        engine: The loader's engine.
        roots: Returns the dataset and the collate function, from which the functions of lines are reachable.
    """

    def __init__(self, engine: AnyEngine, roots: Callable[[], Sequence[Any]]) -> None:
        self.on: bool | None = None
        """Whether samples are taken while an epoch runs; None while its loop waits."""
        self._began = self._awaited = 0.0  # when the newest epoch began, and its loop waited last
        self._profile = LineProfile(ENOUGH)
        self._steps = LineProfile(ENOUGH)  # of the loop's own code, while that is requested
        self._draws = LineProfile(ENOUGH)  # of a sampler, which runs on the loop's thread
        self._consumer = 0  # the thread of the newest loop
        self._engine = engine
        self._open: set[int] = set()
        self._closed = False  # whether the loader was closed
        self._lock = threading.Lock()
        self._slowest: SlowLine | None = None
        self._slowest_step: SlowLine | None = None
        self._slowest_draw: SlowLine | None = None
        self._roots = roots
        self._remedies: dict[tuple[str, int, str], Advice] = {}  # of lines that were the slowest: file, number and text
        self._slowest_due = 0.0  # when to look for it again; monotonic seconds
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        """Ends the present thread."""
        self._turn = 0
        self.follow(engine)

    def follow(self, engine: AnyEngine) -> None:
        """Sample the workers of another engine, which replaces the present one."""
        self._engine = engine
        engine.watch_stacks(self._profile.add)

    def switch(self, *, on: bool | None) -> None:
        """Sample all the time, discarding earlier samples, or never, or while the loop waits (None). Thread-safe."""
        if on:
            self._profile.clear()
        self._steps.clear()
        self._draws.clear()
        with self._lock:
            self.on = on
            self._start_or_stop()

    def epoch_began(self, epoch: int) -> None:
        """Register an iteration that begins."""
        with self._lock:
            if self._closed:
                return
            self._open.add(epoch)
            self._consumer = threading.get_ident()
            self._began = time.monotonic()
            self._slowest_due = 0.0
            self._profile.begin_epoch()
            self._steps.begin_epoch()
            self._draws.begin_epoch()
            self._start_or_stop()

    def awaited(self) -> None:
        """Register that the loop waits for a batch at this moment. Called at most once per `wait_hooks.INTERVAL`."""
        self._awaited = time.monotonic()
        just_begun = self._awaited - self._began <= wait_hooks.INTERVAL  # its workers start
        if self.on is None and self._open and not just_begun:
            with self._lock:
                if self._open:
                    self._start()

    def epoch_ended(self, epoch: int) -> None:
        """Unregister an iteration that has ended."""
        with self._lock:
            self._open.discard(epoch)
            self._slowest_due = 0.0
            self._start_or_stop()

    def dataset_changed(self) -> None:
        """Forget the samples of code that the workers do not execute any more."""
        self._profile.clear()
        with self._lock:
            self._slowest_due = 0.0

    def loader_closed(self) -> None:
        """End the thread. The iterator of an unfinished epoch may still exist."""
        with self._lock:
            self._closed = True
            self._open.clear()
            self._start_or_stop()

    def result(self) -> HotLines:
        """Return the samples so far, by line."""
        return _lines(self._profile, profiling=self.on is True)

    def slowest_step(self) -> SlowLine | None:
        """Return the line that takes most of the time of the loop's own code; None as for `slowest`.

        It is known only after `profile_lines()`.
        """
        if not (self.on and self._steps.is_current):
            return None
        self._look()
        return self._slowest_step

    def slowest_draw(self) -> SlowLine | None:
        """Return the line that takes most of the time of a sampler; None as for `slowest`."""
        if not self._draws.is_current:
            return None
        self._look()
        return self._slowest_draw

    def slowest(self) -> SlowLine | None:
        """Return the line that takes most of the workers' time; None if none stands out, or before enough samples.

        It is looked for at most once a second while an epoch is open, and once more afterwards.
        """
        if not self._profile.is_current:
            return None
        self._look()
        return self._slowest

    def _look(self) -> None:
        """Look for the slowest lines, if that is due."""
        now = time.monotonic()
        if now < self._slowest_due:
            return
        self._slowest_due = now + RECOMPUTED_S if self._open else math.inf
        first = _slowest(self.result()) if self._profile.is_current else None
        self._slowest = None
        if first is not None:
            self._slowest = SlowLine(first.share, first.source, first.place, *self._remedy(first))
        self._slowest_step, self._slowest_draw = _slow_line(self._steps), _slow_line(self._draws)

    def _remedy(self, line: HotLine) -> Advice:
        """Return what is known to make a line cheaper. It is looked for once, which takes a few milliseconds."""
        key = (line.file, line.line, line.source)
        if key not in self._remedies:
            from nbloader.remedies.advice import short_advice

            found = short_advice(line, self._roots())
            if found.is_kept:  # until the cache has its results
                return found
            self._remedies[key] = found
        return self._remedies[key]

    def tried(self, lines: Iterable[HotLine], found: Remedies) -> None:
        """Remember what has helped on samples, so that verdicts that name one of the lines say so."""
        from nbloader.remedies.advice import tried_advice

        best = tried_advice(found)
        named = [line for line in lines if line.share >= NOTABLE and not self._remedy(line).is_kept]
        self._remedies |= {(line.file, line.line, line.source): best for line in named}
        self._slowest_due = 0.0

    def _start_or_stop(self) -> None:
        if not self._open or self.on is False:
            self._stop.set()
        elif self.on:
            self._start()

    def _start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is not None and self._thread.is_alive() and not self._stop.is_set():
            return  # in a forked process it is not alive
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=_sample, args=(weakref.ref(self), self._stop), name="nbloader-lines", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread, self.on = None, False
            log.warning("the workers' lines are not sampled: no thread could be started: %s", error)

    @property
    def in_process(self) -> bool:
        """Whether the workers are threads of this process."""
        return self._engine.in_process

    @property
    def wanted(self) -> bool:
        """Whether to sample now: the loop waits, or that was requested."""
        return self.on is True or time.monotonic() - self._awaited <= 2 * wait_hooks.INTERVAL

    def tick(self) -> None:
        """Sample some workers and a sampler, and the loop's own code on request."""
        stacks, caller = _stack_of(self._consumer)
        if caller.startswith(SAMPLING):
            self._draws.add(stacks)
        elif self.on and not caller:
            self._steps.add(stacks)
        self._profile.add(self._engine.sample_stacks(self._turn, AT_ONCE))
        self._turn += AT_ONCE


def _lines(profile: LineProfile, *, profiling: bool) -> HotLines:
    return find_hot_lines(
        profile.stacks(), profiling=profiling, is_library=is_library, source=source_line, place=place_of
    )


def _slowest(hot: HotLines) -> HotLine | None:
    """Return the slowest line of the user's code; None if none stands out."""
    first = next((line for line in hot if line.line and line.source), None)
    return first if first is not None and _stands_out(first, hot.samples) else None


def _slow_line(profile: LineProfile) -> SlowLine | None:
    """Return the slowest line of a profile of the newest epoch; None if none stands out."""
    line = _slowest(_lines(profile, profiling=True)) if profile.is_current else None
    return None if line is None else SlowLine(line.share, line.source, line.place)


def _stack_of(thread: int) -> tuple[list[StackCount], str]:
    """Return the stack of a thread within nbloader's innermost function, and the file of that function.

    Returns:
        One stack, or none if it contains no code of the user, and the file; "" if nbloader does not run.
    """
    frame, caller = sys._current_frames().get(thread), ""
    lines: list[CodeLine] = []
    while frame is not None and not caller:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            caller = code.co_filename
        else:
            lines.append(CodeLine(code.co_filename, code.co_name, line_number(frame)))
        frame = frame.f_back
    if all(is_library(line.file) for line in lines):  # the notebook waits for a cell
        return [], caller
    return [StackCount(tuple(reversed(lines)), 1.0, 0.0)], caller


def _stands_out(line: HotLine, samples: int) -> bool:
    """Whether a line takes a notable share of the time, which so many samples tell for sure."""
    least = line.share if samples >= ENOUGH else line.share - LineTime(line.computing, line.waiting, samples).error
    return least >= NOTABLE


@contextlib.contextmanager
def _prompt_switches() -> Iterator[float]:
    """Let this thread take the interpreter lock from computing threads after `PROMPT` seconds instead of 5 ms.

    Otherwise this thread would get the lock when another thread releases it, and would find most computing threads in a
    call that releases the lock, such as a file read, although they spend little of their time there.

    Returns:
        The usual interval, seconds. It is in force again after a wait of about that length.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(PROMPT, usual))
    try:
        yield usual
    finally:
        sys.setswitchinterval(usual)


def _sample(profiler_ref: weakref.ref[LineProfiler], stop: threading.Event) -> None:
    """Run the sampling thread. It does not keep the profiler, and thus the loader, alive."""
    jitter = random.Random()  # noqa: S311 - not the global generator, which belongs to the program
    while not stop.wait(INTERVAL * jitter.uniform(0.5, 1.5)):
        profiler = profiler_ref()
        if profiler is None:
            return
        if not profiler.wanted:
            pass
        elif profiler.in_process:
            with _prompt_switches() as usual:
                stop.wait(2 * usual * jitter.random())
                profiler.tick()
        else:
            profiler.tick()
        del profiler
