"""Batches are the same whichever worker produces them, and whatever happens to workers."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from datasets import Augmented, Numbers, all_pids
from resumption import epochs, plain

from nbloader import DataLoader
from nbloader.scheduler import dispatcher


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
def test_augmented_batches_are_the_same_after_kills_restarts_resizes_and_reloads(options, monkeypatch):
    monkeypatch.setattr(dispatcher, "MAX_DEATHS", 1000)  # on a busy machine, one batch may meet three of the kills
    undisturbed = {**options, "num_workers": 1} if "workers" in options else {}
    with loader_of(**undisturbed) as loader:
        want = epochs(loader, 2)
    with loader_of(**options, max_restarts=1000) as loader:
        came = []
        for _ in range(2):
            came.append([])
            for number, batch in enumerate(loader):
                came[-1].append(plain(batch))
                if number % 7 == 1 and "workers" not in options:
                    running = all_pids(loader)
                    with contextlib.suppress(ProcessLookupError):  # its restart has just been carried out
                        os.kill(running[0], signal.SIGKILL)
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


# ---- workers with generators of their own ---------------------------------------------------------------------------


class Uneven(Augmented):
    """Takes another time in each run."""

    def __getitem__(self, i):
        time.sleep(os.urandom(1)[0] / 255 * 0.003)
        return super().__getitem__(i)


class Owner(Uneven):
    """A transform inside it has a generator."""

    def __init__(self, n):
        super().__init__(n)
        self.transforms = [{"noise": functools.partial(float, np.random.default_rng(3))}]

    def __getitem__(self, i):
        return super().__getitem__(i)[0], self.transforms[0]["noise"].args[0].random()


class CreatesInWorker(Uneven):
    """Creates its generator when it needs it, for its worker."""

    generator = None

    def __getitem__(self, i):
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(torch.utils.data.get_worker_info().id)
        return super().__getitem__(i)[0], torch.rand(1, generator=self.generator)


MODULE_GENERATOR = random.Random(4)


class UsesModuleGenerator(Uneven):
    def __getitem__(self, i):
        return super().__getitem__(i)[0], MODULE_GENERATOR.random()


def seed_torch(worker):
    torch.manual_seed(42 + worker)


def seed_numpy(worker):
    np.random.seed(42 + worker)


def seed_all_as_lightning(worker):
    seeds = np.random.SeedSequence([torch.initial_seed() - worker, worker]).generate_state(3)
    random.seed(int(seeds[0]))
    np.random.seed(seeds[1])
    torch.manual_seed(int(seeds[2]))


def give_generator(worker):
    torch.utils.data.get_worker_info().dataset.rng = np.random.default_rng(worker)


class Given(Uneven):
    def __getitem__(self, i):
        return super().__getitem__(i)[0], self.rng.random()


def run(dataset, seed=1, **options):
    """Two epochs of a program that begins with `torch.manual_seed`."""
    torch.manual_seed(seed)
    with DataLoader(dataset, 2, num_workers=2, **options) as loader:
        return epochs(loader, 2)


RECIPES = {
    "torch": (Uneven, seed_torch),
    "numpy": (Uneven, seed_numpy),
    "Lightning": (Uneven, seed_all_as_lightning),
    "dataset's": (Owner, None),
    "created in the worker": (CreatesInWorker, None),
    "module's": (UsesModuleGenerator, None),
    "given by worker_init_fn": (Given, give_generator),
}


@pytest.mark.filterwarnings("ignore:The random generator")  # the datasets hold one
@pytest.mark.parametrize("recipe", RECIPES)
def test_seeded_runs_are_equal_whatever_the_timing_where_workers_have_generators_of_their_own(recipe):
    dataset, init = RECIPES[recipe]
    first = run(dataset(40), worker_init_fn=init)
    assert run(dataset(40), worker_init_fn=init) == first


LIBRARIES = {
    "lightning.fabric.utilities.seed": "pl_worker_init_function",
    "transformers.trainer_utils": "seed_worker",
    "timm.data.loader": "_worker_init",
    "monai.data.utils": "worker_init_fn",
}
"""Modules, and their functions that seed a worker."""


@pytest.mark.slow
@pytest.mark.parametrize("module", LIBRARIES)
def test_seeded_runs_with_the_functions_of_libraries_are_equal_whatever_the_timing(module):
    function = getattr(pytest.importorskip(module), LIBRARIES[module])
    init = functools.partial(function, num_workers=2, rank=0) if module.startswith("transformers") else function
    first = run(Uneven(40), worker_init_fn=init)
    for _ in range(2):
        assert run(Uneven(40), worker_init_fn=init) == first
    assert run(Uneven(40), seed=2, worker_init_fn=init) != first


@pytest.mark.filterwarnings("ignore:The random generator")  # the datasets hold one
@pytest.mark.parametrize("recipe", ["numpy", "dataset's", "created in the worker", "given by worker_init_fn"])
def test_workers_with_generators_of_their_own_draw_what_torchs_workers_draw(recipe):
    dataset, init = RECIPES[recipe]
    torch.manual_seed(1)
    theirs = torch.utils.data.DataLoader(dataset(16), 2, num_workers=2, worker_init_fn=init)
    drawn = [[batch[2 if recipe == "numpy" else 1] for batch in theirs] for _ in range(2)]
    ours = run(dataset(16), worker_init_fn=init)
    assert [[batch[2 if recipe == "numpy" else 1] for batch in epoch] for epoch in ours] == plain(drawn)


def test_seeds_of_worker_init_fn_matter_and_hold_for_each_epoch_unless_workers_persist():
    def drawn(init, **options):
        return [[batch[3] for batch in epoch] for epoch in run(Uneven(16), worker_init_fn=init, **options)]

    fixed = drawn(seed_torch)
    assert fixed[0] == fixed[1], "each epoch begins with new seeds"
    assert drawn(torch.manual_seed)[0] != fixed[0]
    persistent = drawn(seed_torch, persistent_workers=True)
    assert persistent[0] == fixed[0]
    assert persistent[1] != fixed[1], "the generators go on"


def test_a_seed_derived_from_the_workers_own_leaves_the_seeds_to_the_batches():
    """As in torch's documentation: batches are then equal for any number of workers."""

    def init(_worker):
        seed = torch.initial_seed() % 2**32
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    assert run(Augmented(12), worker_init_fn=init) == run(Augmented(12))


def test_two_iterations_at_a_time_draw_from_generators_of_their_own():
    def both():
        torch.manual_seed(1)
        with DataLoader(Uneven(16), 2, num_workers=2, worker_init_fn=seed_torch) as loader:
            return [plain(pair) for pair in zip(loader, loader, strict=True)]

    one = [batch[3] for batch in run(Uneven(16), worker_init_fn=seed_torch)[0]]
    pairs = both()
    assert [first[3] for first, _second in pairs] == [second[3] for _first, second in pairs] == one


def test_functions_of_the_global_generators_stay_those_of_the_worker():
    """`from random import random` is a method of the generator behind the module."""
    draw, numpy_draw, generator = random.random, np.random.rand, torch.default_generator

    class Draws(Numbers):
        def __getitem__(self, i):
            return draw(), numpy_draw(), torch.rand(1, generator=generator)

    first, second = run(Draws(12))
    assert first != second
    assert run(Draws(12)) == [first, second]
    assert len({value for batch in first for value in batch[0]}) == 12, "workers draw different numbers"
