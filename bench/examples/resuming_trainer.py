"""A trainer of one's own that saves, resumes and tells: what a job needs to be proven the same after a fault.

Started as `python resuming_trainer.py --steps 400 --folder …` on every node, under torchrun or any other launcher.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import pg_events
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS, SAVE_EVERY, MARK_EVERY = 4096, 10, 10


def train(steps: int, batch: int, folder: Path) -> None:
    """Fit a small network to fixed noise, `batch` samples a step on each rank, from the newest checkpoint on."""
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(7)
    data = torch.randn(ROWS, 64)
    target = data.square().sum(dim=1, keepdim=True)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
    # keeps DDP's buckets as they are at the start: else three ranks or more add up in another order after a restart
    model = DistributedDataParallel(network, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    job, file = pg_events.Job(), folder / "newest.pt"
    done = resume(job, file, model, optimizer)
    job.ready(rows=ROWS)
    for step in range(done + 1, steps + 1):
        rows = rows_of(step, rank, size, batch)
        loss = (model(data[rows]) - target[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        job.step(step, len(rows), loss=loss.item(), lr=optimizer.param_groups[0]["lr"], rows=rows.tolist())
        if step % MARK_EVERY == 0:
            job.fingerprint(step, model.module, optimizer)
        if step % SAVE_EVERY == 0 and rank == 0:
            save(job, file, step, model, optimizer)
        time.sleep(0.02)  # so that a step is long enough to be hit
    job.end(steps)


def rows_of(step: int, rank: int, size: int, batch: int) -> torch.Tensor:
    """The samples of a rank in a step: each epoch in an order of its own, none twice."""
    steps_in_epoch = ROWS // (batch * size)
    epoch, place = divmod(step - 1, steps_in_epoch)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch))
    return order[place * batch * size :][rank * batch : (rank + 1) * batch]


def save(job: pg_events.Job, file: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint, whole or not at all."""
    begin = time.monotonic()
    file.parent.mkdir(parents=True, exist_ok=True)
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    new = file.with_suffix(".new")
    torch.save(state, new)
    os.replace(new, file)  # noqa: PTH105 - says atomic to a reader
    job.checkpoint(step, str(file), file.stat().st_size, time.monotonic() - begin)


def resume(job: pg_events.Job, file: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint, if there is one; the step that it is of."""
    if not file.exists():
        return 0
    state = torch.load(file)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    job.resumed(state["step"], str(file))
    return int(state["step"])


def main() -> None:
    """Meet the other ranks, train, leave."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--folder", type=Path, default=Path("checkpoints"))
    asked = options.parse_args()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    train(asked.steps, asked.batch, asked.folder)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
