"""Digests of what a cached function and its arguments reach: equal in all processes and after a restart.

    function, class   -> the user's: its code, and what the code names (globals, closure, defaults, members)
                         a library's: its name, and the version of its package
    module            -> the user's: those of its attributes whose names occur in the code that was reached
                         a library's: its name, and the version of its package
    string, path      -> its text, and the version of the file that it names
    array, tensor     -> its elements, with dtype and shape
    list, dict, set   -> its items
    anything else     -> the parts that `pickle` would save

The docstring of `nbloader.cached` has this contract for users, with a list of what is outside. A pickle as a whole is
not suitable as a digest: it leaves out code and depends on which strings are interned and on the order of sets.

`Walk` visits everything once and numbers what it sees, so that cycles end and shared objects count as shared. It also
records each step, so that `Digest.holds` can tell later whether a new walk would find the same: that takes one read and
a few identity comparisons for each object. Only memory that can be changed in place is hashed again.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import itertools
import operator
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from types import (
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np

from nbloader._util.signals import raised_by_handler
from nbloader.cache import owner
from nbloader.cache.code_names import all_names, global_names, imported_modules, stored_into
from nbloader.cache.file_version import FileVersion
from nbloader.shm.shared_objects import SharedMapping, SharedSequence

SIZE = 16
"""Bytes of a digest."""

_NOT_CONTENT = frozenset({
    "__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__firstlineno__", "__static_attributes__",
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__abstractmethods__", "_abc_impl",
    "__slotnames__",
})  # fmt: skip
"""Members of a class that do not change what it does, or that Python adds on first use."""
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
_USER_DTYPES = 256
"""From this number on, types of array elements are defined by other packages than NumPy."""
_IMMUTABLE_TYPE = 1 << 8
"""Flag of types that are written in C and cannot be changed: Py_TPFLAGS_IMMUTABLETYPE."""
_MODULE_NAMES = frozenset(vars(ModuleType("empty"))) | {"__builtins__", "__cached__", "__file__", "__path__"}
"""Attributes that Python gives to modules."""
_FIXED = (SharedSequence, SharedMapping)
"""Types of objects whose parts do not change."""
_OPAQUE = frozenset({
    "_thread.lock", "_thread.RLock", *(f"{kind.__module__}.{kind.__qualname__}" for kind in (
        ReferenceType, WeakKeyDictionary, WeakSet, WeakValueDictionary)),
})  # fmt: skip
"""Types without content: locks, and what is only referenced weakly."""


class DigestError(TypeError):
    """An object has neither contents to digest nor a pickle, such as an open file, a connection or a generator."""

    def __init__(self, reason: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.names = names
        """The names by which it was reached, innermost last."""


class Composite:
    """An object that stands for others: in digests, it is what `digest_parts` returns."""

    @property
    def digest_parts(self) -> tuple[Any, ...]:
        """The objects."""
        raise NotImplementedError


class _End:
    """Separates groups of parts, and stands for the value of a name that has none."""


_END = _End()


# ---- encoding -------------------------------------------------------------------------------------------------------


def _token(tag: bytes, data: bytes = b"") -> bytes:
    """Encode data so that different sequences of tokens are different bytes."""
    return b"%b %d:%b" % (tag, len(data), data)


def _hash(data: Any) -> bytes:
    return hashlib.sha256(data, usedforsecurity=False).digest()[:SIZE]


def _text(text: str) -> bytes:
    return _token(b"str", text.encode("utf-8", "surrogatepass"))


def _dtype(dtype: np.dtype[Any]) -> str:
    plain = dtype.names is None and dtype.num < _USER_DTYPES  # `str` of others does not say all
    return dtype.str if plain else repr(dtype)


_ATOMS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _obj: _token(b"None"),
    bool: lambda obj: _token(b"bool", b"%d" % obj),
    int: lambda obj: _token(b"int", b"%d" % obj),
    float: lambda obj: _token(b"float", struct.pack("<d", obj)),
    complex: lambda obj: _token(b"complex", struct.pack("<dd", obj.real, obj.imag)),
    bytes: lambda obj: _token(b"bytes", obj),
    range: lambda obj: _token(b"range", repr(obj).encode()),
    type(Ellipsis): lambda _obj: _token(b"Ellipsis"),
    type(NotImplemented): lambda _obj: _token(b"NotImplemented"),
    _End: lambda _obj: _token(b"end"),
}
"""Types whose objects cannot change."""


def _constant(value: Any) -> bytes:
    """Encode a constant of code. It names no file, and which constants are one object depends on the compiler."""
    if isinstance(value, CodeType):
        return _code_bytes(value)
    if isinstance(value, (tuple, frozenset)):
        parts = list(map(_constant, value))
        return _token(type(value).__name__.encode(), b"".join(parts if isinstance(value, tuple) else sorted(parts)))
    if isinstance(value, slice):
        return _token(b"slice", _constant((value.start, value.stop, value.step)))
    return _text(value) if isinstance(value, str) else _ATOMS[type(value)](value)


def _code_bytes(code: CodeType) -> bytes:
    shape = (
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_names,
        code.co_varnames, code.co_freevars, code.co_cellvars, sys.version,
    )  # fmt: skip
    exceptions: bytes = getattr(code, "co_exceptiontable", b"")
    return _token(b"code", _constant((code.co_code, exceptions, repr(shape), code.co_consts)))


# ---- what objects consist of ----------------------------------------------------------------------------------------


def _items(mapping: Mapping[Any, Any]) -> list[Any]:
    return list(itertools.chain.from_iterable(mapping.items()))  # at once: another thread may change it


def _cell(cell: CellType) -> tuple[Any]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return (_END,)


def _function_parts(function: FunctionType) -> tuple[Any, ...]:
    return (
        function.__code__, function.__defaults__, function.__kwdefaults__ or None, function.__closure__,
        function.__dict__ or None,
    )  # fmt: skip


def _class_parts(cls: type) -> list[Any]:
    return [type(cls), *cls.__bases__, _END, *_items(vars(cls))]


def _values(names: Sequence[str], namespace: Mapping[str, Any]) -> list[Any]:
    return list(map(namespace.get, names, itertools.repeat(_END)))


def _spec(package: str) -> tuple[Any]:
    """Return what is another object after the package was reloaded."""
    return (getattr(sys.modules.get(package), "__spec__", None),)


_CODE: tuple[Callable[[Any], tuple[Any, ...]], ...] = _function_parts, _cell, _spec
"""Functions that return the same number of parts for each object, so that many objects can be compared at once."""


def _checked_name(obj: Any, name: str) -> str:
    if type(obj).__module__ == "typing" or hasattr(obj, "__wrapped__") or owner.named_in(obj, name):
        return name
    raise TypeError(f"no module has it under the name {name!r}")


def _reduced(obj: Any) -> list[Any]:
    """Return what `pickle` would save of an object.

    Raises:
        DigestError: The object cannot be pickled.
    """
    reduce = copyreg.dispatch_table.get(type(obj))
    try:
        found = obj.__reduce_ex__(4) if reduce is None else reduce(obj)
        if isinstance(found, str):  # it is a global
            return [_checked_name(obj, found)]
        function, arguments, state, items, pairs, setter = (*found, None, None, None, None)[:6]
        parts = [function, *arguments, _END]
        for part in state if type(state) is tuple and len(state) == 2 else (state,):  # noqa: PLR2004 - dict, slots
            parts += [*_items(part), _END] if type(part) is dict else [part, _END]
        return [*parts, *(items or ()), _END, *itertools.chain.from_iterable(pairs or ()), setter]
    except Exception as error:  # the user's code, which may raise anything
        if raised_by_handler(error):
            raise
        raise DigestError(f"{type(obj).__name__} cannot be pickled ({error})") from error


def _all_parts(read: Callable[[Any], Sequence[Any]], objects: Sequence[Any]) -> list[Any]:
    return list(itertools.chain.from_iterable(map(read, objects)))


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _compared_globals(function: FunctionType) -> list[str]:
    """Return the names of the globals that a function uses, except dicts in which it alone keeps what it computes."""
    stored = stored_into(function.__code__)
    return [name for name in global_names(function.__code__) if name not in stored or not _is_memo(function, name)]


def _is_memo(function: FunctionType, name: str) -> bool:
    """Whether a global is a dict that no other function or class of the module uses."""
    namespace = function.__globals__
    if type(namespace.get(name)) is not dict:
        return False
    for other in list(namespace.values()):
        parts = vars(other).values() if isinstance(other, type) else [other]
        for part in parts:
            code = getattr(inspect.unwrap(part) if isinstance(part, FunctionType) else part, "__code__", None)
            if code is not None and code is not function.__code__ and name in all_names(code):
                return False
    return True


# ---- memory ---------------------------------------------------------------------------------------------------------


def _array_bytes(array: Any) -> bytes:
    """Return the type, the shape and a hash of the elements of an array of any dtype except object."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else b""  # dates have no buffer
    return f"{_dtype(array.dtype)} {array.shape} ".encode() + _hash(data)


