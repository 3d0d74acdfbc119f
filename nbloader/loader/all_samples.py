"""All samples, produced once: for samples that are the same in each epoch and fit into memory."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import StackDataset, TensorDataset, default_collate

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

# once, before the loader is made:
batches = list(DataLoader(dataset, batch_size=256, num_workers=2))
dataset = """
OF_TENSORS = "torch.cat(batches)"
OF_TUPLES = "torch.utils.data.TensorDataset(*map(torch.cat, zip(*batches)))"
OF_DICTS = """torch.utils.data.StackDataset(
    **{key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
)"""
SEEDS = 1, 2


class Rows(NamedTuple):
    """Some samples as rows of tensors."""

    dataset: Any
    code: str
    """The code that makes such a dataset of all samples."""
    columns: list[torch.Tensor]


def rows_of(batch: Any) -> Rows | None:
    """Return the samples of a batch as rows; None if they are no tensors, or no tuple or dict of tensors.

    Args:
        batch: What torch's collate function has returned.
    """
    if type(batch) is torch.Tensor:
        return Rows(batch, CODE + OF_TENSORS, [batch])
    columns = list(batch.values()) if type(batch) is dict else batch
    if type(columns) is not list or not all(type(column) is torch.Tensor for column in columns):
        return None
    if type(batch) is not dict:
        return Rows(TensorDataset(*columns), CODE + OF_TUPLES, columns)
    if not all(type(key) is str for key in batch):
        return None
    return Rows(StackDataset(**batch), CODE + OF_DICTS, columns)


class Found(NamedTuple):
    """What was measured."""

    measured: Measured
    code: str
    """See `Rows`."""

    def proposal(self, samples: int) -> Proposal:
        """Return what to write.

        Args:
            samples: The number of samples of the dataset.
        """
        nbytes = self.measured.kept.nbytes / self.measured.samples * samples
        return Proposal(
            why="Each sample is the same in each epoch, and all of them fit into memory.",
            instead=(
                f"Make them once, as tensors, which take {megabytes(nbytes)}: nbloader then takes a batch with one "
                "call for each tensor. That lasts about as long as an epoch. Later changes of files or of code are not "
                "noticed."
            ),
            helper=self.code,
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

    def __getitem__(self, position: int) -> Found | None:
        """Measure. Return None if samples depend on random numbers, differ in shape, or cannot be rows."""
        if position:
            raise IndexError(position)
        with warnings.catch_warnings():  # of the user's code, which its own epochs show
            warnings.simplefilter("ignore")
            try:
                return self._measure()
            except Exception:  # of the user's code, which its own epochs show
                log.debug("all samples could not be made once", exc_info=True)
                return None

    def _measure(self) -> Found | None:
        first, second = SEEDS
        rng.seed_everything(first)
        rows = rows_of(self.produce(self.indices))
        if rows is None:
            return None
        rng.seed_everything(second)
        usual = timed(self.produce, self.indices)
        count = len(self.indices)
        apart = difference(usual.batch, default_collate([rows.dataset[k] for k in range(count)]))
        if not apart.equal:
            return None
        order = torch.randperm(count)
        made = timed(lambda taken: [column[taken] for column in rows.columns], order)
        nbytes = sum(column.nbytes for column in rows.columns)
        cost = Cost(*made.cost[:2])
        return Found(Measured(count, usual.cost, cost, apart, kept=Kept(nbytes, count, count)), rows.code)
