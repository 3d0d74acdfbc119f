"""The worker's side: receive indices, fetch, collate into a segment, tell where it lies.

    main() -> _settle(): surroundings, dataset -> loop: next task -> fetch -> encode -> send

A worker leaves when its connection closes. It ignores SIGINT, which a kernel's children would otherwise get with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TextIO, TypeAlias

from nbloader._util import rng
from nbloader._util.import_hooks import when_imported
from nbloader.batch.chunk_writer import Beside, Placed
from nbloader.batch.header import IN_ARENA, NO_SEGMENT, PICKLED, BatchHeader
from nbloader.events.failures import describe
from nbloader.transport import stack_probe
from nbloader.transport.channel import Bytes, Channel, Kind
from nbloader.transport.dataset_payload import Files, load_shared
from nbloader.transport.inherit import leave, take_over
from nbloader.transport.start import Start
from nbloader.workers import fetcher as f
from nbloader.workers import tolerant
from nbloader.workers.encode import Encoded, Encoder, dump_extras
from nbloader.workers.iterable_fetcher import Build, ExhaustedError, Samples, Streams
from nbloader.workers.thread_rng import WorkerInfo
from nbloader.workers.worker_info import Process, introduce_to_torch, stack_in_own_memory

_clock = time.perf_counter_ns
LISTEN = 1_000_000
"""How long a CANCEL may lie unread while tasks wait that came before it, ns. What is made though it was cancelled is
refused; to listen before each of some tiny batches that came together took a twentieth of all their time. No longer
than `driver.WORTH_MOVING`: what is moved to another worker is not made here as well."""
Fetch: TypeAlias = "Callable[[int, Any], Samples]"
"""Gets the samples of one batch: of (run, what was drawn for it)."""


def main(fd: int, *, watched: bool = True) -> None:
    """Run a worker on its connection until that closes.

    Args:
        fd: Descriptor of the connected socket.
        watched: Whether somebody ends this process when the notebook's is gone, even while it hangs. The fork server
            does; a spawned worker looks after itself.
    """
    if not watched:
        threading.Thread(target=_leave_with_the_notebook, name="nbloader-watch", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = _line_writer(1)
    sys.stderr = _line_writer(2)
    faulthandler.enable(sys.stderr)
    with (
        contextlib.closing(Channel(socket.socket(fileno=fd), blocking=True)) as channel,
        contextlib.suppress(EOFError, ConnectionError, HungUpError),
    ):
        worker = _settle(channel)
        if worker is not None:
            worker.run()
    leave()


def _leave_with_the_notebook() -> None:
    """End this process when nobody can read its standard output any more."""
    poll = select.poll()
    poll.register(1, 0)
    poll.poll()
    os._exit(1)


def _line_writer(fd: int) -> TextIO:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _settle(channel: Channel) -> Worker | None:
    """Take over the surroundings and rebuild the dataset. None when that failed, which has been reported."""
    frames: list[tuple[int, Bytes]] = []
    while not frames:
        frames = [frame for frame in channel.receive() if frame[0] != Kind.HANDED]
    start: Start = pickle.loads(frames[0][1])
    take_over(start.heritage, [channel.take_fd() for _ in range(start.heritage.fds)])
    status_fd = channel.take_fd()
    status = memoryview(mmap.mmap(status_fd, 8 * f.STATUS_SIZE)).cast("q")
    os.close(status_fd)
    stack_probe.answer(channel.take_fd())
    status[f.SINCE], status[f.PID] = _clock(), os.getpid()
    start.surroundings.take_over()
    try:
        files = start.files._replace(fds=tuple(channel.take_fd() for _ in start.files.private))
        build = None
        if start.streaming is not None:
            build = partial(_another_copy, start, _duplicate(files))
        dataset, collate_fn, worker_init_fn, on_error = load_shared(start.payload, files)
        _introduce(start, dataset)
        if worker_init_fn is not None:
            worker_init_fn(start.worker)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises goes to the notebook
        channel.send(Kind.INIT_ERROR, pickle.dumps(describe(error)))
        return None
    channel.send(Kind.READY)
    seeded = rng.torch_was_seeded()
    return Worker(channel, start, dataset, collate_fn, on_error, status, frames[1:], build, seeded=seeded)


def _duplicate(files: Files) -> Files:
    return files._replace(fds=tuple(map(os.dup, files.fds)))


def _another_copy(start: Start, files: Files) -> tuple[Any, Callable[[int], None] | None]:
    """The dataset once more, and `worker_init_fn`."""
    dataset, _collate_fn, worker_init_fn, _on_error = load_shared(start.payload, _duplicate(files))
    return dataset, worker_init_fn


def _introduce(start: Start, dataset: Any) -> None:
    """Make `get_worker_info()`, ours and torch's, answer; seed; hold numeric libraries to one thread."""
    seed = start.seed + start.worker
    Process().introduce(WorkerInfo(start.worker, start.num_workers, seed, dataset))
    rng.seed_everything(seed)
    when_imported("torch", _set_up_torch)


