"""Digests of content: equal values have equal digests, in all processes and after a restart.

A pickle is not suitable: it depends on which objects are identical, on the order of sets, and on what was interned.
Instead, a digest is computed from the parts of an object: the items of a container, or what `pickle` would call to
rebuild an instance.

    function -> its code, defaults, closure, and the globals that the code names
                  the user's function or class: recursively the same   an installed package's: its name and version
                  the user's module: its attributes whose names occur in the code
                  anything else: its value

`FunctionDigest` is the digest of a function. It remembers what it has seen, so that a later check costs a few identity
comparisons; only objects that can change in place are digested again.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import importlib
import importlib.util
import operator
import os
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

import numpy as np

from nbloader._util.code_places import is_installed
from nbloader._util.signals import raised_by_handler
from nbloader.batch.pickling import SPAWNED_MAIN
from nbloader.shm.shared_objects import SharedMapping, SharedSequence

SIZE = 16
"""Bytes of a digest."""
SETTLED = 0.05
"""Seconds after which a later change of a file is certain to change its modification time: the kernel's clock for it
advances in steps of up to 10 ms."""
SETTLED_COARSE = 2.5
"""The same for a file system that stores times in whole seconds."""
MAX_PATH = 4096
"""Maximum length of a path, characters. Longer strings are not treated as paths."""

_MAIN = frozenset({"__main__", SPAWNED_MAIN})
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
"""Instructions that access globals. LOAD_NAME occurs in class bodies; cloudpickle looks for the others."""
_CONSTANT = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_NATIVE = (
    BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType, GetSetDescriptorType,
    MemberDescriptorType,
)  # fmt: skip
_LOCKS = frozenset({"_thread.lock", "_thread.RLock"})
_IMMUTABLE = (
    type(None), bool, int, float, complex, str, bytes, range, slice, PurePath, np.generic, np.dtype, FunctionType, type,
    ModuleType, CodeType, Enum, SharedSequence, SharedMapping, *_NATIVE, type(Ellipsis), type(NotImplemented),
)  # fmt: skip


class DigestError(TypeError):
    """An object has no content to digest, such as an open file, a connection or a generator."""


class Transparent:
    """A callable that returns what the wrapped function would return."""

    __wrapped__: Callable[..., Any]


# ---- files ----------------------------------------------------------------------------------------------------------


class FileVersion(NamedTuple):
    """The version of a file at one moment."""

    path: str
    """The absolute path."""
    size: int
    modified: int
    """Time of the last change of its content, ns."""
    changed: int
    """Time of the last change of its content or attributes, ns. Programs cannot set it, unlike `modified`."""

    @classmethod
    def now(cls, path: str) -> FileVersion | None:
        """Return the version of the file at a path; None if there is no file or it is a folder."""
        try:
            status = os.stat(path)  # noqa: PTH116 - a third of the time of pathlib's
        except (OSError, ValueError):
            return None
        if stat.S_ISDIR(status.st_mode):
            return None
        return cls(os.path.abspath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns)  # noqa: PTH100 - as above

    def settled(self) -> bool:
        """Whether a change made now would be detected: a change in the same tick of the file clock could be missed."""
        coarse = self.modified % 1_000_000_000 == 0
        return time.time_ns() - max(self.modified, self.changed) > 1e9 * (SETTLED_COARSE if coarse else SETTLED)


# ---- digests of values ----------------------------------------------------------------------------------------------


class Digester:
    """Computes digests.

    Args:
        files: Whether a string or path that names a file stands for that file; otherwise it is a plain string.
        seen: Records what the digest of a function depends on; None to record nothing.
    """

    def __init__(self, *, files: bool = False, seen: Dependencies | None = None) -> None:
        self._looks_for_files = files
        self.files: list[FileVersion] = []
        """Files that were found."""
        self.folders: list[str] = []
        """Strings and paths that name a folder."""
        self._seen = seen
        self._path: dict[int, int] = {}  # objects being digested: id -> depth
        self._done: dict[int, tuple[Any, bytes]] = {}

    def digest(self, obj: Any) -> bytes:
        """Return the digest of a value.

        Raises:
            DigestError: The value has no digest.
        """
        simple = _SIMPLE.get(type(obj))
        if simple is not None:
            return self._text(obj) if type(obj) is str else _hash(simple(obj))
        key = id(obj)
        if key in self._path:
            return _hash(b"cycle %d" % self._path[key])
        if key in self._done:
            return self._done[key][1]
        self._path[key] = len(self._path)
        try:
            found = self._compound(obj)
        except RecursionError:
            raise DigestError(f"{type(obj).__name__} is nested too deeply") from None
        finally:
            del self._path[key]
        self._done[key] = obj, found
        return found

    def _compound(self, obj: Any) -> bytes:  # noqa: PLR0911, PLR0912, C901 - one line for each type
        kind = type(obj)
        if kind in (list, tuple):
            return self._join(kind.__name__, obj)
        if kind is dict:
            return self._join("dict", [part for item in obj.items() for part in item])
        if kind in (bytes, bytearray):
            return _hash(kind.__name__.encode(), obj)
        if kind in (set, frozenset):
            return _hash(kind.__name__.encode(), *sorted(map(self.digest, obj)))
        if kind is np.ndarray and not obj.dtype.hasobject:
            return _hash(b"array", repr((obj.dtype.descr, obj.shape)).encode(), _memory(obj))
        if isinstance(obj, np.generic) and not obj.dtype.hasobject:
            return _hash(b"scalar", repr(obj.dtype.descr).encode(), obj.tobytes())
        if isinstance(obj, PurePath):
            return _hash(kind.__name__.encode(), self._text(str(obj)))
        if isinstance(obj, FunctionType):
            return self._function(obj)
        if isinstance(obj, Transparent):
            return self.digest(obj.__wrapped__)
        if isinstance(obj, type):
            return self._class(obj)
        if isinstance(obj, ModuleType):
            return _hash(b"module", obj.__name__.encode(), _version(obj.__name__))
        if isinstance(obj, CodeType):
            return self._code(obj)
        if isinstance(obj, MethodType):
            return self._join("method", (obj.__func__, obj.__self__))
        if isinstance(obj, (staticmethod, classmethod)):
            return self._join(kind.__name__, (obj.__func__,))
        if isinstance(obj, property):
            return self._join("property", (obj.fget, obj.fset, obj.fdel))
        if isinstance(obj, _NATIVE):
            return self._native(obj)
        if isinstance(obj, memoryview):
            return _hash(b"memoryview", repr((obj.format, obj.shape)).encode(), obj.tobytes())
        if f"{kind.__module__}.{kind.__qualname__}" in _LOCKS:
            return _hash(b"lock")
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Tensor and obj.layout is torch.strided and obj.is_cpu:
            flat = obj.detach().contiguous().view(-1)
            data = flat.view(torch.uint8).numpy() if flat.numel() else b""
            return _hash(b"tensor", repr((obj.dtype, tuple(obj.shape), obj.requires_grad)).encode(), data)
        return self._instance(obj)

    def _text(self, text: str) -> bytes:
        data = text.encode("utf-8", "surrogatepass")
        if self._looks_for_files and 0 < len(text) <= MAX_PATH:
            version = FileVersion.now(text)
            if version is not None:
                self.files.append(version)
                return _hash(b"file", data, repr(version).encode("utf-8", "surrogatepass"))
            if os.path.isdir(text):  # noqa: PTH112 - as above
                self.folders.append(text)
        return _hash(b"str", data)

    def _join(self, what: str, parts: Iterable[Any]) -> bytes:
        return _hash(what.encode(), *map(self.digest, parts))

    def _native(self, obj: Any) -> bytes:
        owner = getattr(obj, "__self__", None)
        module = getattr(obj, "__module__", None) or getattr(getattr(obj, "__objclass__", None), "__module__", "")
        parts = b"native", str(module).encode(), obj.__qualname__.encode(), _version(str(module))
        if owner is None or isinstance(owner, (ModuleType, type)):
            return _hash(*parts)
        return _hash(*parts, self.digest(owner))

    def _instance(self, obj: Any) -> bytes:
        kind = type(obj)
        try:
            reduced = obj.__reduce_ex__(4)
        except Exception as error:
            if raised_by_handler(error):
                raise
            raise DigestError(f"{kind.__name__} has no content that could be compared ({error})") from error
        if isinstance(reduced, str):  # it is a global
            wrapped = getattr(obj, "__wrapped__", None)
            if wrapped is not None:
                return self._join("wrapper", (kind, wrapped))
            return _hash(b"global", str(getattr(obj, "__module__", "")).encode(), reduced.encode())
        parts: list[Any] = [*reduced, *[None] * (5 - len(reduced))]
        parts[3:5] = [None if part is None else list(part) for part in parts[3:5]]
        return self._join("instance", parts[:5])

    # ---- code -------------------------------------------------------------------------------------------------------

    def _function(self, function: FunctionType) -> bytes:
        if not _is_users(function.__module__):
            name = f"{function.__module__} {function.__qualname__}".encode()
            return _hash(b"function", name, _version(function.__module__))
        if self._seen is not None:
            self._seen.see_function(function)
        code = function.__code__
        parts = [self.digest(code)]
        parts += [self.digest_dependency(value) for value in function.__defaults__ or ()]
        for keyword, value in sorted((function.__kwdefaults__ or {}).items()):
            parts += [keyword.encode(), self.digest_dependency(value)]
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            parts += [variable.encode(), self._cell(variable, cell)]
        for used in global_names(code):
            value = self._look_up(function.__globals__, used)
            if value is not _MISSING:
                parts += [used.encode(), self._dependency(used, value, code)]
        for module in _imported(code, function.__globals__.get("__package__") or ""):
            parts.append(self._attributes(module, _all_names(code)) if module is not None else b"missing")
        for attribute, value in sorted(vars(function).items()):
            if not attribute.startswith("__"):
                parts += [attribute.encode(), self.digest_dependency(value)]
        return _hash(b"own function", *parts)

    def _cell(self, name: str, cell: CellType) -> bytes:
        try:
            value = cell.cell_contents
        except ValueError:
            return b"empty"
        if self._seen is not None:
            self._seen.cells.append((cell, value))
        return self.digest_dependency(value, name)

    def _dependency(self, name: str, value: Any, code: CodeType) -> bytes:
        if isinstance(value, ModuleType) and _is_users(value.__name__):
            return self._attributes(value, _all_names(code))
        return self.digest_dependency(value, name)

    def _attributes(self, module: ModuleType, names: frozenset[str]) -> bytes:
        """Digest what code can refer to in a module of the user: the attributes whose names occur in the code."""
        if id(module) in self._path:
            return b"cycle"
        self._path[id(module)] = len(self._path)
        try:
            parts = []
            for name in sorted(names & vars(module).keys()):
                value = self._look_up(vars(module), name)
                if isinstance(value, ModuleType) and _is_users(value.__name__):
                    parts += [name.encode(), self._attributes(value, names)]
                else:
                    parts += [name.encode(), self.digest_dependency(value, name)]
        finally:
            del self._path[id(module)]
        return _hash(b"own module", *parts)

    def _look_up(self, namespace: Mapping[str, Any], name: str) -> Any:
        value = namespace.get(name, _MISSING)
        if self._seen is not None:
            self._seen.names.append((namespace, name, value))
        return value

    def digest_dependency(self, value: Any, name: str = "a default") -> bytes:
        """Return the digest of a value that code refers to, and record the value if it can change in place."""
        if self._seen is None or is_immutable(value):
            if self._seen is not None and isinstance(value, (str, PurePath)):
                self._seen.see_path(str(value))
            return self.digest(value)
        try:
            found = Digester().digest(value)
        except DigestError as error:
            raise DigestError(f"it refers to {name!r}: {error}") from error
        self._seen.mutable.append((name, value, found))
        return found

    def _class(self, cls: type) -> bytes:
        if not _is_users(cls.__module__):
            return _hash(b"class", f"{cls.__module__} {cls.__qualname__}".encode(), _version(cls.__module__))
        members = dict(vars(cls))
        if self._seen is not None:
            self._seen.classes.append((cls, members))
        parts = [cls.__qualname__.encode(), *map(self.digest, cls.__bases__)]
        for name, value in sorted(members.items()):
            if name not in _NOT_CONTENT and getattr(value, "__objclass__", None) is not cls:
                parts += [name.encode(), self.digest_dependency(value, name)]
        return _hash(b"own class", *parts)

    def _code(self, code: CodeType) -> bytes:
        shape = (
            code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_names,
            code.co_varnames, code.co_freevars, code.co_cellvars, sys.version_info[:2],
        )  # fmt: skip
        exceptions = getattr(code, "co_exceptiontable", b"")
        return _hash(b"code", code.co_code, exceptions, repr(shape).encode(), *map(self.digest, code.co_consts))


_MISSING = object()
_NOT_CONTENT = frozenset({
    "__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__firstlineno__", "__static_attributes__",
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__abstractmethods__", "_abc_impl",
})  # fmt: skip
_SIMPLE: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _obj: b"None",
    bool: lambda obj: b"bool %d" % obj,
    int: lambda obj: b"int %d" % obj,
    float: lambda obj: b"float" + struct.pack("<d", obj),
    complex: lambda obj: b"complex" + struct.pack("<dd", obj.real, obj.imag),
    str: lambda obj: obj.encode("utf-8", "surrogatepass"),
    range: lambda obj: repr(obj).encode(),
    slice: lambda obj: repr(obj).encode(),
    type(Ellipsis): lambda _obj: b"Ellipsis",
    type(NotImplemented): lambda _obj: b"NotImplemented",
}


def _memory(array: Any) -> Any:
    """Return the bytes of an array of any dtype except object. Arrays of dates do not support the buffer protocol."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else b""


