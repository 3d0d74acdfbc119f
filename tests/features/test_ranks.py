"""The loaders of a distributed training side by side: processes that exchange gradients, and what is said of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from datasets import wait_for
from test_docs import ROOT, block_with, output

import nbloader
from nbloader import DataLoader

SCRIPT = Path(__file__).with_name("straggler.py")
GUIDE = ROOT / "docs/how-to/use-in-frameworks.md"
WORLD = 8
LIMIT = 90
"""Seconds; on two busy cores."""


@contextlib.contextmanager
def training(folder, world, **how):
    """Run a training of some processes; yields the one that waits for them."""
    how = {"slow": [], "fetch": 0.005, "slow_fetch": 0.1, "step": 0.02, "batches": 10_000} | how
    process = subprocess.Popen(
        [sys.executable, SCRIPT, str(world), folder.parent / "rendezvous", json.dumps(how)],
        stderr=subprocess.DEVNULL, start_new_session=True,
        env={
            **os.environ, "NBLOADER_RANKS": str(folder), "WORLD_SIZE": str(world),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def eventually(folder, condition):
    """Look at the ranks until a condition holds, and return them."""
    seen = []

    def holds():
        if folder.is_dir():
            seen[:] = [nbloader.ranks(folder)]
        return bool(seen) and condition(seen[0])

    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline, f"the ranks are {seen}"
        time.sleep(0.2)
    return seen[0]


def steady(ranks):
    return len(ranks) == WORLD and all(r.snapshot.batches_done > 25 for r in ranks)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_rank_whose_data_is_slow_is_named_among_eight_and_what_it_costs(tmp_path):
    def held_up(ranks):
        waits = {r.rank: r.snapshot.wait_share for r in ranks}
        return (
            steady(ranks)
            and "Rank 3 holds up" in ranks.findings[0]
            and waits.pop(3) > 0.5
            and max(waits.values()) < 0.2
        )

    with training(tmp_path / "ranks", WORLD, slow=[3]):
        found = eventually(tmp_path / "ranks", held_up)  # on a busy machine, others may wait for a moment, too
    sentence = found.findings[0]
    assert sentence.startswith("Rank 3 holds up the others: its data is slow. Its loop waits for ")
    assert "Its workers take" in sentence
    assert "time.sleep" in sentence or "waiting (disk, network, sleep)" in sentence, "and why, by its own verdict"
    rate, now = (float(n) for n in re.search(r"reach ([\d.]+) batches/s instead of ([\d.]+)\.", sentence).groups())
    assert rate > 1.5 * now, "five times as fast data would leave steps of 20 ms"
    table = repr(found)
    assert output(GUIDE, "nbloader.ranks(").match(table), table
    assert len([line for line in table.splitlines() if line.split() and line.split()[0] in "01234567"]) == WORLD
    assert found._repr_html_().count("<tr") == WORLD + 1


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_rank_that_was_killed_and_one_that_raised_are_named(tmp_path):
    killed, failed = tmp_path / "a" / "ranks", tmp_path / "b" / "ranks"
    for folder in (killed, failed):
        folder.parent.mkdir()
    with training(killed, 2, dies=1, at=60):
        found = eventually(killed, lambda ranks: "died" in ranks.states.values())
    assert found.states[1] == "died"
    assert re.search(r"Rank 1 has died: process \d+ is gone, after \d+ of 10,000 batches of epoch 0", found.findings[0])
    with training(failed, 2, fails=1, at=60):
        found = eventually(failed, lambda ranks: ranks.states.get(1) == "failed")
    assert "Rank 1 has ended with ValueError: the loss is not a number, after 61 of 10,000 batches" in found.findings[0]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ranks_that_wait_alike_are_not_blamed_and_the_end_is_seen(tmp_path, capsys):
    with training(tmp_path / "ranks", 2, fetch=0.06, batches=80) as process:
        found = eventually(tmp_path / "ranks", lambda r: len(r) == 2 and all(x.snapshot.batches_done > 25 for x in r))
        assert found.findings[0].startswith("All 2 ranks produce batches about equally fast, and wait for data ")
        found.watch(0.2)  # until the end
        assert process.wait(LIMIT) == 0
    assert nbloader.ranks(tmp_path / "ranks").states == {0: "ended", 1: "ended"}
    assert "80 of 80" in capsys.readouterr().out


def test_one_process_reports_while_it_iterates_and_when_its_loader_is_closed(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "a" / "ranks"
    monkeypatch.setenv("NBLOADER_RANKS", str(folder))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(FileNotFoundError, match="start the training with NBLOADER_RANKS set to this folder"):
        nbloader.ranks()
    with DataLoader(list(range(40)), 4, num_workers=1, workers="thread") as loader:
        list(loader)
        wait_for(lambda: folder.is_dir() and len(nbloader.ranks()) == 1)
        assert nbloader.ranks().states[0] in ("running", "idle")
    wait_for(lambda: nbloader.ranks().states[0] == "ended")
    (only,) = nbloader.ranks()
    assert (only.rank, only.world, only.snapshot.batches_done) == (0, 1, 10)
    assert nbloader.ranks().findings[0].startswith("Rank 0: Epoch 0 ended after 10 batches")
    monkeypatch.chdir(folder.parent)
    exec(block_with(GUIDE, "nbloader.ranks("), {})
    assert "Epoch 0 ended after 10 batches" in capsys.readouterr().out


def test_the_loop_of_training_is_reported_not_the_one_inside_it_and_no_loader_in_a_worker(tmp_path, monkeypatch):
    monkeypatch.setenv("NBLOADER_RANKS", str(tmp_path))
    nested = Nested()
    with DataLoader(nested, None, num_workers=1) as outer, DataLoader(list(range(3)), 1) as inner:
        for _batch in outer:
            list(inner)
            wait_for(lambda: len(nbloader.ranks()) == 1)
            assert nbloader.ranks()[0].snapshot.batches_total == len(nested)
    wait_for(lambda: nbloader.ranks().states == {0: "ended"})


class Nested:
    """A dataset that iterates a loader itself."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return len(list(DataLoader(list(range(77)), 1)))


def test_a_folder_is_needed_files_of_earlier_runs_and_broken_ones_do_not_count(tmp_path, monkeypatch):
    monkeypatch.delenv("NBLOADER_RANKS", raising=False)
    with pytest.raises(ValueError, match="pass it, or set NBLOADER_RANKS"):
        nbloader.ranks()
    assert "No rank has reported in" in repr(nbloader.ranks(tmp_path))
    monkeypatch.setenv("NBLOADER_RANKS", str(tmp_path))
    with DataLoader(list(range(8)), 4) as loader:
        list(loader)
        wait_for(lambda: len(nbloader.ranks()) == 1)
    wait_for(lambda: nbloader.ranks().states == {0: "ended"})
    from nbloader.distributed import record

    (own,) = nbloader.ranks()
    record.write(tmp_path, dataclasses.replace(own, rank=1, began=own.began - 900, time=own.began - 800))
    record.write(tmp_path, dataclasses.replace(own, rank=7))
    (tmp_path / "rank-2.json").write_text("{")
    assert [r.rank for r in nbloader.ranks()] == [0]
    assert time.time() - own.time < 100
