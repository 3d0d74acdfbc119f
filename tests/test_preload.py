"""What the fork server is told to import, and when."""

import json
import sys
import types

import numpy as np
import torch

from nbloader import DataLoader, forkserver, preload


class Plain:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return float(i)


def in_a_cell(**methods):
    """A dataset whose class stands in a notebook's cell."""
    return type("InACell", (), {"__module__": "__main__", **methods})()


def test_a_tensor_in_the_dataset_needs_torch():
    dataset = in_a_cell()
    assert preload.expected(dataset) == []
    dataset.data = np.zeros(3)
    assert preload.expected(dataset) == []
    dataset.data = torch.zeros(3)
    assert preload.expected(dataset) == ["torch"]


def test_a_class_of_a_module_needs_what_its_module_imports():
    assert "torch" in preload.expected(Plain()), "this module imports it"
    assert "torch" in preload.needed(b"", Plain())


def test_a_class_beside_the_loader_in_a_module_needs_torch(monkeypatch):
    """A worker imports that module, and the loader with it."""
    module = types.ModuleType("beside")
    module.DataLoader = DataLoader
    monkeypatch.setitem(sys.modules, "beside", module)
    dataset = type("Beside", (), {"__module__": "beside"})()
    assert preload.needed(b"", dataset) == ["torch"]


def test_a_class_of_the_notebook_needs_what_its_methods_name():
    def with_numpy(self, i):
        return np.zeros(i)

    def with_torch(self, i):
        return [torch.zeros(i) for _ in range(2)]

    assert preload.expected(in_a_cell(__getitem__=with_numpy)) == []
    assert preload.expected(in_a_cell(__getitem__=with_torch)) == ["torch"]


def test_what_a_pickle_names_is_needed_if_this_process_has_it():
    assert preload.needed(b"... torch ... tensorflow", in_a_cell()) == ["torch"]


def test_the_fork_server_starts_with_the_loader_and_nobody_waits_for_it(monkeypatch):
    told = []
    send = forkserver.Channel.send

    def spy(channel, kind, *parts, **fds):
        if kind == forkserver.Kind.PRELOAD:
            told.append(json.loads(parts[0]))
        return send(channel, kind, *parts, **fds)

    monkeypatch.setattr(forkserver.Channel, "send", spy)
    forkserver.shutdown()
    with DataLoader(Plain(), num_workers=1) as loader:
        assert forkserver.pid() is not None
        assert told == [preload.expected(Plain())]
        assert [float(batch) for batch in loader] == [0, 1, 2, 3]
    DataLoader(Plain(), num_workers=0)
    assert len(told) == 1
