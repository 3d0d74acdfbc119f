"""Loads the first batches of the next epoch before the loop starts it: `refresh()`, `clean()` and `auto_reload`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbloader.engine.iterator import EpochIterator


class EpochPrefetch:
    """Holds at most one epoch that was started before it is iterated. It does not refer to the loader."""

    def __init__(self) -> None:
        self._epoch: EpochIterator[Any] | None = None

    @property
    def epoch(self) -> EpochIterator[Any] | None:
        """The epoch that was started; None if there is none."""
        return self._epoch

    def start(self, make_epoch: Callable[[], EpochIterator[Any]]) -> None:
        """Start the next epoch, unless it has been started already.

        Args:
            make_epoch: Creates the iterator of the epoch.
        """
        if self._epoch is None:
            self._epoch = make_epoch()
            self._epoch.prefetch()

    def take(self) -> EpochIterator[Any] | None:
        """Hand over the epoch that was started; None if there is none."""
        epoch, self._epoch = self._epoch, None
        return epoch

    def discard(self) -> None:
        """Drop the epoch that was started, if any, with what was loaded for it."""
        epoch = self.take()
        if epoch is not None:
            epoch.drop()
