"""Where a search's time went, from moments that its processes recorded. Called by `search.results`.

Ledger and event files are written on one machine, by its monotonic clock. A slot is room for one trial; its seconds are
those of the sitting. A trial trains from its trainer's first event to its last, less what it waited for Tune's answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from search import ledger
from search.ledger import Record
from search.store import SearchDir
from training.events import parsed

TUNE = "tune_report"
"""Name of the `measure` events in which a worker tells how long an answer of Tune's took (`search.trial`)."""


@dataclass(frozen=True)
class Span:
    """A trial in a slot, once: seconds on the machine's clock."""

    trial: str
    begin_t: float
    end_t: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end_t - self.begin_t


@dataclass(frozen=True)
class Trained:
    """What the trainer of one trial recorded, all of its starts together."""

    seconds: float = 0.0  # of training
    answers_s: float = 0.0  # waited for Tune
    steps: int = 0  # made, those made again included
    begun_t: tuple[float, ...] = ()  # each start


@dataclass(frozen=True)
class Times:
    """Seconds of all slots together, and of each trial."""

    slots_s: float
    parts: Mapping[str, float]  # what they went into; adds up to `slots_s`
    trials: Mapping[str, Trained]
    held_s: Mapping[str, float]  # trial → seconds for which it had a slot

    @property
    def overhead(self) -> float | None:
        """Share of the slots' seconds in which no trial trained."""
        return 1 - self.parts["training"] / self.slots_s if self.slots_s else None


PARTS: Mapping[str, str] = {
    "training": "training",
    "answers": "waiting for Tune's answers",
    "set_up": "set-up of trials: a worker, its imports, its first event",
    "empty": "slots without a trial: between two, and when fewer were left than slots",
    "ray": "Ray's start and end",
}
"""Part → what it is; in the order in which they are shown."""


def times(run_dir: SearchDir, records: Sequence[Record], concurrent: int) -> Times:
    """Where the seconds of all sittings went."""
    names = sorted(ledger.trials(records))
    trained = {it: trainer(run_dir.of_trial(it)) for it in names}
    spans = list(occupied(records))
    held = {it: sum(span.seconds for span in spans if span.trial == it) for it in names}
    whole = whole_s(records)
    inside = sum(held.values())
    parts = {
        "training": sum(it.seconds for it in trained.values()),
        "answers": sum(it.answers_s for it in trained.values()),
        "empty": concurrent * ready_s(records) - inside,
        "ray": concurrent * (whole - ready_s(records)),
    }
    parts["set_up"] = concurrent * whole - sum(parts.values())
    return Times(concurrent * whole, parts, trained, held)


def whole_s(records: Iterable[Record]) -> float:
    """Seconds of all sittings."""
    return sum(float(last["t"]) - float(first["t"]) for first, *_, last in map(twice, by_sitting(records).values()))


def ready_s(records: Iterable[Record]) -> float:
    """Seconds in which Ray was up, from its first moment to the last end of a trial."""
    total = 0.0
    for found in by_sitting(records).values():
        begin = next((it["t"] for it in found if it["event"] == ledger.READY), None)
        about = [it["t"] for it in found if "trial" in it]
        total += about[-1] - begin if about and begin is not None else 0.0
    return total


def twice(found: Sequence[Record]) -> Sequence[Record]:
    """At least two records, so that there is a first and a last."""
    return found if len(found) > 1 else [*found, *found]


def by_sitting(records: Iterable[Record]) -> dict[int, list[Record]]:
    """The records of each driver."""
    found: dict[int, list[Record]] = {}
    for it in records:
        found.setdefault(it["sitting"], []).append(it)
    return found


def occupied(records: Iterable[Record]) -> Iterable[Span]:
    """Every trial's time in a slot, from its start to its end, or to the end of its driver."""
    for found in by_sitting(records).values():
        begun: dict[str, float] = {}
        for it in found:
            if it["event"] == ledger.STARTED:
                begun[it["trial"]] = it["t"]
            elif it["event"] in ledger.ENDS and it["trial"] in begun:
                yield Span(it["trial"], begun.pop(it["trial"]), it["t"])
        for trial, begin in begun.items():
            yield Span(trial, begin, found[-1]["t"])


def trainer(file: Path) -> Trained:
    """What a trial's event file tells of its time."""
    events = list(read(file))
    starts = [number for number, it in enumerate(events) if it["event"] == "start"]
    seconds = answers = 0.0
    for first, end in pairwise([*starts, len(events)]):
        piece = events[first:end]
        waited = sum(float(it["value"]) for it in piece if it["event"] == "measure" and it.get("name") == TUNE)
        answers += waited
        seconds += piece[-1]["t"] - piece[0]["t"] - waited
    steps = sum(it["event"] == "step" for it in events)
    return Trained(seconds, answers, steps, tuple(events[it]["t"] for it in starts))


def read(file: Path) -> Iterable[dict[str, Any]]:
    """The whole lines of an event file."""
    if not file.exists():
        return
    for line in file.read_bytes().split(b"\n")[:-1]:
        try:
            record = parsed(line)
        except json.JSONDecodeError:  # two processes' halves, where a driver was killed
            continue
        if isinstance(record, dict) and "event" in record:
            yield record
