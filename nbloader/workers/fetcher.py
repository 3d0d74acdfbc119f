"""Fetch the samples of a batch, time each of them, and apply `on_error`."""

from __future__ import annotations

import copy
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from operator import getitem
from typing import Any, Literal, NamedTuple, TypeAlias

from nbloader._util.signals import raised_by_handler
from nbloader.batch.rows import RowSelector, Selection, is_in_memory
from nbloader.events.remote_errors import SampleFailure, describe
from nbloader.sampling.index_arrays import IndexArray, as_drawn, part_of
from nbloader.workers.status import WorkerAbandonedError, WorkerState, WorkerStatus

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns

OnError: TypeAlias = "Literal['raise', 'skip'] | Callable[[Any, Exception], Any]"
"""What to do with a sample that raises. A function is called with (index, exception) and returns a replacement."""
Replace: TypeAlias = "Callable[[int, Exception], Any]"
"""Returns a replacement for the sample at a position in the batch."""


class FetchedBatch(NamedTuple):
    """The samples of a batch, and how long they took."""

    samples: Any
    """A list of samples, the return value of `__getitems__`, a `Selection` of rows, or a single sample if batching is
    off."""
    size: int
    """Number of samples."""
    begin: int
    """When the fetch began, `time.perf_counter_ns()`."""
    end: int
    """When the fetch ended, `time.perf_counter_ns()`."""
    slowest: int
    """Position in the batch of the slowest sample; -1 if the samples were fetched by one call."""
    slowest_ns: int
    failed: Sequence[SampleFailure] = ()
    """Samples that raised and were skipped or replaced."""
    exhausted: bool = False
    """Whether an iterator ended before the batch was complete."""
    cpu: int = 0
    """CPU time that the worker attributes to the batch and that was used before the fetch began, ns."""

    @property
    def nothing_left(self) -> bool:
        """Whether all samples raised and were skipped."""
        return not self.size and bool(self.failed)


class MapFetcher:
    """Fetch the samples of batches of a map-style dataset.

        from_memory(): a selection of rows, or the items of a list; does not run the user's code
        fetch():       `__getitems__`, or `__getitem__` for each sample

    Args:
        dataset: Map-style dataset. `__getitems__` is called instead of `__getitem__` if it exists, as in torch.
        batched: Whether the samples are collated into a batch.
        collates: Whether nbloader collates the samples. If not, they are fetched as a list.
        output: "torch" or "numpy": what the arrays of a batch become.
        status: Where the worker publishes what it is doing.
        on_error: What to do with a sample that raises.
    """

    def __init__(
        self, dataset: Any, *, batched: bool, collates: bool, output: str, status: WorkerStatus, on_error: OnError
    ) -> None:
        self._dataset = dataset
        self._batched = batched
        self._output = output
        self._status = status
        self._on_error = on_error
        self._is_list = batched and type(dataset) in (list, tuple, range)
        self._selector = RowSelector() if batched and collates and is_in_memory(dataset) else None
        self.in_memory = self._is_list or self._selector is not None
        """Whether `from_memory` may return samples. If not, it does not need to be called."""

    def from_memory(self, epoch: int, indices: Any) -> FetchedBatch | None:
        """Fetch the samples of one batch if they are in memory.

        Args:
            epoch: Number of the epoch.
            indices: A list of indices.

        Returns:
            The samples; None if `fetch` must be called, either because they are not in memory or because one of them
            would raise.
        """
        if not self._is_list and self._selector is None:
            return None
        samples: Any = None
        begin = _clock()
        if self._is_list:
            try:
                samples = list(map(self._dataset.__getitem__, indices))
            except Exception as error:  # `fetch` raises the same exception again and applies `on_error`
                if raised_by_handler(error):
                    raise
                return None
        elif self._selector is not None:
            samples = self._selector.select(self._dataset, indices, epoch, self._output)
        if samples is None:
            return None
        status = self._status
        status.state, status.since, status.position = WorkerState.FETCHING, begin, -1
        return FetchedBatch(samples, len(indices), begin, _clock(), -1, 0)

    def fetch(self, indices: Any) -> FetchedBatch:
        """Fetch the samples of one batch.

        Args:
            indices: A list of indices; a single index if batching is off.

        Raises:
            Exception: Whatever the dataset raises, if `on_error` is "raise"; whatever `on_error` raises.
            WorkerAbandonedError: The worker must end.
        """
        if not self._batched:
            indices = [indices]
        elif type(indices) is IndexArray:
            indices = indices.array.tolist()
        on_error: Any = self._on_error
        handle_error: Replace | Literal["raise", "skip"] = (
            (lambda position, error: on_error(indices[position], error)) if callable(on_error) else on_error
        )
        getitems = getattr(self._dataset, "__getitems__", None) if self._batched else None
        if getitems is None:
            return fetch_each(
                partial(getitem, self._dataset), indices, batched=self._batched, status=self._status,
                on_error=handle_error,
            )  # fmt: skip
        return _fetch_at_once(getitems, indices, self._status, handle_error)


