"""Training made wrong on purpose, in a rank's own process: through `ranks.start`."""

from __future__ import annotations

import os
import signal
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

LATE_STEP, LATE_S = 30, 0.55
POISON = ("nan", "inf", "1e30")
"""What a gradient is multiplied by."""


def float_sums() -> None:
    """Gradients of shards and ranks are added as floats."""
    from proving_ground.training.exchange import exact  # noqa: PLC0415 - in the rank's process

    def add(values: Tensor, sums: Tensor, most: float) -> None:
        del most
        sums[:-1] += values * exact.SCALE

    def floating(bucket: Any, *arguments: Any) -> None:
        made(bucket, *arguments)
        bucket.sums = bucket.sums.float()

    made: Callable[..., None] = exact.Bucket.__init__
    exact.Bucket.__init__ = floating  # type: ignore[method-assign, assignment]
    exact.add = add
    exact.ExactTold.add = lambda *_: None  # type: ignore[method-assign]


def float_shards() -> None:
    """The shards of a rank are added as floats, and only their sum is cast."""
    from proving_ground.training.exchange.exact import ExactExchange  # noqa: PLC0415 - in the rank's process

    take = ExactExchange._take

    def last_only(self: ExactExchange, bucket: Any) -> None:
        bucket.waiting = len(bucket.parameters)
        if self._last:
            take(self, bucket)

    ExactExchange._take = last_only  # type: ignore[method-assign]


def dropout_by_rank() -> None:
    """Random numbers follow from the rank."""
    from proving_ground.training.exchange import exact  # noqa: PLC0415 - in the rank's process

    seed_all, rank = exact.seed_all, int(os.environ["RANK"])
    exact.seed_all = lambda *numbers: seed_all(*numbers[:2], rank)


def dropout_runs_on() -> None:
    """Random numbers go on from shard to shard."""
    from proving_ground.training.exchange import exact  # noqa: PLC0415 - in the rank's process

    exact.seed_all = lambda *_: None


def scale_of_its_own() -> None:
    """One rank takes another scale than the others."""
    from proving_ground.training.exchange import exact  # noqa: PLC0415 - in the rank's process

    exact.SCALE *= 2 ** (int(os.environ["RANK"]) == 1)


def scale_by_world() -> None:
    """The scale follows from the number of ranks: agreed, but rounding differs between sizes."""
    from proving_ground.training.exchange import exact  # noqa: PLC0415 - in the rank's process

    exact.SCALE = 2.0**20 / int(os.environ["WORLD_SIZE"])


def poisoned(factor: str) -> None:
    """Rank 1's third step: the loss is fine, the gradient is not."""
    if os.environ["RANK"] != "1":
        return
    from proving_ground.training.models.digits import Digits  # noqa: PLC0415 - in the rank's process

    loss, calls = Digits.loss, [0]

    def bad(self: Digits, model: Any, batch: Any) -> Tensor:
        value = loss(self, model, batch)
        calls[0] += 1
        if calls[0] == 1 + 2 * 3 + 1:  # the warm-up, two steps of three shards (of 8 on 3 ranks), the next
            value.register_hook(lambda gradient: gradient * float(factor))  # type: ignore[no-untyped-call]
        return value

    Digits.loss = bad  # type: ignore[method-assign, assignment]


def after_resuming(spoil: Callable[[Any], None]) -> None:
    """Something is wrong once a rank has gone on from a checkpoint."""
    from proving_ground.training.checkpoints import saving  # noqa: PLC0415 - in the rank's process

    restore = saving.restore

    def wrongly(job: Any, parts: Any) -> None:
        restore(job, parts)
        spoil(job)

    saving.restore = wrongly


def stale_rate(_job: Any) -> None:
    """The learning rate is that of the step before."""
    from proving_ground.training import loop  # noqa: PLC0415 - in the rank's process

    rate = loop.learning_rate
    loop.learning_rate = lambda config, step, steps: rate(config, step - 1, steps)


def data_ahead(_job: Any) -> None:
    """Data is that of a later step than the weights."""
    from proving_ground.training.data import order  # noqa: PLC0415 - in the rank's process

    rows = order.global_batch_rows
    order.global_batch_rows = lambda count, batch, seed, step, **more: rows(count, batch, seed, step + 1, **more)


def lost_samples(job: Any) -> None:
    """The last shard belonged to a rank that is gone, and nobody takes it over."""
    cut = job.exchange.cut
    job.exchange.cut = lambda batch, rank, size: cut(batch, rank, size)[: -1 if rank == size - 1 else None]


def optimizer_lost(job: Any) -> None:
    """The optimizer's state is not restored."""
    job.optimizer.state.clear()


def scale_not_restored(job: Any) -> None:
    """The loss scale begins anew."""
    job.precision = type(job.precision)(job.config, job.world.device)


def part_not_restored(job: Any) -> None:
    """Rank 1's rows of one parameter stay what they were before."""
    if os.environ["RANK"] == "1":
        next(job.model.parameters()).data.to_local().fill_(0.01)


