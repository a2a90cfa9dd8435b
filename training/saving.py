"""When a checkpoint is saved, and how training goes on from one. Called by `training.loop`; files: `checkpoint`."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training import checkpoint

if TYPE_CHECKING:
    from training.config import Config
    from training.loop import Job


def save(job: Job, *, stopped: bool) -> dict[str, Any]:
    """Save a checkpoint if one is due (rank 0 writes); its event's fields, or none. Training survives a full disk."""
    config = job.config
    if not config.checkpoint_dir or not (job.due(config.checkpoint_every) or stopped or job.step == job.steps):
        return {}
    begin = time.monotonic()
    randoms = job.world.gather(checkpoint.random_state())
    if job.world.rank:
        return {}
    progress = {"step": job.step, "epoch": job.epoch}
    parts = {
        "model": job.model.module.state_dict(),
        "optimizer": job.optimizer.state_dict(),
        "training": progress | {"best": job.best, "metrics": job.metrics, "config": asdict(config), "random": randoms},
    }
    try:
        path, size = checkpoint.save(Path(config.checkpoint_dir), job.step, parts, config.keep_checkpoints)
    except OSError as error:
        message = (
            f"checkpoint of step {job.step} not saved: {config.checkpoint_dir}: {error.strerror}; training goes on"
        )
        job.events.emit("error", message=message, fatal=False)
        warn(message)
        return {}
    return {"step": job.step, "path": str(path), "bytes": size, "block_s": time.monotonic() - begin}


def warn(line: str) -> None:
    """Tell people about something that went wrong and was survived."""
    sys.stderr.write(line + "\n")


def resume(job: Job) -> None:
    """Go on from the newest intact checkpoint: rank 0 reads and verifies it, the others get it from there."""
    config = job.config
    if not config.checkpoint_dir or not config.resume:
        return
    found = None
    if job.world.rank == 0:
        found = checkpoint.load_newest(Path(config.checkpoint_dir), warn)
    path, parts = job.world.from_first(found) or (None, None)
    if parts is None:
        return
    training = parts["training"]
    differs = [name for name in ("model", "global_batch", "seed") if training["config"][name] != getattr(config, name)]
    if differs:
        words = ", ".join(
            f"{name} = {training['config'][name]!r} there, {getattr(config, name)!r} here" for name in differs
        )
        raise checkpoint.CheckpointError(f"{path}: of another training ({words}); resume = false starts again")
    job.model.module.load_state_dict(parts["model"])
    job.optimizer.load_state_dict(parts["optimizer"])
    job.step, job.best, job.metrics = training["step"], training["best"], training["metrics"]
    if job.world.rank < len(training["random"]):  # a rank that is new in a larger world keeps its fresh state
        checkpoint.restore_random_state(training["random"][job.world.rank])
    job.events.emit("resume", step=job.step, path=str(path))
    job.tell(f"resumed after step {job.step} from {path}")


def claim(config: Config) -> int:
    """The number of this incarnation of the job: one more than the newest in checkpoint_dir; nobody else has it."""
    if not config.checkpoint_dir:
        return 1
    folder = Path(config.checkpoint_dir) / "generations"
    folder.mkdir(parents=True, exist_ok=True)
    number = max((int(file.name) for file in folder.iterdir() if file.name.isdecimal()), default=0)
    while True:
        number += 1
        with contextlib.suppress(FileExistsError):
            (folder / f"{number:08d}").open("x").close()
            return number
