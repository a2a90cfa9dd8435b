"""What a loop has done: one folder a loop, a line in its ledger for each thing that happened, and who works on it.

`runs/loops/STACK/TIME/` has `ledger.jsonl`, `meter.json`, `logs/` and `runs/`. Everything else in `loop` reads the
state from the ledger, so whoever comes next goes on where the last one ended, however that was. Who works is told by
locks that end with their process, never by a file that a kill leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proving_ground.bench.rundir import new_id, point_latest, write_atomic

FOLDER, LATEST = "loops", "latest"
LOOP, STEP, KEEPER = "loop.lock", "step.lock", "keeper.lock"
"""Held by a loop, by the command of a step that is under way, and by the process that keeps the time."""
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a loop was asked for; it stays so when the loop is resumed."""

    stack: str
    hours: float = 2.0
    budget_usd: float | None = None
    bench: str = "scaling"
    chaos: str = "default"
    nodes: str | None = None
    pool: str | None = None
    options: str | None = None  # more of `--cluster kubernetes:`
    container: str | None = None  # for the backup; the stack's own without


@dataclass(frozen=True)
class Spent:
    """Dollars of machines so far: `usd` until `at`, and `usd_per_hour` since then."""

    usd: float = 0.0
    usd_per_hour: float = 0.0
    at: float | None = None
    nodes: Mapping[str, int] = field(default_factory=dict)

    def until(self, now: float) -> float:
        """Dollars until a later moment, if nothing has changed."""
        return self.usd if self.at is None else self.usd + self.usd_per_hour * max(0.0, now - self.at) / 3600


@dataclass(frozen=True)
class State:
    """What a ledger says; `deadline` None until something can be up."""

    asked: Asked
    target: Mapping[str, str]  # variables that name the cluster
    begun: float
    deadline: float | None
    due: str | None  # why it is being taken down before its end
    done: Mapping[str, Record]
    running: Record | None  # a step that was begun and has not ended
    last: str | None  # the step that was begun last
    up_since: float | None
    ended: Record | None

    @property
    def findings(self) -> list[str]:
        """The steps whose checks failed: what a loop is for, and no reason to stop."""
        return [name for name, it in self.done.items() if it["status"]]


@dataclass(frozen=True)
class Ledger:
    """The folder of one loop."""

    folder: Path

    @property
    def runs(self) -> Path:
        """Where its benchmarks and chaos runs lie."""
        return self.folder / "runs"

    @property
    def logs(self) -> Path:
        """What its commands said, a file a step."""
        return self.folder / "logs"

    def note(self, event: str, **about: Any) -> None:  # noqa: ANN401 - JSON
        """Add a line, whole or not at all, and on the disk before this returns."""
        line = json.dumps({"t": time.time(), "event": event, **about}) + "\n"
        with (self.folder / "ledger.jsonl").open("ab+", buffering=0) as out:
            if out.tell() and os.pread(out.fileno(), 1, out.tell() - 1) != b"\n":
                line = f"\n{line}"  # after what a power cut has left half written
            out.write(line.encode())
            os.fsync(out.fileno())

    def records(self) -> list[Record]:
        """All lines; one that a power cut has left half written is none."""
        found = []
        for line in (self.folder / "ledger.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def state(self) -> State:
        """What all lines together say."""
        return folded(self.records())

    def spent(self) -> Spent:
        """What the meter says; nothing before its first reading, or where somebody has damaged it."""
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
            return Spent(**json.loads((self.folder / "meter.json").read_text()))
        return Spent()

    def save(self, spent: Spent) -> None:
        """A new reading of the meter."""
        write_atomic(self.folder / "meter.json", json.dumps(dataclasses.asdict(spent)) + "\n")


def folded(records: list[Record]) -> State:
    """The state after these records."""
    first = records[0]
    done: dict[str, Record] = {}
    running: Record | None = None
    last: dict[str, Record] = {}
    up_since: float | None = None
    for it in records:
        last[it["event"]] = it
        if it["event"] == "step_begun":
            running = it
            up_since = up_since or (it["t"] if it["step"] == "up" else None)
        elif it["event"] == "step_ended":
            running = None
            if it["well"]:
                done[it["step"]] = it
    return State(
        Asked(**first["asked"]), first.get("target", {}), first["t"], last.get("kept", {}).get("deadline"),
        last.get("due", {}).get("why"),
        done, running, last.get("step_begun", {}).get("step"), up_since, last.get("ended"),
    )  # fmt: skip


def place(runs: Path, stack: str) -> Path:
    """Where the loops of a stack are."""
    return runs / FOLDER / stack


def create(runs: Path, asked: Asked, target: Mapping[str, str] | None = None) -> Ledger:
    """The folder of a new loop, and `latest` points there."""
    name = new_id()
    made = Ledger((place(runs, asked.stack) / name).absolute())
    made.logs.mkdir(parents=True)
    made.note("begun", asked=dataclasses.asdict(asked), target=dict(target or {}))
    point_latest(made.folder.parent / LATEST, Path(name))
    return made


def latest(runs: Path, stack: str) -> Ledger | None:
    """The newest loop of a stack; None where there was none."""
    link = place(runs, stack) / LATEST
    return Ledger(link.resolve()) if link.exists() else None


def every(runs: Path) -> list[Ledger]:
    """The newest loop of each stack."""
    found = (latest(runs, link.parent.name) for link in sorted((runs / FOLDER).glob(f"*/{LATEST}")))
    return [it for it in found if it]


# --- who works on it --------------------------------------------------------------------------------------------------


LOOKS, LOOK_S = 5, 0.01


class HeldError(RuntimeError):
    """Another process has the lock; the message has its number."""


@contextlib.contextmanager
def held(file: Path) -> Iterator[int]:
    """Have a lock for as long as this lasts, or as a process lives that got its file descriptor from here.

    Raises:
        HeldError: another has it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        take(handle, file)
        sign(handle)
        yield handle
    finally:
        os.close(handle)  # not unlocked: a command that outlives us has it still


def take(handle: int, file: Path) -> None:
    """Lock it; who only looks whose it is has it for a moment as well.

    Raises:
        HeldError: another has it.
    """
    for _ in range(LOOKS):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(LOOK_S)
    raise HeldError(str(holder(file) or ""))


def sign(handle: int) -> None:
    """Write into a lock whose it is."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)


def holder(file: Path) -> int | None:
    """The process that has the lock; None where nobody has it, 0 where it has not signed yet."""
    try:
        with file.open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(handle.read() or 0)
    except FileNotFoundError:
        pass
    return None
