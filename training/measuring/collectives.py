"""Measures the library's collectives: `pg training collectives`, one process a rank.

Sizes and bandwidths are those of nccl-tests (NVIDIA, doc/PERFORMANCE.md): the size is that of the whole, algorithm
bandwidth is size / time, and bus bandwidth multiplies it by a factor of the operation and the number of ranks, so that
it can be held against the rate of a link whatever their number. On a GPU the clock is CUDA events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from proving_ground.training.config import Config
from proving_ground.training.exchange.communication import join
from proving_ground.training.timing import cuda_stamp, read_cuda

if TYPE_CHECKING:
    from proving_ground.training.events import EventWriter, NoEvents
    from proving_ground.training.exchange.communication import World
    from proving_ground.training.measuring.programs import Collectives

Call = Callable[[], object]

BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda _ranks: 1.0,
}
"""Bus bandwidth of an operation on so many ranks = algorithm bandwidth × this."""

SMALL_BYTES = 256 * 1024
SMALL_CALLS = 10
"""Short operations are timed so many at a time: the clock and the first of them would weigh too much."""


def run(settings: Collectives, events: EventWriter | NoEvents, tell: Callable[[str], None]) -> None:
    """Time every operation at every size, round after round, and tell the events.

    Raises:
        ConfigError: the ranks' environment or the device is wrong.
        RuntimeError: a collective failed.
    """
    config = Config(device=settings.device, backend=settings.backend, timeout_s=settings.timeout_s)
    with join(config) as world:
        events.emit("ready", device=str(world.device), backend=world.backend)
        for number in range(1, settings.rounds + 1):
            for op in settings.ops:
                for size in settings.sizes:
                    fields = timed(op, size, world)
                    events.emit("collective", step=number, **fields)
                    if world.rank == 0 and number == settings.rounds:
                        tell(line(fields))
            events.emit("step", step=number, samples=1)
        events.emit("end", step=settings.rounds, reason="done")


def timed(op: str, size: int, world: World) -> dict[str, object]:
    """One measurement: `op`, `bytes` of the whole, `ranks`, `calls`; `seconds` and bandwidths (B/s) of one call.

    `seconds` are those of the rank that took longest (the root of a broadcast is done before the others have it),
    `own_s` this rank's.
    """
    call, whole = prepare(op, size, world)
    calls = SMALL_CALLS if size <= SMALL_BYTES else 1
    dist.barrier()
    own_s = clock(call, calls, world.device) / calls
    seconds = longest(own_s, world)
    return {
        "op": op, "bytes": whole, "ranks": world.size, "calls": calls, "seconds": seconds, "own_s": own_s,
        "algbw": whole / seconds, "busbw": whole / seconds * BUS_FACTOR[op](world.size),
    }  # fmt: skip


def longest(seconds: float, world: World) -> float:
    """The largest of all ranks' numbers."""
    value = torch.tensor([seconds], dtype=torch.float64, device=world.device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def prepare(op: str, size: int, world: World) -> tuple[Call, int]:
    """The call, its tensors ready, and the bytes of the whole: `size`, rounded to floats of equal parts for all."""
    values = max(1, size // 4 // world.size) * world.size
    whole = torch.ones(values, device=world.device)
    part = torch.ones(values // world.size, device=world.device)
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_single(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_single(part, whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
    }
    return calls[op], whole.nbytes


def clock(call: Call, calls: int, device: torch.device) -> float:
    """Seconds that so many calls take, one after the other, on the device's own clock."""
    begin = time.monotonic()
    first = cuda_stamp() if device.type == "cuda" else None
    for _ in range(calls):
        call()
    if first is None:
        return time.monotonic() - begin
    opened, closed = read_cuda(begin, [first, cuda_stamp()])
    return closed - opened


def line(fields: dict[str, object]) -> str:
    """A measurement for people; rates in Gb/s."""
    gigabits = {name: float(str(fields[name])) * 8e-9 for name in ("algbw", "busbw")}
    return (
        f"{fields['op']:<15}{fields['bytes']:>12} B {float(str(fields['seconds'])) * 1e3:>10.3f} ms"
        f"  algorithm {gigabits['algbw']:.3f}  bus {gigabits['busbw']:.3f} Gb/s"
    )
