"""Where a search's time went, from moments that its processes recorded. Called by `search.results`.

Ledger and event files are written on one machine, by its monotonic clock. A slot is room for one trial; its seconds are
those of the sitting. A trial trains from its trainer's first event to its last, less what it waited for Tune's answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from proving_ground.search import ledger
from proving_ground.search.ledger import Record
from proving_ground.search.store import SearchDir
from proving_ground.training.events import parsed, sensible

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
    "handover": "before, between and around trials: workers, their imports, hand-over",
    "empty": "slots for which no trial was left",
    "ray": "Ray's start, and what follows the last trial",
}
"""Part → what it is; in the order in which they are shown."""


def times(run_dir: SearchDir, records: Sequence[Record], concurrent: int) -> Times:
    """Where the seconds of all sittings went; where trials take turns in the slots, no trial has a time of its own."""
    names = sorted(ledger.trials(records))
    ends_t = [found[-1]["t"] for found in by_sitting(records).values()]
    trained = {it: trainer(run_dir.of_trial(it), ends_t) for it in names}
    spans, empty = occupied(records, concurrent)
    held = {it: sum(span.seconds for span in spans if span.trial == it) for it in names}
    whole = whole_s(records)
    parts = {
        "training": sum(it.seconds for it in trained.values()),
        "answers": sum(it.answers_s for it in trained.values()),
        "empty": empty,
        "ray": concurrent * (whole - ready_s(records)),
    }
    parts["handover"] = concurrent * whole - sum(parts.values())
    return Times(concurrent * whole, parts, trained, held)


def whole_s(records: Iterable[Record]) -> float:
    """Seconds of all sittings."""
    return sum(float(found[-1]["t"]) - float(found[0]["t"]) for found in by_sitting(records).values())


def spent(run_dir: SearchDir, records: Sequence[Record]) -> tuple[int, float]:
    """Steps that were made, again after an interruption too, and seconds of all sittings: what a budget is about.

    A killed driver's sitting lasts until its trainers' last event: nothing outlives it.
    """
    events = [it for name in ledger.trials(records) for it in read(run_dir.of_trial(name))]
    found = list(by_sitting(records).values())
    begins = [it[0]["t"] for it in found]
    seconds = 0.0
    for begin, last in zip(begins, (it[-1]["t"] for it in found), strict=True):
        end = min((it for it in begins if it > begin), default=float("inf"))
        seconds += max([last, *(it["t"] for it in events if begin <= it["t"] < end)]) - begin
    return sum(it["event"] == "step" for it in events), seconds


def ready_s(records: Iterable[Record]) -> float:
    """Seconds in which Ray was up, from its first moment to the last end of a trial."""
    total = 0.0
    for found in by_sitting(records).values():
        begin = next((it["t"] for it in found if it["event"] == ledger.READY), None)
        about = [it["t"] for it in found if "trial" in it]
        total += about[-1] - begin if about and begin is not None else 0.0
    return total


def by_sitting(records: Iterable[Record]) -> dict[int, list[Record]]:
    """The records of each driver."""
    found: dict[int, list[Record]] = {}
    for it in records:
        found.setdefault(it["sitting"], []).append(it)
    return found


def occupied(records: Iterable[Record], concurrent: int) -> tuple[list[Span], float]:
    """Every trial's time in a slot, from the moment when the slot was free; and the seconds of slots left without one.

    A trial takes the slot that has been free for longest. Where more trials have begun than there are slots, they take
    turns: then there are no spans.
    """
    spans: list[Span] = []
    empty = 0.0
    for found in by_sitting(records).values():
        ready = next((it["t"] for it in found if it["event"] == ledger.READY), None)
        if ready is None:
            continue
        free: list[float] = [ready] * concurrent
        begun: dict[str, float] = {}
        about = [it for it in found if "trial" in it]
        for it in about:
            if it["event"] == ledger.STARTED:
                if not free:
                    return [], 0.0
                begun[it["trial"]] = free.pop(0)
            elif it["event"] in (*ledger.ENDS, ledger.LOST) and it["trial"] in begun:
                spans.append(Span(it["trial"], begun.pop(it["trial"]), it["t"]))
                free.append(it["t"])
        last_t = about[-1]["t"] if about else ready
        spans += [Span(trial, begin, last_t) for trial, begin in begun.items()]
        empty += sum(last_t - it for it in free)
    return spans, empty


def trainer(file: Path, ends_t: Sequence[float]) -> Trained:
    """What a trial's event file tells of its time; `ends_t` has the last moment of each sitting.

    What follows after its last event but one answer, or after its driver's last word, is in no slot any more.
    """
    events = list(read(file))
    starts = [number for number, it in enumerate(events) if it["event"] == "start"]
    seconds = answers = 0.0
    for first, end in pairwise([*starts, len(events)]):
        until = min((it for it in ends_t if it >= events[first]["t"]), default=events[first]["t"])
        piece = [it for it in events[first:end] if it["t"] <= until]
        last_t = max((it["t"] for it in piece if not is_answer(it)), default=until)
        waited = sum(float(it["value"]) for it in piece if is_answer(it) and it["t"] <= last_t)
        answers += waited
        seconds += last_t - events[first]["t"] - waited
    steps = sum(it["event"] == "step" for it in events)
    return Trained(seconds, answers, steps)


def is_answer(event: Mapping[str, Any]) -> bool:
    """Whether it tells how long an answer of Tune's took."""
    return event["event"] == "measure" and event.get("name") == TUNE and sensible(event.get("value"))


def read(file: Path) -> Iterable[dict[str, Any]]:
    """The whole lines of an event file."""
    if not file.exists():
        return
    for line in file.read_bytes().split(b"\n")[:-1]:
        try:
            record = parsed(line)
        except ValueError:  # two processes' halves, where a driver was killed
            continue
        if isinstance(record, dict) and "event" in record and sensible(record.get("t")):
            yield record