def _tensor_bytes(tensor: Any) -> bytes:
    torch = sys.modules["torch"]
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # a single element counts as contiguous with any stride
    data = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad} ".encode() + _hash(data)


def _buffer_bytes(buffer: bytearray | memoryview) -> bytes:
    view = memoryview(buffer)
    return f"{view.format} {view.shape} ".encode() + _hash(view.tobytes())


def _is_dense_tensor(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and type(obj) is torch.Tensor
        and obj.layout is torch.strided
        and obj.is_cpu
        and not (obj.is_quantized or obj.is_nested or obj.__dict__)
    )


# ---- the walk -------------------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """One step of a walk that can be repeated."""

    read: Callable[[Any], Any]
    obj: Any
    found: Any
    """What `read(obj)` returned: a list or tuple whose items are compared by identity, or something with a value."""
    names: tuple[str, ...]
    """The name by which the object was reached; empty if it was reached otherwise."""

    def holds(self) -> bool:
        """Whether the step would find the same now."""
        now = self.read(self.obj)
        return _same(now, self.found) if type(now) in (list, tuple) else bool(now == self.found)


class _Record:
    """The steps of a walk."""

    def __init__(self) -> None:
        self.data: list[_Step] = []
        self.code: list[_Step] = []
        """Steps whose `read` is in `_CODE`."""
        self.lookups: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}
        """Id of a namespace -> the namespace, and the values of its names that were looked up."""


