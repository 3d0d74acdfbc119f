"""The reorder buffer: items arrive in any order and leave in the order of their numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """Holds numbered items until every earlier one has arrived. Then `put` or `skip` returns them.

    Args:
        in_order: False lets items leave in the order of their arrival (torch's `in_order=False`).
        first: Number of the first item.
    """

    __slots__ = ("_early", "_gaps", "_next", "_seen_early", "in_order")

    def __init__(self, *, in_order: bool = True, first: int = 0) -> None:
        self.in_order = in_order
        self._next = first
        self._early: dict[int, T] = {}
        self._gaps: set[int] = set()  # numbers above `_next` that have no item
        self._seen_early: set[int] = set()  # only if not in order: numbers at or above `_next` that have arrived

    @property
    def missing(self) -> int:
        """The lowest number that has not arrived."""
        return self._next

    @property
    def reordering(self) -> int:
        """Items that have arrived and wait for an earlier one."""
        return len(self._early)

    def has(self, number: int) -> bool:
        """Whether the item of this number has arrived or was skipped, even if it has left since."""
        return number < self._next or number in self._early or number in self._seen_early or number in self._gaps

    def put(self, number: int, item: T) -> list[T]:
        """Accept an item.

        Returns:
            The items that leave, in order; empty while an earlier one is missing.

        Raises:
            ValueError: This number has arrived before.
        """
        if self.has(number):
            raise ValueError(f"item {number} has arrived before; the first missing one is {self._next}")
        if not self.in_order:
            self._see(number)
            return [item]
        if number != self._next:
            self._early[number] = item
            return []
        freed = [item]
        self._next += 1
        while self._early and self._next in self._early:
            freed.append(self._early.pop(self._next))
            self._next += 1
        return freed if not self._gaps else freed + self._pass_gaps()

    def skip(self, number: int) -> list[T]:
        """Skip a number for which there is no item, so that later items do not wait for it.

        Returns:
            The items that leave, in order.

        Raises:
            ValueError: This number has arrived before.
        """
        if self.has(number):
            raise ValueError(f"item {number} has arrived before; the first missing one is {self._next}")
        if not self.in_order:
            self._see(number)
            return []
        self._gaps.add(number)
        return self._pass_gaps()

    def _pass_gaps(self) -> list[T]:
        freed = []
        while self._next in self._gaps or self._next in self._early:
            if self._next in self._early:
                freed.append(self._early.pop(self._next))
            self._gaps.discard(self._next)
            self._next += 1
        return freed

    def _see(self, number: int) -> None:
        self._seen_early.add(number)
        while self._next in self._seen_early:
            self._seen_early.remove(self._next)
            self._next += 1

    def peek_early(self, count: int) -> list[T]:
        """Return at most `count` of the items that wait for an earlier one, without taking them."""
        return list(itertools.islice(self._early.values(), count))

    def drain(self) -> list[T]:
        """Remove and return the items that wait for an earlier one, so that their memory can be released."""
        out = list(self._early.values())
        self._early.clear()
        return out

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget that these items have arrived: they were discarded and will arrive again."""
        again = set(numbers)
        first = min(again, default=self._next)
        if first < self._next:
            passed = range(first, self._next)
            if self.in_order:
                self._gaps.update(number for number in passed if number not in again)
            else:
                self._seen_early.update(passed)
            self._next = first
        self._seen_early -= again
