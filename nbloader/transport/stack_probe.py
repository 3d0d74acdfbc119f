"""Requests the Python stack of a worker, even while the worker hangs in C code that holds the interpreter lock.

A signal makes the interpreter call a Python function as soon as the main thread executes Python code again, which is
within microseconds. The function writes the stacks of all threads into a pipe, while it holds the interpreter lock.

A worker that hangs in C code never gets there. On a second signal, faulthandler writes the stack of the main thread,
which needs neither the lock nor memory. This signal is sent only if the main thread has slept or computed for a while
without an answer, because faulthandler reads the frames in whatever state they are: if the signal arrives while the
interpreter is entering a function, the process dies of a segmentation fault. With signals at random moments of a
dataset written in Python, CPython 3.11 died once in some hundred requests.

The end of what faulthandler writes is recognized by the outermost frame, which is the same in every worker.

Frames of nbloader that lie outside the dataset's code are not shown (`without_internals`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from nbloader._platform import STACK_IN_C_SIGNAL, STACK_SIGNAL, UNKNOWN, Activity, activity, readable
from nbloader._platform.descriptors import close_all, open_into
from nbloader._util.code_places import PACKAGE, cell_name, is_library, is_python, line_number
from nbloader._util.format import plural
from nbloader.errors import NbloaderError

WAIT = 2.0
"""Seconds to wait for a worker's response. It takes about a millisecond; a stopped process never responds."""
AGAIN = 0.25
"""Seconds without a response after which `STACK_IN_C_SIGNAL` may be sent, and sent again."""
COMPUTED_NS = 100_000_000
"""CPU time, ns, after which a main thread that has not responded is assumed to run C code. Python code responds
within microseconds of CPU time, however long the process waits for a core."""
QUIET = 0.2
"""Seconds without another line after which a stack with an unusual outermost frame counts as complete."""

_FORKED = " in become_worker\n"
"""Frame of a function in zygote_process.py. The frames outside it belong to the zygote and the notebook."""
_OUTERMOST = (
    '  File "<string>", line 1 in <module>\n',
    "  ...\n",  # after a hundred frames
)
_MAX_FRAMES = 100
_CAPACITY = 1 << 16  # of the pipe
_BEGIN, _END = "\2", "\3"  # of a response of Python code
_OF_FAULTHANDLER = "Stack (most recent call first):\n"
_FRAME = r'(?m)^  File "(.*)", line (\d+) in (.*)$'  # not compiled here: workers import this, and do not need it


_awaited: Callable[[], Any] | None = None


def show_awaited(coroutine: Callable[[], Any]) -> None:
    """In a worker: let the stack begin with the frames of a suspended coroutine.

    Args:
        coroutine: Returns the coroutine, or None if none is suspended. Called in a signal handler.
    """
    global _awaited  # noqa: PLW0603 - a process has one stack to show
    _awaited = coroutine


def answer(fd: int) -> None:
    """In a worker's main thread: write the stack to this descriptor whenever a signal arrives."""

    def write_stacks(_signal: int, frame: FrameType | None) -> None:
        # Not faulthandler.dump_traceback(): it would begin with this function.
        me = threading.get_ident()
        others = [
            _stack("Thread", ident, innermost) + "\n"
            for ident, innermost in sys._current_frames().items()
            if ident != me
        ]
        text = f"{''.join(others)}{_stack('Current thread', me, frame, _awaited)}{_END}"
        last = text.encode("utf-8", "backslashreplace")[1 - _CAPACITY :]
        with contextlib.suppress(OSError):  # no reader: the notebook's process has ended, or has stopped waiting
            os.write(fd, _BEGIN.encode() + last)

    signal.signal(STACK_SIGNAL, write_stacks)
    signal.siginterrupt(STACK_SIGNAL, False)  # reads and writes of C libraries are restarted
    faulthandler.register(STACK_IN_C_SIGNAL, file=fd, all_threads=False)


def let_signals_interrupt(connection: socket.socket) -> None:
    """In a worker: let `STACK_SIGNAL` wake the main thread while it waits for a task, although `answer` restarts reads.

    Linux does not restart the reads of a socket that has a timeout. This one is 34 years.
    """
    with contextlib.suppress(OSError):  # where no such timeout is permitted, a waiting worker counts as one in C code
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 1 << 30, 0))


