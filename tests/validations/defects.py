"""Defects of trainers, at least half of them seen in other trainers' threads. Run by `tests.validations.trainers`.

`--entry tests.validations.defective:NAME` of `training launch` and `training live` puts one into a process and then
runs the trainer. Most begin to act when the process goes on after a failure: the undisturbed twin has none of them.
Those that are `common` act from the first step, in the twin as well. A process says once in its log that one acts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import torch

from proving_ground.training import __main__ as trainer
from proving_ground.training import loop
from proving_ground.training.checkpoints import checkpoint, saving
from proving_ground.training.data import ahead, order
from proving_ground.training.exchange import communication, exact, local
from proving_ground.training.loop import Job
from proving_ground.training.models import digits
from proving_ground.training.recovery import live

ACTED = "this trainer's defect acts"
"""The line in a process' log, by which `trainers` knows that the defect did something."""
FULL = 3  # nodes of the shapes whose world changes its size

WHOLE, SHRINKING, EXACT, FLOAT, LOCAL = "whole", "shrinking", "exact", "float", "local"
"""Job shapes (`trainers.SHAPES`): a restart at full size, one that shrinks, live with exact and float sums, DiLoCo."""
EVERY = (WHOLE, SHRINKING, EXACT, FLOAT, LOCAL)
RESTART = (WHOLE, SHRINKING, LOCAL)
LIVE = (EXACT, FLOAT)
RESIZED = (SHRINKING, EXACT, FLOAT)
DROPOUT = (WHOLE, LOCAL)  # where a rank's random state lives longer than a step
BATCH_NORM = {"norm": "batch"}
AHEAD = {"prefetch": 2}

OWN = "own"


@dataclass(frozen=True)
class Defect:
    """What it is, the thread where it was seen (or `own`), the shapes that can have it, and how it is put in."""

    what: str
    seen: str
    shapes: tuple[str, ...]
    put: Callable[[], None]
    common: bool = False  # in the undisturbed twin as well
    training: Mapping[str, Any] = field(default_factory=dict)  # keys of the trainer's that it needs


SEEN: dict[str, Any] = {}
"""What this process knows: `step` and `acted` once it has gone on after a failure, and what a defect keeps."""


def run(name: str, words: list[str]) -> int:
    """Put a defect in and train; the exit status."""
    watch()
    DEFECTS[name].put()
    return trainer.main(words)


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Put a function around one of the trainer's; it is given what was there before."""
    before = getattr(owner, name)

    def changed(*given: Any, **named: Any) -> Any:
        return around(before, *given, **named)

    setattr(owner, name, changed)


def watch() -> None:
    """Note when this process goes on after a failure: from a checkpoint, or among other members."""

    def restored(before: Any, job: Job, parts: Any) -> None:
        before(job, parts)
        SEEN["step"] = job.step

    def met(before: Any, self: Any, newest: Any) -> None:
        before(self, newest)
        if self._job.step:
            SEEN.setdefault("step", self._job.step)

    wrap(saving, "restore", restored)
    wrap(live.Live, "_bring_up_to_date", met)


def recovered() -> bool:
    """Whether this process has gone on after a failure."""
    return "step" in SEEN


def acted() -> None:
    """Say once that the defect does something."""
    if not SEEN.setdefault("acted", False):
        SEEN["acted"] = True
        print(ACTED, flush=True)


def once() -> bool:
    """Whether it is the first time since the recovery."""
    return recovered() and not SEEN.get("acted")


# --- where defects are put in -------------------------------------------------------------------------------------


def on_rate(rate: Callable[[Job, float], float], *, always: bool = False) -> None:
    """The optimizer gets another learning rate than the one that is meant, which is what the loop is told."""

    def set_rate(before: Any, job: Job) -> float:
        meant = float(before(job))
        if (always or recovered()) and (other := rate(job, meant)) != meant:
            acted()
            for group in job.optimizer.param_groups:
                group["lr"] = other
        return meant

    wrap(loop, "set_learning_rate", set_rate)


def on_update(change: Callable[[Job], object], when: Callable[[], bool] = recovered) -> None:
    """Right before the optimizer's step."""

    def set_rate(before: Any, job: Job) -> float:
        meant = float(before(job))
        if when():
            change(job)
            acted()
        return meant

    wrap(loop, "set_learning_rate", set_rate)


