"""`trials.jsonl`: what became of every trial, appended by the driver as it happens. What a search knows of itself.

Written by `search.drive`; read by whoever resumes, watches or reports. What a killed driver left is whole lines and at
most one half line, which is cut off before the next is written. Standard library only.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from training.events import parsed

STARTED, REPORTED, COPIED = "started", "reported", "copied"
STOPPED, FINISHED, FAILED = "stopped", "finished", "failed"
ENDS = (STOPPED, FINISHED, FAILED)
"""How a trial ends; one that has ended is never run again."""
SITTING, READY, OVER = "sitting", "ready", "over"
"""A driver begins; its Ray is up, after so many `seconds`; it is done, and `why`."""
RUNNING = "running"

Record = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One trial as the ledger has it."""

    id: str
    params: Mapping[str, Any]
    state: str = RUNNING
    curve: tuple[tuple[int, float], ...] = ()  # step, value; what was made again after an interruption replaces
    why: str = ""
    starts: int = 0  # how often it was begun: more than once where a driver was killed meanwhile
    copies: tuple[Record, ...] = ()  # what it took over from other trials

    @property
    def ended(self) -> bool:
        """Whether it is done with."""
        return self.state in ENDS

    @property
    def steps(self) -> int:
        """The last step at which it told a value."""
        return self.curve[-1][0] if self.curve else 0

    def best(self, mode: str) -> tuple[int, float] | None:
        """Step and value where it was best; the first of equals."""
        sign = 1 if mode == "max" else -1
        return max(self.curve, key=lambda it: (sign * it[1], -it[0]), default=None)


class Ledger:
    """Appends records; each is one `write`."""

    def __init__(self, path: Path, sitting: int) -> None:
        self.sitting = sitting
        mend(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - any JSON value
        """Add a record at this moment; the end of a trial is on disk when this returns."""
        record = {"t": time.monotonic(), "sitting": self.sitting, "event": event, **fields}
        os.write(self._file, (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode())
        if event in ENDS or event == OVER:
            os.fsync(self._file)


def mend(path: Path) -> None:
    """Cut off the half line that a killed driver may have left."""
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def read(path: Path) -> list[Record]:
    """All whole records in their order; none where there is no ledger yet."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [it for it in map(parsed, lines) if isinstance(it, dict)]


def sittings(records: Iterable[Record]) -> int:
    """How many drivers have begun."""
    return sum(it["event"] == SITTING for it in records)


def trials(records: Iterable[Record]) -> dict[str, Trial]:
    """Every trial that was begun, by its id."""
    found: dict[str, Trial] = {}
    for it in records:
        if "trial" in it:
            found[it["trial"]] = after(found.get(it["trial"], Trial(it["trial"], {})), it)
    return dict(sorted(found.items()))


def after(trial: Trial, record: Record) -> Trial:
    """The trial once this has happened."""
    event = record["event"]
    if event == STARTED:
        return replace(trial, params=record["params"], starts=trial.starts + 1)
    if event == REPORTED:
        before = tuple(point for point in trial.curve if point[0] < record["step"])
        return replace(trial, curve=(*before, (record["step"], record["value"])))
    if event == COPIED:
        return replace(trial, params=record["params"], copies=(*trial.copies, record))
    return replace(trial, state=event, why=record.get("why", "")) if event in ENDS else trial


def repeated(records: Iterable[Record]) -> list[str]:
    """Trials that were begun once more after they had ended: there must be none."""
    done: set[str] = set()
    again = []
    for it in records:
        if it["event"] in ENDS:
            done.add(it["trial"])
        elif it["event"] == STARTED and it["trial"] in done:
            again.append(it["trial"])
    return again
