"""The turn from one epoch to the next: the next one's first batches can be made before it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbloader.engine.iterator import EpochIterator
from nbloader.sampling.samplers import warn_if_exhausted

if TYPE_CHECKING:
    from nbloader.engine.engine import Engine
    from nbloader.engine.inline_engine import LocalEngine


class Turns:
    """The part of `DataLoader` that begins epochs."""

    persistent_workers: bool
    dataset: Any
    sampler: Any
    batch_sampler: Any
    _engine: Engine | LocalEngine
    _auto_reload: bool
    _iterations: int
    _ahead: EpochIterator[Any] | None
    """An epoch that nobody has asked for yet. It does not refer to the loader."""

    def refresh(self) -> None:
        """Begin to make the first batches of the next epoch now, as Gluon's loader does.

        The next `iter(loader)` takes them. What its order depends on (samplers, generators, the seed) is drawn now.
        Without anybody to make batches ahead (`num_workers=0`, `prefetch=0`) nothing happens.

        Raises:
            LoaderClosedError: After `close()`.
        """
        self._check_open()
        if self._ahead is None and self._engine.ahead:
            self._ahead = self._make_epoch()
            self._ahead.prefetch()

    def clean(self) -> None:
        """Drop what `refresh()` or `auto_reload` has begun, as Gluon's loader does."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.drop()

    def _take_ahead(self) -> EpochIterator[Any] | None:
        """The epoch that was begun ahead, if it still holds: a changed dataset must be seen."""
        if self._ahead is None:
            return None
        if not self.persistent_workers and self._load():
            self.clean()
            self._engine.replace_all()
        ahead, self._ahead = self._ahead, None
        return ahead

    def _epoch_over(self, empty: bool) -> None:
        """An epoch was iterated to its end.

        Args:
            empty: Whether it had no batch.
        """
        over = getattr(self.batch_sampler, "epoch_over", None)
        if over is not None:
            over()
        if self._auto_reload and not self._engine.closed:
            self.refresh()
        if empty:
            warn_if_exhausted(
                dataset=self.dataset, sampler=self.sampler, batch_sampler=self.batch_sampler, stacklevel=7
            )

    def _make_epoch(self) -> EpochIterator[Any]:
        raise NotImplementedError

    def _load(self) -> bool:
        raise NotImplementedError

    def _check_open(self) -> None:
        raise NotImplementedError
