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
from enum import IntEnum, unique
from itertools import starmap
from typing import NamedTuple, TypeAlias

from nbloader._platform import open_files_limit
from nbloader._platform.descriptors import close_all, open_into
from nbloader._platform.passing import (
    CUT_OFF,
    DONT_WAIT,
    RECEIVE,
    RECEIVE_AT_ONCE,
    from_message,
    space_for,
    with_message,
)

Bytes: TypeAlias = "bytes | bytearray | memoryview"

HEADER = struct.Struct("<QI")
"""Length of the body in bytes, and kind of the frame."""
HEADER_SIZE = HEADER.size
READ_SIZE = 1 << 16
"""Maximum bytes per read. It is below malloc's mmap threshold: a larger buffer costs page faults at every call."""
MAX_PIECES = 512
"""Maximum number of buffers per system call; the kernel accepts 1024."""
MAX_FDS = 64
"""Maximum number of descriptors per frame."""
ANCILLARY_SIZE = space_for(MAX_FDS)
_READ = ((READ_SIZE, ANCILLARY_SIZE, RECEIVE),)  # arguments of `recvmsg`
_READ_AT_ONCE = ((READ_SIZE, ANCILLARY_SIZE, RECEIVE_AT_ONCE),)
ROUND_ROBIN = b"\1"
"""Body of a READY frame: batches must be assigned to workers in turn."""
LOST = -1
"""Stands for descriptors that were lost because this process has reached its limit of open files."""


