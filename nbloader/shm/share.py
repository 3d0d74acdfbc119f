"""`share`: put the large parts of a dataset into memory that the notebook and the workers of all loaders share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, overload

import numpy as np

from nbloader.shm.dataset_store import share_array
from nbloader.shm.shared_objects import SharedMapping, SharedSequence

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
ArrayT = TypeVar("ArrayT", bound="np.ndarray[Any, Any]")


@overload
def share(obj: ArrayT) -> ArrayT: ...


@overload
def share(obj: list[T] | tuple[T, ...] | Iterator[T]) -> SharedSequence[T]: ...


@overload
def share(obj: dict[K, V]) -> SharedMapping[K, V]: ...


def share(obj: Any) -> Any:
    """Copy an array, a list or a dict into memory that the notebook and the workers of all loaders share.

    Use it for the large parts of a dataset: `self.images = nbloader.share(np.load(...))`,
    `self.annotations = nbloader.share(json.load(...))`.

    **Arrays.** Forked workers share the notebook's array. Without `share`, workers that are new interpreters share one
    further copy of an array of 64 kB or more. An `np.memmap` needs no `share`: every process reads it from its file.
    Writes are private (copy-on-write): a process that writes to the array gets its own copy of the page, and the other
    processes do not see the change. Workers that start later see what the notebook has written; these workers then
    share a separate copy of the array.

    **Lists, tuples and dicts.** Without `share`, each worker that uses Python objects has its own copy of them. A
    shared list or dict is read-only. It stores the pickles of its items in one block of memory. Each access unpickles
    one item (3 us for a dict with a list of four numbers), so every access returns a new object. An object that two
    items have in common is stored with both.

    Args:
        obj: A NumPy array of any shape, and of any dtype but object; a list, tuple or dict with items that can be
            pickled, or an iterator that yields such items. The keys of a dict are strings, `bytes`, numbers, None, or
            tuples or frozensets of these.

    Returns:
        An array of the same shape, dtype and contents; a read-only `Sequence` for a list, a tuple or what an iterator
        yields, a read-only `Mapping` for a dict.

    Raises:
        TypeError: `obj` is none of these. Share a tensor with its method `share_memory_()`: it is not copied either.
        MemoryError: Not enough memory is left.
    """
    if isinstance(obj, (SharedSequence, SharedMapping)):
        return obj
    if isinstance(obj, (list, tuple, Iterator)):
        return SharedSequence(obj)
    if isinstance(obj, dict):
        return SharedMapping(obj)
    if isinstance(obj, np.ndarray) and not obj.dtype.hasobject:
        return share_array(obj)
    what = f"an array of dtype {obj.dtype}" if isinstance(obj, np.ndarray) else type(obj).__name__
    hint = "; a tensor has share_memory_() for that" if type(obj).__module__.startswith("torch") else ""
    raise TypeError(f"share takes a NumPy array of numbers, a list, a tuple, an iterator or a dict, not {what}{hint}")
