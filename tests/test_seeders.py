"""Objects with generators of their own that are seeded for each batch: `register_seeder`, and albumentations."""

from __future__ import annotations

import json
import random
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch
from datasets import Numbers
from test_replay import raw
from torch.utils.data import ConcatDataset, IterableDataset, Subset

import nbloader
from nbloader import DataLoader, DatasetTransferError, ReplayError, register_seeder
from nbloader.workers import seeders
from nbloader.workers.seeding import Seeding, private

WORKERS = {
    "no workers": {},
    "processes": {"num_workers": 2},
    "forked": {"num_workers": 2, "multiprocessing_context": "fork"},
    "threads": {"num_workers": 2, "workers": "thread"},
}
with_workers = pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)


class Jitter:
    """A transform that draws from its own generator, as MONAI's do."""

    def __init__(self):
        self.random = np.random.RandomState()

    def set_random_state(self, seed):
        self.random = np.random.RandomState(seed)

    def __call__(self, value):
        return value + self.random.rand()


class Flip(Jitter):
    """Its class is registered by its base class."""


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(seeders, "_registered", {})
    register_seeder(Jitter, lambda transform, seed: transform.set_random_state(seed))


def drawn():
    """A number that belongs to the batch, also in worker threads."""
    info = nbloader.get_worker_info()
    own = None if info is None else info.rng
    return random.random() if own is None else own.random_generator.random()


class Transformed(Numbers):
    """Has transforms in several places, and one object that threads must share."""

    def __init__(self, n, *, flip=None):
        super().__init__(n)
        self.transforms = [Jitter(), {"flip": flip or Flip()}]
        self.lock = threading.Lock()
        self.large = [np.zeros(3)] * 300

    def __getstate__(self):
        return {**vars(self), "lock": None}

    def __getitem__(self, i):
        first, others = self.transforms
        return i, first(0.0), others["flip"](0.0), drawn()


DATASETS = {
    "plain": lambda: Transformed(40),
    "subset": lambda: Subset(Transformed(60), range(3, 43)),
    "concatenated": lambda: ConcatDataset([Transformed(20), Transformed(20)]),
}


@pytest.mark.parametrize("make", DATASETS.values(), ids=DATASETS)
@with_workers
def test_batches_are_seeded_resumed_and_replayed(make, workers, registered):
    def loader_of(**arguments):
        torch.manual_seed(3)
        return DataLoader(make(), 5, shuffle=True, **(arguments or workers))

    with loader_of(num_workers=0) as loader:
        expected = [raw(list(loader)), raw(list(loader))]
    with loader_of() as loader:
        first, second = list(loader), iter(loader)
        interrupted = [next(second), next(second)]
        state = json.dumps(loader.state_dict())
        rest = list(second)
        assert [raw(first), raw([*interrupted, *rest])] == expected
        for number in (0, 5):
            again = loader.replay(0, number)
            assert raw(again.batch) == raw(first[number])
            assert raw(again.sample(3)[1:3]) == [first[number][1][3].item(), first[number][2][3].item()]
        indices = loader.replay(1, 1).indices
        delivery = loader.deliveries(indices[2])[0]
        assert (delivery.epoch, delivery.batch, delivery.position) == (1, 1, 2)
    with loader_of() as loader:
        loader.load_state_dict(json.loads(state))
        assert raw(list(loader)) == raw(rest)
    values = torch.cat([part for batch in first for part in batch[1:3]])
    assert len(values.unique()) == len(values), "objects, samples and batches draw different numbers"


@with_workers
def test_restarted_workers_and_another_number_of_them_change_nothing(workers, registered):
    def epoch(change):
        torch.manual_seed(3)
        with DataLoader(Transformed(40), 4, **workers) as loader:
            batches = []
            for number, batch in enumerate(loader):
                batches.append(batch)
                if number == 3:
                    change(loader)
            return raw(batches)

    expected = epoch(lambda _loader: None)
    if workers:
        assert epoch(lambda loader: loader.restart_workers()) == expected
        assert epoch(lambda loader: setattr(loader, "num_workers", 1)) == expected


