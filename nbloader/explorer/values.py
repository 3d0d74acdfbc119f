"""Converts a value of a sample to an array and computes its figures: range, mean, NaN and Inf shares, histogram.

Nothing here raises for an unusual array: empty, only NaN, of objects, of complex numbers, of type bfloat16.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BINS = 32
"""Maximum number of bins of a histogram."""
CARD_ELEMENTS = 1 << 15
"""Maximum number of elements from which the figures of a card are computed; `FULL_ELEMENTS` for a full sample."""
FULL_ELEMENTS = 1 << 21
LIST_ELEMENTS = 1 << 16
"""Maximum number of elements of a list of numbers that are read."""


@dataclass(frozen=True, slots=True)
class ArrayFigures:
    """Figures of an array of numbers, from its finite elements; complex numbers count by their magnitude."""

    count: int
    """Number of elements of the array."""
    read: int
    """Number of elements from which the figures are computed: a regular subset of a large array."""
    minimum: float | None
    """None if no element is finite."""
    maximum: float | None
    mean: float | None
    nan: float
    """Share of the elements that are NaN, 0 to 1."""
    inf: float
    """Share of the elements that are infinite, 0 to 1."""
    histogram: tuple[int, ...]
    """Number of elements per bin, in equal bins from `minimum` to `maximum`; empty if these are equal or None.

    A few whole numbers have a bin each.
    """


def as_array(value: Any) -> NDArray[Any] | None:
    """Convert a value to an array that shares its memory if possible; None if it cannot be converted.

    Args:
        value: An array, a tensor of any framework, a PIL image, an image of nibabel, a NumPy number, or a list of
            numbers.
    """
    if isinstance(value, np.ndarray):
        return value if type(value) is np.ndarray else np.asarray(value)
    if isinstance(value, np.generic):
        return np.asarray(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(torch, value)
    if isinstance(value, (list, tuple)):
        return _from_list(value)
    if hasattr(value, "dataobj") and hasattr(value, "affine"):  # an image of nibabel, whose elements are in a file
        value = value.dataobj
    if (hasattr(value, "__array__") or hasattr(value, "__array_interface__")) and not isinstance(value, type):
        try:
            array = np.asarray(value)
        except Exception:  # noqa: BLE001 - code of another library: whatever it raises, the value is shown by its repr
            return None
        return array if array.dtype != object else None
    return None


def _from_torch(torch: Any, tensor: Any) -> NDArray[Any] | None:
    if tensor.device.type == "meta":
        return None
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    try:
        array: NDArray[Any] = tensor.numpy()
    except TypeError:  # bfloat16 and the types of 8 bits, which NumPy lacks
        array = tensor.float().numpy()
    return array


def _from_list(values: Sequence[Any]) -> NDArray[Any] | None:
    """Convert a list of numbers, or of equally long lists of numbers, such as boxes."""
    if not values or len(values) > LIST_ELEMENTS:
        return None
    lines: Sequence[Sequence[Any]] = [values]
    if all(type(value) in (list, tuple) for value in values):
        lines = values
        if len({len(line) for line in lines}) != 1 or len(values) * len(lines[0]) > LIST_ELEMENTS or not lines[0]:
            return None
    if not all(type(value) in (int, float, bool) for line in lines for value in line):
        return None
    try:
        return np.asarray(values)
    except OverflowError:
        return None


def numbers(array: NDArray[Any], limit: int) -> NDArray[np.float64] | None:
    """Return the elements as floats, or a regular subset of them; None if they are not numbers.

    Args:
        array: Any array.
        limit: Maximum number of elements.
    """
    if array.dtype.kind in "OSUMm" or array.dtype.names is not None:
        return None
    part = thinned(array, limit)
    with np.errstate(all="ignore"):
        if part.dtype.kind == "c":
            part = np.abs(part)
        try:
            values: NDArray[np.float64] = part.astype(np.float64).reshape(-1)
        except (TypeError, ValueError):  # an untyped block of memory
            return None
    return values


def thinned(array: NDArray[Any], limit: int) -> NDArray[Any]:
    """Return every k-th element along the long axes, at most about `limit` in total. No element is copied."""
    while array.size > limit:
        axis = int(np.argmax(array.shape))
        step = min(array.shape[axis], max(2, array.size // limit)) if array.ndim == 1 else 2
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    return array


def facts_of(array: NDArray[Any]) -> dict[str, float]:
    """Return mean, minimum and maximum of the finite numbers of an array, or of a regular subset of a large one."""
    values = numbers(array, CARD_ELEMENTS)
    if values is None:
        return {}
    finite = values[np.isfinite(values)]
    if not finite.size:
        return {}
    low, high = float(finite.min()), float(finite.max())
    scale = max(abs(low), abs(high)) or 1.0
    with np.errstate(all="ignore"):
        mean = min(max(float(np.mean(finite / scale)) * scale, low), high)
    return {"mean": mean, "min": low, "max": high}


class Extremes(NamedTuple):
    """Properties of all elements of an array."""

    constant: bool
    """Whether all elements are equal."""
    finite: bool
    """Whether no element is NaN or infinite."""


def extremes(array: NDArray[Any]) -> Extremes | None:
    """See `Extremes`; None if the array is empty or not numeric. Nothing is copied for real numbers."""
    if array.dtype.kind not in "biufc" or not array.size:
        return None
    if array.dtype.kind == "c":
        return Extremes(bool((array == array.reshape(-1)[0]).all()), bool(np.isfinite(array).all()))
    with np.errstate(all="ignore"):
        low, high = array.min(), array.max()  # NaN if there is one
    finite = array.dtype.kind != "f" or bool(np.isfinite(low) and np.isfinite(high))
    return Extremes(finite and bool(low == high), finite)


def content_of(array: NDArray[Any]) -> Iterator[bytes | memoryview]:
    """Yield the content of an array, for a digest: equal for equal elements, types and shapes."""
    yield f"{array.dtype.str} {array.shape}".encode()
    if array.dtype.kind in "biufc":
        yield np.ascontiguousarray(array).reshape(-1).data.cast("B") if array.size else b""
    elif not array.dtype.hasobject:
        yield array.tobytes()
    else:
        yield repr(array.tolist()).encode("utf-8", "surrogatepass")


def figures_of(array: NDArray[Any], limit: int = FULL_ELEMENTS) -> ArrayFigures | None:
    """Compute the figures of an array; None if its elements are not numbers.

    Args:
        array: Any array.
        limit: Maximum number of elements to read.
    """
    values = numbers(array, limit)
    if values is None:
        return None
    read = values.size
    if not read:
        return ArrayFigures(array.size, 0, None, None, None, 0.0, 0.0, ())
    finite = values[np.isfinite(values)]
    nan = float(np.count_nonzero(np.isnan(values))) / read
    inf = float(read - finite.size) / read - nan
    if not finite.size:
        return ArrayFigures(array.size, read, None, None, None, nan, max(0.0, inf), ())
    low, high = float(finite.min()), float(finite.max())
    with np.errstate(all="ignore"):
        scale = max(abs(low), abs(high)) or 1.0  # neither sums nor differences overflow
        mean = min(max(float(np.mean(finite / scale)) * scale, low), high)
        histogram = _histogram(finite, low, high)
    return ArrayFigures(array.size, read, low, high, mean, nan, max(0.0, inf), histogram)


def _histogram(finite: NDArray[np.float64], low: float, high: float) -> tuple[int, ...]:
    if low == high:
        return ()
    if high - low < BINS and (finite == np.rint(finite)).all():
        return tuple(np.bincount((finite - low).astype(np.int64)).tolist())
    bins = np.clip((unit_range(finite, low, high) * BINS).astype(np.int64), 0, BINS - 1)
    return tuple(np.bincount(bins, minlength=BINS).tolist())


def unit_range(values: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """Map values from [low, high] to [0, 1] without overflow; NaN and -Inf become 0, and Inf becomes 1."""
    with np.errstate(all="ignore"):
        half = high / 2 - low / 2
        mapped = (values.astype(np.float64) / 2 - low / 2) / half if half else np.zeros(values.shape)
    return np.clip(np.nan_to_num(mapped, nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1.0)


def envelope(values: NDArray[Any], points: int) -> list[tuple[float, float]]:
    """Reduce a signal to a few points: minimum and maximum of each section, scaled to 0 to 1.

    Args:
        values: A one-dimensional array.
        points: Maximum number of sections.
    """
    read = numbers(values, 1 << 22)
    if read is None or not read.size:
        return []
    finite = read[np.isfinite(read)]
    if not finite.size:
        return []
    low, high = float(finite.min()), float(finite.max())
    scaled = unit_range(read, low, high) if low < high else np.full(read.size, 0.5)
    count = min(points, scaled.size)
    starts = (np.arange(count) * scaled.size) // count
    least, greatest = np.minimum.reduceat(scaled, starts), np.maximum.reduceat(scaled, starts)
    return [(round(float(a), 3), round(float(b), 3)) for a, b in zip(least, greatest, strict=True)]
