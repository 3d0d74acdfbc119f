"""The result of a custom collate function arrives unchanged, whether parts are sent in its pickle or beside it."""

from __future__ import annotations

import collections
import gc
import pickle
import types
from typing import NamedTuple

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same import assert_same
from test_collate import carry, carry_in

from nbloader.batch.pickling import REPLACED_FILE_NAME, dump, pickled_copy
from nbloader.batch.serialize import SMALL, ArrayToBeTensor, encode_object, load_object

pytestmark = pytest.mark.unit


class Point(NamedTuple):
    x: object
    y: object


def read_only(array):
    array.flags.writeable = False
    return array


LEAVES = (
    lambda: np.arange(6.0).reshape(2, 3),
    lambda: np.arange(6.0).reshape(2, 3).T,
    lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    lambda: np.arange(12)[::2],
    lambda: np.arange(4)[::-1],
    lambda: read_only(np.arange(3)),
    lambda: np.array(5, np.int16),
    lambda: np.zeros((0, 3)),
    lambda: np.arange(3, dtype=">i4"),
    lambda: np.arange(3, dtype=np.complex64),
    lambda: np.array([True, False]),
    lambda: np.array(["a", "bc"]),
    lambda: np.array([b"a", b"bc"]),
    lambda: np.array(["2020-01-01"], "M8[D]"),
    lambda: np.array([(1, 2.0)], [("a", int), ("b", float)]),
    lambda: np.ma.masked_array([1, 2], [True, False]),
    lambda: torch.arange(6.0).reshape(2, 3),
    lambda: torch.arange(6.0).reshape(2, 3).T,
    lambda: torch.tensor(3),
    lambda: torch.zeros(0, 2),
    lambda: torch.ones(3, dtype=torch.bfloat16),
    lambda: torch.ones(2, requires_grad=True),
    lambda: torch.nn.Parameter(torch.ones(2)),
    lambda: torch.arange(3, dtype=torch.uint8),
    lambda: "text",
    lambda: 5,
    lambda: None,
    lambda: np.float32(2.5),
)

objects = st.recursive(
    st.sampled_from(LEAVES).map(lambda leaf: leaf()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(collections.OrderedDict),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
    ),
    max_leaves=8,
)


@given(objects)
def test_objects_arrive_unchanged(obj):
    assert_same(carry(obj), obj)


def test_arrays_and_tensors_are_views_of_the_received_memory():
    batch = {"a": np.zeros(3), "b": [torch.zeros(3), np.zeros((2, 2))], "c": (np.zeros(5),), "d": {"e": torch.zeros(2)}}
    got, memory = carry_in(batch)
    leaves = [got["a"], *got["b"], *got["c"], got["d"]["e"]]
    assert all((leaf == 0).all() for leaf in leaves)
    memory[:] = b"\xff" * len(memory)
    assert not any((leaf == 0).any() for leaf in leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strides_of_dense_tensors_are_preserved(dtype):
    """With torch's loader, too. Otherwise a model converts each batch to its memory format again."""
    images = torch.rand(2, 3, 8, 8).to(dtype).to(memory_format=torch.channels_last)
    sequences = torch.rand(2, 3, 4).to(dtype).permute(2, 0, 1)
    got = carry({"images": images, "more": [[[sequences]]]})
    assert got["images"].is_contiguous(memory_format=torch.channels_last)
    assert got["images"].equal(images)
    assert got["more"][0][0][0].stride() == sequences.stride()
    assert got["more"][0][0][0].equal(sequences)


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": np.ones(3), "b": [torch.ones(3)]},
        lambda: torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        lambda: [[[[np.ones(3)]]], torch.ones(3, dtype=torch.bfloat16)],
        lambda: [np.ones(3), lambda: 1, Point],
    ],
    ids=["arrays", "channels last", "nested", "functions"],
)
def test_memory_of_a_pickled_batch_is_freed_at_once(make):
    """The pickler is not part of a reference cycle: the next run of the garbage collector may be many batches away."""
    encode_object(make())  # whatever is created only once
    gc.collect()
    gc.freeze()  # collections look at new objects only, and so are fast
    gc.disable()
    try:
        found = []
        for _ in range(3):  # a thread that ends just now may leave garbage, too
            encode_object(make())
            found.append(gc.collect())
        assert min(found) == 0
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.parametrize("make", [lambda: np.ones(3), lambda: torch.ones(3), lambda: [np.ones(3)]])
def test_identity_is_preserved(make):
    one = make()
    got = carry({"a": one, "b": one})
    assert got["a"] is got["b"]
    endless = [np.ones(2)]
    endless.append(endless)
    got = carry(endless)
    assert got[1] is got