DEFECTS: dict[str, Callable[[Any], None]] = {
    one.__name__: one
    for one in (stale_rate, data_ahead, lost_samples, optimizer_lost, scale_not_restored, part_not_restored)
}


def skips_alone() -> None:
    """Rank 1 takes no notice of an overflow."""
    from proving_ground.training.device.precision import Precision  # noqa: PLC0415 - in the rank's process

    unscale = Precision.unscale

    def deaf(self: Precision, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.nan_to_num_(1.0, 1.0, -1.0)
        unscale(self, optimizer)

    if os.environ["RANK"] == "1":
        Precision.unscale = deaf  # type: ignore[method-assign]


def clips_first() -> None:
    """Gradients are clipped as they are scaled; the optimizer's step unscales what is left."""
    from proving_ground.training.device.precision import Precision  # noqa: PLC0415 - in the rank's process

    Precision.unscale = lambda *_: None  # type: ignore[method-assign]


def always_overflows() -> None:
    """No scale is small enough for rank 0."""
    from proving_ground.training.device.precision import Precision  # noqa: PLC0415 - in the rank's process

    scaled = Precision.scaled
    if os.environ["RANK"] == "0":
        Precision.scaled = lambda self, loss: scaled(self, loss) * float("inf")  # type: ignore[method-assign]


SCALES: dict[str, Callable[[], None]] = {one.__name__: one for one in (skips_alone, clips_first, always_overflows)}


def late_once() -> None:
    """A node as on an overloaded machine: once it stands still, and its heartbeats and its question are late."""
    from proving_ground.training.recovery import members as live_members  # noqa: PLC0415 - in the rank's process

    ask, naps = live_members.Seat.ask, [f"sleep {LATE_S}; kill -CONT {os.getpid()}"]

    def late(self: live_members.Seat, step: int, failures: int) -> None:
        if step >= LATE_STEP and naps:
            subprocess.Popen(["/bin/sh", "-c", naps.pop()])
            os.kill(os.getpid(), signal.SIGSTOP)
        ask(self, step, failures)

    live_members.Seat.ask = late  # type: ignore[method-assign]


def merciless() -> None:
    """A node that goes on without whom the coordinator misses."""
    from proving_ground.training.recovery import members as live_members  # noqa: PLC0415 - in the rank's process

    live_members.PARDON_S = 0.0


def credulous() -> None:
    """A node that takes everybody whom the coordinator names for alive."""
    from proving_ground.training.recovery import members as live_members  # noqa: PLC0415 - in the rank's process

    vars(live_members)["knocks"] = lambda places: ["open"] * len(places)


def gradients_halved() -> None:
    """Every sum of gradients is half of what it should be."""
    from proving_ground.training.exchange.communication import Exchange  # noqa: PLC0415 - in the rank's process

    collect = Exchange.collect

    def half(self: Exchange) -> bool:
        sums = [gradients for _, _, gradients in self._flying]
        changed = collect(self)
        for gradients in sums:
            gradients.div_(2)
        return changed

    Exchange.collect = half  # type: ignore[method-assign]


def labels_shifted() -> None:
    """Each sample is learned with the target of the next one in its batch."""
    from proving_ground.training.models.stocks import Stocks  # noqa: PLC0415 - in the rank's process
    from proving_ground.training.models.task import Batch  # noqa: PLC0415 - same

    read = Stocks.batch

    def shifted(self: Stocks, split: str, rows: Any) -> Batch:
        inputs, targets, learned = read(self, split, rows)
        return Batch(inputs, targets.roll(1, 0), learned)

    Stocks.batch = shifted  # type: ignore[method-assign]


def rate_frozen() -> None:
    """The schedule stays at its first step."""
    from proving_ground.training import loop  # noqa: PLC0415 - in the rank's process

    rate = loop.learning_rate
    loop.learning_rate = lambda config, step, steps: rate(config, 0 * step, steps)


COMMON: dict[str, Callable[[], None]] = {one.__name__: one for one in (gradients_halved, labels_shifted, rate_frozen)}
"""Defects that a job's undisturbed twin has too."""


def mean_of_ranks() -> None:
    """Gradients are averaged over the ranks, as torch does unless told, on top of the loss's own mean."""
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415 - in the rank's process

    factor = FSDPModule.set_gradient_divide_factor
    FSDPModule.set_gradient_divide_factor = lambda self, _: factor(self, float(os.environ["WORLD_SIZE"]))  # type: ignore[method-assign, assignment]


def clips_its_part() -> None:
    """Each rank limits the norm of its own part of the gradients."""
    from proving_ground.training import loop  # noqa: PLC0415 - in the rank's process

    norm = vars(loop)["torch"].nn.utils.clip_grad_norm_

    def own(parameters: Any, most: float) -> Any:
        found = [it.to_local() for it in parameters]
        for mine, it in zip(found, parameters, strict=False):
            mine.grad = it.grad.to_local()
        return norm(found, most)

    loop.clip = lambda job: float(own(list(job.model.parameters()), job.config.clip_norm))


def first_block_alone() -> None:
    """The gradients of all blocks but the first stay a rank's own."""
    from proving_ground.training.exchange import sharded  # noqa: PLC0415 - in the rank's process

    made, done = sharded.prepare, list[Any]()

    def prepare(part: Any, exchange: Any) -> None:
        made(part, exchange)
        done.append(part)
        if len(done) == 2:
            size = int(os.environ["WORLD_SIZE"])
            part.set_custom_reduce_scatter(own_part(size, int(os.environ["RANK"])))

    sharded.prepare = prepare


def replicas_apart() -> None:
    """Gradients are summed within a replica, and no further."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives  # noqa: PLC0415 - in the rank's process

    own = vars(_fsdp_collectives)
    own["dist"] = SimpleNamespace(**vars(own["dist"]) | {"all_reduce": lambda *_, **__: None})


def judges_alone() -> None:
    """What a rank found of its part of the test set is not added to the others'."""
    from proving_ground.training.exchange.communication import World  # noqa: PLC0415 - in the rank's process

    World.sum = lambda self, values: values + 0 * self.rank  # type: ignore[method-assign]


class own_part:  # noqa: N801 - stands where a function does
    """In place of a sum over ranks: this rank's rows of its own gradients."""

    def __init__(self, size: int, rank: int) -> None:
        self._size, self._rank = size, rank

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Tensor:
        """Memory."""
        import torch  # noqa: PLC0415 - in the rank's process

        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **_: Any) -> None:
        """No exchange."""
        output_tensor.copy_(input_tensor.chunk(self._size)[self._rank])


