"""Fixtures for all tests: no test leaves a process, thread, file descriptor or shared-memory file behind."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
from collections.abc import Iterator, Mapping

import hypothesis
import lanes
import leaks
import pytest

from nbloader import _platform

CLUSTER_NOTEBOOK = "04_many_machines.ipynb"
NO_CLUSTER = (
    "it starts a Ray cluster of four nodes, which fails on a machine that is busy with other tests; test_ray.py has "
    "one of two nodes. NBLOADER_TEST_CLUSTER=1 runs it, where Ray is installed"
)


def _strings(values: Mapping[str, object]) -> set[str]:
    """The strings among parameters, and among those that are arguments of a loader."""
    found = {value for value in values.values() if isinstance(value, str)}
    return found.union(*(_strings(value) for value in values.values() if isinstance(value, dict)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shorten what the notebooks wait for a click: nobody clicks here. Skip the one that starts a cluster.

    Also skip what the selected platform (`nbloader._platform`) cannot do: tests that are marked `linux(reason)`, and
    those whose parameter is a start method that it lacks.
    """
    for item in items:
        if _platform.NAME != "linux" and (marker := item.get_closest_marker("linux")):
            item.add_marker(pytest.mark.skip(reason=f"needs Linux: {marker.args[0]}"))
        asked_for = _strings(getattr(getattr(item, "callspec", None), "params", {}))
        for method in {"fork", "forkserver"}.difference(_platform.START_METHODS) & asked_for:
            item.add_marker(pytest.mark.skip(reason=f"there is no start method {method!r}"))
        cell = getattr(item, "cell", None)  # of nbval
        if cell is not None:
            cell.source = cell.source.replace("patience = 20 ", "patience = 1 ")
            if item.path.name == CLUSTER_NOTEBOOK and not os.environ.get("NBLOADER_TEST_CLUSTER"):
                item.add_marker(pytest.mark.skip(reason=NO_CLUSTER))


pytest.register_assert_rewrite("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what tests/lanes.py passes."""
    shared = "share the tests with other processes that pass this folder"
    parser.addoption("--share", metavar="FOLDER", type=pathlib.Path, help=shared)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin of tests/lanes.py."""
    folder = config.getoption("--share")
    if folder is not None:
        config.pluginmanager.register(lanes.Turns(folder))


def pytest_collection_finish() -> None:
    """Exempt what exists by now from garbage collection: each `gc.collect()` would traverse a million objects."""
    gc.collect()
    gc.freeze()


# No deadline: examples are slow on a busy machine. Deterministic in CI, so that a failure can be reproduced.
hypothesis.settings.register_profile("nbloader", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("nbloader")

# A shell that runs the tests in the background ignores Ctrl-C for them, and so would Python.
signal.signal(signal.SIGINT, signal.default_int_handler)

GRACE = 30.0
"""Seconds that resources closed by a test have to disappear."""


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves something behind.

    Resources of fixtures with a wider scope, such as a browser or a Jupyter server, exist before the test and are
    allowed. A test that has to leave something is marked `leaves_behind("reason")`.
    """
    if request.node.get_closest_marker("leaves_behind"):
        yield
        return
    before = leaks.Belongings.now()
    yield
    left = leaks.left_behind(before, GRACE)
    if left:
        pytest.fail(f"the test left behind:\n{left}", pytrace=False)
