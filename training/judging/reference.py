"""The first steps of a training by the loop that a textbook would have. Called by `pg training reference`.

One process computes every rank's part, one after the other: no DDP, no bucket, no process group, no launcher, no
checkpoint. Reading data, loss, weights, update rule and schedule are written out again. What is shared with the trainer
is what this does not check: the model, and which samples and random numbers a step has. A defect that a job and its
undisturbed twin have both is seen by this.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from proving_ground.training.config import EVERY_STEP, Config, ConfigError
from proving_ground.training.data import order
from proving_ground.training.data.shards import opened
from proving_ground.training.device.precision import repeatable
from proving_ground.training.exchange.communication import pick_device
from proving_ground.training.exchange.exact import seed_all
from proving_ground.training.judging.fingerprint import hashes_of, sha256, sketch
from proving_ground.training.loop import begin
from proving_ground.training.models.task import task_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proving_ground.training.data.order import Rows
    from proving_ground.training.events import EventWriter, NoEvents

STEPS = 10
"""As many as are compared, where fingerprints do not say otherwise: more would only add up rounding."""

Parts = list[tuple[int, "Rows"]]
Randoms = list[torch.Tensor]
"""A rank's states of random numbers: the CPU's, then its GPU's where it has one."""


def reference(config: Config, ranks: int, events: EventWriter | NoEvents, *, seeded: bool) -> None:
    """Make the first steps and record them; `seeded`: random numbers follow from step and rank, as in a live job.

    Raises:
        ConfigError: nothing is known of this model.
    """
    if config.model not in LOSSES:
        raise ConfigError(f"model = {config.model!r} has no reference; there is one for {', '.join(LOSSES)}")
    begin(config, events, 0, 1)
    with repeatable(config):
        first_steps(config, ranks, events, seeded=seeded)