def _hash(*parts: Any) -> bytes:
    """Digest several parts. Each is preceded by its length, so that different sequences of parts are not confused."""
    sha = hashlib.sha256(usedforsecurity=False)
    for part in parts:
        size = part.nbytes if isinstance(part, (memoryview, np.ndarray)) else len(part)
        sha.update(size.to_bytes(8, "little"))
        if size:
            sha.update(part)
    return sha.digest()[:SIZE]


def is_immutable(value: Any) -> bool:
    """Whether the content of an object cannot change while it is the same object.

    What functions and classes refer to can change; `FunctionDigest` checks that separately.
    """
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_immutable, value))
    if type(value) is np.ndarray:
        while isinstance(value, np.ndarray):
            if value.flags.writeable:
                return False
            value = value.base
        return value is None or isinstance(value, bytes)
    if isinstance(value, (staticmethod, classmethod)):
        return is_immutable(value.__func__)
    if isinstance(value, (property, Transparent)):
        return True
    return isinstance(value, _IMMUTABLE) or f"{type(value).__module__}.{type(value).__qualname__}" in _LOCKS


# ---- functions ------------------------------------------------------------------------------------------------------


class Dependencies:
    """What the digest of a function depends on."""

    def __init__(self) -> None:
        self.names: list[tuple[Mapping[str, Any], str, Any]] = []
        """Namespaces, names in them, and the values of these names."""
        self.cells: list[tuple[CellType, Any]] = []
        self.classes: list[tuple[type, dict[str, Any]]] = []
        self.mutable: list[tuple[str, Any, bytes]] = []
        """Names, objects that can change in place, and their digests."""
        self._functions: list[tuple[FunctionType, list[Any]]] = []
        self._files: list[tuple[str, FileVersion]] = []

    def see_function(self, function: FunctionType) -> None:
        """Record a function."""
        self._functions.append((function, _parts_of(function)))

    def see_path(self, text: str) -> None:
        """Record the version of the file at this path, if there is one."""
        version = FileVersion.now(text) if 0 < len(text) <= MAX_PATH else None
        if version is not None:
            self._files.append((text, version))

    def unchanged(self) -> bool:
        """Whether all dependencies are unchanged, except for the objects that can change in place."""
        return (
            all(namespace.get(name, _MISSING) is value for namespace, name, value in self.names)
            and all(_identical(_parts_of(function), parts) for function, parts in self._functions)
            and all(_content(cell) is value for cell, value in self.cells)
            and all(_same_members(vars(cls), members) for cls, members in self.classes)
            and all(FileVersion.now(text) == version for text, version in self._files)
        )

    @property
    def file_versions(self) -> list[FileVersion]:
        """Versions of the files that the code names."""
        return [version for _text, version in self._files]


