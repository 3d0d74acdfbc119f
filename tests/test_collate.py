"""Batches equal those of torch's `default_collate`: types, dtypes, values and errors."""

from __future__ import annotations

import collections
import dataclasses
import enum
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from same import assert_same
from torch.utils.data import default_collate, default_convert

from nbloader import DataLoader
from nbloader.batch.collate import (
    LocalArrays,
    NotPlannedError,
    collate_object,
    collate_samples,
    convert,
)
from nbloader.batch.serialize import (
    ArrayToBeTensor,
    EncodedBatch,
    PlannedArrays,
    encode_object,
    load_object,
    tensor_of,
)

try:
    import ml_dtypes  # as Keras and jax do: it adds bfloat16 and others to NumPy, which torch does not take from NumPy
except ImportError:
    ml_dtypes = None

pytestmark = [
    pytest.mark.unit,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # torch warns once, of what it is given here
    pytest.mark.filterwarnings("ignore:In future, it will be an error for 'np.bool"),  # torch before 2.5 or so
]


class Pair(NamedTuple):
    left: Any
    right: Any


class FrozenMapping(collections.abc.Mapping):
    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Row(collections.UserList):
    pass


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Sample:
    image: Any
    label: Any
    cached: Any = dataclasses.field(init=False, default=None)


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """Like `transformers.ModelOutput`: a mapping that is also a dataclass."""

    logits: Any = None
    loss: Any = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    __hash__ = None


# ---- the two ways


def collate(samples: list[Any], output: str = "torch") -> Any:
    """Collate in a worker and rebuild in the notebook's process."""
    target = PlannedArrays(output)
    try:
        return load(target.encode(collate_samples(samples, target)))[0]
    except NotPlannedError:
        return carry(collate_object(samples, output))


def collate_here(samples: list[Any], output: str = "torch") -> Any:
    """Collate in the notebook's process."""
    try:
        return collate_samples(samples, LocalArrays(output))
    except NotPlannedError:
        return collate_object(samples, output)


def carry(obj: Any) -> Any:
    """Send an object to the other process: pickled, with its arrays beside the pickle."""
    return carry_in(obj)[0]


def carry_in(obj: Any) -> tuple[Any, bytearray]:
    """The same; returns the memory too."""
    return load(encode_object(obj))


def load(encoded: EncodedBatch) -> tuple[Any, bytearray]:
    """Write a batch into memory, and build it there."""
    memory = bytearray(b"\xa5" * encoded.nbytes)
    encoded.write(memory)
    return load_object(encoded.skeleton, memory), memory


def outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return error


# ---- samples, n alike

NUMPY_DTYPES = [*"bBhHiIlLefd?FD", "float128", ">f4", "U3", "S2", "O", "datetime64[s]"]
if ml_dtypes is not None:
    NUMPY_DTYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
TORCH_DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.bool, torch.bfloat16, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.uint16, torch.uint32, torch.uint64, torch.complex32,
]  # fmt: skip
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
SEEDS = st.integers(0, 2**32 - 1)


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, shape)


@st.composite
def arrays(draw):
    dtype, shape, layout = draw(st.sampled_from(NUMPY_DTYPES)), draw(SHAPES), draw(st.sampled_from("CFV"))

    def make(seed):
        array = np.asarray(numbers(shape, seed).astype(dtype))
        if layout == "F":
            return np.asfortranarray(array)
        if layout == "V" and shape:  # every second of a larger one
            return np.repeat(array, 2, axis=0)[::2]
        return array

    return make


@st.composite
def tensors(draw):
    dtype, shape, layout = draw(st.sampled_from(TORCH_DTYPES)), draw(SHAPES), draw(st.sampled_from("CTEGS"))

    def make(seed):
        tensor = torch.from_numpy(numbers(shape, seed)).to(torch.float32).to(dtype)
        if layout == "T" and len(shape) > 1:
            return tensor.transpose(0, 1)
        if layout == "E" and len(shape) and dtype is torch.float32:
            return tensor[:1].expand(3, *shape[1:]) if shape[0] else tensor
        if layout == "G" and dtype in (torch.float32, torch.float64):
            return tensor.requires_grad_()
        if layout == "S" and dtype is torch.float32 and shape:
            return tensor.to_sparse()
        return tensor

    return make


def constant(value):
    return lambda seed: value


LEAVES = st.one_of(
    arrays(),
    arrays(),
    tensors(),
    tensors(),
    st.sampled_from([
        lambda seed: seed,
        lambda seed: seed - 2**31,
        lambda seed: 2**63 - 5 + seed % 10,
        lambda seed: seed / 7,
        lambda seed: float("nan"),
        lambda seed: bool(seed % 2),
        lambda seed: f"name {seed}",
        lambda seed: bytes([seed % 256]),
        np.float32,
        np.float64,
        lambda seed: np.int16(seed % 1000),
        lambda seed: np.bool_(seed % 2),
        np.complex64,
        np.str_,
        lambda seed: np.datetime64(seed, "s"),
        lambda seed: Colour(seed % 2 + 1),
        complex,
        lambda seed: np.ma.masked_array([1.0, seed], mask=[0, 1]),
        lambda seed: torch.nn.Parameter(torch.ones(2)),
        constant(None),
        constant(object),
    ]),
)  # fmt: skip


