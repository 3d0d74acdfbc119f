"""Samplers, datasets and loaders of the tests of `state_dict()`. Run as a script, it resumes them."""

from __future__ import annotations

import json
import random
import sys
import traceback

import torch
from datasets import Augmented
from iterables import Cursor, Plain, StatefulDataset, Uneven
from torch.utils.data import BatchSampler, DistributedSampler, SubsetRandomSampler, WeightedRandomSampler

from nbloader import DataLoader

N = 41


class Shuffling:
    """A sampler without `state_dict()` that shuffles with the module `random`, in `__iter__`."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        order = list(range(self.n))
        random.shuffle(order)
        return iter(order)


class Remembering(Shuffling):
    """A sampler with `state_dict()`, whose every epoch differs."""

    def __init__(self, n):
        super().__init__(n)
        self.at = 0
        self.given = 0

    def __iter__(self):
        while self.given < self.n:
            self.given += 1
            self.at = (self.at * 5 + 3) % self.n
            yield self.at
        self.given = 0

    def state_dict(self):
        return {"at": self.at, "given": self.given}

    def load_state_dict(self, state):
        self.at, self.given = state["at"], state["given"]


class RememberingBatches(Remembering):
    """A batch sampler with `state_dict()`, whose batches differ in size."""

    def __iter__(self):
        while self.given < self.n:
            batch = list(range(self.given, min(self.n, self.given + 1 + self.at % 4)))
            self.at, self.given = self.at + 1, self.given + len(batch)
            yield batch
        self.given = 0


def generator(seed=8):
    return torch.Generator().manual_seed(seed)


class Tuples(Remembering):
    def state_dict(self):
        return {"at": (self.at, self.given)}


def arguments(name):
    """New arguments of a loader."""
    return {
        "sequential": dict,
        "shuffle": lambda: {"shuffle": True},
        "generator": lambda: {"shuffle": True, "generator": generator()},
        "drop_last": lambda: {"shuffle": True, "drop_last": True},
        "rollover": lambda: {"shuffle": True, "last_batch": "rollover"},
        "rollover, generator": lambda: {"shuffle": True, "last_batch": "rollover", "generator": generator()},
        "unbatched": lambda: {"shuffle": True, "batch_size": None},
        "subset": lambda: {"sampler": SubsetRandomSampler(range(3, 40, 2))},
        "subset, generator": lambda: {"sampler": SubsetRandomSampler(range(3, 40, 2), generator())},
        "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * N, 30)},
        "list": lambda: {"sampler": list(range(N - 1, -1, -1))},
        "batches": lambda: {"batch_sampler": BatchSampler(SubsetRandomSampler(range(N)), 5, False), "batch_size": 1},
        "distributed": lambda: {"sampler": DistributedSampler(range(N), 2, 1)},
        "random module": lambda: {"sampler": Shuffling(N)},
        "stateful": lambda: {"sampler": Remembering(N)},
        "stateful batches": lambda: {"batch_sampler": RememberingBatches(N), "batch_size": 1},
    }[name]()


SAMPLERS = [
    "sequential", "shuffle", "generator", "drop_last", "rollover", "rollover, generator", "unbatched", "subset",
    "subset, generator", "weighted", "list", "batches", "distributed", "random module", "stateful", "stateful batches",
]  # fmt: skip
STREAMS = {
    "skipping": lambda: Plain(53),
    "iterator": lambda: Cursor(53, None),
    "dataset": lambda: StatefulDataset(53),
    "uneven": lambda: Uneven(9, 2, 14),
}


def make(name, workers=0, **changes):
    options = {"batch_size": 4, "num_workers": workers, **changes}
    if name in STREAMS:
        return DataLoader(STREAMS[name](), collate_fn=list, **options)
    return DataLoader(Augmented(N), **{**options, **arguments(name)})


def plain(thing):
    """Convert tensors to Python objects, which can be compared and printed."""
    if isinstance(thing, torch.Tensor):
        return thing.tolist()
    return [plain(part) for part in thing] if isinstance(thing, (list, tuple)) else thing


def epochs(loader, n=3):
    return [plain(list(loader)) for _ in range(n)]


def resumed(name, workers, state):
    torch.manual_seed(1234)
    try:
        with make(name, workers) as loader:
            loader.load_state_dict(state)
            return epochs(loader)
    except Exception:
        return traceback.format_exc()


if __name__ == "__main__":
    json.dump([resumed(*each) for each in json.load(sys.stdin)], sys.stdout)
