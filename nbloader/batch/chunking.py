"""One batch in pieces that several workers make at once (`chunk_size`, as DI-engine's).

    batch -> Whole.cut() -> pieces: dispatched, made, retried as batches are -> join() -> one batch, in order

The workers write their pieces side by side into one segment where they know how the batch is laid out (placing.py);
else the loop joins them with a copy when it takes the batch.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple

import numpy as np
import torch

from nbloader.batch.chunk_writer import Place
from nbloader.batch.task import Whole
from nbloader.events.failures import Failure, Given, Nothing


class Cut(NamedTuple):
    """How batches are cut."""

    size: int
    """Samples of a piece."""
    collate_fn: Callable[[list[Any]], Any] | None
    """Makes a batch of all its samples, where pieces are lists of samples; None where they are collated already."""


def check_chunk(chunk_size: Any, *, batch_size: int | None, batch_sampler: Any, iterable: bool) -> int | None:
    """The samples of a piece; None where batches are not cut.

    Raises:
        TypeError: It is no int.
        ValueError: It does not divide the batch size, or there are no batches to cut.
    """
    if chunk_size is None:
        return None
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int):
        raise TypeError(f"chunk_size must be an int or None, not {type(chunk_size).__name__}: {chunk_size!r}")
    if iterable:
        raise ValueError(f"chunk_size={chunk_size} and an iterable dataset are mutually exclusive: it has no indices")
    if batch_size is None and batch_sampler is None:
        raise ValueError(f"chunk_size={chunk_size} needs a batch to cut: batch_size=None makes none")
    if chunk_size <= 0:
        raise ValueError(f"chunk_size must be a positive number of samples, not {chunk_size}")
    if batch_size is not None and batch_size % chunk_size:
        raise ValueError(f"chunk_size must divide batch_size={batch_size}, and chunk_size={chunk_size} does not")
    return chunk_size if chunk_size != batch_size else None


def join(whole: Whole[Any], collate_fn: Callable[[list[Any]], Any] | None) -> JoinedParcel | Failure | Given | Nothing:
    """One outcome of those of all pieces: the first error where there is one, and nothing where all are."""
    parts = whole.results()
    for piece, part in zip(whole.pieces, parts, strict=True):
        if isinstance(part, (Failure, Given)):
            for other in parts:
                other.discard()
            if whole.place is not None:
                whole.place.give_back()
            if isinstance(part, Given) or part.position < 0:
                return part
            return dataclasses.replace(part, position=whole.start(piece) + part.position)
    left = [(whole.start(piece), part) for piece, part in zip(whole.pieces, parts, strict=True) if _is_some(part)]
    if left:
        return JoinedParcel(left, collate_fn, whole.place, complete=len(left) == len(parts))
    if whole.place is not None:
        whole.place.give_back()
    return Nothing()


def _is_some(part: Any) -> bool:
    return not isinstance(part, Nothing)


class JoinedParcel:
    """A batch of pieces, in the shape of `reports.Parcel`.

    Args:
        parts: Position of the first sample and parcel, of each piece.
        collate_fn: As `Cut.collate_fn`.
        place: Where workers wrote it side by side; None where each wrote into memory of its own.
        complete: Whether there is a parcel of each piece.
    """

    __slots__ = (
        "_batch",
        "_collate_fn",
        "_complete",
        "_parcels",
        "_place",
        "_starts",
        "header",
        "pid",
        "received",
        "transport",
        "worker",
    )

    def __init__(
        self,
        parts: list[tuple[int, Any]],
        collate_fn: Callable[[list[Any]], Any] | None,
        place: Place | None,
        *,
        complete: bool,
    ) -> None:
        self._starts = [start for start, _parcel in parts]
        self._parcels = [parcel for _start, parcel in parts]
        self._collate_fn = collate_fn
        self._place = place
        self._complete = complete
        self._batch: Any = None
        headers = [parcel.header for parcel in self._parcels]
        start, slowest = max(parts, key=lambda part: part[1].header[13])
        run, number, layout, segment = headers[0][:4]
        nbytes, extras, samples, fetch_cpu, collate_cpu = (sum(h[i] for h in headers) for i in (4, 5, 6, 10, 11))
        position = slowest.header[12]
        self.header = (
            run, number, layout, segment, nbytes, extras, samples, min(h[7] for h in headers),
            max(h[8] for h in headers), max(h[9] for h in headers), fetch_cpu, collate_cpu,
            start + position if position >= 0 else -1, slowest.header[13],
        )  # fmt: skip
        last = max(self._parcels, key=lambda parcel: parcel.header[9])
        self.worker = last.worker
        """Who made the piece that was ready last; so with `pid`."""
        self.pid = last.pid
        self.received = max(parcel.received for parcel in self._parcels)
        self.transport = last.transport

    @property
    def mapping(self) -> Any:
        """The whole segment in which it lies once it is open; None where it was joined with a copy."""
        return None if self._place is None else self._place.mapping

    def open(self) -> Any:
        """The batch."""
        if self._parcels:
            self._batch = self._join()
            self._parcels = []
        return self._batch

    def _join(self) -> Any:
        if self._place is not None and all(parcel.placed for parcel in self._parcels) and self._complete:
            return self._place.open(self._parcels)
        parts = [
            self._place.read(parcel, start) if parcel.placed and self._place is not None else parcel.open()
            for start, parcel in zip(self._starts, self._parcels, strict=True)
        ]
        batch = merge(parts) if self._collate_fn is None else self._collate_fn(list(itertools.chain(*parts)))
        if self._place is not None:
            self._place.give_back()
        return batch

    def discard(self) -> None:
        """Nobody wants it: its memory goes back."""
        for parcel in self._parcels:
            parcel.discard()
        if self._place is not None and self._parcels:
            self._place.give_back()


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
