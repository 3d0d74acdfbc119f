"""Frames arrive whole, in order and with their descriptors, however the socket splits the stream."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from datasets import PATIENCE
from hypothesis import given, settings
from hypothesis import strategies as st

from nbloader.batch.payload import BatchHeader, pack_header, unpack_header
from nbloader.transport.channel import HEADER, READ_SIZE, Channel, Kind

pytestmark = pytest.mark.unit

KINDS = st.sampled_from(list(Kind))
SIZES = st.one_of(st.integers(0, 200), st.integers(READ_SIZE - 20, READ_SIZE + 20), st.integers(0, 5 * READ_SIZE))


@contextlib.contextmanager
def channels(*, left_blocking: bool = False, right_blocking: bool = False):
    a, b = socket.socketpair()
    left, right = Channel(a, blocking=left_blocking), Channel(b, blocking=right_blocking)
    try:
        yield left, right
    finally:
        left.close()
        right.close()


def body(size: int, seed: int) -> bytes:
    return bytes((seed + i) & 0xFF for i in range(256)) * (size // 256 + 1)


def pump(sender: Channel, receiver: Channel, count: int) -> list[tuple[int, bytes]]:
    """Transfer frames, both ends in this thread."""
    frames: list[tuple[int, bytes]] = []
    while len(frames) < count:
        sender.flush()
        frames += [(kind, bytes(data)) for kind, data in receiver.receive()]
    return frames


@settings(max_examples=60)
@given(st.lists(st.tuples(KINDS, st.lists(SIZES, max_size=4)), max_size=12))
def test_frames_arrive_whole_and_in_order(sent):
    with channels() as (left, right):
        expected = []
        for number, (kind, sizes) in enumerate(sent):
            parts = [body(size, number + p)[:size] for p, size in enumerate(sizes)]
            left.send(kind, *parts)
            expected.append((kind, b"".join(parts)))
        assert pump(left, right, len(expected)) == expected
        assert right.receive() == []


@settings(max_examples=40)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.lists(st.integers(0, 400), min_size=1, max_size=10))
def test_a_stream_split_anywhere_gives_the_same_frames(cuts, sizes):
    """As when a read ends in the middle of a header."""
    a, b = socket.socketpair()
    with contextlib.closing(a), contextlib.closing(Channel(b, blocking=False)) as right:
        recorder, tap = socket.socketpair()
        with contextlib.closing(Channel(recorder, blocking=False)) as channel, contextlib.closing(tap):
            for number, size in enumerate(sizes):
                channel.send(Kind.BATCH, body(size, number)[:size])
            stream = tap.recv(1 << 20)
        frames, position = [], 0
        while position < len(stream):
            cut = cuts[position % len(cuts)]
            a.sendall(stream[position : position + cut])
            position += cut
            frames += right.receive()
        assert [bytes(f) for _kind, f in frames] == [body(s, n)[:s] for n, s in enumerate(sizes)]


def test_a_nonblocking_sender_keeps_what_the_socket_does_not_accept():
    with channels() as (left, right):
        big = body(4_000_000, 3)
        left.send(Kind.INIT, big)
        assert left.backlogged
        left.send(Kind.TASK, b"after")
        assert pump(left, right, 2) == [(Kind.INIT, big), (Kind.TASK, b"after")]
        assert not left.backlogged


def test_a_blocking_sender_waits_until_all_is_read():
    with channels(left_blocking=True, right_blocking=True) as (left, right):
        big = body(3_000_000, 1)
        thread = threading.Thread(target=left.send, args=(Kind.BATCH, big[:100], big[100:]))
        thread.start()
        frames: list[tuple[int, bytes]] = []
        while not frames:
            frames += right.receive()
        thread.join()
        assert [(k, bytes(f)) for k, f in frames] == [(Kind.BATCH, big)]
        assert not left.backlogged


def test_a_blocking_receiver_can_poll():
    with channels(right_blocking=True) as (left, right):
        assert right.receive(wait=False) == []
        left.send(Kind.TASK, b"1")
        assert right.receive(wait=False) == [(Kind.TASK, b"1")]


def test_a_poll_of_a_blocking_receiver_returns_in_the_middle_of_a_large_frame():
    """The other end may stall or be stopped there."""
    a, b = socket.socketpair()
    frame = HEADER.pack(4 * READ_SIZE, Kind.BATCH) + bytes(4 * READ_SIZE)
    receiver = Channel(b, blocking=True)
    frames: list[tuple[int, bytes]] = []

    def poll():
        for begin in range(0, len(frame), READ_SIZE):
            a.sendall(frame[begin : begin + READ_SIZE])
            for _ in range(2):
                frames.extend(receiver.receive(wait=False))

    with a, contextlib.closing(receiver), ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(poll).result(PATIENCE)
        finally:
            a.shutdown(socket.SHUT_RDWR)  # for one that waits
        assert frames == [(Kind.BATCH, bytes(4 * READ_SIZE))]


@pytest.mark.parametrize("after", [0, 10, 3 * READ_SIZE])
def test_descriptors_arrive_with_their_frame_and_in_order(after):
    with channels() as (left, right):
        left.send(Kind.BATCH, body(after, 0)[:after])
        for text in (b"one", b"two", b"three"):
            read, write = os.pipe()
            os.write(write, text)
            os.close(write)
            left.send(Kind.SEGMENT, text, fds=(read,))
            os.close(read)
        frames = pump(left, right, 4)
        for _kind, text in frames[1:]:
            fd = right.take_fd()
            assert os.read(fd, 100) == text
            assert not os.get_inheritable(fd)
            os.close(fd)
        with pytest.raises(IndexError):
            right.take_fd()


@pytest.mark.linux("the limit of open files is known")
def test_descriptors_that_could_not_be_received_are_an_error_that_names_the_limit():
    with channels() as (left, right):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        left.send(Kind.SEGMENT, b"lost", fds=(0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))  # one may be received
        try:
            assert right.receive() == [(Kind.SEGMENT, b"lost")]
            os.close(right.take_fd())
            with pytest.raises(OSError, match=rf"Too many open files.*RLIMIT_NOFILE={free + 1}\)") as raised:
                right.take_fd()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert raised.value.errno == errno.EMFILE
        left.send(Kind.SEGMENT, b"next", fds=(0,))
        assert right.receive() == [(Kind.SEGMENT, b"next")]
        os.close(right.take_fd())


def test_descriptors_that_nobody_took_are_closed():
    with channels() as (left, right):
        read, write = os.pipe()
        left.send(Kind.SEGMENT, fds=(write,))
        pump(left, right, 1)
        os.close(write)
        right.close()
        assert os.read(read, 1) == b"", "the last writer is gone"
        os.close(read)


def test_frames_before_the_end_of_the_stream_are_returned_before_it_is_reported():
    with channels() as (left, right):
        left.send(Kind.BATCH, b"last words")
        left.close()
        assert right.receive() == [(Kind.BATCH, b"last words")]
        with pytest.raises(EOFError):
            right.receive()


@pytest.mark.parametrize("sent", [3, 20, READ_SIZE + 100])
def test_an_end_within_a_frame_raises_eof(sent):
    a, b = socket.socketpair()
    with contextlib.closing(Channel(b, blocking=False)) as right:
        with contextlib.closing(a):
            a.sendall(HEADER.pack(4 * READ_SIZE, Kind.BATCH) + bytes(sent))
        with pytest.raises(EOFError):
            pump(right, right, 1)


def test_a_connection_reset_raises_eof():
    """A peer that closes with unread data resets the connection."""
    with channels() as (left, right):
        right.send(Kind.TASK, b"never read")
        left.close()
        with pytest.raises(EOFError):
            right.receive()


def test_sending_to_a_closed_end_raises():
    with channels() as (left, right):
        right.close()
        with pytest.raises(OSError):
            left.send(Kind.TASK, b"1")


def test_after_shut_down_the_other_end_can_still_answer():
    with channels() as (left, right):
        left.shut_down()
        with pytest.raises(EOFError):
            right.receive()
        right.send(Kind.BATCH, b"answer")
        assert left.receive() == [(Kind.BATCH, b"answer")]
        left.shut_down()


def test_descriptors_that_wait_in_the_backlog_arrive_with_their_frame():
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sender, receiver = Channel(ours, blocking=False), Channel(theirs, blocking=True)
    files = [os.memfd_create(f"file {i}") for i in range(3)]
    for i, fd in enumerate(files):
        os.write(fd, bytes([i]))
        sender.send(Kind.TASK, bytes(100_000))
        sender.send(Kind.SEGMENT, bytes([i]), fds=(fd,))
        os.close(fd)
    assert sender.backlogged
    seen = []
    while len(seen) < 6:
        for kind, body in receiver.receive(wait=False):
            seen.append(kind)
            if kind == Kind.SEGMENT:
                fd = receiver.take_fd()
                assert os.pread(fd, 1, 0) == bytes(body)
                os.close(fd)
        sender.flush()
    assert seen == [Kind.TASK, Kind.SEGMENT] * 3
    sender.send(Kind.TASK, bytes(1_000_000))
    unsent = os.memfd_create("unsent")
    sender.send(Kind.SEGMENT, b"x", fds=(unsent,))
    os.close(unsent)
    sender.close()
    receiver.close()


def test_a_frame_whose_descriptors_cannot_be_kept_is_an_error_and_is_not_sent(monkeypatch):
    ours, theirs = socket.socketpair()
    sender, receiver = Channel(ours, blocking=False), Channel(theirs, blocking=False)
    with contextlib.closing(sender), contextlib.closing(receiver), open(os.devnull) as null:
        sender.send(Kind.TASK, bytes(1_000_000))
        duplicates = [os.dup(null.fileno())]

        def dup(_fd):
            if not duplicates:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return duplicates.pop()

        with monkeypatch.context() as patched:
            patched.setattr(os, "dup", dup)
            with pytest.raises(OSError, match="Too many open files"):
                sender.send(Kind.SEGMENT, b"lost", fds=(null.fileno(), null.fileno()))
        sender.send(Kind.DROP, b"next")
        assert [kind for kind, _body in pump(sender, receiver, 2)] == [Kind.TASK, Kind.DROP]


class Huge(bytes):
    """A buffer that reports a larger size than it has."""

    def __len__(self):
        return 5 << 30


def test_frames_may_be_larger_than_4_gib():
    """By the length fields alone: the fake socket accepts any number of bytes."""

    class Socket:
        sent = ()

        def setblocking(self, _blocking):
            pass

        def fileno(self):
            return -1

        def sendmsg(self, buffers, _ancillary):
            self.sent = buffers
            return sum(map(len, buffers))

    sock = Socket()
    channel = Channel(sock, blocking=True)
    channel.send(Kind.BATCH, b"header", Huge())
    assert HEADER.unpack(sock.sent[0]) == (6 + (5 << 30), Kind.BATCH)
    sent = BatchHeader(0, 1, -1, 6 << 30, 5 << 30, samples=1 << 33, collated=7, slowest_ns=8)
    header = unpack_header(pack_header(*sent) + b"extras")
    assert header == sent
    assert type(header) is BatchHeader
