"""Columns that the user adds to the facts about samples: losses, predictions, groups."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
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
    values: NDArray[Any]
    """Numbers, NaN for none. For strings their positions in `texts`, -1 for none."""
    texts: tuple[str, ...] | None = None
    """The distinct strings; None for a column of numbers."""

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
            ValueError: There is another number of values than samples, an index is out of range or repeated, or there
                are both numbers and strings.
            TypeError: A value is neither a number nor a string, or indices are not whole numbers.
        """
        indices, given = _pairs(name, values, total)
        order = np.argsort(indices, kind="stable")
        ordered = indices[order]
        if ordered.size and (ordered[0] < 0 or ordered[-1] >= total):
            wrong = ordered[0] if ordered[0] < 0 else ordered[-1]
            raise ValueError(
                f"column {name!r} has a value for sample {wrong}, but the samples are numbered from 0 to {total - 1:,}"
            )
        if (ordered[1:] == ordered[:-1]).any():
            repeated = ordered[1:][ordered[1:] == ordered[:-1]][0]
            raise ValueError(f"column {name!r} has several values for sample {repeated}")
        found, texts = _coded(name, given, names)
        return cls(ordered, found[order], texts)

    def at(self, index: int) -> float | int | str | None:
        """Return the value of a sample; None if it has none."""
        place = int(np.searchsorted(self.indices, index))
        if place == len(self.indices) or self.indices[place] != index:
            return None
        value = self.values[place].item()
        if self.texts is not None:
            return self.texts[value] if value >= 0 else None
        return value if math.isfinite(value) else None


def _coded(
    name: str, given: Sequence[Any] | NDArray[Any], names: Sequence[str] | None
) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """Return numbers and None, or the positions of strings among the distinct ones, and these."""
    if isinstance(given, np.ndarray):
        if given.dtype.kind == "f" or (given.dtype.kind in "iu" and names is None):
            return given, None
        given = given.tolist()
    types = set(map(type, given))
    if not types <= {float, int, str, bool, type(None)}:
        given = [_cell(name, value) for value in given]
        types = set(map(type, given))
    if float in types and types & {str, bool}:  # pandas has NaN in place of a missing string, too
        given = [None if type(value) is float and not math.isfinite(value) else value for value in given]
        types = set(map(type, given))
    if names is not None and int in types and types <= {int, type(None)}:
        named = {number: _class_name(number, names) for number in set(given)}
        if None not in [text for number, text in named.items() if number is not None]:
            given = [named[number] for number in given]
            types = {str}
    if types <= {float, int, type(None)}:
        whole = np.array(given) if types == {int} else np.empty(0)
        return (whole if whole.dtype.kind in "iu" else np.array(given, np.float64)), None  # None becomes NaN
    if types & {float, int}:
        raise ValueError(f"column {name!r} has both numbers and strings. Convert them to one type.")
    return _positions(given, set(names or ()))


def _positions(given: Iterable[str | bool | None], known: Container[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the positions of strings among the distinct ones, -1 for None, and the distinct ones.

    Args:
        given: Strings or bools.
        known: Names of classes, which stay as the samples have them.
    """
    places: dict[str, int] = {}
    codes: dict[Any, int] = {None: -1}
    for value in dict.fromkeys(given):
        if value is not None:  # different values may become one text
            text = value if isinstance(value, str) and value in known else clean(str(value), MAX_TEXT)
            codes[value] = places.setdefault(text, len(places))
    return np.array([codes[value] for value in given], np.int64), tuple(places)


def _class_name(number: int | None, names: Sequence[str]) -> str | None:
    """Return the name of a class, or a negative number as text; None if there is none."""
    if number is None or number >= len(names):
        return None
    return names[number] if number >= 0 else str(number)


def _pairs(name: str, values: Any, total: int) -> tuple[NDArray[np.int64], Sequence[Any] | NDArray[Any]]:
    if isinstance(values, Mapping):
        return _indices(name, values.keys()), list(values.values())
    if hasattr(values, "index") and hasattr(values, "to_list") and not isinstance(values, list):  # a Series of pandas
        return _indices(name, values.index), values.to_list()
    array = as_array(values)
    if isinstance(values, (str, bytes)) or not (array is not None or isinstance(values, Iterable)):
        raise TypeError(f"column {name!r} must be a list, array, dict or Series, not {type(values).__name__}")
    listed = list(values) if array is None else array
    if array is not None and array.ndim != 1:
        raise ValueError(f"column {name!r} must have one value per sample, not shape {array.shape}")
    if len(listed) != total:
        raise ValueError(
            f"column {name!r} has {len(listed):,} values for {total:,} samples. For some samples only, pass a dict by "
            "dataset index."
        )
    return np.arange(total, dtype=np.int64), listed


def _indices(name: str, keys: Iterable[Any]) -> NDArray[np.int64]:
    found = list(keys)
    if not all(kind is int or issubclass(kind, np.integer) for kind in set(map(type, found))):
        raise TypeError(f"the keys of column {name!r} must be dataset indices, not {found[:3]!r}")
    return np.array(found, np.int64)


def _cell(name: str, value: Any) -> float | int | str | bool | None:
    if hasattr(value, "item") and getattr(value, "shape", None) in ((), (1,)):
        value = value.item()
    if value is None or isinstance(value, (float, int, str)):
        return value
    raise TypeError(
        f"values of column {name!r} must be numbers or strings, not {type(value).__name__}: {clean(repr(value), 60)}"
    )
