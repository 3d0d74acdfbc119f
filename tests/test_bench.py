"""The benchmarks start and measure: they use internals that may be renamed."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

BENCH = pathlib.Path(__file__).parent / "bench"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(BENCH.parents[1])}


def measured(system, row, kind):
    """Check once and take one turn. Returns the answers."""
    done = subprocess.run(
        [sys.executable, str(BENCH / "side.py"), system, row, kind, "0.01"],
        input="check\nturn\n", capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _ready, check, turn = map(json.loads, done.stdout.splitlines())
    return check, turn


@pytest.fixture(scope="module")
def expected():
    """What torch loads."""
    check, _turn = measured("torch", "custom", "rate")
    return check


@pytest.mark.slow
@pytest.mark.parametrize("system", ["nbloader", "without events", "watched", "no loader"])
def test_a_system_loads_what_torch_loads(system, expected):
    check, turn = measured(system, "custom", "rate")
    assert check == expected
    assert turn["value"] > 0


@pytest.mark.slow
def test_the_memory_row_counts_the_segments_that_workers_keep():
    _, turn = measured("nbloader", "dict40", "memory")
    assert 0 < turn["segments"] < turn["value"]


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["restarted", "kernel_killed"])
def test_a_fault_is_measured(measure):
    code = f"import sys; sys.path.insert(0, {str(BENCH)!r}); import faults; print(faults.{measure}())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 60


def test_the_benchmark_of_uploads_says_that_there_is_no_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = subprocess.run(
        [sys.executable, str(BENCH / "gpu.py")], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 1
    assert done.stderr.startswith("No GPU found")


@pytest.mark.slow
def test_a_row_gives_a_table(tmp_path):
    done = subprocess.run(
        [sys.executable, str(BENCH / "run.py"), "--rows", "shuffled", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| first batch of 100 million" in (tmp_path / "table.md").read_text()
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert not row["errors"]
