"""Worker processes: start them, send them tasks, read their messages, and shut them down.

    ProcessPool.submit() -> socket -> process_worker.WorkerLoop: fetch, collate -> socket -> ProcessPool.poll()

Whenever a worker has something to tell the notebook's process, one of its file descriptors becomes readable: its
socket, its lifeline (which carries the process id and later the wait status), its standard output or its standard
error. One selector watches all of them, so a single blocking call waits for every event, and the death of a worker is
noticed at once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import multiprocessing
import os
import pickle
import selectors
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from nbloader._platform import (
    HAS_ZYGOTES,
    SAMPLE_SIGNAL,
    end_of_child,
    mapped,
    readable,
    when_forked,
    working_directory,
)
from nbloader._platform.descriptors import TOO_MANY_FILES, close_all, open_pipe
from nbloader._util import rng
from nbloader._util.signals import raised_by_handler
from nbloader._util.user_warning import warn
from nbloader.batch.payload import SegmentPayload
from nbloader.batch.pickling import NamePickler, dump
from nbloader.batch.task import Task, dump_task
from nbloader.cache import process_cache
from nbloader.errors import DatasetTransferError, NbloaderError
from nbloader.events.failures import EmptyBatch, WorkerFailure
from nbloader.events.remote_errors import SampleFailure
from nbloader.shm.segment import SegmentReader, anonymous_file
from nbloader.transport.channel import MAX_FDS, ROUND_ROBIN, Bytes, Channel, Kind
from nbloader.transport.child_process import use_outputs
from nbloader.transport.dataset_payload import SharedPickle
from nbloader.transport.environment import Environment
from nbloader.transport.interpreter import start_interpreter, worker_environment
from nbloader.transport.mp_objects import InheritedState
from nbloader.transport.process_setup import pickle_parts
from nbloader.transport.stack_probe import StackPipe
from nbloader.transport.zygote import CleanZygote, ForkedZygote, Zygote, redirect_streams, reopen_files
from nbloader.transport.zygote_process import LIFELINE, Run, WorkerFds
from nbloader.workers import process_worker
from nbloader.workers.api import OutputTail, WorkerHandle, WorkerKind, WorkerPool
from nbloader.workers.bootstrap import InitMessage, WorkerStart
from nbloader.workers.fork_safety import threaded_package
from nbloader.workers.messages import (
    BatchDone,
    DescriptorsExhausted,
    OutputText,
    ShardAdvanced,
    ShardExhausted,
    SignSeen,
    StacksSampled,
    WorkerGone,
    WorkerInitFailed,
    WorkerInitialized,
    WorkerLaunched,
    WorkerMessage,
)
from nbloader.workers.run_state import RunState, RunStateReader
from nbloader.workers.seeders import dump_seeders
from nbloader.workers.spec import Parts, WorkerSpec
from nbloader.workers.status import PRODUCING, SHARED_STATUS_SIZE, SharedStatus, WorkerState

if HAS_ZYGOTES:
    from nbloader._platform.forking import end_of_process

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

STATUS_TIMEOUT = 5.0
"""Seconds to wait for the wait status of a worker whose connection has closed. On a busy machine, an interpreter with
torch needs more than one second to exit."""


class ProcessSetup(NamedTuple):
    """The setup of workers that inherit nothing: the dataset and functions, pickled once for all of them."""

    pickled: SharedPickle
    parts: Parts | None = None
    """What was pickled; None on another machine."""

    @property
    def identity(self) -> tuple[int, ...]:
        """See `WorkerSetup`."""
        return () if self.parts is None else self.parts.identity


class ProcessKind(WorkerKind):
    """Worker processes."""

    in_process: ClassVar[bool] = False
    local_processes: ClassVar[bool] = True
    reads_iterables: ClassVar[bool] = True

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        self.forks = spec.start_method == "fork"
        """Whether workers are forked from this process. It becomes False once forked workers have hung."""

    def pack(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, on_error: Any) -> ProcessSetup | Parts:
        """Pickle the dataset and functions, unless workers are forked from this process.

        Raises:
            DatasetTransferError: The dataset or a function cannot be pickled, and workers must not be forked.
        """
        parts = Parts(dataset, collate_fn, worker_init_fn, on_error)
        if self.forks and self.spec.may_heal and (package := threaded_package(*parts)):
            with contextlib.suppress(DatasetTransferError):  # it is forked nevertheless
                setup = ProcessSetup(pickle_parts(*parts), parts)
                self.forks = False
                warn(
                    f"the dataset uses {package}, whose threads do not survive a fork, so its workers are new "
                    'interpreters. Pass multiprocessing_context="forkserver" to turn this warning off, or "fork" for '
                    "workers that are copies of this process nevertheless."
                )
                return setup
        return parts if self.forks else ProcessSetup(pickle_parts(*parts), parts)

    def inherits(self, setup: Any) -> bool:
        """See `WorkerKind`."""
        return isinstance(setup, Parts)

    def keeps_pool(self, setup: Any) -> bool:
        """See `WorkerKind`. A clean zygote forks the workers of the next epoch, too."""
        return not self.inherits(setup)

    def clean(self, setup: Any) -> ProcessSetup | None:
        """See `WorkerKind`."""
        return ProcessSetup(pickle_parts(*setup), setup) if isinstance(setup, Parts) and self.spec.may_heal else None

    def stop_inheriting(self) -> None:
        """See `WorkerKind`."""
        self.forks = False

    def create_pool(self) -> ProcessPool:
        """See `WorkerKind`."""
        return ProcessPool(self.spec.start_method)


# ---- one worker ---------------------------------------------------------------------------------------------------


class Descriptors(NamedTuple):
    """The descriptors that connect the notebook's process to a worker."""

    sock: socket.socket
    stdout: int
    stderr: int
    stack: int
    status: int
    """A file for the worker's `SharedStatus`; both sides map it."""


