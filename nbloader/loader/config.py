"""The loader's arguments: checked when it is made, with the value in the message. Messages begin as torch's do."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nbloader._util.validate import natural, one_of
from nbloader.loader import torch_compat
from nbloader.sampling import samplers
from nbloader.sampling.samplers import LAST_BATCH, Samplers

LONGEST = 2_147_483
"""Seconds that a wait can be limited to: the system counts milliseconds in a C int."""
PREFETCH_FACTOR = "it is the number of batches asked for ahead, per worker"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What follows from the arguments."""

    dataset: Any
    batch_size: int | None
    shuffle: bool
    sampler: Any
    batch_sampler: Any
    last_batch: str
    num_workers: int
    prefetch_factor: int | None
    prefetch: int | None
    multiprocessing_context: Any
    iterable: bool
    """Whether the dataset can only be iterated."""

    def samplers(self, generator: Any, group: int) -> Samplers:
        """The sampler and the batch sampler (None where batching is off).

        Args:
            generator: Decides random orders.
            group: Batches that are delivered together.
        """
        if self.iterable:
            return samplers.make_endless(batch_size=self.batch_size, drop_last=self.last_batch == "discard")
        return samplers.make_samplers(
            self.dataset, batch_size=self.batch_size, shuffle=self.shuffle, sampler=self.sampler,
            batch_sampler=self.batch_sampler, last_batch=self.last_batch, group=group, generator=generator,
        )  # fmt: skip


def check(
    *,
    dataset: Any,
    batch_size: int | None,
    shuffle: bool | None,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    num_workers: int,
    workers: str,
    collate_fn: Any,
    drop_last: bool,
    last_batch: str | None,
    timeout: float,
    worker_init_fn: Any,
    multiprocessing_context: Any,
    generator: Any,
    prefetch_factor: int | None,
    persistent_workers: bool,
    prefetch: int | None,
    output: str,
    transport: str,
    dispatch: str,
    max_restarts: int,
    on_error: Any,
    on_timeout: Any,
) -> Chosen:
    """Check the arguments of `DataLoader`.

    Raises:
        ValueError: A wrong value.
        TypeError: A wrong type.
    """
    iterable = _check_dataset(dataset, shuffle=shuffle or None, sampler=sampler, batch_sampler=batch_sampler)
    num_workers = natural("num_workers", num_workers, "use num_workers=0 to make batches in this process")
    if not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
    if not 0 <= timeout <= LONGEST:  # NaN too
        allowed = f"at most {LONGEST} seconds" if timeout > 0 else "non-negative"
        raise ValueError(f"timeout option should be {allowed}, not {timeout!r}; 0 waits for ever")
    for name, value in (("collate_fn", collate_fn), ("worker_init_fn", worker_init_fn)):
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be callable or None, not {type(value).__name__}: {value!r}")
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is not None and not (hasattr(value, "__iter__") or hasattr(value, "__getitem__")):
            raise TypeError(f"{name} must be iterable or None, not {type(value).__name__}: {value!r}")
    _check_workers(workers, transport, multiprocessing_context)
    one_of("output", output, ("torch", "numpy"))
    one_of("transport", transport, ("shared_memory", "pickle"))
    one_of("dispatch", dispatch, ("least_loaded", "round_robin"))
    _check_on_error(on_error)
    _check_on_timeout(on_timeout, num_workers, timeout)
    natural("max_restarts", max_restarts, "0 raises at the first worker that dies")
    _check_workers_needed(num_workers, prefetch_factor, persistent_workers)
    _check_generator(generator)
    batch_size, drop_last = _check_batching(batch_size, shuffle, sampler, batch_sampler, drop_last)
    last_batch = _check_last_batch(last_batch, drop_last=drop_last, batch_size=batch_size, iterable=iterable)
    if prefetch_factor is not None:
        prefetch_factor = natural("prefetch_factor", prefetch_factor, PREFETCH_FACTOR)
    elif num_workers:
        prefetch_factor = 2
    if prefetch is not None:
        prefetch = natural("prefetch", prefetch, "0 asks for a batch when it is wanted")
    return Chosen(
        dataset, batch_size, bool(shuffle), sampler, batch_sampler, last_batch, num_workers, prefetch_factor, prefetch,
        torch_compat.check_context(multiprocessing_context, num_workers), iterable,
    )  # fmt: skip


def _check_on_error(on_error: Any) -> None:
    if not callable(on_error) and on_error not in ("raise", "skip"):
        raise ValueError(
            f"on_error must be 'raise', 'skip' or a function from (index, exception) to a sample, not {on_error!r}"
        )


def _check_on_timeout(on_timeout: Any, num_workers: int, timeout: float) -> None:
    one_of("on_timeout", on_timeout, ("raise", "restart"))
    if on_timeout == "restart" and not (timeout and num_workers):
        raise ValueError(
            f"on_timeout='restart' needs workers and a timeout in seconds, not num_workers={num_workers}, "
            f"timeout={timeout!r}"
        )