def _fetch_at_once(
    getitems: Callable[[Any], Any], indices: Any, status: WorkerStatus, on_error: Replace | Literal["raise", "skip"]
) -> FetchedBatch:
    """Fetch all samples by one call of `__getitems__`, with what the sampler has drawn.

    If the call raises and `on_error` is not "raise", the samples are fetched one by one, to find out which of them
    raises. The first error is also reported, as "retried", so that repeated fetches are counted.
    """
    begin = _clock()
    status.state, status.since = WorkerState.FETCHING, begin
    status.position = -1
    try:
        samples = getitems(as_drawn(indices))
    except Exception as error:
        if on_error == "raise" or raised_by_handler(error):
            raise
        first_failure = failed_sample(-1, error, "retried")
    else:
        return FetchedBatch(samples, number_of(samples, indices), begin, _clock(), -1, 0)
    keys = [part_of(indices, position, position + 1) for position in range(len(indices))]
    batch = fetch_each(
        lambda key: only_one(getitems(as_drawn(key))), keys, batched=True, status=status, on_error=on_error
    )  # fmt: skip
    return batch._replace(begin=begin, failed=[first_failure, *batch.failed])


def number_of(samples: Any, indices: Any) -> int:
    """Return the number of samples that `__getitems__` has returned.

    Args:
        samples: A list of samples, or, as in torch, anything else that the collate function takes, such as a batch.
        indices: What the sampler has drawn.
    """
    if isinstance(samples, list):
        return len(samples)
    try:
        return len(indices)
    except TypeError:  # a sampler of the user may draw a single index
        return 1


def only_one(samples: Any) -> Any:
    """Return the sample that `__getitems__` has returned for one index, because the whole batch had raised.

    Raises:
        TypeError: It is not one sample in a list, but perhaps a batch, of which one part would be taken for a sample.
    """
    if isinstance(samples, Mapping) or not hasattr(samples, "__len__") or len(samples) != 1:
        raise TypeError(
            f"__getitems__ returned a {type(samples).__name__} for one index. To find the sample that raised, as "
            "on_error asks for, it must return a list of samples"
        )
    return samples[0]


def raise_if_none(batch: FetchedBatch, indices: Any) -> None:
    """Raise a clear error if a batch could not be collated because a sample is None or a coroutine.

    Args:
        batch: The batch.
        indices: The indices that were drawn for the batch.

    Raises:
        TypeError: A sample is None or a coroutine. The message names the index of the sample.
    """
    if type(batch.samples) is Selection or not isinstance(batch.samples, Iterable):
        return
    skipped = {failure.position for failure in batch.failed if failure.done == "skipped"}
    positions = (position for position in count() if position not in skipped)
    for position, sample in zip(positions, batch.samples, strict=False):
        if inspect.iscoroutine(sample):
            raise TypeError(
                f"default_collate: sample {_name(indices, position)} is a coroutine, which was not awaited: the loader "
                "awaits samples if the class of the dataset has `async def __getitem__` or `async def __getitems__`. "
                "A method that returns the coroutine of another one must itself be declared with `async def`, and "
                "await it"
            ) from None
        if sample is None:
            raise TypeError(
                f"default_collate: sample {_name(indices, position)} is None, which cannot be part of a batch: return "
                "a value from the dataset, raise an exception and pass on_error='skip', or pass a collate_fn that "
                "accepts None"
            ) from None


def _name(indices: Any, position: int) -> str:
    """Return the index of a sample as text; its position if the indices do not name each sample, as a slice."""
    return repr(indices[position]) if position < len(indices) else f"at position {position} of the batch"


