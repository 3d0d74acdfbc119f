"""Commands to a running loader: resize, prefetch, restart workers, stacks, pause and step. Thread-safe."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable
from typing import Any

from nbloader._util.validate import natural
from nbloader.engine.engine import Engine
from nbloader.engine.local_engine import AnyEngine
from nbloader.errors import LoaderClosedError
from nbloader.events import LoaderPaused, LoaderResumed
from nbloader.loader.config import DEFAULT_PREFETCH_FACTOR, PREFETCH_FACTOR_HINT


class Control:
    """Checks commands and passes them to the engine, which executes them on its own thread.

    Args:
        engine: The loader's engine.
        num_workers: Initial number of workers; 0 if the consumer itself loads.
    """

    def __init__(self, engine: AnyEngine, num_workers: int) -> None:
        self._engine = engine
        self._num_workers = num_workers

    def check_open(self) -> None:
        """Raise an error if the loader is closed.

        Raises:
            LoaderClosedError: The loader is closed.
        """
        if self._engine.closed:
            raise LoaderClosedError("this loader is closed: create a new one")

    def check_num_workers(self, value: Any) -> int:
        """Check a new number of workers.

        Raises:
            ValueError: It is negative.
            TypeError: Not an int.
            LoaderClosedError: After `close()`.
        """
        self.check_open()
        return natural("num_workers", value, "use num_workers=0 to load in this process")

    def resize(self, value: int, *, patient: bool) -> None:
        """Change the number of workers of a loader that has workers.

        Args:
            value: The new number.
            patient: Whether workers that are removed may take any time for their current sample.
        """
        if value != self._num_workers and isinstance(self._engine, Engine):
            self._num_workers = value
            self._engine.resize(value, patient=patient)

    def check_prefetch_factor(self, value: Any) -> int | None:
        """Check a new prefetch factor.

        Returns:
            The prefetch factor as an int; None for the default.

        Raises:
            ValueError: It is negative.
            TypeError: Neither an int nor None.
            LoaderClosedError: After `close()`.
        """
        self.check_open()
        return None if value is None else natural("prefetch_factor", value, PREFETCH_FACTOR_HINT)

    def set_window(self, prefetch_factor: int | None, prefetch: int | None, *, adaptive: bool) -> None:
        """Change the prefetch window of a loader that has workers."""
        if self._num_workers and isinstance(self._engine, Engine):
            self._engine.set_window(
                DEFAULT_PREFETCH_FACTOR if prefetch_factor is None else prefetch_factor,
                prefetch=prefetch,
                adaptive=adaptive,
            )

    def restart_workers(self, ids: int | Iterable[int] | None) -> None:
        """See `DataLoader.restart_workers`."""
        self.check_open()
        self._engine.restart_workers(self._worker_ids(ids))

    def stack(self, worker: Any) -> str:
        """See `DataLoader.stack`."""
        self.check_open()
        if self._num_workers or operator.index(worker) != 0:
            self._worker_ids([worker])
        return self._engine.stack(operator.index(worker))

    def pause(self) -> None:
        """See `DataLoader.pause`."""
        self.check_open()
        if self._engine.gate.pause():
            self._engine.announce(LoaderPaused(time.perf_counter_ns()))
            self._engine.gate.announce()

    def resume(self) -> None:
        """See `DataLoader.resume`."""
        self.check_open()
        if self._engine.gate.resume():
            self._engine.announce(LoaderResumed(time.perf_counter_ns()))
            self._engine.gate.announce()

    def step(self) -> None:
        """See `DataLoader.step`."""
        self.pause()
        self._engine.gate.step()
        self._engine.gate.announce()

    def _worker_ids(self, ids: Any) -> list[int]:
        if ids is None:
            return list(range(self._num_workers))
        try:
            chosen = [operator.index(i) for i in ([ids] if hasattr(ids, "__index__") else ids)]
        except TypeError:
            raise TypeError(f"worker ids must be an int or a list of ints, not {ids!r}") from None
        for i in chosen:
            if not 0 <= i < self._num_workers:
                raise ValueError(f"no worker {i}: this loader has num_workers={self._num_workers}")
        return chosen
