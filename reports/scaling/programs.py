"""What the measuring programs found: collectives, data loading, storage, memory. Called by `reports.figures`.

A program is no training: its trials have no efficiency, and each of its `collective` and `measure` events is a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from proving_ground.reports.scaling.measure import Measured

Record = Mapping[str, Any]
Where = tuple[tuple[str, Any], ...]
MEGABIT = 1e6 / 8  # bytes


@dataclass(frozen=True)
class Value:
    """One figure of a program: name, unit, what it is about, and one value a trial (the median of its rounds)."""

    name: str
    unit: str
    where: Where
    values: tuple[float, ...]


def is_program(plan: Mapping[str, Any]) -> bool:
    """Whether a trial is a measuring program and no training."""
    return plan.get("compute") == "none"


def found(trials: Sequence[Measured]) -> Iterator[Value]:
    """All that the trials of a cell measured, in the order in which they told it."""
    by_trial = [rounds(trial) for trial in trials]
    for key in dict.fromkeys(key for measured in by_trial for key in measured):
        values = tuple(median(measured[key]) for measured in by_trial if key in measured)
        yield Value(*key, values)


def rounds(trial: Measured) -> dict[tuple[str, str, Where], list[float]]:
    """(name, unit, where) → the values of the measured rounds."""
    every: dict[tuple[str, str, Where], list[float]] = {}
    for record in trial.told:
        for name, unit, where, value in values_of(record):
            every.setdefault((name, unit, where), []).append(value)
    return every


def values_of(record: Record) -> Iterator[tuple[str, str, Where, float]]:
    """The values in one event: a `collective` has its time and its bandwidths (Mb/s, to be held against a link)."""
    if record["event"] == "collective":
        where = ("op", str(record["op"])), ("bytes", int(record["bytes"]))
        yield "collective_time", "ms", where, 1000 * float(record["seconds"])
        for name in ("algbw", "busbw"):
            if isinstance(record.get(name), int | float):
                yield name, "Mb/s", where, float(record[name]) / MEGABIT
        return
    about = record.get("where") if isinstance(record.get("where"), Mapping) else {}
    where_of = tuple((str(key), value) for key, value in (about or {}).items() if isinstance(value, str | int | float))
    yield str(record["name"]), str(record["unit"]), where_of, float(record["value"])
