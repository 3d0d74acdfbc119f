"""Columns that the user adds to the facts about samples: losses, predictions, groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import clean
from nbloader.explorer.values import as_array

MAX_TEXT = 200
"""Maximum length of a string in a column."""


class OwnColumn(NamedTuple):
    """Values of samples, by dataset index."""

    indices: NDArray[np.int64]
    """Ascending, without repetitions."""
    values: list[float | int | str | None] | NDArray[Any]
    """An array if all are numbers, else a list."""

    @classmethod
    def of(cls, name: str, values: Any, total: int, names: Sequence[str] | None = None) -> OwnColumn:
        """Create a column.

        Args:
            name: Its name, for errors.
            values: A value for each sample, in order: a list, an array, a tensor. Or values by dataset index: a dict, a
                `pandas.Series`. Numbers, strings, bools or None.
            total: Number of samples.
            names: Names for whole numbers; None to keep the numbers.

        Raises:
            ValueError: There is another number of values than samples, or an index is out of range or repeated.
            TypeError: A value is neither a number nor a string, or indices are not whole numbers.
        """
        indices, given = _pairs(name, values, total)
        order = np.argsort(indices, kind="stable")
        ordered = indices[order]
        if ordered.size and (ordered[0] < 0 or ordered[-1] >= total):
            wrong = ordered[0] if ordered[0] < 0 else ordered[-1]
            raise ValueError(f"column {name!r} has a value for sample {wrong}: there are {total:,}, from 0")
        if (ordered[1:] == ordered[:-1]).any():
            repeated = ordered[1:][ordered[1:] == ordered[:-1]][0]
            raise ValueError(f"column {name!r} has several values for sample {repeated}")
        if isinstance(given, np.ndarray) and given.dtype.kind in "iuf" and names is None:
            return cls(ordered, given[order])
        cells = [_cell(name, value, names) for value in given]
        return cls(ordered, [cells[at] for at in order.tolist()])

    def at(self, index: int) -> float | int | str | None:
        """Return the value of a sample; None if it has none."""
        place = int(np.searchsorted(self.indices, index))
        if place == len(self.indices) or self.indices[place] != index:
            return None
        value = self.values[place]
        return _cell("", value, None) if isinstance(value, np.generic) else value


def _pairs(name: str, values: Any, total: int) -> tuple[NDArray[np.int64], Sequence[Any] | NDArray[Any]]:
    if isinstance(values, Mapping):
        return _indices(name, values.keys()), list(values.values())
    if hasattr(values, "index") and hasattr(values, "to_list") and not isinstance(values, list):  # a Series of pandas
        return _indices(name, values.index), values.to_list()
    array = as_array(values)
    if isinstance(values, (str, bytes)) or not (array is not None or isinstance(values, Iterable)):
        raise TypeError(f"column {name!r} takes a list, array, dict or Series, not {type(values).__name__}")
    listed = list(values) if array is None else array
    if array is not None and array.ndim != 1:
        raise ValueError(f"column {name!r} takes a value for each sample, not an array of shape {array.shape}")
    if len(listed) != total:
        raise ValueError(
            f"column {name!r} has {len(listed):,} values, for {total:,} samples: for some of them pass a dict "
            "by dataset index"
        )
    return np.arange(total, dtype=np.int64), listed


def _indices(name: str, keys: Iterable[Any]) -> NDArray[np.int64]:
    found = list(keys)
    if not all(isinstance(key, (int, np.integer)) and not isinstance(key, bool) for key in found):
        raise TypeError(f"the keys of column {name!r} must be dataset indices, not {found[:3]!r}")
    return np.array([int(key) for key in found], np.int64)


def _cell(name: str, value: Any, names: Sequence[str] | None) -> float | int | str | None:
    if hasattr(value, "item") and getattr(value, "shape", None) in ((), (1,)):
        value = value.item()
    if value is None or isinstance(value, float):
        return value if value is None or math.isfinite(value) else None
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return names[value] if names is not None and 0 <= value < len(names) else value
    if isinstance(value, str):
        return clean(value, MAX_TEXT)
    raise TypeError(f"column {name!r} takes numbers and strings, not {type(value).__name__}: {clean(repr(value), 60)}")
