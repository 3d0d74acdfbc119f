"""States of `DataLoader.state_dict()` are a file format: those of version 1 load, with the same remaining batches.

For each loader below `states/version_1.json` has a state from the middle of an epoch and one from between epochs, the
rest of the epoch, and the epoch after it.
"""

import json
from pathlib import Path

import pytest
import torch
from datasets import Numbers
from torch.utils.data import IterableDataset

import nbloader
from nbloader import DataLoader

SAVED = json.loads((Path(__file__).parent / "states" / "version_1.json").read_text("utf-8"))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(20))


LOADERS = {
    "in order": lambda: DataLoader(Numbers(24), 4),
    "shuffled": lambda: DataLoader(Numbers(24), 4, shuffle=True),
    "shuffled by a generator": lambda: DataLoader(
        Numbers(24), 4, shuffle=True, generator=torch.Generator().manual_seed(7)
    ),
    "rollover": lambda: DataLoader(Numbers(24), 5, shuffle=True, last_batch="rollover"),
    "interval": lambda: DataLoader(Numbers(24), 4, sampler=nbloader.IntervalSampler(24, 5)),
    "iterable": lambda: DataLoader(Stream(), 3),
}


@pytest.mark.parametrize("moment", ["in epoch", "between epochs"])
@pytest.mark.parametrize("name", LOADERS)
def test_a_saved_state_resumes_with_the_same_batches(name, moment):
    saved = SAVED[name][moment]
    torch.manual_seed(99)  # no influence on a loader that was resumed
    with LOADERS[name]() as loader:
        loader.load_state_dict(saved["state"])
        assert [batch.tolist() for batch in loader] == saved["rest"]
        if saved["next"] is not None:
            assert [batch.tolist() for batch in loader] == saved["next"]


@pytest.mark.parametrize("name", LOADERS)
def test_a_state_has_the_entries_of_the_format(name):
    with LOADERS[name]() as loader:
        next(iter(loader))
        written, saved = loader.state_dict(), SAVED[name]["in epoch"]["state"]
        assert list(written) == list(saved)
        assert set(written["epoch"]) == set(saved["epoch"])


def test_a_state_that_was_saved_without_torch_is_refused():
    """There, orders are drawn from NumPy's generator."""
    with DataLoader(Numbers(24), 4) as loader:
        state = {**loader.state_dict(), "torch": False}
        with pytest.raises(ValueError, match="torch was not installed where it was saved, and is installed here"):
            loader.load_state_dict(state)
