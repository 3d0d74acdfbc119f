"""The registry of causes: each one is registered, has all of its words, and has an example."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest
from test_diagnose import ALONE, evidence

from nbloader.diagnose import causes
from nbloader.diagnose.causes import BY_NAME, CAUSES, UNKNOWN, Cause
from nbloader.diagnose.parts import INNER, WAIT, Part

pytestmark = pytest.mark.unit


def defined() -> list[Cause]:
    """The causes in the modules of the package."""
    modules = [
        importlib.import_module(f"{causes.__name__}.{found.name}") for found in pkgutil.iter_modules(causes.__path__)
    ]
    return [thing for module in modules for thing in vars(module).values() if isinstance(thing, Cause)]


def test_each_cause_that_a_module_defines_is_registered_once_under_its_own_name():
    assert set(defined()) == set(CAUSES)
    assert len(BY_NAME) == len(CAUSES) == len(set(CAUSES))


@pytest.mark.parametrize("name", BY_NAME)
def test_each_cause_has_an_example_and_says_what_it_is_and_what_to_do(name: str):
    cause = BY_NAME[name]
    examples = [evidence(base, changes) for _id, found, base, changes, _words in ALONE if found == name]
    assert examples, f"no example in ALONE of tests/test_diagnose.py has the cause {name!r}"
    for e in examples:
        assert re.fullmatch(r"[A-Z].+\.", cause.sentence(e))
        assert re.fullmatch(r".+[^.]", cause.short(e))
        assert cause is UNKNOWN or re.fullmatch(r"[A-Z].+\.", cause.remedy(e).text)
    assert not re.search(r"[.]$|^[A-Z]", cause.unmodeled), "a clause"


def test_what_no_other_cause_takes_is_unknown():
    leaves = {*WAIT, Part.STEPS, *(part for inner in INNER.values() for part in inner)} - INNER.keys()
    e = evidence({}, {})
    assert all(UNKNOWN.applies(part, e) for part in leaves)
    assert CAUSES[-1] is UNKNOWN