@unique
class Kind(IntEnum):
    """What a frame holds. The meaning of a number can depend on the direction."""

    INIT = 1
    """To the worker: `workers.bootstrap.InitMessage`."""
    TASK = 2
    """To the worker: produce this batch."""
    CANCEL = 3
    """To the worker: drop these batches of an iteration, if they were received before this frame and have not begun.
    Without batch numbers: drop all batches of the iteration, and its iterators over shards."""
    READY = 4
    """From the worker: it has loaded its dataset. The body is `ROUND_ROBIN` if batches must be assigned round-robin.
    From a zygote: it can fork workers."""
    SEGMENT = 5
    """From the worker, with a descriptor: a new segment."""
    BATCH = 7
    """From the worker: a batch."""
    ERROR = 8
    """From the worker: a batch that could not be produced."""
    INIT_ERROR = 9
    """From the worker: the dataset could not be rebuilt, or `worker_init_fn` raised. From a zygote: it could not be set
    up."""
    FORK = 10
    """To a zygote, with the worker's lifeline and `WorkerFds`: start a worker."""
    SAMPLE_FAILURES = 12
    """From the worker, before a batch: the samples of the batch that were skipped or replaced. No batch follows if all
    of its samples were skipped."""
    END = 13
    """From the worker: the shard is exhausted, so the batch does not exist."""
    STATE = 14
    """From the worker: the state of an iterator over a shard."""
    HANDED = 15
    """To the worker, before INIT: the descriptors of its `InheritedState`, such as those of `multiprocessing` objects
    in its dataset."""
    DROP = 16
    """From the worker: these segments are no longer used."""
    DISCARD = 23
    """To the worker: do not write to these segments again, since a forked process may have views of them."""
    REST = 17
    """To the worker: these segments were returned, and there is no work for now, so free memory."""
    STACKS = 22
    """From the worker: samples of its stacks."""
    SIGN = 24
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
        self._blocking = blocking
        self._sock = sock
        self._fileno = sock.fileno()
        self._tail = b""
        self._large: bytearray | None = None  # body of a frame that is larger than one read
        self._large_kind = 0
        self._large_got = 0
        self._fds: list[int] = []
        self._ancillary: list[tuple[int, int, bytes]] = []
        """Holds the descriptors that have arrived, until they are in `_fds`."""
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
            parts: The body, in buffers that are sent without joining them.
            fds: Descriptors to send with the frame; the caller keeps (and closes) its own.

        Raises:
            OSError: The other end is closed; or (EMFILE) the frame must wait and its descriptors cannot be duplicated.
        """
        self._send([HEADER.pack(sum(map(len, parts)), kind), *parts], fds)

    def send_all(self, frames: Iterable[tuple[Kind, Bytes]], fds: tuple[int, ...] = ()) -> None:
        """Send several frames, each given as (kind, body), with one system call.

        Raises:
            OSError: See `send`.
        """
        self._send([piece for kind, body in frames for piece in (HEADER.pack(len(body), kind), body)], fds)

    def _send(self, pieces: list[Bytes], fds: tuple[int, ...]) -> None:
        if self._backlog:  # only the notebook's end has one
            self._keep(pieces, fds)
            self.flush()
            return
        if len(pieces) > MAX_PIECES:
            pieces = [b"".join(pieces)]
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

        The notebook's end copies buffers that may change meanwhile. The worker's end sends everything before it
        returns.

        Raises:
            OSError: A descriptor cannot be duplicated (EMFILE). Nothing is queued.
        """
        copies: list[int] = []
        try:
            for fd in fds:
                open_into(copies, os.dup, fd)
            kept = [_Unsent(self._kept(piece), []) for piece in pieces]
            kept[0] = _Unsent(kept[0].data, copies)
            self._backlog += kept  # the last instruction: an interrupt comes before it, or finds the copies queued
        except BaseException:  # includes interrupts
            close_all(copies)
            raise

    def _kept(self, piece: Bytes) -> memoryview:
        """Return a buffer that does not change until it is sent."""
        view = memoryview(piece)
        return view if self._blocking or view.readonly else memoryview(bytes(view))

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
        frames: list[tuple[int, Bytes]] = []
        if self._large is not None:
            self._fill_large(frames, 0 if wait else DONT_WAIT)
            return frames
        try:  # the assignment calls `recvmsg`, so no signal handler runs between the two; see `open_into`
            [(data, ancillary, flags, _address)] = starmap(self._sock.recvmsg, _READ if wait else _READ_AT_ONCE)
        except BlockingIOError:
            return frames
        except ConnectionResetError as error:
            raise EOFError from error
        if ancillary or flags & CUT_OFF:
            self._ancillary = ancillary
            self._keep_fds(flags)
        if not data:
            raise EOFError
        if self._tail:
            data = self._tail + data
        position, end = 0, len(data)
        while end - position >= HEADER_SIZE:
            size, kind = HEADER.unpack_from(data, position)
            start = position + HEADER_SIZE
            if size > end - start:
                if size > READ_SIZE:
                    self._large, self._large_kind, self._large_got = bytearray(size), kind, end - start
                    self._large[: end - start] = data[start:]
                    position = end
                break
            position = start + size
            frames.append((kind, data[start:position]))
        self._tail = data[position:]
        return frames

    def take_fd(self, into: list[int] | None = None) -> int:
        """Return the oldest descriptor that has arrived and was not taken yet. The caller owns it.

        Args:
            into: Receives the descriptor, so that an interrupt does not lose it.

        Raises:
            OSError: This process has too many open files (EMFILE): the descriptor was sent, but not received.
        """
        fd = self._fds[0]
        if fd == LOST:
            del self._fds[0]
            limit = open_files_limit()
            text = f"{os.strerror(errno.EMFILE)} in process {os.getpid()}: raise `ulimit -n` (RLIMIT_NOFILE={limit})"
            raise OSError(errno.EMFILE, text)
        if into is not None:
            into += [fd]
        del self._fds[0]
        return fd

    def shut_down(self) -> None:
        """Close the sending side; what the other end sends can still be read."""
        with contextlib.suppress(OSError):  # the other end has closed it
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket and every descriptor that was not taken."""
        self._keep_fds(0)  # if `receive` was interrupted
        self._fds = [fd for fd in self._fds if fd != LOST]
        close_all(self._fds)
        for unsent in self._backlog:
            close_all(unsent.fds)
        self._backlog.clear()
        self._sock.close()

    def _fill_large(self, frames: list[tuple[int, Bytes]], flags: int) -> None:
        assert self._large is not None  # noqa: S101 - for the type checker
        try:
            got = self._sock.recv_into(memoryview(self._large)[self._large_got :], 0, flags)
        except BlockingIOError:
            return
        except ConnectionResetError as error:
            raise EOFError from error
        if not got:
            raise EOFError
        self._large_got += got
        if self._large_got == len(self._large):
            frames.append((self._large_kind, self._large))
            self._large = None

    def _keep_fds(self, flags: int) -> None:
        fds = from_message(self._ancillary)
        if flags & CUT_OFF:
            fds += [LOST]
        self._fds, self._ancillary = self._fds + fds, []  # at once: an interrupt neither loses nor duplicates them
