"""Exact mode: gradients summed so that every number of ranks gets the same bits. Called by `training.loop`.

The global batch is cut into a fixed number of logical shards, and a rank computes whole shards, one after another. The
gradient of each shard is turned into fixed-point integers; integers add up to the same in any order and on any number
of ranks, and so do the loss, the clipping, the optimizer that follow from them. Random numbers of a shard (dropout)
depend on (seed, step, shard), not on the rank. `loop` uses this in place of DDP with `communication.Exchange`.
"""

from __future__ import annotations

import contextlib
import math
import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from proving_ground.training.config import ConfigError
from proving_ground.training.data import order
from proving_ground.training.exchange.communication import Bare, start_all_reduce
from proving_ground.training.timing import Spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch.distributed as dist

    from proving_ground.training.config import Config
    from proving_ground.training.data.order import Rows
    from proving_ground.training.exchange.communication import Piece, World

SCALE = 2.0**40
"""Integers of one. A shard's gradient is off by at most 2⁻⁴¹ = 4.5e-13: float32 rounds more coarsely from 8e-6 on."""
ROOM = 2.0**62
"""The largest sum over all shards, of the 2⁶³ that an int64 can hold."""
CHUNK = 1 << 15
"""Values turned into integers at a time: what is in between stays in the processor's cache."""


def limit(shards: int) -> float:
    """The largest magnitude that a value of one shard may have, so that the sum over shards cannot overflow."""
    return ROOM / SCALE / shards


def add(values: Tensor, sums: Tensor, most: float) -> None:
    """Add floating-point `values` (n,) to int64 fixed-point `sums` (n + 1,); uses `values` up.

    Scaling by a power of two is exact, so is the cast after rounding. If a value is NaN, infinite or beyond `most`,
    that is counted in the last element: the cast would make some number of it.
    """
    low, high = values.aminmax()  # NaN if any is
    sums[-1] += ~((low >= -most) & (high <= most))
    for part, into in zip(torch.split(values, CHUNK), torch.split(sums[:-1], CHUNK), strict=True):
        into.add_(part.mul_(SCALE).round_().long())


def read(sums: Tensor, values: Tensor) -> None:
    """Put the fixed-point sums (n + 1,) into floating-point `values` (n,), rounded once."""
    values.copy_(sums[:-1]).mul_(1 / SCALE)


class Bucket:
    """Some parameters whose gradients travel together."""

    def __init__(self, parameters: list[nn.Parameter], most: float) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        first = parameters[0]
        self.parameters, self._most = parameters, most
        self.sums = torch.zeros(sum(sizes) + 1, dtype=torch.int64, device=first.device)
        self._flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        pieces = torch.split(self._flat, sizes)
        self._parts = [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]
        self.work: dist.Work | None = None
        self.waiting = len(parameters)  # for gradients of the shard in hand

    def take(self, scale: float) -> None:
        """Add a shard's gradients over `scale` to the sums; a parameter that had none in it counts as zero."""
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in self.parameters]
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=self._flat)
        if scale != 1:
            self._flat.div_(scale)
        for parameter in self.parameters:
            parameter.grad = None
        add(self._flat, self.sums, self._most)
        self.waiting = len(self.parameters)

    def give(self, scale: float) -> Tensor:
        """Make the sums times `scale` the parameters' gradients, and be empty; how often something did not fit."""
        read(self.sums, self._flat)
        if scale != 1:
            self._flat.mul_(scale)
        for part, parameter in zip(self._parts, self.parameters, strict=True):
            parameter.grad = part
        unfit = self.sums[-1].clone()
        self.sums.zero_()
        self.work = None
        return unfit

    def overflow(self) -> None:
        """Make the gradients what they are where FP16 overflows."""
        self._flat.fill_(math.inf)

    def drop(self) -> None:
        """Be empty again; a collective that was given up may still write to the old sums."""
        self.sums = torch.zeros_like(self.sums)
        self.work, self.waiting = None, len(self.parameters)
        for parameter in self.parameters:
            parameter.grad = None


