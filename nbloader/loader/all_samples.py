"""All samples, produced once: for samples that are the same in each epoch and fit into memory.

They become rows of tensors if torch's collate function makes batches of tensors from them, and otherwise a list.
"""

from __future__ import annotations

import logging
import pickle
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
from nbloader._util.format import duration, megabytes
from nbloader.remedies.difference import difference
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.trial import Cost, Kept, Made, Measured, timed
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
# once, before the loader is made:
dataset = [dataset[index] for index in range(len(dataset))]
"""
SEEDS = 1, 2
ENOUGH_SAMPLES = 20
"""Fewer samples do not show whether all are the same in each epoch."""
OBJECTS = 1.5
"""Memory of Python objects with small tensors, compared with their pickle: 1.43 as measured for five tensors."""
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
    """The code that makes all samples once."""
    is_list: bool
    """Whether they are kept as a list."""

    def nbytes(self, samples: int, workers: int) -> float:
        """Return the memory that all samples take, bytes.

        Args:
            samples: The number of samples of the dataset.
            workers: The number of worker processes. Each gets its own copy of the Python objects that it uses.
        """
        return self.measured.kept.nbytes / self.measured.samples * samples * (1 + workers if self.is_list else 1)

    def proposal(self, samples: int, workers: int) -> Proposal:
        """Return what to write. For the arguments, see `nbytes`."""
        size = megabytes(self.nbytes(samples, workers))
        takes = self.measured.before.seconds / self.measured.samples * samples
        if self.is_list:
            kept = f"As a list they take about {size}, including what workers copy"
        else:
            kept = f"As tensors they take {size}, and nbloader gets a batch with one call for each tensor"
            takes /= WORKERS
        return Proposal(
            why=f"{self.measured.samples} samples were equal with two seeds, and all samples fit into memory.",
            instead=(
                f"If they do not change from epoch to epoch, make all once. {kept}. That takes about "
                f"{duration(takes)}. Afterwards, changes of files, of code or of the dataset have no effect."
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
    as_list: bool
    """Whether samples may be kept as a list."""

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
        with _worker_asked() as asked:
            first = self._made(SEEDS[0])
        usual = self._made(SEEDS[1])
        rows = rows_of(first.batch) if self.makes_rows else None
        if asked.times or not difference(usual.batch, first.batch).equal:
            return None
        if rows is not None:
            return self._as_rows(usual, rows)
        return self._as_list(usual) if self.as_list else None

    def _as_rows(self, usual: Made, rows: Rows) -> Found | None:
        count = len(self.indices)
        apart = difference(usual.batch, default_collate([rows.dataset[k] for k in range(count)]))
        if not apart.equal:
            return None
        made = timed(lambda parts: [[column[part] for column in rows.columns] for part in parts], self._order())
        kept = Kept(rows.nbytes, count, count)
        return Found(Measured(count, usual.cost, made.cost, apart, kept=kept), rows.code, is_list=False)

    def _as_list(self, usual: Made) -> Found | None:
        """Measure a list of the samples. Return None if making a batch changes them."""
        count = len(self.indices)
        samples = [self.dataset[index] for index in self.indices]
        nbytes = round(OBJECTS * sum(len(pickle.dumps(sample)) for sample in samples))
        produce = self.producer(samples)
        made = [timed(produce, part) for part in self._order()]
        apart = difference(usual.batch, produce(range(count)))
        if not apart.equal:
            return None
        cost = Cost(*map(sum, zip(*(one.cost for one in made), strict=True)))
        return Found(Measured(count, usual.cost, cost, apart, kept=Kept(nbytes, count, count)), AS_LIST, is_list=True)

    def _order(self) -> list[Any]:
        """Return the positions of the samples in a random order, in batches."""
        count = len(self.indices)
        return np.array_split(np.random.permutation(count), -(-count // self.batch_size))  # noqa: NPY002 - any order

    def _made(self, seed: int) -> Made:
        """Produce the samples.

        Raises:
            DrawsError: They draw random numbers.
        """
        rng.seed_everything(seed)
        before = rng.states()
        made = timed(self.producer(self.dataset), self.indices)
        if any(old is not None and old != new for old, new in zip(before, rng.states(), strict=True)):
            raise DrawsError
        return made
