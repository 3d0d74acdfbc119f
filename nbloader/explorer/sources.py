"""Converts the argument of `nbloader.explore` (a dataset, loader, stream, array, ...) to a `Source`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from nbloader._util.format import clean
from nbloader.batch.rows import is_in_memory
from nbloader.events import EventBus
from nbloader.explorer.adapters import Adapted, Stream
from nbloader.explorer.batch_samples import BatchSamples
from nbloader.explorer.kinds import Names
from nbloader.workers.fetcher import is_async
from nbloader.workers.in_process import SampleDelivery
from nbloader.workers.registry import kind_class


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
    fixed: bool = False
    """Whether the samples are one batch: they are the same in each draw, and index `WHOLE` is the batch itself."""
    note: str = ""
    """A line of text about the source."""


def source_of(x: Any, buffer: int) -> Source:
    """Determine what the samples of an object are.

    Args:
        x: A loader, a dataset, an array, a dict of columns, or anything that can be iterated.
        buffer: Maximum number of samples of a stream that are kept.

    Raises:
        TypeError: The object has no samples.
    """
    if _is_of_torch(x, "DataLoader"):
        return _of_loader(x, buffer)
    if isinstance(x, BatchSamples):
        return Source(
            x, len(x), x.title, names=class_names(x), workers=x.workers, worker_init_fn=x.worker_init_fn,
            original=x.dataset, fixed=True, note=x.note,
        )  # fmt: skip
    return _of_dataset(x, buffer, type(x).__name__)


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
    )


def _of_dataset(x: Any, buffer: int, title: str) -> Source:
    dataset, names = x, class_names(x)
    iterable = _is_of_torch(x, "IterableDataset")
    if isinstance(x, Mapping):
        dataset = _of_mapping(x)
    elif hasattr(x, "iloc") and hasattr(x, "columns"):  # a data frame: x[0] would be a column
        dataset = Adapted(len(x), partial(_row, x))
    elif isinstance(x, (str, bytes)) or not (hasattr(x, "__getitem__") or hasattr(x, "__iter__")):
        raise TypeError(
            f"explore() takes a dataset, a loader, an array, a dict of columns or an iterable, not "
            f"{type(x).__name__}: {clean(repr(x), 80)}"
        )
    if not iterable and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        in_memory = dataset is not x or isinstance(x, (list, tuple, range)) or is_in_memory(x)
        workers = "thread" if in_memory or is_async(dataset) else "process"
        return Source(dataset, len(dataset), title, names=names, workers=workers, original=x)
    if not hasattr(x, "__iter__"):
        raise TypeError(
            f"explore() needs the number of samples: {type(x).__name__} has __getitem__ but no __len__; add __len__, "
            "or pass an iterable"
        )
    return Source(Stream(x, buffer), buffer, title, streaming=True, names=names, workers="thread", original=x)


def _row(frame: Any, index: int) -> Any:
    return frame.iloc[index].to_dict()


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
        return len(value)
    except TypeError:  # a zero-dimensional array
        return None


def class_names(dataset: Any) -> Names:
    """Return class names by field: torchvision's `classes`, scikit-learn's `target_names`, Hugging Face's features.

    Args:
        dataset: Any dataset; for a `Subset`, the inner dataset is used.
    """
    for _ in range(8):  # a Subset may contain a Subset
        classes = dataset.get("target_names") if isinstance(dataset, Mapping) else getattr(dataset, "classes", None)
        if found := _names(classes):
            return {"*": found}
        features = getattr(dataset, "features", None)
        if isinstance(features, Mapping):
            listed = {str(name): _names_of(feature) for name, feature in features.items()}
            return {name: names for name, names in listed.items() if names}
        inner = getattr(dataset, "dataset", None)
        if inner is None or inner is dataset:
            break
        dataset = inner
    return {}


def _names_of(feature: Any) -> list[str]:
    """Return the class names of a Hugging Face feature; those of its elements, if it is a list."""
    return _names(getattr(feature, "names", None)) or _names(getattr(getattr(feature, "feature", None), "names", None))


def _names(value: Any) -> list[str]:
    """Return a list of class names; empty if the value is not one."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return []
    names = list(value)
    return [clean(name) for name in names] if all(isinstance(name, str) for name in names) else []


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
