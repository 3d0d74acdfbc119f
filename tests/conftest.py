"""No test leaves a process, thread, file descriptor or shared-memory file behind, and processes share the tests.

Most tests wait for processes or pages, so even two cores run several processes of pytest faster than one: `make test`
uses pytest-xdist. Its controller is the process that starts the others.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis
import leaks
import psutil
import pytest

from nbloader import _platform

CLUSTER_NOTEBOOK = "04_many_machines.ipynb"
NO_CLUSTER = (
    "it starts a Ray cluster of four nodes, which fails on a machine that is busy with other tests; test_ray.py has "
    "one of two nodes. NBLOADER_TEST_CLUSTER=1 runs it, where Ray is installed"
)
BROWSER = "tests/browser/"
"""How the ids of the tests begin that need a browser."""


def _strings(values: Mapping[str, object]) -> set[str]:
    """The strings among parameters, and among those that are arguments of a loader."""
    found = {value for value in values.values() if isinstance(value, str)}
    return found.union(*(_strings(value) for value in values.values() if isinstance(value, dict)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shorten what the notebooks wait for a click: nobody clicks here. Skip the one that starts a cluster.

    Also skip what the selected platform (`nbloader._platform`) cannot do: tests that are marked `linux(reason)`, and
    those whose parameter is a start method that it lacks. If several processes share the tests, put those first that
    take long: in a browser, then modules with slow tests, then large ones.
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
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        size = {path: path.stat().st_size for path in {item.path for item in items}}
        items.sort(
            key=lambda item: (item.nodeid.startswith(BROWSER), item.path in slow, size[item.path], item.path),
            reverse=True,
        )


pytest.register_assert_rewrite("same")


def pytest_collection_finish() -> None:
    """Exempt what exists by now from garbage collection: each `gc.collect()` would traverse a million objects."""
    gc.collect()
    gc.freeze()


# ---- several processes


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run one process more than there are cores."""
    return min(_platform.cores(), 4) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process one module after another, and all of tests/browser to one, since they share a server."""
    from xdist.scheduler import LoadFileScheduling

    class Modules(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return BROWSER if nodeid.startswith(BROWSER) else super()._split_scope(nodeid)

    return Modules(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Let these signals interrupt the controller, as Ctrl-C does, but once: make passes on what a whole group gets."""

    def interrupt(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """End what the other processes leave if they are interrupted or crash, such as kernels in sessions of their own."""
    try:
        return (yield)
    finally:
        nodes = getattr(session.config.pluginmanager.getplugin("dsession"), "nodemanager", None)
        for process in psutil.process_iter() if nodes else ():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("PYTEST_XDIST_TESTRUNUID") == nodes.testrunuid:
                    process.kill()


# ---- all tests


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
