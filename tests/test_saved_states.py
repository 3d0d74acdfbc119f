"""States of `DataLoader.state_dict()` that an earlier release saved: they load, and the remaining batches are the same.

`states/version_1.json` was written by the release before the modules moved into packages. For each loader below it has
a state from the middle of an epoch and one from between epochs, the rest of the epoch, and the epoch after it.
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
def test_a_state_of_an_earlier_release_resumes_with_the_same_batches(name, moment):
    saved = SAVED[name][moment]
    torch.manual_seed(99)  # no influence on a loader that was resumed
    with LOADERS[name]() as loader:
        loader.load_state_dict(saved["state"])
        assert [batch.tolist() for batch in loader] == saved["rest"]
        if saved["next"] is not None:
            assert [batch.tolist() for batch in loader] == saved["next"]


def test_a_state_that_was_saved_without_torch_is_refused():
    """There, orders are drawn from NumPy's generator."""
    with DataLoader(Numbers(24), 4) as loader:
        state = {**loader.state_dict(), "torch": False}
        with pytest.raises(ValueError, match="torch was not installed where it was saved, and is installed here"):
            loader.load_state_dict(state)
