"""The environment of the notebook's process: what its other processes take over from it.

A worker of torch's loader, forked from the notebook's process, inherits everything. Workers of the fork server are sent
what is cheap to find and often set: also settings that live in libraries and not in the dataset. What is not in this
list, such as changed globals of other modules, does not reach them; `multiprocessing_context="fork"` inherits it.
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

from nbloader._util.import_hooks import when_imported
from nbloader._util.system import ROOT, working_directory

log = logging.getLogger(__name__)

_FLAGS = (("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES"), ("PIL.Image", "MAX_IMAGE_PIXELS"))
"""Switches that are globals of a module."""
_PRINT_OPTIONS = ("precision", "threshold", "edgeitems", "linewidth", "suppress", "sign", "floatmode")


def in_kernel() -> bool:
    """Whether this process is the kernel of a notebook."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return False
    return getattr(sys.modules["IPython"].get_ipython(), "kernel", None) is not None


class Filter(NamedTuple):
    """A filter of warnings."""

    action: str
    message: str
    """Regular expression, or ""."""
    category: tuple[str, str]
    """Module and name of the class. Sending the class would make workers import its module."""
    module: str
    """Regular expression, or ""."""
    line: int


class Settings(NamedTuple):
    """The settings of a process."""

    default_dtype: str | None
    """Torch's, such as "float64"; None where torch is not imported."""
    flags: dict[tuple[str, str], Any]
    """Values of `_FLAGS`, for modules that are imported."""
    filters: tuple[Filter, ...]
    """Filters of warnings, but for those that raise: imports that the notebook has behind it would fail."""
    levels: dict[str, int]
    """Levels of loggers, of those that have one; "" is the root logger."""
    float_errors: dict[str, Any]
    """As `numpy.geterr` returns it."""
    print_options: dict[str, Any]
    """Of NumPy."""

    @classmethod
    def of_this_process(cls) -> Settings:
        """Those of this process, now."""
        torch = sys.modules.get("torch")
        dtype = None if torch is None else str(torch.get_default_dtype()).removeprefix("torch.")
        loaded = [(name, flag) for name, flag in _FLAGS if name in sys.modules]
        levels = {name: logger.level for name, logger in _loggers() if logger.level}
        return cls(
            dtype,
            {(name, flag): getattr(sys.modules[name], flag) for name, flag in loaded},
            tuple(_filters()),
            {"": logging.root.level, **levels},
            dict(np.geterr()),
            _print_options(),
        )

    def install(self) -> None:
        """In a worker: install them in this process; in modules that are not imported yet, when they are."""
        if self.default_dtype is not None:
            when_imported("torch", partial(_set_default_dtype, self.default_dtype))
        for (module, flag), value in self.flags.items():
            when_imported(module, partial(_set_flag, module, flag, value))
        _install_filters(self.filters)
        _set_levels(self.levels)
        if self.float_errors != np.geterr():
            np.seterr(**self.float_errors)
        if self.print_options != _print_options():
            np.set_printoptions(**self.print_options)


class Environment(NamedTuple):
    """The environment of the notebook's process, which a worker takes over, and a fork server that imports packages."""

    sys_path: list[str]
    cwd: str
    environ: dict[str, str]
    argv: list[str]
    settings: Settings | None
    """Settings of libraries; None for a fork server, which imports packages for workers with other settings."""

    @classmethod
    def of_this_process(cls) -> Environment:
        """That of this process, now."""
        settings = Settings.of_this_process()
        return cls(list(sys.path), working_directory() or ROOT, dict(os.environ), list(sys.argv), settings)

    def install(self) -> None:
        """In another process: install it there. That process's own thread limits stay."""
        sys.path[:] = self.sys_path
        sys.argv[:] = self.argv
        present = dict(os.environ)
        for name in present.keys() - self.environ.keys():
            if not name.endswith("_NUM_THREADS"):
                del os.environ[name]
        os.environ.update(self.environ.items() - present.items())
        if self.settings is not None:
            self.settings.install()
        try:
            os.chdir(self.cwd)
        except OSError as error:
            text = "a worker cannot enter the working directory %s of the notebook, and finds relative paths in %s: %s"
            log.warning(text, self.cwd, Path.cwd(), error)


def _set_levels(levels: dict[str, int]) -> None:
    """Set levels of loggers; "" is the root logger.

    `Logger.setLevel` goes through all loggers, whose caches depend on the level: once for all of them is enough.
    """
    loggers = [(logging.getLogger(name or None), level) for name, level in levels.items()]
    changed = [(logger, level) for logger, level in loggers if logger.level != level]
    for logger, level in changed:
        logger.level = level
    if changed:
        logging.root.setLevel(logging.root.level)


class _Expression:
    """A regular expression of a filter, compiled when a warning is compared with it.

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
        """As `re.Pattern.match`."""
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


def _set_flag(module: str, flag: str, value: Any) -> None:
    setattr(sys.modules[module], flag, value)


def _filters() -> list[Filter]:
    found = []
    for entry in list(warnings.filters):
        if entry[0] != "error":
            found.append(_described(entry))
        elif entry[1:4] == (None, Warning, None):
            break  # no warning gets to those behind it
    return found


def _described(entry: Any) -> Filter:
    """An entry of `warnings.filters`, so that it can be sent."""
    action, message, category, module, line = entry
    names = category.__module__, getattr(category, "__qualname__", "")
    return Filter(action, _pattern(message), names, _pattern(module), line)


def _pattern(expression: Any) -> str:
    return expression if isinstance(expression, str) else getattr(expression, "pattern", "")


_own_filters: list[Any] = []
"""In a worker: the filters that its interpreter has begun with."""


def _install_filters(filters: tuple[Filter, ...]) -> None:
    """Install them, and behind them those that this interpreter has begun with.

    Entries that are there already are used again.
    """
    if not _own_filters:
        _own_filters.extend(warnings.filters)
    known = {_described(entry): entry for entry in (*_own_filters, *warnings.filters)}
    warnings.resetwarnings()
    for wanted in filters:
        if wanted in known:
            warnings.filters.append(known[wanted])  # type: ignore[attr-defined]
            continue
        action, message, (home, name), module, line = wanted
        category = getattr(sys.modules.get(home), name, None)
        if category is not None:
            of_message = _Expression(message, re.IGNORECASE) if message else None
            of_module = _Expression(module) if module else None
            warnings.filters.append((action, of_message, category, of_module, line))  # type: ignore[attr-defined]
    warnings.filters.extend([entry for entry in _own_filters if _described(entry) not in filters])  # type: ignore[attr-defined]
