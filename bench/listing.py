"""What `pg bench list` says of each run: its state, its headline, how old it is and how long it took.

Called by `bench.commands`. Reads the run directory and, where there is one, `results.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from proving_ground.bench import contract, rundir
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.training.events import sensible

TAIL = 65_536  # bytes at the end of the harness' events, where its last one stands
HEADS = ("run", "suite", "state", "trials", "headline", "verdicts", "age", "took")
VERDICTS = ("pass", "fail", "unknown")


@dataclass(frozen=True)
class RunRow:
    """A run in the list; None for what is not known."""

    run: str
    suite: str
    state: str  # complete, incomplete, in progress or not sealed
    trials: int | None  # planned
    headline: str  # the figure to look at first; empty where there is no report yet
    verdicts: Mapping[str, int]  # how many of each
    begun_s: float | None  # UTC, in seconds since 1970
    took_s: float | None
    why: str = ""  # its report is there and cannot be read

    @property
    def counted(self) -> str:
        """`6 pass, 1 unknown`."""
        told = ", ".join(f"{self.verdicts[it]} {it}" for it in VERDICTS if it in self.verdicts)
        return told or self.why or "no report yet"

    @property
    def cells(self) -> tuple[str, ...]:
        """As the list shows it, in the order of `HEADS`."""
        planned = "?" if self.trials is None else str(self.trials)
        when = (age(self.begun_s), span(self.took_s))
        return (self.run, self.suite, self.state, planned, self.headline, self.counted, *when)


def listed(store: RunDir) -> RunRow:
    """What can be said of a run, whatever of it is missing."""
    seal, planned, origin = (read_or_none(store, it) or {} for it in ("seal", "plan", "provenance"))
    results, why = results_of(store)
    state = "complete" if seal.get("complete") else "incomplete" if seal else "not sealed"
    found = [it.get("verdict") for it in rows(results, "verdicts")]
    return RunRow(
        store.run_id, store.suite, "in progress" if rundir.in_progress(store) else state,
        len(rows(planned, "trials")) if planned else None, headline(results),
        {it: found.count(it) for it in VERDICTS if it in found}, number(origin.get("wall_s")), took_s(store, origin),
        why,
    )  # fmt: skip


def results_of(store: RunDir) -> tuple[Mapping[str, Any], str]:
    """What its report says, and where that is there and cannot be read, why."""
    if not store.results.exists():
        return {}, ""
    try:
        return contract.read(store), ""
    except RunDirError as error:
        return {}, str(error).removeprefix(f"{store.results}: ")


def headline(results: Mapping[str, Any]) -> str:
    """The figure to look at first: how far it scaled, or how many faults were got over; empty where there is neither.

    Of several cases the one that scaled least; weak scaling before strong.
    """
    if faults := rows(results, "trials"):
        good = sum(it.get("outcome") == "recovered" for it in faults)
        waits = medians(results, "time_to_recovery") or medians(results, "resume")  # older reports have only that
        return f"{good} of {len(faults)} recovered" + (f", {median(waits):.2g} s" if waits else "")
    found = [
        (it["where"].get("scaling") != "weak", -nodes, kept, it["where"])
        for it in rows(results, "figures")
        if it.get("name") == "efficiency"
        and isinstance(it.get("where"), dict)
        and (nodes := number(it["where"].get("nodes"))) is not None
        and (kept := number(it.get("median"))) is not None
    ]
    if not found:
        return ""
    _, less, kept, where = min(found, key=lambda it: it[:3])
    return f"{where.get('case')} {where.get('scaling')} {-less:g} nodes {kept:.1f} %"


def medians(results: Mapping[str, Any], name: str) -> list[float]:
    """Those of all figures of this name."""
    found = (number(it.get("median")) for it in rows(results, "figures") if it.get("name") == name)
    return [it for it in found if it is not None]


def took_s(store: RunDir, origin: Mapping[str, Any]) -> float | None:
    """How long it was run, all sittings together; None where its harness recorded nothing."""
    file = store.events / f"{rundir.HARNESS}.jsonl"
    if not file.exists():
        return None
    begun = number(origin.get("t"))
    if begun is not None and not origin.get("sittings") and (last := last_t(store)) is not None:
        return max(0.0, last - begun)
    moments = [rundir.moment(it) for it in rundir.read_events(file)]
    spans = [[t for _, t in group] for _, group in groupby(moments, key=lambda it: it[0])]
    return sum(max(span) - min(span) for span in spans)


def last_t(store: RunDir) -> float | None:
    """The time of the harness' last event, read from the end of its file."""
    with (store.events / f"{rundir.HARNESS}.jsonl").open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            return number(json.loads(line)["t"])
        except (ValueError, LookupError, TypeError):
            continue  # half written
    return None


def number(value: object) -> float | None:
    """The value, if it is a number that can be computed with."""
    return float(value) if isinstance(value, int | float) and sensible(value) else None


def rows(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The tables in a list of a document; empty where there is none."""
    found = document.get(name)
    return [it for it in found if isinstance(it, dict)] if isinstance(found, list) else []


def read_or_none(store: RunDir, name: str) -> dict[str, Any] | None:
    """A document of a run, if it can be read and is a table."""
    try:
        document = store.read(name)
    except RunDirError:
        return None
    return document if isinstance(document, dict) else None


def age(begun_s: float | None, now_s: float | None = None) -> str:
    """`3 h ago`; `?` where it is not known when a run began."""
    if begun_s is None:
        return "?"
    return f"{span(max(0.0, (time.time() if now_s is None else now_s) - begun_s))} ago"


def span(seconds: float | None) -> str:
    """A time in its largest unit that is not zero: `48 s`, `5 min`, `3 h`, `12 d`; `?` where it is not known."""
    if seconds is None:
        return "?"
    units: Iterable[tuple[str, float]] = (("d", 86_400), ("h", 3600), ("min", 60))
    return next((f"{seconds / size:.0f} {name}" for name, size in units if seconds >= size), f"{seconds:.0f} s")
