"""The environment of the notebook's process, which is reproduced in clean workers.

Forked workers inherit all state of the notebook's process. Clean workers receive only state that is cheap to collect
and commonly set, including settings that are stored in libraries rather than in the dataset. Anything else, such as
changed globals of other modules, does not reach them.
"""

from __future__ import annotations

import logging
import os
import re
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
        _set_levels(self.levels)
        if self.float_errors != np.geterr():
            np.seterr(**self.float_errors)
        if self.print_options != _print_options():
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


def _set_levels(levels: dict[str, int]) -> None:
    """Set levels of loggers; "" is the root logger.

    Levels are assigned directly, followed by a single call of `Logger.setLevel`: each call clears the caches of all
    loggers, which depend on the levels.
    """
    loggers = [(logging.getLogger(name or None), level) for name, level in levels.items()]
    changed = [(logger, level) for logger, level in loggers if logger.level != level]
    for logger, level in changed:
        logger.level = level
    if changed:
        logging.root.setLevel(logging.root.level)


class _Expression:
    """A regular expression of a filter, compiled only when a warning is matched against it.

    Compiling one takes 0.2 ms, and most are never needed.

    Args:
        pattern: The expression.
        flags: As for `re.compile`.
    """

    __slots__ = ("_flags", "pattern")

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.pattern = pattern
        self._flags = flags

    def match(self, text: str) -> re.Match[str] | None:
        """Match like `re.Pattern.match`."""
        return re.match(self.pattern, text, self._flags)


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
    for entry in list(_entries()):
        action, message, category, module, _line = entry
        if action != "error":
            found.append(_described(entry))
        elif message is None and category is Warning and module is None:
            break  # no warning reaches the filters after it
    return found


def _described(entry: Any) -> Filter:
    """Convert an entry of `warnings.filters` to a `Filter`, which can be sent to a worker."""
    action, message, category, module, line = entry
    where = Global(category.__module__, getattr(category, "__qualname__", ""))
    return Filter(action, _pattern(message), where, _pattern(module), line)


def _pattern(expression: Any) -> str:
    return expression if isinstance(expression, str) else getattr(expression, "pattern", "")


_own_filters: list[Any] = []
"""In a worker: the warnings filters that its interpreter had at startup."""


def _install_filters(filters: tuple[Filter, ...]) -> None:
    """Install the filters, followed by those that this interpreter had at startup.

    Existing entries are reused.
    """
    entries = _entries()
    if not _own_filters:
        _own_filters.extend(entries)
    known = {_described(entry): entry for entry in (*_own_filters, *entries)}
    warnings.resetwarnings()
    for wanted in filters:
        if wanted in known:
            entries.append(known[wanted])
            continue
        category = getattr(sys.modules.get(wanted.category.module), wanted.category.name, None)
        if category is not None:
            message = _Expression(wanted.message, re.IGNORECASE) if wanted.message else None
            module = _Expression(wanted.module) if wanted.module else None
            entries.append((wanted.action, message, category, module, wanted.line))
    entries.extend([entry for entry in _own_filters if _described(entry) not in filters])
