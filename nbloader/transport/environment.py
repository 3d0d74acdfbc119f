"""The environment of the notebook's process, which is reproduced in clean workers.

Forked workers inherit all state of the notebook's process. Clean workers receive only state that is cheap to collect
and commonly set, including settings that are stored in libraries rather than in the dataset. Anything else, such as
changed globals of other modules, does not reach them.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nbloader._platform import working_directory
from nbloader._util.import_hooks import when_imported

log = logging.getLogger(__name__)


class Global(NamedTuple):
    """A variable or a class at the top level of a module. Sending it by name does not import the module."""

    module: str
    name: str


_FLAGS = (Global("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES"), Global("PIL.Image", "MAX_IMAGE_PIXELS"))
"""Settings that are global variables."""
_PRINT_OPTIONS = ("precision", "threshold", "edgeitems", "linewidth", "suppress", "sign", "floatmode")


def in_kernel() -> bool:
    """Whether this process is the kernel of a notebook."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return False
    return getattr(sys.modules["IPython"].get_ipython(), "kernel", None) is not None


class Filter(NamedTuple):
    """A warnings filter: an entry of `warnings.filters`."""

    action: str
    message: str
    """Regular expression, or ""."""
    category: Global
    """The class."""
    module: str
    """Regular expression, or ""."""
    line: int


class Settings(NamedTuple):
    """The settings of a process."""

    default_dtype: str | None
    """The default dtype of torch, such as "float64"; None if torch is not imported."""
    flags: dict[Global, Any]
    """Values of `_FLAGS`, for modules that are imported."""
    filters: tuple[Filter, ...]
    """Warnings filters, except for those that turn warnings into errors.

    With those, imports that succeeded in the notebook would fail in a worker.
    """
    levels: dict[str, int]
    """Levels of the loggers whose level is set; "" is the root logger."""
    float_errors: dict[str, Any]
    """As `numpy.geterr` returns it."""
    print_options: dict[str, Any]
    """Print options of NumPy."""

    @classmethod
    def of_this_process(cls) -> Settings:
        """Return the current settings of this process."""
        torch = sys.modules.get("torch")
        dtype = None if torch is None else str(torch.get_default_dtype()).removeprefix("torch.")
        loaded = [flag for flag in _FLAGS if flag.module in sys.modules]
        levels = {name: logger.level for name, logger in _loggers() if logger.level}
        return cls(
            dtype,
            {flag: getattr(sys.modules[flag.module], flag.name) for flag in loaded},
            tuple(_filters()),
            {"": logging.root.level, **levels},
            dict(np.geterr()),
            _print_options(),
        )

    def install(self) -> None:
        """Apply the settings in a worker. Those of a module that is not imported yet are applied on its import."""
        if self.default_dtype is not None:
            when_imported("torch", partial(_set_default_dtype, self.default_dtype))
        for flag, value in self.flags.items():
            when_imported(flag.module, partial(_set_flag, flag, value))
        _install_filters(self.filters)
        for name, level in self.levels.items():
            logging.getLogger(name or None).setLevel(level)
        np.seterr(**self.float_errors)
        np.set_printoptions(**self.print_options)


class Environment(NamedTuple):
    """The environment of the notebook's process, for workers that do not inherit it."""

    sys_path: list[str]
    cwd: str
    environ: dict[str, str]
    argv: list[str]
    settings: Settings
    """Settings of libraries."""

    @classmethod
    def of_this_process(cls) -> Environment:
        """Return the current environment of this process."""
        settings = Settings.of_this_process()
        return cls(list(sys.path), working_directory() or os.sep, dict(os.environ), list(sys.argv), settings)

    def install(self) -> None:
        """Apply the environment in another process. Thread limits that are set only in that process are kept."""
        sys.path[:] = self.sys_path
        sys.argv[:] = self.argv
        present = dict(os.environ)
        for name in present.keys() - self.environ.keys():
            if not name.endswith("_NUM_THREADS"):
                del os.environ[name]
        for name, value in self.environ.items() - present.items():
            os.environ[name] = value
        self.settings.install()
        try:
            os.chdir(self.cwd)
        except OSError as error:
            text = "a worker cannot change to the notebook's working directory %s; relative paths refer to %s: %s"
            log.warning(text, self.cwd, Path.cwd(), error)


def _print_options() -> dict[str, Any]:
    options: dict[str, Any] = {**np.get_printoptions()}
    return {name: options[name] for name in _PRINT_OPTIONS if name in options}


def _loggers() -> list[tuple[str, logging.Logger]]:
    found = list(logging.root.manager.loggerDict.items())
    return [(name, logger) for name, logger in found if isinstance(logger, logging.Logger)]


def _set_default_dtype(name: str) -> None:
    torch = sys.modules["torch"]
    torch.set_default_dtype(getattr(torch, name))


def _set_flag(flag: Global, value: Any) -> None:
    setattr(sys.modules[flag.module], flag.name, value)


def _entries() -> list[Any]:
    """Return the list of the filters in effect.

    It is `warnings.filters`, except within `warnings.catch_warnings` in a Python without the GIL, where a thread or a
    task has filters of its own (`sys.flags.context_aware_warnings`, since Python 3.14).
    """
    module: Any = warnings
    entries: list[Any] = module._get_filters() if hasattr(module, "_get_filters") else module.filters
    return entries


def _filters() -> list[Filter]:
    found = []
    for action, message, category, module, line in list(_entries()):
        if action != "error":
            where = Global(category.__module__, getattr(category, "__qualname__", ""))
            found.append(Filter(action, _pattern(message), where, _pattern(module), line))
        elif message is None and category is Warning and module is None:
            break  # no warning reaches the filters after it
    return found


def _pattern(expression: Any) -> str:
    return expression if isinstance(expression, str) else getattr(expression, "pattern", "")


def _install_filters(filters: tuple[Filter, ...]) -> None:
    """Install the filters, followed by those that this interpreter has."""
    own = list(_entries())
    warnings.resetwarnings()
    for wanted in filters:
        category = getattr(sys.modules.get(wanted.category.module), wanted.category.name, None)
        if category is not None:
            action: Any = wanted.action
            warnings.filterwarnings(action, wanted.message, category, wanted.module, wanted.line, append=True)
    _entries().extend(own)
