"""Several processes that train together, each with a loader of its own: shares, shells, and no hang at the end."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORLD = 2
SAMPLES = 22
LIMIT = 100
"""Seconds; two processes import torch and start two workers for each of three loaders."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each process has seen, by its rank."""
    parts = ["plain", "piped"] + ["accelerated"] * (importlib.util.find_spec("accelerate") is not None)
    meeting = tmp_path_factory.mktemp("ranks") / "meeting"
    processes = [
        subprocess.Popen(
            [sys.executable, Path(__file__).with_name("rank.py"), str(rank), str(WORLD), meeting, *parts],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={
                **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD),
                "ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",  # they meet by a file
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_out, err) in zip(processes, said, strict=True):
        assert process.returncode == 0, err
    return [json.loads(out.splitlines()[-1]) for out, _err in said]


@pytest.mark.parametrize("part", ["plain", "accelerated", "piped"])
def test_every_process_has_its_share_and_together_they_have_all(seen, part):
    if part not in seen[0]:
        pytest.skip("accelerate is missing")
    for epoch in range(2):
        shares = [rank[part]["epochs"][epoch] for rank in seen]
        assert set(shares[0]) | set(shares[1]) == set(range(SAMPLES))
        if part == "accelerated":  # its batches are whole: what is missing in the last ones is repeated
            assert len(shares[0]) == len(shares[1]) >= SAMPLES / WORLD
        else:
            assert [len(share) for share in shares] == [SAMPLES // WORLD] * WORLD
    assert seen[0][part]["epochs"][0] != seen[0][part]["epochs"][1], "each epoch has an order of its own"


@pytest.mark.parametrize("part", ["plain", "accelerated"])
def test_the_model_is_the_same_in_every_process_and_was_trained(seen, part):
    if part not in seen[0]:
        pytest.skip("accelerate is missing")
    weights = {rank[part]["weight"] for rank in seen}
    assert len(weights) == 1
    assert 0.5 < weights.pop() < 4