def on_gradients(change: Callable[[Job], object], when: Callable[[], bool] = recovered) -> None:
    """When the gradients are summed, before they are clipped."""

    def clip(before: Any, job: Job) -> Any:
        if when():
            change(job)
            acted()
        return before(job)

    wrap(loop, "clip", clip)


def on_load(change: Callable[[Job], object]) -> None:
    """When a rank has its state: from a checkpoint, or as a replacement from a survivor."""

    def load(before: Any, job: Job, parts: Any) -> None:
        before(job, parts)
        change(job)
        acted()

    wrap(saving, "restore", load)
    wrap(live, "put", load)


def on_order(other_step: Callable[[int, int], int], *, always: bool = False) -> None:
    """The samples of another step: `other_step` is given the step and the steps of an epoch."""

    def rows(before: Any, count: int, batch: int, seed: int, step: int, *, carry: bool = False) -> Any:
        if (always or recovered()) and (other := other_step(step, order.steps_in_epoch(count, batch))) != step:
            acted()
            step = other
        return before(count, batch, seed, step, carry=carry)

    wrap(order, "global_batch_rows", rows)


def on_share(change: Callable[[Any, int, int], Any]) -> None:
    """The part of a batch that one rank (in exact sums: one shard) gets: `change` has the batch, who, of how many."""

    def share(before: Any, batch: Any, rank: int, size: int) -> Any:
        if not recovered():
            return before(batch, rank, size)
        acted()
        return change(batch, rank, size)

    SEEN["share"] = order.share
    wrap(order, "share", share)


def on_loader(change: Callable[[Any, Any], Any]) -> None:
    """The loader reads other samples than it was asked for."""

    def batch(before: Any, task: Any, split: str, rows: Any) -> Any:
        if split == "train" and recovered():
            acted()
            rows = change(task, rows)
        return before(task, split, rows)

    wrap(digits.Digits, "batch", batch)


def on_ahead(pick: Callable[[Any, Job, Any], Any]) -> None:
    """What was read ahead is served for other samples than it was read for.

    `pick` is given the loader, the job and the step's own reading; it is called at every step, recovered or not.
    """

    def begin(before: Any, self: Any, job: Job) -> Any:
        SEEN["kept"] = dict(self._readings)
        found = before(self, job)
        served = pick(self, job, self._now)
        SEEN["served"] = None if served is self._now else served
        return found

    def batch(before: Any, self: Any, number: int, rows: Any) -> Any:
        served = SEEN["served"]
        there = served is not None and served.reads.done() and not served.reads.cancelled()
        if not recovered() or not there or number > len(served.pieces):
            return before(self, number, rows)
        acted()
        return served.reads.result()[number - 1].batch

    wrap(ahead.Ahead, "begin", begin)
    wrap(ahead.Ahead, "batch", batch)


def scale(job: Job, factor: float) -> None:
    """Multiply all gradients."""
    for parameter in job.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def alike(job: Job) -> tuple[Any, Any]:
    """Two parameters of the same shape, which a mistake can take for each other."""
    known: dict[Any, Any] = {}
    for parameter in job.model.parameters():
        if parameter.dim() > 1 and parameter.shape in known:
            return known[parameter.shape], parameter
        known[parameter.shape] = parameter
    raise ValueError("no two parameters of the same shape")


def first_layer(job: Job) -> list[Any]:
    """The parameters of the first layer."""
    return list(job.model.parameters())[:2]


# --- learning rate ------------------------------------------------------------------------------------------------


def schedule_begins_anew() -> None:
    on_rate(lambda job, _: loop.learning_rate(job.config, job.step - SEEN["step"], job.steps))


def schedule_counted_twice() -> None:
    on_rate(lambda job, _: loop.learning_rate(job.config, job.step + SEEN["step"], job.steps))


def schedule_lags() -> None:
    on_rate(lambda job, _: loop.learning_rate(job.config, job.step - 1, job.steps))


