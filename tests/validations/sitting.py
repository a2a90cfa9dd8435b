"""One sitting of a validation that takes longer than one: what is kept, how much time is left, what is done next.

Called by the validations. Results are kept after every measurement, in one JSON file under `reports/measured/`, so a
sitting can be stopped at any moment and the next goes on. What is measured how often is decided before the first
measurement and kept in the file; the order is every cell once, then every cell a second time. So no cell can be
measured again because of its value. Once its code has changed, a whole file may begin anew by the same plan; how far it
was, and what its verdict was, stays in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from proving_ground.bench.progress import PLAIN_EVERY_S, clock
from proving_ground.bench.provenance import git, host
from proving_ground.bench.rundir import write_atomic
from tests.validations import depends

Document = dict[str, Any]

ROOT = depends.ROOT
MEASURED = ROOT / "reports" / "measured"


class KeptError(ValueError):
    """Results of an earlier sitting that cannot be used: one line. Exit status 2."""


def say(line: str) -> None:
    """Print a line at once, so that it stands before what child processes print."""
    print(line, flush=True)


@dataclass
class Sitting:
    """The time that may be used, and what is said meanwhile."""

    minutes: float
    now: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = say

    def __post_init__(self) -> None:
        self.end = self.now() + 60 * self.minutes

    def fits(self, estimate_s: float) -> bool:
        """Whether something that takes so long can still be done."""
        return self.now() + estimate_s <= self.end

    def seconds_left(self) -> float:
        """Of this sitting."""
        return self.end - self.now()

    def left(self) -> str:
        """The time left, for people."""
        return f"{clock(self.end - self.now())} of this sitting left"


class Pace:
    """Says now and then how much longer a long count takes."""

    def __init__(self, whole: int, now: Callable[[], float] = time.monotonic) -> None:
        self._whole, self._now, self._begun = whole, now, now()
        self._said = self._begun

    def left(self, done: int) -> str:
        """The time left, for people; empty if that was said a moment ago."""
        now = self._now()
        if now - self._said < PLAIN_EVERY_S or not done:
            return ""
        self._said = now
        return f"{clock((now - self._begun) * (self._whole - done) / done)} left"


@dataclass(frozen=True)
class State:
    """How far a validation is: `bad` of what was done is not as it must be, `open` of it cannot be told."""

    done: int
    whole: int
    unit: str
    bad: int
    open: int = 0

    @property
    def complete(self) -> bool:
        """Whether all was done that was decided."""
        return self.done >= self.whole

    @property
    def verdict(self) -> str:
        """Pass, fail, or unknown while something is missing."""
        return "fail" if self.bad else "pass" if self.complete and not self.open else "unknown"

    def __str__(self) -> str:
        """For people."""
        more = f", {self.bad:,} not as they must be" if self.bad else ""
        more += f", {self.open:,} cannot be told" if self.open else ""
        return f"{self.verdict}: {self.done:,} of {self.whole:,} {self.unit}{more}"


def load(
    file: Path,
    command: str,
    state: Callable[[Document], State] | None = None,
    *,
    anywhere: bool = False,
    partial: bool = False,
) -> Document:
    """What earlier sittings kept, or an empty document.

    Times of one machine are not added to those of another; counts are (`anywhere`), and each machine is named. Where
    there is a `state`, a verdict rests on the values: then what other code did is not added to. The document begins
    anew by the same plan, and tells how far the earlier one was; its values are in the file's history. A part of it
    alone (`partial`) does not begin it anew.

    Raises:
        KeptError: the file is damaged, of another validation, or has times of another machine.
    """
    fresh: Document = {"command": command, "machine": host(), "cells": {}}
    if not file.exists():
        return fresh
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise KeptError(f"{file}: {error}; move it away to start afresh") from None
    if not isinstance(document, dict) or document.get("command") != command or "cells" not in document:
        raise KeptError(f"{file}: not the results of {command!r}; move it away to start afresh")
    if state and depends.has_changed(document):
        if partial:
            raise KeptError(
                f"{file}: its code has changed; a part alone does not begin it anew: move it away, or --out"
            )
        return {**fresh, **begun_anew(file, document, state)}
    known = [named(it) for it in (document["machine"], *document.get("other_machines", []))]
    if named(host()) not in known:
        if not anywhere:
            raise KeptError(f"{file}: measured on another machine ({known[0]}); move it away to start afresh")
        document.setdefault("other_machines", []).append(host())
    return document


def begun_anew(file: Path, document: Document, state: Callable[[Document], State]) -> Document:
    """What stays of a document that other code made: the plan, and how far it was."""
    try:
        told = f"{state(document)}. {depends.at(document)} on {named(document['machine'])}."
    except (KeyError, TypeError, AttributeError):
        told = f"of an older format. {depends.at(document)}."
    say(f"{file.name}: its code has changed, so it begins anew; before: {told}")
    plan = {name: document[name] for name in ("plan", "rounds") if isinstance(document.get(name), int | dict)}
    return {**plan, "earlier": [*document.get("earlier", []), told]}


def named(machine: Document) -> str:
    """What a machine computes with."""
    return f"{machine['cores']} × {machine['cpu']}"


def keep(file: Path, document: Document) -> None:
    """Write the results whole or not at all, with the code that they were measured with.

    One that begins anew takes the earlier one's place with its first value.
    """
    if document.get("earlier") and not has_values(document):
        return
    depends.record(document)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(document, indent=1, sort_keys=True) + "\n")


def has_values(document: Mapping[str, Any]) -> bool:
    """Whether anything was measured; a cell that only has its plan, or a run that was cut off, is not."""
    cells = document.get("cells", {"all": document}).values()
    return any(cell.get("runs", cell) if isinstance(cell, dict) else cell for cell in cells)


def origin() -> dict[str, str | None]:
    """When and from which code a value comes."""
    return {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "commit": (git("rev-parse", "HEAD") or "")[:12] or None}


def decide(document: Document, **numbers: Any) -> None:
    """Keep what is to be measured before anything is.

    Raises:
        KeptError: something else was decided when the file was begun.
    """
    decided = document.setdefault("plan", numbers)
    if decided != numbers:
        raise KeptError(
            f"{document['command']}: decided before the first measurement: {shown(decided)}; now: {shown(numbers)}; "
            "move its file away to start afresh"
        )


def shown(numbers: Mapping[str, Any]) -> str:
    """A plan in a few words."""
    sizes = {name: len(it) if isinstance(it, list) else it for name, it in sorted(numbers.items())}
    return ", ".join(f"{name} {value}" for name, value in sizes.items())


def runs_of(document: Mapping[str, Any], cell: str) -> list[Document]:
    """What was kept of a cell, first to last."""
    found: list[Document] = document["cells"].get(cell, {}).get("runs", [])
    return found


def turn(document: Mapping[str, Any], cells: Sequence[str], rounds: int) -> str:
    """The cell whose turn it is: each once, then each a second time, in their order; empty when all have `rounds`."""
    counts = {cell: len(runs_of(document, cell)) for cell in cells}
    first = min(counts, key=lambda cell: counts[cell], default="")
    return first if first and counts[first] < rounds else ""


def begin(document: Document, cell: str) -> None:
    """Count a run before it starts: one that is cut off leaves no result, but a difference."""
    entry = document["cells"].setdefault(cell, {"runs": []})
    entry["begun"] = entry.get("begun", len(entry["runs"])) + 1


def cut_off(document: Mapping[str, Any]) -> int:
    """How many runs were begun and left no result."""
    return sum(it.get("begun", len(it["runs"])) - len(it["runs"]) for it in document["cells"].values() if "runs" in it)
