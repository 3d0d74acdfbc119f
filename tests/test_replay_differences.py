"""Replay says so if it makes other data than were delivered, and says nothing if it makes the same."""

from __future__ import annotations

import dataclasses
import enum
import os
import pickle
import random
import secrets
import string
import time
import uuid
import warnings
from collections import UserDict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from datasets import Augmented, Numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from test_replay import raw

from nbloader import DataLoader, get_worker_info
from nbloader.batch import checksum as checksum_module
from nbloader.batch.checksum import checksum
from nbloader.engine import iterator
from nbloader.loader.replay import CHANGED, VARIES

VARIES, CHANGED = VARIES[:60], CHANGED[:60]
WORKERS = {
    "no workers": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "workers": "thread"},
}
with_workers = pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
SEEDS_GLOBALS = {name: workers for name, workers in WORKERS.items() if name != "threads"}
with_seeded_globals = pytest.mark.parametrize("workers", SEEDS_GLOBALS.values(), ids=SEEDS_GLOBALS)


@pytest.fixture
def every_batch_summed(monkeypatch):
    monkeypatch.setattr(iterator, "CHECKSUM_SHARE", 0)


class Drawing(Numbers):
    """Each sample draws from something that is not seeded."""

    def __init__(self, n, draw):
        super().__init__(n)
        self.draw = draw

    def __getitem__(self, i):
        return i, self.draw()


def from_torch():
    generator = torch.Generator()
    generator.seed()
    return torch.rand(1, generator=generator)


def seeded_anew():
    random.seed()
    return random.random()


UNSEEDED = {
    "default_rng": lambda: np.random.default_rng().random(3),
    "RandomState": lambda: np.random.RandomState().rand(2),
    "Random": lambda: random.Random().random(),
    "SystemRandom": lambda: random.SystemRandom().random(),
    "torch.Generator": from_torch,
    "random.seed": seeded_anew,
    "secrets": lambda: secrets.token_hex(4),
    "uuid4": lambda: uuid.uuid4().hex,
    "urandom": lambda: os.urandom(4),
    "clock": time.perf_counter_ns,
}
SEEDED = {
    "default_rng": lambda: np.random.default_rng(random.getrandbits(64)).random(3),
    "Random": lambda: random.Random(int(np.random.randint(2**31))).random(),
    "torch.Generator": lambda: torch.rand(1, generator=torch.Generator().manual_seed(random.getrandbits(60))),
}


@pytest.mark.parametrize("name", UNSEEDED)
@with_workers
def test_what_the_operating_system_seeds_is_not_replayed_in_silence(name, workers):
    with DataLoader(Drawing(12, UNSEEDED[name]), 3, **workers) as loader:
        list(loader)
        for number in (0, 3):  # the first batch of an epoch always has a checksum
            with pytest.warns(UserWarning, match=rf"Batch {number} of epoch 0 cannot be reproduced: {VARIES}"):
                loader.replay(0, number).batch  # noqa: B018 - made when it is asked for
            with pytest.warns(UserWarning, match=rf"Sample 1 of batch {number}, epoch 0, cannot be .* {VARIES}"):
                loader.replay(0, number).sample(1)


@pytest.mark.parametrize("name", SEEDED)
@with_seeded_globals
def test_the_seed_that_the_warning_proposes_is_replayed(name, workers, every_batch_summed):
    check_replay(SEEDED[name], workers)


def test_the_generators_that_the_warning_proposes_in_threads_are_replayed(every_batch_summed):
    check_replay(lambda: get_worker_info().rng.random_generator.getrandbits(60), WORKERS["threads"])


def check_replay(draw, workers):
    with DataLoader(Drawing(12, draw), 3, **workers) as loader:
        epochs = [list(loader), list(loader)]
        for epoch, batches in enumerate(epochs):
            assert raw(batches[0]) != raw(batches[1])
            for number, batch in enumerate(batches):
                assert raw(loader.replay(epoch, number).batch) == raw(batch)
                loader.replay(epoch, number).sample(2)


def test_a_warning_is_given_once_for_each_replayed_batch():
    with DataLoader(Drawing(6, UNSEEDED["Random"]), 3) as loader:
        list(loader)
        again = loader.replay(0, 1)
        with pytest.warns(UserWarning, match=VARIES) as given:
            again.batch, again.batch  # noqa: B018
        assert len(given) == 1
        assert given[0].filename == __file__


class Rare(Numbers):
    """Only one sample of many draws from a generator that is not seeded."""

    def __getitem__(self, i):
        image = np.full((3, 40, 40), i, np.float32)
        if i == 37:
            image[:] = np.random.default_rng().random(image.shape)
        return {"image": image, "label": i}


def test_one_sample_of_a_large_batch(every_batch_summed):
    with DataLoader(Rare(64), 64, num_workers=1) as loader:
        list(loader)
        with pytest.warns(UserWarning, match=VARIES):
            loader.replay(0, 0).batch  # noqa: B018
        loader.replay(0, 0).sample(36)
        with pytest.warns(UserWarning, match=VARIES):
            loader.replay(0, 0).sample(37)