def connect(ours: list[int], theirs: list[int]) -> tuple[Descriptors, WorkerFds]:
    """Create the descriptors that connect this process to a worker.

    Args:
        ours: Receives the descriptors, apart from the socket, of the notebook's process, also if this fails.
        theirs: Receives those that are to be closed after they were sent to the worker.

    Returns:
        The descriptors of the notebook's process, and the descriptors of the worker.

    Raises:
        OSError: There are too many open files.
    """
    for _ in range(3):
        open_pipe(ours, theirs)
    anonymous_file(SHARED_STATUS_SIZE, ours)
    stdout, stderr, stack, status = ours
    stdout_theirs, stderr_theirs, stack_theirs = theirs
    for fd in (stdout, stderr, stack, stack_theirs):
        os.set_blocking(fd, False)
    sock, sock_theirs = socket.socketpair()
    theirs.append(sock_theirs.detach())
    return (
        Descriptors(sock, stdout, stderr, stack, status),
        WorkerFds(stderr_theirs, theirs[-1], stdout_theirs, status, stack_theirs),
    )


@dataclass(slots=True)
class OutputStream:
    """The standard output or error of a worker."""

    name: str
    """"stdout" or "stderr"."""
    partial: bytearray
    """The bytes that were read after the last newline."""


class ProcessHandle(WorkerHandle):
    """One worker process.

    Args:
        worker: Worker id.
        descriptors: The descriptors of the notebook's process.
        fds: The list that owns these descriptors, apart from the socket.
    """

    in_process: ClassVar[bool] = False
    takes_signals: ClassVar[bool] = True
    status: SharedStatus

    def __init__(self, worker: int, descriptors: Descriptors, fds: list[int]) -> None:
        super().__init__(worker, "process", SharedStatus.at(mapped(descriptors.status, SHARED_STATUS_SIZE)))
        self.fds = fds
        """The descriptors that are closed when the worker has ended."""
        self.sent = 0
        """Number of tasks that were sent to the worker."""
        self.stack_pipe = StackPipe(descriptors.stack)
        self._run_state = RunStateReader()
        self.killed = False
        self.leaving = False
        """Whether the worker was told to leave: nothing is sent to it any more."""
        self.segments = SegmentReader()
        self.lifeline = -1
        self.child: subprocess.Popen[bytes] | None = None
        """The worker process, if it is a child of this process; None if it is a child of a zygote."""
        self.zygote: Zygote | None = None
        """The zygote that the worker is a child of."""
        self.outputs = {
            descriptors.stdout: OutputStream("stdout", bytearray()),
            descriptors.stderr: OutputStream("stderr", bytearray()),
        }
        """The output streams by file descriptor."""
        self.channel = Channel(descriptors.sock, blocking=False)
        self.stderr = OutputTail()
        self.failed_samples: list[SampleFailure] = []
        """Samples that were skipped or replaced in the next batch that the worker sends."""

    @property
    def forked(self) -> bool:
        """Whether the worker is a fork of this process, so that it has the same classes."""
        return isinstance(self.zygote, ForkedZygote)

    @property
    def stderr_tail(self) -> str:
        """See `WorkerHandle`."""
        return str(self.stderr)

    def take_failed_samples(self) -> list[SampleFailure]:
        """Return and clear the failed samples of the batch that has just arrived."""
        if not self.failed_samples:
            return self.failed_samples
        taken, self.failed_samples = self.failed_samples, []
        return taken

    def close(self) -> None:
        """Close this end of the connection."""
        self.outputs, self.lifeline, self.stack_pipe.fd = {}, -1, -1
        self.channel.close()
        close_all(self.fds)

    def stack_request(self) -> Callable[[], str]:
        """See `WorkerHandle`."""
        pid = self.status.pid  # set as soon as the worker can respond
        if not pid:
            raise NbloaderError(f"worker {self.worker} is being started: it has no Python stack yet")
        return self.stack_pipe.stack_request(pid, lambda: self.gone)

    def sample_stack(self) -> None:
        """See `WorkerHandle`. The sample arrives later, in a message from the worker."""
        status = self.status
        if self.gone or SAMPLE_SIGNAL is None or status.state not in PRODUCING:
            return
        pid = status.pid  # not 0, since the worker is producing a batch
        state = self._run_state.read(pid)
        status.computing += state is RunState.COMPUTING
        status.waiting += state is not RunState.COMPUTING
        status.queued += state is RunState.QUEUED
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, SAMPLE_SIGNAL)

    def begun(self, held: list[Task]) -> list[Task]:
        """See `WorkerHandle`."""
        status = self.status
        if status.begun:
            return [task for task in held if task.sequence <= status.begun]
        if status.state == WorkerState.STARTING:
            return []
        return [task for task in held[:1] if (task.epoch, task.job) == (status.epoch, status.job)]

    def leave(self) -> None:
        """See `WorkerHandle`."""
        self.leaving = True
        self.status.abandon()
        self.channel.shut_down()

    def kill(self) -> None:
        """See `WorkerHandle`."""
        self.killed = True
        pid = self.pid or self.status.pid
        if pid and not self.gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# ---- the pool -----------------------------------------------------------------------------------------------------


