"""One sitting of a validation that takes longer than one: what is kept, how much time is left, what is done next.

Called by `tests.validations.matrix` and `tests.validations.aa`. Results are kept after every measurement, in one JSON
file under `reports/measured/`, so a sitting can be stopped at any moment and the next goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.progress import PLAIN_EVERY_S, clock
from bench.provenance import git, host
from bench.rundir import write_atomic

Document = dict[str, Any]

ROOT = Path(__file__).parent.parent.parent
MEASURED = ROOT / "reports" / "measured"


class KeptError(ValueError):
    """Results of an earlier sitting that cannot be used: one line. Exit status 2."""


@dataclass
class Sitting:
    """The time that may be used, and what is said meanwhile."""

    minutes: float
    now: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = print

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


def load(file: Path, command: str, *, anywhere: bool = False) -> Document:
    """What earlier sittings kept, or an empty document.

    Times of one machine are not added to those of another; counts are (`anywhere`), and each machine is named.

    Raises:
        KeptError: the file is damaged, of another validation, or has times of another machine.
    """
    if not file.exists():
        return {"command": command, "machine": host(), "cells": {}}
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise KeptError(f"{file}: {error}; move it away to start afresh") from None
    if not isinstance(document, dict) or document.get("command") != command or "cells" not in document:
        raise KeptError(f"{file}: not the results of {command!r}; move it away to start afresh")
    known = [named(it) for it in (document["machine"], *document.get("other_machines", []))]
    if named(host()) not in known:
        if not anywhere:
            raise KeptError(f"{file}: measured on another machine ({known[0]}); move it away to start afresh")
        document.setdefault("other_machines", []).append(host())
    return document


def named(machine: Document) -> str:
    """What a machine computes with."""
    return f"{machine['cores']} × {machine['cpu']}"


def keep(file: Path, document: Document) -> None:
    """Write the results whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(document, indent=1, sort_keys=True) + "\n")


def origin() -> dict[str, str | None]:
    """When and from which code a value comes."""
    return {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "commit": (git("rev-parse", "HEAD") or "")[:12] or None}
