"""The iterator of an epoch for programs that have replaced methods of torch's iterator.

SpeechBrain wraps `__init__` to skip batches after a recovery; tracers wrap `__next__` or `_next_index`; others replace
`__next__` to change batches. Then the methods of torch's class are called as torch's own iterators call them:

    DataLoader._make_epoch() -> __init__(loader), _reset(loader)      draws nothing, starts nothing
    next(iterator)           -> __next__() -> _next_data()            the next batch of `EpochIterator`
    EpochPlan.take()         -> _next_index()                         indices from the epoch's plan
"""

from __future__ import annotations

import weakref
from typing import Any, NoReturn, TypeVar

from torch import Generator
from torch.utils.data.dataloader import _BaseDataLoaderIter

from nbloader.engine.iterator import EpochIterator, IteratorContext
from nbloader.engine.torch_names import IndexSampler, PlannedBatches, torchs_next
from nbloader.sampling.epoch_plan import EpochPlan

T_co = TypeVar("T_co", covariant=True)

_COPIED = {
    "_collate_fn": "collate_fn",
    "_drop_last": "drop_last",
    "_timeout": "timeout",
    "_auto_collation": "_auto_collation",
    "_persistent_workers": "persistent_workers",
}
"""Attributes that torch's `__init__` copies from attributes of the loader, and that have no effect here."""


class HookedEpochIterator(EpochIterator[T_co]):
    """Iterator over the batches of one epoch that runs the methods of torch's iterator, as programs have replaced them.

    Args:
        context: The objects and settings of the loader.
        epoch: Number of the epoch.
        plan: The batches of the epoch.
        loader: The loader.

    Raises:
        AttributeError: A program has changed an attribute that would have no effect.
        Exception: Whatever a program's method raises.
    """

    _num_yielded = 0  # torch's methods count
    _num_workers = 0

    def __init__(self, context: IteratorContext, epoch: int, plan: EpochPlan, loader: Any) -> None:
        self.plan = plan
        self._context = context
        self._planned = PlannedBatches(plan)
        self._sampler_of_epoch = IndexSampler(context.index_sampler, self._planned)
        self._torchs_next = torchs_next(loader.num_workers)
        self._run_torchs_init(loader)
        reference = weakref.ref(self)  # a reference cycle would keep an iterator that is no longer used
        plan.draw_with(lambda: _next_index(reference))
        super().__init__(context, epoch, plan)

    def _run_torchs_init(self, loader: Any) -> None:
        """Run `__init__` and `_reset` of torch's iterator. What torch itself draws there has no effect."""
        generator, vars(loader)["generator"] = loader.generator, Generator()
        self._in_torchs_init = True
        try:
            _BaseDataLoaderIter.__init__(self, loader)
            if loader.num_workers:
                _BaseDataLoaderIter._reset(self, loader, first_iter=True)
        finally:
            self._in_torchs_init = False
            vars(loader)["generator"] = generator
        for name, of_loader in _COPIED.items():
            value = getattr(loader, of_loader)
            if vars(self).get(name, value) is not value:
                self._refuse(name, f"change loader.{of_loader}, or create another loader")

    def _refuse(self, name: str, instead: str) -> NoReturn:
        raise AttributeError(
            f"a program has set {name!r} of torch's iterator, which has no effect on nbloader's iterator. Instead, "
            f"{instead}."
        )

    def __iter__(self) -> Any:
        """Run torch's method."""
        return _BaseDataLoaderIter.__iter__(self)

    def __next__(self) -> T_co:
        """Run torch's method, which calls `_next_data`."""
        return self._torchs_next(self)  # type: ignore[no-any-return]

    @property
    def _base_seed(self) -> int:
        """The epoch's base seed."""
        return self.plan.seed

    @_base_seed.setter
    def _base_seed(self, _value: int) -> None:
        if not self._in_torchs_init:  # torch's own draw, which was not from the loader's generator
            self._refuse("_base_seed", "pass a generator to the loader")

    @property
    def _index_sampler(self) -> Any:
        """See `EpochIterator`. Its iterator is the one that the epoch is drawn from."""
        return self._sampler_of_epoch

    @_index_sampler.setter
    def _index_sampler(self, value: Any) -> None:
        if value is not self._context.index_sampler and value is not self._sampler_of_epoch:
            self._refuse("_index_sampler", "pass the sampler to the loader")

    @property
    def _sampler_iter(self) -> PlannedBatches:
        """See `EpochIterator`."""
        return self._planned

    @_sampler_iter.setter
    def _sampler_iter(self, value: Any) -> None:
        if value is not self._planned:
            self._refuse("_sampler_iter", "pass a sampler to the loader, or take items from it to skip batches")


def _next_index(reference: weakref.ref[HookedEpochIterator[Any]]) -> Any:
    """Draw the indices of a batch as torch's iterator does, for an iterator that exists."""
    iterator: Any = reference()
    return iterator._next_index()
