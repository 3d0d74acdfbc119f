"""The Python stack of a worker, requested from outside, even while it hangs in C code that holds the interpreter lock.

A signal makes faulthandler write the stack into a pipe, which needs neither the lock nor memory. The end of the stack
is recognized by its outermost frame, which is the same in every worker.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from nbloader.errors import NbloaderError

SIGNAL: int = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Libraries use SIGUSR1 and SIGUSR2, and the C library the first real-time signals."""
WAIT = 2.0
"""Seconds that a worker has to respond. It takes about a millisecond; a stopped process never responds."""
AGAIN = 0.25
"""Seconds without a response after which the signal is sent again: one that arrives while faulthandler still handles
the last one, on another thread of the process, is lost."""
QUIET = 0.2
"""Seconds without another line after which a stack with an unusual outermost frame counts as complete."""

_OUTERMOST = ('  File "<string>", line 1 in <module>\n', "  ...\n")  # the latter after a hundred frames
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_OURS = str(Path(__file__).parents[1])


def answer(fd: int) -> None:
    """In a worker: write its stack to this descriptor whenever the signal comes."""
    faulthandler.register(SIGNAL, file=fd, all_threads=True)


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
        """A function that requests the stack and waits for it; to be called once, on any thread.

        Args:
            pid: The process; it has called `answer`.
            gone: Whether it has ended.
        """
        fd = os.dup(self.fd)  # the worker may end, and its pipe be closed, meanwhile

        def ask() -> str:
            try:
                with self._lock:
                    return _ask(fd, pid, gone)
            finally:
                os.close(fd)

        return ask


def _ask(fd: int, pid: int, gone: Callable[[], bool]) -> str:
    _read(fd)  # a late response to the request before
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    text = ""
    deadline = time.monotonic() + WAIT
    while not text.endswith(_OUTERMOST):
        if not text:
            with contextlib.suppress(ProcessLookupError):
                if not gone():
                    os.kill(pid, SIGNAL)
        if poll.poll(1000 * (QUIET if text else AGAIN)):
            more = _read(fd)
            if not more:  # the other end is closed
                break
            text += more
        elif text or time.monotonic() > deadline:
            break
    if not text:
        raise NbloaderError(
            f"the worker (pid {pid}) did not respond to a stack request within {WAIT:g} s: it has ended, or is "
            "stopped, or is blocked in the kernel (a disk or a driver), where signals are not delivered"
        )
    return text


def _read(fd: int) -> str:
    parts = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    return b"".join(parts).decode("ascii", "replace")


def of_thread(ident: int | None) -> str:
    """The stack of a thread of this process, as faulthandler writes it.

    Raises:
        NbloaderError: It has ended.
    """
    frame = sys._current_frames().get(ident or 0)
    if frame is None:
        raise NbloaderError("the thread has ended")
    return f"Current thread 0x{ident or 0:016x} (most recent call first):\n{_lines(frame)}"


def _lines(frame: FrameType | None) -> str:
    lines = []
    while frame is not None:
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}\n')
        frame = frame.f_back
    return "".join(lines)


def place(stack: str) -> str:
    """The innermost frame of a stack, in the user's own code if there is one: "data.py, line 3 in __getitem__"."""
    _before, _mark, main = stack.rpartition("Current thread")
    frames: list[tuple[str, str, str]] = _FRAME.findall(main.partition("\n\n")[0])
    if not frames:
        return "an unknown place"
    import sysconfig  # workers do without

    not_the_users = (_OURS, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen ", "<string>")
    path, line, name = next((f for f in frames if not f[0].startswith(not_the_users)), frames[0])
    return f"{_cell(path) or path}, line {line} in {name}"


def _cell(path: str) -> str:
    """The name of a cell, "Cell In[3]", for the file name that IPython gives to its code; else ""."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = shell.compile.format_code_name(path) if shell is not None else None
    return " ".join(named) if named else ""
