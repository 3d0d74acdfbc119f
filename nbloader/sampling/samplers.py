"""Orders beside torch's samplers: Gluon's samplers, batches that roll over to the next epoch, groups for devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

LAST_BATCH = ("keep", "discard", "rollover")


class IntervalSampler:
    """Indices at fixed intervals, as Gluon's: 0, 3, 6, ..., 1, 4, 7, ...

    Args:
        length: Samples there are.
        interval: Step from one index to the next.
        rollover: Whether to begin again at 1, 2, ... until every index has come; False stops after the first pass.

    Raises:
        ValueError: `interval` is not from 1 to `length`.
    """

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        if not 1 <= interval <= length:
            raise ValueError(f"interval must be from 1 to length={length}, not {interval!r}")
        self._length = length
        self._interval = interval
        self._rollover = rollover

    def __iter__(self) -> Iterator[int]:
        """One epoch's order."""
        for first in range(self._interval if self._rollover else 1):
            yield from range(first, self._length, self._interval)

    def __len__(self) -> int:
        """Samples an epoch."""
        return self._length if self._rollover else -(-self._length // self._interval)


class FilterSampler:
    """Indices of the samples that a function chooses, in order, as Gluon's. Every sample is looked at once, now.

    Args:
        fn: Called with each sample; those for which it gives something true are taken.
        dataset: Anything with `__len__` and `__getitem__`.
    """

    def __init__(self, fn: Callable[[Any], Any], dataset: Any) -> None:
        self._indices = [i for i in range(len(dataset)) if fn(dataset[i])]

    def __iter__(self) -> Iterator[int]:
        """One epoch's order."""
        return iter(self._indices)

    def __len__(self) -> int:
        """Samples an epoch."""
        return len(self._indices)


class FullBatches:
    """Batches of one size only: what is left over at the end is dropped, or opens the next epoch.

    An epoch that is not run to its end changes nothing about what the next one opens with.

    Args:
        sampler: Gives the indices.
        batch_size: Samples a batch.
        group: Batches that belong together, one for each device: only whole groups come.
        rollover: Whether what is left over opens the next epoch (Gluon's `last_batch="rollover"`).
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, *, group: int, rollover: bool) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = not rollover
        self._group = group
        self._carried: list[Any] = []
        self._left: list[Any] = []

    def __iter__(self) -> Iterator[list[Any]]:
        """One epoch's batches."""
        waiting = list(self._carried)
        whole = self.batch_size * self._group
        for index in self.sampler:
            waiting.append(index)
            if len(waiting) == whole:
                for start in range(0, whole, self.batch_size):
                    yield waiting[start : start + self.batch_size]
                waiting = []
        if not self.drop_last:
            self._left = waiting

    def __len__(self) -> int:
        """Batches of the epoch that is under way, or of the next one."""
        samples = len(self.sampler) + len(self._carried)  # type: ignore[arg-type]
        return samples // (self.batch_size * self._group) * self._group

    def epoch_over(self) -> None:
        """The consumer has come to the end of the epoch: what was left over opens the next one."""
        self._carried, self._left = self._left, []

    def state_dict(self) -> dict[str, Any]:
        """What the epoch under way opened with."""
        return {"carried": list(self._carried)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Open the next epoch as the one that `state_dict` was taken in."""
        self._carried = list(state["carried"])
