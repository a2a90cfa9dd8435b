"""A job's lineage again, undisturbed: the same steps in worlds of the same sizes. For `pg training replay`.

A float sum depends on how many ranks add, so a job that has changed its size differs from every undisturbed run at one
size. It must equal, bit by bit, this one: no rank is killed, none waits, nothing is read from a checkpoint or healed.
Where the size changes, states are handed over in memory, from the rank that each went on from in the job itself. The
harness writes the lineage (`bench.lineage`) from what the job recorded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from proving_ground.training.checkpoints.checkpoint import random_state, restore_random_state
from proving_ground.training.config import ConfigError
from proving_ground.training.device.precision import repeatable
from proving_ground.training.exchange.communication import World, identity, join
from proving_ground.training.exchange.exact import seed_all
from proving_ground.training.loop import Job, begin, parameters_sha256, prepare, ready, silent, step
from proving_ground.training.state import cut_as, from_rank, mapped, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from proving_ground.training.config import Config
    from proving_ground.training.events import EventWriter, NoEvents

Origin = tuple[int, ...]


@dataclass(frozen=True)
class Stretch:
    """Steps up to `last` in a world of `len(origin)` ranks; each goes on from that rank's state in the one before."""

    generation: int
    last: int
    origin: Origin


@dataclass(frozen=True)
class Lineage:
    """The stretches that the final weights of a job come from; `seeded`: each step draws its own random numbers."""

    stretches: tuple[Stretch, ...]
    seeded: bool


def read(path: Path) -> Lineage:
    """The lineage in a JSON file.

    Raises:
        ConfigError: it is none.
    """
    try:
        document = json.loads(path.read_text())
        stretches = tuple(Stretch(it["generation"], it["last"], tuple(it["origin"])) for it in document["stretches"])
        return Lineage(stretches, bool(document["seeded"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a lineage: {type(error).__name__}: {error}") from None


def replay(config: Config, lineage: Lineage, events: EventWriter | NoEvents) -> str:
    """Make every step of a lineage; the hash of the last weights, empty on a rank that is not in the last stretch.

    Every process takes the rank that it was started with in each stretch that is large enough, and waits in the others.

    Raises:
        ConfigError: fewer processes than a stretch has ranks.
    """
    begin(config, events, *identity())
    with repeatable(config), join(config) as world:
        refuse(lineage, world)
        return make_all(config, lineage, world, events)  # in a function of its own, as in `training.loop.train`


def refuse(lineage: Lineage, world: World) -> None:
    """Refuse a lineage that these processes cannot make.

    Raises:
        ConfigError: in one line why.
    """
    most = max((len(it.origin) for it in lineage.stretches), default=0)
    if not 1 <= most <= world.size:
        raise ConfigError(f"the lineage has a world of {most} ranks, and there are {world.size} processes")


def make_all(config: Config, lineage: Lineage, world: World, events: EventWriter | NoEvents) -> str:
    """Stretch after stretch."""
    sizes = sorted({len(it.origin) for it in lineage.stretches})
    groups = {size: dist.new_group(list(range(size))) for size in sizes}
    job: Job | None = None
    before = 0
    for stretch in lineage.stretches:
        size = len(stretch.origin)
        states = handed_over(job if world.rank < before else None, world, stretch.origin) if before else {}
        if world.rank < size:
            here = replace(world, size=size, group=groups[size])
            job = go_on(prepared(config, here, events, fresh=world.rank >= before), stretch, states)
            make(job, stretch.last, seeded=lineage.seeded)
        before = size
    events.emit("end", step=lineage.stretches[-1].last, reason="done")
    return parameters_sha256(job) if job and world.rank < before else ""


def prepared(config: Config, here: World, events: EventWriter | NoEvents, *, fresh: bool) -> Job:
    """Everything built anew, as in a trainer that starts again; random states go on unless they are to be fresh ones.

    A rank that the world before did not have begins with fresh ones, as in `training.checkpoints.saving.restore`.
    """
    randoms = random_state()
    job = prepare(replace(config, prefetch=0), here, events, silent)  # nor may a loader's defect be in it
    if not fresh:
        restore_random_state(randoms)
    return job


def go_on(job: Job, stretch: Stretch, states: dict[str, Any]) -> Job:
    """The job in the state that it goes on from, and in its generation."""
    job.generation = stretch.generation
    if states:
        put(job, states)
    ready(job)
    return job


def handed_over(old: Job | None, world: World, origin: Origin) -> dict[str, Any]:
    """The state that this process goes on from; all processes call this together."""
    mine: dict[str, Any] = {}
    state = state_of(old) if old else None  # of all: where a model is cut over the ranks, all give their parts
    for giver in sorted(set(origin)):
        found = from_rank(world, state if world.rank == giver else None, giver)
        if world.rank < len(origin) and origin[world.rank] == giver:
            mine = found
    return mine


def state_of(job: Job) -> dict[str, Any]:
    """All that a rank's next step follows from but its random states, tensor by tensor.

    Not by `state_dict`, and not by what saves and heals: a defect of theirs must not be in the replay too.
    """
    module = job.model.module
    weights = [whole(it.detach()).cpu() for it in (*module.parameters(), *module.buffers())]
    kept = [mapped(list(moments(it)), torch.Tensor, whole) for it in optimizers(job)]
    return {"step": job.step, "weights": weights, "optimizers": kept, "loss_scale": job.precision.state()}


def put(job: Job, state: dict[str, Any]) -> None:
    """Take such a state over."""
    module = job.model.module
    job.step = state["step"]
    if job.precision.scales:
        job.precision.put(state["loss_scale"])
    with torch.no_grad():
        for mine, its in zip((*module.parameters(), *module.buffers()), state["weights"], strict=True):
            mine.copy_(cut_as(mine, its))
    for optimizer, every in zip(optimizers(job), state["optimizers"], strict=True):
        for parameter, known in zip(parameters_of(optimizer), every, strict=True):
            if known:
                optimizer.state[parameter] = {name: copied(it, parameter) for name, it in known.items()}


def optimizers(job: Job) -> list[torch.optim.Optimizer]:
    """The one of every step, and the outer one of averaging ranks."""
    return [job.optimizer, *([job.updates.outer] if job.updates.outer else [])]


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """In the optimizer's order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def moments(optimizer: torch.optim.Optimizer) -> Iterator[dict[str, Any]]:
    """What an optimizer keeps of each parameter."""
    for parameter in parameters_of(optimizer):
        yield dict(optimizer.state.get(parameter, {}))


def copied(value: Any, parameter: torch.Tensor) -> Any:  # noqa: ANN401 - what an optimizer keeps: tensors and numbers
    """A value of its own; a moment lies where its parameter does, a count of steps on the CPU, as torch has them."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.clone() if value.dim() == 0 else cut_as(parameter, value.to(parameter.device, copy=True))


def make(job: Job, last: int, *, seeded: bool) -> None:
    """The steps of a stretch."""
    while job.step < last:
        if seeded and job.updates.at_rest(job.step):
            seed_all(job.config.seed, job.step, job.world.rank)
        step(job, asked_to_stop=False)
