"""Lists and dicts in shared memory: read-only, with items that are unpickled when they are accessed.

    list -> one memory file: the pickles of the items, one after the other, and where each begins

A process that reads a Python object also writes to it, because each access changes a reference count. Objects that are
shared by fork are therefore copied to each worker, page by page, as an epoch goes on. Pickles in a memory file are not
copied, so one copy serves the notebook and all workers.

Workers cannot import classes and functions that are defined in the notebook. These are kept in a table next to the
items, and an item's pickle refers to them by number.
"""

from __future__ import annotations

import bisect
import hashlib
import io
import operator
import pickle
import sys
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar, overload

import numpy as np

from nbloader._util.plain_tensor import is_plain
from nbloader.shm.memory_file import MemoryFile

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_MASK = (1 << 64) - 1


# ---- classes of the notebook ----------------------------------------------------------------------------------------


class _Globals:
    """Table of the classes and functions that the items of one container refer to and that workers cannot import."""

    def __init__(self) -> None:
        self.key = uuid.uuid4().bytes
        """Identifies the table in a pickle."""
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number_of(self, obj: Any) -> int:
        """Return the number of an object in the table; an object that is not in the table is added."""
        number = self._numbers.setdefault(id(obj), len(self.objects))
        if number == len(self.objects):
            self.objects.append(obj)
        return number

    def __getstate__(self) -> Any:
        return self.key, self.objects

    def __setstate__(self, state: Any) -> None:
        self.key, self.objects = state
        self._numbers = {id(obj): number for number, obj in enumerate(self.objects)}
        _tables[self.key] = self


_tables: weakref.WeakValueDictionary[bytes, _Globals] = weakref.WeakValueDictionary()


def _global(key: bytes, number: int) -> Any:
    """Look up a class or function of the notebook. The pickles of items refer to this function."""
    return _tables[key].objects[number]


