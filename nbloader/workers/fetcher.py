"""Fetch the samples of a batch, time each of them, and apply `on_error`."""

from __future__ import annotations

import copy
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from operator import length_hint
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from nbloader._util.signals import raised_by_handler
from nbloader._util.torch_stand_ins import Subset
from nbloader.batch.rows import RowSelector, Selection, may_be_in_memory
from nbloader.events.remote_errors import SampleFailure, describe
from nbloader.sampling.index_arrays import IndexArray
from nbloader.workers.status import LocalStatus, WorkerState, WorkerStatus

log = logging.getLogger(__name__)
_clock = time.perf_counter_ns
_new = tuple.__new__  # half the time of a call of the class
_FETCHING = WorkerState.FETCHING

OnError: TypeAlias = "Literal['raise', 'skip'] | Callable[[Any, Exception], Any]"
"""What to do with a sample that raises. A function gets (index, exception) and returns a replacement."""
Replace: TypeAlias = "Callable[[int, Exception], Any]"
"""Returns a replacement for the sample at a position in the batch."""


class Subscriptable(Protocol):
    """Anything with `__getitem__`."""

    def __getitem__(self, key: Any, /) -> Any:
        """Return the sample for a key."""


class _OneByOne:
    """Gets single samples from a function for whole batches."""

    __slots__ = ("_getitems",)

    def __init__(self, getitems: Callable[[Any], Any]) -> None:
        self._getitems = getitems

    def __getitem__(self, index: Any) -> Any:
        return self._getitems([index])[0]


class FetchedBatch(NamedTuple):
    """The samples of a batch, and how long they took."""

    samples: Any
    """A list of samples; or what `__getitems__` returned; or a `Selection` of rows; or a single sample if batching is
    off."""
    size: int
    """Number of samples."""
    begin: int
    """`time.perf_counter_ns()`."""
    end: int
    """`time.perf_counter_ns()`."""
    slowest: int
    """Position in the batch of the slowest sample; -1 if the samples were fetched by one call."""
    slowest_ns: int
    failed: Sequence[SampleFailure] = ()
    """Samples that raised and were skipped or replaced."""
    exhausted: bool = False
    """Whether an iterator ended before the batch was complete."""
    cpu: int = 0
    """CPU time that was used for it before the fetch began, as the worker attributes it, ns."""

    @property
    def nothing_left(self) -> bool:
        """Whether all samples raised and were skipped."""
        return not self.size and bool(self.failed)


class MapFetcher:
    """Fetches the samples of batches of a map-style dataset.

        from_memory(): a selection of rows, or the items of a list; runs no code of the user
        fetch():       `__getitems__`, or `__getitem__` for each sample

    Args:
        dataset: Anything with `__getitem__`. `__getitems__` is called instead if it exists, as in torch.
        batched: Whether the samples make a batch.
        collates: Whether nbloader collates them: otherwise they are fetched as a list.
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
        self._selector = RowSelector() if batched and collates and may_be_in_memory(dataset) else None
        self.in_memory = self._is_list or self._selector is not None
        """Whether `from_memory` may find samples; otherwise it need not be called."""

    def from_memory(self, run: int, indices: Any) -> FetchedBatch | None:
        """Fetch the samples of one batch if they are in memory.

        Args:
            run: The iteration.
            indices: A list of indices.

        Returns:
            None if the dataset must be asked for them; also if one of them would raise.
        """
        if not self._is_list and self._selector is None:
            return None
        samples: Any = None
        begin = _clock()
        if self._is_list:
            try:
                samples = list(map(self._dataset.__getitem__, indices))
            except Exception as error:  # whatever it raises, `fetch` raises it again, and `on_error` applies
                if raised_by_handler(error):
                    raise
                return None
        elif self._selector is not None:
            samples = self._selector.select(self._dataset, indices, run, self._output)
        if samples is None:
            return None
        status = self._status
        status.state, status.since, status.position = _FETCHING, begin, -1
        return FetchedBatch(samples, len(indices), begin, _clock(), -1, 0)

    def fetch(self, indices: Any) -> FetchedBatch:
        """Fetch the samples of one batch.

        Args:
            indices: A list of indices; one index if the samples make no batch.

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
            _by_index(on_error, indices) if callable(on_error) else on_error
        )
        getitems = getattr(self._dataset, "__getitems__", None) if self._batched else None
        if getitems is None:
            return fetch_each(
                self._dataset, indices, batched=self._batched, status=self._status, on_error=handle_error
            )  # fmt: skip
        return _fetch_at_once(getitems, indices, self._status, handle_error)


