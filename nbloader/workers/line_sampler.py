"""Sample what a worker executes: its Python stack at one moment, and whether it computed or waited.

    line profiler, in the notebook     WorkerHandle.sample_stack()
      process: reads from /proc whether it runs or waits, counts that in its status, sends a signal
                    -> LineSampler, in the worker: counts the stack -> message, with the next batch
      thread:  ThreadSampler reads its stack (`thread_sampler.py`)

A worker process is sampled from outside, by a signal, so that the moment does not depend on what the worker executes.
Python runs a signal handler only between some instructions, since Python 3.11 only at calls and loops: after
`x = x / 255`, the handler finds the next line with a call, or the function that the result was returned to. So a thread
is woken by the signal as well. If the worker's code has released the interpreter lock, as NumPy, torch, Pillow and
files do, the thread reads the stack at once, and the line is the right one. Otherwise the handler comes first. It
attributes all signals since then, of which the status holds the number, to the one stack that it finds.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
from types import CodeType, FrameType

from nbloader._platform import SAMPLE_SIGNAL
from nbloader._util.code_places import PACKAGE, line_number
from nbloader.events.stack_samples import STAGE_FILE, CodeLine, StackCount
from nbloader.workers.status import SharedStatus, WorkerState

MAX_FRAMES = 60
"""Maximum number of frames that are kept of a stack, beginning with the innermost."""
MAX_UNSENT = 500
"""Maximum number of different stacks that a worker keeps between two messages. Further stacks are not counted."""


def user_lines(frame: FrameType | None, root: CodeType, stage: int) -> tuple[CodeLine, ...] | None:
    """Return the lines of a stack that do not belong to nbloader, from the outermost to the innermost.

    The frames may be those of another thread, which goes on meanwhile. Then CPython 3.11 has given a number for the
    caller of a frame.

    Args:
        frame: The innermost frame.
        root: The function of nbloader that produces a batch. Frames outside of it are dropped.
        stage: The state of the worker. It is returned in place of a stack that has only lines of nbloader.

    Returns:
        The lines; None if the thread is not producing a batch.
    """
    lines: list[CodeLine] = []
    while (code := getattr(frame, "f_code", None)) is not None and frame is not None and code is not root:
        if len(lines) < MAX_FRAMES and not code.co_filename.startswith(PACKAGE):
            name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualified names
            lines.append(CodeLine(code.co_filename, name, line_number(frame)))
        frame = frame.f_back
    if code is None:
        return None
    return tuple(reversed(lines)) or (CodeLine(STAGE_FILE, WorkerState(stage).name.lower(), 0),)


class LineSampler:
    """Count the stacks of a worker process's main thread, one at each signal.

    Args:
        status: The status of the worker, in which the notebook counts samples.
        root: See `user_lines`.
    """

    def __init__(self, status: SharedStatus, root: CodeType) -> None:
        self._status = status
        self._root = root
        self._counts: dict[tuple[CodeLine, ...], StackCount] = {}
        self._computing, self._waiting, self._queued = status.computing, status.waiting, status.queued
        self._main = threading.get_ident()
        self._counting = _thread.allocate_lock()
        self._tried_thread = False

    def install(self) -> None:
        """Install the signal handler in the main thread of this process."""
        if SAMPLE_SIGNAL is not None:
            signal.signal(SAMPLE_SIGNAL, self._sample)
            signal.siginterrupt(SAMPLE_SIGNAL, False)  # do not interrupt system calls of C libraries

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        if not self._tried_thread:
            self._tried_thread = True
            self._start_thread()
        self._count(frame)

    def _start_thread(self) -> None:
        """Start the thread that a signal wakes. This runs within a signal handler, so without locks of `threading`."""
        with contextlib.suppress(OSError, RuntimeError), contextlib.ExitStack() as undo:
            # If there are too many files or threads, the handler is enough.
            reader, writer = os.pipe()
            undo.callback(os.close, reader)
            undo.callback(os.close, writer)
            os.set_blocking(writer, False)
            users = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            undo.callback(signal.set_wakeup_fd, users)
            if users < 0:  # an event loop needs its own
                _thread.start_new_thread(self._sample_at_once, (reader,))
                undo.pop_all()

    def _sample_at_once(self, reader: int) -> None:
        """Count stacks while the main thread does not hold the interpreter lock."""
        while os.read(reader, 512):  # the numbers of signals
            self._count(sys._current_frames().get(self._main))

    def _count(self, frame: FrameType | None) -> None:
        """Attribute the samples that are not counted yet to a stack."""
        if not self._counting.acquire(blocking=False):  # the other thread counts them, or they count next time
            return
        try:
            self._add(frame)
        finally:
            self._counting.release()

    def _add(self, frame: FrameType | None) -> None:
        status = self._status
        computing, waiting, queued = status.computing, status.waiting, status.queued
        new_computing, new_waiting = computing - self._computing, waiting - self._waiting
        new_queued = queued - self._queued
        if not new_computing + new_waiting:
            return
        self._computing, self._waiting, self._queued = computing, waiting, queued
        stack = user_lines(frame, self._root, status.state)
        if stack is None or (stack not in self._counts and len(self._counts) >= MAX_UNSENT):
            return
        before = self._counts.get(stack) or StackCount(stack, 0, 0)
        self._counts[stack] = StackCount(
            stack, before.computing + new_computing, before.waiting + new_waiting, before.queued + new_queued
        )

    def take(self) -> list[StackCount]:
        """Return and clear the samples since the last message. A signal may arrive at any moment."""
        with self._counting:
            counts, self._counts = self._counts, {}
        return list(counts.values())
