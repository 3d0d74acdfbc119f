"""Batches are the same whichever worker produces them, and whatever happens to workers."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
import torch
from datasets import Augmented, Numbers, pids
from resumption import epochs, plain

from nbloader import DataLoader


class Seeds(Numbers):
    """Returns what `worker_init_fn` saw."""

    def __getitem__(self, i):
        return torch.utils.data.get_worker_info().id, int(os.environ["SEEN"])


def remember_seed(_worker):
    os.environ["SEEN"] = str(torch.initial_seed())


def loader_of(**options):
    return DataLoader(Augmented(90), 3, True, generator=torch.Generator().manual_seed(4), **options)


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 3}, {"num_workers": 2, "workers": "thread"}],
                         ids=["one", "three", "threads"])  # fmt: skip
def test_augmented_batches_equal_those_of_the_inline_worker_after_kills_restarts_resizes_and_reloads(options):
    with loader_of() as loader:
        want = epochs(loader, 2)
    with loader_of(**options, max_restarts=1000) as loader:
        came = []
        for _ in range(2):
            came.append([])
            for number, batch in enumerate(loader):
                came[-1].append(plain(batch))
                if number % 7 == 1 and "workers" not in options:
                    with contextlib.suppress(ProcessLookupError, IndexError):
                        os.kill(pids(loader)[0], signal.SIGKILL)
                elif number % 7 == 3:
                    loader.restart_workers()
                elif number % 7 == 5:
                    loader.num_workers = 1 + number % 3
                elif number == 13:
                    loader.reload(keep=False)
    assert came == want


def test_each_worker_has_its_own_initial_seed_as_in_torch():
    with DataLoader(Seeds(40), None, num_workers=3, worker_init_fn=remember_seed) as loader:
        seen = {(int(worker), int(seed)) for worker, seed in loader}
    first = min(seed - worker for worker, seed in seen)
    assert all(seed == first + worker for worker, seed in seen)
