"""Records the runs that the documentation plays: `python docs/recordings/record.py`, which takes a minute.

In two of them a worker hangs in a sample. In one, nobody does anything for ten seconds more; in the other one the
worker is restarted soon, and another one takes over its batch. In the third one a batch is late.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from nbloader import DataLoader

HERE = Path(__file__).parent
FORK = "a worker hangs"
HUNG_SAMPLE = 24 * 16 + 5
LATE_SAMPLE, BLOCKED = 22 * 4 + 1, 6
"""The sample of the third run that is late, and how many batches wait behind it at the mark."""
WAITS = {"do-nothing.nbl": 10.0, "restart-worker.nbl": 0.5}
"""Seconds from when the worker is stuck until somebody does something."""


class Files:
    """Decodes made-up files; one lies on a disk that does not answer, the first time that it is read."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __len__(self) -> int:
        """Samples."""
        return 90 * 16

    def __getitem__(self, index: int) -> int:
        """A sample, which takes 6 ms; one never comes."""
        if index == HUNG_SAMPLE and not self.flag.exists():
            self.flag.touch()
            time.sleep(3600)
        time.sleep(0.004)
        deadline = time.perf_counter() + 0.002
        while time.perf_counter() < deadline:
            pass
        return index


def record(name: str, wait: float) -> None:
    """Record one run.

    Args:
        name: Of the file.
        wait: Seconds from when the worker is stuck until it is restarted.
    """
    flag = HERE / "hung"
    flag.unlink(missing_ok=True)
    try:
        with (
            DataLoader(Files(flag), batch_size=16, num_workers=3) as loader,
            loader.record(HERE / name) as recorder,
        ):

            def help_it() -> None:
                while not any(worker.stuck for worker in loader.stats().workers):
                    time.sleep(0.05)
                time.sleep(0.5)  # the recorder sees it, too
                recorder.mark(FORK)
                time.sleep(wait)
                loader.restart_workers([w.worker for w in loader.stats().workers if w.stuck])

            helper = threading.Thread(target=help_it, daemon=True)
            helper.start()
            for _batch in loader:
                time.sleep(0.03)  # the training step
    finally:
        flag.unlink(missing_ok=True)


class Late:
    """Samples of 20 ms, apart from one of 3 seconds."""

    def __len__(self) -> int:
        """Samples."""
        return 240

    def __getitem__(self, index: int) -> int:
        """Sample i is i."""
        time.sleep(3.0 if index == LATE_SAMPLE else 0.02)
        return index


def record_late() -> None:
    """Record an epoch in which a batch is late, so that later ones wait in the reorder buffer."""
    with (
        DataLoader(Late(), batch_size=4, num_workers=3, prefetch_factor=2) as loader,
        loader.record(HERE / "late-batch.nbl") as recorder,
    ):

        def mark() -> None:
            while loader.stats().reordering < BLOCKED:
                time.sleep(0.05)
            recorder.mark("a batch is late")

        threading.Thread(target=mark, daemon=True).start()
        for _batch in loader:
            time.sleep(0.05)  # the training step


if __name__ == "__main__":
    record_late()
    for name, wait in WAITS.items():
        record(name, wait)
