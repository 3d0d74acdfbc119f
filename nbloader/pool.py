"""Worker processes: start, watch, talk to, end. Thin: it decides nothing, it reports what happened.

Everything that a worker can do to the notebook's process is a descriptor that becomes readable: its connection, its
lifeline (pid, then wait status), its standard output and error. All are in one selector, so that one
blocking call waits for all of them and a death is seen at once.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from nbloader import fetch as f
from nbloader import forkserver
from nbloader.cargo import Cargo
from nbloader.dispatch import Task
from nbloader.errors import NbloaderError
from nbloader.faults import Failure, Nothing, SpareSample
from nbloader.handle import Handle
from nbloader.reports import Gone, InitFailed, Layout, Output, Parcel, Ready, Report, Result, Started
from nbloader.shm import SegmentMaps, anonymous_file
from nbloader.stacks import StackPipe
from nbloader.wire import Bytes, Channel, Kind
from nbloader.worker import Start, Surroundings

_clock = time.perf_counter_ns
_PLAIN = {int, str, bool, float, bytes}

TAIL = 4096
"""Characters of a worker's standard error that are kept."""
STATUS_WAIT = 1.0
"""Seconds to wait for the wait status of a worker whose connection has closed."""


class ProcessHandle(Handle):
    """One worker process."""

    def __init__(self, worker: int) -> None:
        fd = anonymous_file(8 * f.STATUS_SIZE)
        self._page = memoryview(mmap.mmap(fd, 8 * f.STATUS_SIZE)).cast("q")
        super().__init__(worker, self._page)
        self.status_fd = fd
        self.stack = StackPipe()
        self.killed = False
        self.maps = SegmentMaps()
        self.layouts: dict[int, Layout] = {}
        self.tail: deque[str] = deque(maxlen=100)
        self.lifeline = -1
        self.popen: subprocess.Popen[bytes] | None = None
        self.outputs: dict[int, tuple[str, bytearray]] = {}
        self.spared: list[SpareSample] = []
        """Samples that were left out of the batch that it sends next, or replaced."""
        self.channel: Channel

    @property
    def stderr_tail(self) -> str:
        """The last lines that it wrote to its standard error."""
        return "".join(self.tail)[-TAIL:]

    def take_spared(self) -> list[SpareSample]:
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
        pid = self.status[f.PID]  # it is there as soon as the worker can answer
        if not pid:
            raise NbloaderError(f"worker {self.worker} is being started: it has no Python stack yet")
        return self.stack.asker(pid, lambda: self.gone)

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        self.killed = True
        pid = self.pid or self.status[f.PID]
        if pid and not self.gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Processes:
    """Makes pools of processes.

    Args:
        start_method: "forkserver" or "spawn".
        output: "torch" or "numpy": what the arrays of a batch become.
    """

    start_method: str
    output: str

    def pack(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> Cargo:
        """Pickle what workers need.

        Raises:
            DatasetTransferError: It cannot be pickled.
        """
        return Cargo(dataset, collate_fn, worker_init_fn, on_error)

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
        self._early: list[Report] = []
        self.handles: dict[int, ProcessHandle] = {}
        """Processes that have not ended, by their unique number."""

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to report (epoll and kqueue can be nested)."""
        return self._selector.fileno()

    # ---- processes --------------------------------------------------------------------------------------------

    def start(self, worker: int, options: dict[str, Any], payload: Cargo) -> ProcessHandle:
        """Start a worker process.

        Args:
            worker: Its id.
            options: The fields of `worker.Start` that do not come from here.
            payload: The dataset and functions.

        Raises:
            OSError: No process, pipe or memory could be had.
        """
        pickled = payload.pickled
        shared = pickled.fd()
        handle = ProcessHandle(worker)
        ours, theirs = socket.socketpair()
        out, out_theirs = os.pipe()
        err, err_theirs = os.pipe()
        try:
            if self._start_method == "forkserver":
                handle.lifeline = forkserver.fork(theirs.fileno(), out_theirs, err_theirs, payload.preload)
            else:
                self._spawn(handle, theirs.fileno(), out_theirs, err_theirs)
        except BaseException:
            ours.close()
            for fd in (out, err, handle.status_fd, handle.stack.fd, handle.stack.theirs):
                os.close(fd)
            raise
        finally:
            theirs.close()
            os.close(out_theirs)
            os.close(err_theirs)
        for fd, stream in ((out, "stdout"), (err, "stderr")):
            os.set_blocking(fd, False)
            handle.outputs[fd] = stream, bytearray()
            self._selector.register(fd, selectors.EVENT_READ, (handle, self._read_output))
        if handle.lifeline >= 0:
            self._selector.register(handle.lifeline, selectors.EVENT_READ, (handle, self._read_lifeline))
        handle.channel = Channel(ours, blocking=False)
        self._selector.register(handle.channel, selectors.EVENT_READ, (handle, self._read_channel))
        self.handles[handle.uid] = handle
        start = Start(
            surroundings=Surroundings.here(), worker=worker, spans=pickled.spans, shared=shared is not None,
            payload=pickled.data, **options,
        )  # fmt: skip
        fds = (handle.status_fd, handle.stack.theirs, *(() if shared is None else (shared,)))
        self._send(handle, (Kind.INIT, pickle.dumps(start, 5)), fds=fds)
        os.close(handle.status_fd)
        os.close(handle.stack.theirs)
        return handle

    def _spawn(self, handle: ProcessHandle, sock: int, stdout: int, stderr: int) -> None:
        command = forkserver.python_command(f"from nbloader.worker import main; main({sock}, watched=False)")
        handle.popen = subprocess.Popen(
            command, pass_fds=(sock,), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            env=forkserver.worker_environment(),
        )  # fmt: skip
        handle.pid = handle.popen.pid
        if hasattr(os, "pidfd_open"):
            handle.lifeline = os.pidfd_open(handle.pid)
        self._early.append(Started(handle))

    def give(self, uid: int, tasks: Sequence[Task]) -> list[tuple[Task, Exception]]:
        """Have a worker make batches. All go with one system call: it costs more than all the rest.

        Returns:
            Those whose indices cannot be pickled, and why.
        """
        handle = self.handles[uid]
        frames, unsent = [], []
        for task in tasks:
            returned = handle.maps.take_returned()
            try:
                message = _dump_task(task, returned)
            except Exception as error:  # noqa: BLE001 - pickling runs the user's code, which may raise anything
                handle.maps.returned.extend(returned)
                unsent.append((task, error))
            else:
                frames.append((Kind.TASK, message))
        if frames:
            self._send(handle, *frames)
        return unsent

    def cancel(self, uid: int, run: int, numbers: tuple[int, ...]) -> None:
        """Have a worker forget batches that it was given and has not begun."""
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

    def poll(self, timeout: float | None) -> list[Report]:
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

    def _read_channel(self, handle: ProcessHandle, _fd: int, reports: list[Report]) -> None:
        try:
            frames = handle.channel.receive()
        except (EOFError, OSError):
            self._end(handle, self._wait_status(handle), reports)
            return
        received = _clock()
        for kind, body in frames:
            if kind == Kind.BATCH:
                parcel = Parcel(handle, body, received)
                reports.append(Result(handle, parcel.header[0], parcel.header[1], parcel, handle.take_spared()))
            elif kind == Kind.SEGMENT:
                handle.maps.add(int.from_bytes(body, "little"), handle.channel.take_fd())
            elif kind == Kind.LAYOUT:
                handle.layouts[int.from_bytes(body[:8], "little")] = Layout(body[8:], self._output)
            elif kind in (Kind.ERROR, Kind.SPARED):
                reports.extend(self._read_fault(handle, kind, body))
            elif kind == Kind.READY:
                handle.ready = True
                reports.append(Ready(handle))
            elif kind == Kind.INIT_ERROR:
                reports.append(InitFailed(handle, pickle.loads(body)))

    def _read_fault(self, handle: ProcessHandle, kind: int, body: Bytes) -> Iterator[Result]:
        if kind == Kind.ERROR:
            run, number, stage, position, error = pickle.loads(body)
            failure = Failure(handle.worker, handle.pid, stage, position, error)
            yield Result(handle, run, number, failure, handle.take_spared())
        else:
            run, number, left, handle.spared = pickle.loads(body)
            if not left:
                yield Result(handle, run, number, Nothing(), handle.take_spared())

    def _read_lifeline(self, handle: ProcessHandle, fd: int, reports: list[Report]) -> None:
        if handle.popen is not None:
            self._end(handle, handle.popen.wait(), reports)
            return
        data = os.read(fd, forkserver.LIFELINE.size)
        value = forkserver.LIFELINE.unpack(data)[0] if data else None
        if value is not None and value >= 0:
            handle.pid = value
            reports.append(Started(handle))
            if handle.killed:
                handle.kill()
            return
        self._read_channel_to_the_end(handle, reports)
        self._end(handle, None if value is None else os.waitstatus_to_exitcode(~value), reports)

    def _read_channel_to_the_end(self, handle: ProcessHandle, reports: list[Report]) -> None:
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
        with selectors.DefaultSelector() as selector:
            selector.register(handle.lifeline, selectors.EVENT_READ)
            while True:
                if not selector.select(STATUS_WAIT):
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
                handle.pid = value

    def _read_output(self, handle: ProcessHandle, fd: int, reports: list[Report]) -> None:
        stream, partial = handle.outputs[fd]
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(fd)
        partial += data
        end = len(partial) if not data else partial.rfind(b"\n") + 1
        if end:
            text = partial[:end].decode("utf-8", "backslashreplace")
            del partial[:end]
            if stream == "stderr":
                handle.tail.extend(text.splitlines(keepends=True))
            reports.append(Output(handle, stream, text))

    def _end(self, handle: ProcessHandle, exitcode: int | None, reports: list[Report]) -> None:
        """Forget a process that has ended; what it wrote last is read first."""
        if handle.gone:
            return
        handle.gone = True
        for fd in handle.outputs:
            if fd in self._selector.get_map():
                before = -1
                while before != len(reports):
                    before = len(reports)
                    self._read_output(handle, fd, reports)
        self._release(handle)
        self.handles.pop(handle.uid, None)
        reports.append(Gone(handle, exitcode))

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

    def close(self, grace: float) -> list[Report]:
        """End all workers: those that do not leave within `grace` seconds of the end of their connection are killed.

        Returns:
            What there was to report meanwhile (last output, ends).
        """
        reports: list[Report] = []
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
            handle.gone = True
            handle.channel.close()
            for fd in handle.take_fds():
                with contextlib.suppress(OSError):
                    os.close(fd)
        self.handles.clear()
        self.dispose()

    def dispose(self) -> None:
        """Close what is left when no worker is."""
        self._selector.close()


def _dump_task(task: Task, returned: list[int]) -> bytes:
    """A task for a worker. Indices of the notebook's own types go by value."""
    message = (task.run, task.number, task.indices, task.seed, returned)
    indices = task.indices
    kinds = set(map(type, indices)) if type(indices) is list else {type(indices)}
    return pickle.dumps(message, 5) if kinds <= _PLAIN else bytes(cloudpickle.dumps(message, 5))
