"""Sends frames, with file descriptors, between the notebook's process and one worker over a duplex Unix socket.

A frame is a header (64-bit length, kind) and its body. Many small frames are received with one system call. The
notebook's end never blocks: what the socket does not accept is kept, and sent when the socket is writable again.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterable
from enum import IntEnum, auto
from typing import NamedTuple, TypeAlias

from nbloader._platform import open_files_limit
from nbloader._platform.descriptors import close_all
from nbloader._platform.passing import CUT_OFF, RECEIVE, RECEIVE_AT_ONCE, from_message, space_for, with_message

Bytes: TypeAlias = "bytes | bytearray | memoryview"

HEADER = struct.Struct("<QI")
"""Length of the body in bytes, and kind of the frame."""
HEADER_SIZE = HEADER.size
READ_SIZE = 1 << 16
"""Maximum bytes per read. It is below malloc's mmap threshold: a larger buffer costs page faults at every call."""
MAX_FDS = 64
"""Maximum number of descriptors per frame. The kernel accepts 253 at once."""
ANCILLARY_SIZE = space_for(MAX_FDS)
ROUND_ROBIN = b"\1"
"""Body of a READY frame: batches must be assigned to workers in turn."""
LOST = -1
"""Stands for descriptors that were lost because this process has reached its limit of open files."""


class Kind(IntEnum):
    """What a frame holds. The meaning can depend on the direction."""

    INIT = auto()
    """To the worker: `workers.bootstrap.InitMessage`."""
    TASK = auto()
    """To the worker: produce this batch."""
    CANCEL = auto()
    """To the worker: drop these batches of an iteration, if they were received before this frame and have not begun.
    Without batch numbers: drop all batches of the iteration, and its iterators over shards."""
    READY = auto()
    """From the worker: it has loaded its dataset. The body is `ROUND_ROBIN` if batches must be assigned round-robin.
    From a zygote: it can fork workers."""
    SEGMENT = auto()
    """From the worker, with a descriptor: a new segment."""
    BATCH = auto()
    """From the worker: a batch."""
    ERROR = auto()
    """From the worker: a batch that could not be produced."""
    INIT_ERROR = auto()
    """From the worker: the dataset could not be rebuilt, or `worker_init_fn` raised. From a zygote: it could not be set
    up."""
    FORK = auto()
    """To a zygote, with the worker's lifeline and `WorkerFds`: start a worker."""
    SAMPLE_FAILURES = auto()
    """From the worker, before a batch: the samples of the batch that were skipped or replaced. No batch follows if all
    of its samples were skipped."""
    END = auto()
    """From the worker: the shard is exhausted, so the batch does not exist."""
    STATE = auto()
    """From the worker: the state of an iterator over a shard."""
    HANDED = auto()
    """To the worker, before INIT: the descriptors of its `InheritedState`, such as those of `multiprocessing` objects
    in its dataset."""
    DROP = auto()
    """From the worker: these segments are no longer used."""
    DISCARD = auto()
    """To the worker: do not write to these segments again, since a forked process may have views of them."""
    REST = auto()
    """To the worker: these segments were returned, and there is no work for now, so free memory."""
    STACKS = auto()
    """From the worker: samples of its stacks."""
    SIGN = auto()
    """From the worker: what may be a sign of a silent fault (`events/silent_faults.py`)."""


class _Unsent(NamedTuple):
    """A buffer that waits until the socket is writable."""

    data: memoryview
    fds: list[int]
    """Descriptors to send with it, which the channel owns."""


