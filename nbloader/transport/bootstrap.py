"""What a worker process is sent when it starts: the dataset, the notebook's environment, and the worker's options."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nbloader._util.system import ROOT, working_directory
from nbloader.transport.dataset_payload import Files
from nbloader.transport.mp_objects import InheritedState

if TYPE_CHECKING:  # workers of a map-style dataset do without
    from nbloader.sampling.shard_plan import IterableOptions

log = logging.getLogger(__name__)


class Environment(NamedTuple):
    """The environment of the notebook's process that a worker takes over."""

    sys_path: list[str]
    cwd: str
    environ: dict[str, str]
    argv: list[str]

    @classmethod
    def of_this_process(cls) -> Environment:
        """That of this process, now."""
        return cls(list(sys.path), working_directory() or ROOT, dict(os.environ), list(sys.argv))

    def install(self) -> None:
        """In a worker: install it in this process. The worker's own thread limits stay."""
        sys.path[:] = self.sys_path
        sys.argv[:] = self.argv
        for name in set(os.environ) - set(self.environ):
            if not name.endswith("_NUM_THREADS"):
                del os.environ[name]
        os.environ.update(self.environ)
        try:
            os.chdir(self.cwd)
        except OSError as error:
            text = "a worker cannot enter the working directory %s of the notebook, and finds relative paths in %s: %s"
            log.warning(text, self.cwd, Path.cwd(), error)


class WorkerStart(NamedTuple):
    """The options of a worker."""

    worker: int
    """Worker id."""
    num_workers: int
    seed: int
    batched: bool
    output: str
    """"torch" or "numpy": what the arrays of a batch become."""
    transport: str
    """"shared_memory" or "pickle"."""
    in_order: bool
    """Whether batches are delivered in order."""
    fresh: bool
    """Whether each iteration begins on a new copy of the dataset and functions."""
    streaming: IterableOptions | None
    """Options of an iterable dataset; None for a map-style dataset."""


class InitMessage(NamedTuple):
    """The body of the `INIT` frame, pickled. A forked worker needs none: it has the objects."""

    start: WorkerStart
    environment: Environment
    inherited: InheritedState
    files: Files
    """The files of the dataset's large arrays; the descriptors are sent along."""
    payload: bytes
    """Pickle of (dataset, collate_fn, worker_init_fn, on_error)."""