def test_identity_of_an_array_in_two_lists_is_preserved():
    one = np.ones(3)
    got = carry({"a": one, "b": [one, one], "c": {"d": one}})
    assert got["a"] is got["b"][0] is got["b"][1] is got["c"]["d"]


def test_pickling_does_not_change_the_object():
    batch = [{"x": np.ones(2)}, [np.ones(2)], np.ones(2)]
    before = batch[0], batch[0]["x"], batch[1], batch[1][0], batch[2]
    encode_object(batch)
    assert all(a is b for a, b in zip((batch[0], batch[0]["x"], batch[1], batch[1][0], batch[2]), before, strict=True))


def test_arrays_marked_as_tensors_arrive_as_tensors():
    got = carry(
        {"a": ArrayToBeTensor(np.arange(3)), "b": [ArrayToBeTensor(np.arange(4)[::-1])], "c": ArrayToBeTensor(2)}
    )
    assert [type(x) for x in (got["a"], *got["b"], got["c"])] == [torch.Tensor] * 3
    assert (got["a"].tolist(), got["b"][0].tolist(), got["c"].item()) == ([0, 1, 2], [3, 2, 1, 0], 2)


def test_arrays_arrive_writable():
    """As with torch's loader, whether or not they were in the worker."""
    got = carry({"a": np.frombuffer(b"abcd", np.uint8), "b": [read_only(np.ones((200, 200)))], "c": np.ones(2)})
    for array in (got["a"], *got["b"], got["c"]):
        assert array.flags.writeable
    assert got["a"].tolist() == [97, 98, 99, 100]


def test_arrays_whose_dtype_was_unpickled_are_sent_beside_the_pickle():
    """As in a worker whose dataset holds them: such a dtype is another object than NumPy's own, and not "built in"."""
    dtype = pickle.loads(pickle.dumps(np.dtype(np.float32)))
    array = np.ndarray(5, dtype, bytearray(20))
    _data, _mixed, places = pickle.loads(encode_object({"a": [array, "text"]}).skeleton)
    assert places == [("f", None, 0, (5,))]


@pytest.mark.parametrize("replaced", [False, True], ids=["as installed", "a cloudpickle that replaces it"])
def test_functions_of_a_cell_keep_their_file_name(replaced, monkeypatch):
    if replaced:
        reduce_code = cloudpickle.Pickler.dispatch_table[types.CodeType]

        def without_file_name(code):
            make, arguments = reduce_code(code)
            kept = [REPLACED_FILE_NAME if argument == code.co_filename else argument for argument in arguments]
            return make, tuple(kept)

        monkeypatch.setitem(cloudpickle.Pickler.dispatch_table, types.CodeType, without_file_name)
    source = "def outer(x):\n    def inner():\n        return x\n    return inner"
    names = {"__name__": "__main__"}
    exec(compile(source, "<ipython-input-3-abc>", "exec"), names)
    for copy in (pickled_copy(names["outer"]), pickle.loads(dump(names["outer"], None))):
        assert copy.__code__.co_filename == "<ipython-input-3-abc>"
        assert copy(4).__code__.co_filename == "<ipython-input-3-abc>"
        assert copy(4)() == 4


@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, 64, 1000, 40_000, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL]), max_size=12)
)
def test_small_arrays_between_large_ones_are_copied_out_whole(sizes):
    """Those that lie one after the other are copied together; no copy is larger than a slab."""
    batch = [np.arange(size, dtype=np.uint32).astype(np.uint8) + np.uint8(n) for n, size in enumerate(sizes)]
    encoded = encode_object(batch)
    memory = bytearray(encoded.nbytes)
    encoded.write(memory)
    copied = []

    def copy_out(part):
        copied.append(len(part))
        return bytearray(part)

    loaded = load_object(encoded.skeleton, memory, copy_out)
    memory[:] = bytes(len(memory))  # what was not copied out is lost
    assert max(copied, default=0) <= SMALL
    mixed = any(size <= SMALL for size in sizes) and any(size > SMALL for size in sizes)
    for one, other in zip(batch, loaded, strict=True):
        kept = mixed and one.nbytes <= SMALL
        np.testing.assert_array_equal(other, one if kept or not one.size else np.zeros_like(one))
