"""Sample what a worker executes: its Python stack at one moment, and whether it computed or waited.

    line profiler, in the notebook     WorkerHandle.sample_stack()
      process: reads from /proc whether it runs or waits, counts that in its status, sends a signal
                    -> LineSampler, in the worker: counts the stack -> message, with the next batch
      thread:  ThreadSampler reads its stack (`thread_sampler.py`)

A worker process is sampled from outside, by a signal. A sampling thread inside the worker would be biased: it would get
the interpreter lock only when the worker releases it, and would therefore mostly see calls that release the lock, such
as file reads. Each sample would also stop a computing worker until the sampling thread gets a CPU core.

Python runs a signal handler only after a call of C code returns, so several signals may be handled at once. The status
holds the number of samples, and all of them are attributed to the one stack that the handler sees.
"""

from __future__ import annotations

import signal
from types import CodeType, FrameType

from nbloader._platform import SAMPLE_SIGNAL
from nbloader._util.code_places import PACKAGE
from nbloader.events.stack_samples import STAGE_FILE, CodeLine, StackCount
from nbloader.workers.status import SharedStatus, WorkerState

MAX_FRAMES = 60
"""Maximum number of frames that are kept of a stack, beginning with the innermost."""
MAX_UNSENT = 500
"""Maximum number of different stacks that a worker keeps between two messages. Further stacks are not counted."""


def user_lines(frame: FrameType | None, root: CodeType, stage: int) -> tuple[CodeLine, ...] | None:
    """Return the lines of a stack that do not belong to nbloader, from the outermost to the innermost.

    Args:
        frame: The innermost frame.
        root: The function of nbloader that produces a batch. Frames outside of it are dropped.
        stage: The state of the worker. It is returned in place of a stack that has only lines of nbloader.

    Returns:
        The lines; None if the thread is not producing a batch.
    """
    lines: list[CodeLine] = []
    while frame is not None and frame.f_code is not root:
        code = frame.f_code
        if len(lines) < MAX_FRAMES and not code.co_filename.startswith(PACKAGE):
            name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualified names
            number = frame.f_lineno or code.co_firstlineno  # None where the bytecode belongs to no line
            lines.append(CodeLine(code.co_filename, name, number))
        frame = frame.f_back
    if frame is None:
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

    def install(self) -> None:
        """Install the signal handler in the main thread of this process."""
        if SAMPLE_SIGNAL is not None:
            signal.signal(SAMPLE_SIGNAL, self._sample)
            signal.siginterrupt(SAMPLE_SIGNAL, False)  # do not interrupt system calls of C libraries

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        status = self._status
        computing, waiting, queued = status.computing, status.waiting, status.queued
        new_computing, new_waiting = computing - self._computing, waiting - self._waiting
        new_queued = queued - self._queued
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
        counts, self._counts = self._counts, {}
        return list(counts.values())
