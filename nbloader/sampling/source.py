"""Batches from a source: a function that gives what to make next, as DI-engine's `data_source`.

    source(batch_size), on a thread of its own -> shelf: one batch ahead -> dispatch -> worker: call what is callable

The thread asks the source again when the loader has taken what it gave, so the loader's window reaches the source: it
is never more than two batches ahead of what was dispatched.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Item:
    """What a source gave for one sample: a function that makes it, or the sample itself."""

    __slots__ = ("number", "value")

    def __init__(self, number: int, value: Any) -> None:
        self.number = number
        self.value = value

    def __repr__(self) -> str:
        """How errors and records name it: the items of an epoch are counted."""
        return str(self.number)


def numbers(items: list[Any]) -> list[Any]:
    """The numbers of a batch's items."""
    return [item.number if isinstance(item, Item) else item for item in items]


class Made:
    """The dataset of a loader over a source: makes the samples of items."""

    def __getitem__(self, item: Item) -> Any:
        """The sample."""
        return item.value() if callable(item.value) else item.value


class Source:
    """The batch sampler of a loader over a source.

    Args:
        source: Called with `batch_size`; gives a list of functions to be called in workers, of ready samples, or of
            both. Raises StopIteration at its end.
        batch_size: Samples a batch.
    """

    def __init__(self, source: Callable[[int], Sequence[Any]], batch_size: int) -> None:
        self.source = source
        self.batch_size = batch_size
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()

    def __iter__(self) -> Reader:
        """Begin to ask the source."""
        reader = Reader(self.source, self.batch_size)
        self._readers.add(reader)
        return reader

    def close(self) -> None:
        """Ask no more, for whichever iterator. A call that is under way cannot be ended."""
        for reader in list(self._readers):
            reader.close()


class Reader(Iterator[list[Item]]):
    """Asks a source, on a thread of its own."""

    def __init__(self, source: Callable[[int], Sequence[Any]], batch_size: int) -> None:
        self._shelf = shelf = _Shelf()
        self._numbered = 0
        weakref.finalize(self, shelf.stop).atexit = False
        self._thread = threading.Thread(
            target=_read, args=(shelf, source, batch_size), name="nbloader-source", daemon=True
        )
        self._thread.start()

    def when_ready(self, call: Callable[[], object]) -> None:
        """Have `call` called, on the reader's thread, whenever there is something new."""
        self._shelf.call = call

    def ready(self) -> int:
        """Batches (or the end) that can be taken without waiting."""
        return 1 if self._shelf.over else len(self._shelf.given)

    def __next__(self) -> list[Item]:
        """The next batch's items; waits for them.

        Raises:
            StopIteration: The source has ended.
            Exception: What the source raised.
        """
        given = self._shelf.take()
        if given is None or isinstance(given, StopIteration):
            raise StopIteration
        if isinstance(given, Exception):
            raise given
        first, self._numbered = self._numbered, self._numbered + len(given)
        return [Item(first + i, value) for i, value in enumerate(given)]

    def close(self) -> None:
        """Ask no more."""
        self._shelf.stop()


class _Shelf:
    """Where the thread puts what the source gave; it holds one batch."""

    def __init__(self) -> None:
        self.given: deque[Sequence[Any] | Exception] = deque()
        self.over = False
        """Whether the end was taken."""
        self.call: Callable[[], object] | None = None
        self._changed = threading.Condition()
        self._stopped = False

    def put(self, given: Sequence[Any] | Exception) -> bool:
        """Put something there; waits for room. Whether more is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not self.given)
            self.given.append(given)
            self._changed.notify_all()
        call = self.call
        if call is not None:
            call()
        return not self._stopped

    def take(self) -> Sequence[Any] | Exception | None:
        """Take it; waits. What ended the source is given once (its traceback holds whoever raises it), then None."""
        with self._changed:
            self._changed.wait_for(lambda: self.given or self.over)
            given = self.given.popleft() if self.given else None
            self.over = self.over or isinstance(given, Exception)
            self._changed.notify_all()
            return given

    def stop(self) -> None:
        """Want no more."""
        self._stopped = True
        with self._changed:
            self._changed.notify_all()
        call, self.call = self.call, None
        if call is not None:
            call()


def _read(shelf: _Shelf, source: Callable[[int], Sequence[Any]], batch_size: int) -> None:
    wanted = True
    while wanted:
        given: Sequence[Any] | Exception
        try:
            given = _checked(source(batch_size), batch_size)
        except Exception as error:  # noqa: BLE001 - the user's source: raised in the loop, or its end
            given = error
        wanted = shelf.put(given) and not isinstance(given, Exception)


def _checked(given: Any, batch_size: int) -> Sequence[Any]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not given:
        raise TypeError(
            f"the source must give a list of functions or samples when it is called with batch_size={batch_size}, or "
            f"raise StopIteration at its end; it gave {given!r}"
        )
    return given
