"""Checks of unit 5: shared memory, and what copying costs."""

from __future__ import annotations

import gc
import mmap
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import Hint, Unanswered, Unit, attempt, choices, number

unit = Unit()
progress = unit.progress

LINE = 64
"""Bytes to whose multiples arrays are aligned."""


@unit.task("5.1 How large is a batch")
def batch_bytes(function: Callable[..., Any]) -> str:
    """`batch_bytes(batch_size, shape, dtype)`."""
    for size, shape, dtype in (
        (32, (3, 224, 224), np.float32),
        (8, (10,), np.int64),
        (4, (), np.uint8),
    ):
        made = number(attempt(function, size, shape, dtype), "bytes")
        expected = np.zeros((size, *shape), dtype).nbytes
        call = f"batch_bytes({size}, {shape}, {np.dtype(dtype).name})"
        if made == expected:
            continue
        if made == expected // size:
            raise Hint(f"{call}: {made:,} bytes is the size of one sample.")
        if made == expected // np.dtype(dtype).itemsize:
            raise Hint(
                f"{call}: {made:,} is the number of elements. How many bytes has each?"
            )
        if made == expected * 8:
            raise Hint(f"{call}: these are bits.")
        raise Hint(f"{call} is {expected:,}, and you return {made:,}.")
    types = (np.uint8, np.float32, np.float64)
    sizes = [
        f"{attempt(function, 64, (3, 224, 224), t) / 1e6:.1f} MB as {np.dtype(t).name}"
        for t in types
    ]
    return f"64 images of 3 x 224 x 224: {', '.join(sizes)}."


@unit.task("5.2 View or copy")
def views(kinds: Any, *, measured: Mapping[str, bool]) -> str:
    """`kinds` predicts what is a view of `a`."""
    choices(
        kinds,
        {text: "view" if shared else "copy" for text, shared in measured.items()},
        {
            "a[2]": "one row lies in one piece in the memory of a.",
            "a[::2]": "every second row: a step of two rows describes it, without moving anything.",
            "a.T": "the same bytes, read in another order.",
            "a.reshape(48)": "the elements already lie in this order.",
            "a.T.reshape(48)": "in this order the elements do not lie in memory, and no single step describes it.",
            "a[[0, 1, 2]]": "a list of indices may name any rows, so NumPy always collects them.",
            "a.astype(np.float16)": "other bytes than those of a are needed.",
            "np.stack([a, a])": "the result has twice as many bytes as a.",
            "torch.from_numpy(a)": "the name says from, not copy: write to one and look at the other.",
            "pickle.loads(pickle.dumps(a))": "what comes from bytes has memory of its own.",
        },
    )
    return "A view only says where to look: an offset, a shape and steps."


@unit.task("5.3 How often is a batch copied")
def copies(answer: Any, *, measured: Mapping[str, float]) -> str:
    """`answer` predicts the copies for two ways of transport. `measured` has the seconds that a batch took."""
    choices(
        answer,
        {"pickle": 5, "shared_memory": 1},
        {
            "pickle": "samples -> batch -> pickle -> pipe -> bytes -> batch. Count the arrows.",
            "shared_memory": "the worker collates into the shared memory directly, and the loop looks at it there.",
        },
    )
    return f"Your batches took {measured['pickle'] / measured['shared_memory']:.1f} times as long through the pipe."


@unit.task("5.4 Pack arrays into memory")
def pack(packing: Callable[..., Any], unpacking: Callable[..., Any]) -> str:
    """`pack(arrays, memory)` returns a header, `unpack(header, memory)` arrays on the memory."""
    attempt(lambda: _pack(packing, unpacking))
    return "The arrays use the memory, and the header has only what is needed to find them."


def _pack(packing: Callable[..., Any], unpacking: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 255, (5, 3), np.uint8),
        rng.normal(size=(4, 7)).astype(np.float32),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.zeros((0, 3), np.float64),
        np.array(7.5),
    ]
    memory = mmap.mmap(-1, 4096)
    header = packing(arrays, memory)
    sent = pickle.dumps(header)
    if len(sent) > 1000 or any(
        isinstance(part, np.ndarray) for entry in header for part in entry
    ):
        raise Hint(
            f"the header takes {len(sent)} bytes, or has an array in it: data belongs only in the memory."
        )
    header = pickle.loads(sent)  # as another process gets it
    made = unpacking(header, memory)
    if len(made) != len(arrays):
        raise Hint(f"{len(arrays)} arrays were packed, and {len(made)} come out.")
    whole = np.frombuffer(memory, np.uint8)
    taken, end = np.zeros(4096, bool), 0
    for n, (array, original) in enumerate(zip(made, arrays, strict=True)):
        what = f"array {n} ({original.dtype}, {original.shape})"
        if (array.dtype, array.shape) != (original.dtype, original.shape):
            raise Hint(f"{what} comes out as {array.dtype}, {array.shape}.")
        if original.size == 0:
            continue
        if not np.shares_memory(array, whole):
            raise Hint(f"{what} is a copy: make an array on the memory instead.")
        at = _address(array) - _address(whole)
        if taken[at : at + original.nbytes].any():
            raise Hint(
                f"{what} overlaps the array before it. How many *bytes* has an array?"
            )
        if at < end:
            raise Hint(
                f"{what} begins at byte {at}. It should come behind the array before it, at {end} or later."
            )
        if at % LINE:
            raise Hint(
                f"{what} begins at byte {at}, which is no multiple of {LINE}. Round the offset up."
            )
        end = at + original.nbytes
        taken[at:end] = True
    # An overlap would show as other values.
    for n, (array, original) in enumerate(zip(made, arrays, strict=True)):
        if not np.array_equal(array, original):
            raise Hint(
                f"array {n} ({original.dtype}, {original.shape}) has other values. Is its order in memory that of its "
                "shape? (Think of the transposed one.)"
            )


