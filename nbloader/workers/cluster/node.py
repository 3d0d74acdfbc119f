"""A node: the worker processes on one machine of a cluster. This runs in the node's actor and does not use Ray.

    execute(number, commands)    on the actor's thread for commands
    report(credit)               on the actor's thread for reports: waits until there is something to report
    stack(uid)                   on a separate thread: a worker may take seconds to respond

The workers belong to a `ProcessPool`, with its clean zygote and shared memory. The messages of the pool are sent in
their original order: batches, failures, output and ends of workers do not overtake each other.
"""

from __future__ import annotations

import collections
import dataclasses
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nbloader._platform import Wakeup
from nbloader.batch.payload import SegmentPayload
from nbloader.batch.task import JobKey, Task
from nbloader.errors import NbloaderError
from nbloader.events.failures import LoaderFailure
from nbloader.shm.segment import SegmentReader
from nbloader.transport.dataset_payload import PickleParts, SharedPickle
from nbloader.transport.environment import Environment
from nbloader.workers.cluster.protocol import (
    BatchBegin,
    CancelTasks,
    CloseNode,
    Command,
    DropSetup,
    Entry,
    KillWorker,
    LoadSetup,
    NodeClosed,
    NodeFault,
    NodeReport,
    ReleaseMemory,
    SampleStack,
    SentTask,
    SetEnvironment,
    SetupParts,
    StartWorker,
    StatusEntry,
    SubmitTasks,
)
from nbloader.workers.messages import BatchDone, ShardExhausted, WorkerGone, WorkerMessage
from nbloader.workers.process_pool import ProcessHandle, ProcessPool, ProcessSetup

_clock = time.perf_counter_ns

HEARTBEAT = 0.5
"""Seconds after which a report with the current status of the workers is sent even if nothing has happened."""


@dataclasses.dataclass(slots=True)
class OutgoingBatch:
    """A batch on its way to the notebook."""

    begin: BatchBegin
    memory: Any
    """The segment; None if the batch has no arrays, or if they are in `begin`."""
    nbytes: int
    """Number of bytes of `memory` to send."""
    segments: SegmentReader
    segment: int
    sent: int = 0
    """Number of bytes that previous reports contain."""