class FunctionDigest:
    """The digest of a function, which can check whether it still holds.

    Args:
        function: The function.

    Raises:
        DigestError: The function refers to something that has no digest.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._seen = Dependencies()
        digester = Digester(seen=self._seen)
        plain = isinstance(function, FunctionType)
        code = digester.digest(function) if plain else digester.digest_dependency(function, "self")
        self.value = _hash(code, repr(self._seen.file_versions).encode("utf-8", "surrogatepass"))
        """The digest."""

    def holds(self) -> bool:
        """Whether nothing has changed since the digest was computed."""
        return self._seen.unchanged() and all(
            Digester().digest(value) == digest for _name, value, digest in self._seen.mutable
        )

    def settled(self) -> bool:
        """Whether a change made now to a file that the code names would be detected."""
        return all(version.settled() for version in self._seen.file_versions)

    @property
    def mutable(self) -> list[str]:
        """Names of the objects that `holds` digests again each time."""
        return [name for name, _value, _digest in self._seen.mutable]


def _parts_of(function: FunctionType) -> list[Any]:
    keywords = function.__kwdefaults__ or {}
    return [function.__code__, function.__defaults__, *keywords.values(), *vars(function).values()]


def _identical(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _same_members(members: Mapping[str, Any], before: dict[str, Any]) -> bool:
    return len(members) == len(before) and all(members.get(name, _MISSING) is value for name, value in before.items())


@functools.lru_cache(maxsize=4096)
def global_names(code: CodeType) -> tuple[str, ...]:
    """Return the names of the globals that code uses, including the code of nested functions."""
    return tuple(sorted(set(_globals(code))))


def _globals(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL:
            yield instruction.argval
    for nested in _nested(code):
        yield from _globals(nested)


def _nested(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


@functools.lru_cache(maxsize=4096)
def _all_names(code: CodeType) -> frozenset[str]:
    return frozenset(code.co_names).union(*map(_all_names, _nested(code)))


def _imported(code: CodeType, package: str) -> Iterator[ModuleType | None]:
    """Import the user's modules that code imports, and yield them; None for a module that is missing."""
    for name in sorted(set(_import_statements(code, package))):
        if not _is_users(name):
            continue
        try:
            yield importlib.import_module(name)
        except ImportError:
            yield None


