"""Facts about samples that need not be read: labels, file names and file sizes, from a dataset's own attributes.

Only plain containers that are instance attributes of the dataset are read (lists, tuples, arrays, tensors, columns of
data frames), so that no code of the dataset runs alongside the loop. File sizes are read by a thread, since a network
drive may not respond.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from nbloader.metrics.evidence import FILE_SIZE, SampleFacts
from nbloader.shm.shared_objects import SharedSequence

KEPT = 4096
"""Maximum number of files whose sizes are kept."""
PATIENCE = 0.05
"""Seconds to wait for sizes of files, after the end of an epoch."""
_DEPTH = 8
"""Maximum depth of nested datasets that is followed."""
_SHORT = 40
"""Maximum length of a string that may be a label, characters."""
_LONGEST_SUFFIX = 6
_PARTS = 4
"""Longest tuple whose items are fields, such as (path, label)."""
_FOLDERS = 2
"""Parts of a folder's name that are shown."""
_LABELLED = ("samples", "imgs")
"""Lists of (path, label), as in torchvision."""


class _Column(NamedTuple):
    """An attribute with one value per sample."""

    name: str
    value: Callable[[int], Any]


class SampleIndex:
    """Looks up facts about samples.

    Args:
        dataset: The dataset.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._inner, self._positions = _innermost(dataset)
        self._columns = list(_columns_of(self._inner))
        self._folders = [Path(v) for v in _attributes(self._inner).values() if isinstance(v, (str, PurePath))]
        self._files = _FileSizes(self._folders)

    def facts(self, indices: Sequence[Any], *, patient: bool) -> Mapping[Any, SampleFacts]:
        """Return what is known about some samples.

        Args:
            indices: Their dataset indices. Those that are not integers are left out.
            patient: Whether to wait a moment for file sizes; otherwise only the known ones are returned.
        """
        if not self._columns:
            return {}
        found, paths = {}, {}
        for index in indices:
            if type(index) is not int:
                continue
            known = _Known({}, {}, "")
            for column in self._columns:
                try:
                    known = _add(known, column.name, column.value(self._position(index)))
                except (IndexError, KeyError, TypeError, ValueError):  # it has no value for this sample
                    continue
            found[index] = SampleFacts(known.values, known.sizes)
            if known.path:
                paths[index] = known.path
        sizes = self._files.of(list(paths.values()), patient=patient)
        for index, path in paths.items():
            if path in sizes:
                found[index].sizes[FILE_SIZE] = sizes[path]
        return found

    def _position(self, index: int) -> int:
        """The index in the innermost dataset."""
        for positions in self._positions:
            index = int(positions[index])
        return index


class _Known(NamedTuple):
    """What is known about one sample."""

    values: dict[str, Any]
    sizes: dict[str, float]
    path: str
    """Path of its file; "" if there is none."""


class _FileSizes:
    """Sizes of files, read by a thread that ends when it has read them."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._sizes: dict[str, float | None] = {}
        self._wanted: list[str] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def of(self, paths: Sequence[str], *, patient: bool) -> dict[str, float]:
        """Return the sizes that are known, in bytes. The others are read in the background."""
        with self._lock:
            missing = [path for path in dict.fromkeys(paths) if path not in self._sizes]
            self._wanted = missing[: KEPT - len(self._sizes)]
            if self._wanted and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._read, name="nbloader-file-sizes", daemon=True)
                self._thread.start()
            thread = self._thread
        if patient and thread is not None:
            thread.join(PATIENCE)
        with self._lock:
            return {path: size for path in paths if (size := self._sizes.get(path)) is not None}

    def _read(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                path = self._wanted.pop()
            size = next(self._found(path), None)
            with self._lock:
                self._sizes[path] = size

    def _found(self, path: str) -> Iterator[float]:
        for place in (Path(path), *(folder / path for folder in self._folders)):
            try:
                yield float(place.stat().st_size)
            except (OSError, ValueError):
                continue


def _attributes(dataset: Any) -> dict[str, Any]:
    """Instance attributes, without running the dataset's code."""
    return dict(getattr(dataset, "__dict__", None) or {})


def _innermost(dataset: Any) -> tuple[Any, list[Any]]:
    """The dataset within subsets and wrappers of the same length, and the indices by which each refers to the next."""
    positions = []
    for _ in range(_DEPTH):
        attributes = _attributes(dataset)
        inner = attributes.get("dataset")
        if inner is None:
            break
        indices = attributes.get("indices")
        if _is_plain(indices) or isinstance(indices, range):
            positions.append(indices)
        elif _length(inner) != _length(dataset):
            break
        dataset = inner
    return dataset, positions


def _length(x: Any) -> int:
    try:
        return len(x)
    except (TypeError, NotImplementedError):
        return -1


def _is_plain(value: Any) -> bool:
    """Whether it is a container whose items can be read without running code of the user."""
    kind = type(value)
    if kind in (list, tuple, SharedSequence):
        return True
    name = _name(kind)
    if name == "torch.Tensor":
        return bool(value.dim()) and value.device.type == "cpu"
    return bool(value.ndim) if name == "numpy.ndarray" else name == "pandas.Series"


def _name(kind: type) -> str:
    """Return package and name of a type, for checks that do not import the package."""
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _columns_of(dataset: Any) -> Iterator[_Column]:
    """The attributes with one value per sample."""
    length = _length(dataset)
    for attribute, value in _attributes(dataset).items():
        name, kind = attribute.removeprefix("_"), type(value)
        if _is_plain(value) and len(value) == length:
            yield _column(name, value)
        elif _name(kind) == "pandas.DataFrame" and len(value) == length:
            for column in islice(value.columns, 32):
                yield _column(str(column), value[column])
        elif kind in (list, tuple) and 0 < len(value) <= _PARTS:  # such as the tensors of torch's TensorDataset
            for position, part in enumerate(value):
                if _is_plain(part) and len(part) == length:
                    yield _column(f"{name}[{position}]", part)


def _column(name: str, values: Any) -> _Column:
    return _Column(name, values.iloc.__getitem__ if type(values).__name__ == "Series" else values.__getitem__)


def _add(known: _Known, name: str, value: Any) -> _Known:
    """Add what one attribute says about a sample."""
    if type(value).__module__.partition(".")[0] in ("numpy", "torch"):
        if getattr(value, "ndim", 1):
            known.sizes[f"size of {name}"] = float(value.numel() if hasattr(value, "numel") else value.size)
            return known
        value = value.item()
    if isinstance(value, (bool, int)):
        known.values[name] = value
    if isinstance(value, (int, float)) and value == value and abs(value) < float("inf"):  # noqa: PLR0124 - not NaN
        known.sizes[name] = float(value)
    elif isinstance(value, PurePath) or (isinstance(value, str) and _is_path(value)):
        path = PurePath(value)
        known.values["suffix"] = path.suffix
        known.values["folder"] = str(PurePath(*path.parent.parts[-_FOLDERS:]))
        return known._replace(path=str(value))
    elif isinstance(value, tuple) and len(value) <= _PARTS:
        for position, part in enumerate(value):
            label = name in _LABELLED and position == 1
            known = _add(known, "label" if label else f"{name}[{position}]", part)
    elif isinstance(value, (str, bytes, list, tuple, dict)):
        known.sizes[f"len({name})"] = float(len(value))
        if isinstance(value, str) and len(value) <= _SHORT:
            known.values[name] = value
    return known


def _is_path(text: str) -> bool:
    """Whether a string looks like a file name."""
    name, dot, suffix = text.rpartition(".")
    return bool(name and dot) and suffix.isalnum() and len(suffix) <= _LONGEST_SUFFIX and "\n" not in text