class _ItemPickler(pickle.Pickler):
    """Pickles items one after the other into one file."""

    def __init__(self, file: io.BytesIO, table: _Globals) -> None:
        super().__init__(file, protocol=5)
        self._table = table

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`. torch's own way takes 65 us for each tensor to be unpickled."""
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and is_plain(torch, obj) and not obj.__dict__:
            try:
                return torch.from_numpy, (obj.numpy(),)
            except TypeError:  # bfloat16, float8_...: unknown to NumPy
                return NotImplemented
        if not isinstance(obj, (type, FunctionType)):
            return NotImplemented
        if obj.__module__ not in {"__main__", "__mp_main__"} and "<locals>" not in obj.__qualname__:
            return NotImplemented
        return _global, (self._table.key, self._table.number_of(obj))


# ---- pickled items --------------------------------------------------------------------------------------------------

_Array: TypeAlias = "np.ndarray[Any, Any]"


class _Items:
    """Pickles, one after the other.

    Args:
        data: Their bytes.
        ends: Where each begins, and where the last one ends.
    """

    def __init__(self, data: _Array, ends: _Array) -> None:
        self._data = data
        self._ends = ends
        self.nbytes = data.nbytes + ends.nbytes

    def item(self, position: int) -> Any:
        """Return the item at a position, from 0 to the number of items - 1."""
        return pickle.loads(self._data.data[self._ends.item(position) : self._ends.item(position + 1)])


def _pickled(items: Iterable[Any], table: _Globals) -> tuple[_Array, _Array]:
    """Return the arguments of `_Items`."""
    ends = [0]
    file = io.BytesIO()
    pickler = _ItemPickler(file, table)
    for item in items:
        pickler.dump(item)
        pickler.clear_memo()
        ends.append(file.tell())
    return np.frombuffer(file.getbuffer(), np.uint8), np.array(ends, np.int64)


def _shared(*arrays: _Array) -> list[_Array]:
    """Copy arrays to one memory file and return the copies."""
    file = MemoryFile()
    starts = [file.add(array.data.cast("B") if array.nbytes else memoryview(b"")) for array in arrays]
    file.seal()
    memory = file.map()
    copies = []
    for array, start in zip(arrays, starts, strict=True):
        copies.append(np.ndarray(array.shape, array.dtype, memory, start))
        copies[-1].flags.writeable = False
    return copies


# ---- the containers -------------------------------------------------------------------------------------------------


class _Fixed:
    """Base class of the containers: they cannot be changed."""

    _name: str

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError(
            f"a shared {self._name} cannot be changed: all processes read the same memory. Change the {self._name} "
            "that it was made of, and share that again; or make a copy of this one."
        )

    __setitem__ = __delitem__ = clear = pop = _refuse

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _memo: Any) -> Any:
        return self


class SharedSequence(_Fixed, Sequence[T], Generic[T]):
    """A read-only list in shared memory, created by `nbloader.share(list)`, or of what an iterator yields.

    Each access to an item returns a new object that equals the shared one. Changes to this object are visible nowhere
    else. A slice is a list.
    """

    _name = "list"

    def __init__(self, items: Iterable[T]) -> None:
        self._globals = _Globals()
        data, ends = _pickled(items, self._globals)
        self._size = len(ends) - 1
        self._items = _Items(*_shared(data, ends))
        _tables[self._globals.key] = self._globals

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._items.item(position) for position in range(*index.indices(self._size))]
        position = operator.index(index)
        if position < 0:
            position += self._size
        if not 0 <= position < self._size:
            raise IndexError(f"index {index} is out of range for a shared list of {self._size:,} items")
        item: T = self._items.item(position)
        return item

    def __iter__(self) -> Iterator[T]:
        return map(self._items.item, range(self._size))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, SharedSequence)):
            return NotImplemented
        return len(other) == len(self) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return self._items.nbytes

    def __repr__(self) -> str:
        return f"<shared list of {self._size:,} items, {self.nbytes / 1e6:,.1f} MB>"

    append = extend = insert = remove = reverse = sort = __iadd__ = __imul__ = _Fixed._refuse


class SharedMapping(_Fixed, Mapping[K, V], Generic[K, V]):
    """A read-only dict in shared memory, created by `nbloader.share(dict)`.

    Each access to a value returns a new object that equals the shared one. Changes to this object are visible nowhere
    else. Keys are looked up with a separate hash function, since Python's hashes of strings differ between processes.
    """

    _name = "dict"

    def __init__(self, items: Mapping[K, V]) -> None:
        self._size = len(items)
        self._globals = _Globals()
        keys = list(items)
        hashes = np.fromiter(map(_hash, keys), np.uint64, len(keys))
        order = np.argsort(hashes, kind="stable")
        *pickles, self._hashes, self._positions = _shared(
            *_pickled(keys, self._globals), *_pickled(items.values(), self._globals),
            hashes[order], order,
        )  # fmt: skip
        self._keys, self._values = _Items(*pickles[:2]), _Items(*pickles[2:])
        _tables[self._globals.key] = self._globals

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, key: K) -> V:
        position = self._find(key)
        if position < 0:
            raise KeyError(key)
        value: V = self._values.item(position)
        return value

    def __contains__(self, key: object) -> bool:
        return self._find(key) >= 0

    def _find(self, key: Any) -> int:
        """Return the position of a key; -1 if it is not there."""
        hash(key)  # raises TypeError for an object that cannot be a key
        try:
            hashed = _hash(key)
        except TypeError:
            return -1
        hashes = self._hashes.data
        found = bisect.bisect_left(hashes, hashed)
        while found < self._size and hashes[found] == hashed:
            position = int(self._positions[found])
            if self._keys.item(position) == key:
                return position
            found += 1
        return -1

    def __iter__(self) -> Iterator[K]:
        return map(self._keys.item, range(self._size))

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return self._keys.nbytes + self._values.nbytes + self._hashes.nbytes + self._positions.nbytes

    def __repr__(self) -> str:
        return f"<shared dict of {self._size:,} items, {self.nbytes / 1e6:,.1f} MB>"

    popitem = setdefault = update = __ior__ = _Fixed._refuse


def _hash(key: Any) -> int:
    """Return a number from 0 to 2**64 - 1 that is the same in all processes, and the same for equal keys.

    Raises:
        TypeError: See `_canonical`.
    """
    if type(key) is int:
        return key & _MASK
    if isinstance(key, (int, float, np.number, np.bool_)):
        try:
            whole = int(key)
        except (OverflowError, ValueError):  # infinity or NaN
            return 0
        return (whole if whole == key else hash(float(key))) & _MASK
    return int.from_bytes(hashlib.blake2b(_canonical(key), digest_size=8).digest(), "little")


def _canonical(key: Any) -> bytes:
    """Return bytes that are equal for equal keys: 1, 1.0, True and np.int64(1) are equal.

    Raises:
        TypeError: The key has another type, for which it is not known when keys are equal.
    """
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, (int, float, np.number, np.bool_)):
        return b"i%d" % _hash(key)
    if isinstance(key, (tuple, frozenset)):
        parts = [_canonical(part) for part in key]
        ordered = parts if isinstance(key, tuple) else [b"", *sorted(parts)]
        return b"t" + b"".join(len(part).to_bytes(8, "little") + part for part in ordered)
    if key is None:
        return b"n"
    raise TypeError(
        "the keys of a shared dict must be strings, bytes, numbers, None, tuples or frozensets, "
        f"not {type(key).__name__}"
    )
