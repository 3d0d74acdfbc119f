"""Which datasets are not used in forked workers: those that use a package whose threads do not survive a fork."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from nbloader.workers.fork_safety import threaded_package

pytestmark = pytest.mark.unit


class Frame:
    """An object of a package with threads."""


Frame.__module__ = "polars.dataframe"


class Dataset:
    """A dataset with any attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getitem__(self, i: int) -> int:
        return i


class ByGlobal(Dataset):
    """Its method uses the module."""

    def __getitem__(self, i: int) -> int:
        return len(pl.__name__) + i


pl = ModuleType("polars")


def uses_the_module(_i: int) -> str:
    return pl.__name__


def with_closure() -> Callable[[int], Frame]:
    frame = Frame()
    return lambda _i: frame


def of_a_library() -> Any:
    """A dataset whose class is defined in an installed package, and uses the module."""
    source = "class Installed:\n    def __getitem__(self, i):\n        return len(pl.__name__) + i\n"
    module: dict[str, Any] = {"pl": pl, "__name__": "installed"}
    exec(compile(source, np.__file__.replace("__init__.py", "installed.py"), "exec"), module)
    return module["Installed"]()


USED = {
    "a global of a method of an installed package": of_a_library,
    "the dataset itself": Frame,
    "an attribute": lambda: Dataset(frame=Frame()),
    "an attribute of an attribute": lambda: Dataset(inner=Dataset(frame=Frame())),
    "an item of a list": lambda: Dataset(transforms=[str, Frame()]),
    "a global of a method": ByGlobal,
    "a global of a function": lambda: uses_the_module,
    "a global of a function in a list": lambda: Dataset(transforms=[str, uses_the_module]),
    "a closure": with_closure,
    "a closure of a function that the dataset holds": lambda: Dataset(read=with_closure()),
}


@pytest.mark.parametrize("how", USED)
def test_a_package_with_threads_is_found(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", pl)
    assert threaded_package(USED[how](), None) == "polars"
    assert threaded_package(Dataset(), USED[how]()) == "polars"


@pytest.mark.parametrize("how", USED)
def test_nothing_is_found_while_the_package_is_not_imported(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "polars", raising=False)
    assert threaded_package(USED[how]()) == ""


def test_other_datasets_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", pl)
    rows = [{"image": np.zeros(3), "label": i} for i in range(10_000)]
    assert threaded_package(Dataset(rows=rows, transform=lambda row: row["image"]), None, len) == ""