def _set_up_torch() -> None:
    """Tell torch, just imported (maybe by a sample), that this process is a worker, and seed it as the others are."""
    import torch

    introduce_to_torch()
    stack_in_own_memory()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    rng.seed_torch()


class HungUpError(Exception):
    """The notebook's process has closed the connection. A type of its own: datasets raise EOFError and the like too."""


class Worker:
    """The loop of a worker process.

    Args:
        channel: The connection to the notebook's process.
        start: What it was sent first.
        dataset: The rebuilt dataset.
        collate_fn: The user's, or None for the default.
        on_error: What to do with a sample that raises.
        status: Where it tells what it is at.
        frames: Frames that have come already.
        build: Gives another copy of an iterable dataset, and `worker_init_fn`.
        seeded: Whether `worker_init_fn` has seeded torch: then it looks after the seeds itself, as it would have to in
            torch's workers, and batches are not seeded by their number.
    """

    def __init__(
        self,
        channel: Channel,
        start: Start,
        dataset: Any,
        collate_fn: Callable[[Any], Any] | None,
        on_error: tolerant.OnError,
        status: Any,
        frames: list[tuple[int, Bytes]],
        build: Build | None = None,
        *,
        seeded: bool,
    ) -> None:
        self._channel = channel
        self._batched = start.batched
        self._status = status
        self._seeded = seeded
        self._streams: Streams | None = None
        self._fetch: Fetch = partial(_fetch_items, dataset, on_error, start.batched, status)
        if start.streaming is not None and build is not None:
            own = start.worker, start.num_workers
            self._streams = Streams(
                build, dataset, own, start.streaming, status, on_error,
                host=Process(), tell=self._tell_state, seeded=seeded,
            )  # fmt: skip
            self._fetch = self._streams.fetch
        self._encoder = Encoder(start, collate_fn, self._send)
        self._beside = Beside()
        self._pending = deque(frames)  # frames that have come and were not looked at
        self._heard = 0  # when it listened last, perf_counter ns

    def run(self) -> None:
        """Make batches until the connection closes.

        Raises:
            EOFError: It closed while the worker waited.
            HungUpError: It closed while the worker sent something.
        """
        self._cancel()
        while True:
            run, number, indices, seed = self._next_task()
            if not self._seeded:
                rng.seed_everything(seed)
            try:
                self._make(run, number, indices)
            except HungUpError:
                raise
            except ExhaustedError:
                self._send(Kind.END, pickle.dumps((run, number)))
            except Exception as error:  # noqa: BLE001 - whatever the user's dataset or collate raises goes to the notebook
                self._report(run, number, error)

    def _next_task(self) -> tuple[int, int, Any, int]:
        status = self._status
        now = _clock()
        status[f.STATE], status[f.NUMBER], status[f.SINCE] = f.IDLE, -1, now
        if not self._pending or now - self._heard >= LISTEN:  # a waiting CANCEL counts before the next task
            self._heard = now
            self._listen(wait=False)
        while True:
            while not self._pending:
                self._listen(wait=True)
            kind, body = self._pending.popleft()
            if kind == Kind.TASK:
                break
            self._arrange(kind, body)
        run, number, indices, seed, returned = pickle.loads(body)
        self._encoder.give_back(returned)
        status[f.RUN], status[f.NUMBER] = run, number
        return run, number, indices, seed

    def _listen(self, *, wait: bool) -> None:
        frames = self._channel.receive(wait=wait)
        self._pending.extend(frames)
        if any(kind == Kind.CANCEL for kind, _body in frames):
            self._cancel()

    def _cancel(self) -> None:
        """Forget what was cancelled: tasks that came before the CANCEL (the same batch may be asked for again)."""
        kept: list[tuple[Bytes, tuple[Any, ...]]] = []
        for kind, body in self._pending:
            if kind not in (Kind.TASK, Kind.CANCEL):
                self._arrange(kind, body)
                continue
            message = pickle.loads(body)
            if kind == Kind.TASK:
                kept.append((body, message))
                continue
            run, numbers = message
            if numbers is None and self._streams is not None:
                self._streams.forget(run)
            dropped = [task for _body, task in kept if task[0] == run and (numbers is None or task[1] in numbers)]
            for task in dropped:
                self._encoder.give_back(task[4])
                if numbers is None:  # one of them counts as begun and is waited for
                    self._send(Kind.END, pickle.dumps(task[:2]))
            kept = [item for item in kept if item[1] not in dropped]
        self._pending = deque((Kind.TASK, body) for body, _message in kept)

    def _arrange(self, kind: int, body: Bytes) -> None:
        """Something about segments, or about batches that several workers write."""
        number = int.from_bytes(body[:8], "little")
        if kind == Kind.SEGMENT:
            self._beside.add(number, self._channel.take_fd())
        elif kind == Kind.LAYOUT:
            self._beside.learn(number, bytes(body[8:]))
        elif kind == Kind.DROP:
            self._beside.forget(number)
        elif kind == Kind.REST:
            self._encoder.give_back(pickle.loads(body))
            self._encoder.rest()

    def _make(self, run: int, number: int, indices: Any) -> None:
        status = self._status
        placed = None
        if type(indices) is Placed:
            placed, indices = indices, indices.indices
        cpu_0 = time.process_time_ns()
        got, spared = self._fetch(run, indices)
        cpu_1 = time.process_time_ns()
        if spared:
            self._send(Kind.SPARED, pickle.dumps((run, number, got is not None, spared)))
        if got is None:
            return
        status[f.STATE], status[f.SINCE] = f.COLLATING, got.end
        samples = got.samples
        size = len(samples) if self._batched else 1
        layout, extras, nbytes, memory, segment = (placed and self._write(samples, placed)) or self._encoder.encode(
            samples
        )
        cpu_2, end = time.process_time_ns(), _clock()
        status[f.STATE], status[f.SINCE] = f.SENDING, end
        sys.stdout.flush()
        header = BatchHeader(
            run, number, layout, segment, nbytes, len(extras), size,
            got.begin, got.end, end, cpu_1 - cpu_0, cpu_2 - cpu_1, got.slowest, got.slowest_ns,
        ).pack()  # fmt: skip
        if segment == NO_SEGMENT:
            self._send(Kind.BATCH, header, extras, memory)
        else:
            self._send(Kind.BATCH, header, extras)

    def _write(self, samples: Any, placed: Placed) -> Encoded | None:
        """Write a piece beside those of other workers; None where it does not fit there."""
        written = self._beside.write(samples if isinstance(samples, list) else list(samples), placed)
        if written is None:
            return None
        extras, nbytes = written
        return PICKLED, dump_extras(extras), nbytes, None, IN_ARENA

    def _send(self, kind: Kind, *parts: Bytes, fds: tuple[int, ...] = ()) -> None:
        try:
            self._channel.send(kind, *parts, fds=fds)
        except ConnectionError as error:
            raise HungUpError from error

    def _tell_state(self, run: int, shard: int, position: int, state: str | None, problem: str) -> None:
        self._send(Kind.STATE, pickle.dumps((run, shard, position, state, problem)))

    def _report(self, run: int, number: int, error: Exception) -> None:
        fetching = self._status[f.STATE] == f.FETCHING
        position = int(self._status[f.POSITION]) if fetching and self._batched else -1
        sys.stdout.flush()
        stage = "fetch" if fetching else "collate"
        self._send(Kind.ERROR, pickle.dumps((run, number, stage, position, describe(error))))


def _fetch_items(
    dataset: Any, on_error: tolerant.OnError, batched: bool, status: Any, _run: int, indices: Any
) -> Samples:
    return tolerant.fetch(dataset, indices, batched=batched, status=status, on_error=on_error)