def first_steps(config: Config, ranks: int, events: EventWriter | NoEvents, *, seeded: bool) -> None:
    """Make them."""
    torch.manual_seed(config.seed)
    task = task_of(config.model)(config)
    device = pick_device(config.device)
    model = task.model().to(device)
    optimizer, loss_of = update_rule(config, model), LOSSES[config.model](config)
    randoms = [fresh(config.seed + rank, device) for rank in range(ranks)]
    scale = LossScale(config)
    events.emit("ready", generation=1, rank=0, world_size=1, rows=task.rows)
    events.emit("fingerprint", step=0, **state_of(model, optimizer))
    last = config.fingerprint_every if 0 < config.fingerprint_every <= 2 * STEPS else STEPS
    for step in range(min(last, config.sync_every) if config.updates != EVERY_STEP else last):
        rows = order.global_batch_rows(
            task.rows, config.global_batch, config.seed, step, carry=config.last_batch == "carry"
        )
        loss, learned = gradients(config, model, scaled(loss_of, config, scale), rows, randoms, step, seeded=seeded)
        loss, overflowed = loss / scale.value, scale.overflows(model)
        norm = clipped(config, model)
        rate = rate_of(config, step, config.steps or config.epochs * -(-task.rows // config.global_batch))
        for group in optimizer.param_groups:
            group["lr"] = rate
        if not overflowed:
            optimizer.step()
        optimizer.zero_grad()
        told = {"loss": loss, "lr": rate, "grad_norm": norm, "rows": learned}
        events.emit("step", step=step + 1, samples=len(learned), generation=1, world_size=1, **told)
    events.emit("fingerprint", step=step + 1, **state_of(model, optimizer))
    events.emit("end", step=step + 1, reason="done")


def gradients(
    config: Config, model: nn.Module, loss_of: Callable[[nn.Module, Rows], torch.Tensor], rows: Rows,
    randoms: list[Randoms], step: int, *, seeded: bool,
) -> tuple[float, list[int]]:  # fmt: skip
    """Add up the gradients of all ranks' parts in the model; the loss, and the samples that it is of.

    Ranks that learn alone differ from their first step on: then only rank 0's part is made.
    """
    alone = config.updates != EVERY_STEP
    total, learned = 0.0, list[int]()
    for rank in range(1 if alone else len(randoms)):
        draw_from(randoms[rank])
        if seeded and config.reduction == "float" and (not alone or step % config.sync_every == 0):
            seed_all(config.seed, step, rank)
        mine = order.share(rows, rank, len(randoms))
        for shard, part in parts_of(config, mine, rows, rank, len(randoms)):
            if config.reduction == "exact":
                seed_all(config.seed, step, shard)
            loss = loss_of(model, part) / (len(mine) if alone else len(rows))
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            learned += part.tolist()
        randoms[rank] = drawn(model)
    return total, learned


class LossScale:
    """The scale of an FP16 loss: halved at an overflow, doubled after so many steps without; 1 in other precisions."""

    def __init__(self, config: Config) -> None:
        self.value = config.loss_scale if config.precision == "fp16" else 1.0
        self._every, self._held, self._on = config.loss_scale_steps, 0, config.precision == "fp16"

    def overflows(self, model: nn.Module) -> bool:
        """Divide the gradients by the scale, and adapt it; whether one of them is not finite."""
        found = [it.grad for it in model.parameters() if it.grad is not None]
        for gradient in found:
            gradient.div_(self.value)
        if not self._on:
            return False
        overflowed = not all(bool(gradient.isfinite().all()) for gradient in found)
        self._held = 0 if overflowed else self._held + 1
        grown = self._held == self._every
        self.value *= 0.5 if overflowed else 2.0 if grown else 1.0
        self._held = 0 if grown else self._held
        return overflowed


def scaled(
    loss_of: Callable[[nn.Module, Rows], torch.Tensor], config: Config, scale: LossScale
) -> Callable[[nn.Module, Rows], torch.Tensor]:
    """The loss in the precision that is asked for, times its scale."""
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)

    def loss(model: nn.Module, rows: Rows) -> torch.Tensor:
        with torch.autocast(device_of(model).type, kind, enabled=kind is not None):
            return loss_of(model, rows) * scale.value

    return loss


def parts_of(config: Config, mine: Rows, rows: Rows, rank: int, ranks: int) -> Iterator[tuple[int, Rows]]:
    """What goes through the model at once: a rank's micro-batches, or in exact mode its shards of the global batch."""
    if config.reduction == "exact":
        for shard in range(config.shards * rank // ranks, config.shards * (rank + 1) // ranks):
            part = rows[len(rows) * shard // config.shards : len(rows) * (shard + 1) // config.shards]
            if len(part):
                yield shard, part
        return
    pieces = max(config.accumulate, -(-len(mine) // config.micro_batch) if config.micro_batch else 1)
    yield from ((number, part) for number, part in enumerate(np.array_split(mine, pieces)) if len(part))


def fresh(seed: int, device: torch.device) -> Randoms:
    """The random states that a rank begins with: the CPU's, and its GPU's."""
    kinds = ("cpu", "cuda") if device.type == "cuda" else ("cpu",)
    return [torch.Generator(kind).manual_seed(seed).get_state() for kind in kinds]


def draw_from(states: Randoms) -> None:
    """Go on with these."""
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)


def drawn(model: nn.Module) -> Randoms:
    """What is left after drawing."""
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if device_of(model).type == "cuda" else [])


def device_of(model: nn.Module) -> torch.device:
    """Where it computes."""
    return next(model.parameters()).device


def update_rule(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of torch's, with the arguments written out."""
    if config.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)


def clipped(config: Config, model: nn.Module) -> float:
    """Limit the norm of the gradients where that is asked; the norm before."""
    found = [it.grad for it in model.parameters() if it.grad is not None]
    norm = math.sqrt(sum(float((it.double() ** 2).sum()) for it in found))
    if config.clip_norm and norm > config.clip_norm:
        for gradient in found:
            gradient.mul_(config.clip_norm / (norm + 1e-6))
    return norm


def rate_of(config: Config, step: int, steps: int) -> float:
    """The learning rate of optimizer step `step` (from 0) of `steps`: the rule in README.md."""
    scale = config.global_batch / config.base_batch
    peak = config.lr * {"none": 1.0, "sqrt": math.sqrt(scale), "linear": scale}[config.lr_scaling]
    if step < config.lr_warmup_steps:
        return peak * (step + 1) / config.lr_warmup_steps
    if config.lr_schedule != "cosine":
        return peak
    return peak * (1 + math.cos(math.pi * (step - config.lr_warmup_steps) / max(1, steps - config.lr_warmup_steps))) / 2


def digits_loss(config: Config) -> Callable[[nn.Module, Rows], torch.Tensor]:
    """Cross entropy of a grey image's classes, summed over samples."""
    data = opened(config, "digits")
    images, labels = data.column("train", "image"), data.column("train", "label")

    def loss(model: nn.Module, rows: Rows) -> torch.Tensor:
        pictures = torch.from_numpy(images.rows(rows).astype(np.float32) / data.manifest["level"])[:, None]
        scores = torch.log_softmax(model(pictures.to(device_of(model))).float(), dim=1).cpu()
        return -scores[torch.arange(len(rows)), torch.from_numpy(labels.rows(rows))].sum()

    return loss


def stocks_loss(config: Config) -> Callable[[nn.Module, Rows], torch.Tensor]:
    """Squared error of the next day's log return in units of the last 20 days' volatility, summed over samples."""
    close = opened(config, "sp500").column("train", "close")

    def loss(model: nn.Module, rows: Rows) -> torch.Tensor:
        returns = np.stack([np.diff(np.log(close.rows(np.arange(row, row + 22)))) for row in rows.tolist()])
        window, following = returns[:, :20], returns[:, 20]
        volatility = window.std(axis=1) + 1e-8
        inputs = torch.from_numpy((window / volatility[:, None]).astype(np.float32)).to(device_of(model))
        forecast = model(inputs)[:, 0].float().cpu()
        wanted = torch.from_numpy((following / volatility).astype(np.float32))
        return nn.functional.mse_loss(forecast, wanted, reduction="sum")

    return loss


def gpt2_loss(config: Config) -> Callable[[nn.Module, Rows], torch.Tensor]:
    """Each window's mean cross entropy of every token's follower, summed over windows."""
    tokens, window = opened(config, "moby-dick").column("train", "token"), WINDOWS["gpt2", config.size]

    def loss(model: nn.Module, rows: Rows) -> torch.Tensor:
        total = torch.zeros(())
        texts = [
            tokens.rows(np.arange(row * window, row * window + window + 1)).astype(np.int64) for row in rows.tolist()
        ]
        logits = model(torch.from_numpy(np.stack([text[:-1] for text in texts])).to(device_of(model))).cpu()
        for scores, text in zip(torch.log_softmax(logits.float(), dim=2), texts, strict=True):
            total = total - scores[torch.arange(window), torch.from_numpy(text[1:])].mean()
        return total

    return loss


def bert_loss(config: Config) -> Callable[[nn.Module, Rows], torch.Tensor]:
    """Each window's mean cross entropy of the tokens that were taken out, summed over windows."""
    from proving_ground.training.models.text import gaps  # noqa: PLC0415 - transformers, only here

    data, window = opened(config, "moby-dick"), WINDOWS["bert", config.size]
    tokens, gap = data.column("train", "token"), data.manifest["vocabulary"]

    def loss(model: nn.Module, rows: Rows) -> torch.Tensor:
        total, taken = torch.zeros(()), gaps(rows, window)
        full = np.stack([tokens.rows(np.arange(row * window, (row + 1) * window)) for row in rows.tolist()])
        logits = model(torch.from_numpy(np.where(taken, gap, full.astype(np.int64))).to(device_of(model))).cpu()
        for scores, was, where in zip(torch.log_softmax(logits.float(), dim=2), full, taken, strict=True):
            at = torch.from_numpy(np.flatnonzero(where))
            total = total - scores[at, torch.from_numpy(was[where].astype(np.int64))].mean()
        return total

    return loss


WINDOWS = {("gpt2", "tiny"): 64, ("gpt2", "full"): 1024, ("bert", "tiny"): 64, ("bert", "full"): 512}
"""Tokens of a sample."""

LOSSES: dict[str, Callable[[Config], Callable[[nn.Module, Rows], torch.Tensor]]] = {
    "digits": digits_loss,
    "stocks": stocks_loss,
    "resnet50": digits_loss,
    "resnet152": digits_loss,
    "vit": digits_loss,
    "gpt2": gpt2_loss,
    "bert": bert_loss,
}
"""Model → what makes its loss, from data read by itself."""


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a `fingerprint` event has; here only the sketch of the parameters is compared."""
    parameters = torch.cat([it.detach().cpu().double().flatten() for it in model.parameters()])
    return {
        **hashes_of(model), "optimizer_sha256": sha256(optimizer.state_dict()),
        "random_sha256": None, "lr": optimizer.param_groups[0]["lr"], "sketch": sketch(parameters).tolist(),
    }  # fmt: skip
