"""Whose code it is: the user's, or that of a package, which its version identifies.

The file of the code decides, never `__module__`: `functools.wraps` copies that, and a folder of the user may be called
like a module of the standard library.
"""

from __future__ import annotations

import functools
import os
import pickle
import re
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from nbloader._util.code_places import PACKAGE, is_installed
from nbloader.batch.pickling import SPAWNED_MAIN

_FOLDERS = ("site-packages", "dist-packages")
_MAIN = frozenset({"__main__", SPAWNED_MAIN})
_versions: dict[str, tuple[object, str]] = {}
"""Package -> its module's `__spec__` (another one after a reload), and its version."""


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether code is the user's: not part of the standard library, of an installed package or of nbloader.

    Args:
        file: `co_filename` of the code. Code of cells and of `exec` has no file, and is the user's.
    """
    if file.startswith("<"):
        return not file.startswith("<frozen ")
    return not (file.startswith(PACKAGE) or is_installed(os.path.realpath(file)))


def module_file(module: ModuleType) -> str:
    """Return the file or folder of a module; "" if it has none."""
    found: Any = vars(module).get("__file__") or next(iter(vars(module).get("__path__") or ()), "")
    return found if isinstance(found, str) else ""


def is_users_module(module: ModuleType) -> bool:
    """Whether a module is the user's. The notebook is, and so are modules without a file."""
    if module.__name__ in _MAIN:
        return True
    origin = getattr(vars(module).get("__spec__"), "origin", None)
    return origin not in ("built-in", "frozen") and is_users(module_file(module) or "<no file>")


def named_in(obj: object, qualname: str) -> ModuleType | None:
    """Return the loaded module that has this object under its name; None if no module does."""
    name = getattr(obj, "__module__", None)
    if name is None and not isinstance(obj, (FunctionType, type)):  # a ufunc of NumPy 1
        name = pickle.whichmodule(obj, qualname)  # type: ignore[attr-defined]
    module = sys.modules.get(name) if isinstance(name, str) else None
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return module if found is obj else None


def package_of(file: str) -> str:
    """Return the top-level module of a library that a file belongs to; "" for the standard library."""
    if file.startswith(PACKAGE):
        return Path(PACKAGE).name
    return _place(file)[1].partition(os.sep)[0].partition(".")[0]


def version_of(file: str) -> str:
    """Return the version of the library that a file belongs to."""
    package = package_of(file)
    if not package:
        return sys.version
    module = sys.modules.get(package)
    spec = getattr(module, "__spec__", None)
    known = _versions.get(package)
    if known is None or known[0] is not spec:
        folder = _place(file)[0]
        version = _distribution(folder, package) if folder else vars(sys.modules[package])["__version__"]
        _versions[package] = known = spec, repr((package, version or _files(folder, package)))
    return known[1]


@functools.lru_cache(maxsize=4096)
def _place(file: str) -> tuple[str, str]:
    """Split the path of a file into the folder of installed packages and the rest; ("", "") if it is in none."""
    real = os.path.realpath(file) if file else ""
    for entry in sys.path:
        if not str(entry).endswith(_FOLDERS):
            continue
        folder = os.path.realpath(entry) + os.sep
        if real.startswith(folder):
            return folder, real[len(folder) :]
    for name in _FOLDERS:
        folder, found, rest = real.rpartition(f"{os.sep}{name}{os.sep}")
        if found:
            return folder + found, rest
    return "", ""


def _distribution(folder: str, package: str) -> str:
    """Return the name of the metadata folder of a package, such as "numpy-2.1.0.dist-info"; "" if it has none."""
    found = sorted(entry for entry in os.listdir(folder) if entry.endswith((".dist-info", ".egg-info")))  # noqa: PTH208
    for entry in found:
        if _normal(entry.partition("-")[0]) == _normal(package):
            return entry
    for entry in found:  # the distribution has another name: Pillow installs PIL
        try:
            record = Path(folder, entry, "RECORD").read_bytes()
        except OSError:
            continue
        if re.search(rb"^%b[/.]" % re.escape(package.encode()), record, re.MULTILINE):
            return entry
    return ""


def _normal(name: str) -> str:
    return re.sub("[-_.]+", "_", name).lower()


def _files(folder: str, package: str) -> list[tuple[str, int, int]]:
    """Return the files of a package that declares no version, with sizes and times."""
    root = Path(folder, package)
    files = [*root.rglob("*"), *root.parent.glob(f"{package}.*")]
    found = [(str(file.relative_to(folder)), file.stat()) for file in files if file.suffix in (".py", ".so")]
    return sorted((name, status.st_size, status.st_mtime_ns) for name, status in found)
