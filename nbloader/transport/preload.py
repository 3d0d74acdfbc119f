"""Modules that a dataset needs and that are slow to import: the fork server imports them once for all workers.

Only installed packages are imported there. The user's own modules are imported by each worker, so that a new worker
gets the current contents of their files.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from nbloader._util import code_places
from nbloader._util.signals import raised_by_handler

log = logging.getLogger(__name__)

LOADER = "nbloader.loader"
PRELOADABLE = ("torch", "torchvision", "PIL.Image", "pandas", "scipy", "cv2", LOADER)
"""Modules that are slow to import and never edited by the user."""
_DRAW_NOTHING = frozenset({"builtins", "cloudpickle", "nbloader", "numpy"}) | sys.stdlib_module_names
"""Packages of which nothing but `numpy.random` draws random numbers from NumPy."""
_FUNCTION_ATTRIBUTE = {
    staticmethod: "__func__", classmethod: "__func__", property: "fget", functools.cached_property: "func"
}  # fmt: skip
"""Types of attributes of classes that hold a function, and where."""
_DRAWING_LINE = rb"(?m)^(?!def |class |async def )[^\s#@].*(\.random\b|\bnumpy\b.*\brandom\b)"
"""Matches a line at the top level of a module that uses an attribute `random`, or imports it from NumPy."""
MANY = 100
"""Number of classes, functions and modules after which no more code is searched for random numbers."""
LARGE = 20
"""A package with more modules than this is expected to be slow to import. Each worker imports smaller ones itself."""
_PRELOADED_ALREADY = {"encodings", "importlib", "nbloader", "numpy", *(name.partition(".")[0] for name in PRELOADABLE)}


def needed(payload: bytes, *parts: Any, by_torch: bool = False) -> list[str]:
    """Return the modules that workers will import to rebuild and use a dataset and its functions.

    Args:
        payload: The pickle of the dataset and its functions. Code of the notebook names in it the modules that it uses.
        parts: Objects and functions. Each needs everything that the module of its class, or of the function, imports.
        by_torch: Whether workers collate with torch.
    """
    used = {"torch"} if by_torch else set()
    used |= {_key(name) for name in PRELOADABLE if _key(name).encode() in payload}
    return _loaded(used.union(*(_imported_by(getattr(part, "__module__", None) or "") for part in parts)))


def expected(dataset: Any, *, by_torch: bool = False) -> list[str]:
    """Estimate `needed` for a dataset that has not been pickled yet. The estimate is cheap and may miss modules."""
    used = set(_used_by(dataset))
    return _loaded(used | {"torch"} if by_torch else used)


def draws_from_numpy(payload: bytes, named: Iterable[Any]) -> bool:
    """Whether workers are expected to draw random numbers from NumPy. The estimate is cheap and may be wrong.

    The user's own code is searched for the word "random". Packages that are neither NumPy nor part of Python are
    expected to draw.

    Args:
        payload: See `needed`.
        named: The classes, functions and modules that the payload refers to.
    """
    if b"random" in payload:
        return True
    try:
        return _code_draws(list(named))
    except Exception as error:  # the user's objects may raise anything when they are looked at
        if raised_by_handler(error):
            raise
        log.debug("the dataset's code was not searched for random numbers", exc_info=True)
        return True


def _code_draws(waiting: list[Any]) -> bool:
    """Search these classes, functions and modules, and what they refer to."""
    seen: dict[int, Any] = {}  # the values keep an id from being given to another object
    while waiting:
        value = waiting.pop()
        part = value if issubclass(type(value), (type, FunctionType, ModuleType)) else type(value)
        if id(part) in seen:
            continue
        seen[id(part)] = part
        draws = _draws(part)
        if draws or len(seen) > MANY:
            return True
        if draws is None:
            if isinstance(part, ModuleType):
                names = {name for name in _modules_in(part) if isinstance(name, str)}
                waiting += map(sys.modules.get, names)
                continue
            waiting += (sys.modules.get(part.__module__), *(part.__mro__ if isinstance(part, type) else ()))
            for function in _functions_of(part):
                names = set(_names(function.__code__))
                if any("random" in name for name in names):
                    return True
                waiting += _values(function, names)
    return False


def _draws(part: Any) -> bool | None:
    """Whether a class, function or module draws random numbers from NumPy.

    Returns:
        None for the user's own code, of which other parts must be searched. A module draws if it does so when it is
        imported: in a worker, its functions need not be called.
    """
    home = part.__name__ if isinstance(part, ModuleType) else part.__module__
    if not isinstance(home, str) or not isinstance(sys.modules.get(home), ModuleType):
        return False
    if _root(home) in _DRAW_NOTHING:
        return home.startswith("numpy.random")
    if home != "__main__" and is_installed(sys.modules[home]):
        return True
    if not isinstance(part, ModuleType):
        return None
    if home == "__main__":
        return False
    holds = any(str(type(value).__module__).startswith("numpy.random") for value in list(vars(part).values()))
    return holds or _draws_on_import(str(vars(part).get("__file__"))) or None


@functools.lru_cache(maxsize=MANY)
def _draws_on_import(file: str) -> bool:
    """Whether a statement at the top level of a source file seems to draw from NumPy, or imports `numpy.random`."""
    try:
        return re.search(_DRAWING_LINE, Path(file).read_bytes()) is not None
    except OSError:
        return False


def _functions_of(part: Any) -> Iterator[FunctionType]:
    """Yield the functions of a class, or a function itself."""
    for value in vars(part).values() if isinstance(part, type) else (part,):
        attribute = _FUNCTION_ATTRIBUTE.get(type(value))
        function = value if attribute is None else getattr(value, attribute)
        if isinstance(function, FunctionType):
            yield function


def _values(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Yield what the names in a function's code refer to: globals, parts of the user's modules, variables around it."""
    found = [function.__globals__[name] for name in names & function.__globals__.keys()]
    for module in [value for value in found if isinstance(value, ModuleType) and not is_installed(value)]:
        found += [vars(module)[name] for name in names & vars(module).keys()]
    yield from found
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            yield cell.cell_contents


