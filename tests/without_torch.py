"""Run as a program: epochs with NumPy output where torch and the packages of the dashboard cannot be imported.

Worker processes inherit the environment, and so refuse these packages too: `sitecustomize` in `PYTHONPATH`, which
`test_without_torch` writes, installs the hook in each interpreter.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np

from nbloader import DataLoader, get_worker_info


class Rows:
    """A dataset with numbers, arrays, strings, and random numbers."""

    def __init__(self, n):
        self.table = np.arange(4.0 * n).reshape(n, 4)

    def __len__(self):
        return len(self.table)

    def __getitem__(self, i):
        return {"row": self.table[i], "i": i, "name": str(i), "noise": np.random.random(), "pair": (i, np.float32(i))}


class Stream:
    """An iterable dataset: each worker yields its shard."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, 12, step)


def text(batches):
    """A text that is equal for equal batches."""
    return repr([(type(batch).__name__, batch) for batch in batches])


def epochs(**options):
    """Two shuffled epochs and the middle of a third that is resumed."""
    np.random.seed(3)
    loaded = []
    with DataLoader(Rows(20), 4, shuffle=True, output="numpy", **options) as loader:
        for _ in range(2):
            loaded.append([batch["i"].tolist() for batch in loader])
            assert sorted(itertools.chain(*loaded[-1])) == list(range(20))
        batches = iter(loader)
        first = [next(batches) for _ in range(2)]
        assert type(first[0]["row"]) is np.ndarray
        assert text([loader.replay(2, number).batch for number in range(2)]) == text(first)
        assert loader.replay(0, 1).batch["i"].tolist() == loaded[0][1]
        state = loader.state_dict()
        rest = text(batches)
    assert loaded[0] != loaded[1], "each epoch has an order of its own"
    with DataLoader(Rows(20), 4, shuffle=True, output="numpy", **options) as loader:
        loader.load_state_dict(state)
        assert text(loader) == rest, "resumed"
        assert text([loader.replay(0, 0).batch]) == text(first[:1])
        del state["torch"]  # as saved with torch
        try:
            loader.load_state_dict(state)
        except ValueError as error:
            refused = str(error)
        assert "torch was installed where it was saved, and is not installed here" in refused
    return text([*loaded, *first]), rest


def missing(call):
    """The message of the error that says that torch is missing."""
    try:
        call()
    except ModuleNotFoundError as error:
        return str(error)
    return "no error"


def errors():
    """What needs torch says so."""
    install = "torch, which is not installed: install it (`pip install torch`)"
    for options, expected in (
        ({}, f"output='torch', the default, needs {install}, or pass output='numpy'"),
        ({"output": "numpy", "device": "cuda"}, f"device='cuda' needs {install}, or omit it"),
    ):
        assert missing(lambda options=options: DataLoader([1], **options)) == expected
    for options in ({}, {"num_workers": 1, "workers": "thread"}, {"num_workers": 1}):
        with DataLoader([1, np.float64(2)], 2, output="numpy", **options) as loader:
            batches = iter(loader)
            assert f"needs {install}, or pass a collate_fn" in missing(lambda batches=batches: next(batches))


def main():
    """Run."""
    inline = epochs()
    assert epochs(num_workers=2, workers="thread") == inline
    assert epochs(num_workers=2) == inline
    for kind in ("thread", "process"):
        with DataLoader(Stream(), 2, num_workers=2, workers=kind, output="numpy") as loader:
            assert sorted(int(i) for batch in loader for i in batch) == list(range(12))
            assert "batches" in str(loader.stats())
    with DataLoader(np.arange(30.0).reshape(10, 3), 5, output="numpy", num_workers=1) as loader:
        assert [batch.shape for batch in loader] == [(5, 3)] * 2
        assert loader.collate_fn([1, 2]).tolist() == [1, 2]
    errors()
    absent = {"torch", "bokeh", "ipywidgets", "anywidget", "tqdm"}
    assert not absent & {name.partition(".")[0] for name in sys.modules}
    print("done")


if __name__ == "__main__":
    main()
