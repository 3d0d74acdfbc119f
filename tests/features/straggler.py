"""The ranks of a training that test_ranks.py runs: steps in which all ranks average a gradient.

    python straggler.py WORLD RENDEZVOUS {"batches": ..., "slow": [3], "fetch": ..., "step": ..., "dies": 5}

It imports torch once, and forks a process for each rank.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed

from nbloader import DataLoader

world, rendezvous, how = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])


class Files:
    """Each sample is read from a disk, which is slow for some ranks."""

    def __init__(self, rank: int) -> None:
        self.seconds = how["slow_fetch"] if rank in how["slow"] else how["fetch"]

    def __len__(self):
        return how["batches"]

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.tensor([float(index)])


def train(rank: int) -> None:
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=world)
    with DataLoader(Files(rank), batch_size=1, num_workers=1, workers="thread") as loader:
        for number, batch in enumerate(loader):
            time.sleep(how["step"])
            if rank == how.get("fails") and number == how["at"]:
                raise ValueError("the loss is not a number")
            if rank == how.get("dies") and number == how["at"]:
                os.kill(os.getpid(), 9)
            torch.distributed.all_reduce(batch)
    torch.distributed.destroy_process_group()


def main() -> None:
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            train(rank)  # and then this process ends as a script does
            return
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


main()
