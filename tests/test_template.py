"""Workers of a dataset with many Python objects are forked from a template, which has rebuilt it once."""

from __future__ import annotations

import os
import pathlib
import signal
import sys

import psutil
import pytest
from datasets import alive, all_pids, flat, wait_for

from nbloader import DataLoader
from nbloader.transport import forkserver, template
from nbloader.transport.dataset_payload import SharedPickle

PAD = b"x" * (5 << 20)


class Objects:
    """Large enough for a template. Each time it is rebuilt it writes a line to a file."""

    def __init__(self, log, n=40):
        self.log = log
        self.items = [{"value": i} for i in range(n)]
        self.pad = PAD

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]["value"]

    def __setstate__(self, state):
        self.__dict__ = state
        with pathlib.Path(self.log).open("a") as file:
            file.write(f"{os.getpid()}\n")


class OpensFile(Objects):
    """Opens a file when it is rebuilt, and reads from it at the position that it was left at."""

    def __setstate__(self, state):
        super().__setstate__(state)
        self.file = pathlib.Path(self.log).open()  # noqa: SIM115

    def __getitem__(self, i):
        self.file.seek(0)
        assert self.file.read()
        return super().__getitem__(i)


class Raises(Objects):
    """Cannot be rebuilt."""

    def __setstate__(self, _state):
        raise ZeroDivisionError("as the dataset is rebuilt")


def rebuilt(log):
    return [int(pid) for pid in log.read_text().split()]


def parents(loader):
    return {psutil.Process(pid).ppid() for pid in all_pids(loader)}


def test_a_template_rebuilds_the_dataset_once_and_forks_all_workers(tmp_path):
    log = tmp_path / "log"
    dataset = Objects(str(log))
    with DataLoader(dataset, 4, num_workers=2) as loader:
        assert flat(loader) == list(range(40))
        assert parents(loader) == set(rebuilt(log))
        victim = all_pids(loader)[0]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: not alive(victim))
        loader.num_workers = 3
        assert len(flat(loader)) == 40
        assert parents(loader) == set(rebuilt(log))
        assert len(rebuilt(log)) == 1
        dataset.items = dataset.items[:8]
        assert len(flat(loader)) == 8
        assert len(rebuilt(log)) == 2, "a changed dataset has another template"


def test_a_template_that_is_killed_is_replaced(tmp_path):
    log = tmp_path / "log"
    with DataLoader(Objects(str(log)), 2, num_workers=2) as loader:
        got = []
        for number, batch in enumerate(loader):
            got += batch.tolist()
            if number == 3:
                old = all_pids(loader)
                os.kill(rebuilt(log)[0], signal.SIGKILL)
                wait_for(lambda old=old: not any(map(alive, old)))  # else they may produce both epochs before they end
        assert got == list(range(40))
        assert flat(loader) == list(range(40)), "by new workers"
        assert parents(loader) == {rebuilt(log)[-1]}
        assert len(rebuilt(log)) == 2


def test_workers_of_a_dataset_that_opens_a_file_rebuild_it_themselves(tmp_path):
    """Its file's position must not be shared."""
    log = tmp_path / "log"
    with DataLoader(OpensFile(str(log)), 4, num_workers=2) as loader:
        assert flat(loader) == list(range(40))
        workers = all_pids(loader)  # one that starts late rebuilds it after the epoch
        assert set(rebuilt(log)[1:]) == set(workers)


def test_workers_report_why_the_dataset_cannot_be_rebuilt(tmp_path):
    loader = DataLoader(Raises(str(tmp_path / "log")), 4, num_workers=2)
    with loader, pytest.raises(ZeroDivisionError, match="as the dataset is rebuilt"):
        list(loader)


def test_a_restart_loads_a_module_that_was_edited(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "edited_dataset.py"
    text = "class Edited:\n    def __len__(self): return 4\n    def __getitem__(self, i): return {}\n"
    module.write_text(text.format("i"))
    import edited_dataset

    dataset = edited_dataset.Edited()
    dataset.pad = PAD
    try:
        with DataLoader(dataset, 4, num_workers=2, persistent_workers=True) as loader:
            assert flat(loader) == [0, 1, 2, 3]
            module.write_text(text.format("i + 100"))
            loader.restart_workers()
            assert flat(loader) == [100, 101, 102, 103]
    finally:
        del sys.modules["edited_dataset"]


def test_a_template_ends_with_its_loader_even_while_it_loads(tmp_path):
    log = tmp_path / "log"
    pickled = SharedPickle(Stuck(str(log)))
    with pathlib.Path(os.devnull).open("w") as null:
        one = template.Template(pickled, null.fileno(), null.fileno(), ["torch", "pytest"], frozenset())
        wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    process = psutil.Process(rebuilt(log)[0])
    assert process.parents()[1].pid in forkserver.pids()
    del one
    process.wait(90)


class Stuck(Objects):
    """Takes forever to be rebuilt."""

    def __setstate__(self, state):
        super().__setstate__(state)
        signal.pause()