class StackPipe:
    """The notebook's end: requests the stack of one worker.

    Args:
        fd: The read end of a pipe; neither end blocks.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        """The owner closes it."""
        self._lock = threading.Lock()  # one request at a time

    def stack_request(self, pid: int, gone: Callable[[], bool]) -> Callable[[], str]:
        """Return a function that requests the stack and waits for it. Call that function once, on any thread.

        Args:
            pid: Pid of the worker, which has called `answer`.
            gone: Returns whether the worker has ended.

        Raises:
            NbloaderError: This process has too many open files.
        """
        opened: list[int] = []

        def ask() -> str:
            try:
                with self._lock:
                    return _ask(opened[0], pid, gone)
            finally:
                close_all(opened)

        weakref.finalize(ask, close_all, opened).atexit = False
        try:
            open_into(opened, os.dup, self.fd)  # the worker may end, and its pipe be closed, meanwhile
        except OSError as error:
            raise NbloaderError(f"nbloader cannot ask the worker (pid {pid}) for its stack: {error}") from error
        return ask


def _ask(fd: int, pid: int, gone: Callable[[], bool]) -> str:
    _read(fd)  # a late response to the previous request; the rest of it may still come

    def send(signal_number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if not gone():
                os.kill(pid, signal_number)

    received = text = ""
    deadline = time.monotonic() + WAIT
    before = activity(pid)
    send(STACK_SIGNAL)
    while not (text.endswith((_END, *_OUTERMOST)) or _FORKED in text):
        if readable([fd], QUIET if text else AGAIN):
            more = _read(fd)
            if not more:  # the other end is closed
                break
            received += more
            text = _last_response(received)
        elif text or time.monotonic() > deadline:
            break
        elif _is_in_c_code(activity(pid), before):
            send(STACK_IN_C_SIGNAL)
    if not text:
        raise NbloaderError(
            f"the worker (pid {pid}) did not respond to a stack request within {WAIT:g} s. It has ended, is stopped, "
            "or waits in the kernel for a disk or a driver, where no signal reaches it."
        )
    text = text.rstrip(_END)
    own, forked, _of_the_notebook = text.rpartition(_FORKED)
    text = own + forked or text
    header = f"Current thread 0x{pid:016x} (most recent call first):\n"
    return without_internals(text.replace(_OF_FAULTHANDLER, header))


def _is_in_c_code(now: Activity | None, before: Activity | None) -> bool:
    """Whether a main thread executes C code, given that it has not responded to a `STACK_SIGNAL` sent after `before`.

    A thread that sleeps in Python code is woken by the signal. A thread that waits for a core has used no time. If the
    state is unknown, the thread may wait for anything.
    """
    if now is None or now.state in ("S", "D", UNKNOWN):
        return True
    return now.cpu - (0 if before is None else before.cpu) >= COMPUTED_NS


def _last_response(received: str) -> str:
    """Return the last response in what was received; empty if none has begun.

    Late responses to earlier requests come before it. The first of them may lack its beginning: a request ends as soon
    as the frames of the worker are complete, and faulthandler writes those of the notebook after them.
    """
    begin = max(received.rfind(_BEGIN), received.rfind(_OF_FAULTHANDLER))
    return received[begin:].removeprefix(_BEGIN) if begin >= 0 else ""


def _read(fd: int) -> str:
    parts = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")


def of_main_thread() -> str:
    """Return the stack of the main thread, which executes the cell."""
    return of_thread(threading.main_thread().ident)


def of_thread(ident: int | None, awaited: Callable[[], Any] | None = None) -> str:
    """Return the stack of a thread of this process, in the format of faulthandler.

    If it is the calling thread, the innermost frames of nbloader are left out.

    Args:
        ident: Identifier of the thread.
        awaited: See `show_awaited`.

    Raises:
        NbloaderError: The thread has ended.
    """
    frame = sys._current_frames().get(ident or 0)
    if frame is None:
        raise NbloaderError("the thread has ended")
    if ident == threading.get_ident():
        while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
    return without_internals(_stack("Current thread", ident or 0, frame, awaited))


def without_internals(stack: str) -> str:
    """Replace the frames of nbloader that call the dataset's code with a line that says so.

    The innermost frames are kept, even if the dataset's code has called nbloader. The whole stack is kept if a thread
    executes neither the user's code nor a package's. Frames of Python's standard library that lie outside the skipped
    frames count as frames of nbloader.
    """
    lines: list[str] = []
    skipped = 0
    in_dataset = False
    for line in (*stack.splitlines(keepends=True), ""):
        frame = re.match(_FRAME, line)
        file = frame[1] if frame is not None else ""
        ours = file.startswith(PACKAGE)
        if (ours and in_dataset) or (skipped and is_python(file)):
            skipped += 1
            continue
        if skipped:
            lines.append(f"  [... skipping {plural(skipped, 'frame')} of nbloader]\n")
            skipped = 0
        lines.append(line)
        in_dataset = frame is not None and (in_dataset or not (ours or is_python(file)))
    return "".join(lines)


def _stack(title: str, ident: int, frame: FrameType | None, awaited: Callable[[], Any] | None = None) -> str:
    lines = [f"{title} 0x{ident:016x} (most recent call first):\n"]
    if awaited is not None:
        lines += map(_line, reversed(_suspended_frames(awaited())))
    while frame is not None:
        if len(lines) > _MAX_FRAMES:
            lines.append("  ...\n")
            break
        lines.append(_line(frame))
        frame = frame.f_back
    return "".join(lines)


def _line(frame: FrameType) -> str:
    return f'  File "{frame.f_code.co_filename}", line {line_number(frame)} in {frame.f_code.co_name}\n'


def _suspended_frames(awaitable: Any) -> list[FrameType]:
    """Return the frames of a suspended coroutine and of what it awaits, the outermost first."""
    frames: list[FrameType] = []
    while awaitable is not None and len(frames) < _MAX_FRAMES:
        for kind in ("cr", "gi", "ag"):  # coroutines, generators, asynchronous generators
            frame = getattr(awaitable, f"{kind}_frame", None)
            if frame is not None:
                frames.append(frame)
                awaitable = getattr(awaitable, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
                break
        else:
            break
    return frames


def place(stack: str) -> str:
    """Describe the innermost frame of a stack, in user code if there is any: "data.py, line 3 in __getitem__"."""
    _before, _mark, main = stack.rpartition("Current thread")
    frames: list[tuple[str, str, str]] = re.findall(_FRAME, main.partition("\n\n")[0])
    if not frames:
        return "an unknown place"
    path, line, name = next((f for f in frames if not is_library(f[0])), frames[0])
    return f"{cell_name(path) or path}, line {line} in {name}"