class Walk:
    """Computes the digest of objects and of everything that they reach.

    Args:
        names: Names that occur in code which may use the modules that are reached, in addition to the names in the code
            that is reached itself.
        record: Whether to record the steps, for `Digest.holds`.
        lenient: Whether to leave out objects that have neither contents nor a pickle, instead of raising an error.
        follow: Whether to follow the user's code. Otherwise its objects count by their identity.
        files: Whether texts may name files, whose versions count then.
    """

    def __init__(
        self,
        names: frozenset[str] = frozenset(),
        *,
        record: bool = False,
        lenient: bool = False,
        follow: bool = True,
        files: bool = True,
    ) -> None:
        self.names = names
        self.modules: dict[ModuleType, frozenset[str]] = {}
        """The user's modules, and the names that were looked up in them."""
        self.files: list[FileVersion] = []
        self.folders: list[str] = []
        """Strings and paths that name a folder."""
        self.lenient = lenient
        self.record = _Record() if record else None
        self._follow = follow
        self._names_files = files
        self._out: list[bytes] = []
        self._numbers: dict[int, int] = {}
        self.kept: list[Any] = []
        """Objects that have a number, so that no other object gets the same id."""
        self._code: deque[tuple[FunctionType | type, tuple[str, ...]]] = deque()
        """Functions and classes that were reached, and by which names. They are followed later, so that a long chain of
        them is no deep recursion."""
        self._names: tuple[str, ...] = ()
        """The names by which the current object is reached, innermost last."""
        self._whole: set[ModuleType] = set()
        self._packages: set[str] = set()

    def digest(self) -> bytes:
        """Return the digest of all that was visited and of what it reaches.

        Raises:
            DigestError: Something has no digest.
        """
        self._follow_code()
        while self.modules and self._follow_modules():
            self._follow_code()
        return _hash(b"".join(self._out))

    def visit(self, obj: Any) -> None:
        """Add an object.

        Raises:
            DigestError: It has no digest.
        """
        kind = type(obj)
        atom = _ATOMS.get(kind)
        if atom is not None:
            self._out.append(atom(obj))
        elif kind is str:
            self._out.append(_text(obj))
            self._file(obj)
        elif kind is tuple:
            self._emit(b"tuple", b"%d" % len(obj))
            for item in obj:
                self.visit(item)
        elif (number := self._numbers.get(id(obj))) is not None:
            self._emit(b"again", b"%d" % number)
        else:
            self._numbers[id(obj)] = len(self._numbers)
            self.kept.append(obj)
            try:
                self._compound(obj, kind)
            except RecursionError:
                raise DigestError(f"{kind.__name__} is nested too deeply", self._names) from None

    def visit_whole(self, module: ModuleType) -> None:
        """Add a module with all its attributes, if it is the user's."""
        self.visit(module)
        if module in self.modules:
            self._whole.add(module)
            self._step(tuple, vars(module))

    def _compound(self, obj: Any, kind: type) -> None:  # noqa: PLR0912, C901 - one branch for each type
        if kind is list:
            self._parts(b"list", tuple, obj)
        elif kind in (dict, MappingProxyType):
            self._parts(b"dict", _items, obj)
        elif kind in (set, frozenset):
            self._emit(kind.__name__.encode(), b"".join(sorted(map(self._apart, self._step(tuple, obj)))))
        elif kind is np.ndarray and not obj.dtype.hasobject:
            self._emit(b"array", self._step(_array_bytes, obj))
        elif _is_dense_tensor(obj):
            self._emit(b"tensor", self._step(_tensor_bytes, obj))
        elif kind in (bytearray, memoryview):
            self._emit(kind.__name__.encode(), self._step(_buffer_bytes, obj))
        elif isinstance(obj, np.dtype):
            self._emit(b"dtype", _dtype(obj).encode())
        elif isinstance(obj, np.generic) and not obj.dtype.hasobject:
            self._emit(b"scalar", _dtype(obj.dtype).encode() + b" " + obj.tobytes())
            if isinstance(obj, str):
                self._file(str(obj))
        elif isinstance(obj, PurePath):
            self._emit(b"path", kind.__name__.encode())
            self.visit(str(obj))
        elif isinstance(obj, Composite):
            self._parts(b"composite", operator.attrgetter("digest_parts"), obj)
        elif kind is FunctionType or isinstance(obj, type):
            if not self._of_library(obj):
                self._users(obj)
        elif kind.__module__.startswith("numba.") and isinstance(getattr(obj, "py_func", None), FunctionType):
            self._emit(b"numba")  # what it has compiled so far follows from this
            self.visit((obj.py_func, obj.targetoptions))
        elif kind is MethodType:
            self._emit(b"method")
            self.visit((obj.__func__, obj.__self__))
        elif isinstance(obj, ModuleType):
            self._module(obj)
        elif kind is CodeType:
            self._emit(b"bytecode", _code_bytes(obj))
        elif kind is CellType:
            self._parts(b"cell", _cell, obj)
        elif isinstance(obj, (staticmethod, classmethod)):
            self._emit(kind.__name__.encode())
            self.visit(obj.__func__)
        elif isinstance(obj, property):
            self._emit(b"property")
            self.visit((obj.fget, obj.fset, obj.fdel))
        elif f"{kind.__module__}.{kind.__qualname__}" in _OPAQUE:
            self._emit(b"opaque", kind.__name__.encode())
        else:
            self._instance(obj)

    # ---- parts of the walk ------------------------------------------------------------------------------------------

    def _emit(self, tag: bytes, data: bytes = b"") -> None:
        self._out.append(_token(tag, data))

    def _step(self, read: Callable[[Any], Any], obj: Any) -> Any:
        found = read(obj)
        if self.record is not None:
            steps = self.record.code if read in _CODE else self.record.data
            steps.append(_Step(read, obj, found, self._names[-1:]))
        return found

    def _parts(self, tag: bytes, read: Callable[[Any], Sequence[Any]], obj: Any) -> None:
        parts = self._step(read, obj)
        self.kept.append(parts)
        self._emit(tag, b"%d" % len(parts))
        for part in parts:
            self.visit(part)

    def _apart(self, obj: Any) -> bytes:
        """Return the encoding of an item of a set, which does not depend on the order of the items."""
        outer = self._out, self._numbers, self._code, self._names
        self._out, self._numbers, self._code = [], dict(self._numbers), deque()
        try:
            self.visit(obj)
            self._follow_code()
            return b"".join(self._out)
        finally:
            self._out, self._numbers, self._code, self._names = outer

    def _file(self, text: str) -> None:
        if not self._names_files:
            return
        version = self._step(FileVersion.now, text)
        if version is not None and version.is_folder:
            if text.strip("./\\"):  # "." and "/" are in most texts no folders
                self.folders.append(text)
        elif version is not None:
            self.files.append(version)
            self._emit(b"file", repr(version).encode("utf-8", "surrogatepass"))

    def _named(self, name: str, value: Any) -> None:
        """Add a value that was reached by a name."""
        outer = self._names
        self._names = (*outer, name)
        self._emit(b"name", name.encode("utf-8", "surrogatepass"))
        self.visit(value)
        self._names = outer

    def _look_up(self, namespace: Mapping[str, Any], names: Sequence[str]) -> None:
        found = dict(zip(names, _values(names, namespace), strict=True))
        if self.record is not None:
            known = self.record.lookups.setdefault(id(namespace), (namespace, {}))[1]
            known.update({name: value for name, value in found.items() if name not in known})
        for name, value in found.items():
            if value is not _END:
                self._named(name, value)

    def _instance(self, obj: Any) -> None:
        """Add what `pickle` would save of an object."""
        kind = type(obj)
        try:
            parts = _reduced(obj)
        except DigestError as error:
            if not self.lenient:
                raise DigestError(str(error), self._names) from error.__cause__
            self._emit(b"left out")
            self.visit(kind)
            return
        self.kept.append(parts)
        if len(parts) == 1:
            self._global(obj, parts[0])
            return
        record = self.record
        if isinstance(obj, _FIXED):
            self.record = None
        elif record is not None and _same(parts, _reduced(obj)):
            record.data.append(_Step(_reduced, obj, parts, self._names[-1:]))
        elif record is not None:  # its pickle consists of new objects each time: its contents are one step
            self._step(functools.partial(_contents, self.lenient), obj)
            self.record = None
        self._emit(b"instance", b"%d" % len(parts))
        folders = len(self.folders)
        for part in (kind, *parts):
            self.visit(part)
        module = sys.modules.get(kind.__module__)
        if module is not None and not owner.is_users_module(module):
            del self.folders[folders:]  # names of its parts, such as "data", and text in a table
        if hasattr(kind, "__fspath__"):
            self.visit(obj.__fspath__())
        self.record = record

    def _global(self, obj: Any, name: str) -> None:
        """Add an object that is pickled by its name: a function in C, or a singleton."""
        module = owner.named_in(obj, name)
        if module is not None and not owner.is_users_module(module):
            self._emit(b"global", f"{module.__name__} {name}".encode())
            self._library(owner.module_file(module))
        else:
            self._emit(b"global", name.encode())
            self.visit((type(obj), getattr(obj, "__wrapped__", None)))
            if module is not None:
                self._compiled(module)

    # ---- code -------------------------------------------------------------------------------------------------------

    def _library(self, file: str) -> None:
        self._emit(b"library", owner.version_of(file).encode())
        package = owner.package_of(file)
        if package and package not in self._packages:
            self._packages.add(package)
            self._step(_spec, package)

    def _compiled(self, module: ModuleType) -> None:
        """Add the version of a module of the user that is not written in Python."""
        file = owner.module_file(module)
        if file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
            self._emit(b"compiled", repr(FileVersion.now(file)).encode())

    def _of_library(self, obj: Any) -> bool:
        """Add the name and version of a function or class if a module of a library has it under this name."""
        if isinstance(obj, FunctionType):
            file = obj.__code__.co_filename
            if owner.is_users(file) and not file.startswith("<"):
                return False
        module = owner.named_in(obj, obj.__qualname__)
        if module is not None and not owner.is_users_module(module):
            self._emit(b"global", f"{obj.__module__} {obj.__qualname__}".encode())
            self._library(owner.module_file(module))
            return True
        if isinstance(obj, type) and obj.__flags__ & _IMMUTABLE_TYPE:
            self._emit(b"type", f"{obj.__module__} {obj.__qualname__}".encode())
            return True
        return False

    def _users(self, obj: FunctionType | type) -> None:
        """Add a function or class of the user."""
        if not self._follow:
            self._emit(b"id", b"%d" % id(obj))
            return
        self._emit(b"code", obj.__qualname__.encode() if isinstance(obj, type) else b"")
        self._code.append((obj, self._names))

    def _follow_code(self) -> None:
        """Add what the functions and classes reach that were visited."""
        while self._code:
            obj, self._names = self._code.popleft()
            if isinstance(obj, FunctionType):
                self._function(obj)
            else:
                self._class(obj)
        self._names = ()

    def _function(self, function: FunctionType) -> None:
        code, defaults, keywords, closure, attributes = self._step(_function_parts, function)
        self._emit(b"function", _code_bytes(code))
        self._named("a default", (defaults, keywords))
        for name, cell in zip(code.co_freevars, closure or (), strict=True):
            self._named(name, cell)
        self.visit(attributes)
        if not owner.is_users(code.co_filename):
            self._library(code.co_filename)
            return
        self.names |= all_names(code)
        self._look_up(function.__globals__, _compared_globals(function))
        for name in imported_modules(code, function.__globals__.get("__package__") or ""):
            self._imported(name)

    def _imported(self, name: str) -> None:
        """Add a module that code imports. A module of the user is imported now, as the code would do."""
        module = sys.modules.get(name)
        file = _file_of_missing(name) if module is None else owner.module_file(module)
        if not (owner.is_users(file or "<none>") if module is None else owner.is_users_module(module)):
            self._emit(b"module", name.encode())
            self._library(file)
            return
        if module is None:
            try:
                importlib.import_module(name)
            except Exception as error:  # raised by the user's module; the function may never come to this import
                if raised_by_handler(error):
                    raise
        parts = name.split(".")
        self._look_up(sys.modules, [".".join(parts[: n + 1]) for n in range(len(parts))])

    def _class(self, cls: type) -> None:
        self._step(_class_parts, cls)
        self._emit(b"class")
        self.visit((type(cls), cls.__bases__))
        for name, value in sorted(vars(cls).items()):
            if name not in _NOT_CONTENT and not (isinstance(value, _DESCRIPTORS) and value.__objclass__ is cls):
                self._named(name, value)

    def _module(self, module: ModuleType) -> None:
        self._emit(b"module", module.__name__.encode())
        if not self._follow:
            self._emit(b"id", b"%d" % id(module))
        elif owner.is_users_module(module):
            self._compiled(module)
            self.modules.setdefault(module, frozenset())
        else:
            self._library(owner.module_file(module))

    def _follow_modules(self) -> bool:
        """Add attributes of the user's modules whose names occur in code. Returns whether there were further ones."""
        found = False
        for module in sorted(self.modules, key=operator.attrgetter("__name__")):
            names = self.names | (vars(module).keys() - _MODULE_NAMES if module in self._whole else set())
            new = sorted(names - self.modules[module])
            if new:
                found = True
                self.modules[module] |= names
                self._emit(b"attributes", module.__name__.encode())
                self._look_up(vars(module), new)
        return found


