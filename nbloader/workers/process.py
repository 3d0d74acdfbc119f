"""One worker process as the notebook sees it: the descriptors between the two, and what is known of it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import cloudpickle

from nbloader.batch.chunk_writer import Placed
from nbloader.batch.payload import Layout
from nbloader.batch.task import Task
from nbloader.errors import NbloaderError
from nbloader.events.failures import SampleFailure
from nbloader.sampling.shard_plan import Ticket
from nbloader.shm.segment import SegmentMaps, anonymous_file, mapped
from nbloader.transport.channel import Channel
from nbloader.transport.stack_probe import StackPipe
from nbloader.workers.api import Handle
from nbloader.workers.status import SHARED_STATUS_SIZE, SharedStatus

_PLAIN = {int, str, bool, float, bytes, Ticket}

TAIL = 4096
"""Characters of a worker's standard error that are kept."""
TAIL_LINE = 300
"""Characters of one line of it: after a crash faulthandler names all native modules in one line of kilobytes, which
would leave no room for what the worker said."""


class Ends(NamedTuple):
    """Descriptors between the notebook and a worker, of one side."""

    sock: socket.socket
    stdout: int
    stderr: int
    stack: int
    status: int
    """Of the page where the worker tells what it is at; both sides map it."""


def connect(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[Ends, Ends]:
    """Make the descriptors for a worker.

    Args:
        ours: Closes the notebook's, when that must be.
        theirs: Closes the worker's, which are its own once it was sent them.

    Returns:
        The notebook's and the worker's.

    Raises:
        OSError: There are too many open files.
    """
    sock, sock_theirs = socket.socketpair()
    ours.enter_context(sock)
    theirs.enter_context(sock_theirs)
    pipes = []
    for _ in range(3):
        read, write = os.pipe()
        ours.callback(os.close, read)
        theirs.callback(os.close, write)
        os.set_blocking(read, False)
        pipes.append((read, write))
    status = anonymous_file(SHARED_STATUS_SIZE)
    theirs.callback(os.close, status)  # both sides only map it
    (out, out_theirs), (err, err_theirs), (stack, stack_theirs) = pipes
    os.set_blocking(stack_theirs, False)
    return Ends(sock, out, err, stack, status), Ends(sock_theirs, out_theirs, err_theirs, stack_theirs, status)


class ProcessHandle(Handle):
    """One worker process.

    Args:
        worker: Its id.
        ends: The descriptors to talk to it.
    """

    def __init__(self, worker: int, ends: Ends) -> None:
        super().__init__(worker, SharedStatus.at(mapped(ends.status, SHARED_STATUS_SIZE)))
        self.stack = StackPipe(ends.stack)
        self.killed = False
        self.maps = SegmentMaps()
        self.layouts: dict[int, Layout] = {}
        self.told = -1
        """The layout of batches that several workers write that it knows."""
        self.tail: deque[str] = deque(maxlen=100)
        self.lifeline = -1
        self.popen: subprocess.Popen[bytes] | None = None
        self.outputs: dict[int, tuple[str, bytearray]] = {
            ends.stdout: ("stdout", bytearray()),
            ends.stderr: ("stderr", bytearray()),
        }
        self.spared: list[SampleFailure] = []
        """Samples that were left out of the batch that it sends next, or replaced."""
        self.channel = Channel(ends.sock, blocking=False)

    @property
    def stderr_tail(self) -> str:
        """The last lines that it wrote to its standard error."""
        return "".join(self.tail)[-TAIL:]

    def keep(self, text: str) -> None:
        """It wrote these lines to its standard error."""
        for line in text.splitlines(keepends=True)[-100:]:
            self.tail.append(line if len(line) <= TAIL_LINE else f"{line[:TAIL_LINE]}...\n")

    def take_spared(self) -> list[SampleFailure]:
        """Those of the batch that has just come."""
        if not self.spared:
            return self.spared
        spared, self.spared = self.spared, []
        return spared

    def take_fds(self) -> list[int]:
        """The descriptors of its outputs, its lifeline and its stack, to be closed."""
        fds = [fd for fd in (*self.outputs, self.lifeline, self.stack.fd) if fd >= 0]
        self.outputs, self.lifeline, self.stack.fd = {}, -1, -1
        return fds

    def asker(self) -> Callable[[], str]:
        """See `Handle.asker`."""
        pid = self.status.pid  # it is there as soon as the worker can answer
        if not pid:
            raise NbloaderError(f"worker {self.worker} is being started: it has no Python stack yet")
        return self.stack.asker(pid, lambda: self.gone)

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        self.killed = True
        pid = self.pid or self.status.pid
        if pid and not self.gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def dump_task(task: Task, returned: list[int], placed: Placed | None = None) -> bytes:
    """A task for a worker. Indices of the notebook's own types go by value."""
    message = (task.run, task.job, task.indices if placed is None else placed, task.seed, returned)
    indices = task.indices
    kinds = set(map(type, indices)) if type(indices) is list else {type(indices)}
    return pickle.dumps(message, 5) if kinds <= _PLAIN else bytes(cloudpickle.dumps(message, 5))
