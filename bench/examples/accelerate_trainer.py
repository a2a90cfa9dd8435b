"""A loop with accelerate, whose optimizer tells of its steps: `python accelerate_trainer.py STEPS BATCH FOLDER`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pg_events
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS, SAVE_EVERY = 4096, 20


def main(steps: int, batch: int, folder: Path) -> None:
    """Train from the newest checkpoint on."""
    torch.set_num_threads(1)
    set_seed(1)
    same_order = DistributedDataParallelKwargs(find_unused_parameters=True)  # it keeps DDP's buckets
    accelerator, job = Accelerator(cpu=True, kwargs_handlers=[same_order]), pg_events.Job()
    plain = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 1))  # the statistics are each rank's own
    data = TensorDataset(torch.arange(ROWS), torch.randn(ROWS, 64))
    own = torch.Generator().manual_seed(1)  # else a loader that begins anew draws from the state that was loaded
    model, optimizer, loader = accelerator.prepare(
        plain, torch.optim.AdamW(plain.parameters(), lr=0.01), DataLoader(data, batch, shuffle=True, generator=own)
    )
    done = resumed(accelerator, job, folder)
    job.watch(model, optimizer, samples=batch, fingerprint_every=10)
    job.ready(rows=ROWS)
    while done < steps:
        epoch, made = divmod(done, len(loader))
        loader.set_epoch(epoch)
        for ids, x in accelerator.skip_first_batches(loader, made) if made else loader:
            job.learned(ids)
            accelerator.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done % SAVE_EVERY == 0:
                save(accelerator, job, folder, done)
            if done == steps:
                break
    job.end(steps)
    accelerator.end_training()


def save(accelerator: Accelerator, job: pg_events.Job, folder: Path, done: int) -> None:
    """Each process keeps its part; once all have, the checkpoint is the newest."""
    begin, path = time.monotonic(), folder / str(done)
    accelerator.save_state(str(path))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "new").write_text(path.name)
        (folder / "new").replace(folder / "newest")
        job.checkpoint(done, path, pg_events.size_of(path), time.monotonic() - begin)


def resumed(accelerator: Accelerator, job: pg_events.Job, folder: Path) -> int:
    """Load the newest checkpoint, if there is one; the steps that it has made."""
    if not (folder / "newest").exists():
        return 0
    path = folder / (folder / "newest").read_text()
    accelerator.load_state(str(path))
    job.resumed(int(path.name), path)
    return int(path.name)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