def test_a_replay_beside_worker_threads_that_draw(registered):
    torch.manual_seed(3)
    with DataLoader(Transformed(60), 3) as loader:
        expected = list(loader)
    torch.manual_seed(3)
    with DataLoader(Transformed(60), 3, num_workers=2, workers="thread") as loader:
        for number, batch in enumerate(loader):
            assert raw(batch) == raw(expected[number])
            assert raw(loader.replay(0, number // 2).batch) == raw(expected[number // 2])


def test_an_epoch_in_threads_uses_the_dataset_as_it_is_then(registered):
    dataset = Transformed(10)
    with DataLoader(dataset, 5, num_workers=1, workers="thread") as loader:
        list(loader)
        dataset.transforms[1]["flip"] = float
        assert all((batch[2] == 0).all() for batch in loader)


JITTER = Jitter()


class OfTheModule(Numbers):
    """Its transform is a global."""

    def __getitem__(self, i):
        return i, JITTER(0.0)


class OfTheClass(Numbers):
    """Its transform is an attribute of the class."""

    jitter = Jitter()

    def __getitem__(self, i):
        return i, self.jitter(0.0)


def jittered(values):
    return [JITTER(value) for value in values]


class OfAHelper(Numbers):
    """A function that it calls uses a global."""

    def __getitem__(self, i):
        return i, jittered([0.0])[0]


def enclosing_class():
    jitter = Jitter()

    class Inside(Numbers):
        """Its method has a transform in its closure, as classes that are defined in a function do."""

        def __getitem__(self, i):
            return i, jitter(0.0)

    return Inside


class Enclosed(Numbers):
    """Its transform is in a closure, as in `transforms.Lambda`."""

    def __init__(self, n):
        super().__init__(n)
        jitter = Jitter()
        self.transform = lambda value: jitter(value)  # noqa: PLW0108

    def __getitem__(self, i):
        return i, self.transform(0.0)


@pytest.mark.parametrize("dataset", [OfTheModule, OfTheClass, OfAHelper, enclosing_class(), Enclosed])
@with_workers
def test_what_threads_cannot_have_for_themselves_is_refused(dataset, workers, registered):
    with DataLoader(dataset(20), 4, **workers) as loader:
        batches = list(loader)
        if "workers" in workers:
            with pytest.raises(ReplayError, match="random generator of its own"):
                loader.replay(0, 2)
            assert [record.worker for record in loader.events.batches()] == [0, 1, 0, 1, 0]
        else:
            assert raw(loader.replay(0, 2).batch) == raw(batches[2])


class Stream(IterableDataset):
    def __init__(self):
        self.jitter = Jitter()

    def __iter__(self):
        for i in range(12):
            yield i, self.jitter(0.0)


@pytest.mark.filterwarnings("ignore:the dataset .Stream. has not called")  # it has no shards
@with_workers
def test_workers_of_a_stream_draw_different_numbers(workers, registered):
    def epoch():
        torch.manual_seed(3)
        with DataLoader(Stream(), 4, **workers) as loader:
            return list(loader)

    batches = epoch()
    values = torch.cat([batch[1] for batch in batches])
    assert len(values.unique()) == len(values)
    assert raw(epoch()) == raw(batches)


class Awaited(Numbers):
    def __init__(self, n):
        super().__init__(n)
        self.jitter = Jitter()

    async def __getitem__(self, i):
        return i, self.jitter(0.0)


def test_an_asynchronous_dataset_draws_as_before(registered):
    with DataLoader(Awaited(12), 4, num_workers=1) as loader:
        assert len(list(loader)) == 3
        with pytest.raises(ReplayError, match="random generator of its own"):
            loader.replay(0, 0)


class Collate:
    def __init__(self):
        self.jitter = Jitter()

    def __call__(self, samples):
        return torch.tensor([self.jitter(sample) for sample in samples])


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}])
@with_workers
def test_objects_of_a_collate_fn(options, workers, registered):
    with DataLoader(Numbers(20), 4, collate_fn=Collate(), **options, **workers) as loader:
        batches = list(loader)
        for number in (0, 3):
            assert raw(loader.replay(0, number).batch) == raw(batches[number])


def test_a_seeder_that_raises_is_an_error_of_the_batch(monkeypatch):
    monkeypatch.setattr(seeders, "_registered", {})

    def refuse(_transform, _seed):
        raise ValueError("this seeder is broken")

    register_seeder(f"{Jitter.__module__}.Jitter", refuse)
    for workers in WORKERS.values():
        with DataLoader(Transformed(8), 4, **workers) as loader:
            epoch = iter(loader)
            for _ in range(2):
                with pytest.raises(ValueError, match="this seeder is broken"):
                    next(epoch)


def test_what_cannot_be_registered_says_why(monkeypatch):
    monkeypatch.setattr(seeders, "_registered", {})
    for wrong in ("Jitter", 3.5, None, "", ".x", "x."):
        with pytest.raises(TypeError, match="takes a class, or its name"):
            register_seeder(wrong, print)
    with pytest.raises(TypeError, match="must be a function"):
        register_seeder(Jitter, None)
    lock = threading.Lock()
    register_seeder(Jitter, lambda _transform, _seed: lock)
    with (
        DataLoader(Transformed(8), 4, num_workers=1, multiprocessing_context="forkserver") as loader,
        pytest.raises(DatasetTransferError, match=r"register_seeder\(\) for .*Jitter cannot be sent"),
    ):
        list(loader)