@unit.task("5.5 The first time is different")
def faults(page_faults: Any, *, measured: Mapping[str, int]) -> str:
    """`page_faults` predicts the faults of filling new memory, and of filling it again."""
    if not isinstance(page_faults, dict) or set(page_faults) != {"new", "again"}:
        raise Hint("the answer is a dict with the keys 'new' and 'again'.")
    if ... in page_faults.values():
        raise Unanswered("predict both numbers.")
    size, new, again = (
        16 * 2**20,
        number(page_faults["new"], "faults"),
        number(page_faults["again"], "faults"),
    )
    if new == size:
        raise Hint("that is one for each byte. A whole page comes with each fault.")
    if new <= 1:
        raise Hint(
            "the system does not give 16 MiB at once: it finds memory for a page when that is first written."
        )
    if new != size // mmap.PAGESIZE:
        raise Hint(
            f"'new': divide the size by that of a page, {mmap.PAGESIZE} bytes. You have {new:g}."
        )
    if again > max(10, measured["again"]):
        raise Hint("'again': the pages are there now, and stay.")
    if measured["new"] < new / 2:
        return f"Right for single pages. Your system gave larger ones: {measured['new']} faults for new memory."
    return f"{measured['new']} faults for new memory, {measured['again']} when it is used again."


@unit.task("5.6 When may memory be used again")
def pool(cls: Callable[[], Any]) -> str:
    """`Pool().lend(shape)` lends memory that nobody uses."""
    attempt(lambda: _pool(cls))
    return "Memory comes back when its last view is gone, and not before."


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _settle(size: int, held: list[mmap.mmap]) -> None:
    """Collect cycles that the student's code has just made, and take the address of memory that it has released.

    Otherwise new memory could get this address, and would look like memory that is used again. A look at all objects
    would take long on a busy machine.
    """
    gc.collect(1)
    held.append(mmap.mmap(-1, size))


def _pool(cls: Callable[[], Any]) -> None:
    lending = cls()
    shape, size = (64, 64), 64 * 64
    held: list[mmap.mmap] = []
    first = lending.lend(shape)
    if not isinstance(first, np.ndarray) or (first.shape, first.dtype) != (
        shape,
        np.uint8,
    ):
        raise Hint(
            f"lend({shape}) returned {type(first).__name__}: a uint8 array of this shape is needed."
        )
    first[:] = 1
    second = lending.lend(shape)
    second[:] = 2
    if np.shares_memory(first, second):
        raise Hint("two arrays that are in use have the same memory.")
    # Views of views; the last one keeps everything.
    part = first[3:5, ::2].reshape(-1, 4)[0][1:]
    before = _address(first)
    del first
    _settle(size, held)
    third = lending.lend(shape)
    third[:] = 3
    if not (part == 1).all():
        raise Hint(
            "a view of the first array was still in use, and its memory was lent again: the view now reads "
            f"{part[0]} instead of 1. You watch an array that can go while its views live. Which array do all views"
            " keep?"
        )
    del part
    _settle(size, held)
    fourth = lending.lend(shape)
    if _address(fourth) != before:
        raise Hint(
            "the first array and all its views are gone, and its memory is not used again."
        )
    a, b = _address(second), _address(third)
    del second
    _settle(size, held)
    del third
    _settle(size, held)
    if _address(lending.lend(shape)) == a:
        raise Hint(
            "the memory that came back first was lent. Take the one that came back last."
        )
    del fourth, b
    _settle(size, held)
    large = lending.lend(shape)
    free = getattr(lending, "free", None)
    if free is None:
        raise Hint(
            "keep the memory that nobody uses in `self.free`, so that the check can count it."
        )
    if len(free) != 2:
        raise Hint(
            f"three pieces of memory were lent, one still is, and {len(free)} are in `free`. If a piece does not "
            "come back there, its memory is not used again."
        )
    del large


@unit.task("5.7 Many small objects")
def share(
    cls: Callable[[Any], Any],
    annotations: Sequence[dict[str, Any]],
    private_memory: Callable[[Any], int],
    *,
    nothing: int,
    listed: int,
) -> str:
    """The dataset has the same samples as one with a list, and its workers much less memory of their own."""
    dataset = attempt(cls, annotations)
    if attempt(len, dataset) != len(annotations):
        raise Hint(
            f"its length is {len(dataset)}, and there are {len(annotations)} annotations."
        )
    for i in (0, 7, len(annotations) - 1):
        made = attempt(dataset.__getitem__, i)
        if made != annotations[i]["label"]:
            raise Hint(
                f"sample {i} is {made!r}. It should be the label of annotation {i}, {annotations[i]['label']}."
            )
    own = attempt(private_memory, dataset, limit=60.0) - nothing
    if own > (listed - nothing) / 2:
        raise Hint(
            f"a worker has {own / 1e6:.1f} MB more of its own than one without annotations, and with the list it was "
            f"{(listed - nothing) / 1e6:.1f} MB: each worker still has its copy. What does `__getitem__` read?"
        )
    return f"{max(own, 0) / 1e6:.1f} MB in each worker instead of {(listed - nothing) / 1e6:.1f} MB."