def _by_index(on_error: Callable[[Any, Exception], Any], indices: Any) -> Replace:
    return lambda position, error: on_error(indices[position], error)


def _fetch_at_once(
    getitems: Callable[[Any], Any], indices: Any, status: WorkerStatus, on_error: Replace | Literal["raise", "skip"]
) -> FetchedBatch:
    """Fetch all samples by one call of `__getitems__`.

    If that raises and `on_error` is not "raise", the samples are fetched one by one, to find out which of them raises.
    The first error is reported too, as "retried": each repeated fetch is counted.
    """
    begin = _clock()
    status.state, status.since = _FETCHING, begin
    status.position = -1
    try:
        samples = getitems(indices)
    except Exception as error:
        if on_error == "raise" or raised_by_handler(error):
            raise
        first_failure = failed_sample(-1, error, "retried")
    else:
        return FetchedBatch(samples, len(samples), begin, _clock(), -1, 0)
    batch = fetch_each(_OneByOne(getitems), indices, batched=True, status=status, on_error=on_error)
    return batch._replace(begin=begin, failed=[first_failure, *batch.failed])


def raise_if_none(batch: FetchedBatch, indices: Any) -> None:
    """Blame a sample that is None or a coroutine, if there is one, for a batch that could not be collated.

    Args:
        batch: The batch.
        indices: What was drawn for it.

    Raises:
        TypeError: A sample is None or a coroutine. The message names its index.
    """
    if type(batch.samples) is Selection:
        return
    skipped = {failure.position for failure in batch.failed if failure.done == "skipped"}
    positions = (position for position in count() if position not in skipped)
    for position, sample in zip(positions, batch.samples, strict=False):
        if inspect.iscoroutine(sample):
            raise TypeError(
                f"default_collate: sample {indices[position]!r} is a coroutine, which was not awaited: the loader "
                "awaits samples if the class of the dataset has `async def __getitem__` or `async def __getitems__`. "
                "A method that returns the coroutine of another one must itself be declared with `async def`, and "
                "await it"
            ) from None
        if sample is None:
            raise TypeError(
                f"default_collate: sample {indices[position]!r} is None, which cannot be part of a batch: return a "
                "value from the dataset, raise an exception and pass on_error='skip', or pass a collate_fn that "
                "accepts None"
            ) from None