def _import_statements(code: CodeType, package: str) -> Iterator[str]:
    constants: list[Any] = [0, None]
    for instruction in dis.get_instructions(code):
        if instruction.opname in _CONSTANT:
            constants = [constants[-1], instruction.argval]
        elif instruction.opname == "IMPORT_NAME":
            level = constants[0]
            with contextlib.suppress(ImportError):  # a relative import outside of a package
                yield importlib.util.resolve_name("." * level + instruction.argval, package)
    for nested in _nested(code):
        yield from _import_statements(nested, package)


# ---- whose code it is -----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _is_users(module: str | None) -> bool:
    """Whether a module is the user's: not part of the standard library, an installed package or nbloader."""
    if not module or module in _MAIN:
        return True
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return False
    origin = _origin(top)
    if origin is None:
        return top not in sys.builtin_module_names
    return not is_installed(str(origin))


@functools.lru_cache(maxsize=4096)
def _version(module: str | None) -> bytes:
    """Return bytes that change when the package of a module is upgraded."""
    top = (module or "").partition(".")[0]
    if not top or top in sys.stdlib_module_names:
        return repr(sys.version_info[:3]).encode()
    origin = _origin(top)
    version = None if origin is None else FileVersion.now(str(origin))
    if version is None:  # a namespace package, whose distributions have no file in common
        version = FileVersion.now(getattr(sys.modules.get(module or ""), "__file__", None) or "")
    return top.encode() if version is None else repr((top, version.size, version.modified)).encode()


@functools.lru_cache(maxsize=4096)
def _origin(top: str) -> Path | None:
    """Return the file of a top-level module, without importing the module."""
    spec = getattr(sys.modules.get(top), "__spec__", None)
    if spec is None:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            return None
    origin = getattr(spec, "origin", None)
    locations = list(getattr(spec, "submodule_search_locations", None) or ())
    found = origin if spec is not None and spec.has_location and origin else next(iter(locations), None)
    return None if found is None else Path(found).resolve()