class Channel:
    """One end of the connection between the notebook's process and a worker.

    Args:
        sock: A connected Unix stream socket; the channel owns it.
        blocking: True in the worker, False in the notebook's process.
    """

    def __init__(self, sock: socket.socket, *, blocking: bool) -> None:
        sock.setblocking(blocking)
        self._sock = sock
        self._fileno = sock.fileno()
        self._received = bytearray()
        """What has arrived of frames that are not complete."""
        self._fds: list[int] = []
        """The descriptors that have arrived and were not taken."""
        self._backlog: collections.deque[_Unsent] = collections.deque()

    def fileno(self) -> int:
        """The socket's descriptor, for a selector."""
        return self._fileno

    @property
    def backlogged(self) -> bool:
        """Whether bytes are waiting until the socket is writable."""
        return bool(self._backlog)

    def send(self, kind: Kind, *parts: Bytes, fds: tuple[int, ...] = ()) -> None:
        """Send one frame.

        Args:
            kind: What the frame holds.
            parts: The body, in buffers that are sent without joining them. They must not change until they are sent.
            fds: Descriptors to send with the frame; the caller keeps (and closes) its own.

        Raises:
            OSError: The other end is closed; or (EMFILE) the frame must wait and its descriptors cannot be duplicated.
        """
        self._send([HEADER.pack(sum(map(len, parts)), kind), *parts], fds)

    def send_all(self, frames: Iterable[tuple[Kind, Bytes]], fds: tuple[int, ...]) -> None:
        """Send several frames, each given as (kind, body), with one system call.

        Raises:
            OSError: See `send`.
        """
        self._send([b"".join(HEADER.pack(len(body), kind) + body for kind, body in frames)], fds)

    def _send(self, pieces: list[Bytes], fds: tuple[int, ...]) -> None:
        if self._backlog:  # only the notebook's end has one
            self._keep(pieces, fds)
            self.flush()
            return
        try:
            sent = self._sock.sendmsg(pieces, with_message(fds) if fds else ())
        except BlockingIOError:
            self._keep(pieces, fds)
            return
        if sent == sum(map(len, pieces)):
            return
        for position, piece in enumerate(pieces):
            if sent < len(piece):
                self._keep([memoryview(piece)[sent:], *pieces[position + 1 :]], ())
                self.flush()
                return
            sent -= len(piece)

    def _keep(self, pieces: list[Bytes], fds: tuple[int, ...]) -> None:
        """Queue buffers until the socket is writable; the descriptors are sent with the first one.

        Raises:
            OSError: A descriptor cannot be duplicated (EMFILE). Nothing is queued.
        """
        copies: list[int] = []
        try:
            for fd in fds:
                copies.append(os.dup(fd))  # noqa: PERF401 - those before a failure are closed
        except OSError:
            close_all(copies)
            raise
        for piece in pieces:
            self._backlog.append(_Unsent(memoryview(piece), copies))
            copies = []

    def flush(self) -> None:
        """Send what is queued, as far as the socket accepts it (all of it on a blocking one)."""
        while self._backlog:
            head = self._backlog[0]
            try:
                sent = self._sock.sendmsg([head.data], with_message(head.fds) if head.fds else ())
            except BlockingIOError:
                return
            close_all(head.fds)
            if sent == len(head.data):
                self._backlog.popleft()
            else:
                self._backlog[0] = _Unsent(head.data[sent:], [])

    def receive(self, *, wait: bool = True) -> list[tuple[int, Bytes]]:
        """Read once and return the frames that are complete now, as (kind, body). May be empty.

        Args:
            wait: False makes a blocking channel return at once if no data has arrived.

        Raises:
            EOFError: The other end is closed and everything it sent has been read.
        """
        try:
            data, ancillary, flags, _address = self._sock.recvmsg(
                READ_SIZE, ANCILLARY_SIZE, RECEIVE if wait else RECEIVE_AT_ONCE
            )
        except BlockingIOError:
            return []
        except ConnectionResetError as error:
            raise EOFError from error
        if ancillary:
            self._fds += from_message(ancillary)
        if flags & CUT_OFF:
            self._fds.append(LOST)
        if not data:
            raise EOFError
        received = self._received
        received += data
        frames: list[tuple[int, Bytes]] = []
        position = 0
        while len(received) - position >= HEADER_SIZE:
            size, kind = HEADER.unpack_from(received, position)
            start = position + HEADER_SIZE
            if len(received) - start < size:
                break
            position = start + size
            frames.append((kind, received[start:position]))
        del received[:position]
        return frames

    def take_fd(self) -> int:
        """Return the oldest descriptor that has arrived and was not taken yet. The caller owns it.

        Raises:
            OSError: This process has too many open files (EMFILE): the descriptor was sent, but not received.
        """
        fd = self._fds.pop(0)
        if fd == LOST:
            limit = open_files_limit()
            text = f"{os.strerror(errno.EMFILE)} in process {os.getpid()}: raise `ulimit -n` (RLIMIT_NOFILE={limit})"
            raise OSError(errno.EMFILE, text)
        return fd

    def shut_down(self) -> None:
        """Close the sending side; what the other end sends can still be read."""
        with contextlib.suppress(OSError):  # the other end has closed it
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket and every descriptor that was not taken."""
        self._fds = [fd for fd in self._fds if fd != LOST]
        close_all(self._fds)
        for unsent in self._backlog:
            close_all(unsent.fds)
        self._backlog.clear()
        self._sock.close()