def _check_dataset(dataset: Any, **order: Any) -> bool:
    """Check the dataset, and what orders its samples. Returns whether it can only be iterated, in its own order."""
    iterable = _is_iterable(dataset)
    if iterable:
        for name, value in order.items():
            if value is not None:
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value}; "
                    "the order is the dataset's own"
                )
    elif order["sampler"] is None and order["batch_sampler"] is None and not hasattr(dataset, "__len__"):
        raise TypeError(f"dataset {type(dataset).__name__} has no __len__: add one, or give a sampler")
    return iterable


def _is_iterable(dataset: Any) -> bool:
    """Whether the dataset can only be iterated."""
    if isinstance(dataset, type):
        raise TypeError(
            f"dataset is the class {dataset.__name__} itself: make an object of it, {dataset.__name__}(...)"
        )
    of_torch = "torch.utils.data" in sys.modules and isinstance(
        dataset, sys.modules["torch.utils.data"].IterableDataset
    )
    if of_torch or not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")):
        if not hasattr(dataset, "__iter__"):
            raise TypeError(
                f"dataset must have __getitem__ and __len__, or __iter__; {type(dataset).__name__} has neither"
            )
        return True
    return False


def _check_workers_needed(num_workers: int, prefetch_factor: Any, persistent_workers: bool) -> None:
    if num_workers == 0:
        if prefetch_factor is not None:
            raise ValueError(
                "prefetch_factor option could only be specified in multiprocessing: let num_workers > 0, or leave "
                f"prefetch_factor={prefetch_factor!r} out"
            )
        if persistent_workers:
            raise ValueError("persistent_workers option needs num_workers > 0")


def _check_batching(
    batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool
) -> tuple[int | None, bool]:
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle: leave one out")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last: got "
                f"batch_size={batch_size!r}, shuffle={shuffle!r}, sampler={'given' if sampler is not None else None}, "
                f"drop_last={drop_last!r} beside it"
            )
        return None, False
    if batch_size is None:
        if drop_last:
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        return None, False
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size <= 0:
        raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size!r}")
    return batch_size, drop_last


def _check_last_batch(last_batch: str | None, *, drop_last: bool, batch_size: int | None, iterable: bool) -> str:
    if last_batch is None:
        return "discard" if drop_last else "keep"
    one_of("last_batch", last_batch, LAST_BATCH)
    if batch_size is None:
        raise ValueError(
            f"last_batch={last_batch!r} needs a batch_size: it is mutually exclusive with batch_sampler and with "
            "batch_size=None"
        )
    if iterable and last_batch == "rollover":
        raise ValueError("last_batch='rollover' is for map datasets: each worker ends its own shard of an iterable one")
    if drop_last and last_batch != "discard":
        raise ValueError(
            f"drop_last=True is last_batch='discard' and mutually exclusive with last_batch={last_batch!r}"
        )
    return last_batch


def _check_generator(generator: Any) -> None:
    if generator is None:
        return
    import torch

    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, not {type(generator).__name__}: {generator!r}")


def _check_workers(workers: str, transport: str, multiprocessing_context: Any) -> None:
    one_of("workers", workers, ("process", "thread"))
    if workers == "process":
        return
    if multiprocessing_context is not None:
        raise ValueError(
            f"multiprocessing_context={multiprocessing_context!r} is about worker processes: leave it out beside "
            'workers="thread"'
        )
    if transport != "shared_memory":
        raise ValueError(f'transport={transport!r} is for worker processes: leave it out beside workers="thread"')


def check_source(batch_size: Any, arguments: dict[str, Any]) -> None:
    """Check the arguments of `DataLoader.from_source`.

    Raises:
        ValueError: A wrong value, or an argument that chooses samples.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size <= 0:
        raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size!r}")
    for name in ("dataset", "shuffle", "sampler", "batch_sampler", "drop_last", "last_batch"):
        if arguments.get(name):
            raise ValueError(f"from_source and {name} are mutually exclusive: got {name}={arguments[name]!r}")


def check_not_empty(dataset: Any, sampler: Any) -> None:
    """Raise before an epoch that would have no sample, because the dataset has none.

    Raises:
        ValueError: `len(dataset)` is 0.
    """
    if samplers.length(dataset) == 0 and not samplers.length(sampler):
        raise ValueError(
            f"the dataset ({type(dataset).__name__}) is empty: its len() is 0. Check the path or the filter that it is "
            "made from."
        )


def with_current_class(dataset: Any) -> Any:
    """Give an object the present definition of its class, in place.

    Raises:
        TypeError: Python does not allow it (the new class has another layout, such as other `__slots__`).
    """
    cls = type(dataset)
    current: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        current = getattr(current, name, None)
    if isinstance(current, type) and current is not cls:
        try:
            dataset.__class__ = current
        except TypeError as error:
            raise TypeError(
                f"the dataset cannot take the new definition of {cls.__name__}: {error}. "
                "Make a new object and give it to reload(dataset)."
            ) from error
    return dataset


def point_samplers_at(dataset: Any, old: Any, sampler: Any) -> None:
    """Let torch's samplers count the new dataset."""
    if getattr(sampler, "data_source", None) is old:
        sampler.data_source = dataset
