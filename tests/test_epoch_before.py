"""What limited an epoch is still known when the next one has begun, also if nobody has looked in between."""

from __future__ import annotations

import pytest
from light import Slow

from nbloader import DataLoader


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
        assert "too few batches to tell why. Epoch 0: Use more workers" in s.verdict
        assert s.cause == "workers_wait"
        found = loader.what_if(num_workers=2)  # on a busy machine other programs may be the reason for having none
        assert found.measured == pytest.approx(1 / (2 * Slow.wait), rel=0.5), "its batches are replayed"
        assert found.speedup is None or found.speedup == pytest.approx(2, rel=0.3)
