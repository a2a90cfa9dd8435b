"""Measures checkpoints: `pg training storing`. Saving is durable and hashed, loading verified, as in training.

On several nodes each saves and loads its own, at the same time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.checkpoints.saving import Snapshot
from proving_ground.training.exchange.communication import identity, pick_device
from proving_ground.training.measuring.loading import kind, opened, place

if TYPE_CHECKING:
    from proving_ground.training.checkpoints.stores import Store
    from proving_ground.training.events import EventWriter, NoEvents
    from proving_ground.training.measuring.programs import Storing

VALUES_PER_MIB = 2**20 // 4
TENSOR_MIB = 8
"""The state is made of tensors of this size, as a model's is of its layers'."""


def run(settings: Storing, events: EventWriter | NoEvents, tell: Callable[[str], None]) -> None:
    """Save and load a checkpoint of every size, round after round.

    Raises:
        ConfigError: an address that is none.
        OSError: the disk is full, the storage did not answer.
    """
    rank, _ = identity()
    device = pick_device(settings.device)
    address = f"{settings.address.rstrip('/')}/rank-{rank}" if settings.address else ""
    with place(address, "storing") as at, ThreadPoolExecutor(1) as pool:
        store = opened(at)
        generation, saves = checkpoint.claim_generation(store), itertools.count(1)
        events.emit("ready", address=kind(at))
        for number in range(1, settings.rounds + 1):
            for size in settings.sizes_mb:
                for name, seconds in measured(store, pool, generation, next(saves), size, device).items():
                    where = {"address": kind(at), "size_mb": size, "device": device.type}
                    events.emit("measure", step=number, name=name, unit="ms", value=1000 * seconds, where=where)
                    tell(f"round {number}: {name} of {size} MiB: {1000 * seconds:.1f} ms")
            events.emit("step", step=number, samples=1)
        events.emit("end", step=settings.rounds, reason="done")


def state(size_mb: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Tensors of so many MiB in all."""
    parts = [min(TENSOR_MIB, size_mb - first) for first in range(0, size_mb, TENSOR_MIB)]
    return {f"layer{number}": torch.rand(part * VALUES_PER_MIB, device=device) for number, part in enumerate(parts)}


def measured(
    store: Store, pool: ThreadPoolExecutor, generation: int, step: int, size_mb: int, device: torch.device
) -> dict[str, float]:  # fmt: skip
    """Seconds of one save (of which training waits for the copy alone) and one verified load of what was saved.

    Raises:
        RuntimeError: what came back is not what was saved.
    """
    model, snapshot = state(size_mb, device), Snapshot()
    snapshot.warm({"model": model})
    if device.type == "cuda":
        torch.cuda.synchronize()
    marks = [time.monotonic()]
    copy = snapshot.take({"model": model}, pool)
    marks.append(time.monotonic())
    saved = checkpoint.save(store, step, generation, copy, keep=1)
    marks.append(time.monotonic())
    loaded = checkpoint.load(store, saved.name)
    marks.append(time.monotonic())
    if any(not torch.equal(loaded.parts["model"][name], tensor.cpu()) for name, tensor in model.items()):
        raise RuntimeError(f"{loaded.path}: differs from what was saved")
    block, save, load = (later - earlier for earlier, later in itertools.pairwise(marks))
    return {"checkpoint_block": block, "checkpoint_save": save, "checkpoint_load": load}
