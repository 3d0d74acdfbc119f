"""Converts the argument of `nbloader.explore` (a dataset, loader, stream, array, ...) to a `Source`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nbloader._util.format import clean
from nbloader.batch.rows import is_in_memory
from nbloader.explorer.adapters import Adapted, Stream
from nbloader.explorer.batch_samples import BatchSamples
from nbloader.explorer.declarations import class_names, root_of, tokenizer_of
from nbloader.explorer.kinds import Names
from nbloader.explorer.tables import arrays_of, length_of_array, opened, rows_of
from nbloader.explorer.versions import Versions
from nbloader.workers.fetcher import is_async
from nbloader.workers.in_process import SampleDelivery
from nbloader.workers.registry import kind_class

if TYPE_CHECKING:
    from nbloader.events import EventBus


class FollowedLoader(Protocol):
    """The part of an nbloader loader that the explorer uses."""

    events: EventBus
    dataset: Any
    workers: str

    def deliveries(self, index: Any, limit: int = ...) -> list[SampleDelivery]:
        """See `DataLoader`."""

    def replay(self, epoch: int, batch: int) -> Any:
        """See `DataLoader`."""

    def on_wait(self, callback: Callable[[], object]) -> Callable[[], None]:
        """See `DataLoader`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A map-style dataset of the samples to explore, and what is known about it."""

    dataset: Any
    """Map-style dataset with indices 0 to `total - 1`."""
    total: int
    title: str
    streaming: bool = False
    """Whether `total` is only an upper limit, and samples are read one after another."""
    names: Names = field(default_factory=dict)
    workers: str = "process"
    """The kind of workers that suits the dataset."""
    worker_init_fn: Callable[[int], object] | None = None
    loader: FollowedLoader | None = None
    """The nbloader loader that the dataset belongs to; None if there is none."""
    original: Any = None
    """The user's dataset itself, which `dataset` may adapt."""
    tabular: bool = False
    """Whether the samples are the rows of a table."""
    fixed: bool = False
    """Whether the samples are one batch: they are the same in each draw, and index `WHOLE` is the batch itself."""
    note: str = ""
    """A line of text about the source."""
    tokenizer: Any = None
    """Turns token ids into text; None if there is none."""
    root: str = ""
    """Folder of the dataset's files; "" if it is not known."""

    @property
    def debuggable(self) -> bool:
        """Whether samples are results of the dataset's own `__getitem__`, so that they can be debugged."""
        return self.dataset is self.original and not (self.streaming or is_async(self.dataset))


def source_of(x: Any, buffer: int, split: str | int | None = None) -> Source:
    """Determine what the samples of an object are.

    Args:
        x: A loader, a dataset, an array, a dict of columns, a table, or anything that can be iterated.
        buffer: Maximum number of samples of a stream that are kept.
        split: Which of several datasets, such as those of a `DatasetDict`; None for the one for training.

    Raises:
        TypeError: The object has no samples.
        ValueError: There is no such split.
    """
    splits = _splits(x)
    if splits or split is not None:
        return _of_splits(x, splits, split, buffer)
    if _is_of_torch(x, "DataLoader"):
        return _of_loader(x, buffer)
    if isinstance(x, Path) or (isinstance(x, str) and x.lower().endswith((".parquet", ".lance", ".zarr"))):
        return _of_dataset(opened(x), buffer, Path(x).name)
    if isinstance(x, BatchSamples):
        return Source(
            x, len(x), x.title, names=class_names(x), workers=x.workers, worker_init_fn=x.worker_init_fn,
            original=x.dataset, fixed=True, note=x.note, tokenizer=tokenizer_of(x.dataset), root=root_of(x.dataset),
        )  # fmt: skip
    if isinstance(x, Versions):
        source = _of_dataset(x, buffer, f"Two versions of {type(x.dataset).__name__}")
        return replace(source, names=x.names(source.names), workers=x.workers)
    return _of_dataset(x, buffer, type(x).__name__)


def _splits(x: Any) -> Mapping[str, Any]:
    """Return several datasets in one object by name: Hugging Face's `DatasetDict`, what `random_split` returns."""
    if isinstance(x, Mapping):
        named = type(x).__name__ in ("DatasetDict", "IterableDatasetDict")
        return {str(name): part for name, part in x.items()} if named else {}
    several = isinstance(x, (list, tuple)) and bool(x) and all(_is_of_torch(part, "Dataset") for part in x)
    return {str(at): part for at, part in enumerate(x)} if several else {}


def _of_splits(x: Any, splits: Mapping[str, Any], split: str | int | None, buffer: int) -> Source:
    if not splits:
        raise ValueError(f"split={split!r} is for a DatasetDict or a list of datasets, not for {type(x).__name__}")
    chosen = str(split) if split is not None else "train" if "train" in splits else next(iter(splits))
    if chosen not in splits:
        raise ValueError(f"there is no split {split!r}. The splits are {', '.join(splits)}.")
    source = source_of(splits[chosen], buffer)
    others = ", ".join(f"{name} ({_size(part)})" for name, part in splits.items() if name != chosen)
    how = f"explore(..., split={next(name for name in (*splits, '') if name != chosen)!r})" if len(splits) > 1 else ""
    note = f"Split {chosen}. Others: {others}; {how} shows another one." if others else source.note
    return replace(source, title=f"{source.title} {chosen}", note=note)


