"""All samples, produced once: for samples that are the same in each epoch and fit into memory."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from nbloader._util import rng
from nbloader._util.format import megabytes
from nbloader.remedies.difference import difference
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.trial import Cost, Kept, Measured, timed

log = logging.getLogger(__name__)

NAME = "all-samples"
SHORT = "Make all samples once, before the first epoch"
CODE = """\
import torch
from torch.utils.data import TensorDataset

# once, before the loader is made:
batches = DataLoader(dataset, batch_size=256, num_workers=2)
dataset = TensorDataset(*map(torch.cat, zip(*batches)))
"""
SEEDS = 1, 2


def proposal(nbytes: float) -> Proposal:
    """Return what to write.

    Args:
        nbytes: Memory that all samples take, bytes.
    """
    return Proposal(
        why="Each sample is the same in each epoch, and all of them fit into memory.",
        instead=(
            f"Make them once, as tensors, which take {megabytes(nbytes)}: nbloader then takes a batch with one call "
            "for each tensor. That lasts about as long as an epoch. Later changes of files or code are not noticed."
        ),
        helper=CODE,
        must_be_equal=True,
        short=SHORT,
    )


@dataclass(frozen=True)
class AllSamples:
    """A dataset with one item: what some samples take, and what they take as rows of tensors. See `Trial`.

    Args:
        produce: Makes a batch from dataset indices, as the loader would, with torch's collate function.
        indices: The dataset indices on which to try.
    """

    produce: Callable[[Any], Any]
    indices: Sequence[Any]

    def __len__(self) -> int:
        """Return 1."""
        return 1

    def __getitem__(self, position: int) -> Measured | None:
        """Measure. Return None if samples depend on random numbers, differ in shape, or are no tuples of tensors."""
        if position:
            raise IndexError(position)
        with warnings.catch_warnings():  # of the user's code, which its own epochs show
            warnings.simplefilter("ignore")
            try:
                return self._measure()
            except Exception:  # of the user's code, which its own epochs show
                log.debug("all samples could not be made once", exc_info=True)
                return None

    def _measure(self) -> Measured | None:
        first, second = SEEDS
        rng.seed_everything(first)
        columns = self.produce(self.indices)
        if type(columns) is not list or not all(type(column) is torch.Tensor for column in columns):
            return None
        rng.seed_everything(second)
        usual = timed(self.produce, self.indices)
        rows = TensorDataset(*columns)
        apart = difference(usual.batch, default_collate([rows[k] for k in range(len(rows))]))
        if not apart.equal:
            return None
        order = torch.randperm(len(rows))
        made = timed(lambda taken: [column[taken] for column in columns], order)
        nbytes = sum(column.nbytes for column in columns)
        cost = Cost(*made.cost[:2])
        return Measured(len(rows), usual.cost, cost, apart, kept=Kept(nbytes, len(rows), len(rows)))