class ExactExchange:
    """The gradients on their way, as `communication.Exchange`.

    A bucket leaves as soon as the last shard has filled it, while backward goes on.
    """

    casting = True
    apart = True
    groups = ()

    def __init__(self, module: nn.Module, config: Config, device: torch.device) -> None:
        self.before_send: Callable[[], None] = lambda: None
        self.start_sum: Callable[[Tensor], dist.Work] = start_all_reduce
        self.scale: Callable[[], float] = lambda: 1.0  # of the loss (`training.device.precision`): a power of two
        self.skips = config.precision == "fp16"  # what does not fit makes no error, but a step that all ranks skip
        self.casts = Spans(device)
        self.bucket_bytes: list[int] = []
        self.most = limit(config.shards)
        self._shards, self._seed = config.shards, config.seed
        self.step, self._last, self._scale = 0, True, 1.0  # of the piece in hand
        self._buckets = cut_into_buckets(module, config.bucket_mb * 2**20, self.most)
        self._sent = 0  # buckets of this step
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))  # type: ignore[no-untyped-call]

    def cut(self, batch: Rows, rank: int, size: int) -> list[Piece]:
        """A rank's shards of the global batch that are not empty: (number, rows)."""
        mine = ((shard, order.share(batch, shard, self._shards)) for shard in order.shards_of(rank, size, self._shards))
        return [(shard, rows) for shard, rows in mine if len(rows)]

    @contextlib.contextmanager
    def computing(self, _model: nn.Module, step: int, shard: int, *, last: bool) -> Iterator[None]:
        """Around forward and backward of one shard: it draws its own random numbers."""
        seed_all(self._seed, step, shard)
        self.step, self._last, self._scale = step, last, self.scale()
        yield
        for bucket in () if last else self._buckets:  # some parameters had no gradient
            if bucket.waiting < len(bucket.parameters):
                self._take(bucket)

    def spent(self) -> dict[str, float]:
        """For the step's event: seconds of casts, which lie within backward and exposed communication."""
        return {"compress_s": round(self.casts.take(), 6)}

    def told(self, device: torch.device, *, wish: bool) -> ExactTold:
        """What the ranks tell each other beside gradients."""
        return ExactTold(self, device, wish=wish)

    def collect(self) -> bool:
        """Wait until every gradient is its sum over all shards; whether the buckets are others than the step before.

        Raises:
            RuntimeError: on every rank: a shard's gradient is not finite, or too large for fixed point, unless `skips`.
        """
        for bucket in self._buckets[self._sent :]:  # some parameters had no gradient
            self._send(bucket)
        unfit = torch.stack([self._give(bucket) for bucket in self._buckets]).sum()
        if unfit and self.skips:
            self._buckets[0].overflow()
        else:
            check(int(unfit), f"a gradient of step {self.step + 1}", self.most)
        seed_all(self._seed, self.step, self._shards)  # every rank goes on with the same random states
        sizes = [bucket.sums.nbytes for bucket in self._buckets]
        changed, self.bucket_bytes, self._sent, self._last = sizes != self.bucket_bytes, sizes, 0, True
        return changed

    def forget(self) -> None:
        """Drop what is on its way: the step is made again."""
        for bucket in self._buckets:
            bucket.drop()
        self._sent, self._last = 0, True

    def _hook(self, bucket: Bucket) -> Callable[[Tensor], None]:
        def arrived(_parameter: Tensor) -> None:
            bucket.waiting -= 1
            if bucket.waiting == 0 and not self._last:
                self._take(bucket)
            while self._last and self._sent < len(self._buckets) and not self._buckets[self._sent].waiting:
                self._send(self._buckets[self._sent])  # in the same order on every rank

        return arrived

    def _take(self, bucket: Bucket) -> None:
        with self.casts.span():
            bucket.take(self._scale)

    def _send(self, bucket: Bucket) -> None:
        self._take(bucket)
        if not self._sent:
            self.before_send()
        self._sent += 1
        bucket.work = self.start_sum(bucket.sums)

    def _give(self, bucket: Bucket) -> Tensor:
        assert bucket.work is not None  # noqa: S101 - all are sent before any is given
        bucket.work.wait()
        with self.casts.span():
            return bucket.give(self._scale)


class ExactTold:
    """As `communication.Told`: the loss as an integer sum, and whether some rank has a wish."""

    def __init__(self, exchange: ExactExchange, device: torch.device, *, wish: bool) -> None:
        self._exchange = exchange
        self._loss = torch.zeros(1, dtype=torch.float64, device=device)  # of one shard
        self._sums = torch.tensor([wish, 0, 0], dtype=torch.int64, device=device)
        self._work: dist.Work | None = None
        self._told: tuple[float, bool] | None = None

    def add(self, loss: Tensor) -> None:
        """Add one shard's part of the loss."""
        self._loss.copy_(loss.detach())
        add(self._loss, self._sums[1:], self._exchange.most)

    def start(self) -> None:
        """Every part is added: begin to sum over ranks."""
        self._work = self._exchange.start_sum(self._sums)

    def wait(self) -> tuple[float, bool]:
        """The loss over all samples, and whether some rank has a wish.

        Raises:
            RuntimeError: on every rank: a shard's part is not finite, or too large for fixed point, unless it `skips`.
        """
        if self._told is None:
            assert self._work is not None  # noqa: S101 - the loop has started it
            self._work.wait()
            wishes, loss, unfit = self._sums.tolist()
            skipped = bool(unfit and self._exchange.skips)
            check(int(unfit and not skipped), f"the loss of step {self._exchange.step + 1}", self._exchange.most)
            self._told = math.nan if skipped else loss / SCALE, wishes > 0
        return self._told


def check(unfit: int, what: str, most: float) -> None:
    """Stop at a sum that means nothing.

    Raises:
        RuntimeError: in one line what it is.
    """
    if unfit:
        raise RuntimeError(f"{what} is not finite, or above {most:g}; a smaller lr may help")


def cut_into_buckets(module: nn.Module, most_bytes: float, most: float) -> list[Bucket]:
    """Parameters in the order in which backward comes to them, as many a bucket as `most_bytes` of integers hold."""
    groups: list[list[nn.Parameter]] = []
    room = 0.0
    for parameter in reversed([one for one in module.parameters() if one.requires_grad]):
        bytes_ = parameter.numel() * torch.int64.itemsize
        if not groups or bytes_ > room:
            groups.append([])
            room = most_bytes
        groups[-1].append(parameter)
        room -= bytes_
    return [Bucket(group, most) for group in groups]


def seed_all(*numbers: int) -> None:
    """Put every source of random numbers into a state that follows from some numbers."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global one is meant
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would note a stack for CUDA each time, and keep it
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


def exchanging(module: nn.Module, config: Config, world: World) -> tuple[Bare, ExactExchange]:
    """What the loop uses in place of DDP and its hook.

    Raises:
        ConfigError: more ranks than shards.
    """
    if world.size > config.shards:
        raise ConfigError(f"shards = {config.shards}: must be at least the number of ranks, {world.size}")
    return Bare(module), ExactExchange(module, config, world.device)
