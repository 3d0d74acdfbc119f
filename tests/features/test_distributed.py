"""Distributed training: each process has its own loader. Shards, Accelerate's wrapper, no hang at the end."""

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
    """The results of each process, by rank."""
    parts = ["plain", "piped"] + ["accelerated"] * (importlib.util.find_spec("accelerate") is not None)
    rendezvous = tmp_path_factory.mktemp("ranks") / "rendezvous"
    script = Path(__file__).with_name("rank.py")
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(WORLD), rendezvous, *parts],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={
                **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD),
                "ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",  # not used
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_out, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err
    return [json.loads(out.splitlines()[-1]) for out, _err in outputs]


@pytest.mark.parametrize("part", ["plain", "accelerated", "piped"])
def test_every_process_has_its_shard_and_together_they_have_all_samples(seen, part):
    if part not in seen[0]:
        pytest.skip("accelerate is missing")
    for epoch in range(2):
        shares = [rank[part]["epochs"][epoch] for rank in seen]
        assert set(shares[0]) | set(shares[1]) == set(range(SAMPLES))
        if part == "accelerated":  # it repeats samples to complete the last batches
            assert len(shares[0]) == len(shares[1]) >= SAMPLES / WORLD
        else:
            assert [len(share) for share in shares] == [SAMPLES // WORLD] * WORLD
    assert seen[0][part]["epochs"][0] != seen[0][part]["epochs"][1], "each epoch has its own order"


@pytest.mark.parametrize("part", ["plain", "accelerated"])
def test_the_trained_model_is_the_same_in_every_process(seen, part):
    if part not in seen[0]:
        pytest.skip("accelerate is missing")
    weights = {rank[part]["weight"] for rank in seen}
    assert len(weights) == 1
    assert 0.5 < weights.pop() < 4
