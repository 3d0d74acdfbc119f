"""Two versions of a dataset: the same samples under the same seeds, before and after a class or function was edited."""

from __future__ import annotations

import copy
import random
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbloader._util import rng
from nbloader._util.format import clean
from nbloader.explorer.field import LABEL_NAMES
from nbloader.explorer.kinds import Names
from nbloader.explorer.texts import short_repr
from nbloader.explorer.values import as_array

MAX_PARTS = 500
"""Maximum number of objects in a dataset that are examined."""
MAX_DEPTH = 6
MAX_ITEMS = 100
"""Maximum number of items of a list that are examined."""
SIDES = ("before", "after")


class Versions:
    """Samples of two datasets under the same seed, and how they differ.

    Args:
        before: A map-style dataset.
        after: Another one, of the same samples.
        workers: The kind of workers that suits them.
    """

    def __init__(self, before: Any, after: Any, workers: str) -> None:
        self.workers = workers
        """The kind of workers that suits the datasets."""
        self.before = before
        self.dataset = after
        """The second version, whose class names and tokenizer are used."""

    def __len__(self) -> int:
        """Number of samples that both have."""
        return min(len(self.before), len(self.dataset))

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return both versions of a sample, and the differences by field. An error of one of them is a text."""
        own = rng.thread_local.generators
        seed = (random if own is None else own.random_generator).getrandbits(63)  # drawn under the seed of the request
        before, after = (_read(dataset, index, seed) for dataset in (self.before, self.dataset))
        return {SIDES[0]: before, SIDES[1]: after, "difference": difference(before, after) or "none"}

    @staticmethod
    def names(names: Names) -> Names:
        """Return class names by field of both versions.

        Args:
            names: Class names by field of one version.
        """
        fields = dict.fromkeys(LABEL_NAMES, names["*"]) if "*" in names else names
        return {f"{side}.{name}".removesuffix("."): classes for side in SIDES for name, classes in fields.items()}


def _read(dataset: Any, index: int, seed: int) -> Any:
    rng.seed_everything(seed)
    try:
        return dataset[index]
    except Exception as error:  # noqa: BLE001 - an edited class may raise anything, and the other version is shown
        return f"raises {type(error).__name__}: {clean(error)}"


def difference(before: Any, after: Any) -> Any:
    """Return how two values differ; None if they are equal.

    Returns:
        For containers a dict by field, for arrays of equal shapes the absolute difference, otherwise a text.
    """
    pairs = _pairs(before, after)
    if pairs is not None:
        found = {name: part for name, (one, other) in pairs.items() if (part := difference(one, other)) is not None}
        return found or None
    one, other = _numbers(before), _numbers(after)
    if one is None or other is None:
        return None if _equal(before, after) else f"{short_repr(before)} is now {short_repr(after)}"
    if one.shape != other.shape or one.dtype.kind not in "biufc" or other.dtype.kind not in "biufc":
        same = one.shape == other.shape and bool(np.all(one == other))
        return None if same else f"{one.dtype} {one.shape} is now {other.dtype} {other.shape}"
    kind = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    with np.errstate(all="ignore"):
        apart = np.asarray(np.abs(one.astype(kind) - other.astype(kind)))
    apart[np.isnan(one) & np.isnan(other)] = 0
    if not apart.size or not (apart != 0).any():
        return None if one.dtype == other.dtype else f"{one.dtype} is now {other.dtype}"
    whole = one.dtype == other.dtype == np.uint8
    return apart.astype(np.uint8) if whole else apart if apart.ndim else float(apart)


def _numbers(value: Any) -> NDArray[Any] | None:
    return np.asarray(value) if isinstance(value, (int, float)) else as_array(value)


def _pairs(before: Any, after: Any) -> dict[str, tuple[Any, Any]] | None:
    """Return the parts of two containers of the same structure by name; None if they are none."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        names = [*before, *(name for name in after if name not in before)]
        return {clean(name, 60): (before.get(name), after.get(name)) for name in names}
    both = isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)) and len(before) == len(after)
    if not both or as_array(before) is not None:
        return None
    return {str(at): pair for at, pair in enumerate(zip(before, after, strict=True))}


def _equal(before: Any, after: Any) -> bool:
    try:
        return bool(before == after)
    except Exception:  # noqa: BLE001 - objects of other libraries
        return before is after


def renewed(dataset: Any) -> Any:
    """Return a dataset with the current definitions of its class and of the classes and functions that it refers to.

    Cells that were run again and modules that were reloaded have replaced them. Objects that do not change are shared.

    Args:
        dataset: A dataset, which is not modified.

    Returns:
        A copy; the dataset itself if nothing was redefined.
    """
    return _Renewal().of(dataset, 0)


class _Renewal:
    """Finds objects whose class or function was redefined, and copies those that refer to them."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}

    def of(self, value: Any, depth: int) -> Any:
        """Return an object with the current definitions; the object itself if nothing was redefined."""
        if id(value) in self._seen:
            return self._seen[id(value)]
        if depth > MAX_DEPTH or len(self._seen) > MAX_PARTS:
            return value
        self._seen[id(value)] = value  # while it is examined: it may refer to itself
        self._seen[id(value)] = found = self._examine(value, depth)
        return found

    def _examine(self, value: Any, depth: int) -> Any:
        if isinstance(value, types.FunctionType):
            current = _current(value.__module__, value.__qualname__)
            return current if isinstance(current, types.FunctionType) else value
        if type(value) in (list, tuple):
            items = [self.of(item, depth + 1) for item in value[:MAX_ITEMS]]
            changed = any(new is not old for new, old in zip(items, value, strict=False))
            return type(value)([*items, *value[MAX_ITEMS:]]) if changed else value
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict) or isinstance(value, (type, types.ModuleType)):
            return value
        current = _current(type(value).__module__, type(value).__qualname__)
        parts = {name: self.of(part, depth + 1) for name, part in list(attributes.items())[:MAX_ITEMS]}
        replaced = {name: part for name, part in parts.items() if part is not attributes[name]}
        redefined = isinstance(current, type) and current is not type(value)
        if not (replaced or redefined):
            return value
        found = copy.copy(value)
        vars(found).update(replaced)
        if redefined:
            found.__class__ = current
        return found


def _current(module: str, name: str) -> Any:
    """Return what a name in a module means now; None if it means nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
