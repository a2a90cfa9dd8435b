"""Finds the largest batch that one device trains, and from where on a larger one wins nothing. Called by `training`.

Real steps on the device: sizes are doubled until one does not fit, then the gap is halved. Nothing is read or sent
meanwhile, so the rates are what the device can do at most. On a CPU every size has a process of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from proving_ground.training.config import ConfigError
from proving_ground.training.device import fit
from proving_ground.training.device.heap import keep_freed_memory
from proving_ground.training.device.precision import Precision, repeatable
from proving_ground.training.device.resident import peak_bytes
from proving_ground.training.exchange.communication import pick_device
from proving_ground.training.loop import built, silent
from proving_ground.training.measuring.profiling import device_name
from proving_ground.training.models.task import task_of

if TYPE_CHECKING:
    from proving_ground.training.config import Config
    from proving_ground.training.models.task import Task

WARM_UP = 2
"""Steps that are not timed: they choose kernels, and give the heap its shape."""
LEAST_S = 0.5
"""For how long steps are timed, if more than one fits."""
LONG_S = 5.0
"""A larger batch than one whose step takes as long is not tried."""
WITHIN = 0.05
"""The largest is known to within this share of it."""
SATURATED = 0.95
"""Of the best rate: a larger batch wins next to nothing."""
EIGHTS = 64
"""From here on sizes are multiples of 8, as matrix units like them."""


@dataclass(frozen=True)
class Tried:
    """One size: how many samples go through the model at once, their rate (0: it does not fit) and peak memory."""

    samples: int
    samples_per_s: float = 0.0
    step_s: float = 0.0
    memory_bytes: int = 0

    @property
    def fits(self) -> bool:
        """Whether a device had room for it."""
        return self.samples_per_s > 0


def find(config: Config, tell: Callable[[str], None], *, most: int = 0, machine: bool = False) -> None:
    """Try, and tell one line a size and what follows; for machines one JSON document. `most`: of samples; 0: any.

    Raises:
        ConfigError: a configuration whose steps take no batch of one device's.
        OutOfMemoryError: not even the smallest fits.
    """
    if reason := refused(config, most):
        raise ConfigError(f"training batch: {reason}")
    import proving_ground.training.warm  # noqa: F401, PLC0415 - what a first step imports takes memory too

    device, task = pick_device(config.device), task_of(config.model)(config)
    if device.type == "cpu":
        fit.stay_within_cgroup()
        torch.set_num_threads(config.threads)
        keep_freed_memory()  # as a training does
    say, name = silent if machine else tell, device_name(device)
    say(f"{config.model}, {config.size}, {config.precision}, on {name}:")
    say("  samples at once   samples/s      memory")
    tried = []
    for one in sizes(lambda samples: attempt(config, task, samples, device), most, fewest(config)):
        tried.append(one)
        figures = f"{one.samples_per_s:>9,.1f} {one.memory_bytes / 1e9:>8.2f} GB" if one.fits else "no room"
        say(f"{one.samples:>17,}   {figures}")
    good = sorted((it for it in tried if it.fits), key=lambda it: it.samples)
    if not good:
        raise fit.OutOfMemoryError(
            f"not enough memory for the smallest batch of model = {config.model!r}, beside its weights"
        )
    largest, enough = good[-1].samples, saturated(good)
    bounded = not all(it.fits for it in tried)
    beyond = f"{largest:,} fit; larger ones were not tried: {why(good[-1])}"
    say(f"largest that fits: {largest:,}" if bounded else beyond)
    say(f"{SATURATED:.0%} of the best rate from {enough:,} on; global_batch is this × {times(config)}")
    if machine:
        tell(json.dumps({
            "schema": "proving-ground/training-batch/1", "model": config.model, "device": name,
            "largest": largest, "bounded": bounded, "enough": enough, "tried": [asdict(it) for it in tried],
        }))  # fmt: skip


def refused(config: Config, most: int) -> str:
    """Why a configuration has no batch to be found; empty where it has."""
    if most < 0 or 0 < most < fewest(config):
        return f"--most {most}: must be at least {fewest(config)}"
    if config.model == "paced":
        return "model = 'paced' computes nothing"
    if config.parallel != "ddp":
        return f"parallel = {config.parallel!r}: a part of a model needs its other ranks; try `training plan`"
    return ""


def times(config: Config) -> str:
    """What a global batch is of what goes through the model at once."""
    return "shards" if config.reduction == "exact" else "accumulate × ranks"


def why(last: Tried) -> str:
    """What ended the search where all sizes fit."""
    return f"a step takes {last.step_s:.1f} s" if last.step_s >= LONG_S else "--most"


def sizes(attempt: Callable[[int], Tried], most: int = 0, first: int = 1) -> Iterator[Tried]:
    """Twice as much each time until one does not fit or takes long; then halves of the gap, until it is small."""
    low, samples = 0, first
    while (one := attempt(samples)).fits:
        yield one
        if one.step_s >= LONG_S or samples == most:
            return
        low, samples = samples, min(2 * samples, most or 2 * samples)
    yield one
    high = samples
    while high - low > max(unit(low), WITHIN * low):
        samples = (low + high) // 2 // unit(low) * unit(low)
        if samples == low:
            return
        one = attempt(samples)
        yield one
        low, high = (samples, high) if one.fits else (low, samples)


def fewest(config: Config) -> int:
    """Samples to begin with: batch statistics are of two at least."""
    return 2 if config.norm == "batch" else 1


def unit(samples: int) -> int:
    """What larger sizes than this are multiples of."""
    return 8 if samples >= EIGHTS else 1


def attempt(config: Config, task: Task, samples: int, device: torch.device) -> Tried:
    """Train some steps of so many samples at once; on a CPU in a child, as `fit` does it."""
    found: list[Tried] = []

    def here() -> None:
        found.append(timed(config, task, samples, device))

    if device.type != "cpu":
        return found[0] if fit.here(here) else Tried(samples)
    receives, sends = os.pipe()
    with os.fdopen(receives) as told:
        fits = fit.in_a_child(lambda: tell_parent(sends, timed(config, task, samples, device)))
        os.close(sends)
        text = told.read()
    if not fits:
        return Tried(samples)
    return Tried(**json.loads(text)) if text else timed(config, task, samples, device)  # what failed fails here too


def tell_parent(sends: int, one: Tried) -> None:
    """Give a size's figures to the parent."""
    os.write(sends, json.dumps(asdict(one)).encode())


