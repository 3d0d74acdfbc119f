"""Fixtures that run a test with each kind of worker."""

from __future__ import annotations

import pytest

KINDS = {
    "in process": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "workers": "thread"},
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def how(request) -> dict:
    """Arguments of a loader without workers, with processes, and with threads."""
    return dict(request.param)


@pytest.fixture(params=["processes", "threads"])
def with_workers(request) -> dict:
    """Arguments of a loader with processes, and with threads."""
    return dict(KINDS[request.param])