class Node:
    """The workers of one loader on one machine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakeup = Wakeup()
        self._own_path = list(sys.path)
        self._pool = ProcessPool("forkserver")
        self._pool.inherit(Environment.of_this_process())
        self._setups: dict[int, ProcessSetup] = {}
        self._handles: dict[int, ProcessHandle] = {}  # by the notebook's uid
        self._uids: dict[int, int] = {}  # the notebook's uid by ours
        self._tasks: dict[int, dict[JobKey, Task]] = {}  # what workers hold, by the notebook's uid
        self._early: dict[int, tuple[Sequence[Command], SetupParts | None]] = {}
        self._next = 0  # the number of the commands to execute next
        self._outgoing: collections.deque[Entry | OutgoingBatch] = collections.deque()
        self._in_report: list[OutgoingBatch] = []  # batches that the last report completed; Ray is storing that report
        self._closed = False
        self._actions: Mapping[type, Callable[[Any], object]] = {
            SetEnvironment: self._set_environment,
            DropSetup: lambda command: self._setups.pop(command.version, None),
            StartWorker: self._start,
            SubmitTasks: self._submit,
            CancelTasks: self._cancel,
            KillWorker: self._kill,
            SampleStack: self._sample_stack,
            ReleaseMemory: lambda _command: self._pool.release_memory(),
            CloseNode: self._close,
        }

    # ---- commands -----------------------------------------------------------------------------------------------

    def execute(self, number: int, commands: Sequence[Command], setup: SetupParts | None = None) -> None:
        """Execute commands after all earlier commands.

        Args:
            number: Number of this call, from 0. Calls may arrive in a different order.
            commands: The commands.
            setup: The pickled dataset and functions, if one of the commands is a `LoadSetup`.
        """
        with self._lock:
            self._early[number] = commands, setup
            while self._next in self._early:
                commands, setup = self._early.pop(self._next)
                self._next += 1
                for command in commands:
                    self._execute(command, setup)
        self._wakeup.set()

    def _execute(self, command: Command, setup: SetupParts | None) -> None:
        if self._closed:
            return
        try:
            if isinstance(command, LoadSetup):
                self._load_setup(command, setup)
            else:
                self._actions[type(command)](command)
        except Exception:  # noqa: BLE001 - a bug in nbloader must reach the notebook instead of hanging it
            self._outgoing.append(NodeFault(traceback.format_exc()))

    def _set_environment(self, command: SetEnvironment) -> None:
        """Take over the notebook's settings and paths, and keep this node's environment variables."""
        theirs, own = command.environment, Environment.of_this_process()
        paths = (self._own_path, theirs.sys_path) if command.own_first else (theirs.sys_path, self._own_path)
        cwd = own.cwd if command.own_first or not Path(theirs.cwd).is_dir() else theirs.cwd
        sys.path[:] = list(dict.fromkeys([*paths[0], *paths[1]]))  # the zygote gets the actor's paths
        self._pool.inherit(theirs._replace(sys_path=list(sys.path), cwd=cwd, environ=own.environ))

    def _load_setup(self, command: LoadSetup, parts: SetupParts | None) -> None:
        if parts is None:
            raise RuntimeError("the pickle of the dataset did not come with the command")
        pickled = SharedPickle.received(
            PickleParts(memoryview(parts.data), [memoryview(buffer) for buffer in parts.buffers])
        )
        self._setups[command.version] = ProcessSetup(pickled)

    def _start(self, command: StartWorker) -> None:
        try:
            handle = self._pool.start(command.worker, command.spec, self._setups[command.setup])
        except (OSError, MemoryError) as error:
            self._outgoing.append(WorkerGone(command.uid, None, reason=f"could not be started: {error}"))
            return
        self._handles[command.uid], self._uids[handle.uid] = handle, command.uid
        self._tasks[command.uid] = {}

    def _submit(self, command: SubmitTasks) -> None:
        handle = self._handles.get(command.uid)
        if handle is None or handle.gone:
            return  # its end has been reported, or is about to be
        tasks = []
        for pickled in command.tasks:
            sent: SentTask = pickle.loads(pickled)
            task = Task(sent.epoch, sent.job, sent.indices, sent.seed, job=sent.job)
            task.deaths = sent.deaths
            tasks.append(task)
        held = self._tasks[command.uid]
        held.update((JobKey(task.epoch, task.job), task) for task in tasks)
        for task, problem in self._pool.submit(handle.uid, tasks):
            del held[JobKey(task.epoch, task.job)]
            self._report_refused(command.uid, task.epoch, task.job, problem)

    def _report_refused(self, uid: int, epoch: int, job: int, error: Exception) -> None:
        self._outgoing.append(BatchDone(uid, epoch, job, LoaderFailure(error)))

    def _cancel(self, command: CancelTasks) -> None:
        handle = self._handles.get(command.uid)
        if handle is not None:
            self._pool.cancel(handle.uid, command.epoch, command.jobs)
            held = self._tasks[command.uid]
            for key in list(held):
                if key.epoch == command.epoch and (command.jobs is None or key.job in command.jobs):
                    del held[key]

    def _kill(self, command: KillWorker) -> None:
        handle = self._handles.get(command.uid)
        if handle is not None:
            handle.kill()

    def _sample_stack(self, command: SampleStack) -> None:
        handle = self._handles.get(command.uid)
        if handle is not None:
            handle.sample_stack()

    def _close(self, command: CloseNode) -> None:
        self._queue(self._pool.close(command.grace))
        self._pool.dispose()
        self._closed = True
        self._outgoing.append(NodeClosed())

    # ---- reports ------------------------------------------------------------------------------------------------

    def report(self, credit: int) -> NodeReport:
        """Wait until there is something to report, for at most `HEARTBEAT` seconds, and return a report.

        Args:
            credit: Number of bytes of batches that the report may contain.
        """
        begun = _clock()
        deadline = time.monotonic() + HEARTBEAT
        with self._lock:
            for batch in self._in_report:  # now stored, since calls for reports run one after the other
                batch.segments.discard(batch.segment)
            self._in_report = []
        while True:
            with self._lock:
                if not self._closed:
                    self._receive()
                left = deadline - time.monotonic()
                if self._outgoing or self._closed or left <= 0:
                    entries, data = self._fill(credit)
                    return NodeReport(begun, _clock(), pickle.dumps(entries, 5), data)
                fileno = self._pool.fileno()
            self._wakeup.wait((fileno,), left)

    def _receive(self) -> None:
        try:
            self._queue(self._pool.poll(0))
        except Exception:  # noqa: BLE001 - as above
            self._outgoing.append(NodeFault(traceback.format_exc()))

    def _queue(self, messages: Sequence[WorkerMessage]) -> None:
        for message in messages:
            uid = self._uids[message.uid]
            if isinstance(message, BatchDone | ShardExhausted):
                self._tasks[uid].pop(JobKey(message.epoch, message.job), None)
            if isinstance(message, BatchDone) and isinstance(message.outcome, SegmentPayload):
                self._outgoing.append(self._outgoing_batch(uid, message, message.outcome))
                continue
            if not isinstance(message, BatchDone):  # a life-cycle event: send the status of the worker, too
                self._outgoing.append(self._status(uid, self._handles[uid]))
            self._outgoing.append(dataclasses.replace(message, uid=uid))
            if isinstance(message, WorkerGone):
                del self._uids[message.uid], self._handles[uid], self._tasks[uid]

    def _outgoing_batch(self, uid: int, message: BatchDone, payload: SegmentPayload) -> OutgoingBatch:
        header, parts = payload.header, payload.parts()
        begin = BatchBegin(uid, parts.header, parts.skeleton, parts.inline, message.failed_samples)
        return OutgoingBatch(begin, parts.segment, header.nbytes, self._handles[uid].segments, header.segment)

    def _fill(self, credit: int) -> tuple[list[Entry], list[Any]]:
        """Take as many entries from the queue as fit into a report."""
        entries: list[Entry] = [self._status(uid, handle) for uid, handle in self._handles.items()]
        data: list[Any] = []
        while self._outgoing and credit > 0:
            item = self._outgoing[0]
            if not isinstance(item, OutgoingBatch):
                entries.append(item)
            else:
                if not item.sent:
                    entries.append(item.begin)
                    credit -= len(item.begin.skeleton) + len(item.begin.memory or b"")
                if item.memory is not None:
                    end = min(item.nbytes, item.sent + max(credit, 1))
                    data.append(np.frombuffer(item.memory, np.uint8, end - item.sent, item.sent))
                    credit -= end - item.sent
                    item.sent = end
                    if end < item.nbytes:
                        break
                    self._in_report.append(item)
            self._outgoing.popleft()
        return entries, data

    @staticmethod
    def _status(uid: int, handle: ProcessHandle) -> StatusEntry:
        status = handle.status
        return StatusEntry(
            uid, status.state, status.epoch, status.job, status.since, status.position, handle.pid or status.pid,
            status.begun,
        )  # fmt: skip

    # ---- stacks -------------------------------------------------------------------------------------------------

    def stack(self, uid: int) -> str:
        """Return the current Python stack of a worker.

        Raises:
            NbloaderError: The worker is not running, or does not respond.
        """
        with self._lock:
            handle = self._handles.get(uid)
            if handle is None:
                raise NbloaderError("the worker has ended")
            request = handle.stack_request()
        return request()
