"""Writes once a second what the loader of this process does, so that the ranks of a training run can be compared.

The thread begins with the first epoch, if the environment variable `NBLOADER_RANKS` names a folder, and ends when all
loaders of the process are closed or forgotten. It never disturbs the training: what fails is logged, once.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import multiprocessing.util
import os
import socket
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nbloader._platform import process_space
from nbloader._util.format import clean
from nbloader._util.threads import daemon
from nbloader.distributed import FOLDER
from nbloader.distributed.record import RankRecord, write
from nbloader.events import Event, LoaderClosed
from nbloader.metrics.snapshot import ENDED, Snapshot
from nbloader.workers.worker_info import inside_worker

if TYPE_CHECKING:
    from nbloader.metrics.control import LoaderControl

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two reports."""
FAILED_SAMPLES = 5
"""Number of failed samples kept in a report, without their tracebacks."""
PATIENCE = 2.0
"""Seconds for which the end of the process waits for a report that is being written."""
TEXT = 300
"""Largest number of characters of an error."""


def follow(loader: LoaderControl) -> None:
    """Report what a loader does from now on, unless a dataset uses it in a worker. Called when an epoch begins."""
    if not inside_worker():
        _reporter_for(Path(os.environ[FOLDER])).follow(loader)


class Identity:
    """The number of this rank, and how many there are: as torch knows it or, before that, as `torchrun` says."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))

    def update(self) -> None:
        """Ask torch, if the process group exists. What it said stays when the group is destroyed."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self.rank, self.world = distributed.get_rank(), distributed.get_world_size()


@dataclass(slots=True)
class _Followed:
    """A loader, and when its newest epoch began, monotonic seconds."""

    loader: weakref.ref[LoaderControl]
    began: float


class RankReporter:
    """Writes the reports of this process.

    Args:
        folder: Where to write. It is created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._identity = Identity()
        self._pid = os.getpid()
        self._began = time.time()
        self._lock = threading.RLock()
        """Held while the loaders change and while a report is written."""
        self._followed: list[_Followed] = []
        self._shown: Snapshot | None = None
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed = False

    def follow(self, loader: LoaderControl) -> None:
        """Report about a loader whose epoch begins now."""
        with self._lock:
            known = next((one for one in self._followed if one.loader() is loader), None)
            if known is None:
                self._followed.append(_Followed(weakref.ref(loader), time.monotonic()))
                loader.events.subscribe(self._on_event)
            else:
                known.began = time.monotonic()
            if self._thread is None:
                self._thread = daemon(self._run, name="nbloader-rank")
                self._thread.start()

    def finish(self) -> None:
        """Report for the last time, because the process ends. A forked process does not speak for this one."""
        if os.getpid() != self._pid or not self._lock.acquire(timeout=PATIENCE):
            return
        try:
            error = _unhandled()
            if self._followed or error:  # a `with` block has closed the loader before the error ends the process
                self._report(error)
                self._followed.clear()
                self._wake.set()
        finally:
            self._lock.release()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, LoaderClosed):
            self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(INTERVAL)
            self._wake.clear()
            with self._lock:
                try:
                    if self._followed:
                        self._report()
                except Exception:  # a bug here: log it, and leave the training alone
                    log.exception("this rank is reported no longer")
                    self._followed.clear()
                if not self._followed:
                    self._thread = None
                    return

    def _report(self, error: str | None = None) -> None:
        """Write the state of the loader that matters most.

        Args:
            error: The error that ends the process, "" if it ends without; None if it goes on.
        """
        self._identity.update()
        seen: list[tuple[float, Snapshot]] = []
        for one in list(self._followed):
            loader = one.loader()
            s = None if loader is None else loader.stats()
            if s is not None:
                seen.append((one.began, s))
            if s is None or s.state == "closed":
                self._followed.remove(one)
        self._shown = _most_important(seen) or self._shown
        if self._shown is None:
            return
        failed = tuple(dataclasses.replace(f, traceback="") for f in self._shown.failed_samples[-FAILED_SAMPLES:])
        record = RankRecord(
            rank=self._identity.rank,
            world=self._identity.world,
            host=socket.gethostname(),
            pid=self._pid,
            space=process_space(),
            began=self._began,
            time=time.time(),
            ended=error is not None or not self._followed,
            error=error or "",
            snapshot=dataclasses.replace(self._shown, failed_samples=failed),
        )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write(self._folder, record)
        except OSError as failure:  # a full disk, or a file server that does not answer: perhaps the next one succeeds
            if not self._failed:
                log.warning("what rank %d does cannot be reported: %s", record.rank, failure)
            self._failed = True


def _most_important(seen: list[tuple[float, Snapshot]]) -> Snapshot | None:
    """Return the loader of the outermost loop that runs, or else the one whose epoch began last; None without any.

    A loader that validates within an epoch of training began later than the one that trains.
    """
    running = [one for one in seen if one[1].state not in ("new", *ENDED)]
    if running:
        return min(running, key=lambda one: one[0])[1]
    return max(seen, key=lambda one: one[0])[1] if seen else None


def _unhandled() -> str:
    """The exception that ends this process; "" if there is none. In a notebook it was a cell that raised one."""
    error = getattr(sys, "last_value", None)
    if error is None or "ipykernel" in sys.modules:
        return ""
    return clean(f"{type(error).__name__}: {error}", TEXT)


_reporters: dict[tuple[int, Path], RankReporter] = {}
"""The reporters by process, since a fork has a copy of this dict, and by folder."""
_creating = threading.Lock()


def _reporter_for(folder: Path) -> RankReporter:
    key = (os.getpid(), folder)
    with _creating:
        if key not in _reporters:
            _reporters[key] = reporter = RankReporter(folder)
            atexit.register(reporter.finish)
            # Processes of `multiprocessing`, as those of notebook launchers, end without the functions of `atexit`.
            multiprocessing.util.Finalize(None, reporter.finish, exitpriority=0)
        return _reporters[key]
