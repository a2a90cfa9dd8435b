"""The ranks of a training job and what passes between them. Called by `training.loop`.

A launcher says who we are through RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (torchrun sets them, so
does the harness); without them the process is a world of one and opens no socket. (No postponed annotations in this
module: DDP looks at those of its hook.)
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket, HashStore  # their public names are untyped
from torch.nn.parallel import DistributedDataParallel

from proving_ground.training.config import Config, ConfigError
from proving_ground.training.data import order
from proving_ground.training.data.order import Rows
from proving_ground.training.exchange.patience import START_S
from proving_ground.training.timing import Spans


@dataclass(frozen=True)
class World:
    """Who this process is: rank of size, and the device it computes on."""

    rank: int
    size: int
    device: torch.device
    backend: str
    group: dist.ProcessGroup | None = None  # None: all processes that met

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all ranks, on every rank."""
        dist.all_reduce(values, group=self.group)
        return values

    def start_sum(self, values: torch.Tensor) -> dist.Work:
        """Begin summing a tensor over all ranks in place; `.wait()` on the result when it is needed."""
        return start_all_reduce(values, self.group)

    def gather(self, value: object) -> list[Any]:
        """One object of every rank, in order of rank, on every rank."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def from_rank(self, value: object, giver: int = 0) -> Any:  # noqa: ANN401 - whatever that rank has
        """One rank's object, on every rank."""
        values = [value]
        dist.broadcast_object_list(values, src=giver, group=self.group, device=self.device)
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


FAILED: list[dist.ProcessGroup | None] = []
"""Groups of trainings that failed, kept until the process ends: a traceback may hold a DDP, whose destructor must not
be the last to let go of its group (it holds the GIL and waits for a thread of Gloo's that waits for the GIL)."""


@contextlib.contextmanager
def join(config: Config) -> Iterator[World]:
    """Meet the other ranks; leave them at the end. A collective that takes longer than `timeout_s` is an error."""
    rank, size = identity()
    device = pick_device("cpu" if config.model == "paced" else config.device)
    world = World(rank, size, device, pick_backend(config.backend, device))
    timeout = timedelta(seconds=config.timeout_s or START_S)
    store = HashStore() if size == 1 else None  # alone: no socket
    dist.init_process_group(world.backend, rank=rank, world_size=size, timeout=timeout, store=store)
    try:
        yield world
    except BaseException:
        FAILED.append(dist.group.WORLD)
        raise
    finally:
        dist.destroy_process_group()


def start_all_reduce(values: torch.Tensor, group: dist.ProcessGroup | None = None) -> dist.Work:
    """Begin summing in place over all ranks of a group."""
    work: dist.Work | None = dist.all_reduce(values, group=group, async_op=True)
    assert work is not None  # noqa: S101 - asynchronous calls return their work
    return work


StartSum = Callable[[torch.Tensor], dist.Work]
"""Begins to sum a tensor over all ranks in place."""

Piece = tuple[int, Rows]
"""A part of the global batch that goes through the model at once: a number and its rows."""


class Bare(nn.Module):
    """Stands where DDP stands: a model whose gradients are not exchanged by it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:  # noqa: ANN401 - the module's own
        """The module's."""
        return self.module(*inputs)


class Told:
    """What the ranks tell each other beside gradients, hidden behind backward: the loss, and a wish."""

    def __init__(self, device: torch.device, start_sum: StartSum, *, wish: bool) -> None:
        self._values = torch.tensor([0.0, wish], dtype=torch.float64, device=device)
        self._start_sum = start_sum
        self._work: dist.Work | None = None
        self._told: tuple[float, bool] | None = None

    def add(self, loss: torch.Tensor) -> None:
        """Add one micro-batch's part of the loss."""
        self._values[0] += loss.detach()

    def start(self) -> None:
        """Every part is added: begin to sum over ranks."""
        self._work = self._start_sum(self._values)

    def wait(self) -> tuple[float, bool]:
        """The loss over all samples, and whether some rank has a wish."""
        if self._told is None:
            assert self._work is not None  # noqa: S101 - the loop has started it
            self._work.wait()
            loss, wishes = self._values.tolist()
            self._told = loss, wishes > 0
        return self._told


