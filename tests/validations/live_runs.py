"""One live run from its seed: what is done to a job, whether it settles. Called by `tests.validations.simulation`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torchft

from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.exchange import patience
from proving_ground.training.recovery import live
from proving_ground.training.recovery import members as live_members
from proving_ground.training.recovery.members import Seat
from tests.validations import live_lighthouse, live_room
from tests.validations.live_groups import Group
from tests.validations.live_jobs import LiveJob, Node
from tests.validations.live_room import Pool, Room
from tests.validations.members import Fault
from tests.validations.runs import CALM_S, disturb, playing, see_it_settled, standing_in
from tests.validations.virtual import Checkpoints, Clock, Stage

LIMIT_S = 300.0  # of virtual time, after the last fault was healed: several waits of a minute fit in
CALM_DELAY_S, DELAY_S = 0.1, 0.25  # of a message, one way, at most
STALL_S = 0.8  # that a member of an overloaded machine stands still, and stays one
QUIET_S = 8.0  # that a job with one fault is looked at when all train again
GAP_S = 6.0  # between two steps of a job with one fault, at most
SHORT, LONG = 60, 10**9  # steps of a job that ends, and of one that does not
KINDS = (
    "worker_kill", "leave", "hang", "node_kill", "power_loss", "coordinator_kill", "cut", "cut_coordinator", "pair",
)  # fmt: skip
SORTS = {"faults": 50, "single": 25, "calm": 10, "coordinator": 7, "lost": 6, "poisoned": 2}
"""What a run is like → how many of a hundred."""


def claim(_config: object) -> int:
    """Stands for `training.checkpoints.saving.claim`."""
    return checkpoint.claim_generation(cast("Any", Checkpoints(Stage.job.claims, None)))


def resume(job: Any) -> int:
    """Stands for `training.checkpoints.saving.resume`."""
    job.step, made_in = Stage.job.saved
    job.lineage = job.step
    return int(made_in)


def tensors(job: Any) -> dict[str, Any]:
    """Stands for `training.checkpoints.saving.tensors`."""
    return {"lineage": torch.tensor([job.lineage])}


def put(job: Any, parts: dict[str, Any]) -> None:
    """Stands for `training.checkpoints.saving.put`."""
    job.lineage = int(parts["lineage"])


def progress(job: Any, _randoms: object) -> dict[str, Any]:
    """Stands for `training.checkpoints.saving.progress`."""
    return {"step": job.step, "best": None, "metrics": {}}


def answers(host: str, _port: int) -> bool:
    """Stands for the function of `training.recovery.lines`."""
    return bool(Stage.job.room.answers(host))


def knocks(places: Sequence[tuple[str, int]]) -> list[str]:
    """Stands for the function of `training.recovery.lines`."""
    return Pool().map(lambda place: Stage.job.room.knock(*place), places)


class Names:
    """Stands for the module `socket`: a name is an address."""

    @staticmethod
    def gethostbyname(name: str) -> str:
        """As it is."""
        return name


@contextlib.contextmanager
def staged() -> Iterator[None]:
    """What the real modules stand on is that of the stage."""
    saving: dict[str, Any] = {"claim": claim, "resume": resume, "tensors": tensors, "put": put, "progress": progress}
    known: dict[Any, dict[str, Any]] = {
        live: {"time": Clock, "answers": answers, "settings": lambda _config: "same", **saving},
        live_members: {
            "time": Clock, "knocks": knocks, "socket": Names, "ThreadPoolExecutor": Pool, "wait": live_room.wait,
        },
        Seat: {"take": staticmethod(live_lighthouse.take)},
        torchft: {"ProcessGroupGloo": Group},
        patience: {"time": Clock, "_set_pg_timeout": lambda _delta, _group: None},
    }  # fmt: skip
    with standing_in(known):
        yield


def draw(chance: random.Random, count: int, sort: str) -> list[Fault]:
    """What is done to a job of that sort."""
    if sort == "coordinator":
        return [Fault(chance.uniform(0, 4), "coordinator_kill", 0, 0, chance.uniform(0.1, 3)) for _ in range(2)]
    if sort == "calm":
        slow = chance.sample(range(count), chance.randint(0, count))
        return [Fault(chance.uniform(0, CALM_S), "hang", node, 0, chance.uniform(0.1, STALL_S)) for node in slow]
    found = []
    if sort == "lost":
        found = [Fault(chance.uniform(0, 4), "lost", chance.randrange(count), 0, 0.0)]
    for _ in range({"single": 1, "lost": 1, "faults": chance.randint(1, 5)}.get(sort, 0)):
        hold_s = chance.choice((chance.uniform(0.1, 2), chance.uniform(1, 9)))
        one, other = chance.sample(range(count), 2)
        found.append(Fault(chance.uniform(0, 4), chance.choice(KINDS), one, other, hold_s))
    return found


def simulate(seed: int, among: Sequence[str] = tuple(SORTS)) -> str:
    """One run of one of some sorts, within `staged()`; of which it was.

    Raises:
        ViolationError: an invariant does not hold.
    """
    chance = random.Random(seed)  # noqa: S311 - to be repeated, not secret
    (count,), (sort,) = chance.choices((2, 3, 4), (30, 55, 15)), chance.choices(among, [SORTS[it] for it in among])
    room = Stage.world = Room(seed, CALM_DELAY_S if sort in ("calm", "coordinator") else DELAY_S)
    least = {"single": 1, "poisoned": count}.get(sort) or chance.randint(1, count - 1)
    nodes = [Node(f"n{number}", number) for number in range(count)]
    job = Stage.job = LiveJob(room, sort, nodes, least, SHORT if chance.random() < 0.2 and sort == "faults" else LONG)
    with playing(room, job, job.keeper.specs[1 + (sort == "poisoned") :]):
        play(job, draw(chance, count, sort))
    return sort


def play(job: LiveJob, faults: Sequence[Fault]) -> None:
    """Begin, break, and see whether it settles."""
    room = job.room
    room.run(job.settled, LIMIT_S)
    if job.sort != "poisoned":
        room.run(lambda: job.violation is not None, room.now + (4.0 if job.sort == "single" else 0.0))
        job.gap_s = 0.0
        disturb(room, job, faults, LIMIT_S)
    see_it_settled(job, LIMIT_S)
    if job.sort == "single":
        job.gap_s = max(job.gap_s, room.now - job.last_t)
        away_s = faults[0].hold_s if faults[0].kind == "coordinator_kill" else 0.0
        if job.gap_s > GAP_S + away_s:
            job.fail(f"pace: no step for {job.gap_s:.1f} s ({faults[0].kind})")
        job.over = True
        room.run(lambda: job.violation is not None, room.now + QUIET_S)
