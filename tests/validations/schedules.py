"""Random schedules of kills, shrinking and regrowing for one training job, and a job that lives through one.

Called by `tests.validations.same_training`. A schedule is a pure function of its seed. The ranks are real processes
with real Gloo between them on the loopback interface; kills are real, at phases of a step where the trainer stands
still for it; a job goes on from its real checkpoints. What stands in for the launcher is this module: it ends the
workers that are left and starts the next world, as `training.recovery.launch` does on each node.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from proving_ground.bench.tail import appended
from proving_ground.training.phases import CONTROL_VARIABLE
from tests.training.ranks import Event, Ranks, sets, start

SIZES = (1, 2, 2, 3, 3, 4, 4, 5, 6, 8)  # ranks, as often as they are drawn
SHARDS = (8, 12, 16, 24)
BATCH = 48  # divides into all of them; 30 steps are an epoch, the last one smaller
CHANGES = (3, 4, 5)
FIRST_STEPS, LAST_STEPS = 4, 12  # without a change
LOOK_S = 0.003
WAIT_S = 120.0  # for anything: a job that takes longer is stuck
OF_RANK_0 = ("checkpoint_write", "before_rename")
PHASES = ("forward", "allreduce", "before_checkpoint", *OF_RANK_0)


class StuckError(RuntimeError):
    """The job did not go on, in one line."""


@dataclass(frozen=True)
class Change:
    """One change of membership, once `step` steps are done.

    `how`: `kill` (SIGKILL to `ranks`), `crash` (to all), `join` (newcomers: the launcher ends all workers), `leave`
    (SIGTERM: the step is finished and saved). `phase`: where `ranks` stand still for it; empty: anywhere. `noticed`:
    the survivors find out by themselves and end with an error; else their launcher ends them. Afterwards `size` ranks.
    """

    step: int
    how: str
    phase: str
    ranks: tuple[int, ...]
    noticed: bool
    size: int


@dataclass(frozen=True)
class Schedule:
    """A training, and what happens to it."""

    seed: int
    size: int
    twin_size: int
    changes: tuple[Change, ...]
    keys: dict[str, Any]

    @property
    def sizes(self) -> list[int]:
        """The worlds, one after another."""
        return [self.size, *(change.size for change in self.changes)]


def draw(seed: int) -> Schedule:
    """The schedule of a seed: at least one world is smaller than the one before, and one larger."""
    dice = random.Random(seed)  # noqa: S311 - not for secrets
    keys = training(dice, seed)
    while True:
        steps = sorted(dice.sample(range(FIRST_STEPS, keys["steps"] - LAST_STEPS), dice.choice(CHANGES)))
        size = first = dice.choice(SIZES)
        changes = []
        for step in steps:
            changes.append(change(dice, step, size))
            size = changes[-1].size
        schedule = Schedule(seed, first, dice.randint(1, 4), tuple(changes), keys)
        ways = {(after > before) - (after < before) for before, after in pairwise(schedule.sizes)}
        if ways >= {1, -1}:
            return schedule


def training(dice: random.Random, seed: int) -> dict[str, Any]:
    """The digits network with all that must come out the same: dropout, AdamW, clipping, a schedule of rates."""
    return {
        "model": "digits", "reduction": "exact", "shards": dice.choice(SHARDS), "global_batch": BATCH, "seed": seed,
        "steps": 4 * dice.randint(10, 14), "last_batch": dice.choice(("short", "carry")),
        "optimizer": "adamw", "lr": dice.choice((0.001, 0.003)), "weight_decay": 0.01,
        "lr_schedule": "cosine", "lr_warmup_steps": dice.randint(2, 8),
        "clip_norm": dice.choice((0.2, 1.0)), "dropout": dice.choice((0.1, 0.3, 0.5)),
        "bucket_mb": dice.choice((0.02, 0.1, 25.0)), "fingerprint_every": 4, "ledger": True, "eval_every": -1,
        "timeout_s": 20.0, "checkpoint_every": dice.randint(2, 6), "prefetch": 3 * (seed % 2),
    }  # fmt: skip


def change(dice: random.Random, step: int, size: int) -> Change:
    """One change of a world of this size."""
    how = dice.choice(("kill", "kill", "crash", "join", "leave"))
    phase = "" if how == "leave" else dice.choice(("", *PHASES))
    if how in ("crash", "join"):
        ranks = tuple(range(size))
    else:
        ranks = tuple(sorted(dice.sample(range(size), dice.randint(1, max(1, size - 1)) if how == "kill" else 1)))
    if phase in OF_RANK_0:
        ranks = tuple(sorted({0, *ranks}))
    left = size - len(ranks)
    after = {
        "kill": left if left and dice.random() < 0.7 else size,  # else they are replaced
        "crash": dice.choice(SIZES),
        "join": min(max(SIZES), size + dice.randint(1, 3)),
        "leave": left or dice.choice(SIZES),
    }[how]
    return Change(step, how, phase, ranks, how == "kill" and dice.random() < 0.5, after)


def begin_twin(schedule: Schedule, folder: Path) -> Ranks:
    """The same training, of another size, which nobody disturbs, and which reads nothing ahead."""
    return start(folder, schedule.twin_size, sets(**schedule.keys | {"checkpoint_every": 0, "prefetch": 0}))


def live(schedule: Schedule, folder: Path, mutant: str = "") -> list[Ranks]:
    """Train through all changes; the worlds, one after another.

    Raises:
        StuckError: a world failed, or did nothing for two minutes.
    """
    control, worlds = folder / "control", []
    control.mkdir(parents=True)
    arguments = sets(**schedule.keys, checkpoint_dir=folder / "saved")
    for number, size in enumerate(schedule.sizes):
        world = start(folder / str(number), size, arguments, mutant=mutant, **{CONTROL_VARIABLE: str(control)})
        worlds.append(world)
        try:
            if number < len(schedule.changes):
                suffer(world, schedule.changes[number], control / "hold.json", number)
            else:
                end_by_itself(world, f"world {number}")
        finally:
            end(world)
    return worlds


def suffer(world: Ranks, change: Change, hold: Path, number: int) -> None:
    """Let one change happen to a world, which is gone afterwards."""
    until(world, (0,), lambda event: event["event"] == "step" and event["step"] >= change.step)
    if change.how == "leave":
        world.processes[change.ranks[0]].terminate()
        end_by_itself(world, f"world {number}, asked to leave")
        return
    if change.phase:
        held = (0,) if change.phase in OF_RANK_0 else change.ranks
        text = json.dumps({"id": f"h{number}", "phase": change.phase, "ranks": held})
        hold.with_suffix(".new").write_text(text)
        hold.with_suffix(".new").rename(hold)
        until(world, held, lambda event: event["event"] == "phase")
    world.strike(change.ranks)
    hold.unlink(missing_ok=True)
    if change.noticed:
        survivors = [rank for rank in range(len(world.processes)) if rank not in change.ranks]
        codes = world.wait(WAIT_S)
        if any(codes[rank] != 1 for rank in survivors):
            raise StuckError(f"the survivors of {change} ended with {codes}")


def until(world: Ranks, ranks: Sequence[int], wanted: Callable[[Event], bool]) -> None:
    """Wait until each of these ranks has said something.

    Raises:
        StuckError: a process ended before, or two minutes have passed.
    """
    deadline = time.monotonic() + WAIT_S
    for rank in ranks:
        file, offset, found = world.folder / f"{rank}.jsonl", 0, False
        while not found:
            lines, offset = appended(file, offset) if file.exists() else ([], offset)
            found = any(wanted(json.loads(line)) for line in lines)
            if not found and (world.processes[rank].exitcode is not None or time.monotonic() > deadline):
                raise StuckError(f"rank {rank} of {len(world.processes)}: {last_words(world)}")
            time.sleep(0 if found else LOOK_S)


def end_by_itself(world: Ranks, what: str) -> None:
    """Wait until all ranks are done.

    Raises:
        StuckError: one of them failed, or two minutes have passed.
    """
    if any(codes := world.wait(WAIT_S)):
        raise StuckError(f"{what} of {len(codes)} ranks ended with {codes}: {last_words(world)}")


def last_words(world: Ranks) -> str:
    """What the ranks printed last."""
    logs = [world.printed(rank).strip().splitlines()[-1:] for rank in range(len(world.processes))]
    return "; ".join(line for lines in logs for line in lines) or "nothing printed"


def end(world: Ranks) -> None:
    """Kill what is left, as a launcher does."""
    for process in world.processes:
        process.kill()
    world.wait()


def told(worlds: Sequence[Ranks], trial: str) -> list[Event]:
    """All that the ranks of a job said, by time, as the harness would have merged it."""
    said: list[Event] = [
        event | {"source": f"n{rank + 1}.0", "trial": trial}
        for world in worlds
        for rank in range(len(world.processes))
        for event in world.events(rank)
    ]
    said.sort(key=lambda event: float(event["t"]))
    return said