@dataclass
class Exchange:
    """The gradients on their way: DDP hands its buckets in while backward runs, the loop collects them afterwards."""

    start_sum: StartSum | None  # None: we are alone
    casting: bool  # to FP16 on the way
    micro_batches: int = 1
    micro_batch: int = 0  # samples of one at most; 0: as many as there are
    apart: bool = False  # sums have memory of their own: one that was given up may still write to it
    before_send: Callable[[], None] = lambda: None  # before the first bucket of a step
    casts: Spans = field(default_factory=lambda: Spans(torch.device("cpu")))  # the cost of compression
    groups: tuple[dist.ProcessGroup, ...] = ()  # that it exchanges in, beside that of all ranks
    bucket_bytes: list[int] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _flying: list[tuple[dist.Work, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _wires: list[torch.Tensor] = field(default_factory=list)  # memory of sums, for each bucket of a step

    def cut(self, batch: Rows, rank: int, size: int) -> list[Piece]:
        """A rank's part of the global batch in micro-batches that are not empty."""
        mine = order.share(batch, rank, size)
        return list(enumerate(order.micro_batches(mine, order.passes(len(mine), self.micro_batches, self.micro_batch))))

    def computing(self, model: nn.Module, step: int, piece: int, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of one micro-batch: gradients are exchanged after the last only."""
        del step, piece  # they count where random numbers are drawn anew (`training.exchange.exact`)
        assert isinstance(model, DistributedDataParallel)  # noqa: S101 - `exchanging` made it
        return contextlib.nullcontext() if last else model.no_sync()

    def told(self, device: torch.device, *, wish: bool) -> Told:
        """What the ranks tell each other beside gradients."""
        return Told(device, self.start_sum or start_all_reduce, wish=wish)

    def send(self, gradients: torch.Tensor) -> None:
        """Begin to sum a bucket of gradients over all ranks, as FP16 on the way if asked."""
        if not self._sizes:
            self.before_send()
        self._sizes.append(gradients.nbytes)
        if self.start_sum:
            wire = gradients
            if self.casting:
                with self.casts.span():
                    wire = self._copied(gradients, torch.half)
            elif self.apart:
                wire = self._copied(gradients, gradients.dtype)
            self._flying.append((self.start_sum(wire), wire, gradients))

    def _copied(self, gradients: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A bucket in the memory that it had in the step before: new memory would cost a page fault for each page."""
        at = len(self._flying)
        if at == len(self._wires) or self._wires[at].shape != gradients.shape:
            self._wires[at:] = [torch.empty_like(gradients, dtype=dtype)]
        return self._wires[at].copy_(gradients)

    def collect(self) -> bool:
        """Wait until every bucket holds its sum; whether the buckets are others than the step before."""
        for work, wire, gradients in self._flying:
            work.wait()
            if self.casting:
                with self.casts.span():
                    gradients.copy_(wire)
            elif wire is not gradients:
                gradients.copy_(wire)
        changed, self.bucket_bytes = self._sizes != self.bucket_bytes, self._sizes
        self._sizes, self._flying = [], []
        return changed

    def spent(self) -> dict[str, float]:
        """For the step's event: seconds that lie within its parts."""
        return {"compress_s": round(self.casts.take(), 6)} if self.casting else {}

    def forget(self) -> None:
        """Drop what is on its way, and the memory that it may still write to: the step is made again."""
        self._sizes, self._flying, self._wires = [], [], []


def sum_bucket(state: Exchange, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's communication hook; the future is done at once, since the loop waits for the sums itself.

    So no callback runs on the library's threads (one that needs Python's lock can keep them from ending), and the wait
    has a place of its own in the loop, where it is timed. A sum, not DDP's mean: the loss is divided by the samples of
    the *global* batch, so that the sum is the exact mean over samples even when ranks have different numbers of them.
    """
    gradients = bucket.buffer()
    state.send(gradients)
    handed_over: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    handed_over.set_result(gradients)
    return handed_over


def exchanging(module: nn.Module, config: Config, world: World) -> tuple[DistributedDataParallel, Exchange]:
    """The model with its gradients summed over ranks by DDP, in buckets, while backward runs."""
    model = DistributedDataParallel(
        module,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
        bucket_cap_mb=config.bucket_mb,
        gradient_as_bucket_view=True,
        process_group=world.group,
        init_sync=config.model != "paced",  # paced weights are zero everywhere: no need to send them
        forward_sync_buffers=config.norm == "batch" and not config.sync_batchnorm,
    )
    exchange = Exchange(
        world.start_sum if world.size > 1 or world.group else None,
        config.compression == "fp16",
        config.accumulate,
        config.micro_batch,
        casts=Spans(world.device),
    )
    model.register_comm_hook(exchange, sum_bucket)
    return model, exchange
