"""Notices packages that were upgraded while this process runs, as by `%pip install --upgrade` in a notebook.

What is imported later then comes from the new version, and the two do not fit together.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from pathlib import Path

from nbloader._util.user_warning import warn
from nbloader._util.version import __version__

_DISTRIBUTIONS = {"nbloader": "nbloader-torch", "numpy": "numpy", "torch": "torch"}


def _changed() -> dict[str, int]:
    """When something was last installed beside each of the packages, by folder."""
    folders = {
        str(Path(file).parents[1])
        for name in _DISTRIBUTIONS
        if (file := getattr(sys.modules.get(name), "__file__", None)) is not None
    }
    times = {}
    for folder in folders:
        with contextlib.suppress(OSError):  # a package in an archive
            times[folder] = Path(folder).stat().st_mtime_ns
    return times


_looked_at = _changed()


def warn_of_upgrades() -> None:
    """Warn of packages of which another version is installed than this process has imported.

    Only looks after something was installed beside them, so a loader does not repeat the warning of the one before.
    """
    changed = _changed()
    if changed == _looked_at:
        return
    _looked_at.clear()
    _looked_at.update(changed)
    for name, distribution in _DISTRIBUTIONS.items():
        imported = __version__ if name == "nbloader" else getattr(sys.modules.get(name), "__version__", None)
        try:
            installed = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if imported is not None and not _is_same(installed, imported):
            warn(f"{name} {installed} was installed, but this process has imported {imported}: restart the kernel")


def _is_same(installed: str, imported: str) -> bool:
    """Whether two versions are the same. A wheel's may lack the label of its build: torch 2.14.1 says 2.14.1+cu130."""
    release, _, build = installed.partition("+")
    other_release, _, other_build = imported.partition("+")
    return release == other_release and (build == other_build or not build or not other_build)
