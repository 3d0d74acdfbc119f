"""The registry of causes: each one is registered, has all of its words, and has an example. And a new cause."""

from __future__ import annotations

import importlib
import pkgutil
import re
import time

import numpy as np
import pytest
from test_diagnose import ALONE, evidence

from nbloader import DataLoader
from nbloader._util.format import percent
from nbloader.diagnose import causes, findings
from nbloader.diagnose.causes import BY_NAME, CAUSES, UNKNOWN, Cause, Remedy
from nbloader.diagnose.parts import INNER, WAIT, Part
from nbloader.diagnose.phrases import waits
from nbloader.metrics.evidence import Evidence

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


# A cause with a measurement of its own


def repeated(e: Evidence) -> float:
    """The share of samples that were fetched before."""
    fetched = [index for r in e.records for index in r.indices]
    return 1 - len(set(fetched)) / len(fetched) if fetched else 0.0


REPEATED = Cause(
    name="repeated",
    takes={Part.PRODUCTION: lambda e: repeated(e) > 0.5},
    sentence=lambda e: f"Samples are fetched again: {waits(e)}, and {percent(repeated(e))} were fetched before.",
    short=lambda e: f"{percent(repeated(e))} of the samples were fetched before",
    remedy=lambda _e: Remedy("Keep samples with nbloader.cached."),
)


class SlowNumbers:
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> np.int64:
        time.sleep(0.002)
        return np.int64(index)


@pytest.mark.parametrize(
    ("sampler", "limits"), [([*range(8)] * 64, True), (range(512), False)], ids=["repeated", "distinct"]
)
def test_a_new_cause_measures_the_records_of_batches(monkeypatch, sampler, limits):
    monkeypatch.setattr(findings, "CAUSES", (REPEATED, *CAUSES))
    with DataLoader(SlowNumbers(), 8, sampler=sampler, num_workers=2, workers="thread") as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    assert (stats.cause == "repeated") == limits, stats.verdict
    assert ("Keep samples with nbloader.cached. Samples are fetched again" in stats.verdict) == limits, stats.verdict
    assert not limits or re.search(r"and 9\d% were fetched before", stats.verdict), stats.verdict
