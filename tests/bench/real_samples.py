"""Samples of other packages, and torch's nested and sparse tensors: for rows of the benchmark and tests/clients.

    python real_samples.py torch|nbloader NAME...

prints the batches that two workers of that loader give, as JSON. Each function returns a dataset and the options of its
loader as a program of that package would give them: torch's collate function, the package's own, or a usual one.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch


class Workload(NamedTuple):
    """A dataset and how it is loaded."""

    dataset: Any
    options: dict[str, Any]
    """Of the loader; a `batch_size`, and mostly a `collate_fn`."""


class Samples:
    """A map-style dataset of samples that a function makes.

    Args:
        make: Called with the index.
        length: Number of samples.
    """

    def __init__(self, make: Callable[[int], Any], length: int) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        return self.make(i)


def identity(samples: Any) -> Any:
    """A collate function that gives the samples themselves."""
    return samples


# ---- nested and sparse tensors ------------------------------------------------------------------------------------


def _points(i: int) -> torch.Tensor:
    """A tensor whose length depends on the index."""
    import torch

    return torch.arange(4 * (1 + i % 7), dtype=torch.float32).view(-1, 4) + i


def to_jagged(samples: list[torch.Tensor]) -> torch.Tensor:
    """A nested tensor of samples of different lengths."""
    import torch

    return torch.nested.nested_tensor(samples, layout=torch.jagged)


def to_nested(samples: list[torch.Tensor]) -> torch.Tensor:
    """The same in torch's older layout."""
    import torch

    return torch.nested.nested_tensor(samples, layout=torch.strided)


def _jagged(i: int) -> torch.Tensor:
    return to_jagged([_points(i), _points(i + 1)])


def jagged(length: int) -> Workload:
    """Tensors of different lengths, collated to a nested tensor."""
    return Workload(Samples(_points, length), {"batch_size": 16, "collate_fn": to_jagged})


def nested(length: int) -> Workload:
    """The same in torch's older layout."""
    return Workload(Samples(_points, length), {"batch_size": 16, "collate_fn": to_nested})


def nested_samples(length: int) -> Workload:
    """Samples that are nested tensors, unbatched."""
    return Workload(Samples(_jagged, length), {"batch_size": None})


def _graph(i: int) -> torch.Tensor:
    """A sparse matrix with three elements."""
    import torch

    indices = torch.tensor([[0, 1, 2], [i % 50, i % 49, i % 48]])
    return torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, i]), (3, 50))


def _rows(i: int) -> torch.Tensor:
    """A sparse matrix in compressed rows."""
    import torch

    columns = torch.tensor([i % 50, i % 49, i % 48])
    return torch.sparse_csr_tensor(torch.tensor([0, 1, 2, 3]), columns, torch.tensor([1.0, 2.0, i]), (3, 50))


def sparse(length: int) -> Workload:
    """Sparse tensors, stacked; torch's default function refuses them."""
    import torch

    return Workload(Samples(_graph, length), {"batch_size": 16, "collate_fn": torch.stack})


def sparse_fields(length: int) -> Workload:
    """Sparse tensors in dicts, beside other fields."""
    return Workload(Samples(_labelled, length), {"batch_size": 16, "collate_fn": stack_fields})


def _labelled(i: int) -> dict[str, Any]:
    import torch

    return {"graph": _graph(i), "label": torch.tensor(i), "dense": torch.full((8,), float(i))}


