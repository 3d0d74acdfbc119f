"""Batches from a source: a function that returns what to process next, like DI-engine's `data_source`.

    source(batch_size), on its own thread -> one batch is buffered -> dispatched -> a worker calls what is callable

The thread calls the source again when the loader has taken the buffered batch. So the prefetch window applies
backpressure to the source, which is never more than two batches ahead of what was dispatched.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nbloader.errors import NbloaderError
from nbloader.events.failures import thread_message


class Item:
    """What a source returned for one sample: a function that produces the sample, or the sample itself."""

    __slots__ = ("number", "value")

    def __init__(self, number: int, value: Any) -> None:
        self.number = number
        """Number of the item within the epoch, from 0."""
        self.value = value

    def __repr__(self) -> str:
        """Return the number, which takes the place of a dataset index in errors and records."""
        return str(self.number)


def item_numbers(items: list[Any]) -> list[Any]:
    """Return the numbers of a batch's items."""
    return [item.number if isinstance(item, Item) else item for item in items]


class SourceDataset:
    """The dataset of a loader over a source: turns items into samples."""

    def __getitem__(self, item: Item) -> Any:
        """Produce the sample of an item."""
        return item.value() if callable(item.value) else item.value


class SourceSampler:
    """The batch sampler of a loader over a source.

    Args:
        source: Called with `batch_size`. Returns a list of functions that workers call, of samples, or of both. Raises
            StopIteration when it is exhausted.
        batch_size: Samples per batch.
    """

    def __init__(self, source: Callable[[int], Sequence[Any]], batch_size: int) -> None:
        self.source = source
        self.batch_size = batch_size
        self._readers: weakref.WeakSet[SourceReader] = weakref.WeakSet()

    def __iter__(self) -> SourceReader:
        """Start calling the source."""
        reader = SourceReader(self.source, self.batch_size)
        self._readers.add(reader)
        return reader

    def close(self) -> None:
        """Stop all readers. A call of the source that is in progress cannot be interrupted."""
        for reader in list(self._readers):
            reader.close()


class SourceReader(Iterator[list[Item]]):
    """Calls a source on its own thread, one batch ahead."""

    def __init__(self, source: Callable[[int], Sequence[Any]], batch_size: int) -> None:
        self._buffer = buffer = _Buffer()
        self._next_number = 0
        weakref.finalize(self, buffer.stop).atexit = False
        self._thread = threading.Thread(
            target=_read, args=(buffer, source, batch_size), name="nbloader-source", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            raise NbloaderError(thread_message("the thread that calls the source", error)) from error

    def when_ready(self, call: Callable[[], object]) -> None:
        """Register a function that the reader's thread calls whenever something is buffered; `close` calls it, too."""
        self._buffer.call = call

    def ready(self) -> int:
        """Return the number of batches that `next()` returns without blocking. The end counts as one."""
        return 1 if self._buffer.over else len(self._buffer.items)

    def __next__(self) -> list[Item]:
        """Return the items of the next batch. Blocks until the source has returned them.

        Raises:
            StopIteration: The source is exhausted.
            Exception: Whatever the source raised.
        """
        values = self._buffer.take()
        if values is None or isinstance(values, StopIteration):
            raise StopIteration
        if isinstance(values, Exception):
            raise values
        first, self._next_number = self._next_number, self._next_number + len(values)
        return [Item(first + i, value) for i, value in enumerate(values)]

    def close(self) -> None:
        """Stop calling the source."""
        self._buffer.stop()


class _Buffer:
    """Passes the results of the source from its thread to the consumer. Holds one batch."""

    def __init__(self) -> None:
        self.items: deque[Sequence[Any] | Exception] = deque()
        self.over = False
        """Whether the consumer has taken the exception that ended the source."""
        self.call: Callable[[], object] | None = None
        self._changed = threading.Condition()
        self._stopped = False

    def put(self, values: Sequence[Any] | Exception) -> bool:
        """Add a batch or the exception that ended the source; block while the buffer is full.

        Returns:
            Whether to continue.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not self.items)
            self.items.append(values)
            self._changed.notify_all()
            if self.call is not None:  # with the lock held: it is not called after `stop` has returned
                self.call()
        return not self._stopped

    def take(self) -> Sequence[Any] | Exception | None:
        """Take the oldest entry; block until there is one.

        The exception that ended the source is returned only once, because its traceback grows; after that, None is
        returned.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.items or self.over)
            values = self.items.popleft() if self.items else None
            self.over = self.over or isinstance(values, Exception)
            self._changed.notify_all()
            return values

    def stop(self) -> None:
        """End the thread, and wake all threads that wait for the buffer."""
        self._stopped = True
        with self._changed:  # the lock is reentrant: a finalizer may call `stop` at any moment
            self._changed.notify_all()
            call, self.call = self.call, None
            if call is not None:
                call()


def _read(buffer: _Buffer, source: Callable[[int], Sequence[Any]], batch_size: int) -> None:
    wanted = True
    while wanted:
        values: Sequence[Any] | Exception
        try:
            values = _checked(source(batch_size), batch_size)
        except Exception as error:  # noqa: BLE001 - code of the user's source: raised in the loop, or its end
            values = error
        wanted = buffer.put(values) and not isinstance(values, Exception)


def _checked(values: Any, batch_size: int) -> Sequence[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
        raise TypeError(
            f"the source must return a list of functions or samples when it is called with batch_size={batch_size}, or "
            f"raise StopIteration at its end. It returned {values!r}"
        )
    return values