class OfTheProcess(Numbers):
    def __getitem__(self, i):
        return i, os.getpid()


class Counting(Numbers):
    """A sample contains how many were made before."""

    made = 0

    def __getitem__(self, i):
        self.made += 1
        return self.made


def test_samples_that_depend_on_the_process_are_not_replayed_in_silence(every_batch_summed):
    with DataLoader(OfTheProcess(12), 3, num_workers=2) as loader:
        list(loader)
        with pytest.warns(UserWarning, match=f"Batch 2 of epoch 0 cannot be reproduced: {CHANGED}"):
            loader.replay(0, 2).batch  # noqa: B018
    with DataLoader(Counting(12), 3) as loader:
        list(loader)
        with pytest.warns(UserWarning, match=VARIES):
            loader.replay(0, 2).batch  # noqa: B018


def test_a_change_of_the_dataset_is_named_unless_it_was_reloaded(every_batch_summed):
    dataset = Numbers(12)
    with DataLoader(Drawing(12, lambda: 1), 3) as loader:
        list(loader)
        loader.dataset.draw = lambda: 2
        with pytest.warns(UserWarning, match=CHANGED):
            assert loader.replay(0, 2).batch[1].tolist() == [2, 2, 2]
        loader.reload()
        assert loader.replay(0, 2).batch[1].tolist() == [2, 2, 2]
        loader.reload(dataset)
        assert loader.replay(0, 2).batch.tolist() == [6, 7, 8]
        loader.reload(Drawing(12, UNSEEDED["Random"]))
        with pytest.warns(UserWarning, match=VARIES):
            loader.replay(0, 2).batch  # noqa: B018


def test_an_unseeded_collate_fn_and_chunks(every_batch_summed):
    def noisy(samples):
        return samples, np.random.default_rng().random()

    for options in ({"collate_fn": noisy}, {"collate_fn": noisy, "chunk_size": 2}):
        with DataLoader(Numbers(12), 4, num_workers=1, workers="thread", **options) as loader:
            list(loader)
            with pytest.warns(UserWarning, match=VARIES):
                loader.replay(0, 1).batch  # noqa: B018
            loader.replay(0, 1).sample(1)


class Sometimes(Numbers):
    """Raises from the second time on."""

    made = 0

    def __getitem__(self, i):
        self.made += 1
        if self.made > 30:
            raise ValueError("made too often")
        return self.made


def test_a_second_attempt_that_fails_is_a_difference():
    with DataLoader(Sometimes(12), 12) as loader:
        list(loader)
        with pytest.warns(UserWarning, match=VARIES):
            loader.replay(0, 0).batch  # noqa: B018


# ---- no false alarm --------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: int
    y: list[int]


class Kind(enum.Enum):
    ONE = 1


@dataclasses.dataclass
class Record:
    name: str
    values: np.ndarray
    kind: Kind


class Graph:
    """Its state leaves out an attribute and adds another, as objects with caches do."""

    def __init__(self, size):
        self.edges = torch.arange(size * 2).reshape(2, -1)
        self.cache = os.getpid()

    def __getstate__(self):
        return {"edges": self.edges, "loaded": True}


class Everything(Numbers):
    """Deterministic samples of many kinds, some of which differ in bytes that have no meaning."""

    def __getitem__(self, i):
        padded = np.empty(3, np.dtype([("a", "u1"), ("b", "f8")], align=True))
        padded["a"], padded["b"] = i, i / 3
        words = {random.choice(string.ascii_letters) * k for k in range(9)}
        return {
            "nan": np.array([np.nan, -np.inf, -0.0, i]),
            "number": float("nan"),
            "complex": torch.tensor([1 + 2j]).conj(),
            "long": np.full(2, i, np.longdouble) / 3,
            "half": torch.full((400,), i / 7, dtype=torch.bfloat16),
            "image": torch.rand(3, 20, 20).contiguous(
                memory_format=torch.channels_last_3d if i < 0 else torch.contiguous_format
            ),
            "ragged": torch.rand(random.randrange(4)),
            "text": [f"ä {i}", "", "\udc80", b"bytes", "x" * random.randrange(999)],
            "none": None,
            "empty": [np.empty((0, 3)), [], {}, ()],
            "objects": np.array([i, "x", None], object),
            "dates": np.array(["2024-01-01", "NaT"], "M8[D]"),
            "tuple": Point(i, [i]),
            "enum": Kind.ONE,
            "record": Record("r", np.arange(i), Kind.ONE),
            "graph": Graph(i),
            "mapping": UserDict(a=np.float32(i)),
            "set": words,
            "by a set": {word: len(word) for word in words},
            "code": [len, Graph, np, random.Random.random],
            "huge": 1 << 70,
            "padded": padded,
            "sparse": torch.eye(3).to_sparse(),
            "gradient": torch.rand(2, requires_grad=True),
            "uuid": uuid.UUID(int=i),
        }


def as_they_are(samples):
    return samples


