"""A trainer that knows nothing of Proving Ground: any DDP script that prints a line a step. See README.md here.

Started as `python own_trainer.py --steps 40` on every node, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(steps: int, batch: int) -> None:
    """Fit a small network to noise; print one line a step."""
    torch.manual_seed(torch.distributed.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        loss = model(torch.randn(batch, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f} ({batch} samples)", flush=True)


def main() -> None:
    """Meet the other ranks, train, leave."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--batch", type=int, default=32)
    asked = options.parse_args()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    train(asked.steps, asked.batch)
    torch.distributed.destroy_process_group()
    os._exit(0)  # a thread of Gloo's may still hold a gradient, and would abort Python's own end


if __name__ == "__main__":
    main()
