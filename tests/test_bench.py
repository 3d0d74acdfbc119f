"""The benchmarks start and measure: they use internals that may be renamed."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from datasets import Images
from stand_in import StandIn

BENCH = pathlib.Path(__file__).parent / "bench"
sys.path.insert(0, str(BENCH))
import uploads  # noqa: E402

sys.path.remove(str(BENCH))
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


@pytest.mark.parametrize(
    ("script", "message"), [("gpu.py", "No GPU found"), ("uploads.py", "sees no such accelerator here")]
)
def test_the_benchmarks_of_uploads_say_that_there_is_no_gpu(script, message):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = subprocess.run(
        [sys.executable, str(BENCH / script)], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 1
    assert message in done.stderr


def test_the_same_epoch_is_uploaded_in_four_ways():
    made = []

    def accelerator(way):
        made.append(way)
        return StandIn(1, way=way)

    rows = uploads.compare_uploads(Images(16), 4, accelerator, lambda batch: batch[0].sum())
    assert made == ["pageable", "copied", "registered", "registered"]
    assert [row.ways for row in rows] == [((way, 4),) for way in made]
    head, _columns, *lines = uploads.table(rows).splitlines()
    assert head == "Batches of 0.1 MB"
    assert [line.split("  ")[0] for line in lines] == [row.name for row in rows]


@pytest.mark.slow
def test_a_row_gives_a_table(tmp_path):
    done = subprocess.run(
        [sys.executable, str(BENCH / "run.py"), "--rows", "tiny", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| tiny: 32 x (8 floats, int)" in (tmp_path / "table.md").read_text()
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert not row["errors"]


def printed(code):
    """What a new process prints: predictions.py has a cached function, which makes its process keep a cache."""
    paths = f"import sys; sys.path[:0] = [{str(BENCH)!r}, {str(BENCH.parent)!r}]\n"
    done = subprocess.run(
        [sys.executable, "-c", paths + code], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_prediction_is_compared_with_what_is_measured():
    code = """
import predictions as p
p.TURNS = 1
p.CHANGES = (p.Change("waits", p.Sleeping(0.001), {"num_workers": 1}, {"num_workers": 2}, batches=60),)
print(p.predictions()[-1])
"""
    row, *_, last = printed(code)
    assert row.startswith("| waits, num_workers=1 -> num_workers=2 | ")
    assert "none: " in row or last.startswith("Median error")


@pytest.mark.slow
def test_the_tuner_is_compared_with_a_grid():
    code = """
import predictions as p
p.TURNS, p.GRID, p.GRID_SECONDS = 1, [(1, 2), (2, 2)], 0.05
p.TUNED = (("waits", p.Sleeping(0.001), p.Sleeping(0.001)),)
p.tuner(2.0)
"""
    (row,) = printed(code)
    assert row.startswith("| waits | ")
    assert row.endswith("% of the grid's |")


@pytest.mark.slow
def test_the_cost_of_a_batch_of_another_machine_is_measured():
    (first, second) = printed("import cluster_driver as c; c.measure(32, 2, 50); c.measure(8000, 2, 50)")
    assert first.lstrip().startswith("32 bytes")
    assert "us of CPU per batch" in second


def test_results_of_remedies_are_written_into_the_documentation_without_a_run(tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    monkeypatch.syspath_prepend(str(BENCH))
    import remedies

    monkeypatch.setattr(remedies, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(remedies, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(f"before\n{remedies.BEGIN}\nold\n{remedies.END}\nafter\n", encoding="utf-8")
    rows = [
        remedies.Row("close", "collate", "x = 1", True, "Write __getitems__", "equal", "", 2.0, 2.2),
        remedies.Row("far", "lock", "a | b", False, "name=2", "differ", " by up to 4", 20.0, 9.0),
        remedies.Row("no line", "startup", "starting", None),
        remedies.Row("broken", problem="it needs a package"),
    ]
    remedies.Results(rows, "2026-11-28", 2, "3.11", "2.13", 0.5).store()
    again = remedies.Results.stored()
    far = remedies.Row("far", "lock", "a | b", False, "name=2", "differ", " by up to 4", 20.0, 11.0, at_least=10)
    again.replace([far])
    again.store()
    monkeypatch.setattr(sys, "argv", ["remedies.py", "--render"])
    remedies.main()
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("| ")][1:] == [
        "| close | 2.20x | 2.00x | Write `__getitems__` | `collate` |",
        "| far | 11.00x | over 10x | `name=2` | `lock` |",
        "| no line | - | - | none gains anything | `startup` |",
    ]
    prose = " ".join(page.split())
    assert 'With the remedy for "far", a sample differs by up to 4. The other remedies leave the samples as' in prose
    assert "first in 1 of 2, and the loop is at least 1.5 times as fast in 2 of 3." in prose
    assert 'Another line comes first in "far". There is no slow line in "no line".' in prose
    assert "up to 10x, 1 of 1 are within 15% of what was measured." in prose
    assert "the bound that is shown was right in 1 of 1." in prose
    assert '"broken" was not measured: it needs a package.' in prose
    assert 'The figures of "far" are of another run.' in prose
    assert page.startswith("before\n")
    assert page.endswith(f"{remedies.END}\nafter\n")
    assert "old" not in page
