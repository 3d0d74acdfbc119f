"""The normalization that a dataset applies to pictures: found in its transforms, and undone when they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbloader.explorer import pictures

DEPTH = 8
"""Maximum depth of nested transforms."""
PARTS = 200
"""Maximum number of objects that are examined."""
ATTRIBUTES = ("transform", "augment", "preprocess", "processor", "normal")
"""Words in the names of dataset attributes that may hold transforms."""
TOLERANCE = 0.01
"""How far rounding may move a picture outside the range from 0 to 1."""


class Normalization(NamedTuple):
    """What was subtracted from the channels, and what they were then divided by."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, mean: Any, std: Any) -> Normalization | None:
        """Create a normalization from numbers, or from one number per channel; None if they are not valid.

        Args:
            mean: A number, a list, an array or a tensor.
            std: Likewise.
        """
        try:
            means, stds = (tuple(np.asarray(part, np.float64).reshape(-1).tolist()) for part in (mean, std))
        except (TypeError, ValueError):
            return None
        usable = len(means) == len(stds) > 0 and all(stds) and np.isfinite([*means, *stds]).all()
        return cls(means, stds) if usable else None

    def __str__(self) -> str:
        """One line."""
        mean, std = (", ".join(f"{value:.3g}" for value in part) for part in self)
        return f"mean {mean}, standard deviation {std}"

    def undone(self, array: NDArray[Any], layout: pictures.Layout) -> NDArray[np.float32] | None:
        """Return a picture as before normalization, with the channels last; None if it cannot have been normalized.

        Args:
            array: The picture.
            layout: Layout of its axes.
        """
        pixels = pictures.rows_columns(array, layout)
        if pixels.dtype.kind != "f" or len(self.mean) not in (1, pixels.shape[2]):
            return None
        with np.errstate(all="ignore"):
            values = pixels.astype(np.float32)
            values *= np.array(self.std, np.float32)
            values += np.array(self.mean, np.float32)
            low, high = float(values.min(initial=1.0)), float(values.max(initial=0.0))
        if low >= -TOLERANCE and high <= 1 + TOLERANCE:
            np.clip(values, 0, 1, out=values)
        return values


def declared(dataset: Any) -> Normalization | None:
    """Find the normalization in a dataset's transforms: of torchvision, albumentations or a transformers processor.

    Args:
        dataset: Any dataset; for a `Subset`, the inner dataset is searched, too.
    """
    for part in _parts(dataset):
        if "normalize" in type(part).__name__.lower():
            found = Normalization.of(getattr(part, "mean", None), getattr(part, "std", None))
        else:
            found = Normalization.of(getattr(part, "image_mean", None), getattr(part, "image_std", None))
        if found is not None:
            return found
    return None


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield the transforms of a dataset, including nested ones."""
    waiting = [(dataset, 0)]
    seen: set[int] = set()
    while waiting and len(seen) < PARTS:
        part, depth = waiting.pop(0)
        if id(part) in seen or depth > DEPTH:
            continue
        seen.add(id(part))
        if depth:
            yield part
        if isinstance(part, (list, tuple)):
            waiting += [(inner, depth + 1) for inner in part[:PARTS]]
            continue
        attributes = {**getattr(part, "__dict__", {}), **getattr(part, "__dict__", {}).get("_modules", {})}
        for name, value in attributes.items():
            inside = not depth and name == "dataset"
            named = depth and (name in ("transforms", "transform", "fn", "func") or name.isdigit())
            if inside:
                waiting.append((value, 0))
            elif named or any(word in name.lower() for word in ATTRIBUTES):
                waiting.append((value, depth + 1))