def _size(dataset: Any) -> str:
    return f"{len(dataset):,}" if hasattr(dataset, "__len__") else "a stream"


def _is_of_torch(x: Any, name: str) -> bool:
    """Whether an object is an instance of a class of `torch.utils.data`.

    Importing torch takes 2 s. If nothing has imported it yet, there is no such instance.
    """
    if "torch" not in sys.modules:
        return False
    from torch.utils import data

    return isinstance(x, getattr(data, name))


def _workers_of(loader: Any) -> str:
    """Return the kind of workers for a loader's dataset: on this machine, even if the loader's own workers are not.

    Coroutines run in a thread with its event loop, and draw from the generators of the thread, also in a process.
    """
    return "thread" if kind_class(loader.workers).in_process or is_async(loader.dataset) else "process"


def _of_loader(loader: Any, buffer: int) -> Source:
    source = _of_dataset(loader.dataset, buffer, type(loader.dataset).__name__)
    ours = hasattr(loader, "events") and hasattr(loader, "on_wait")
    init_fn = loader.worker_init_fn if loader.num_workers else None
    return Source(
        source.dataset,
        source.total,
        source.title,
        source.streaming,
        source.names,
        "thread" if source.streaming else _workers_of(loader) if ours else source.workers,
        init_fn,
        loader if ours else None,
        loader.dataset,
        note=source.note,
        tokenizer=source.tokenizer or tokenizer_of(getattr(loader, "collate_fn", None)),
        root=source.root,
    )


def _of_dataset(x: Any, buffer: int, title: str) -> Source:
    dataset, names = x, class_names(x)
    iterable = _is_of_torch(x, "IterableDataset")
    of_table = None if isinstance(x, (type, Mapping)) or iterable else rows_of(x)
    columns = x if isinstance(x, Mapping) else arrays_of(x)
    if columns is not None:
        dataset = _of_mapping(columns)
    elif of_table is not None:
        dataset = of_table
    elif hasattr(x, "dataobj") and hasattr(x, "affine"):  # an image of nibabel: one sample
        dataset = [x]
    elif not hasattr(x, "__len__") and not iterable and (length := length_of_array(x)) is not None:
        dataset = Adapted(length, x.__getitem__)
    elif isinstance(x, (str, bytes)) or not (hasattr(x, "__getitem__") or hasattr(x, "__iter__")):
        raise TypeError(
            f"explore() takes a dataset, a loader, an array, a dict of columns or an iterable, not "
            f"{type(x).__name__}: {clean(repr(x), 80)}"
        )
    if not iterable and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        in_memory = dataset is not x or isinstance(x, (list, tuple, range)) or is_in_memory(x)
        workers = "thread" if in_memory or is_async(dataset) else "process"
        return Source(
            dataset, len(dataset), title, names=names, workers=workers, original=x,
            tabular=of_table is not None and columns is None, tokenizer=tokenizer_of(x), root=root_of(x),
        )  # fmt: skip
    if not hasattr(x, "__iter__"):
        raise TypeError(
            f"explore() needs the number of samples, but {type(x).__name__} has __getitem__ and no __len__. Add "
            "__len__, or pass an iterable."
        )
    return Source(
        Stream(x, buffer), buffer, title, streaming=True, names=names, workers="thread", original=x,
        tokenizer=tokenizer_of(x), root=root_of(x),
    )  # fmt: skip


def _column_sample(columns: Mapping[str, Any], index: int) -> dict[str, Any]:
    return {name: column[index] for name, column in columns.items()}


def _entry(values: Mapping[Any, Any], keys: Sequence[Any], index: int) -> dict[str, Any]:
    return {"key": keys[index], "value": values[keys[index]]}


def _of_mapping(x: Mapping[Any, Any]) -> Adapted:
    """Return the rows of a dict of columns, such as scikit-learn's datasets; for any other dict, its entries."""
    lengths = {name: _length(value) for name, value in x.items()}
    columns = [name for name, length in lengths.items() if length]
    length = next((lengths[name] for name in ("data", "images", *columns) if lengths.get(name)), None)
    rows = {str(name): x[name] for name in columns if lengths[name] == length}
    if length is not None and (len(rows) > 1 or len(rows) == len(x)):
        return Adapted(length, partial(_column_sample, rows))
    keys = list(x)
    return Adapted(len(keys), partial(_entry, x, keys))


def _length(value: Any) -> int | None:
    """Return the length of a column; None if the value is not a column."""
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__getitem__") or hasattr(value, "columns"):
        return None
    try:
        return len(value) if hasattr(value, "__len__") else length_of_array(value)
    except TypeError:  # a zero-dimensional array
        return None


def delivered(loader: FollowedLoader | None, limit: int) -> list[int]:
    """Return dataset indices of the samples that a loader delivered most recently, the newest batch first.

    A batch record contains only the first eight indices of its batch.

    Args:
        loader: An nbloader loader.
        limit: Maximum number of indices.
    """
    found: dict[int, None] = {}
    if loader is None:
        return []
    for record in reversed(loader.events.batches()):
        for index in record.indices if isinstance(record.indices, (list, tuple)) else ():
            if isinstance(index, int):
                found[index] = None
        if len(found) >= limit:
            break
    return list(found)[:limit]
