"""Vectors of samples: a map in two dimensions, and the most similar samples."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nbloader.explorer.values import as_array

Method: TypeAlias = Literal["pca", "umap"]
MAX_FITTED = 20_000
"""Maximum number of samples from which the principal components are computed."""
MAX_DIMENSIONS = 4096
"""Maximum length of a vector."""


class Embedding:
    """Vectors of samples.

    Args:
        indices: Dataset indices, ascending.
        vectors: A vector for each of them.
    """

    def __init__(self, indices: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        self.indices = indices
        """Dataset indices of the samples, ascending."""
        self.vectors = vectors
        self.name = "map"
        """Name of its map: columns of its places begin with it."""
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._directions = vectors / np.where(lengths > 0, lengths, 1)

    @classmethod
    def of(cls, values: Any, total: int) -> Embedding:
        """Create an embedding.

        Args:
            values: An array or a tensor with a vector for each sample, or a dict of vectors by dataset index.
            total: Number of samples.

        Raises:
            ValueError: There is another number of vectors than samples, an index is out of range, or vectors differ in
                length, are too long or not finite.
        """
        if isinstance(values, Mapping):
            indices = np.array(sorted(values), np.int64)
            listed = [np.ravel(_array(values[index])) for index in indices.tolist()]
            if len({len(vector) for vector in listed}) > 1:
                raise ValueError("the vectors of an embedding must have the same length")
            array = np.stack(listed) if listed else np.empty((0, 0))
        else:
            array = _array(values)
            if array.ndim < 2 or len(array) != total:
                raise ValueError(
                    f"an embedding needs a vector for each of the {total:,} samples, but its shape is {array.shape}. "
                    "For some samples only, pass a dict by dataset index."
                )
            indices, array = np.arange(total, dtype=np.int64), array.reshape(total, -1)
        if not len(indices) or indices[0] < 0 or indices[-1] >= total:
            raise ValueError(f"an embedding needs at least one vector, and its samples must be from 0 to {total - 1:,}")
        if array.shape[1] > MAX_DIMENSIONS:
            raise ValueError(
                f"the vectors of an embedding may have at most {MAX_DIMENSIONS} numbers, not {array.shape[1]:,}"
            )
        if not np.isfinite(array).all():
            raise ValueError("the vectors of an embedding must contain neither NaN nor infinity")
        return cls(indices, np.ascontiguousarray(array, np.float32))

    def places(self, method: Method | None) -> NDArray[np.float64]:
        """Return where each sample is on a map: x and y.

        Args:
            method: "pca" for the two principal components, "umap" for UMAP; None for UMAP if it is installed.

        Raises:
            ModuleNotFoundError: `method` is "umap", and umap-learn is not installed.
        """
        if self.vectors.shape[1] == 2:
            return self.vectors.astype(np.float64)
        if method == "umap" or (method is None and importlib.util.find_spec("umap") is not None):
            import umap

            found: NDArray[np.float64] = umap.UMAP(random_state=0).fit_transform(self.vectors)
            return found
        return _principal(self.vectors)

    def similar(self, index: int, count: int) -> dict[int, float]:
        """Return the most similar samples by the cosine of their vectors, by dataset index, the most similar first.

        Raises:
            KeyError: The sample has no vector.
        """
        at = int(np.searchsorted(self.indices, index))
        if at == len(self.indices) or self.indices[at] != index:
            raise KeyError(f"sample {index} has no vector")
        cosines = self._directions @ self._directions[at]
        cosines[at] = -np.inf
        count = min(count, len(cosines) - 1)
        best = np.argpartition(-cosines, count)[:count] if count < len(cosines) - 1 else np.arange(len(cosines))
        best = best[np.argsort(-cosines[best], kind="stable")][:count]
        return {int(self.indices[one]): float(cosines[one]) for one in best}


def _array(values: Any) -> NDArray[Any]:
    array = as_array(values)
    if array is None or array.dtype.kind not in "biuf":
        raise ValueError(f"an embedding must consist of vectors of numbers, not {type(values).__name__}")
    return array


def _principal(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the first two principal components, computed from some of many samples."""
    mean = vectors.mean(axis=0)
    some = vectors[:: max(1, -(-len(vectors) // MAX_FITTED))] - mean
    _values, axes = np.linalg.eigh((some.T @ some).astype(np.float64))
    found = (vectors - mean) @ axes[:, ::-1][:, :2].astype(np.float32)
    places = np.zeros((len(vectors), 2))
    places[:, : found.shape[1]] = found
    return places