def test_the_name_is_public():
    assert nbloader.register_seeder is register_seeder


def test_without_registered_objects_nothing_is_copied_or_visited(registered):
    parts = ([1], None, print)
    assert private(parts) is parts
    assert not Seeding(*parts)
    seeded = []
    assert Seeding(*parts).after(seeded.append) == seeded.append


def test_private_copies_share_everything_else(registered):
    dataset = Transformed(10)
    subset = Subset(dataset, range(5))
    (copied, collate_fn) = private((subset, raw))
    assert collate_fn is raw
    assert copied is not subset
    assert copied.indices is subset.indices
    mine, own = dataset.transforms, copied.dataset.transforms
    assert copied.dataset.large is dataset.large
    assert copied.dataset.lock is dataset.lock
    assert own[0] is not mine[0]
    assert own[1]["flip"] is not mine[1]["flip"]
    assert type(own[1]["flip"]) is Flip


# ---- albumentations --------------------------------------------------------------------------------------------------

COMPOSITION = """
    import random
    import numpy as np
    from albumentations.core.transforms_interface import BasicTransform

    class BaseCompose(BasicTransform):
        def __init__(self, transforms):
            self.transforms = transforms
            self.set_random_state(np.random.default_rng(), random.Random())

        def set_random_state(self, random_generator, py_random):
            super().set_random_state(random_generator, py_random)
            for transform in self.transforms:
                transform.set_random_state(random_generator, py_random)

        def __call__(self, *, image):
            for transform in self.transforms:
                image = transform(image=image)
            return image
"""
TRANSFORMS = """
    import random
    import numpy as np

    class BasicTransform:
        def __init__(self):
            self.set_random_state(np.random.default_rng(), random.Random())

        def set_random_state(self, random_generator, py_random):
            self.random_generator, self.py_random = random_generator, py_random

    class Noise(BasicTransform):
        def __call__(self, *, image):
            return image + self.random_generator.random(image.shape) + self.py_random.random()
"""


@pytest.fixture
def albumentations(tmp_path, monkeypatch):
    """A package with the classes and methods of albumentations 2 by which it is seeded."""
    core = tmp_path / "albumentations" / "core"
    core.mkdir(parents=True)
    (core / "composition.py").write_text(textwrap.dedent(COMPOSITION))
    (core / "transforms_interface.py").write_text(textwrap.dedent(TRANSFORMS))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "albumentations"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "albumentations"]:
        del sys.modules[name]


class Augmenting(Numbers):
    def __init__(self, n, transform):
        super().__init__(n)
        self.transform = transform

    def __getitem__(self, i):
        return self.transform(image=np.full((2, 3), i, np.float64))


@with_workers
def test_albumentations_needs_no_registration(albumentations, workers):
    from albumentations.core.composition import BaseCompose
    from albumentations.core.transforms_interface import Noise

    class Compose(BaseCompose):
        pass

    for transform in (Compose([Noise(), Noise()]), Noise()):
        torch.manual_seed(3)
        with DataLoader(Augmenting(20, transform), 4) as loader:
            expected = raw(list(loader))
        torch.manual_seed(3)
        with DataLoader(Augmenting(20, transform), 4, **workers) as loader:
            epoch = iter(loader)
            first = [next(epoch), next(epoch)]
            state = loader.state_dict()
            rest = list(epoch)
            assert raw([*first, *rest]) == expected
            assert raw(loader.replay(0, 3).batch) == expected[3]
        with DataLoader(Augmenting(20, transform), 4, **workers) as loader:
            loader.load_state_dict(state)
            assert raw(list(loader)) == raw(rest)


def test_transforms_of_the_real_albumentations_draw_independently():
    albumentations = pytest.importorskip("albumentations")
    flips = albumentations.Compose([albumentations.HorizontalFlip(p=0.5), albumentations.VerticalFlip(p=0.5)])
    image = np.arange(4, dtype=np.uint8).reshape(2, 2, 1)

    class Flipped(Numbers):
        def __getitem__(self, i):
            return flips(image=image)["image"].ravel()

    with DataLoader(Flipped(200), 10) as loader:
        batches = list(loader)
        assert {tuple(row.tolist()) for batch in batches for row in batch} == {
            (0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0),
        }  # fmt: skip
        assert raw(loader.replay(0, 7).batch) == raw(batches[7])
