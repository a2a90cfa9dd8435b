"""`trials.jsonl`: what became of every trial, appended by the driver as it happens. What a search knows of itself.

Written by `search.drive`; read by whoever resumes, watches or reports. What a killed driver left is whole lines and at
most one half line, which is cut off before the next is written. A line that is no record is told with its number.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from proving_ground.bench.rundir import RunDirError
from proving_ground.training.events import parsed, sensible

STARTED, REPORTED, COPIED = "started", "reported", "copied"
STOPPED, FINISHED, FAILED = "stopped", "finished", "failed"
ENDS = (STOPPED, FINISHED, FAILED)
"""How a trial ends; one that has ended is never run again."""
LOST = "lost"
"""A trial's worker died, for the first time: it is no end, another sitting begins the trial anew."""
SITTING, READY, OVER = "sitting", "ready", "over"
"""A driver begins; its Ray is up, after so many `seconds`; it is done, and `why`."""
RUNNING = "running"
ASHA, BUDGET = "asha", "budget"
"""Why a trial was stopped: by the one algorithm that does so, or cut off by the budget, which is no merit of it."""

FIELDS: Mapping[str, Mapping[str, type]] = {
    STARTED: {"trial": str, "params": dict},
    REPORTED: {"trial": str, "step": int, "value": float},
    COPIED: {"trial": str, "donor": str, "step": int, "sha256": str, "params": dict},
    **{it: {"trial": str} for it in ENDS},
    LOST: {"trial": str},
    SITTING: {},
    READY: {},
    OVER: {"why": str},
}
"""Event → what its record has beside `t`, `sitting` and `event`; more is welcome."""
ALWAYS: Mapping[str, type] = {"t": float, "sitting": int}

Record = dict[str, Any]
Params = Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """One trial as the ledger has it."""

    id: str
    params: Params  # those of its newest value: a copy replaces them
    state: str = RUNNING
    curve: tuple[tuple[int, float], ...] = ()  # step, value; what was made again after an interruption replaces
    why: str = ""
    starts: int = 0  # how often it was begun: more than once where a driver was killed meanwhile
    copies: tuple[Record, ...] = ()  # what it took over from other trials
    made_with: tuple[Params, ...] = ()  # the parameters at each value of the curve
    first_params: Params | None = None  # those that it was first begun with

    @property
    def ended(self) -> bool:
        """Whether it is done with."""
        return self.state in ENDS

    @property
    def cut_off(self) -> bool:
        """Whether the budget ended it."""
        return self.state == STOPPED and self.why != ASHA

    @property
    def steps(self) -> int:
        """The last step at which it told a value."""
        return self.curve[-1][0] if self.curve else 0

    def best(self, mode: str) -> tuple[int, float] | None:
        """Step and value where it was best; the first of equals."""
        sign = 1 if mode == "max" else -1
        return max(self.curve, key=lambda it: (sign * it[1], -it[0]), default=None)

    def best_params(self, mode: str) -> Params:
        """The parameters at its best value; those that it has, where there is no value."""
        best = self.best(mode)
        return next((it for point, it in zip(self.curve, self.made_with, strict=False) if point == best), self.params)


