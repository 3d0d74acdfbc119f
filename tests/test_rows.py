"""Datasets in memory: batches gathered by indexing equal those that are made sample by sample."""

from __future__ import annotations

import pickle
import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from same import assert_same
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data import DataLoader as TorchLoader

from nbloader import DataLoader
from nbloader._util.rng import PreservedRandomState
from nbloader.batch.collate import LocalArrays
from nbloader.batch.rows import RowSelector, Selection, is_in_memory
from nbloader.batch.serialize import PlannedArrays, load_object
from nbloader.sampling.index_arrays import IndexArray, array_batches
from nbloader.sampling.permutation import Permutation
from nbloader.sampling.samplers import LargeRandomSampler

LENGTH = 12
DTYPES = ("float32", "float64", "int64", "uint8", "bool", "float16", "complex64")


class Rows:
    """Gives the samples of a dataset one by one: a class that is not recognized."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return self.dataset[i]


# ---- datasets


@st.composite
def arrays(draw):
    shape = draw(st.lists(st.integers(1, 3), max_size=2))
    array = (np.arange(LENGTH * np.prod(shape, dtype=int)) % 251).astype(draw(st.sampled_from(DTYPES)))
    array = array.reshape(LENGTH, *shape)
    way = draw(st.sampled_from(("as is", "transposed", "every second", "reversed")))
    if way == "transposed":
        array = np.asfortranarray(array)
    elif way == "every second":
        array = np.repeat(array, 2, 0)[::2]
    elif way == "reversed":
        array = array[::-1]
    return array


@st.composite
def tensors(draw):
    array = draw(arrays())
    tensor = torch.from_numpy(array.copy(order="K"))
    return tensor.to(torch.bfloat16) if draw(st.booleans()) and not tensor.is_complex() else tensor


def stacks(parts):
    return st.one_of(
        st.lists(parts, min_size=1, max_size=3).map(lambda chosen: StackDataset(*chosen)),
        st.dictionaries(st.sampled_from("abc"), parts, min_size=1).map(lambda chosen: StackDataset(**chosen)),
    )


def subsets(parts):
    positions = st.lists(st.integers(-LENGTH, LENGTH - 1), min_size=LENGTH, max_size=LENGTH)
    kinds = st.sampled_from((list, tuple, np.array, torch.tensor))
    return st.builds(lambda part, chosen, kind: Subset(part, kind(chosen)), parts, positions, kinds)


leaves = st.one_of(arrays(), tensors(), st.lists(tensors(), min_size=1, max_size=3).map(lambda t: TensorDataset(*t)))
datasets = st.recursive(leaves, lambda parts: st.one_of(stacks(parts), subsets(parts)), max_leaves=4)
batches = st.lists(st.integers(-LENGTH, LENGTH - 1), min_size=1, max_size=6)


def by_sample(dataset, indices, output="torch"):
    return next(iter(DataLoader(Rows(dataset), batch_sampler=[indices], output=output)))


def memory_of(part):
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        return [array for child in part for array in memory_of(child)]
    return [part.view(torch.int16).numpy() if part.dtype == torch.bfloat16 else np.asarray(part)]


def sources_of(dataset):
    if isinstance(dataset, Subset):
        return sources_of(dataset.dataset)
    if isinstance(dataset, TensorDataset):
        return memory_of(dataset.tensors)
    if isinstance(dataset, StackDataset):
        parts = dataset.datasets
        return [a for part in (parts.values() if isinstance(parts, dict) else parts) for a in sources_of(part)]
    return memory_of(dataset)


@settings(max_examples=80, deadline=None)
@given(dataset=datasets, indices=batches, as_array=st.booleans())
def test_gathered_batches_equal_those_of_samples(dataset, indices, as_array):
    assert is_in_memory(dataset)
    given_indices = IndexArray(np.array(indices)) if as_array else indices
    selection = RowSelector().select(dataset, given_indices, 0, "torch")
    assert type(selection) is Selection
    here = LocalArrays("torch")
    batch = selection.collate(here)
    expected = by_sample(dataset, indices)
    assert_same(batch, expected)
    arrays = memory_of(batch)
    assert here.nbytes == sum(array.nbytes for array in arrays)
    assert all(array.flags.c_contiguous for array in arrays)
    assert not any(np.shares_memory(array, source) for array in arrays for source in sources_of(dataset))
    planned = PlannedArrays("torch")
    encoded = planned.encode(selection.collate(planned))
    memory = bytearray(b"\xa5" * encoded.nbytes)
    encoded.write(memory)
    assert_same(load_object(encoded.skeleton, memory), expected)


@settings(max_examples=40, deadline=None)
@given(dataset=datasets, indices=batches)
def test_gathered_arrays_equal_those_of_samples(dataset, indices):
    selection = RowSelector().select(dataset, indices, 0, "numpy")
    if selection is not None:  # None: NumPy lacks the dtype of a tensor
        assert_same(selection.collate(LocalArrays("numpy")), by_sample(dataset, indices, "numpy"))


class Doubled(TensorDataset):
    def __getitem__(self, i):
        return tuple(2 * tensor for tensor in super().__getitem__(i))


def test_other_classes_and_special_tensors_are_left_to_their_samples():
    x = torch.arange(4.0)
    own = TensorDataset(x)
    own.__getitems__ = lambda indices: [(x[i] + 1,) for i in indices]
    assert next(iter(DataLoader(own, 2)))[0].tolist() == [1, 2]
    assert next(iter(DataLoader(Doubled(x), 4)))[0].tolist() == [0, 2, 4, 6]
    gradient = next(iter(DataLoader(TensorDataset(torch.ones(4, requires_grad=True)), 2)))[0]
    assert gradient.requires_grad
    for dataset in (
        Doubled(x), TensorDataset(x.clone().requires_grad_()), TensorDataset(x.to(torch.complex64).conj()),
        StackDataset(x, [1, 2, 3, 4]), np.array(["a", "b"]), np.array(3.0), torch.tensor(3.0), x.to_sparse(), [1], {},
        np.zeros(3, [("a", "f4")]), np.zeros(3, ">f4"), Subset([1, 2], [0]),
    ):  # fmt: skip
        assert not is_in_memory(dataset)


@pytest.mark.parametrize("indices", [[True, False], [0.0], ["a"], [], [2**70], [[0, 1]], [torch.tensor(1)], [slice(2)]])
def test_indices_that_are_no_plain_integers_are_left_to_the_samples(indices):
    assert RowSelector().select(torch.arange(4), indices, 0, "torch") is None


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "workers": "thread"}])
def test_an_index_out_of_range_raises_the_error_of_its_sample(workers):
    dataset = Subset(TensorDataset(torch.arange(8)), range(6))
    with DataLoader(dataset, batch_sampler=[[0, 7], [1, -6]], **workers) as loader:
        epoch = iter(loader)
        with pytest.raises(IndexError):
            next(epoch)
        assert next(epoch)[0].tolist() == [1, 0]
    with DataLoader(TensorDataset(torch.arange(4)), batch_sampler=[[0, 7, 1]], on_error="skip") as loader:
        assert [batch[0].tolist() for batch in loader] == [[0, 1]]
        assert [event.sample for event in loader.events.recent() if type(event).__name__ == "SampleFailed"] == [7]


def test_a_collate_function_gets_the_list_of_samples():
    got = []
    dataset = TensorDataset(torch.arange(4), torch.ones(4))
    list(DataLoader(dataset, 2, collate_fn=got.append))
    assert_same(got, [[dataset[0], dataset[1]], [dataset[2], dataset[3]]])


def test_changes_of_the_dataset_reach_the_next_batch_and_those_of_a_subsets_list_the_next_epoch():
    dataset = TensorDataset(torch.arange(4))
    chosen = Subset(dataset, [0, 1, 2, 3])
    loader = DataLoader(chosen, 2)
    epoch = iter(loader)
    next(epoch)
    dataset.tensors = (torch.arange(10, 14),)
    assert next(epoch)[0].tolist() == [12, 13]
    chosen.indices[0] = 3
    assert next(iter(loader))[0].tolist() == [13, 11]


def test_workers_gather_the_same_batches():
    image, label = torch.arange(60.0).view(20, 3), np.arange(20)
    dataset = Subset(StackDataset(image=image, rest=StackDataset(label, TensorDataset(image.bfloat16()))), range(1, 18))
    torch.manual_seed(5)
    expected = list(TorchLoader(dataset, 4, shuffle=True))
    for options in ({}, {"num_workers": 1}, {"num_workers": 2, "workers": "thread"}, {"prefetch": 2}):
        torch.manual_seed(5)
        with DataLoader(dataset, 4, shuffle=True, **options) as loader:
            assert_same(list(loader), expected)
            records = loader.events.batches()
            order = [i for record in records for i in record.indices]
            assert (sorted(order), set(map(type, order))) == (list(range(17)), {int})
            assert {record.slowest_index for record in records} == {None}
            assert all(record.nbytes > 0 for record in records)


# ---- Hugging Face: a class of this name, in the place of the package


class Columns:
    def __init__(self, columns, kind):
        self.columns = columns
        self.format = {"type": kind}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i):
        if isinstance(i, list):
            return {name: [v[k] for k in i] if isinstance(v, list) else v[i] for name, v in self.columns.items()}
        return {name: values[i] for name, values in self.columns.items()}

    def __getitems__(self, indices):
        raise AssertionError("the columns are read at once")


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_columns_of_hugging_face_are_read_at_once(monkeypatch, kind):
    cls = type("Dataset", (Columns,), {"__module__": "datasets.arrow_dataset"})
    module = types.ModuleType("datasets.arrow_dataset")
    module.Dataset = cls
    monkeypatch.setitem(sys.modules, "datasets.arrow_dataset", module)
    image, number = np.arange(24.0).reshape(6, 4), np.arange(6)
    if kind == "torch":
        image, number = torch.from_numpy(image), torch.from_numpy(number)
    columns = {"image": image, "text": [f"text {i}" for i in range(6)], "number": number}
    expected = list(TorchLoader(Rows(Columns(columns, kind)), 4))
    assert_same(list(DataLoader(cls(columns, kind), 4)), expected)
    uneven = {**columns, "more": [torch.zeros(1, 2)] * 6}  # a column that is a list of tensors
    assert_same(list(DataLoader(cls(uneven, kind), 4)), list(TorchLoader(Rows(Columns(uneven, kind)), 4)))


# ---- indices


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 30), size=st.integers(1, 8), drop_last=st.booleans(), kind=st.integers(0, 4),
    num_samples=st.integers(1, 80), seeded=st.booleans(),
)  # fmt: skip
def test_batches_of_indices_as_arrays_are_those_of_torchs_samplers(n, size, drop_last, kind, num_samples, seeded):
    def batches(draw):
        torch.manual_seed(n)
        generator = torch.Generator().manual_seed(7) if seeded else None
        sampler = (
            SequentialSampler(range(n)), range(n, 0, -1), RandomSampler(range(n), generator=generator),
            RandomSampler(range(n), num_samples=num_samples, generator=generator),
            LargeRandomSampler(range(n), generator),
        )[kind]  # fmt: skip
        drawn = [list(batch) for batch in draw(BatchSampler(sampler, size, drop_last))]
        return (
            drawn,
            torch.initial_seed(),
            torch.rand(1),
            None if generator is None else torch.rand(1, generator=generator),
        )

    with PreservedRandomState():
        assert_same(batches(array_batches), batches(iter))


def test_other_samplers_draw_lists():
    class Mine(SequentialSampler):
        pass

    for sampler in (Mine(range(3)), RandomSampler(range(3), replacement=True), [2, 1]):
        assert array_batches(BatchSampler(sampler, 2, False)) is None
    assert array_batches([[1, 2]]) is None


def test_an_index_array_behaves_as_a_list():
    indices = IndexArray(np.array([3, 1, 2]))
    assert (len(indices), indices[1], indices[:2], list(indices), repr(indices)) == (
        3,
        1,
        [3, 1],
        [3, 1, 2],
        "[3, 1, 2]",
    )
    assert {type(i) for i in (*indices, indices[0], *indices[1:])} == {int}
    assert indices == [3, 1, 2] == pickle.loads(pickle.dumps(indices, 5))
    assert indices not in ([3], "312")
    assert np.concatenate(list(Permutation(9000, 1).blocks_from(10))).tolist() == list(Permutation(9000, 1))[10:]


def test_an_epoch_over_arrays_is_resumed():
    dataset = TensorDataset(torch.arange(40))
    with DataLoader(dataset, 4, shuffle=True) as loader:
        epoch = iter(loader)
        next(epoch)
        state = loader.state_dict()
        rest = list(epoch)
    with DataLoader(dataset, 4, shuffle=True) as again:
        again.load_state_dict(state)
        assert_same(list(again), rest)


# ---- stacking in this process


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_samples_of_several_dtypes_are_collated_as_by_torch(dtype):
    rows = [torch.full((1 << 18,), float(i), dtype=dtype) for i in range(8)]
    for odd in (rows[0], rows[0].clone().requires_grad_(), rows[0].to(torch.float64)):
        mixed = [odd, *rows[1:]]
        assert_same(next(iter(DataLoader(mixed, len(mixed)))), next(iter(TorchLoader(mixed, len(mixed)))))


@settings(max_examples=60, deadline=None)
@given(
    dtypes=st.lists(
        st.sampled_from((*[torch.float32] * 6, torch.float64, torch.int64, torch.bfloat16)), min_size=15, max_size=15
    ),
    shapes=st.lists(st.sampled_from(((2, 1),) * 12 + ((), (3,))), min_size=5, max_size=5),
    gradient=st.booleans(),
)  # fmt: skip
def test_dicts_of_many_tensors_are_stacked_as_by_torch(dtypes, shapes, gradient):
    samples = [
        {f"k{k}": torch.full(shapes[k], 5 * i + k).to(dtypes[5 * i + k]) for k in range(5)} for i in range(3)
    ]  # fmt: skip
    if gradient and dtypes[7].is_floating_point:
        samples[1]["k2"].requires_grad_()
    theirs = default_collate(samples)
    ours = next(iter(DataLoader(samples, 3)))
    assert [part.requires_grad for part in ours.values()] == [part.requires_grad for part in theirs.values()]
    assert_same({k: v.detach() for k, v in ours.items()}, {k: v.detach() for k, v in theirs.items()})
    versions = {key: part._version for key, part in ours.items()}
    ours["k0"].detach().zero_()
    assert {key: part._version for key, part in ours.items() if key != "k0"} == {
        key: version for key, version in versions.items() if key != "k0"
    }
