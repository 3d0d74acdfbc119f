"""What all tests share: none leaves a process, a thread, a file descriptor or a shared-memory file behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import leaks
import pytest

from nbloader.transport import preload

pytest.register_assert_rewrite("same")

# A busy machine makes an example slow, not wrong; and what failed once in CI must fail again here.
hypothesis.settings.register_profile("nbloader", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("nbloader")

GRACE = 10.0
"""Seconds in which what a test has just closed may finish ending."""


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves something behind.

    Fixtures of wider scope are set up before and live on, with whatever they start meanwhile: a browser, a Jupyter
    server. A test that must leave something says so with the marker `leaves_behind("reason")`.
    """
    if request.node.get_closest_marker("leaves_behind"):
        yield
        return
    before = leaks.Belongings.now()
    yield
    left = leaks.left_behind(before, GRACE)
    if left:
        pytest.fail(f"the test left behind:\n{left}", pytrace=False)


@pytest.fixture(autouse=True)
def fork_servers_import_what_test_modules_import() -> Iterator[None]:
    """Else each worker does: a dataset, or a function, of a test module brings the whole module along."""
    needed = preload.needed

    def needed_here(payload: bytes, *parts: Any, **how: Any) -> list[str]:
        names = needed(payload, *parts, **how)
        return [*names, "pytest", "hypothesis"] if "torch" in names else names

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(preload, "needed", needed_here)
        yield


@pytest.fixture(scope="session", autouse=True)
def forkserver_ends_with_the_session() -> Iterator[None]:
    """The one process that tests may leave, since all of them share it, ends when they have ended."""
    yield
    if "nbloader.transport.forkserver" in sys.modules:
        sys.modules["nbloader.transport.forkserver"].shutdown()