class Ledger:
    """Appends records; each is one `write`, unless the system takes a part only."""

    def __init__(self, path: Path, sitting: int) -> None:
        self.sitting = sitting
        mend(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - any JSON value
        """Add a record at this moment; the end of a trial is on disk when this returns.

        Raises:
            OSError: the disk is full, say; what is half written is cut off by the next driver.
        """
        record = {"t": time.monotonic(), "sitting": self.sitting, "event": event, **fields}
        line = (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode()
        while line:
            line = line[os.write(self._file, line) :]
        if event in ENDS or event == OVER:
            os.fsync(self._file)


def mend(path: Path) -> None:
    """Cut off the half line that a killed driver may have left."""
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


class Reader:
    """A ledger that grows meanwhile: each look reads what was appended since the last one."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.records: list[Record] = []

    def read(self) -> list[Record]:
        """All whole records in their order; none where there is no ledger yet.

        Raises:
            RunDirError: a line is no record; says which.
        """
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                *lines, _ = file.read().split(b"\n")
            for line in lines:
                self.records.append(record_of(line, f"{self._path}: line {len(self.records) + 1}"))
                self._offset += len(line) + 1
        return self.records


def read(path: Path) -> list[Record]:
    """All whole records in their order; none where there is no ledger yet.

    Raises:
        RunDirError: a line is no record; says which.
    """
    return Reader(path).read()


def record_of(line: bytes, where: str) -> Record:
    """The record on a line.

    Raises:
        RunDirError: there is none.
    """
    try:
        record = parsed(line)
    except ValueError as error:
        raise RunDirError(f"{where}: not JSON: {error}") from None
    fields = FIELDS.get(str(record.get("event"))) if isinstance(record, dict) else None
    if fields is None:
        raise RunDirError(f"{where}: no record: its event must be one of {', '.join(FIELDS)}")
    for name, kind in {**ALWAYS, **fields}.items():
        if not is_of(kind, record.get(name)):
            what = f"{name} = {str(record.get(name))[:40]}"
            raise RunDirError(f"{where}: {record['event']}: {what}: must be {KINDS[kind]}")
    return dict(record)


KINDS: Mapping[type, str] = {str: "a text", int: "a whole number", float: "a number", dict: "a table"}


def is_of(kind: type, value: object) -> bool:
    """Whether a value may stand in such a field."""
    number = sensible(value) and (kind is float or isinstance(value, int))
    return number if kind in (int, float) else isinstance(value, kind)


def over(records: Sequence[Record]) -> bool:
    """Whether nothing is left to do."""
    return bool(records) and records[-1]["event"] == OVER


def sittings(records: Iterable[Record]) -> int:
    """How many drivers have begun."""
    return sum(it["event"] == SITTING for it in records)


def trials(records: Iterable[Record]) -> dict[str, Trial]:
    """Every trial that was begun, by its id."""
    found: dict[str, list[Record]] = {}
    for it in records:
        if "trial" in it:
            found.setdefault(it["trial"], []).append(it)
    return {name: trial_of(name, about) for name, about in sorted(found.items())}


def trial_of(name: str, records: Sequence[Record]) -> Trial:
    """The trial that these records are about."""
    made: list[tuple[tuple[int, float], Params]] = []  # each value, and the parameters that it was made with
    params: Params = {}
    for it in records:
        params = it.get("params", params)
        if it["event"] == REPORTED:
            while made and made[-1][0][0] >= it["step"]:
                made.pop()
            made.append(((it["step"], it["value"]), params))
    starts = [it for it in records if it["event"] == STARTED]
    end = next((it for it in reversed(records) if it["event"] in ENDS), {"event": RUNNING})
    return Trial(
        name, params, end["event"], tuple(point for point, _ in made), end.get("why", ""), len(starts),
        tuple(it for it in records if it["event"] == COPIED), tuple(it for _, it in made),
        starts[0]["params"] if starts else None,
    )  # fmt: skip


def schedule(known: Mapping[str, Trial], name: str, step: int) -> list[tuple[int, Params]]:
    """What a trial's value at a step was made with: from which step on which parameters, over all that was copied."""
    found: list[tuple[int, Params]] = []
    until = (float("inf"), 0.0)
    while trial := known.get(name):
        copies = (it for it in reversed(trial.copies) if (it["sitting"], it["t"]) < until and it["step"] < step)
        copy = next(copies, None)
        if copy is None:
            return [(0, trial.first_params or trial.params), *found]
        found.insert(0, (copy["step"], copy["params"]))
        name, step, until = copy["donor"], copy["step"], (copy["sitting"], copy["t"])
    return found


def check_params(known: Mapping[str, Trial], space: Iterable[str], where: Path) -> None:
    """That each trial has the parameters of the space.

    Raises:
        RunDirError: one has others.
    """
    names = set(space)
    for trial in known.values():
        for params in (trial.params, *trial.made_with):
            if set(params) != names:
                has = ", ".join(params) or "no parameters"
                raise RunDirError(f"{where}: {trial.id} has {has}; the space has {', '.join(names)}")


def repeated(records: Iterable[Record]) -> list[str]:
    """Trials that ran more than once to an end: begun after it, ended twice, or begun twice by one driver."""
    done: set[str] = set()
    begun: set[tuple[int, str]] = set()
    again: dict[str, None] = {}
    for it in records:
        if it["event"] not in (*ENDS, STARTED):
            continue
        name = it["trial"]
        if name in done or (it["event"] == STARTED and (it["sitting"], name) in begun):
            again[name] = None
        if it["event"] == STARTED:
            begun.add((it["sitting"], name))
        else:
            done.add(name)
    return list(again)


def interleaved(records: Sequence[Record]) -> bool:
    """Whether two drivers wrote at a time: a sitting's records stand together, and it begins once."""
    begun = [it["sitting"] for it in records if it["event"] == SITTING]
    return len(set(begun)) < len(begun) or any(later["sitting"] < it["sitting"] for it, later in pairwise(records))
