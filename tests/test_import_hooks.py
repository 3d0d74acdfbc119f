"""Functions that are called when a module is imported."""

import importlib
import importlib.util
import sys

import pytest

from nbloader._util.import_hooks import when_imported

NAME = "hooked_module"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Path of a module that is not imported yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    path = tmp_path / f"{NAME}.py"
    path.write_text("value = 1\n")
    yield path
    sys.modules.pop(NAME, None)


def test_functions_are_called_once_in_the_order_of_their_registration_when_the_module_is_complete(module):
    calls = []
    when_imported(NAME, lambda: calls.append(("first", sys.modules[NAME].value)))
    when_imported(NAME, lambda: calls.append(("second", sys.modules[NAME].value)))
    assert not calls
    imported = importlib.import_module(NAME)
    assert calls == [("first", 1), ("second", 1)]
    importlib.reload(imported)
    assert len(calls) == 2
    when_imported(NAME, lambda: calls.append("third"))
    assert calls[2:] == ["third"]


def test_a_lookup_is_no_import(module):
    calls = []
    when_imported(NAME, lambda: calls.append(1))
    assert importlib.util.find_spec(NAME) is not None
    assert not calls
    importlib.import_module(NAME)
    assert calls == [1]


def test_after_an_import_that_failed_the_next_one_counts(module):
    calls = []
    when_imported(NAME, lambda: calls.append(1))
    module.write_text("raise OSError('too many open files')\n")
    with pytest.raises(OSError, match="too many"):
        importlib.import_module(NAME)
    assert not calls
    module.write_text("value = 23\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert calls == [1]


def test_the_list_of_finders_is_not_changed_by_an_import(module):
    """Another thread may be iterating over it, and would skip a finder."""
    when_imported(NAME, lambda: None)
    before = list(sys.meta_path)
    importlib.import_module(NAME)
    assert sys.meta_path == before


def test_a_module_that_does_not_exist_is_still_an_error(module):
    when_imported("no_such_module_anywhere", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")