class ProcessPool(WorkerPool):
    """The worker processes of one loader.

    Args:
        start_method: "forkserver", "spawn" or "fork". Where there are no zygotes, each worker is a new interpreter.
    """

    def __init__(self, start_method: str) -> None:
        self._spawns = start_method == "spawn" or not HAS_ZYGOTES
        self._selector = selectors.DefaultSelector()
        self._unreported: list[WorkerMessage] = []  # messages that the next poll reports first
        self._handles: dict[int, ProcessHandle] = {}
        self._handed: list[int] = []
        """Descriptors of a worker that is being started, to be closed here as soon as the worker has them."""
        self._zygote: Zygote | None = None
        self._environment: Environment | None = None
        """What the workers of a clean zygote are given."""
        self._stale = False
        """Whether workers must inherit the present state of this process."""
        _pools.add(self)

    @property
    def handles(self) -> dict[int, ProcessHandle]:
        """See `WorkerPool`."""
        return self._handles

    def fileno(self) -> int:
        """See `WorkerPool` (epoll and kqueue can be nested)."""
        return self._selector.fileno()

    def start(self, worker: int, spec: WorkerSpec, setup: ProcessSetup | Parts) -> ProcessHandle:
        """See `WorkerPool`.

        Raises:
            OSError: The system provides no process, pipe or memory.
        """
        forked = isinstance(setup, Parts)
        start = WorkerStart(worker, spec if forked or spec.seeders else replace(spec, seeders=dump_seeders()))
        if isinstance(setup, ProcessSetup):
            setup.pickled.files()  # raises here if they do not fit into memory
        zygote = None if self._spawns else self._zygote_for(setup)
        ours: list[int] = []
        handle: ProcessHandle | None = None
        try:
            ends, theirs = connect(ours, self._handed)
            handle = ProcessHandle(worker, ends, ours)
            handle.zygote = zygote
            if zygote is None:
                self._spawn(handle, theirs)
            else:
                open_pipe(ours, self._handed)
                handle.lifeline = ours[-1]
                body = dump(start, None, NamePickler) if forked else b""
                try:
                    zygote.fork(body, self._handed[-1], theirs)
                except BrokenPipeError:  # it is being killed: its connection closes before it has ended
                    zygote.close()
                    if forked:
                        raise
                    handle.zygote = zygote = self._zygote_for(setup)
                    zygote.fork(body, self._handed[-1], theirs)
            self._register(handle)
            self._handles[handle.uid] = handle
            if isinstance(setup, ProcessSetup):
                self._send_setup(handle, theirs, start, setup)
        except BaseException:  # includes interrupts
            if handle is None:
                close_all(ours)
            elif handle.uid not in self._handles:
                self._discard(handle)
            raise
        finally:
            close_all(self._handed)
        return handle

    def _zygote_for(self, setup: ProcessSetup | Parts) -> Zygote:
        """Return the process that a worker with this setup is forked from.

        Raises:
            OSError: It has ended, or cannot be started.
        """
        present = self._zygote
        if isinstance(setup, Parts):
            if not isinstance(present, ForkedZygote):
                raise BrokenPipeError("there is no process that workers are forked from")
            return present
        if not isinstance(present, CleanZygote) or not present.alive:
            self._use_zygote(clean := CleanZygote())
            clean.start()
            return clean
        return present

    def _use_zygote(self, zygote: Zygote) -> None:
        before, self._zygote = self._zygote, zygote
        self._close_unused(before)

    def _close_unused(self, zygote: Zygote | None) -> None:
        """End a zygote that is to fork no more workers, once the last of its workers has ended."""
        if zygote is not None and all(handle.zygote is not zygote for handle in self._handles.values()):
            zygote.close()

    def _register(self, handle: ProcessHandle) -> None:
        """Let `poll` read what arrives from a worker."""
        for fd in handle.outputs:
            self._selector.register(fd, selectors.EVENT_READ, (handle, self._read_output))
        self._selector.register(handle.lifeline, selectors.EVENT_READ, (handle, self._read_lifeline))
        self._selector.register(handle.channel, selectors.EVENT_READ, (handle, self._read_channel))

    def _unregister(self, handle: ProcessHandle) -> None:
        registered = self._selector.get_map()
        for fd in (*handle.outputs, handle.lifeline, handle.channel.fileno()):
            if fd >= 0 and fd in registered:
                self._selector.unregister(fd)

    def _discard(self, handle: ProcessHandle) -> None:
        """Give up a worker whose start has failed."""
        self._unregister(handle)
        handle.close()
        if handle.child is not None:
            handle.child.kill()
            handle.child.wait()

    def missing(self, setup: ProcessSetup | Parts, seed: int) -> Callable[[], Any] | None:
        """See `WorkerPool`. This process is forked on the consumer's thread only."""
        if not self._stale and self.can_start(setup):
            return None
        if isinstance(setup, Parts):
            return functools.partial(_fork, setup, seed)
        return Environment.of_this_process

    def inherit(self, inherited: ForkedZygote | Environment) -> None:
        """See `WorkerPool`."""
        self._stale = False
        if isinstance(inherited, Environment):
            self._environment = inherited
        else:
            self._use_zygote(inherited)

    def reject(self, inherited: ForkedZygote | Environment) -> None:
        """See `WorkerPool`."""
        if isinstance(inherited, ForkedZygote):
            inherited.close()

    def can_start(self, setup: ProcessSetup | Parts) -> bool:
        """See `WorkerPool`."""
        if not isinstance(setup, Parts):
            return self._environment is not None
        return isinstance(self._zygote, ForkedZygote) and self._zygote.alive and not self._stale

    def renew(self) -> None:
        """See `WorkerPool`."""
        self._stale = True

    def _send_setup(self, handle: ProcessHandle, theirs: WorkerFds, start: WorkerStart, setup: ProcessSetup) -> None:
        pickled = setup.pickled
        files = pickled.files()
        inherited, handed = InheritedState.of_this_process(pickled.spawning)
        if self._environment is None:
            raise RuntimeError("a clean worker was started before the environment was read")
        message = InitMessage(
            start=start, environment=self._environment, inherited=inherited, files=files._replace(fds=()),
        )  # fmt: skip
        for first in range(0, len(handed), MAX_FDS):  # before INIT, which may be too large to be sent at once
            self._send(handle, (Kind.HANDED, b""), fds=tuple(handed[first : first + MAX_FDS]))
        fds = (theirs.status, theirs.stack, *files.fds)
        self._send(handle, (Kind.INIT, pickle.dumps(message, 5)), fds=fds)

    def _await_end(self, handles: list[ProcessHandle], deadline: float) -> bool:
        """Wait for the end of at least one of these workers. Return False if there is none until the deadline."""
        by_lifeline = {handle.lifeline: handle for handle in handles}
        ended = readable(by_lifeline, deadline - time.monotonic())
        for fd in ended:
            self._read_lifeline(by_lifeline[fd], fd, self._unreported)
        return bool(ended)

    def end_leaving(self, grace: float) -> bool:
        """See `WorkerPool`."""
        before = len(self._handles)
        for seconds in (grace, STATUS_TIMEOUT):
            deadline = time.monotonic() + seconds
            while leaving := [handle for handle in self._handles.values() if handle.leaving or handle.killed]:
                if not self._await_end(leaving, deadline):
                    break
            for handle in leaving:
                handle.kill()
        return len(self._handles) < before

    def _spawn(self, handle: ProcessHandle, theirs: WorkerFds) -> None:
        open_pipe(self._handed, handle.fds)
        sock, parent = theirs.sock, self._handed[-1]
        # In its own session, an interrupt of the notebook does not reach the worker, which may not ignore it yet.
        process = start_interpreter(
            f"from nbloader.workers.process_worker import main; main({sock}, {parent})", (sock, parent),
            stdout=theirs.stdout, stderr=theirs.stderr, env=worker_environment(), start_new_session=True,
            cwd=None if working_directory() else os.sep,
        )  # fmt: skip
        handle.child = process
        handle.mark_launched(process.pid)
        self._unreported.append(WorkerLaunched(handle.uid))
        end_of_child(process, handle.fds)
        handle.lifeline = handle.fds[-1]

    # ---- sending --------------------------------------------------------------------------------------------------

    def submit(self, uid: int, tasks: Sequence[Task]) -> list[tuple[Task, Exception]]:
        """See `WorkerPool`. All tasks are sent with one system call, because the call is the most expensive part."""
        handle = self._handles[uid]
        segments = handle.segments
        frames, refused = [], []
        if segments.inherited:
            frames.append((Kind.DISCARD, pickle.dumps(segments.take_inherited())))
        returned = segments.take_returned()
        for task in tasks:
            task.sequence = handle.sent + 1
            try:
                message = dump_task(task, returned, by_name=handle.forked)
            except Exception as error:  # pickling runs the user's code, which may raise anything
                if raised_by_handler(error):
                    raise
                refused.append((task, error))
            else:
                returned = []
                handle.sent += 1
                frames.append((Kind.TASK, message))
        segments.returned.extend(returned)  # not empty only if no task was sent
        if frames:
            self._send(handle, *frames)
        return refused

    def release_memory(self) -> None:
        """See `WorkerPool`."""
        for handle in self._handles.values():
            if handle.ready:
                inherited, returned = handle.segments.take_inherited(), handle.segments.take_returned()
                self._send(handle, (Kind.DISCARD, pickle.dumps(inherited)), (Kind.REST, pickle.dumps(returned)))

    def cancel(self, uid: int, epoch: int, jobs: tuple[int, ...] | None) -> None:
        """See `WorkerPool`."""
        if uid in self._handles:
            self._send(self._handles[uid], (Kind.CANCEL, pickle.dumps((epoch, jobs))))

    def _send(self, handle: ProcessHandle, *frames: tuple[Kind, bytes], fds: tuple[int, ...] = ()) -> None:
        """Send frames to a worker. If the worker has died in the meantime, `poll` will report that.

        Raises:
            OSError: This process has too many open files to keep `fds` until the worker reads. Nothing is sent.
        """
        channel = handle.channel
        was_backlogged = channel.backlogged
        try:
            channel.send_all(frames, fds)
        except OSError as error:
            if error.errno in TOO_MANY_FILES:
                raise
            return
        if channel.backlogged and not was_backlogged:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(channel, both, (handle, self._read_channel))

    # ---- receiving ------------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None) -> list[WorkerMessage]:
        """See `WorkerPool`."""
        messages, self._unreported = self._unreported, []
        for key, events in self._selector.select(0 if messages else timeout):
            handle, read = key.data
            if handle.gone:
                continue
            if events & selectors.EVENT_WRITE:
                self._flush(handle)
            if events & selectors.EVENT_READ:
                try:
                    read(handle, key.fd, messages)
                except OSError as error:
                    if error.errno not in TOO_MANY_FILES:
                        raise
                    messages.append(DescriptorsExhausted(handle.uid))
                    handle.kill()  # its later frames may refer to memory whose descriptor was not received
                    self._end(handle, self._wait_status(handle, messages), messages)
        return messages

    def _flush(self, handle: ProcessHandle) -> None:
        with contextlib.suppress(OSError):  # the worker has died, which reading from it will report, or it leaves
            handle.channel.flush()
            if handle.channel.backlogged:
                return
        self._selector.modify(handle.channel, selectors.EVENT_READ, (handle, self._read_channel))

    def _read_channel(self, handle: ProcessHandle, _fd: int, messages: list[WorkerMessage]) -> None:
        try:
            frames = handle.channel.receive()
        except (EOFError, OSError):
            if handle.leaving and not handle.killed:
                self._selector.unregister(handle.channel)  # the end of the process may take a while: see the lifeline
            else:
                self._end(handle, self._wait_status(handle, messages), messages)
        else:
            self._handle_frames(handle, frames, messages)

    def _handle_frames(
        self, handle: ProcessHandle, frames: list[tuple[int, Bytes]], messages: list[WorkerMessage]
    ) -> None:
        received = _clock()
        uid = handle.uid
        for kind, body in frames:
            if kind == Kind.BATCH:
                payload = SegmentPayload(handle, body, received)
                header = payload.header
                messages.append(BatchDone(uid, header.epoch, header.job, payload, handle.take_failed_samples()))
            elif kind in (Kind.SEGMENT, Kind.DROP):
                self._read_segments(handle, kind, body)
            elif kind in (Kind.ERROR, Kind.SAMPLE_FAILURES):
                messages.extend(self._read_failure(handle, kind, body))
            elif kind in (Kind.END, Kind.STATE):
                messages.append(self._read_shard(handle, kind, body))
            elif kind == Kind.READY:
                _note_launch(handle, handle.status.pid, messages)
                handle.ready = True
                messages.append(WorkerInitialized(uid, round_robin=bytes(body) == ROUND_ROBIN))
            elif kind in (Kind.STACKS, Kind.SIGN):
                content = pickle.loads(body)
                messages.append(StacksSampled(uid, content) if kind == Kind.STACKS else SignSeen(uid, content))
            elif kind == Kind.INIT_ERROR:
                messages.append(WorkerInitFailed(uid, pickle.loads(body).with_source_lines()))

    @staticmethod
    def _read_segments(handle: ProcessHandle, kind: int, body: Bytes) -> None:
        if kind == Kind.SEGMENT:
            fd = handle.channel.take_fd()
            try:
                handle.segments.add(int.from_bytes(body, "little"), fd)
            finally:
                os.close(fd)
        else:
            for number in pickle.loads(body):
                handle.segments.forget(number)

    @staticmethod
    def _read_shard(handle: ProcessHandle, kind: int, body: Bytes) -> WorkerMessage:
        if kind == Kind.END:
            epoch, job = pickle.loads(body)
            return ShardExhausted(handle.uid, epoch, job)
        epoch, shard, position, state, problem = pickle.loads(body)
        return ShardAdvanced(handle.uid, epoch, shard, position, state, problem)

    def _read_failure(self, handle: ProcessHandle, kind: int, body: Bytes) -> Iterator[BatchDone]:
        if kind == Kind.ERROR:
            epoch, job, stage, position, error = pickle.loads(body)
            failure = WorkerFailure(handle.worker, handle.pid, stage, position, error.with_source_lines())
            yield BatchDone(handle.uid, epoch, job, failure, handle.take_failed_samples())
        else:
            epoch, job, left, failed = pickle.loads(body)
            handle.failed_samples = [failure.with_source_lines() for failure in failed]
            if not left:
                yield BatchDone(handle.uid, epoch, job, EmptyBatch(), handle.take_failed_samples())

    def _read_lifeline(self, handle: ProcessHandle, fd: int, messages: list[WorkerMessage]) -> None:
        if handle.child is not None:
            exitcode: int | None = handle.child.wait()
        else:
            data = os.read(fd, LIFELINE.size)
            value = LIFELINE.unpack(data)[0] if data else None
            if value is not None and value >= 0:
                _note_launch(handle, value, messages)
                if handle.killed:
                    handle.kill()
                return
            exitcode = None if value is None else os.waitstatus_to_exitcode(~value)
        self._read_channel_to_the_end(handle, messages)
        self._end(handle, exitcode, messages)

    def _read_channel_to_the_end(self, handle: ProcessHandle, messages: list[WorkerMessage]) -> None:
        """Read everything that a worker sent before it died: it still counts.

        This loops because one read may return no complete frame, or no message. It does not wait for the end of the
        connection, since a child process that the worker left behind may hold the connection open.
        """
        with contextlib.suppress(EOFError, OSError):
            while not handle.killed and readable([handle.channel], 0):
                self._handle_frames(handle, handle.channel.receive(), messages)

    def _wait_status(self, handle: ProcessHandle, messages: list[WorkerMessage]) -> int | None:
        """Wait for the exit code of a worker whose connection has closed. Kill the worker if it keeps running."""
        if handle.child is not None:
            try:
                return handle.child.wait(STATUS_TIMEOUT)
            except subprocess.TimeoutExpired:
                handle.kill()
                return handle.child.wait()
        while True:
            if not readable([handle.lifeline], STATUS_TIMEOUT):
                if handle.killed:
                    return None
                handle.kill()
                continue
            data = os.read(handle.lifeline, LIFELINE.size)
            if not data:
                return None  # the zygote was killed, and its workers with it
            (value,) = LIFELINE.unpack(data)
            if value < 0:
                return os.waitstatus_to_exitcode(~value)
            _note_launch(handle, value, messages)

    def _read_output(self, handle: ProcessHandle, fd: int, messages: list[WorkerMessage]) -> bool:
        """Read once from a worker's output, and report complete lines. Return whether there may be more to read."""
        partial = handle.outputs[fd].partial
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        partial += data
        if data:
            _report_output(handle, fd, partial.rfind(b"\n") + 1, messages)
            return True
        self._selector.unregister(fd)
        _report_output(handle, fd, len(partial), messages)
        return False

    def _end(self, handle: ProcessHandle, exitcode: int | None, messages: list[WorkerMessage]) -> None:
        """Handle the end of a process. Its remaining output is read first, even if no newline follows."""
        if handle.gone:
            return
        handle.mark_ended(exitcode)
        for fd, output in handle.outputs.items():
            while fd in self._selector.get_map() and self._read_output(handle, fd, messages):
                pass
            _report_output(handle, fd, len(output.partial), messages)
        self._unregister(handle)
        handle.close()
        self._handles.pop(handle.uid, None)
        if handle.zygote is not self._zygote:
            self._close_unused(handle.zygote)
        ended = handle.zygote if exitcode is None and not handle.killed else None
        if ended is not None:
            ended.close()  # it has ended, or receives no descriptors any more
        messages.append(WorkerGone(handle.uid, exitcode, "" if ended is None else f"zygote {ended.number}"))

    def partial_output(self) -> list[tuple[str, str]]:
        """See `WorkerPool`."""
        taken = []
        for handle in self._handles.values():
            for output in handle.outputs.values():
                if output.partial:
                    taken.append((output.name, output.partial.decode("utf-8", "backslashreplace")))
                    output.partial.clear()
        return taken

    # ---- ending ---------------------------------------------------------------------------------------------------

    def let_leave(self, grace: float) -> list[WorkerMessage]:
        """See `WorkerPool`."""
        messages: list[WorkerMessage] = []
        for handle in self._handles.values():
            handle.leave()
        deadline = time.monotonic() + grace
        while self._handles and (left := deadline - time.monotonic()) > 0:
            messages += self.poll(left)
        return messages

    def close(self, grace: float) -> list[WorkerMessage]:
        """See `WorkerPool`."""
        messages = self.let_leave(grace)
        while self._handles:
            for handle in self._handles.values():
                handle.kill()
            messages += self.poll(STATUS_TIMEOUT)
            for zygote in self._zygotes():  # a zygote that does not respond reports no end of a worker
                zygote.close()
        return messages

    def dispose(self) -> None:
        """See `WorkerPool`."""
        close_all(self._handed)  # not empty only after an interrupt
        self._selector.close()
        for zygote in self._zygotes():
            zygote.close()

    def _zygotes(self) -> list[Zygote]:
        """Return the zygotes that have not been closed."""
        found = {id(zygote): zygote for zygote in (self._zygote, *(h.zygote for h in self._handles.values())) if zygote}
        return list(found.values())

    def disown(self) -> None:
        """Close the connections to all workers in a forked process: the workers belong to the parent.

        If the child kept the descriptors open, the parent would not notice that a worker has closed its connection.
        """
        for zygote in self._zygotes():
            zygote.disown()
        while self._handles:
            self._handles.popitem()[1].close()
        close_all(self._handed)
        self._selector.close()


