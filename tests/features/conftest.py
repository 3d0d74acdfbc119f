"""The features' tests run each way in which batches can be made."""

from __future__ import annotations

import pytest

WAYS = {
    "in process": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "workers": "thread"},
}


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def how(request) -> dict:
    """Arguments of the loader: who makes the batches."""
    return dict(request.param)


@pytest.fixture(params=[way for way in WAYS.values() if way["num_workers"]], ids=[k for k in WAYS if k != "in process"])
def with_workers(request) -> dict:
    """Arguments of the loader: which workers make the batches."""
    return dict(request.param)