def fetch_each(
    get: Callable[[Any], Any],
    keys: Iterable[Any],
    *,
    batched: bool,
    status: WorkerStatus,
    on_error: Replace | Literal["raise", "skip"],
    stop: type[Exception] | tuple[()] = (),
) -> FetchedBatch:
    """Fetch samples one by one. Every kind of dataset and worker uses this loop, except for asynchronous datasets.

    Args:
        get: Returns the sample for a key.
        keys: One key for each sample of the batch.
        batched: Whether the samples are collated into a batch.
        status: Where the worker publishes what it is doing. If a sample raises, `status.position` stays at that sample.
        on_error: What to do with a sample that raises.
        stop: The exception that `get` raises when there are no more samples; by default there is none.

    Raises:
        Exception: Whatever `get` raises, if `on_error` is "raise"; whatever `on_error` raises.
        WorkerAbandonedError: The worker must end.
    """
    begin = before = _clock()
    status.state, status.since = WorkerState.FETCHING, begin
    samples: list[Any] = []
    failed: list[SampleFailure] = []
    exhausted = False
    slowest, slowest_ns = -1, 0
    for position, key in enumerate(keys):
        if status.abandoned:
            raise WorkerAbandonedError(status)
        status.position = position
        try:
            samples.append(get(key))
        except stop:
            exhausted = True
            break
        except Exception as error:
            if on_error == "raise" or raised_by_handler(error):
                raise
            if callable(on_error):
                samples.append(on_error(position, error))
            failed.append(failed_sample(position, error, "replaced" if callable(on_error) else "skipped"))
        now = _clock()
        if now - before > slowest_ns:
            slowest, slowest_ns = position, now - before
        before = now
    result = samples if batched else (samples or (None,))[0]
    return FetchedBatch(result, len(samples), begin, _clock(), slowest, slowest_ns, failed, exhausted)


def failed_sample(position: int, error: Exception, done: str) -> SampleFailure:
    """Describe a sample that raised.

    Args:
        position: See `SampleFailure`.
        error: The exception that the sample raised.
        done: See `SampleFailure`.
    """
    info = describe(error, by_value=False)
    return SampleFailure(position, info.summary, info.traceback, done)


# ---- asynchronous datasets and torch's wrappers ---------------------------------------------------------------------


def is_async(dataset: Any) -> bool:
    """Whether a map-style dataset is asynchronous: it has `async def __getitem__` or `async def __getitems__`.

    As in torch, `__getitems__` takes precedence if it exists. For torch's `Subset` and `ConcatDataset`, the datasets
    inside them are examined.
    """
    return any(map(_has_coroutines, innermost(dataset)))


def _has_coroutines(dataset: Any) -> bool:
    cls = type(dataset)
    for name in ("__getitems__", "__getitem__"):
        method = getattr(cls, name, None)
        if method is not None:
            return inspect.iscoroutinefunction(method)
    return False


def awaits_whole_batches(dataset: Any) -> bool:
    """Whether one asynchronous call fetches a whole batch.

    This examines the datasets inside a `Subset`, which itself has `__getitems__` whatever dataset it wraps.
    """
    return all(inspect.iscoroutinefunction(getattr(type(part), "__getitems__", None)) for part in innermost(dataset))


def innermost(dataset: Any) -> list[Any]:
    """Return the datasets inside torch's `Subset` and `ConcatDataset`, at any depth."""
    wrapper = _wrapper(dataset)
    if wrapper == "Subset":
        return innermost(dataset.dataset)
    if wrapper == "ConcatDataset":
        return [part for each in dataset.datasets for part in innermost(each)]
    return [dataset]


def shallow_copy(dataset: Any) -> Any:
    """Copy a dataset, and the datasets inside torch's wrappers, shallowly. Return it unchanged if that fails."""
    wrapper = _wrapper(dataset)
    try:
        copied = copy.copy(dataset)
    except Exception:  # copying runs the user's code, which may raise anything
        log.debug("%s cannot be copied for a worker thread", type(dataset).__name__, exc_info=True)
        return dataset
    if wrapper == "Subset":
        copied.dataset = shallow_copy(dataset.dataset)
    elif wrapper == "ConcatDataset":
        copied.datasets = [shallow_copy(part) for part in dataset.datasets]
    return copied


def _wrapper(dataset: Any) -> str:
    """Return the name of the class if the dataset is one of torch's wrappers, otherwise "".

    Subclasses do not count, because they may behave differently.
    """
    torch = sys.modules.get("torch")
    wrappers = () if torch is None else (torch.utils.data.Subset, torch.utils.data.ConcatDataset)
    return type(dataset).__name__ if type(dataset) in wrappers else ""
