"""Measures what the trainer is held against: `pg training plain`, a loop as a tutorial has it, in one process.

The same network, loss, update rule, precision and samples a step as `training.loop`. Nothing else is: no other ranks,
no events within a round, no checkpoints. Batches are read ahead by threads into pinned memory, as a loader of torch's
does it by processes.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from proving_ground.training.config import Config
from proving_ground.training.device.precision import Precision
from proving_ground.training.exchange.communication import join, pick_device
from proving_ground.training.models.task import Batch, task_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proving_ground.training.events import EventWriter, NoEvents
    from proving_ground.training.measuring.programs import Plain
    from proving_ground.training.models.task import Task

AHEAD = 3
"""Batches that are read before they are needed."""


def run(settings: Plain, events: EventWriter | NoEvents, tell: Callable[[str], None]) -> None:
    """Train, and take the rate of every round; the first step of all, which loads libraries, is in no round.

    Raises:
        ConfigError: a device that is not there.
    """
    config = Config(
        model=settings.model, size=settings.size, precision=settings.precision, global_batch=settings.batch,
        device=settings.device,
    )  # fmt: skip
    device = pick_device(settings.device)
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    with join(config) if settings.ddp else contextlib.nullcontext():
        measure(settings, config, device, events, tell)  # of its own, so that DDP is gone before its process group is


def measure(
    settings: Plain, config: Config, device: torch.device, events: EventWriter | NoEvents, tell: Callable[[str], None]
) -> None:  # fmt: skip
    """All rounds."""
    task = task_of(config.model)(config)
    train = training(task, config, device, ddp=settings.ddp)
    where = {"model": f"{settings.model}-{settings.size}", "batch": settings.batch, "precision": settings.precision,
             "ddp": int(settings.ddp), "device": device.type}  # fmt: skip
    with ThreadPoolExecutor(settings.loaders, thread_name_prefix="reads") as pool:
        batches = ahead(task, settings.batch, device, pool)
        train(next(batches))
        events.emit("ready", device=str(device))
        for number in range(1, settings.rounds + 1):
            begin = time.monotonic()
            for _ in range(settings.steps):
                train(next(batches))
            rate = settings.steps * settings.batch / (time.monotonic() - begin)
            events.emit("measure", step=number, name="plain_rate", unit="samples/s", value=rate, where=where)
            tell(f"round {number}: {rate:.1f} samples/s")
            events.emit("step", step=number, samples=settings.steps * settings.batch)
        events.emit("end", step=settings.rounds, reason="done")


def training(task: Task, config: Config, device: torch.device, *, ddp: bool) -> Callable[[Batch], float]:
    """One step on a batch; its loss, which is read as everybody reads it: the device has done all that led to it."""
    model = task.model().to(device)
    if ddp:
        model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer, precision = task.optimizer(model), Precision(config, device)

    def step(batch: Batch) -> float:
        batch = batch.to(device, non_blocking=True)
        optimizer.zero_grad()
        with precision.computing():
            loss = task.loss(model, batch) / len(batch.rows)
        precision.scaled(loss).backward()  # type: ignore[no-untyped-call]
        precision.update(optimizer)
        return float(loss.detach())

    return step


def ahead(task: Task, size: int, device: torch.device, pool: ThreadPoolExecutor) -> Iterator[Batch]:
    """Batch after batch of so many samples, through shuffled epochs; those that come are being read already."""

    def read(rows: np.ndarray) -> Batch:
        batch = task.batch("train", rows)
        return batch.pinned() if device.type == "cuda" else batch

    random = np.random.default_rng(0)
    endless = itertools.chain.from_iterable(random.permutation(task.rows) for _ in itertools.count())
    reading = deque(pool.submit(read, np.fromiter(endless, np.int64, size)) for _ in range(AHEAD))
    while True:
        reading.append(pool.submit(read, np.fromiter(endless, np.int64, size)))
        yield reading.popleft().result()
