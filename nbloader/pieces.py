"""One batch in pieces that several workers make at once (`chunk_size`, as DI-engine's): cut, and joined again.

A piece is dispatched, made, retried and put in order as a batch is. The loop joins the pieces with one copy.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch


def check_chunk(chunk_size: Any, *, batch_size: int | None, not_with: dict[str, bool]) -> int:
    """How many pieces a batch is cut in: 1 where `chunk_size` is None.

    Raises:
        TypeError: It is no int.
        ValueError: It does not divide the batch size, or goes together with an argument that it excludes.
    """
    if chunk_size is None:
        return 1
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int):
        raise TypeError(f"chunk_size must be an int or None, not {type(chunk_size).__name__}: {chunk_size!r}")
    if batch_size is None:
        raise ValueError(
            f"chunk_size={chunk_size} needs a batch_size: it is mutually exclusive with batch_sampler and with "
            "batch_size=None"
        )
    if chunk_size <= 0 or batch_size % chunk_size:
        raise ValueError(f"chunk_size must divide batch_size={batch_size}, and chunk_size={chunk_size} does not")
    for name, given in not_with.items():
        if given:
            raise ValueError(f"chunk_size={chunk_size} and {name} are mutually exclusive")
    return batch_size // chunk_size


def pieces_ahead(prefetch: int | None, pieces: int) -> int | None:
    """The window in pieces: a batch that is wanted is asked for as a whole."""
    return None if prefetch is None else max(1, prefetch) * pieces


class Cut:
    """A batch sampler that gives the batches of another in pieces.

    Args:
        batches: Gives lists of indices.
        chunk_size: Indices a piece.
    """

    def __init__(self, batches: Any, chunk_size: int) -> None:
        self.batches = batches
        self._chunk_size = chunk_size

    def __iter__(self) -> Iterator[list[Any]]:
        """One epoch's pieces."""
        for batch in self.batches:
            for start in range(0, len(batch), self._chunk_size):
                yield batch[start : start + self._chunk_size]


class Joined(Iterator[Any]):
    """An epoch of pieces as one of batches; at its end a batch may have fewer pieces.

    Args:
        epoch: Gives the pieces.
        pieces: Of a batch.
        collate_fn: Makes a batch of all its samples, where the pieces are lists of samples; None where they are
            collated already.
    """

    def __init__(self, epoch: Iterator[Any], pieces: int, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self._epoch = epoch
        self._pieces = pieces
        self._collate_fn = collate_fn
        self._parts: list[Any] = []
        self._error: Exception | None = None
        self._come = 0

    def __iter__(self) -> Joined:
        """Give the iterator itself."""
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: The epoch is over.
            Exception: As the epoch, once all pieces of the batch have come. The iteration can go on with the next.
        """
        while self._come < self._pieces:
            try:
                self._parts.append(next(self._epoch))
            except StopIteration:
                if not self._come:
                    raise
                break
            except Exception as raised:  # noqa: BLE001 - raised below, when the rest of the batch is out of the way
                self._error = self._error or raised
            self._come += 1
        parts, self._parts, self._come = self._parts, [], 0
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._collate_fn is not None:
            return self._collate_fn(list(itertools.chain.from_iterable(parts)))
        return merge(parts)


def merge(parts: list[Any]) -> Any:  # noqa: PLR0911 - one for each kind of container
    """One batch of collated pieces of it."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, Mapping):
        merged = {key: merge([part[key] for part in parts]) for key in first}
        if not isinstance(first, MutableMapping):
            return type(first)(merged)  # type: ignore[call-arg]
        clone = copy.copy(first)  # it may have more about it than its items
        clone.update(merged)
        return clone
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(merge, _columns(parts)))
    if isinstance(first, (list, tuple)):
        if not first or isinstance(first[0], (str, bytes)):
            return type(first)(itertools.chain.from_iterable(parts))
        return type(first)(map(merge, _columns(parts)))
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first) if field.init]
        return type(first)(**{name: merge([getattr(part, name) for part in parts]) for name in names})
    raise TypeError(f"pieces of batches that hold {type(first).__name__} cannot be joined: leave chunk_size out")


def _columns(parts: list[Iterable[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*parts, strict=True)]
