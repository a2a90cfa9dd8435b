"""The training loop, top to bottom. Called by `pg training run` and by `training.train()`.

Every rank runs this same file. The global batch of a step is a pure function of (seed, step); a rank learns from its
part of it, and gradients are summed over the ranks while backward still runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from proving_ground.training.checkpoints.saving import Saver, claim, resume, saver_of
from proving_ground.training.config import EVERY_STEP
from proving_ground.training.data import order
from proving_ground.training.data.ahead import Ahead, read_for
from proving_ground.training.device.fit import fitted
from proving_ground.training.device.heap import give_back_freed_memory, keep_freed_memory
from proving_ground.training.device.precision import Precision, repeatable
from proving_ground.training.device.recompute import recompute
from proving_ground.training.events import NoEvents
from proving_ground.training.exchange import communication, exact, local
from proving_ground.training.exchange.communication import Bare, Exchange, World, identity, join, pick_device
from proving_ground.training.exchange.exact import ExactExchange
from proving_ground.training.exchange.local import LocalExchange, LocalUpdates
from proving_ground.training.exchange.patience import Patience
from proving_ground.training.exchange.updates import EveryStep
from proving_ground.training.judging.fingerprint import fingerprint
from proving_ground.training.lifetime import process_start, stop_on_sigterm
from proving_ground.training.models.task import task_of
from proving_ground.training.phases import Phases
from proving_ground.training.recovery.fixed import Fixed
from proving_ground.training.recovery.live import Live
from proving_ground.training.state import whole
from proving_ground.training.timing import NoWatch, Watch

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from torch import nn

    from proving_ground.training.config import Config
    from proving_ground.training.events import EventWriter
    from proving_ground.training.models.task import Metric, Task
    from proving_ground.training.recovery.members import Place

Model = DistributedDataParallel | Bare
Gradients = Exchange | ExactExchange
EVAL_BATCH = 256


@dataclass(frozen=True)
class Result:
    """How a run ended: steps done in all, why (`done` or `stopped`), the last evaluation, the weights' hash."""

    step: int
    reason: str
    metrics: dict[str, float]
    parameters_sha256: str


@dataclass
class Job:
    """Everything one rank holds while it trains; `step` counts finished optimizer steps."""

    config: Config
    world: World
    task: Task
    model: Model
    optimizer: torch.optim.Optimizer
    precision: Precision
    exchange: Gradients
    watch: Watch
    events: EventWriter | NoEvents
    tell: Callable[[str], None]
    steps: int
    phases: Phases
    patience: Patience
    saver: Saver
    ahead: Ahead
    updates: EveryStep | LocalUpdates
    generation: int = 0  # of the job: one higher each time its ranks have met
    membership: Fixed | Live = field(default_factory=Fixed)
    step: int = 0
    last: dict[str, Any] = field(default_factory=dict)  # what was told about the last step
    best: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)  # operations of a sample, where they are counted

    @property
    def carry(self) -> bool:
        """Whether an epoch's last batch is filled up from the next."""
        return self.config.last_batch == "carry"

    @property
    def epoch(self) -> int:
        """The epoch of the coming step."""
        return order.epoch_of(self.step, self.task.rows, self.config.global_batch, carry=self.carry)

    def due(self, every: int) -> bool:
        """Whether something that happens every so many steps happens after this one."""
        return every > 0 and self.step % every == 0


def train(
    config: Config,
    events: EventWriter | NoEvents | None = None,
    tell: Callable[[str], None] = print,
    place: Place | None = None,
) -> Result:
    """Train as configured; `tell` gets a line for people now and then, on rank 0. With a place the job is live.

    1. meet the other ranks  2. open the data, build the model  3. go on from a checkpoint, if there is one
    4. step by step: learn, record, evaluate, save  5. save, evaluate, leave

    Raises:
        ConfigError, DataError, ProfileError: the caller's mistake.
        CheckpointError, RuntimeError: a checkpoint or a collective failed.
    """
    events = events or NoEvents()
    rank, size = (-1, 0) if place else identity()
    begin(config, events, rank, size)
    with repeatable(config):
        if config.fit_memory:
            config = fitting(config, max(size, 1), events, tell)
        with join(config) as world, stop_on_sigterm() as stop:
            # In a function of its own, so that DDP is gone before the process group is: DDP's destructor holds the GIL,
            # and if it is the last to let go of the group, it waits for a thread of Gloo's that waits for the GIL.
            return learn_all(prepare(config, world, events, tell if rank <= 0 else silent, place), stop, place)


