"""How much two samples differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Difference(NamedTuple):
    """How much the sample of the rewritten code differs from that of the present code."""

    largest: float = 0.0
    """Largest absolute difference of a value."""
    mean: float = 0.0
    """Mean absolute difference, of the array that differs most."""
    span: float = 0.0
    """Largest value minus smallest value of the array that differs most."""
    problem: str = ""
    """Why the samples cannot be compared value by value, such as "float32 instead of float64"; "" if they can."""

    @property
    def equal(self) -> bool:
        """Whether the samples are equal."""
        return not self.largest and not self.problem

    def within(self, share: float) -> bool:
        """Whether no value differs by more than a share of the range of values."""
        return not self.problem and self.largest <= share * self.span

    def __str__(self) -> str:
        """The difference in words."""
        if self.problem:
            return self.problem
        if self.equal:
            return "equal"
        return f"differences of up to {self.largest:.3g} ({self.mean:.3g} on average) in a range of {self.span:.3g}"


EQUAL = Difference()


def largest(found: Difference, other: Difference) -> Difference:
    """Return the larger one of two differences. A problem is larger than any difference."""
    return max(found, other, key=lambda one: (bool(one.problem), one.largest / (one.span or 1.0)))


def difference(before: Any, after: Any, place: str = "the sample") -> Difference:
    """Compare two samples.

    Args:
        before: The sample of the present code.
        after: The sample of the rewritten code.
        place: Name of what is compared, for the problem.
    """
    if type(before) is not type(after):
        return Difference(problem=f"{place} is a {_kind(after)} instead of a {_kind(before)}")
    array = array_of(before)
    if array is not None:
        return _of_arrays(array, array_of(after), before, after, place)
    if isinstance(before, Mapping):
        if list(before) != list(after):
            return Difference(problem=f"{place} has the keys {list(after)} instead of {list(before)}")
        pairs = [(f"{place}[{key!r}]", before[key], after[key]) for key in before]
    elif isinstance(before, (list, tuple)):
        if len(before) != len(after):
            return Difference(problem=f"{place} has {len(after)} items instead of {len(before)}")
        pairs = [(f"{place}[{number}]", *pair) for number, pair in enumerate(zip(before, after, strict=True))]
    else:
        return _of_objects(before, after, place)
    worst = EQUAL
    for name, one, other in pairs:
        worst = largest(worst, difference(one, other, name))
    return worst


def _kind(obj: Any) -> str:
    return type(obj).__name__


def array_of(obj: Any) -> np.ndarray[Any, Any] | None:
    """Return an array, a tensor or a picture as an array; None if it is none of these."""
    if isinstance(obj, (bool, int, float, str, bytes)) or obj is None:
        return None
    if isinstance(obj, np.ndarray):
        return obj
    if hasattr(obj, "detach") and hasattr(obj, "numpy"):  # a tensor
        try:
            found: np.ndarray[Any, Any] = obj.detach().cpu().numpy()
        except (TypeError, RuntimeError):  # bfloat16, sparse
            return None
        return found
    if hasattr(obj, "getbands"):  # a picture of PIL
        return np.asarray(obj)
    return None


def _of_arrays(one: Any, other: Any, before: Any, after: Any, place: str) -> Difference:
    if getattr(before, "dtype", None) != getattr(after, "dtype", None):
        return Difference(problem=f"{place} has dtype {after.dtype} instead of {before.dtype}")
    if one.shape != other.shape:
        return Difference(problem=f"{place} has shape {other.shape} instead of {one.shape}")
    if one.dtype.kind not in "biufc":
        return EQUAL if bool(np.array_equal(one, other)) else Difference(problem=f"{place} differs")
    if not one.size or bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")):
        return EQUAL
    one = one.astype(np.complex128 if one.dtype.kind == "c" else np.float64)
    apart = np.abs(one - other)
    apart = apart[np.isfinite(apart)]
    if not apart.size:
        return Difference(problem=f"{place} differs where it is not finite")
    values = np.abs(one[np.isfinite(one)])
    span = float(values.max() - values.min()) if values.size else 0.0
    return Difference(float(apart.max()), float(apart.mean()), span)


def _of_objects(before: Any, after: Any, place: str) -> Difference:
    try:
        equal = bool(before == after) or (before != before and after != after)  # noqa: PLR0124 - NaN
    except Exception:  # noqa: BLE001 - whatever the user's class raises
        return Difference(problem=f"{place} cannot be compared")
    if equal:
        return EQUAL
    if isinstance(before, (int, float)) and not isinstance(before, bool):
        return Difference(abs(before - after), abs(before - after), abs(before))
    return Difference(problem=f"{place} differs")