@with_seeded_globals
def test_no_false_alarm_for_any_kind_of_data(workers, every_batch_summed):
    workers = dict(workers)
    with DataLoader(Everything(20), 4, shuffle=True, collate_fn=as_they_are, **workers) as loader:
        state = None
        for number, _ in enumerate(loader):
            if number == 2:
                state = loader.state_dict()
        list(loader)
        for epoch, number in ((0, 0), (0, 4), (1, 2)):
            again = loader.replay(epoch, number)
            assert len(again.batch) == 4
            again.sample(-1)
        first = [loader.replay(0, number).batch for number in (3, 4)]
    with DataLoader(Everything(20), 4, shuffle=True, collate_fn=as_they_are, **workers) as loader:
        loader.load_state_dict(state)
        resumed = list(loader)
        assert [checksum(batch) for batch in first] == [checksum(loader.replay(0, number).batch) for number in (3, 4)]
        assert len(resumed) == 2


@with_workers
def test_no_false_alarm_for_collated_and_empty_batches(workers, every_batch_summed):
    batches = [[0, 1, 2], [], [3], list(range(20))]
    for options in ({"batch_sampler": batches}, {"batch_size": None}, {"batch_size": 5, "output": "numpy"}):
        collate = {"collate_fn": as_they_are} if "batch_sampler" in options else {}
        with DataLoader(Augmented(20), **options, **collate, **workers) as loader:
            delivered = list(loader)
            assert all(record.checksum is not None for record in loader.events.batches())
            for number, batch in enumerate(delivered[:4]):
                assert raw(loader.replay(0, number).batch) == raw(batch)


def test_the_loop_may_change_its_batches(every_batch_summed):
    with DataLoader(Augmented(20), 5, num_workers=2) as loader:
        for batch in loader:
            for part in batch:
                part.zero_()
        loader.replay(0, 1).batch  # noqa: B018
        loader.replay(loader.events.batches()[2]).batch  # noqa: B018


# ---- checksums -------------------------------------------------------------------------------------------------------

DTYPES = st.sampled_from(["f4", "f8", "i2", "?", "c8", "U3", "M8[s]"])
SHAPES = arrays.array_shapes(min_side=0, max_side=40, max_dims=3)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers(),
    arrays.arrays(DTYPES, SHAPES), st.frozensets(st.text(max_size=3), max_size=5),
)  # fmt: skip
BATCHES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.text(max_size=5), inner)),
    max_leaves=20,
)


@given(BATCHES)
@settings(max_examples=150, deadline=None)
def test_a_copy_has_the_same_checksum(batch):
    assert checksum(pickle.loads(pickle.dumps(batch))) == checksum(batch)


def test_the_content_of_the_samples_counts_if_a_batch_is_a_long_list():
    first, second = ([{"image": np.full(9, i + add), "label": i} for i in range(400)] for add in (0, 1))
    assert checksum(first) != checksum(second)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(0), st.booleans())
@settings(max_examples=100, deadline=None)
def test_other_values_have_another_checksum(shape, seed, as_tensor):
    generator = np.random.default_rng(seed)
    first, second = generator.random(shape), generator.random(shape)
    if as_tensor:
        first, second = torch.from_numpy(first), torch.from_numpy(second)
    assert checksum([first]) == checksum([first + 0])
    assert checksum([first]) != checksum([second])
    assert checksum({"a": (0, first)}) != checksum({"a": (0, second)})


class Hostile:
    """Whatever is asked of it, it raises."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __eq__(self, other):
        raise RuntimeError

    __hash__ = None


class HostileList(list):
    def __iter__(self):
        raise RuntimeError

    __len__ = __getitem__ = __iter__


class HostileDict(dict):
    def items(self):
        raise RuntimeError

    __iter__ = __len__ = __getitem__ = keys = values = items


def test_a_checksum_calls_no_code_of_the_user_and_looks_at_a_bounded_part():
    nested = []
    nested.append(nested)
    for batch in (Hostile(), HostileList([1, 2]), HostileDict(a=1), nested):
        assert checksum([batch, batch]) == checksum([batch, batch])
    assert checksum(HostileList([1])) != checksum(HostileList([2]))
    assert checksum(HostileDict(a=1)) != checksum(HostileDict(a=2))

    seen = []

    class Watched:
        @property
        def __class__(self):
            seen.append(self)
            return Watched

    checksum([[Watched() for _ in range(10**3)] for _ in range(100)])
    assert not seen
    looked = []
    parts = checksum_module._parts
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checksum_module, "_parts", lambda value: looked.append(value) or parts(value))
        checksum([[[i] * 100 for i in range(10**3)] for _ in range(100)])
    assert len(looked) == checksum_module.VALUES


def test_checksums_take_a_bounded_share_of_the_time():
    with DataLoader(range(20_000), 1) as loader:
        for _ in loader:
            pass
        summed = [record.checksum is not None for record in loader.events.batches()]
        assert sum(summed) < len(summed) / 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.replay(0, 9).batch  # noqa: B018
