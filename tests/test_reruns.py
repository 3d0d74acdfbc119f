"""A notebook cell that is run again supersedes the loaders of its earlier runs; loaders of one run are all kept."""

import types

import IPython
import pytest
from datasets import Numbers, all_pids, wait_for, worker_processes

from nbloader import DataLoader


class Shell:
    """Runs cells as IPython does."""

    def __init__(self):
        self.execution_count = 1
        self.user_global_ns = vars(types.ModuleType("__main__"))
        self.parent = {}

    def get_parent(self):
        return self.parent

    def run(self, code, cell_id=None):
        self.parent = {"metadata": {"cellId": cell_id} if cell_id else {}}
        exec(compile(code, f"cell {hash(code)}", "exec"), self.user_global_ns)
        self.execution_count += 1


@pytest.fixture
def cell(monkeypatch):
    """A function that runs code as a cell, and the list `kept` to which cells append their loaders."""
    shell = Shell()
    kept = []
    shell.user_global_ns.update(kept=kept, DataLoader=DataLoader, Numbers=Numbers, workers=workers)
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    yield shell.run, kept
    for loader in kept:
        loader.close()


def workers(loader):
    """The pids of the workers that produced an epoch."""
    assert len(list(loader)) == 4
    return set(all_pids(loader))


CREATE = "kept.append(DataLoader(Numbers(4), num_workers=1, persistent_workers=True))"


def test_the_loader_of_an_earlier_run_stops_its_workers(cell):
    run, kept = cell
    run(CREATE)
    stopped = workers(kept[0])
    run(CREATE)
    wait_for(lambda: not worker_processes())
    assert workers(kept[0]) != stopped  # it starts others when it is iterated again


def test_loaders_of_one_run_keep_their_workers_even_if_one_line_created_them(cell):
    run, _kept = cell
    run(f"def make():\n    {CREATE}\n    return workers(kept[-1])")
    run("pids = [make() for _ in range(2)]; pids.append(make())")
    run("pids.append(make())")  # another cell, by the same line of the helper
    run("assert [workers(loader) for loader in kept] == pids")
    run("pids.append(make())")
    run("assert [workers(loader) for loader in kept[:3] + kept[4:]] == pids[:3] + pids[4:]")
    run("assert workers(kept[3]) != pids[3]")


def test_an_edited_cell_is_still_the_same_cell(cell):
    run, kept = cell
    run(CREATE, "first")
    run(CREATE.replace("num_workers=1", "num_workers=2"), "second")
    pids = [workers(loader) for loader in kept]
    run("\n" + CREATE.replace("num_workers=1", "num_workers=1, batch_size=1"), "first")
    wait_for(lambda: len(worker_processes()) == 2)
    assert workers(kept[1]) == pids[1]
    assert workers(kept[0]) != pids[0]