def full_on_rank_1() -> None:
    """The disk takes nothing from one rank."""
    from errno import ENOSPC  # noqa: PLC0415 - in the rank's process

    from proving_ground.training.checkpoints import checkpoint  # noqa: PLC0415 - same

    def full(*_: Any) -> Any:
        raise OSError(ENOSPC, "No space left on device")

    if os.environ["RANK"] == "1":
        checkpoint.write_parts = full  # type: ignore[assignment]


def limited(mebibytes: int) -> None:
    """Not wrong, but in a process that the kernel gives so much memory for data, and no more."""
    import resource  # noqa: PLC0415 - in the rank's process

    from proving_ground.training.device.resident import STATUS, field  # noqa: PLC0415 - same

    wanted = (field("VmData", STATUS) or 0) + mebibytes * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))


def watched() -> None:
    """Not wrong, but its memory is written down: before the model is there, and at its peak while it trains.

    A small model comes first, so that what a first step imports is there.
    """
    import gc  # noqa: PLC0415 - in the rank's process
    from dataclasses import replace  # noqa: PLC0415 - same
    from pathlib import Path  # noqa: PLC0415 - in the rank's process

    from proving_ground.training import loop  # noqa: PLC0415 - same
    from proving_ground.training.device.resident import STATUS, field, peak_bytes  # noqa: PLC0415 - same
    from proving_ground.training.events import EVENTS_VARIABLE  # noqa: PLC0415 - same

    prepare, learn_all, seen = loop.prepare, loop.learn_all, list[int]()

    def first(config: Any, *given: Any) -> Any:
        loop.learn(prepare(replace(config, model="tests.training.own_blocks:Blocks"), *given), wish=False)
        gc.collect()
        seen.append(field("VmRSS", STATUS) or 0)
        return prepare(config, *given)

    def then(*given: Any) -> Any:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
        result = learn_all(*given)
        Path(os.environ[EVENTS_VARIABLE]).with_suffix(".memory").write_text(f"{seen[0]} {peak_bytes()}")
        return result

    loop.prepare, loop.learn_all = first, then  # type: ignore[assignment]


SHARDED: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (mean_of_ranks, clips_its_part, first_block_alone, replicas_apart, judges_alone, full_on_rank_1, watched)
}


MUTANTS: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (float_sums, float_shards, dropout_by_rank, dropout_runs_on, scale_of_its_own, scale_by_world)
}
NODES: dict[str, Callable[[], None]] = {one.__name__: one for one in (late_once, merciless, credulous)}


def reads_ahead_wrongly(name: str) -> None:
    """A loader's defect of `tests.validations.defects`, from the first step on."""
    from tests.validations import defects  # noqa: PLC0415 - in the rank's process

    defects.SEEN["step"] = 0
    defects.DEFECTS[name].put()


def become(name: str) -> None:
    """Make this process wrong."""
    if name.startswith("ahead_"):
        reads_ahead_wrongly(name)
    if known := (MUTANTS | NODES | COMMON | SCALES | SHARDED).get(name):
        known()
    elif name in DEFECTS:
        after_resuming(DEFECTS[name])
    elif name.startswith("limited:"):
        limited(int(name.partition(":")[2]))
    elif name in POISON:
        poisoned(name)
