"""Small programs built on other packages, which take their loader class from torch.

    python programs.py torch|nbloader NAME...

With "nbloader" its class is put in the place of torch's before the package is imported, as a program that wants all of
its packages to use it would do. What each program yields is printed as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings

import numpy as np
import torch
import torch.utils.data


def ignite():
    """DeterministicEngine rebuilds the loader with another batch sampler."""
    from ignite.engine import Events
    from ignite.engine.deterministic import DeterministicEngine

    seen = []
    engine = DeterministicEngine(lambda _engine, batch: seen.append(batch.tolist()))
    resumed = []
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e: resumed.append(e.state.iteration))
    loader = torch.utils.data.DataLoader(torch.arange(12), 4, shuffle=True, num_workers=0)
    engine.run(loader, max_epochs=2)
    return seen, resumed


def skorch():
    """NeuralNet makes a loader for each epoch and for each prediction."""
    from skorch import NeuralNetRegressor

    torch.manual_seed(0)
    x = np.random.default_rng(0).random((20, 3)).astype(np.float32)
    net = NeuralNetRegressor(
        torch.nn.Linear(3, 1), max_epochs=2, iterator_train__shuffle=True, batch_size=5, train_split=None, verbose=0
    )
    net.fit(x, x[:, :1])
    return [round(loss, 5) for loss in net.history[:, "train_loss"]], net.predict(x).round(4).tolist()


def torch_geometric():
    """Loaders that override `_get_iterator`, collate with a method of their own, and do not know their length."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader, DynamicBatchSampler, NodeLoader, ZipLoader
    from torch_geometric.sampler import BaseSampler, SamplerOutput

    class Neighbors(BaseSampler):
        def sample_from_edges(self, *_args, **_kwargs):
            raise NotImplementedError

        def sample_from_nodes(self, index, **_kwargs):
            none = index.node.new_empty(0)
            return SamplerOutput(index.node, none, none, edge=None, metadata=(index.input_id, index.time))

    graphs = [
        Data(x=torch.full((i + 1, 2), float(i)), edge_index=torch.zeros(2, 1, dtype=torch.long)) for i in range(6)
    ]
    batches = [[batch.num_graphs, batch.x.sum().item()] for batch in DataLoader(graphs, 4)]
    sampler = DynamicBatchSampler(graphs, max_num=6)
    dynamic = [batch.num_nodes for batch in DataLoader(graphs, batch_sampler=sampler)]
    graph = Data(x=torch.arange(8.0)[:, None], edge_index=torch.stack([torch.arange(7), torch.arange(1, 8)]))
    made = [NodeLoader(graph, Neighbors(), batch_size=3, filter_per_worker=each) for each in (False, True)]
    nodes = [[[type(batch).__name__, batch.x[:, 0].tolist()] for batch in loader] for loader in made]
    zipped = [
        [batch.x[:, 0].tolist() for batch in both] for both in ZipLoader(made, filter_per_worker=False, batch_size=3)
    ]
    return batches, dynamic, nodes, zipped


def webdataset():
    """WebLoader wraps a loader of batches in a pipeline of its own."""
    from webdataset import WebLoader

    dataset = torch.utils.data.TensorDataset(torch.arange(8))
    loader = WebLoader(dataset, batch_size=2).with_epoch(3)
    return [batch[0].tolist() for batch in loader]


def torchdata():
    """StatefulDataLoader is a subclass of torch's loader that does not call its constructor."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(range(8), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    other = StatefulDataLoader(range(8), batch_size=2)
    other.load_state_dict(loader.state_dict())
    return [batch.tolist() for batch in other]


def datasets():
    """A table that gives several rows at once, and a stream of it in shards."""
    from datasets import Dataset

    table = Dataset.from_dict({"a": list(range(6))}).with_format("torch")
    batched = [batch["a"].tolist() for batch in torch.utils.data.DataLoader(table, 4)]
    stream = table.to_iterable_dataset(num_shards=2)
    return batched, [batch["a"].tolist() for batch in torch.utils.data.DataLoader(stream, 4)]


def accelerate():
    """Its loaders are shells that take the class of the loader inside."""
    import pickle

    from accelerate import Accelerator
    from accelerate.data_loader import skip_first_batches

    loader = Accelerator(cpu=True).prepare(torch.utils.data.DataLoader(range(8), 2, shuffle=False))
    again = pickle.loads(pickle.dumps(loader))
    every = [loader, again, skip_first_batches(loader, 2)]
    return [[batch.tolist() for batch in one] for one in every], isinstance(loader, torch.utils.data.DataLoader)


def lightning():
    """A trainer replaces the sampler of a loader by creating the loader again."""
    from lightning.fabric.utilities.data import _update_dataloader

    loader = torch.utils.data.DataLoader(range(8), batch_size=2, shuffle=True)
    sampler = torch.utils.data.DistributedSampler(loader.dataset, num_replicas=2, rank=1, shuffle=False)
    return [batch.tolist() for batch in _update_dataloader(loader, sampler)]


if __name__ == "__main__":
    which, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    if "torchdata" in names:
        importlib.import_module("torchdata.stateful_dataloader")  # it calls no constructor: import it before the swap
    if which == "nbloader":
        import nbloader

        torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = nbloader.DataLoader
    programs = dict(globals())
    yielded = {}
    for name in names:
        torch.manual_seed(1)
        yielded[name] = programs[name]()
    print(json.dumps(yielded), flush=True)