def nodes(children):
    several = st.lists(children, max_size=4)
    return st.one_of(
        several.map(lambda parts: lambda seed: [p(seed + i) for i, p in enumerate(parts)]),
        several.map(lambda parts: lambda seed: tuple(p(seed + i) for i, p in enumerate(parts))),
        several.map(lambda parts: lambda seed: {f"k{i}": p(seed + i) for i, p in enumerate(parts)}),
        several.map(lambda parts: lambda seed: {i: p(seed + i) for i, p in enumerate(parts)}),
        several.map(
            lambda parts: lambda seed: collections.OrderedDict((f"k{i}", p(seed)) for i, p in enumerate(parts))
        ),
        several.map(lambda parts: lambda seed: collections.UserDict({f"k{i}": p(seed) for i, p in enumerate(parts)})),
        several.map(lambda parts: lambda seed: FrozenMapping((f"k{i}", p(seed)) for i, p in enumerate(parts))),
        several.map(lambda parts: lambda seed: Row(p(seed) for p in parts)),
        several.map(lambda parts: lambda seed: collections.deque(p(seed) for p in parts)),
        st.tuples(children, children).map(lambda two: lambda seed: Pair(two[0](seed), two[1](seed + 1))),
    )


TEMPLATES = st.recursive(LEAVES, nodes, max_leaves=5)


@settings(max_examples=400)
@given(TEMPLATES, st.lists(SEEDS, min_size=1, max_size=4))
def test_samples_of_one_structure_are_collated_as_by_torch(template, seeds):
    samples = [template(seed) for seed in seeds]
    ours, theirs = outcome(collate, samples), outcome(carried_default, samples)
    assert_same(ours, theirs)
    if isinstance(theirs, Exception):
        assert type(ours) is type(theirs), (ours, theirs)


@settings(max_examples=400)
@given(TEMPLATES, TEMPLATES, st.lists(st.tuples(SEEDS, st.booleans()), min_size=2, max_size=4))
def test_samples_that_differ_are_collated_or_refused_as_by_torch(one, other, choices):
    samples = [(one if first else other)(seed) for seed, first in choices]
    assert_same(outcome(collate, samples), outcome(carried_default, samples))


@settings(max_examples=400)
@given(TEMPLATES, TEMPLATES, st.lists(st.tuples(SEEDS, st.booleans()), min_size=1, max_size=4))
def test_batches_that_stay_in_this_process_are_collated_as_by_torch(one, other, choices):
    samples = [(one if first else other)(seed) for seed, first in choices]
    assert_same(outcome(collate_here, samples), outcome(default_collate, samples))


def carried_default(samples):
    """What torch returns in the process that collates; `requires_grad` is not sent."""
    batch = default_collate(samples)
    return carry(batch)


@settings(max_examples=200)
@given(TEMPLATES, SEEDS)
def test_unbatched_samples_are_converted_as_by_torch(template, seed):
    sample = template(seed)
    theirs = outcome(default_convert, sample)
    assume(not isinstance(theirs, Exception))
    assert_same(carry(convert(sample, ArrayToBeTensor)), carry(theirs))


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("make", [lambda m: m, lambda m: {"a": [m]}, lambda m: (m, 1)], ids=["alone", "dict", "tuple"])
def test_an_unbatched_matrix_is_converted_as_by_torch(make):
    sample = make(np.matrix([[1, 2], [3, 4]]))
    assert_same(carry(convert(sample, ArrayToBeTensor)), carry(default_convert(sample)))
    with DataLoader([sample], batch_size=None) as loader:
        assert_same(next(iter(loader)), default_convert(sample))


@settings(max_examples=200)
@given(TEMPLATES, SEEDS)
def test_objects_arrive_unchanged(template, seed):
    sample = template(seed)
    arrived = carry([sample, sample])
    assert_alike(arrived[0], sample)
    if isinstance(sample, torch.Tensor):
        assert arrived[0] is arrived[1]


