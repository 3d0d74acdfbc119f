"""What limited an epoch is still known when the next one has begun, also if nobody has looked in between."""

from __future__ import annotations

import pytest
from light import Slow

from nbloader import DataLoader
from nbloader.diagnose.causes import BY_NAME


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_after_an_epoch_that_was_left_at_once_the_verdict_and_predictions_are_those_of_the_one_before(kind):
    with DataLoader(Slow(120), 2, num_workers=1, workers=kind) as loader:
        for _batch in loader:
            pass
        epoch = iter(loader)
        next(epoch)
        del epoch
        s = loader.stats()
        assert s.verdict.startswith("Epoch 1 was abandoned after 1 of 60 batches in ")
        assert "these are too few batches to tell why. Epoch 0: " in s.verdict
        assert "the loop waited" in s.verdict.partition("Epoch 0: ")[2]
        assert s.cause in BY_NAME, "that of epoch 0: on a busy machine the cores may be it"
        found = loader.what_if(num_workers=2)
        assert 0 < found.measured <= 1 / (2 * Slow.wait), "its batches are replayed"