def fetch_each(
    source: Subscriptable,
    keys: Iterable[Any],
    *,
    batched: bool,
    status: WorkerStatus,
    on_error: Replace | Literal["raise", "skip"],
    stop: type[Exception] | tuple[()] = (),
) -> FetchedBatch:
    """Fetch samples one by one. This is the only loop that does so, for every kind of dataset and of worker.

    Args:
        source: Returns the sample for a key when it is subscripted.
        keys: One for each sample of the batch.
        batched: Whether the samples make a batch.
        status: Where the worker publishes what it is doing. `status.position` stays at a sample that raised.
        on_error: What to do with a sample that raises.
        stop: The exception by which `source` tells that there are no more samples; by default there is none.

    Raises:
        Exception: Whatever `source` raises, if `on_error` is "raise"; whatever `on_error` raises.
        WorkerAbandonedError: The worker must end.
    """
    begin = _clock()
    status.state, status.since = _FETCHING, begin
    samples: list[Any] = []
    failed: list[SampleFailure] = []
    keys = keys if isinstance(keys, (list, range)) else list(keys)
    size = len(keys)
    local = status if isinstance(status, LocalStatus) else None  # it counts by itself
    left = iter(keys) if local is None else local.fetching(keys)
    append, clock = samples.append, time.perf_counter  # Python subtracts floats faster than integers of this size
    exhausted = False
    published = slowest = -1
    longest = -1.0
    before = clock()
    for key in left:
        if local is None:
            published += 1
            status.position = published
        try:
            append(source[key])
        except stop:
            exhausted = True
            break
        except Exception as error:
            if on_error == "raise" or raised_by_handler(error):
                raise
            position = status.position
            if local is not None:
                local.check()  # if it was abandoned, the position is wrong
            if callable(on_error):
                append(on_error(position, error))
            failed.append(failed_sample(position, error, "replaced" if callable(on_error) else "skipped"))
        now = clock()
        if now - before > longest:
            slowest, longest = size - length_hint(left) - 1, now - before
        before = now
    if local is not None and local.abandoned:
        local.check()
    result = samples if batched else (samples or (None,))[0]
    slowest_ns = max(int(1e9 * longest), 0)
    return _new(FetchedBatch, (result, len(samples), begin, _clock(), slowest, slowest_ns, failed, exhausted, 0))


def failed_sample(position: int, error: Exception, done: str) -> SampleFailure:
    """Describe a sample that raised.

    Args:
        position: See `SampleFailure`.
        error: What it raised.
        done: See `SampleFailure`.
    """
    info = describe(error, by_value=False)
    return SampleFailure(position, info.summary, info.traceback, done)


# ---- asynchronous datasets ------------------------------------------------------------------------------------------


def is_async(dataset: Any) -> bool:
    """Whether the samples of a map-style dataset are awaited: by `async def __getitem__` or `async def __getitems__`.

    As in torch, `__getitems__` is what counts if there is one. torch's `Subset` and `ConcatDataset` are looked through.
    """
    return any(map(_has_coroutines, innermost(dataset)))


def _has_coroutines(dataset: Any) -> bool:
    cls = type(dataset)
    for name in ("__getitems__", "__getitem__"):
        method = getattr(cls, name, None)
        if method is not None:
            return inspect.iscoroutinefunction(method)
    return False


def fetches_at_once(dataset: Any) -> bool:
    """Whether one call fetches a batch. A `Subset` has `__getitems__` for any dataset."""
    return all(inspect.iscoroutinefunction(getattr(type(part), "__getitems__", None)) for part in innermost(dataset))


def innermost(dataset: Any) -> list[Any]:
    """The datasets behind torch's `Subset` and `ConcatDataset`."""
    wrapper = _wrapper(dataset)
    if wrapper == "Subset":
        return innermost(dataset.dataset)
    if wrapper == "ConcatDataset":
        return [part for each in dataset.datasets for part in innermost(each)]
    return [dataset]


def shallow_copy(dataset: Any) -> Any:
    """A shallow copy of a dataset, and of those behind torch's wrappers; the dataset itself if it cannot be copied."""
    wrapper = _wrapper(dataset)
    try:
        copied = copy.copy(dataset)
    except Exception:  # it runs the user's code, which may raise anything
        log.debug("%s cannot be copied for a worker thread", type(dataset).__name__, exc_info=True)
        return dataset
    if wrapper == "Subset":
        copied.dataset = shallow_copy(dataset.dataset)
    elif wrapper == "ConcatDataset":
        copied.datasets = [shallow_copy(part) for part in dataset.datasets]
    return copied


def _wrapper(dataset: Any) -> str:
    """The name of the wrapper that a dataset is; only these very classes: subclasses may do anything."""
    torch = sys.modules.get("torch")
    of_torch = () if torch is None else (torch.utils.data.Subset, torch.utils.data.ConcatDataset)
    return type(dataset).__name__ if type(dataset) in (Subset, *of_torch) else ""