def timed(config: Config, task: Task, samples: int, device: torch.device) -> Tried:
    """The rate of real steps, with what a training holds besides standing in."""
    torch.manual_seed(config.seed)
    module = built(task, config, device)
    module.train()
    optimizer, precision = task.optimizer(module), Precision(config, device)
    batch = task.batch("train", np.arange(samples) % task.rows).to(device)
    held = sum(it.nbytes for it in module.parameters()) * fit.beside(config)
    reserve = fit.RESERVE if device.type == "cpu" else 0
    stand_in = torch.zeros(reserve + held, dtype=torch.uint8, device=device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def step() -> None:
        with precision.computing():
            loss = task.loss(module, batch) / samples
        precision.scaled(loss).backward()  # type: ignore[no-untyped-call]
        precision.unscale(optimizer)
        precision.update(optimizer)
        optimizer.zero_grad()

    with repeatable(config):
        for _ in range(WARM_UP):
            step()
        count, since = 0, now(device)
        while now(device) - since < LEAST_S:
            step()
            count += 1
        step_s = (now(device) - since) / count
    memory = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else peak_bytes()
    del stand_in
    return Tried(samples, samples / step_s, step_s, memory)


def now(device: torch.device) -> float:
    """The time in seconds at which the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def saturated(good: list[Tried]) -> int:
    """The smallest size that is nearly as fast as the fastest."""
    best = max(it.samples_per_s for it in good)
    return next(it.samples for it in good if it.samples_per_s >= SATURATED * best)
