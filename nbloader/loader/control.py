"""What can be asked of a loader while it runs, from any thread: restart, resize, pause, step, reload, stack.

The methods check what they are given, hand a command to the engine and return.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable
from typing import Any

from nbloader import events as ev
from nbloader._util.validate import natural
from nbloader.batch.torch_collate import collate_for_workers
from nbloader.engine.engine import Engine
from nbloader.engine.inline_engine import LocalEngine
from nbloader.errors import LoaderClosedError
from nbloader.loader import config
from nbloader.loader.epoch_prefetch import Turns
from nbloader.workers.fetcher import OnError

_clock = time.perf_counter_ns


class Steering(Turns):
    """The steering part of `DataLoader`; `nbloader.control.LoaderControl` is its protocol."""

    events: ev.EventBus
    sampler: Any
    _engine: Engine | LocalEngine
    dataset: Any
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], None] | None
    _on_error: OnError
    _num_workers: int
    _chunk: int | None
    _prefetch_factor: int | None

    # ---- how many ---------------------------------------------------------------------------------------------------

    @property
    def num_workers(self) -> int:
        """Workers. Assign another number to have so many from now on, in mid-epoch too and from any thread.

        What a worker that leaves held is made again by others. `get_worker_info().num_workers` stays as it was in
        the workers that run already.

        Raises:
            ValueError: 0 for a loader with workers, or anything but 0 for one without: make a new loader for that.
            TypeError: Not an int.
        """
        return self._num_workers

    @num_workers.setter
    def num_workers(self, value: int) -> None:
        self._check_open()
        value = natural("num_workers", value, "1 is the least for a loader with workers")
        if (value == 0) != (self._num_workers == 0):
            raise ValueError(
                f"num_workers cannot be changed from {self._num_workers} to {value}: a loader either has workers or "
                "makes batches in this process. Make a new loader."
            )
        if value != self._num_workers:
            self._num_workers = vars(self)["num_workers"] = value
            self._engine.resize(value)

    @property
    def prefetch_factor(self) -> int | None:
        """Batches asked for ahead, per worker; None without workers. Can be assigned at any time.

        From then on it counts, even where `prefetch` was given or the window adapted itself.

        Raises:
            ValueError: It is negative, or there are no workers.
            TypeError: Not an int.
        """
        return self._prefetch_factor

    @prefetch_factor.setter
    def prefetch_factor(self, value: int) -> None:
        self._check_open()
        if not self._num_workers:
            raise ValueError("prefetch_factor needs num_workers > 0: without workers nothing is made ahead")
        self._prefetch_factor = vars(self)["prefetch_factor"] = natural(
            "prefetch_factor", value, config.PREFETCH_FACTOR
        )
        self._engine.set_prefetch_factor(self._prefetch_factor)

    # ---- workers ----------------------------------------------------------------------------------------------------

    def restart_workers(self, ids: int | Iterable[int] | None = None) -> None:
        """Replace workers by fresh ones, at any time and from any thread; returns at once.

        What they held is made again by others; the consumer sees every batch once and in order. Modules that were
        edited are loaded anew. Without workers there is nothing to replace, and nothing happens.

        Args:
            ids: A worker id, or several; all when None.

        Raises:
            ValueError: There is no such worker.
            TypeError: It is no worker id.
            LoaderClosedError: After `close()`.
        """
        self._check_open()
        self._engine.restart_workers(self._worker_ids(ids))

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

    def stack(self, worker: int) -> str:
        """The Python stack of a worker now, innermost frame first, also while it hangs in C code. From any thread.

        A worker process is asked by a signal, which ends a C function that sleeps and does not go on by itself (the C
        library's `sleep`, not Python's).

        Args:
            worker: A worker id. For a loader without workers 0, and the stack is that of the main thread.

        Raises:
            ValueError: There is no such worker.
            NbloaderError: It does not run now, or does not answer within two seconds.
        """
        self._check_open()
        if self._num_workers or operator.index(worker) != 0:
            self._worker_ids([worker])
        return self._engine.stack(operator.index(worker))

    # ---- pace -------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Deliver and dispatch nothing until `resume()`; what workers are at is finished. From any thread.

        Raises:
            LoaderClosedError: After `close()`.
        """
        self._check_open()
        self._engine.pause()

    def resume(self) -> None:
        """Go on after `pause()` or `step()`. From any thread.

        Raises:
            LoaderClosedError: After `close()`.
        """
        self._check_open()
        self._engine.resume()

    def step(self) -> None:
        """Pause if that is not so already, and let exactly one batch go to the consumer. From any thread.

        What credit it frees is dispatched; nothing else moves until the next `step()` or `resume()`.

        Raises:
            LoaderClosedError: After `close()`.
        """
        self._check_open()
        self._engine.step()

    # ---- the dataset ------------------------------------------------------------------------------------------------

    def reload(self, dataset: Any = None, *, keep: bool = True) -> None:
        """Give fresh workers a new dataset, or the old one under its class as it is now defined.

        Within an epoch the change shows after the batches that are made already, at most the prefetch window; without
        workers, or with `keep=False`, with the next batch.

        Args:
            dataset: The new dataset; of the same length when an epoch is under way. None keeps the old object and
                gives it its class's present definition (a notebook cell or a reloaded module).
            keep: Whether batches that are made already are delivered; False has them made again with the new dataset.

        Raises:
            DatasetTransferError: It cannot be sent to workers; the old one stays.
            LoaderClosedError: After `close()`.
        """
        self._check_open()
        if dataset is None:
            dataset = config.with_current_class(self.dataset)
        old, self.__dict__["dataset"] = self.dataset, dataset
        try:
            self._load()
        except Exception:
            self.__dict__["dataset"] = old
            raise
        self.clean()
        self._engine.replace_all(keep=keep)
        if dataset is not old:
            config.point_samplers_at(dataset, old, self.sampler)
        self.events.publish(ev.DatasetReloaded(_clock()))

    def _load(self) -> bool:
        collate = collate_for_workers(self.collate_fn, batched=self.batch_sampler is not None)
        if collate is not None and self._chunk is not None:
            collate = list  # the loop collates all pieces at once
        return self._engine.load(self.dataset, collate, self.worker_init_fn, self._on_error)

    def _check_open(self) -> None:
        if self._engine.closed:
            raise LoaderClosedError("this loader is closed: make a new one")