def begin(config: Config, events: EventWriter | NoEvents, rank: int, size: int) -> None:
    """A process' first word, its threads and its heap."""
    local = {"local_rank": int(slot)} if (slot := os.environ.get("LOCAL_RANK", "")).isdecimal() else {}
    events.emit(
        "start", rank=rank, world_size=size, pid=os.getpid(), wall_s=time.time(), process_t=process_start(), **local
    )
    torch.set_num_threads(config.threads)
    (keep_freed_memory if config.parallel == "ddp" else give_back_freed_memory)()  # of a model that is cut little stays


def learn_all(job: Job, stop: threading.Event, place: Place | None) -> Result:
    """All steps of the training, among ranks that have met."""
    events = job.events
    if place:
        job.membership = Live(job, place, stop, lambda: ready(job))  # it meets and resumes at its first step
    else:
        resume(job)
        ready(job)
        if job.step >= job.steps:  # whoever saved the last step may not have lived to judge it
            evaluate(job)
    progress = Progress(job)
    reason = "done"
    with job.saver, job.ahead, job.membership:  # left once the last checkpoint is durable
        while job.step < job.steps and reason == "done":
            reason = "stopped" if step(job, asked_to_stop=stop.is_set()) else "done"
            progress.show()
            if job.due(job.config.eval_every) or job.step == job.steps:
                evaluate(job)
    if reason == "stopped" and not place:
        wait_for_last_checkpoint(job)
    result = Result(job.step, reason, job.metrics, parameters_sha256(job))
    if job.config.reduction == "exact":
        job.tell(f"step {job.step}: parameters sha256 {result.parameters_sha256}")
    events.emit("end", step=job.step, reason=reason, parameters_sha256=result.parameters_sha256)
    return result


def wait_for_last_checkpoint(job: Job) -> None:
    """Leave no earlier than rank 0, which has its checkpoint on disk by now.

    Else the launcher of a node that leaves is gone already, and another one ends rank 0 in the middle of its save: the
    membership has changed.
    """
    with contextlib.suppress(RuntimeError):  # rank 0 takes longer than ranks wait for each other, or is gone
        job.world.from_rank(None)


def step(job: Job, *, asked_to_stop: bool) -> bool:
    """One step and what is told about it; whether some rank was asked to stop."""
    job.watch.begin()
    made = job.membership.step(partial(learn, job), wish=asked_to_stop)
    if made is None:  # the peers, or a checkpoint, are at the last step
        return False
    fields, stopped = made
    job.step, job.last = job.step + 1, fields
    job.phases.reached("before_checkpoint", job.step)
    with job.watch.part("checkpoint"):
        job.saver.save(job, stopped=stopped)
    job.events.emit("step", step=job.step, **fields, **job.watch.finish(), wall_s=time.time())
    job.patience.step_done()
    if job.due(job.config.fingerprint_every):
        job.events.emit("fingerprint", **fingerprint(job))
    return stopped


def prepare(
    config: Config,
    world: World,
    events: EventWriter | NoEvents,
    tell: Callable[[str], None],
    place: Place | None = None,
) -> Job:
    """Open the data and build model and optimizer; every rank starts from the same weights."""
    task = task_of(config.model)(config)
    torch.manual_seed(config.seed)  # the same weights everywhere
    module = built(task, config, world.device)
    watch = NoWatch() if isinstance(events, NoEvents) else Watch(world.device)
    model, exchange = exchanging(config, task)(module, config, world)
    precision = Precision(config, world.device)
    if isinstance(exchange, ExactExchange):
        exchange.scale = precision.scale
    warm_up(task, model, exchange, world, precision)
    generation = 0 if place else world.from_rank(claim(config) if world.rank == 0 else None)
    random.seed(config.seed + world.rank)
    np.random.seed(config.seed + world.rank)  # noqa: NPY002 - from here on ranks draw their own random numbers
    torch.manual_seed(config.seed + world.rank)
    steps = config.steps or config.epochs * order.steps_in_epoch(task.rows, config.global_batch)
    steps += -steps % config.round_steps  # the last round is whole
    phases, optimizer = Phases(world.rank, events), task.optimizer(module)
    job = Job(
        config, world, task, model, optimizer, precision, exchange, watch, events, tell, steps, phases,
        Patience(config.timeout_s, config.round_steps, exchange.groups),
        saver_of(config, events, generation, phases, world),
        Ahead(config, task, world.device), updating(config, module, optimizer, exchange, watch), generation,
    )  # fmt: skip
    if config.count_flops:
        from proving_ground.training.device import flops  # noqa: PLC0415 - only where it is asked for

        job.work = flops.told(config, task, world.device)
    exchange.before_send = lambda: phases.reached("allreduce", job.step + 1)
    return job