def schedule_of_another_length() -> None:
    on_rate(lambda job, _: loop.learning_rate(job.config, job.step, job.steps // 2))


def first_rate_is_the_base() -> None:
    on_rate(lambda job, meant: job.config.lr if once() else meant)


def joiner_keeps_its_rate() -> None:
    on_load(lambda job: SEEN.setdefault("joined", loop.learning_rate(job.config, 0, job.steps)))
    on_rate(lambda _, meant: SEEN.get("joined", meant))


def rate_follows_the_world() -> None:
    on_rate(lambda job, meant: meant * job.world.size / FULL)


def rate_frozen() -> None:
    on_rate(lambda job, _: job.config.lr, always=True)


# --- gradients and updates ----------------------------------------------------------------------------------------


def gradients_halved() -> None:
    on_gradients(lambda job: scale(job, 0.5), lambda: True)


def loss_doubled() -> None:
    on_gradients(lambda job: scale(job, 2.0), lambda: True)


def mean_of_the_old_world() -> None:
    def clip(before: Any, job: Job) -> Any:
        if recovered() and job.world.size != FULL:
            scale(job, job.world.size / FULL)
            acted()
        return before(job)

    wrap(loop, "clip", clip)


def accumulation_not_normalised() -> None:
    on_gradients(lambda job: scale(job, 4.0))


def bucket_dropped() -> None:
    on_gradients(lambda job: [parameter.grad.zero_() for parameter in first_layer(job)])


def bucket_dropped_once() -> None:
    on_gradients(lambda job: [parameter.grad.zero_() for parameter in first_layer(job)], once)


def buckets_swapped() -> None:
    def swap(job: Job) -> None:
        one, other = alike(job)
        kept = one.grad.clone()
        one.grad.copy_(other.grad)
        other.grad.copy_(kept)

    on_gradients(swap)


def gradients_not_summed() -> None:
    def send(before: Any, self: Any, gradients: Any) -> None:
        SEEN.setdefault("own", []).append((gradients, gradients.clone()))
        before(self, gradients)

    def collect(before: Any, self: Any) -> Any:
        changed = before(self)
        for gradients, own in SEEN.pop("own", []):
            if recovered():
                gradients.copy_(own)
                acted()
        return changed

    wrap(communication.Exchange, "send", send)
    wrap(communication.Exchange, "collect", collect)


def stale_gradients_kept() -> None:
    def undo(before: Any, self: Any, error: Any) -> None:
        SEEN["stale"] = [None if it.grad is None else it.grad.clone() for it in self._job.model.parameters()]
        before(self, error)

    def clip(before: Any, job: Job) -> Any:
        for parameter, stale in zip(job.model.parameters(), SEEN.pop("stale", []), strict=False):
            if stale is not None and parameter.grad is not None and recovered():
                parameter.grad.add_(stale)
                acted()
        return before(job)

    wrap(live.Live, "_undo", undo)
    wrap(loop, "clip", clip)


def aborted_step_applied() -> None:
    def undo(before: Any, self: Any, error: Any) -> None:
        if self._job.step and any(it.grad is not None for it in self._job.model.parameters()):
            self._job.optimizer.step()
            acted()
        before(self, error)

    wrap(live.Live, "_undo", undo)


def update_applied_twice() -> None:
    on_update(lambda job: job.optimizer.step(), once)


def update_skipped() -> None:
    on_update(lambda job: job.optimizer.zero_grad(), once)


def update_skipped_on_one_rank() -> None:
    on_update(lambda job: job.optimizer.zero_grad() if job.world.rank == 1 else None, once)


def clipped_by_a_rank_s_own_norm() -> None:
    def clip(job: Job) -> None:
        mine = list(job.model.parameters())[job.world.rank :: job.world.size]
        norm = float(torch.cat([it.grad.flatten() for it in mine if it.grad is not None]).norm())
        scale(job, min(1.0, job.config.clip_norm / (norm + 1e-6)))

    on_gradients(clip)


def clipping_forgotten() -> None:
    def clip(before: Any, job: Job) -> Any:
        if not recovered():
            return before(job)
        acted()
        return float(torch.cat([it.grad.flatten() for it in job.model.parameters() if it.grad is not None]).norm())

    wrap(loop, "clip", clip)


def gradients_through_fp16() -> None:
    def truncate(job: Job) -> None:
        for parameter in job.model.parameters():
            if parameter.grad is not None:
                parameter.grad.copy_(parameter.grad.half())

    on_gradients(truncate)


def layer_frozen_again() -> None:
    def freeze(job: Job) -> None:
        for parameter in first_layer(job):
            parameter.grad = None

    on_update(freeze)


# --- data ---------------------------------------------------------------------------------------------------------


def data_one_step_ahead() -> None:
    on_order(lambda step, _: step + 1)


def data_from_the_start() -> None:
    on_order(lambda step, _: step - SEEN["step"])


def epoch_skipped() -> None:
    on_order(lambda step, epoch: step + epoch)


def same_samples_always() -> None:
    on_order(lambda step, _: step % 3, always=True)


def sampler_s_epoch_not_set() -> None:
    def permute(before: Any, positions: Any, rows: int, seed: int, epoch: int) -> Any:
        if recovered() and epoch:
            acted()
            epoch = 0
        return before(positions, rows, seed, epoch)

    wrap(order, "permute", permute)


def quarter_never_read() -> None:
    def rows(before: Any, count: int, *given: Any, **named: Any) -> Any:
        acted()
        return before(count * 3 // 4, *given, **named)

    wrap(order, "global_batch_rows", rows)


def last_sample_dropped() -> None:
    on_share(lambda batch, rank, size: SEEN["share"](batch, rank, size)[: -1 if rank == 1 else None])


def padded_with_a_duplicate() -> None:
    def pad(batch: Any, rank: int, size: int) -> Any:
        mine = SEEN["share"](batch, rank, size).copy()
        mine[-1:] = mine[:1]
        return mine

    on_share(pad)


def every_rank_reads_the_same() -> None:
    on_share(lambda batch, _, size: SEEN["share"](batch, 0, size))


def shares_of_the_old_world() -> None:
    def share(before: Any, batch: Any, rank: int, size: int) -> Any:
        if recovered() and size < FULL:
            acted()
            size = FULL
        return before(batch, rank, size)

    def shards_of(before: Any, rank: int, size: int, shards: int) -> Any:
        if recovered() and size < FULL:
            acted()
            size = FULL
        return before(rank, size, shards)

    wrap(order, "share", share)
    wrap(order, "shards_of", shards_of)


def loader_one_batch_late() -> None:
    def late(_task: Any, rows: Any) -> Any:
        previous, SEEN["rows"] = SEEN.get("rows", rows), rows
        return previous if len(previous) == len(rows) else rows

    on_loader(late)


def loader_reads_the_neighbours() -> None:
    on_loader(lambda task, rows: (rows + 1) % task.rows)


def ahead_one_batch_late() -> None:
    def late(_loader: Any, _job: Job, own: Any) -> Any:
        previous, SEEN["reading"] = SEEN.get("reading"), own
        return previous

    on_ahead(late)


def ahead_skips_a_batch() -> None:
    def skip(loader: Any, job: Job, _own: Any) -> Any:
        following = loader._readings.get(job.step + 1)
        if following and recovered():
            futures.wait([following.reads])
        return following

    on_ahead(skip)


def ahead_for_another_membership() -> None:
    def stale(_loader: Any, job: Job, own: Any) -> Any:
        if SEEN.get("world") != job.world.size:
            SEEN["world"], SEEN["stale"] = job.world.size, SEEN["kept"]
        return SEEN["stale"].get(job.step, own)

    on_ahead(stale)


def labels_shifted() -> None:
    def loss(before: Any, task: Any, model: Any, batch: Any) -> Any:
        acted()
        return before(task, model, batch._replace(targets=(batch.targets + 1) % 10))

    wrap(digits.Digits, "loss", loss)


# --- random states ------------------------------------------------------------------------------------------------


def random_states_not_restored() -> None:
    wrap(checkpoint, "restore_random_state", lambda _before, _state: acted())


def random_state_of_rank_0_everywhere() -> None:
    def restore(before: Any, job: Job, parts: Any) -> None:
        first = parts["training"]["random"][0]
        same = parts["training"] | {"random": [first] * job.world.size}
        before(job, parts | {"training": same})
        acted()

    wrap(saving, "restore", restore)


def same_seed_on_all_ranks() -> None:
    on_update(lambda job: exact.seed_all(job.config.seed, job.step))


def left_in_eval_mode() -> None:
    on_update(lambda job: job.model.eval())


# --- checkpoints and states that are handed over ------------------------------------------------------------------


def optimizer_forgotten() -> None:
    def load(before: Any, job: Job, parts: Any) -> None:
        fresh = copy.deepcopy(job.optimizer.state_dict())
        before(job, parts)
        job.optimizer.load_state_dict(fresh)
        acted()

    wrap(saving, "restore", load)
    wrap(live, "put", load)


def optimizer_of_rank_0_everywhere() -> None:
    def restore(before: Any, job: Job, parts: Any) -> None:
        inner = parts["training"]["inner"]
        before(job, parts | {"training": parts["training"] | {"inner": [inner[0]] * len(inner)}})
        acted()

    wrap(saving, "restore", restore)


def moments_of_another_parameter() -> None:
    def swap(job: Job) -> None:
        one, other = alike(job)
        states = job.optimizer.state
        states[one], states[other] = states[other], states[one]

    on_load(swap)


def moments_share_memory() -> None:
    def alias(job: Job) -> None:
        one, other = alike(job)
        job.optimizer.state[other]["exp_avg"] = job.optimizer.state[one]["exp_avg"]

    on_load(alias)


def bias_correction_restarts() -> None:
    on_load(lambda job: [state["step"].zero_() for state in job.optimizer.state.values()])


def moments_through_bf16() -> None:
    def truncate(job: Job) -> None:
        for state in job.optimizer.state.values():
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())

    on_load(truncate)


def betas_of_the_default() -> None:
    on_load(lambda job: [group.update(betas=(0.9, 0.99)) for group in job.optimizer.param_groups])


def weight_decay_lost() -> None:
    on_load(lambda job: [group.update(weight_decay=0.0) for group in job.optimizer.param_groups])


def on_weights(change: Callable[[Job], object]) -> None:
    """The weights, right after a rank has got its state."""

    def changed(job: Job) -> None:
        with torch.no_grad():
            change(job)

    on_load(changed)


def weights_through_bf16() -> None:
    on_weights(lambda job: [it.copy_(it.bfloat16()) for it in job.model.parameters()])


def weights_one_percent_off() -> None:
    on_weights(lambda job: [it.mul_(0.99) for it in job.model.parameters()])


def one_weight_flipped() -> None:
    on_weights(lambda job: next(iter(job.model.parameters())).view(-1)[0].mul_(-1))


def layers_tied_on_load() -> None:
    def tie(job: Job) -> None:
        one, other = alike(job)
        other.copy_(one)

    on_weights(tie)


def keep_fresh(names: Callable[[Job], list[str]]) -> None:
    """Some of the weights stay as they were before the state was loaded."""

    def load(before: Any, job: Job, parts: Any) -> None:
        weights = job.model.module.state_dict()
        fresh = {name: weights[name].clone() for name in names(job)}
        before(job, parts)
        job.model.module.load_state_dict(job.model.module.state_dict() | fresh)
        if fresh:
            acted()

    wrap(saving, "restore", load)
    wrap(live, "put", load)


def layer_not_loaded() -> None:
    keep_fresh(lambda job: list(job.model.module.state_dict())[-2:])


def one_rank_not_loaded() -> None:
    keep_fresh(lambda job: list(job.model.module.state_dict()) if job.world.rank or job.membership.may_undo else [])


def buffers_not_restored() -> None:
    keep_fresh(lambda job: [name for name, _ in job.model.module.named_buffers()])


def weights_of_an_older_checkpoint() -> None:
    def newest(before: Any, store: Any, bad: Any) -> Any:
        found = before(store, bad)
        older = checkpoint.newest_first(store)[1:2] if found else []
        if older:
            found.parts["model"] = checkpoint.load(store, older[0]).parts["model"]
            acted()
        return found

    wrap(checkpoint, "load_newest", newest)


def checkpoint_half_overwritten() -> None:
    def take(before: Any, self: Any, state: Any, pool: Any) -> Any:
        copied = before(self, state, pool)
        now = {name: tensor.clone() for name, tensor in copied["model"].items()}
        earlier, SEEN["saved"] = SEEN.get("saved", now), now
        halves = {name: (earlier if number % 2 else now)[name] for number, name in enumerate(now)}
        acted()
        return copied | {"model": halves}

    wrap(saving.Snapshot, "take", take)


def healed_from_the_step_before() -> None:
    def keep(before: Any, job: Job) -> Any:
        SEEN["before"] = copy.deepcopy(saving.tensors(job))
        return before(job)

    def tensors(before: Any, job: Job) -> Any:
        if "before" not in SEEN:
            return before(job)
        acted()
        return SEEN["before"]

    wrap(loop, "set_learning_rate", keep)
    wrap(live, "tensors", tensors)


def step_counted_too_far() -> None:
    def restore(before: Any, job: Job, parts: Any) -> None:
        before(job, parts)
        job.step += job.config.round_steps
        acted()

    wrap(saving, "restore", restore)


def step_made_again() -> None:
    def restore(before: Any, job: Job, parts: Any) -> None:
        before(job, parts)
        job.step -= job.config.round_steps
        acted()

    wrap(saving, "restore", restore)


# --- local updates ------------------------------------------------------------------------------------------------


def outer_momentum_lost() -> None:
    def forget(job: Job) -> None:
        if job.updates.outer:
            job.updates.outer.state.clear()

    on_load(forget)


def average_of_too_many() -> None:
    def done(before: Any, self: Any, step: int, world: Any, *, wish: bool, told: bool) -> Any:
        found = before(self, step, world, wish=wish, told=told)
        if recovered() and self.at_rest(step):
            acted()
            with torch.no_grad():
                for parameter in self._module.parameters():
                    parameter.mul_(world.size / (world.size + 1))
        return found

    wrap(local.LocalUpdates, "done", done)


def one_rank_skips_the_average() -> None:
    def wait(before: Any, self: Any) -> None:
        own = [values.clone() for values in self._waiting]
        waiting = list(self._waiting)
        before(self)
        if recovered() and waiting and SEEN.get("rank") == 1:
            acted()
            for values, mine in zip(waiting, own, strict=True):
                values.copy_(mine)

    on_load(lambda job: SEEN.update(rank=job.world.rank))
    wrap(local.Mean, "wait", wait)


DEFECTS: dict[str, Defect] = {
    # learning rate
    "schedule_begins_anew": Defect(
        "the schedule counts from the recovery", "victoresque/pytorch-template#68", EVERY, schedule_begins_anew
    ),
    "schedule_counted_twice": Defect(
        "the steps before the recovery count twice in the schedule", "THUDM/slime#1546", EVERY, schedule_counted_twice
    ),
    "schedule_lags": Defect(
        "the schedule is a step late after the recovery", "Lightning-AI/pytorch-lightning#4655", EVERY, schedule_lags
    ),
    "schedule_of_another_length": Defect(
        "the schedule is built anew for another number of steps",
        "Nerogar/OneTrainer#1604", EVERY, schedule_of_another_length,
    ),
    "first_rate_is_the_base": Defect(
        "the first update after the recovery has the base rate",
        "tenstorrent/tt-metal#54320", EVERY, first_rate_is_the_base,
    ),
    "joiner_keeps_its_rate": Defect(
        "a replacement learns at the rate it was built with", "pytorch/torchtitan#4598", LIVE, joiner_keeps_its_rate
    ),
    "rate_follows_the_world": Defect(
        "the rate is scaled with the ranks that are left",
        "sql-machine-learning/elasticdl#2299", RESIZED, rate_follows_the_world,
    ),
    "rate_frozen": Defect("the rate never changes", OWN, EVERY, rate_frozen, common=True),
    # gradients and updates
    "gradients_halved": Defect(
        "gradients are divided once too often", "verl-project/verl-SpeCo#29", EVERY, gradients_halved, common=True
    ),
    "loss_doubled": Defect(
        "the loss is not divided by the accumulated pieces",
        "huggingface/transformers#35438", EVERY, loss_doubled, common=True,
    ),
    "mean_of_the_old_world": Defect(
        "in a smaller world gradients are still divided by the old one", OWN, RESIZED, mean_of_the_old_world
    ),
    "accumulation_not_normalised": Defect(
        "after the recovery gradients are summed where a mean is meant",
        "NVlabs/stylegan3#184", EVERY, accumulation_not_normalised,
    ),
    "bucket_dropped": Defect(
        "after the recovery the gradients of a bucket are lost at every step",
        "InfiniTensor/InfiniTrain#183", EVERY, bucket_dropped,
    ),
    "bucket_dropped_once": Defect(
        "the gradients of a bucket are lost in the first step after the recovery", OWN, EVERY, bucket_dropped_once
    ),
    "buckets_swapped": Defect(
        "buckets that were built anew belong to other parameters", "pytorch/pytorch#35137", EVERY, buckets_swapped
    ),
    "gradients_not_summed": Defect(
        "after the recovery every rank learns from its own gradients",
        "modelscope/FunASR#3472", (WHOLE, SHRINKING, FLOAT), gradients_not_summed,
    ),
    "stale_gradients_kept": Defect(
        "the gradients of the aborted step are added to the next",
        "sql-machine-learning/elasticdl#2426", (FLOAT,), stale_gradients_kept,
    ),
    "aborted_step_applied": Defect(
        "survivors apply the step that failed, each with what it has", OWN, (FLOAT,), aborted_step_applied
    ),
    "update_applied_twice": Defect(
        "the first update after the recovery is applied twice", "mzolfaghari/ECO-pytorch#1", EVERY, update_applied_twice
    ),
    "update_skipped": Defect(
        "the first update after the recovery is left out", "deepspeedai/DeepSpeed#8415", EVERY, update_skipped
    ),
    "update_skipped_on_one_rank": Defect(
        "one rank leaves the first update after the recovery out", OWN, EVERY, update_skipped_on_one_rank
    ),
    "clipped_by_a_rank_s_own_norm": Defect(
        "the norm that clips is of a rank's own part", "areal-project/AReaL#312", EVERY, clipped_by_a_rank_s_own_norm
    ),
    "clipping_forgotten": Defect(
        "nothing is clipped after the recovery", "deepspeedai/DeepSpeed#7220", EVERY, clipping_forgotten
    ),
    "gradients_through_fp16": Defect(
        "after the recovery gradients travel as FP16", OWN, EVERY, gradients_through_fp16
    ),
    "layer_frozen_again": Defect(
        "a layer that learned is frozen after the recovery",
        "Lightning-AI/pytorch-lightning#21901", EVERY, layer_frozen_again,
    ),
    # data
    "data_one_step_ahead": Defect(
        "the loader's state is a step newer than the weights", "pytorch/torchtitan#4686", EVERY, data_one_step_ahead
    ),
    "data_from_the_start": Defect(
        "the data begin anew with the process", "facebookresearch/detectron2#829", EVERY, data_from_the_start
    ),
    "epoch_skipped": Defect("an epoch is skipped at the recovery", "verl-project/verl#7401", EVERY, epoch_skipped),
    "same_samples_always": Defect(
        "the same few samples at every step, of the whole data set", OWN, EVERY, same_samples_always, common=True
    ),
    "sampler_s_epoch_not_set": Defect(
        "the order is that of the first epoch after the recovery",
        "huggingface/accelerate#2016", EVERY, sampler_s_epoch_not_set,
    ),
    "quarter_never_read": Defect("a quarter of the data is never read", OWN, EVERY, quarter_never_read, common=True),
    "last_sample_dropped": Defect(
        "one rank leaves out its last sample", "modelscope/ms-swift#9907", EVERY, last_sample_dropped
    ),
    "padded_with_a_duplicate": Defect(
        "a share is filled up with a sample that it has", "pytorch/pytorch#25162", EVERY, padded_with_a_duplicate
    ),
    "every_rank_reads_the_same": Defect(
        "after the recovery every rank reads the same samples",
        "webdataset/webdataset#434", EVERY, every_rank_reads_the_same,
    ),
    "shares_of_the_old_world": Defect(
        "in a smaller world the share of the lost rank is nobody's",
        "intelligent-machine-learning/dlrover#325", RESIZED, shares_of_the_old_world,
    ),
    "loader_one_batch_late": Defect(
        "the loader returns the batch before the one it was asked for",
        "apache/mxnet#19738", EVERY, loader_one_batch_late,
    ),
    "loader_reads_the_neighbours": Defect(
        "the loader reads the samples beside those it was asked for", OWN, EVERY, loader_reads_the_neighbours
    ),
    "ahead_one_batch_late": Defect(
        "what was read ahead is served a step too late", OWN, EVERY, ahead_one_batch_late, training=AHEAD
    ),
    "ahead_skips_a_batch": Defect(
        "of what was read ahead one batch is left out", OWN, EVERY, ahead_skips_a_batch, training=AHEAD
    ),
    "ahead_for_another_membership": Defect(
        "what was read ahead for the ranks of before is learned from",
        OWN, LIVE, ahead_for_another_membership, training=AHEAD,
    ),
    "labels_shifted": Defect("every label is another class", OWN, EVERY, labels_shifted, common=True),
    # random states
    "random_states_not_restored": Defect(
        "random states are not restored", "vllm-project/speculators#1027", DROPOUT, random_states_not_restored
    ),
    "random_state_of_rank_0_everywhere": Defect(
        "every rank gets rank 0's random state", "NVIDIA/Megatron-LM#6858", DROPOUT, random_state_of_rank_0_everywhere
    ),
    "same_seed_on_all_ranks": Defect(
        "after the recovery all ranks draw the same numbers",
        "huggingface/transformers#37932", DROPOUT, same_seed_on_all_ranks,
    ),
    "left_in_eval_mode": Defect(
        "after the recovery nothing is dropped out", "huggingface/lerobot#3668", DROPOUT, left_in_eval_mode
    ),
    # checkpoints and states that are handed over
    "optimizer_forgotten": Defect(
        "the optimizer's state is not restored", "thinking-machines-lab/tinker-feedback#127", EVERY, optimizer_forgotten
    ),
    "optimizer_of_rank_0_everywhere": Defect(
        "every rank gets rank 0's optimizer",
        "huggingface/transformers#23111", (LOCAL,), optimizer_of_rank_0_everywhere,
    ),
    "moments_of_another_parameter": Defect(
        "moments are restored to another parameter", "pytorch/pytorch#6031", EVERY, moments_of_another_parameter
    ),
    "moments_share_memory": Defect(
        "two parameters have one moment after the recovery", OWN, EVERY, moments_share_memory
    ),
    "bias_correction_restarts": Defect(
        "the optimizer's own count of steps begins anew", "deepspeedai/DeepSpeed#564", EVERY, bias_correction_restarts
    ),
    "moments_through_bf16": Defect(
        "second moments are kept as BF16", "TensorAuto/OpenTau#184", EVERY, moments_through_bf16
    ),
    "betas_of_the_default": Defect(
        "the optimizer goes on with other betas", "tenstorrent/tt-metal#53212", EVERY, betas_of_the_default
    ),
    "weight_decay_lost": Defect("weight decay is off after the recovery", OWN, EVERY, weight_decay_lost),
    "weights_through_bf16": Defect(
        "weights are kept as BF16", "TensorAuto/OpenTau#185", EVERY, weights_through_bf16
    ),
    "weights_one_percent_off": Defect("restored weights are 1 % off", OWN, EVERY, weights_one_percent_off),
    "one_weight_flipped": Defect("one restored weight has the wrong sign", OWN, EVERY, one_weight_flipped),
    "layers_tied_on_load": Defect(
        "one layer gets the weights of another", "pytorch/torchtitan#2402", EVERY, layers_tied_on_load
    ),
    "layer_not_loaded": Defect(
        "a layer that does not fit is passed over in silence", "pytorch/pytorch#141256", EVERY, layer_not_loaded
    ),
    "one_rank_not_loaded": Defect(
        "only one rank gets the weights", "axolotl-ai-cloud/axolotl#400", EVERY, one_rank_not_loaded
    ),
    "buffers_not_restored": Defect(
        "the running statistics begin anew",
        "pytorch/pytorch#111138", (WHOLE,), buffers_not_restored, training=BATCH_NORM,
    ),
    "weights_of_an_older_checkpoint": Defect(
        "the weights are of an older checkpoint than the rest",
        "ray-project/ray#41700", RESTART, weights_of_an_older_checkpoint,
    ),
    "checkpoint_half_overwritten": Defect(
        "half of a checkpoint's weights are of another step",
        "NVIDIA/nvidia-resiliency-ext#376", RESTART, checkpoint_half_overwritten,
    ),
    "healed_from_the_step_before": Defect(
        "a replacement gets the weights of the step before", OWN, LIVE, healed_from_the_step_before
    ),
    "step_counted_too_far": Defect(
        "the count of steps is one too high after the recovery", "verl-project/verl#6232", RESTART, step_counted_too_far
    ),
    "step_made_again": Defect(
        "the step of the checkpoint is made again", "Lightning-AI/pytorch-lightning#850", RESTART, step_made_again
    ),
    # local updates
    "outer_momentum_lost": Defect(
        "the outer optimizer's momentum is not restored", OWN, (LOCAL,), outer_momentum_lost
    ),
    "average_of_too_many": Defect("an average counts a rank that is not there", OWN, (LOCAL,), average_of_too_many),
    "one_rank_skips_the_average": Defect(
        "one rank keeps its own weights where all average", OWN, (LOCAL,), one_rank_skips_the_average
    ),
}  # fmt: skip
