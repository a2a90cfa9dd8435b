"""A loop with accelerate that tells of its steps: `python accelerate_trainer.py STEPS BATCH FOLDER` on every node."""

from __future__ import annotations

import sys
from pathlib import Path

import pg_events
import torch
from accelerate import Accelerator
from torch import nn


def main(steps: int, batch: int, folder: Path) -> None:
    """Train from the newest checkpoint on."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    accelerator, job, newest = Accelerator(cpu=True), pg_events.Job(), folder / "newest.pt"
    plain = nn.Linear(64, 1)
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.01))
    done = 0
    if newest.exists():
        state = torch.load(newest)
        done = state["step"]
        accelerator.unwrap_model(model).load_state_dict(state["model"])
        job.resumed(done, str(newest))
    job.ready()
    for step in range(done + 1, steps + 1):
        loss = model(torch.randn(batch, 64)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        job.step(step, batch, loss=loss.item())
        if step % 20 == 0 and accelerator.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save({"step": step, "model": accelerator.unwrap_model(model).state_dict()}, folder / "new.pt")
            (folder / "new.pt").replace(newest)
    job.end(steps)
    accelerator.end_training()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