def stack_fields(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Stack each field."""
    import torch

    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def sparse_rows(length: int) -> Workload:
    """Sparse tensors in compressed rows, which torch does not stack: a list of them."""
    return Workload(Samples(_rows, length), {"batch_size": 16, "collate_fn": identity})


def sparse_samples(length: int) -> Workload:
    """Sparse tensors, unbatched."""
    return Workload(Samples(_graph, length), {"batch_size": None})


# ---- other packages -----------------------------------------------------------------------------------------------


def tensordict(length: int) -> Workload:
    """TensorDicts, stacked."""
    import torch

    return Workload(Samples(_tensordict, length), {"batch_size": 16, "collate_fn": torch.stack})


def _tensordict(i: int) -> Any:
    import torch
    from tensordict import TensorDict

    fields = {"image": torch.full((3, 16, 16), float(i)), "label": torch.tensor(i), "box": {"x": torch.full((4,), i)}}
    return TensorDict(fields, batch_size=[])


def tensordict_rows(length: int) -> Workload:
    """A TensorDict as the dataset: it gives a whole batch for a list of indices."""
    import torch
    from tensordict import TensorDict

    fields = {"image": torch.arange(768.0 * length).view(length, 3, 16, 16), "box": {"x": torch.arange(length)}}
    return Workload(TensorDict(fields, batch_size=[length]), {"batch_size": 16, "collate_fn": identity})


def torch_geometric(length: int) -> Workload:
    """Graphs of PyG, collated by its loader's function."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader.dataloader import Collater

    graphs = [
        Data(
            x=torch.full((4 + i % 5, 8), float(i)), edge_index=torch.arange(2 * (6 + i % 4)).view(2, -1) % 4,
            y=torch.tensor([i]),
        ) for i in range(length)
    ]  # fmt: skip
    return Workload(graphs, {"batch_size": 16, "collate_fn": Collater(graphs, None, None)})


def datasets(length: int) -> Workload:
    """Rows of a Hugging Face dataset as Python objects, collated by torch's function."""
    return Workload(_table(length), {"batch_size": 16})


def datasets_tensors(length: int) -> Workload:
    """The same as tensors."""
    return Workload(_table(length).with_format("torch"), {"batch_size": 16})


def _table(length: int) -> Any:
    from datasets import Dataset

    return Dataset.from_dict(
        {
            "text": [f"sentence {i}" for i in range(length)],
            "label": [i % 3 for i in range(length)],
            "vector": [[float(i), 0.5, 2.0] for i in range(length)],
        }
    )


def webdataset(length: int) -> Workload:
    """Samples of tar shards, collated by torch's function."""
    return Workload(_stream(length), {"batch_size": 16})


def webdataset_batched(length: int) -> Workload:
    """Tar shards, batched by webdataset itself."""
    return Workload(_stream(length).batched(16), {"batch_size": None})


def _stream(length: int) -> Any:
    import atexit
    import shutil
    import tempfile

    import webdataset as wds

    folder = Path(tempfile.mkdtemp(prefix="nbloader-shards-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shards = 4
    for shard in range(shards):
        with wds.TarWriter(str(folder / f"{shard}.tar")) as writer:
            for i in range(shard, length, shards):
                array = np.full((3, 16, 16), i, np.float32)
                writer.write({"__key__": f"{i:06d}", "image.npy": array, "label.cls": i, "name.txt": f"sample {i}"})
    urls = [str(folder / f"{shard}.tar") for shard in range(shards)]
    return wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("image.npy", "label.cls", "name.txt")


PACKAGES = {
    jagged: "",
    nested: "",
    nested_samples: "",
    sparse: "",
    sparse_fields: "",
    sparse_rows: "",
    sparse_samples: "",
    tensordict: "tensordict",
    tensordict_rows: "tensordict",
    torch_geometric: "torch_geometric",
    datasets: "datasets",
    datasets_tensors: "datasets",
    webdataset: "webdataset",
    webdataset_batched: "webdataset",
}
"""The package that each workload needs; "" for torch alone."""
WORKLOADS: dict[str, Callable[[int], Workload]] = {make.__name__: make for make in PACKAGES}
MEASURED = ("jagged", "sparse", "tensordict", "torch_geometric", "datasets", "webdataset")
"""One of each kind, for the benchmark."""


def package_of(name: str) -> str:
    """The package that a workload needs; "" for torch alone."""
    return PACKAGES[WORKLOADS[name]]


def is_installed(name: str) -> bool:
    """Whether the package that a workload needs is installed."""
    import importlib.metadata  # here, since the workers of other rows import this module

    try:
        return not package_of(name) or bool(importlib.metadata.distribution(package_of(name)))
    except importlib.metadata.PackageNotFoundError:
        return False


def parts(value: Any) -> Any:
    """What a batch holds, with dense tensors only: to compare it.

    Args:
        value: A batch or a part of one.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return _parts_of_tensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(parts, value))
    kind = [type(value).__name__]
    if hasattr(value, "num_graphs"):  # a batch of PyG
        kind += ["graphs", value.num_graphs]
        value = value.to_dict()
    elif type(value).__module__.startswith("tensordict."):
        kind += ["fields", *value.batch_size]
        value = value.to_dict()
    return [kind, {key: parts(item) for key, item in value.items()}] if isinstance(value, dict) else value


def _parts_of_tensor(tensor: torch.Tensor) -> Any:
    import torch

    if tensor.is_nested:
        return ["nested", str(tensor.layout), [parts(row) for row in tensor.unbind()]]
    if tensor.layout is torch.sparse_coo:
        return ["sparse", list(tensor.shape), tensor._indices(), tensor._values(), tensor.is_coalesced()]
    if tensor.layout is torch.sparse_csr:
        return ["sparse rows", list(tensor.shape), tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return tensor


def _as_json(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(_as_json, value)]
    return value


def main(which: str, *names: str) -> None:
    """Print what two workers give for these workloads."""
    from torch.utils.data import DataLoader

    if which == "nbloader":
        from nbloader import DataLoader
    warnings.simplefilter("ignore")
    yielded = {}
    for name in names:
        dataset, options = WORKLOADS[name](48)
        yielded[name] = [_as_json(parts(batch)) for batch in DataLoader(dataset, num_workers=2, **options)]
    print(json.dumps(yielded))


if __name__ == "__main__":
    main(*sys.argv[1:])
