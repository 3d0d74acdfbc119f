"""The context of a worker thread: its `get_worker_info()` and its random generators.

The global generators of `random`, NumPy and torch belong to the whole process. A worker thread neither seeds nor
restores them: it offers generators of its own, as torch's worker threads do, in `nbloader.get_worker_info().rng`.
"""

from __future__ import annotations

from dataclasses import replace

from nbloader._util import rng
from nbloader.workers.worker_info import WorkerInfo, thread_local


class ThreadContext:
    """Context manager that makes the current thread a worker. It is a `WorkerContext`.

    Args:
        info: What `get_worker_info()` returns on this thread, apart from the generators; None if the thread is not a
            worker.
        by_task: Whether each asyncio task has generators of its own.
    """

    def __init__(self, info: WorkerInfo | None, *, by_task: bool = False) -> None:
        self._info = info
        self._generators: rng.Generators = rng.TaskGenerators() if by_task else rng.WorkerGenerators()

    def __enter__(self) -> ThreadContext:
        """Make the thread a worker."""
        self._before = thread_local.worker_info, thread_local.asked, rng.thread_local.generators
        thread_local.asked = False
        rng.thread_local.generators = self._generators
        self.set_worker_info(self._info)
        return self

    def __exit__(self, *_exc: object) -> None:
        """The thread is no longer a worker, or that of another loader again."""
        thread_local.worker_info, thread_local.asked, rng.thread_local.generators = self._before

    def seed(self, seed: int) -> None:
        """See `WorkerContext`. The global generators are not seeded."""
        rng.seed_everything(seed)

    def was_seeded(self) -> bool:
        """See `WorkerContext`. The generators of a thread are always seeded for each batch."""
        return False

    def set_worker_info(self, info: WorkerInfo | None) -> None:
        """See `WorkerContext`."""
        thread_local.worker_info = None if info is None else replace(info, rng=self._generators)

    def asked_for_info(self) -> bool:
        """See `WorkerContext`."""
        return thread_local.asked
