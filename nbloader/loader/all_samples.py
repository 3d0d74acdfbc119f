"""All samples, produced once: for samples that are the same in each epoch and fit into memory."""

from __future__ import annotations

import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import StackDataset, TensorDataset, default_collate
from torch.utils.data import get_worker_info as torch_worker_info

from nbloader._util import rng
from nbloader._util.code_places import is_library
from nbloader._util.format import megabytes
from nbloader.remedies.difference import difference
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.trial import Kept, Made, Measured, timed
from nbloader.workers.reachable import reachable
from nbloader.workers.worker_info import get_worker_info

log = logging.getLogger(__name__)

NAME = "all-samples"
SHORT = "Make all samples once, before the first epoch"
CODE = """\
import nbloader
import torch

# once, before the loader is made:
batches = list(nbloader.DataLoader(dataset, batch_size=256, num_workers=2))
dataset = {}
del batches
"""
OF_TENSORS = "torch.cat(batches)"
OF_TUPLES = "torch.utils.data.TensorDataset(*map(torch.cat, zip(*batches)))"
OF_DICTS = """torch.utils.data.StackDataset(
    **{key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
)"""
SEEDS = 1, 2
ENOUGH_SAMPLES = 20
"""Fewer samples do not show whether all are the same in each epoch."""
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


class DrawsError(Exception):
    """Samples draw random numbers. Never leaves this module."""


class Rows(NamedTuple):
    """Some samples as rows of tensors."""

    dataset: Any
    code: str
    """The code that makes such a dataset of all samples."""
    columns: list[torch.Tensor]


def may_change(dataset: Any) -> bool:
    """Whether samples may depend on more than their index: on an epoch number, on a generator, or on their batch."""
    if hasattr(dataset, "__getitems__"):
        return True
    for obj in reachable(dataset):
        names = [*getattr(obj, "__dict__", ()), *vars(type(obj))]
        if isinstance(obj, GENERATORS) or any("epoch" in name for name in names):
            return True
    return False


class _Asked(NamedTuple):
    """Whether code has asked in which worker it runs."""

    times: list[int]


@contextmanager
def _worker_asked() -> Iterator[_Asked]:
    """Context manager that notes calls of `get_worker_info`: a sample may depend on the seed of its worker."""
    asked, codes = _Asked([]), (get_worker_info.__code__, torch_worker_info.__code__)

    def profile(frame: FrameType, event: str, _value: Any) -> None:
        caller = frame.f_back
        if event != "call" or frame.f_code not in codes or caller is None:
            return
        if not is_library(caller.f_code.co_filename):  # torch's collate function asks, too
            asked.times.append(1)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield asked
    finally:
        sys.setprofile(before)


def rows_of(batch: Any) -> Rows | None:
    """Return the samples of a batch as rows; None unless each is a tensor, or a tuple, list or dict of tensors.

    Args:
        batch: What torch's collate function has returned.
    """
    if type(batch) is torch.Tensor:
        return Rows(batch, CODE.format(OF_TENSORS), [batch])
    columns = list(batch.values()) if type(batch) is dict else batch
    if type(columns) is not list or not all(type(column) is torch.Tensor for column in columns):
        return None
    if type(batch) is not dict:
        return Rows(TensorDataset(*columns), CODE.format(OF_TUPLES), columns)
    if not all(type(key) is str for key in batch):
        return None
    return Rows(StackDataset(**batch), CODE.format(OF_DICTS), columns)


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
            why=f"{self.measured.samples} samples were equal with two seeds, and all samples fit into memory.",
            instead=(
                f"If they do not change from epoch to epoch, make all once. As tensors they take {megabytes(nbytes)}, "
                "and nbloader gets a batch with one call for each tensor. Making them takes about as long as an epoch. "
                "Afterwards, changes of files, of code or of the dataset have no effect."
            ),
            helper=self.code,
            must_be_equal=True,
            short=SHORT,
        )


@dataclass(frozen=True)
class AllSamples:
    """A dataset with one item: what some samples take, and what they take as rows of tensors. See `Trial`.

    Args:
        dataset: The dataset.
        produce: Makes a batch from dataset indices, as the loader would, with torch's collate function.
        indices: The dataset indices on which to try.
        batch_size: Number of samples in a batch.
    """

    dataset: Any
    produce: Callable[[Any], Any]
    indices: Sequence[Any]
    batch_size: int
    limit: float
    """How long the measurement may take, seconds; whoever runs it ends it."""

    def __len__(self) -> int:
        """Return 1."""
        return 1

    def __getitem__(self, position: int) -> Found | None:
        """Measure. Return None if samples may depend on random numbers or the epoch, or cannot be rows."""
        if position:
            raise IndexError(position)
        with warnings.catch_warnings():  # of the user's code, which its own epochs show
            warnings.simplefilter("ignore")
            try:
                return self._measure()
            except DrawsError:
                return None
            except Exception:  # of the user's code, which its own epochs show
                log.debug("all samples could not be made once", exc_info=True)
                return None

    def _measure(self) -> Found | None:
        if may_change(self.dataset):
            return None
        with _worker_asked() as asked:
            rows = rows_of(self._made(SEEDS[0]).batch)
        if rows is None or asked.times:
            return None
        usual = self._made(SEEDS[1])
        count = len(self.indices)
        apart = difference(usual.batch, default_collate([rows.dataset[k] for k in range(count)]))
        if not apart.equal:
            return None
        order = np.array_split(np.random.permutation(count), -(-count // self.batch_size))  # noqa: NPY002 - any order
        made = timed(lambda parts: [[column[part] for column in rows.columns] for part in parts], order)
        nbytes = sum(column.nbytes for column in rows.columns)
        return Found(Measured(count, usual.cost, made.cost, apart, kept=Kept(nbytes, count, count)), rows.code)

    def _made(self, seed: int) -> Made:
        """Produce the samples.

        Raises:
            DrawsError: They draw random numbers.
        """
        rng.seed_everything(seed)
        before = rng.states()
        made = timed(self.produce, self.indices)
        if any(old is not None and old != new for old, new in zip(before, rng.states(), strict=True)):
            raise DrawsError
        return made
