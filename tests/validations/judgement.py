"""The judgement, judged: `python -m tests.validations judgement --minutes 60`, as often as it takes.

All that the judgement rests on, part by part, each a validation of its own that goes on where it was, and begins anew
once its code has changed: suites with mistakes in them, trainers with defects, recorded faults changed afterwards,
times to recovery over independent jobs, comparisons of separate runs, how training scales. Three values: a fail in any
part, a pass when every part is complete and of the present code, unknown till then.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from proving_ground.bench.spec import SpecError
from tests.validations import depends
from tests.validations.sitting import Sitting, State

LEAST_MINUTES = 1.0  # what is worth beginning a part for


class Validation(Protocol):
    """What every part's module offers."""

    FILE: Path

    def main(self, argv: list[str]) -> int:
        """One sitting."""

    def state(self, document: dict[str, Any]) -> State:
        """How far it is."""


def for_minutes(minutes: float) -> list[str]:
    """The words of a part that takes as long as it is given."""
    return ["--minutes", f"{minutes:.1f}"]


@dataclass(frozen=True)
class Part:
    """One part: what it asks, and its command line for so many minutes."""

    what: str
    words: Callable[[float], list[str]] = for_minutes


PARTS: dict[str, Part] = {
    "suites": Part("is a wrong suite refused in a line?", words=lambda _minutes: []),
    "trainers": Part("is a trainer with a defect ever called recovered, a sound one ever not?"),
    "tampering": Part("is a sealed record that was changed noticed?"),
    "same_training": Part("do random schedules of kills end bitwise like an undisturbed training?"),
    "restart": Part("times to recovery by a restart, over independent jobs"),
    "recovery": Part("the same by live recovery"),
    "shootout": Part("every mechanism under one schedule, torchrun beside them"),
    "aa": Part("does a comparison of two runs cry wolf?"),
    "scaling": Part("the default suite against its bars"),
    "matrix": Part("link × model × bucket × compression against bounds and predictions"),
}
"""Module → the part. From `restart` on times are measured: nothing else may run on the machine."""


def main(argv: Sequence[str]) -> int:
    """One sitting of whatever is not complete; exit status 1 unless every part is complete and as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations judgement", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; repeatable (default: all)")
    options = parser.parse_args(argv)
    if options.minutes <= 0:
        raise SpecError(f"--minutes {options.minutes:g}: must be above 0")
    sitting = Sitting(options.minutes)
    for name in options.only or PARTS:
        minutes = sitting.seconds_left() / 60
        if minutes >= LEAST_MINUTES and is_due(name):
            sitting.say(f"{name}: {PARTS[name].what} {sitting.left()}")
            validation(name).main(PARTS[name].words(minutes))
    for line in told():
        print(line)
    return int(verdict() != "pass")


def validation(name: str) -> Validation:
    """A part's module."""
    return cast("Validation", importlib.import_module(f"tests.validations.{name}"))


def measured(name: str) -> dict[str, Any]:
    """What was measured of a part; nothing where there is no file yet."""
    file = validation(name).FILE
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"cells": {}}
    return found


def state_of(name: str) -> State:
    """How far a part is."""
    return validation(name).state(measured(name))


def is_due(name: str) -> bool:
    """Whether a part is not complete, or was measured with other code."""
    return not state_of(name).complete or depends.has_changed(measured(name))


def verdict() -> str:
    """Of all parts: the worst. What was measured with other code than there is now proves nothing about this one."""
    found = {state_of(name).verdict for name in PARTS}
    stale = any(map(is_due, PARTS))
    return "fail" if "fail" in found else "unknown" if "unknown" in found or stale else "pass"


def told() -> list[str]:
    """A line for each part, and the verdict."""
    lines = [f"{name:<13} {state_of(name)}. {depends.words(found)}" if (found := measured(name)).get("code")
             else f"{name:<13} {state_of(name)}" for name in PARTS]  # fmt: skip
    goes_on = verdict() == "unknown" and any(map(is_due, PARTS))
    return [*lines, f"judgement: {verdict()}" + ("; the same command goes on" if goes_on else "")]