def assert_alike(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.shape, ours.layout) == (theirs.dtype, theirs.shape, theirs.layout)
        assert ours.requires_grad == theirs.requires_grad
        if theirs.layout is torch.strided:
            assert_same(ours.detach(), theirs.detach())
    elif isinstance(theirs, np.ndarray):
        native = theirs.dtype.newbyteorder("=")
        assert (type(ours), ours.dtype.newbyteorder("="), ours.shape) == (type(theirs), native, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(theirs, collections.abc.Mapping):
        for key in theirs:
            assert_alike(ours[key], theirs[key])
    elif isinstance(theirs, collections.abc.Sequence) and not isinstance(theirs, (str, bytes)):
        assert type(ours) is type(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_alike(a, b)
    else:
        assert type(ours) is type(theirs)


# ---- single cases


def test_strings_in_a_tuple_are_collated_as_by_torch():
    assert_same(collate([("a", 1), ("b", 2)]), default_collate([("a", 1), ("b", 2)]))
    assert collate([("a", 1), ("b", 2)])[0] == ("a", "b")
    assert collate([{"s": "a"}, {"s": "b"}]) == {"s": ["a", "b"]}


def test_dataclasses_keep_their_type():
    batch = collate([Sample(np.ones(3, np.float32), 1), Sample(np.zeros(3, np.float32), 2)])
    assert type(batch) is Sample
    assert batch.image.shape == (2, 3)
    assert batch.label.tolist() == [1, 2]
    assert batch.cached is None


def test_a_dataclass_that_is_a_mapping_is_collated_as_a_mapping():
    samples = [Output(logits=torch.ones(2)), Output(logits=torch.zeros(2))]
    batch = collate(samples)
    assert type(batch) is Output
    assert batch["logits"].tolist() == default_collate(samples)["logits"].tolist()


def test_the_error_for_unequal_sizes_names_the_sample_and_the_remedy():
    with pytest.raises(RuntimeError, match=r"got \[3\] at entry 0 and \[4\] at entry 2\..*collate_fn"):
        collate([np.ones(3), np.ones(3), np.ones(4)])
    with pytest.raises(RuntimeError, match=r"got \[3, 1\] at entry 0 and \[3\] at entry 1"):
        collate([torch.ones(3, 1), torch.ones(3)])
    with pytest.raises(RuntimeError, match="each element in list of batch should be of equal size"):
        collate([[1, 2], [1]])


@pytest.mark.parametrize("sample", [None, object(), np.array(["a"]), np.array([None]), {"x": None}])
def test_the_error_names_the_type_that_cannot_be_collated(sample):
    with pytest.raises(TypeError, match=r"default_collate: batch must contain tensors, numpy arrays.*; found"):
        collate([sample, sample])


def test_a_registered_type_is_collated_by_its_function(monkeypatch):
    from torch.utils.data._utils.collate import default_collate_fn_map

    monkeypatch.setitem(
        default_collate_fn_map, Sample, lambda batch, *, collate_fn_map=None: ("registered", len(batch))
    )
    assert collate([Sample(1, 2), Sample(3, 4)]) == ("registered", 2)


def test_arrays_with_negative_strides_are_accepted():
    """Such as a flipped image; torch refuses them."""
    flipped = np.arange(6).reshape(2, 3)[:, ::-1]
    assert collate([flipped, flipped])[1].tolist() == [[2, 1, 0], [5, 4, 3]]
    assert carry(convert(flipped, ArrayToBeTensor)).tolist() == [[2, 1, 0], [5, 4, 3]]
    assert convert(flipped, tensor_of).tolist() == [[2, 1, 0], [5, 4, 3]]


def test_an_empty_batch_raises_the_error_type_of_torch():
    assert_same(outcome(collate, []), outcome(default_collate, []))


def test_numpy_output_gives_arrays_of_the_same_values():
    samples = [(np.full((2, 3), i, np.float32), i, {"t": torch.full((2,), i), "s": "x"}) for i in range(3)]
    image, label, rest = collate(samples, "numpy")
    assert [type(x) for x in (image, label, rest["t"])] == [np.ndarray] * 3
    assert image.dtype == np.float32
    np.testing.assert_array_equal(image[:, 0, 0], [0, 1, 2])
    np.testing.assert_array_equal(rest["t"], [[0, 0], [1, 1], [2, 2]])


def test_batches_are_writable_and_independent():
    first, second = collate([(np.zeros(3), np.zeros(5)), (np.zeros(3), np.zeros(5))])
    first += 1
    assert (second == 0).all()


def test_the_padding_between_arrays_is_at_most_a_cache_line():
    target = PlannedArrays("torch")
    batch = collate_samples([(np.zeros(3, np.uint8), 1, 2.0)] * 5, target)
    assert target.encode(batch).nbytes == 64 * 3


def test_a_worker_without_torch_collates_the_same_types():
    """Subclasses of int, float and ndarray too, which torch itself must collate."""
    code = """
import sys, enum, numpy as np
from nbloader.batch.collate import NotPlannedError, collate_samples
from nbloader.batch.serialize import PlannedArrays
class Colour(enum.IntEnum):
    RED = 1
for sample in (np.ones(3), 1, 2.0, True, "a", np.float32(1), {"a": (1, [2])}):
    target = PlannedArrays("torch")
    target.encode(collate_samples([sample, sample], target))
for sample in (Colour.RED, np.ma.masked_array([1.0]), np.matrix([[1]]), type("F", (float,), {})(1)):
    try:
        collate_samples([sample, sample], PlannedArrays("torch"))
    except NotPlannedError:
        continue
    raise AssertionError(sample)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numbers_of_several_types_are_planned_without_torch():
    """Otherwise each worker of a dataset without tensors would import it."""
    numbers_ = [1, 2.5], [2.5, 1], [True, 2]
    assert [collate_samples(samples, LocalArrays("numpy")).dtype.str for samples in numbers_] == ["<f4", "<f8", "<i8"]
    with pytest.raises(NotPlannedError):
        collate_samples([1, np.float64(2)], LocalArrays("torch"))