class Digest:
    """The digest of a walk, which can check whether it still holds.

    Args:
        walk: A walk that has recorded its steps.

    Raises:
        DigestError: Something that was visited has no digest.
    """

    def __init__(self, walk: Walk) -> None:
        self.value = walk.digest()
        """The digest."""
        self.names = frozenset(walk.names)
        self.has_modules = bool(walk.modules)
        """Whether modules of the user were reached."""
        self.files = walk.files
        self.kept = walk.kept
        record = walk.record or _Record()
        self._data = record.data
        self._code = [
            _Step(functools.partial(_values, tuple(values)), namespace, list(values.values()), ())
            for namespace, values in record.lookups.values()
        ]
        for read in _CODE:
            steps = [step for step in record.code if step.read is read]
            parts = [part for step in steps for part in step.found]
            self._code.append(_Step(functools.partial(_all_parts, read), [step.obj for step in steps], parts, ()))
        self.has_data = bool(self._data)
        """Whether anything was reached that can change in place, other than code."""

    def holds(self) -> bool:
        """Whether nothing that was visited has changed since."""
        try:
            return all(step.holds() for step in itertools.chain(self._code, self._data))
        except DigestError:
            return False

    def slowest(self) -> list[str]:
        """Return the names of the objects that take `holds` most of its time, at most three."""
        costs: Counter[str] = Counter()
        begin = time.perf_counter_ns()
        for step in self._data:
            step.holds()
            end = time.perf_counter_ns()
            costs.update(dict.fromkeys(step.names, end - begin))
            begin = end
        most = costs.most_common(3)
        return [name for name, cost in most if cost >= most[0][1] / 10]


def _contents(lenient: bool, obj: Any) -> bytes:
    """Return the digest of an object without the code that it reaches, which has steps of its own."""
    walk = Walk(lenient=lenient, follow=False)
    walk.visit(obj)
    return walk.digest()


def _file_of_missing(name: str) -> str:
    """Return the file or folder of the package of a module that is not loaded; "" if there is none."""
    top = name.partition(".")[0]
    try:
        spec = getattr(sys.modules.get(top), "__spec__", None) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    return (spec.origin if spec.has_location else None) or next(iter(spec.submodule_search_locations or ()), "")
