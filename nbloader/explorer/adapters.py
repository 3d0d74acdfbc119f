"""Map-style datasets over what is none: an iterable, or a mapping of columns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class EndOfStreamError(Exception):
    """The stream ends before the requested sample.

    Args:
        length: Number of samples in the stream.
    """

    def __init__(self, length: int) -> None:
        super().__init__(f"the stream has {length:,} samples")
        self.length = length


class Stream:
    """Gives access to an iterable's samples by position.

    Samples are read up to the last requested position, and kept. The rest is not read.

    Args:
        samples: Iterated once, in the explorer's worker, as far as samples are requested.
        limit: Maximum number of samples that are kept.
    """

    def __init__(self, samples: Iterable[Any], limit: int) -> None:
        self._samples = samples
        self._limit = limit
        self._iterator: Iterator[Any] | None = None
        self._seen: list[Any] = []
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of samples that can be requested while the end is not known."""
        return self._limit

    def __getitem__(self, index: int) -> Any:
        """Return the sample at a position.

        Raises:
            EndOfStreamError: The stream ends before this position.
            Exception: Whatever the iterator raised at this position.
        """
        with self._lock:
            if self._iterator is None:
                self._iterator = iter(self._samples)
            while len(self._seen) <= index:
                if self._error is not None:
                    if index == len(self._seen) and not isinstance(self._error, StopIteration):
                        raise self._error  # raised again: a sample can be requested more than once
                    raise EndOfStreamError(len(self._seen) + (not isinstance(self._error, StopIteration)))
                try:
                    self._seen.append(next(self._iterator))
                except StopIteration as error:
                    self._error = error
                    raise EndOfStreamError(len(self._seen)) from None
                except Exception as error:
                    self._error = error
                    raise
            return self._seen[index]


class Adapted:
    """A map-style dataset whose samples are returned by a function; it adapts a dict of columns, for example.

    Args:
        length: Number of samples.
        getter: Returns the sample at an index.
    """

    def __init__(self, length: int, getter: Callable[[int], Any]) -> None:
        self._length = length
        self._getter = getter

    def __len__(self) -> int:
        """Number of samples."""
        return self._length

    def __getitem__(self, index: int) -> Any:
        """Return the sample at an index."""
        return self._getter(index)
