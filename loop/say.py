"""A loop in words: a line as a step begins and ends, and one on what is up and what it has cost. For `loop.drive`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proving_ground.bench.shell import RUNS
from proving_ground.loop import ledger, work
from proving_ground.loop.ledger import Ledger
from proving_ground.loop.steps import NOTHING, STEPS, Command


@dataclass(frozen=True)
class Status:
    """A loop, for machines; times are seconds since 1970."""

    stack: str
    folder: str
    step: str | None  # under way; None between two
    next_step: str | None
    begun_s: float
    up_since_s: float | None
    deadline_s: float | None
    usd: float
    usd_per_hour: float
    budget_usd: float | None
    nodes: dict[str, int]
    findings: list[str]
    keeper: int | None
    due: str | None
    ended: str | None


def status(it: Ledger) -> Status:
    """How a loop stands now."""
    state, spent, now = it.state(), it.spent(), time.time()
    running = state.running if work.running(it) is not None else None
    return Status(
        state.asked.stack, str(it.folder), str(running["step"]) if running else None,
        next((name for name in STEPS if name not in state.done), None), state.begun, state.up_since, state.deadline,
        round(spent.until(now), 4), spent.usd_per_hour, state.asked.budget_usd, dict(spent.nodes), state.findings,
        ledger.holder(it.folder / ledger.KEEPER), state.due, str(state.ended["why"]) if state.ended else None,
    )  # fmt: skip


def standing(it: Ledger) -> str:
    """That a loop's stack is up, since when, and until when."""
    found = status(it)
    if found.ended or found.up_since_s is None:
        return line(found)
    how = "is" if "up" in it.state().done else "may be half"
    return f"{found.stack} {how} {', '.join(parts(found)[1:])}"


def is_watched(found: Status) -> bool:
    """Whether what is up goes by itself, or nothing is."""
    return found.ended is not None or found.up_since_s is None or found.keeper is not None


def line(found: Status) -> str:
    """How a loop stands, in one line."""
    return f"{found.stack}: {', '.join(parts(found))}"


def parts(found: Status) -> list[str]:
    """What the line says."""
    if found.ended is not None:
        return [f"down ({found.ended})", money(found)]
    number = list(STEPS).index(found.step or found.next_step or "down") + 1
    place = f"step {number} of {len(STEPS)}"
    step = f"{found.step} runs ({place})" if found.step else f"stopped before {found.next_step} ({place})"
    if found.up_since_s is None:
        return [step, "nothing is up"]
    return [step, f"up since {moment(found.up_since_s)}", *machines(found), money(found), end(found)]


def machines(found: Status) -> list[str]:
    """How many, where anybody counts them."""
    counted = " + ".join(f"{count} {pool}" for pool, count in found.nodes.items() if count)
    return [f"machines: {counted}"] if counted else []


def money(found: Status) -> str:
    """What it has cost so far."""
    if not found.usd and not found.usd_per_hour:
        return "$0.00 so far (nobody bills for its machines)" if not found.nodes else "$0.00 so far"
    budget = f" of ${found.budget_usd:,.2f}" if found.budget_usd is not None else ""
    return f"${found.usd:,.2f}{budget} so far (machines, predicted), ${found.usd_per_hour:,.2f}/h"


def end(found: Status) -> str:
    """When it goes, and by whom."""
    if found.keeper is None:
        return f"NOBODY takes it down: pg loop down {found.stack}{place(Ledger(Path(found.folder)))}"
    if found.due:
        return f"being taken down: {found.due}"
    return f"goes at {moment(found.deadline_s or 0)} at the latest (process {found.keeper})"


def moment(seconds: float) -> str:
    """A time of day here, with the date where it is not today's."""
    then = time.localtime(seconds)
    today = time.localtime()[:3] == then[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def begins(name: str, commands: Sequence[Command]) -> None:
    """A step begins."""
    for command in commands:
        print(f"{time.strftime('%H:%M:%S')}  {name:<7} {shlex.join(['python', *command[1:]])}", flush=True)


def ends(name: str, outcome: str, seconds: float, it: Ledger, following: str | None) -> None:
    """A step is done."""
    after = f"; next: {following}" if following else ""
    cost = f"; {money(status(it))}" if it.state().up_since else ""
    print(f"{time.strftime('%H:%M:%S')}  {name:<7} {outcome}, {seconds:.0f} s{cost}{after}", flush=True)


def planned(name: str, commands: Sequence[Command], *, done: bool) -> None:
    """What a step would do."""
    after = "  (done)" if done else ""
    for command in commands:
        print(f"{name:<7} {shlex.join(['python', *command[1:]])}{after}")
    if not commands:
        print(f"{name:<7} left out: {NOTHING[name]}{after}")


def short(path: Path) -> str:
    """A path from here, where it is below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def place(it: Ledger) -> str:
    """` --runs DIR` for a command that is to be typed next; nothing where it is the default."""
    runs = it.folder.parent.parent.parent
    return "" if runs == RUNS.absolute() else f" {shlex.join(['--runs', str(runs)])}"
