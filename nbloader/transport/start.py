"""What a worker process is sent first: what it takes over of the notebook's, and its dataset."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

from nbloader.sampling.shard_plan import IterableOptions
from nbloader.transport.dataset_payload import Files
from nbloader.transport.inherit import Heritage


class Surroundings(NamedTuple):
    """What of the notebook's process a worker takes over."""

    sys_path: list[str]
    cwd: str
    environ: dict[str, str]
    argv: list[str]

    @classmethod
    def here(cls) -> Surroundings:
        """Those of this process, now."""
        try:
            cwd = str(Path.cwd())
        except FileNotFoundError:  # the folder was deleted under the notebook
            cwd = ""
        return cls(list(sys.path), cwd, dict(os.environ), list(sys.argv))

    def take_over(self) -> None:
        """Make them this process's."""
        sys.path[:] = self.sys_path
        sys.argv[:] = self.argv
        for name in set(os.environ) - set(self.environ):
            if not name.endswith("_NUM_THREADS"):
                del os.environ[name]
        os.environ.update(self.environ)
        with contextlib.suppress(OSError):
            os.chdir(self.cwd)


class Start(NamedTuple):
    """What a worker is sent first."""

    surroundings: Surroundings
    worker: int
    num_workers: int
    seed: int
    batched: bool
    output: str
    transport: str
    files: Files
    """Where the dataset's large arrays lie; the descriptors came along."""
    payload: bytes
    """Pickle of (dataset, collate_fn, worker_init_fn, on_error)."""
    heritage: Heritage
    streaming: IterableOptions | None
    """Of an iterable dataset."""