_pools: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.disown()


when_forked(after_in_child=_after_fork)


def _note_launch(handle: ProcessHandle, pid: int, messages: list[WorkerMessage]) -> None:
    """Note that a worker exists. Its zygote says so, and the worker itself: what is read first counts."""
    if not handle.pid:
        handle.mark_launched(pid)
        messages.append(WorkerLaunched(handle.uid))


def _report_output(handle: ProcessHandle, fd: int, end: int, messages: list[WorkerMessage]) -> None:
    """Report the first `end` bytes that were read from a stream and have not been reported."""
    if not end:
        return
    output = handle.outputs[fd]
    text = output.partial[:end].decode("utf-8", "backslashreplace")
    del output.partial[:end]
    if output.name == "stderr":
        handle.stderr.keep(text)
    messages.append(OutputText(handle.uid, output.name, text))


def _fork(parts: Parts, seed: int) -> ForkedZygote:
    """Fork this process, on the calling thread. Returns the process that workers are forked from.

    Raises:
        OSError: There is not enough memory, or there are too many processes or open files.
        ZygoteHungError: See `ForkedZygote`.
    """
    importlib.import_module("numpy.random")  # otherwise each worker would import it to seed its generator
    process_cache.share()  # a cache that is created after the fork would not be shared
    zygote = ForkedZygote()
    try:
        zygote.start(_forked_worker(parts), functools.partial(rng.seed_everything, seed))
    except BaseException:  # includes interrupts
        zygote.close()
        raise
    return zygote


def _forked_worker(parts: Parts) -> Run:
    """Return what a worker that is forked from this process runs."""
    # `Process` resets the state of `multiprocessing` in the worker, such as the finalizers of this process.
    process = multiprocessing.Process()
    notebook = os.getpid()

    def run(body: bytes, fds: WorkerFds) -> None:
        use_outputs(fds.stdout, fds.stderr)
        redirect_streams(process_worker.line_writer(1), process_worker.line_writer(2))
        reopen_files()
        start: WorkerStart = pickle.loads(body)
        process.name = f"Process-{start.worker + 1}"
        process.run = functools.partial(  # type: ignore[method-assign]
            process_worker.main_forked, fds.sock, fds.status, fds.stack, start, parts
        )
        code = process._bootstrap(end_of_process(notebook))  # type: ignore[attr-defined]
        if code:
            raise SystemExit(code)

    return run
