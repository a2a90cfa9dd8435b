"""The ranks of a training job and what passes between them. Called by `training.loop`.

A launcher says who we are through RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (torchrun sets them, so
does the harness); without them the process is a world of one and opens no socket. (No postponed annotations in this
module: DDP looks at those of its hook.)
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, HashStore  # torch.distributed has them, its types do not

from training.config import Config, ConfigError
from training.timing import Watch


@dataclass(frozen=True)
class World:
    """Who this process is: rank of size, and the device it computes on."""

    rank: int
    size: int
    device: torch.device
    backend: str

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all ranks, on every rank."""
        dist.all_reduce(values)
        return values

    def start_sum(self, values: torch.Tensor) -> dist.Work:
        """Begin summing a tensor over all ranks in place; `.wait()` on the result when it is needed."""
        return start_all_reduce(values)

    def gather(self, value: object) -> list[Any]:
        """One object of every rank, in order of rank, on every rank."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, value: object) -> Any:  # noqa: ANN401 - whatever rank 0 has
        """Rank 0's object, on every rank."""
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]


def identity() -> tuple[int, int]:
    """Rank and world size that the launcher gave us; (0, 1) without one.

    Raises:
        ConfigError: they are no numbers, or do not fit together.
    """
    try:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        rank, size = -1, -1
    if not 0 <= rank < size:
        given = f"RANK={os.environ.get('RANK')}, WORLD_SIZE={os.environ.get('WORLD_SIZE')}"
        raise ConfigError(f"{given}: must be whole numbers with 0 <= RANK < WORLD_SIZE")
    if size > 1 and (missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]):
        raise ConfigError(f"WORLD_SIZE={size} needs {' and '.join(missing)}: where rank 0 listens")
    return rank, size


def pick_device(wanted: str) -> torch.device:
    """The device that `auto`, `cpu` or `cuda` means for this process; one GPU for each local rank.

    Raises:
        ConfigError: CUDA is asked for where there is none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda': this machine has no usable CUDA device; use auto or cpu")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def pick_backend(wanted: str, device: torch.device) -> str:
    """NCCL between GPUs, Gloo between CPUs, unless told.

    Raises:
        ConfigError: NCCL is asked for on a CPU.
    """
    if wanted == "nccl" and device.type != "cuda":
        raise ConfigError("backend = 'nccl' needs device = 'cuda'; use gloo or auto")
    return ("nccl" if device.type == "cuda" else "gloo") if wanted == "auto" else wanted


@contextlib.contextmanager
def join(config: Config) -> Iterator[World]:
    """Meet the other ranks; leave them at the end. A collective that takes longer than `timeout_s` is an error."""
    rank, size = identity()
    device = pick_device("cpu" if config.model == "paced" else config.device)
    world = World(rank, size, device, pick_backend(config.backend, device))
    timeout = timedelta(seconds=config.timeout_s)
    store = HashStore() if size == 1 else None  # alone: no socket
    dist.init_process_group(world.backend, rank=rank, world_size=size, timeout=timeout, store=store)
    try:
        yield world
    finally:
        dist.destroy_process_group()


def start_all_reduce(values: torch.Tensor) -> dist.Work:
    """Begin summing in place over all ranks."""
    work: dist.Work | None = dist.all_reduce(values, async_op=True)
    assert work is not None  # noqa: S101 - asynchronous calls return their work
    return work


@dataclass
class Exchange:
    """What the gradient hook needs to know; `watch` sees every bucket come and go."""

    size: int
    half: bool
    watch: Watch


def sum_bucket(state: Exchange, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's communication hook: sum a bucket of gradients over all ranks, as FP16 on the way if asked.

    A sum, not DDP's mean: the loss is divided by the samples of the *global* batch, so that the sum is the exact mean
    over samples even when ranks have different numbers of them.
    """
    gradients = bucket.buffer()
    state.watch.bucket_ready(gradients.nbytes)
    if state.size == 1:
        state.watch.bucket_done()
        alone: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        alone.set_result(gradients)
        return alone
    wire = gradients.half() if state.half else gradients

    def landed(done: torch.futures.Future[Any]) -> torch.Tensor:
        reduced: torch.Tensor = done.value()[0]
        result = gradients.copy_(reduced) if state.half else reduced
        state.watch.bucket_done()
        return result  # DDP waits for this, so the reading above is never late

    return start_all_reduce(wire).get_future().then(landed)
