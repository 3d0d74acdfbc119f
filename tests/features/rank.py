"""One process of a distributed training, run by test_distributed.py. Prints its results as JSON."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed
from torch.utils import data as theirs
from torch.utils.data.datapipes.iter import IterableWrapper

from nbloader import DataLoader

SAMPLES = 22


class Pairs(theirs.Dataset):
    """Points of the line y = 2 x."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        x = torch.tensor([float(i)])
        return x, 2 * x


def train(model, optimizer, loader, backward):
    """Train for one epoch; return the samples."""
    seen = []
    for x, y in loader:
        optimizer.zero_grad()
        backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        seen += [round(value) for value in x.flatten().tolist()]
    return seen


def line():
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def plain(rank, world):
    """torch's DistributedDataParallel and DistributedSampler."""
    model, optimizer = line()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    sampler = theirs.DistributedSampler(Pairs(), world, rank, seed=5)
    with DataLoader(Pairs(), 4, sampler=sampler, num_workers=2) as loader:
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append(train(parallel, optimizer, loader, torch.Tensor.backward))
    return {"epochs": epochs, "weight": model.weight.item()}


def accelerated():
    """Accelerate's wrapper around our loader."""
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    assert accelerator.num_processes == torch.distributed.get_world_size()
    model, optimizer = line()
    model, optimizer, prepared = accelerator.prepare(model, optimizer, theirs.DataLoader(Pairs(), 4, shuffle=True))
    loader = DataLoader.from_torch(prepared, num_workers=2)
    epochs = [train(model, optimizer, loader, accelerator.backward) for _ in range(2)]
    assert type(loader.base_dataloader) is DataLoader
    loader.base_dataloader.close()
    return {"epochs": epochs, "weight": accelerator.unwrap_model(model).weight.item()}


def piped(rank):
    """A DataPipe, shuffled in the same order in all processes and then sharded."""
    torch.manual_seed(rank)  # the seed of the shuffle is that of the first process
    pipe = IterableWrapper(range(SAMPLES)).shuffle().sharding_filter()
    with DataLoader(pipe, 4, shuffle=True, num_workers=2) as loader:
        return {"epochs": [[int(i) for batch in loader for i in batch] for _ in range(2)]}


def main(rank: int, world: int, rendezvous: str, parts: list[str]) -> None:
    """Run the parts together with the other processes."""
    torch.distributed.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=world)
    do = {"plain": lambda: plain(rank, world), "accelerated": accelerated, "piped": lambda: piped(rank)}
    seen = {part: do[part]() for part in parts}
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
