"""All samples, produced once: for samples that are the same in each epoch and fit into memory.

They become rows of tensors if torch's collate function makes batches of tensors from them, and otherwise a shared
list, from which each access gives a new object: a collate function or a loop may change it.
"""

from __future__ import annotations

import logging
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import StackDataset, Subset, TensorDataset, default_collate
from torch.utils.data import get_worker_info as torch_worker_info

from nbloader._util import rng
from nbloader._util.code_places import is_library
from nbloader._util.format import duration, megabytes
from nbloader.batch.collate import LocalArrays
from nbloader.batch.rows import RowSelector, Selection
from nbloader.remedies.difference import EQUAL, difference
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.trial import Cost, Kept, Made, Measured, timed
from nbloader.shm.share import share
from nbloader.workers.reachable import reachable
from nbloader.workers.worker_info import get_worker_info

log = logging.getLogger(__name__)

NAME = "all-samples"
SHORT = "Make all samples once, before the first epoch"
WORKERS = 2
"""Number of worker processes that make the rows of tensors."""
CODE = f"""\
import nbloader
import torch

# once, before the loader is made:
batches = list(nbloader.DataLoader(dataset, batch_size=256, num_workers={WORKERS}))
dataset = {{}}
del batches
"""
OF_TENSORS = "torch.cat(batches)"
OF_TUPLES = "torch.utils.data.TensorDataset(*map(torch.cat, zip(*batches)))"
OF_DICTS = """torch.utils.data.StackDataset(
    **{key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
)"""
AS_LIST = """\
import nbloader

# once, before the loader is made:
{}dataset = nbloader.share(dataset[index] for index in range(len(dataset)))
"""
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

    @property
    def nbytes(self) -> int:
        """Size of the tensors, bytes."""
        return sum(column.nbytes for column in self.columns)

    def gather(self, positions: list[int]) -> Any:
        """Return a batch as the loader makes it.

        Raises:
            TypeError: The loader cannot gather these types.
        """
        selected = RowSelector().select(self.dataset, positions, 0, "torch")
        if type(selected) is not Selection:
            raise TypeError(f"rows of {[column.dtype for column in self.columns]}")
        return selected.collate(LocalArrays("torch"))


def may_change(dataset: Any) -> bool:
    """Whether samples may depend on more than their index: on an epoch number, on a generator, or on their batch."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
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
def _without_draws(seed: int) -> Iterator[None]:
    """Context manager that seeds the global generators.

    Raises:
        DrawsError: Code has drawn random numbers from them.
    """
    rng.seed_everything(seed)
    before = rng.states()
    yield
    if any(old is not None and old != new for old, new in zip(before, rng.states(), strict=True)):
        raise DrawsError


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
    """The code that makes all samples once."""
    is_list: bool
    """Whether they are kept as a shared list."""
    making: float
    """What it takes to make a sample for the first time, seconds."""

    def nbytes(self, samples: int) -> float:
        """Return the memory that a number of samples takes, bytes."""
        return self.measured.kept.nbytes / self.measured.samples * samples

    def proposal(self, samples: int) -> Proposal:
        """Return what to write.

        Args:
            samples: The number of samples of the dataset.
        """
        size, takes = megabytes(self.nbytes(samples)), self.making * samples
        if self.is_list:
            kept = f"As a shared list they take {size}, once for all workers"
        else:
            kept = f"As tensors they take {size}, and nbloader gets a batch with one call for each tensor"
            takes /= WORKERS
        return Proposal(
            why=f"{self.measured.samples} samples were equal with two seeds, and all samples fit into memory.",
            instead=(
                f"If they do not change from epoch to epoch, make all once. {kept}. Making them takes about "
                f"{duration(takes)}. Afterwards, changes of files, of code or of the former dataset have no effect."
            ),
            helper=self.code,
            must_be_equal=True,
            short=SHORT,
        )


@dataclass(frozen=True)
class AllSamples:
    """A dataset with one item: what some samples take, and what they take when all were made before. See `Trial`.

    Args:
        dataset: The dataset.
        producer: Returns, for a dataset, what makes a batch from its indices as the loader would.
        indices: The dataset indices on which to try.
        batch_size: Number of samples in a batch.
    """

    dataset: Any
    producer: Callable[[Any], Callable[[Any], Any]]
    indices: Sequence[Any]
    batch_size: int
    limit: float
    """How long the measurement may take, seconds; whoever runs it ends it."""
    makes_rows: bool
    """Whether batches are made by torch's collate function."""
    keep: str = ""
    """Code that keeps what the loader needs of the dataset, as lines."""

    def __len__(self) -> int:
        """Return 1."""
        return 1

    def __getitem__(self, position: int) -> Found | None:
        """Measure. Return None if samples may depend on random numbers or the epoch."""
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
        count, begin = len(self.indices), time.perf_counter()
        with _worker_asked() as asked, _without_draws(SEEDS[0]):
            samples = [self.dataset[index] for index in self.indices]
        making = (time.perf_counter() - begin) / count
        if asked.times:
            return None
        rows = rows_of(default_collate(samples)) if self.makes_rows else None
        kept: Any = share(samples) if rows is None else rows
        del samples
        produce = self.producer(self.dataset)
        parts = [slice(start, start + self.batch_size) for start in range(0, count, self.batch_size)]
        with _without_draws(SEEDS[1]):
            usual = [timed(produce, self.indices[part]) for part in parts]
        positions = [list(range(count))[part] for part in parts]
        made = [timed(self.producer(kept) if rows is None else rows.gather, part) for part in positions]
        if rows is not None:  # the loader gathers rows into the batch
            made = [one._replace(cost=one.cost._replace(collating=one.cost.seconds)) for one in made]
        if not all(difference(one.batch, other.batch).equal for one, other in zip(usual, made, strict=True)):
            return None
        code = AS_LIST.format(self.keep) if rows is None else rows.code
        measured = Measured(count, _total(usual), _total(made), EQUAL, kept=Kept(kept.nbytes, count, count))
        return Found(measured, code, is_list=rows is None, making=making)


def _total(batches: list[Made]) -> Cost:
    """Return what it took to make batches."""
    return Cost(*map(sum, zip(*(made.cost for made in batches), strict=True)))