def fitting(config: Config, size: int, events: EventWriter | NoEvents, tell: Callable[[str], None]) -> Config:
    """The configuration that memory suffices for; in a live job a rank may be left to make the whole step alone."""
    samples, device = -(-config.global_batch // size), pick_device(config.device)
    task = task_of(config.model)(config)

    def told(rung: str, micro_batch: int) -> None:
        how = f"{micro_batch} samples at once" + (", activations computed again" if rung != "micro_batch" else "")
        events.emit("memory", rung=rung, micro_batch=micro_batch, samples=samples)
        events.emit("error", message=f"memory does not suffice: {how}", kind="OutOfMemoryError", fatal=False)
        tell(f"memory does not suffice for {samples} samples at once: {how}")

    return fitted(config, task, lambda it: built(task, it, device), samples, device, told)


def built(task: Task, config: Config, device: torch.device) -> nn.Module:
    """The model on its device, as the configuration wants it computed."""
    module = task.model()
    if config.parallel == "ddp":  # else a rank's part alone goes there
        module.to(device)
    if config.activation_checkpointing:
        recompute(task, module)
    if config.compile:
        module.compile()
    return module


def exchanging(config: Config, task: Task) -> Callable[[nn.Module, Config, World], tuple[Model, Gradients]]:
    """How a configuration's ranks exchange what they learn."""
    if config.parallel == "fsdp":
        from proving_ground.training.exchange import sharded  # noqa: PLC0415 - only who cuts a model over the ranks needs it

        return partial(sharded.exchanging, task)
    if config.updates != EVERY_STEP:
        return local.exchanging
    return exact.exchanging if config.reduction == "exact" else communication.exchanging


def updating(
    config: Config, module: nn.Module, optimizer: torch.optim.Optimizer, exchange: Gradients, watch: Watch | NoWatch
) -> EveryStep | LocalUpdates:
    """How what the ranks learn becomes one model: at every step, or by an average now and then."""
    if isinstance(exchange, LocalExchange):
        return LocalUpdates(config, module, optimizer, exchange, watch)
    return EveryStep()


def warm_up(task: Task, model: Model, exchange: Gradients, world: World, precision: Precision) -> None:
    """Exchange gradients once, for nothing: DDP lays its buckets out anew after that, and peers are connected.

    The layout decides in which order an all-reduce adds up, so without this a training that starts again in the middle
    would differ in the last bit from one that did not. Weights, statistics and random states stay as they are.
    """
    if not task.learns:
        return
    model.eval()
    batch = task.batch("train", np.zeros(1, dtype=np.int64))
    with precision.computing():
        loss = task.loss(model, batch.to(world.device)) * 0
    loss.backward()  # type: ignore[no-untyped-call]
    exchange.collect()
    exchange.bucket_bytes = []  # the first step tells them
    exchange.spent()  # what it took is no step's
    model.zero_grad()
    model.train()


def learn(job: Job, *, wish: bool) -> tuple[dict[str, Any], bool]:
    """One optimizer step on the global batch; its fields for the event, and whether some rank has a wish.

    A wish is to stop after this step; in a live job, to agree on its members.
    """
    config, world, watch = job.config, job.world, job.watch
    job.updates.begin(job.step, keep=job.membership.may_undo)
    with watch.part("data"):
        wanted, pieces = job.ahead.begin(job)
    samples = sum(len(rows) for _, rows in pieces)
    weight = job.updates.weight(samples, len(wanted))
    learned: list[int] = []
    ledger = {"generation": job.generation, "world_size": world.size, "rows": learned} if config.ledger else {}
    told = job.exchange.told(world.device, wish=wish)
    for number, (piece, rows) in enumerate(pieces, 1):
        last = number == len(pieces)
        with job.exchange.computing(job.model, job.step, piece, last=last):
            with watch.part("data"):
                batch = job.ahead.batch(number, read_for(rows, wanted))
                learned += batch.rows.tolist() if len(rows) and config.ledger else ()
            if last and config.ledger:
                job.membership.takes_part(ledger)
            job.phases.reached("forward", job.step + 1)
            with watch.part("forward"):
                with job.precision.computing():
                    loss = job.task.loss(job.model, batch) * (weight if len(rows) else 0.0)
                told.add(loss)
                if last:  # within the part: it wakes Gloo's thread, which costs a share of a core a slice of its time
                    told.start()
            job.ahead.further(job)  # a GPU is at work by now, and backward runs without Python's lock
            with watch.part("backward"):
                job.precision.scaled(loss).backward()  # type: ignore[no-untyped-call]
    with watch.part("comm"):  # what backward could not hide
        new_buckets = job.exchange.collect()
        job.membership.summed(told)
    with watch.part("optimizer"):
        made = update(job)
    value, wished = told.wait()  # with a GPU this is where it is waited for: once a step
    wished = job.updates.done(job.step + 1, world, wish=wish, told=wished)
    job.membership.learned(wished=wished)
    if not (math.isfinite(value) or made.get("skipped")):
        raise RuntimeError(f"the loss of step {job.step + 1} is {value}; a smaller lr or clip_norm may help")
    fields: dict[str, Any] = {"samples": samples, "global_samples": len(wanted), "epoch": job.epoch}
    fields |= {"bucket_bytes": job.exchange.bucket_bytes} if new_buckets else {}
    fields |= job.ahead.told()
    fields |= job.exchange.spent()
    return fields | ledger | ({"loss": value, **made} if job.task.learns else {}), wished


def update(job: Job) -> dict[str, Any]:
    """The optimizer's step with the summed gradients; what is told about it. With FP16 it may be skipped."""
    job.precision.unscale(job.optimizer)
    norm = clip(job)
    set_learning_rate(job)
    scaled = job.precision.update(job.optimizer)
    made = {"lr": job.optimizer.param_groups[0]["lr"], **scaled}  # the rate that it learned with, whoever set it
    job.optimizer.zero_grad()
    return made if norm is None or made.get("skipped") else {**made, "grad_norm": norm}


def clip(job: Job) -> float | None:
    """Limit the norm of the summed gradients, if asked; the norm before. Every rank has the same gradients."""
    if not job.config.clip_norm:
        return None
    return float(whole(torch.nn.utils.clip_grad_norm_(job.model.parameters(), job.config.clip_norm)))


def set_learning_rate(job: Job) -> float:
    """Set the optimizer to the learning rate of the coming step, a pure function of the step; return it."""
    rate = learning_rate(job.config, job.step, job.steps)
    for group in job.optimizer.param_groups:
        group["lr"] = rate
    return rate


def learning_rate(config: Config, step: int, steps: int) -> float:
    """The rate of optimizer step `step` (from 0) of `steps`: scaled by batch, warmed up linearly, then the schedule."""
    power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[config.lr_scaling]
    peak: float = config.lr * (config.global_batch / config.base_batch) ** power
    if step < config.lr_warmup_steps:
        return peak * (step + 1) / config.lr_warmup_steps
    if config.lr_schedule == "constant":
        return peak
    progress = (step - config.lr_warmup_steps) / max(1, steps - config.lr_warmup_steps)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


def evaluate(job: Job) -> None:
    """Judge the model on the test split, each rank on its part, and tell."""
    if not job.task.test_rows or job.config.eval_every < 0:
        return
    everything, (part, parts) = np.arange(job.task.test_rows), job.membership.judging(job.world)
    mine = order.share(everything, part, parts)
    begin, sums, model = time.monotonic(), None, job.model.module
    most = -(-len(everything) // parts)  # as many pieces on every rank
    model.eval()
    with torch.no_grad(), job.precision.computing():
        for rows in np.array_split(mine, -(-most // judged_at_once(job.config, job.world.size))):
            batch = job.task.batch("test", read_for(rows, everything)).to(job.world.device)
            its = job.task.sums(model, batch)
            its = its if len(rows) else torch.zeros_like(its)
            sums = its if sums is None else sums + its
    model.train()
    assert sums is not None  # noqa: S101 - array_split gives at least one piece
    first, *others = job.task.metrics(job.world.sum(sums).tolist())
    for metric in (first, *others):
        note(job, metric, time.monotonic() - begin)
    job.exchange.spent()  # what it took is no step's
    better = max if first.name == "accuracy" else min
    job.best = first.value if job.best is None else better(job.best, first.value)


def judged_at_once(config: Config, ranks: int) -> int:
    """Samples of one piece of an evaluation: no more than go through the model at once when it learns."""
    if config.parallel == "ddp":  # the same at any number of ranks, on which last bits would depend
        return min(EVAL_BATCH, config.micro_batch or EVAL_BATCH)
    return min(EVAL_BATCH, order.at_once(-(-config.global_batch // ranks), config.accumulate, config.micro_batch))


def note(job: Job, metric: Metric, seconds: float) -> None:
    """Record one metric for the events, for people and for the checkpoint."""
    job.events.emit(
        "eval", step=job.step, split="test", metric=metric.name, value=metric.value, eval_s=seconds, **metric.more
    )
    more = ", ".join(f"{name} {value}" for name, value in metric.more.items())
    job.tell(f"step {job.step}: test {metric.name} {metric.value:.6g}" + (f" ({more})" if more else ""))
    job.metrics[metric.name] = metric.value


def silent(_line: str) -> None:
    """For ranks that tell people nothing."""


def ready(job: Job) -> None:
    """Tell that the ranks have met and that this one has its state."""
    job.events.emit("ready", generation=job.generation, rank=job.world.rank, world_size=job.world.size, **about(job))


def about(job: Job) -> dict[str, Any]:
    """What the `ready` event says about this rank's part of the job."""
    parameters = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
    return {
        "device": str(job.world.device),
        "backend": job.world.backend,
        "threads": torch.get_num_threads(),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "gradient_bytes": sum(parameter.nbytes for parameter in parameters),
        "steps": job.steps,
        "rows": job.task.rows,
        "micro_batch": job.config.micro_batch,
        "activation_checkpointing": job.config.activation_checkpointing,
        **job.work,
    } | ({"rate": rate_rule(job)} if job.task.learns else {})


def rate_rule(job: Job) -> dict[str, Any]:
    """What `learning_rate` follows from, so that whoever judges can work it out again."""
    config = job.config
    return {
        "lr": config.lr, "base_batch": config.base_batch, "scaling": config.lr_scaling,
        "warmup_steps": config.lr_warmup_steps, "schedule": config.lr_schedule, "steps": job.steps,
        "global_batch": config.global_batch,
    }  # fmt: skip


def parameters_sha256(job: Job) -> str:
    """The hash of all weights in their order, by which runs and ranks are compared; empty where nothing learns."""
    digest = hashlib.sha256()
    for tensor in job.model.module.state_dict().values() if job.task.learns else ():
        digest.update(whole(tensor).cpu().numpy().tobytes())
    return digest.hexdigest() if job.task.learns else ""


class Progress:
    """A line for people about once a second."""

    def __init__(self, job: Job) -> None:
        self._job, self._since, self._samples = job, time.monotonic(), 0
        job.tell(
            f"{job.config.model}: {job.steps} steps, {job.world.size} ranks, {job.world.device}, {job.world.backend}"
        )

    def show(self) -> None:
        """Count one step; say where training is if a second has passed since the last line."""
        fields = self._job.last
        self._samples += fields.get("global_samples", 0)
        seconds = time.monotonic() - self._since
        if seconds >= 1:
            rate, job = self._samples / seconds, self._job
            loss = f"loss {fields['loss']:.4f}  " if "loss" in fields else ""
            job.tell(f"step {job.step}/{job.steps}  {loss}{rate:.1f} samples/s")
            self._since, self._samples = time.monotonic(), 0
