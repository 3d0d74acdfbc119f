"""The indices of a batch on their way to a worker process.

The message of a task must not contain objects of user's classes: unpickling one may raise or hang, and then the worker
would not know which batch it belongs to. Such indices travel as bytes, which the worker unpickles when it produces the
batch, so that an error is an error of that batch.
"""

from __future__ import annotations

import pickle
from typing import Any

from nbloader.batch.pickling import CodePickler, NamePickler, dump
from nbloader.errors import DatasetTransferError
from nbloader.sampling.index_arrays import DrawnIndices, IndexArray
from nbloader.sampling.shard_plan import Ticket

_STANDARD = {int, str, bool, float, bytes, Ticket, IndexArray}
"""Types of indices that the standard pickle handles, and whose unpickling cannot fail."""


class PickledIndices:
    """Indices that a worker unpickles when it produces the batch.

    Args:
        data: The pickle.
        types: Names of the types of the indices.
    """

    __slots__ = ("_loaded", "data", "types")

    def __init__(self, data: bytes, types: str) -> None:
        self.data = data
        self.types = types
        self._loaded: list[Any] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the bytes."""
        return PickledIndices, (self.data, self.types)

    def load(self) -> Any:
        """Unpickle the indices, once.

        Raises:
            DatasetTransferError: The code of their class has raised an exception, which is the cause.
        """
        if not self._loaded:
            try:
                self._loaded.append(pickle.loads(self.data))
            except Exception as error:
                raise DatasetTransferError(
                    f"the indices of the batch, of type {self.types}, were pickled, but cannot be unpickled in the "
                    f"worker: {type(error).__name__}: {error}. Let the sampler yield integers, strings or tuples, or "
                    "give the class a __reduce__ with which pickle.loads(pickle.dumps(index)) works in a new process"
                ) from error
        return self._loaded[0]


def pack_indices(indices: Any, *, by_name: bool = False) -> Any:
    """Return the indices of a batch as they are sent to a worker process: themselves, or `PickledIndices`.

    Args:
        indices: The indices.
        by_name: Whether classes that are defined in the notebook exist in the worker. Otherwise they are pickled by
            value.

    Raises:
        Exception: Whatever pickling raises.
    """
    if type(indices) is DrawnIndices:
        standard = indices.standard
    elif type(indices) is PickledIndices:
        standard = True
    else:
        standard = _STANDARD.issuperset(map(type, indices if type(indices) is list else (indices,)))
    if standard:
        return indices
    return PickledIndices(dump(indices, None, NamePickler if by_name else CodePickler), _names(indices))


def load_indices(indices: Any) -> Any:
    """Undo `pack_indices`.

    Raises:
        DatasetTransferError: See `PickledIndices.load`.
    """
    return indices.load() if type(indices) is PickledIndices else indices


def _names(indices: Any) -> str:
    """Return the names of the types of indices."""
    if type(indices) is DrawnIndices:
        return type(indices.drawn).__name__
    items = indices if isinstance(indices, (list, tuple)) else (indices,)
    return " or ".join(sorted({type(index).__name__ for index in items}))
