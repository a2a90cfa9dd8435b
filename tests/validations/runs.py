"""One run from its seed: what is done to a job, and whether it settles. Called by `tests.validations.simulation`."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol
from unittest.mock import patch

from greenlet import getcurrent
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

from proving_ground.bench.protocols import ProcessSpec
from proving_ground.training.exchange import patience
from proving_ground.training.recovery import rendezvous
from tests.validations.members import KINDS, LIMIT_S, Fault, Job, Machine, ViolationError
from tests.validations.virtual import Clock, Randomness, Snapshots, Stage, Timer, WallClock, World

CALM_S = 8.0  # that a job is watched which nothing is done to


def connected(where: Any) -> tuple[Any, Any]:
    """Stands for the function of the same name: of the job that is on."""
    found: tuple[Any, Any] = Stage.job.connect(where)
    return found


class NoStoreInfo:
    """Where rank 0 would be met: nobody connects."""

    @staticmethod
    def build(*_about: object, **_more: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def standing_in(known: Mapping[Any, Mapping[str, Any]]) -> Iterator[None]:
    """Names of modules and classes are something else."""
    with contextlib.ExitStack() as stack:
        for of, names in known.items():
            for name, value in names.items():
                stack.enter_context(patch.object(of, name, value))
        yield


@contextlib.contextmanager
def staged() -> Iterator[None]:
    """Clock, random numbers, timers, copies and connections of the real modules are those of the stage."""
    common = {"time": Clock, "datetime": WallClock, "pickle": Snapshots}
    known: dict[Any, dict[str, Any]] = {
        rendezvous: common | {"secrets": Randomness, "connected": connected},
        dynamic: common | {"_PeriodicTimer": Timer, "RendezvousStoreInfo": NoStoreInfo},
        patience: {
            "time": Clock,
            "_set_pg_timeout": lambda delta, _group: vars(getcurrent()).update(timeout_s=delta.total_seconds()),
        },
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(standing_in(known))
        stack.enter_context(patch.dict(os.environ, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
        before = logging.root.manager.disable
        stack.callback(logging.disable, before)
        logging.disable(logging.CRITICAL)
        yield


def draw(chance: random.Random, count: int, kind: str) -> list[Fault]:
    """What is done to a job of that kind: random faults at random moments, some of them at once."""
    if kind == "coordinator":
        return [Fault(chance.uniform(0, 4), "coordinator_kill", 0, 0, chance.uniform(0.1, 3)) for _ in range(2)]
    if kind == "split":
        return split(chance, count)
    found = []
    for _ in range(chance.randint(1, 4) if kind == "faults" else 0):
        hold_s = chance.choice((chance.uniform(0.1, 2), chance.uniform(1, 9)))
        one, other = chance.sample(range(count), 2)
        found.append(Fault(chance.uniform(0, 4), chance.choice(KINDS), one, other, hold_s))
    return found


def split(chance: random.Random, count: int) -> list[Fault]:
    """All nodes but one lose power; that one trains alone, is cut off from the coordinator, and the others boot."""
    alone = chance.randrange(count)
    away_s = chance.uniform(4, 8)
    others = [Fault(0.1, "node_kill", node, node, away_s) for node in range(count) if node != alone]
    return [*others, Fault(away_s, "cut_coordinator", alone, alone, chance.uniform(3, 9))]


SORTS = {"faults": 80, "calm": 8, "coordinator": 6, "split": 4, "poisoned": 2}
"""What a run is like → how many of a hundred."""


def simulate(seed: int) -> str:
    """One run, within `staged()`; of which sort it was.

    Raises:
        ViolationError: an invariant does not hold.
    """
    world = Stage.world = World(seed)
    (count,), (sort,) = world.chance.choices((2, 3, 4), (40, 50, 10)), world.chance.choices([*SORTS], [*SORTS.values()])
    machines = [Machine(f"n{number}") for number in range(1, count + 1)]
    least = 1 if sort == "split" else world.chance.randint(1, count)
    job = Stage.job = Job(world, sort, machines, least)
    with playing(world, job, job.keeper.specs[1:]):
        play(job, draw(world.chance, count, sort))
    return sort


def play(job: Job, faults: Sequence[Fault]) -> None:
    """Begin, break, and see whether it settles."""
    job.world.run(job.settled, LIMIT_S)
    if not job.poisoned:
        disturb(job.world, job, faults, LIMIT_S)
    see_it_settled(job, LIMIT_S)


class Played(Protocol):
    """A simulated job, of whatever mechanism."""

    whole_steps: int
    violation: ViolationError | None

    def start(self, spec: ProcessSpec, again: int) -> None:
        """Begin a process."""

    def tend(self) -> None:
        """Be the node agent."""

    def suffer(self, fault: Fault) -> None:
        """A fault from its beginning to its end."""

    def settled(self) -> bool:
        """Whether there is nothing more to see."""

    def fail(self, why: str) -> None:
        """An invariant does not hold."""


@contextlib.contextmanager
def playing(world: World, job: Played, specs: Sequence[ProcessSpec]) -> Iterator[None]:
    """A job whose processes are started, and everything ended in the end.

    Raises:
        ViolationError: an invariant did not hold meanwhile.
    """
    try:
        for spec in specs:
            job.start(spec, 0)
        world.spawn(job.tend, 0.05)
        yield
    finally:
        world.close()
    if job.violation:
        raise job.violation


def disturb(world: World, job: Played, faults: Sequence[Fault], limit_s: float) -> None:
    """Do what is done to a job, and wait until it has settled after that."""
    begin = world.now
    for fault in faults:
        world.spawn(functools.partial(job.suffer, fault), fault.t)
    healed = max((fault.t + fault.hold_s for fault in faults), default=CALM_S)
    world.run(lambda: job.violation is not None, begin + healed + 0.5)
    job.whole_steps = 0
    world.run(job.settled, world.now + limit_s)


def see_it_settled(job: Played, limit_s: float) -> None:
    """Whether it was in time."""
    if not job.settled():
        job.fail(f"finite: neither training nor stopped {limit_s:.0f} s after the last fault was healed")
