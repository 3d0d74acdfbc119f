"""Worker processes: start, watch, talk to, end. Thin: it decides nothing, it reports what happened.

Everything that a worker can do to the notebook's process is a descriptor that becomes readable: its connection, its
lifeline (pid, then wait status), its standard output and error. All are in one selector, so that one
blocking call waits for all of them and a death is seen at once.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nbloader.batch.chunk_writer import Board, Placed
from nbloader.batch.payload import Layout, SegmentPayload
from nbloader.batch.task import ChunkedBatch, Task
from nbloader.events.failures import EmptyBatch, WorkerFailure
from nbloader.transport import forkserver
from nbloader.transport.bootstrap import Environment, InitMessage
from nbloader.transport.channel import MAX_FDS, Bytes, Kind
from nbloader.transport.messages import (
    BatchDone,
    OutputText,
    ShardAdvanced,
    ShardExhausted,
    WorkerGone,
    WorkerInitFailed,
    WorkerInitialized,
    WorkerLaunched,
    WorkerMessage,
)
from nbloader.transport.mp_objects import InheritedState
from nbloader.transport.process_setup import ProcessSetup
from nbloader.workers.process import ProcessHandle, connect, dump_task

_clock = time.perf_counter_ns
_OF_SHARDS: dict[int, Callable[..., WorkerMessage]] = {Kind.END: ShardExhausted, Kind.STATE: ShardAdvanced}

STATUS_WAIT = 1.0
"""Seconds to wait for the wait status of a worker whose connection has closed."""
MAX_DYING = 4
"""Killed processes that may not have ended when another is started."""


@dataclass(frozen=True, slots=True)
class Processes:
    """Makes pools of processes.

    Args:
        start_method: "forkserver" or "spawn".
        output: "torch" or "numpy": what the arrays of a batch become.
        transport: "shared_memory" or "pickle".
    """

    start_method: str
    output: str
    transport: str

    def pack(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> ProcessSetup:
        """Pickle what workers need.

        Raises:
            DatasetTransferError: It cannot be pickled.
        """
        return ProcessSetup(dataset, collate_fn, worker_init_fn, on_error, self.transport)

    def make(self) -> Pool:
        """A pool without processes."""
        return Pool(self.start_method, self.output)


class Pool:
    """The worker processes of one loader.

    Args:
        start_method: "forkserver" or "spawn".
        output: "torch" or "numpy": what the arrays of a batch become.
    """

    def __init__(self, start_method: str, output: str) -> None:
        self._start_method = start_method
        self._output = output
        self._selector = selectors.DefaultSelector()
        self._early: list[WorkerMessage] = []
        self._board = Board(output, self._share, self._drop)
        self.handles: dict[int, ProcessHandle] = {}
        """Processes that have not ended, by their unique number."""

    def fileno(self, uid: int | None = None) -> int:
        """See `WorkerPool` (epoll and kqueue can be nested)."""
        handle = None if uid is None else self.handles.get(uid)
        return self._selector.fileno() if handle is None else handle.channel.fileno()

    # ---- processes --------------------------------------------------------------------------------------------

    def start(self, worker: int, options: dict[str, Any], payload: ProcessSetup) -> ProcessHandle:
        """Start a worker process.

        Args:
            worker: Its id.
            options: The fields of `bootstrap.InitMessage` that do not come from here.
            payload: The dataset and functions.

        Raises:
            OSError: No process, pipe or memory could be had.
        """
        self._await_dying()
        pickled = payload.pickled
        files = pickled.files()
        with contextlib.ExitStack() as their_ends, contextlib.ExitStack() as our_ends:
            ours, theirs = connect(our_ends, their_ends)
            handle = ProcessHandle(worker, ours)
            sock = theirs.sock.fileno()
            if self._start_method == "forkserver":
                handle.lifeline = forkserver.fork(sock, theirs.stdout, theirs.stderr, payload.preload)
            else:
                self._spawn(handle, sock, theirs.stdout, theirs.stderr)
            our_ends.pop_all()
            for fd in handle.outputs:
                self._selector.register(fd, selectors.EVENT_READ, (handle, self._read_output))
            if handle.lifeline >= 0:
                self._selector.register(handle.lifeline, selectors.EVENT_READ, (handle, self._read_lifeline))
            self._selector.register(handle.channel, selectors.EVENT_READ, (handle, self._read_channel))
            self.handles[handle.uid] = handle
            inherited, handed = InheritedState.of_this_process(pickled.spawning)
            start = InitMessage(
                environment=Environment.of_this_process(), worker=worker, files=files._replace(fds=()),
                payload=pickled.data, inherited=inherited, **options,
            )  # fmt: skip
            for first in range(0, len(handed), MAX_FDS):  # before INIT, which may be too large to be sent at once
                self._send(handle, (Kind.HANDED, b""), fds=tuple(handed[first : first + MAX_FDS]))
            fds = (theirs.status, theirs.stack, *files.fds)
            self._send(handle, (Kind.INIT, pickle.dumps(start, 5)), fds=fds)
        return handle

    def _await_dying(self) -> None:
        """Wait until few processes are left that were killed and have not ended: each has descriptors open."""
        reports, self._early = self._early, []
        deadline = time.monotonic() + STATUS_WAIT
        while sum(handle.killed for handle in self.handles.values()) > MAX_DYING and time.monotonic() < deadline:
            reports += self.poll(STATUS_WAIT)
        self._early = reports + self._early

    def _spawn(self, handle: ProcessHandle, sock: int, stdout: int, stderr: int) -> None:
        command = forkserver.python_command(
            f"from nbloader.workers.process_worker import main; main({sock}, watched=False)"
        )
        handle.popen = subprocess.Popen(
            command, pass_fds=(sock,), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            env=forkserver.worker_environment(),
        )  # fmt: skip
        handle.exists(handle.popen.pid)
        if hasattr(os, "pidfd_open"):
            handle.lifeline = os.pidfd_open(handle.pid)
        self._early.append(WorkerLaunched(handle.uid))

    def give(self, uid: int, tasks: Sequence[Task]) -> list[tuple[Task, Exception]]:
        """Have a worker make batches. All go with one system call: it costs more than all the rest.

        Returns:
            Those whose indices cannot be pickled, and why.
        """
        handle = self.handles[uid]
        frames, unsent = [], []
        for task in tasks:
            returned = handle.maps.take_returned()
            placed = None if task.whole is None else self._place(handle, task, task.whole)
            try:
                message = dump_task(task, returned, placed)
            except Exception as error:  # noqa: BLE001 - pickling runs the user's code, which may raise anything
                handle.maps.returned.extend(returned)
                unsent.append((task, error))
            else:
                frames.append((Kind.TASK, message))
        if frames:
            self._send(handle, *frames)
        return unsent

    def learn(self, parcel: Any) -> None:
        """A piece of a batch has come."""
        if not parcel.in_arena:
            self._board.learn(parcel)

    def _place(self, handle: ProcessHandle, task: Task, whole: ChunkedBatch[Any]) -> Placed | None:
        """Where a worker shall write a piece; None where it shall send it by itself."""
        if not whole.begun:
            whole.begun = True
            whole.place = self._board.place(whole, frozenset(self.handles))
        found = self._board.placed(task, handle.uid)
        if found is None:
            return None
        placed, layout = found
        if handle.told != layout.number:
            handle.told = layout.number
            self._send(handle, (Kind.LAYOUT, layout.number.to_bytes(8, "little") + layout.pickled))
        return placed

    def _share(self, number: int, fd: int) -> frozenset[int]:
        for handle in self.handles.values():
            self._send(handle, (Kind.SEGMENT, number.to_bytes(8, "little")), fds=(fd,))
        return frozenset(self.handles)

    def _drop(self, number: int, uids: frozenset[int]) -> None:
        for uid in uids & frozenset(self.handles):
            self._send(self.handles[uid], (Kind.DROP, number.to_bytes(8, "little")))

    def rest(self) -> None:
        """Nothing is asked for at present: give memory back that the next epoch can begin without."""
        self._board.rest(frozenset(self.handles))
        for handle in self.handles.values():
            if handle.ready:
                self._send(handle, (Kind.REST, pickle.dumps(handle.maps.take_returned())))

    def cancel(self, uid: int, run: int, numbers: tuple[int, ...] | None) -> None:
        """Have a worker forget batches that it was given and has not begun; None: the whole run."""
        if uid in self.handles:
            self._send(self.handles[uid], (Kind.CANCEL, pickle.dumps((run, numbers))))

    def _send(self, handle: ProcessHandle, *frames: tuple[Kind, bytes], fds: tuple[int, ...] = ()) -> None:
        """Send frames to a worker. One that has died meanwhile will be reported by `poll`."""
        channel = handle.channel
        was_backlogged = channel.backlogged
        try:
            channel.send_all(frames, fds)
        except OSError:
            return
        if channel.backlogged and not was_backlogged:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(channel, both, (handle, self._read_channel))

    # ---- reports ----------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None) -> list[WorkerMessage]:
        """Wait until something happens, and tell what.

        Args:
            timeout: Seconds; 0 does not wait, None waits for ever.
        """
        reports, self._early = self._early, []
        for key, events in self._selector.select(0 if reports else timeout):
            handle, read = key.data
            if handle.gone:
                continue
            if events & selectors.EVENT_WRITE:
                self._flush(handle)
            if events & selectors.EVENT_READ:
                read(handle, key.fd, reports)
        return reports

    def _flush(self, handle: ProcessHandle) -> None:
        with contextlib.suppress(OSError):
            handle.channel.flush()
            if not handle.channel.backlogged:
                self._selector.modify(handle.channel, selectors.EVENT_READ, (handle, self._read_channel))

    def _read_channel(self, handle: ProcessHandle, _fd: int, reports: list[WorkerMessage]) -> None:
        try:
            frames = handle.channel.receive()
        except (EOFError, OSError):
            self._end(handle, self._wait_status(handle), reports)
            return
        received = _clock()
        for kind, body in frames:
            if kind == Kind.BATCH:
                payload = SegmentPayload(handle, body, received)
                header = payload.header
                reports.append(BatchDone(handle.uid, header.run, header.number, payload, handle.take_spared()))
            elif kind in (Kind.SEGMENT, Kind.DROP):
                self._read_segments(handle, kind, body)
            elif kind == Kind.LAYOUT:
                handle.layouts[int.from_bytes(body[:8], "little")] = Layout(body[8:], self._output)
            elif kind in (Kind.ERROR, Kind.SPARED):
                reports.extend(self._read_fault(handle, kind, body))
            elif kind in _OF_SHARDS:
                reports.append(_OF_SHARDS[kind](handle.uid, *pickle.loads(body)))
            elif kind == Kind.READY:
                handle.ready = True
                reports.append(WorkerInitialized(handle.uid))
            elif kind == Kind.INIT_ERROR:
                reports.append(WorkerInitFailed(handle.uid, pickle.loads(body)))

    @staticmethod
    def _read_segments(handle: ProcessHandle, kind: int, body: Bytes) -> None:
        if kind == Kind.SEGMENT:
            handle.maps.add(int.from_bytes(body, "little"), handle.channel.take_fd())
        else:
            for number in pickle.loads(body):
                handle.maps.forget(number)

    def _read_fault(self, handle: ProcessHandle, kind: int, body: Bytes) -> Iterator[BatchDone]:
        if kind == Kind.ERROR:
            run, number, stage, position, error = pickle.loads(body)
            failure = WorkerFailure(handle.worker, handle.pid, stage, position, error)
            yield BatchDone(handle.uid, run, number, failure, handle.take_spared())
        else:
            run, number, left, handle.spared = pickle.loads(body)
            if not left:
                yield BatchDone(handle.uid, run, number, EmptyBatch(), handle.take_spared())

    def _read_lifeline(self, handle: ProcessHandle, fd: int, reports: list[WorkerMessage]) -> None:
        if handle.popen is not None:
            self._end(handle, handle.popen.wait(), reports)
            return
        data = os.read(fd, forkserver.LIFELINE.size)
        value = forkserver.LIFELINE.unpack(data)[0] if data else None
        if value is not None and value >= 0:
            handle.exists(value)
            reports.append(WorkerLaunched(handle.uid))
            if handle.killed:
                handle.kill()
            return
        self._read_channel_to_the_end(handle, reports)
        self._end(handle, None if value is None else os.waitstatus_to_exitcode(~value), reports)

    def _read_channel_to_the_end(self, handle: ProcessHandle, reports: list[WorkerMessage]) -> None:
        """What a worker sent before it died still counts."""
        while not handle.gone and not handle.killed:
            before = len(reports)
            self._read_channel(handle, -1, reports)
            if len(reports) == before:
                return

    def _wait_status(self, handle: ProcessHandle) -> int | None:
        """The exit code of a worker whose connection has closed; one that lives on is killed."""
        if handle.popen is not None:
            try:
                return handle.popen.wait(STATUS_WAIT)
            except subprocess.TimeoutExpired:
                handle.kill()
                return handle.popen.wait()
        poll = select.poll()
        poll.register(handle.lifeline, select.POLLIN)
        while True:
            if not poll.poll(STATUS_WAIT * 1000):
                if handle.killed:
                    return None
                handle.kill()
                continue
            data = os.read(handle.lifeline, forkserver.LIFELINE.size)
            if not data:
                return None  # the fork server was killed, and its workers with it
            (value,) = forkserver.LIFELINE.unpack(data)
            if value < 0:
                return os.waitstatus_to_exitcode(~value)
            handle.exists(value)

    def _read_output(self, handle: ProcessHandle, fd: int, reports: list[WorkerMessage]) -> bool:
        """Read once what a worker has written, and report the whole lines. Whether there may be more to read."""
        _stream, partial = handle.outputs[fd]
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        partial += data
        if data:
            _report_output(handle, fd, partial.rfind(b"\n") + 1, reports)
            return True
        self._selector.unregister(fd)
        _report_output(handle, fd, len(partial), reports)
        return False

    def _end(self, handle: ProcessHandle, exitcode: int | None, reports: list[WorkerMessage]) -> None:
        """Forget a process that has ended; what it wrote last is read first, also where no line end follows it."""
        if handle.gone:
            return
        handle.end(exitcode)
        for fd, (_stream, partial) in handle.outputs.items():
            while fd in self._selector.get_map() and self._read_output(handle, fd, reports):
                pass
            _report_output(handle, fd, len(partial), reports)
        self._release(handle)
        self.handles.pop(handle.uid, None)
        reports.append(WorkerGone(handle.uid, exitcode))

    def _release(self, handle: ProcessHandle) -> None:
        registered = self._selector.get_map()
        for fd in (*handle.outputs, handle.lifeline, handle.channel.fileno()):
            if fd in registered:
                self._selector.unregister(fd)
        handle.channel.close()
        for fd in handle.take_fds():
            os.close(fd)

    def partial_output(self) -> list[tuple[str, str]]:
        """What workers wrote after their last line ends, as (stream, text); taken out."""
        taken = []
        for handle in self.handles.values():
            for stream, partial in handle.outputs.values():
                if partial:
                    taken.append((stream, partial.decode("utf-8", "backslashreplace")))
                    partial.clear()
        return taken

    # ---- the end ----------------------------------------------------------------------------------------------

    def close(self, grace: float) -> list[WorkerMessage]:
        """End all workers: those that do not leave within `grace` seconds of the end of their connection are killed.

        Returns:
            What there was to report meanwhile (last output, ends).
        """
        reports: list[WorkerMessage] = []
        for handle in self.handles.values():
            handle.channel.shut_down()
        deadline = time.monotonic() + grace
        while self.handles:
            left = deadline - time.monotonic()
            if left <= 0:
                for handle in self.handles.values():
                    handle.kill()
                left = STATUS_WAIT
            reports += self.poll(left)
        return reports

    def abandon(self) -> None:
        """End all workers at once and hear nothing of them: after an interrupt, what is read may begin anywhere."""
        for handle in self.handles.values():
            handle.kill()
            if handle.popen is not None:
                handle.popen.wait()
            handle.end(None if handle.popen is None else handle.popen.returncode)
            handle.channel.close()
            for fd in handle.take_fds():
                with contextlib.suppress(OSError):
                    os.close(fd)
        self.handles.clear()
        self.dispose()

    def dispose(self) -> None:
        """Close what is left when no worker is."""
        self._selector.close()


def _report_output(handle: ProcessHandle, fd: int, end: int, reports: list[WorkerMessage]) -> None:
    """WorkerMessage the first `end` bytes of what was read and not told."""
    if not end:
        return
    stream, partial = handle.outputs[fd]
    text = partial[:end].decode("utf-8", "backslashreplace")
    del partial[:end]
    if stream == "stderr":
        handle.keep(text)
    reports.append(OutputText(handle.uid, stream, text))