def packages(modules: Iterable[str]) -> frozenset[str]:
    """Return the modules of large packages that a pickle names, or that the user's modules named in it use.

    Workers import these modules first, and with them everything that these need.
    """
    found: set[str] = set()
    seen: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in seen or name == "__main__" or module is None:
            continue
        seen.add(name)
        if not is_installed(module):
            waiting += (other for other in _modules_in(module) if isinstance(other, str))
        elif _is_large(_root(name)):
            found.add(name)
    return frozenset(found)


def packages_of(*parts: Any) -> frozenset[str]:
    """Estimate `packages` for objects that have not been pickled yet. The estimate is cheap and may miss modules."""
    names = [getattr(part, "__module__", None) for part in parts]
    for part in parts:
        names += [cls.__module__ for cls in type(part).__mro__]
        names += [type(value).__module__ for value in attributes_of(part).values()]
    return packages(name for name in names if isinstance(name, str))


def need_torch(names: Iterable[str]) -> bool:
    """Whether any of these packages imports torch."""
    return "torch" in sys.modules and any(_imports_torch(_root(name), *_imports()) for name in names)


def imported_with_torch() -> frozenset[str]:
    """Return the modules of all large packages that this process has imported and that import torch."""
    roots = {root for root in _sizes(*_imports()) if _is_large(root)}
    roots = {root for root in roots if root in sys.modules and is_installed(sys.modules[root]) and need_torch([root])}
    return frozenset(name for name in list(sys.modules) if _root(name) in roots)


@functools.lru_cache(maxsize=256)
def _imports_torch(package: str, _modules: int, _newest: str) -> bool:
    prefix = f"{package}."
    return any(
        "torch" in _imported_by(name) for name in list(sys.modules) if name == package or name.startswith(prefix)
    )


def _imports() -> tuple[int, str]:
    """Return the number of imported modules and the name of the newest. The result changes with each import."""
    return len(sys.modules), next(reversed(sys.modules))


@functools.lru_cache(maxsize=1)
def _sizes(_modules: int, _newest: str) -> Counter[str]:
    """Count the modules of each package that this process has imported."""
    return Counter(map(_root, list(sys.modules)))


def _is_large(package: str) -> bool:
    """Whether this process has imported many modules of a package."""
    return package not in _PRELOADED_ALREADY and _sizes(*_imports())[package] > LARGE


def _modules_in(module: ModuleType) -> Iterator[Any]:
    """Yield the modules to which the globals of a module refer."""
    for value in list(vars(module).values()):
        if issubclass(type(value), (ModuleType, type, FunctionType)):
            yield _module_of(value)


def _module_of(value: Any) -> Any:
    """Return the name of the module that must be imported to get an object: a str, unless user code has changed it.

    This runs no code of the object, which may claim to have any class, or be a lazy module that would be loaded.
    """
    kind = type(value)
    if issubclass(kind, ModuleType):
        return ModuleType.__getattribute__(value, "__dict__").get("__name__")
    if issubclass(kind, type):
        return type.__getattribute__(value, "__module__")
    if issubclass(kind, (FunctionType, BuiltinFunctionType, MethodType)):
        return value.__module__
    return type.__getattribute__(kind, "__module__")


def is_installed(module: ModuleType) -> bool:
    """Whether a module belongs to Python or an installed package, and not to the user's own files."""
    attributes = attributes_of(module)
    file = attributes.get("__file__")
    if not isinstance(file, str):
        spec = attributes.get("__spec__")
        return getattr(spec, "origin", None) in ("built-in", "frozen")
    return code_places.is_installed(file)


def _loaded(used: set[str]) -> list[str]:
    """Return the preloadable modules in use that this process has imported."""
    if LOADER in used:
        used.add("torch")
    return [name for name in PRELOADABLE if name in sys.modules and _key(name) in used]


def _key(name: str) -> str:
    """Return the part of a module's name by which its use is recognized."""
    return LOADER if f"{name}.".startswith(f"{LOADER}.") else _root(name)


def _root(name: str) -> str:
    return name.partition(".")[0]


def _imported_by(home: str) -> set[str]:
    if home == "__main__" or home not in sys.modules:
        return set()
    return {_home(value) for value in vars(sys.modules[home]).values()}


def _home(value: Any) -> str:
    """Return the package that must be imported to get a module, class or function."""
    return _key(str(_module_of(value)))


def _used_by(dataset: Any) -> Iterator[str]:
    for cls in type(dataset).__mro__:
        yield _root(cls.__module__)
        yield from _imported_by(cls.__module__)
        for value in vars(cls).values():
            if isinstance(value, FunctionType):  # other objects may claim to have any attribute
                for name in _names(value.__code__):
                    yield _home(value.__globals__.get(name))
    for value in attributes_of(dataset).values():
        yield _root(type(value).__module__)


def attributes_of(obj: Any) -> dict[str, Any]:
    """Return the instance attributes of an object, without running its `__getattr__`."""
    try:
        attributes: dict[str, Any] = object.__getattribute__(obj, "__dict__")
    except AttributeError:  # it has slots only
        return {}
    return attributes


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
