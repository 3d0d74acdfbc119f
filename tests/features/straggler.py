"""One rank of a training that test_ranks.py runs: steps in which all ranks average a gradient.

python straggler.py RANK WORLD RENDEZVOUS {"batches": ..., "slow": [3], "fetch": ..., "step": ..., "dies": 5}
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed

from nbloader import DataLoader

rank, world = int(sys.argv[1]), int(sys.argv[2])
how = json.loads(sys.argv[4])


class Files:
    """Each sample is read from a disk, which is slow for some ranks."""

    def __len__(self):
        return how["batches"]

    def __getitem__(self, index):
        time.sleep(how["slow_fetch"] if rank in how["slow"] else how["fetch"])
        return torch.tensor([float(index)])


def main() -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{sys.argv[3]}", rank=rank, world_size=world)
    with DataLoader(Files(), batch_size=1, num_workers=1, workers="thread") as loader:
        for number, batch in enumerate(loader):
            time.sleep(how["step"])
            if rank == how.get("fails") and number == how["at"]:
                raise ValueError("the loss is not a number")
            if rank == how.get("dies") and number == how["at"]:
                os.kill(os.getpid(), 9)
            torch.distributed.all_reduce(batch)
    torch.distributed.destroy_process_group()


main()
