"""Do the ranks of one job agree? An exact check that needs no twin. For `reports.scaling` and `reports.recovery`.

After every optimizer step all ranks of a generation have the same parameters, and the same optimizer state unless they
learn alone between two averages. (Fingerprints of local updates are taken after an average only.) Buffers are a rank's
own where they are statistics of its samples, as BatchNorm's: they differ from the first fingerprint on. Those that were
the same at the first one stay so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

SHARED = {"parameters": "parameters_sha256", "optimizer": "optimizer_sha256"}
BUFFERS = "buffers_sha256"


class Mark(Protocol):
    """What a rank recorded of its state after a step: hashes, None where it recorded none."""

    t: float
    step: int
    rank: int
    generation: int
    parameters_sha256: str | None
    optimizer_sha256: str | None
    buffers_sha256: str | None


@dataclass(frozen=True)
class Disagreement:
    """Ranks of a generation that differ after a step."""

    step: int
    generation: int
    t: float
    why: str


@dataclass(frozen=True)
class Agreement:
    """What the fingerprints of a job's ranks say of each other."""

    problems: Sequence[Disagreement] = ()
    compared: Sequence[tuple[int, float]] = ()  # (step, when) of each fingerprint that two ranks at least have recorded
    why_not: str = ""

    def first(self, since: int, until: int, begin_t: float, end_t: float) -> Disagreement | None:
        """The first one in some steps, or recorded in a time: what a later fault threw away counts too."""
        return next((it for it in self.problems if since < it.step <= until or begin_t <= it.t < end_t), None)


def agreement(recorded: Sequence[Mark], training: Mapping[str, Any]) -> Agreement:
    """Compare the ranks of each generation after each step that has fingerprints; `training` is the case's table."""
    own = training.get("norm") == "batch" and not training.get("sync_batchnorm")
    if own and not any(mark.buffers_sha256 for mark in recorded):  # as an earlier version recorded
        return Agreement(why_not="norm = 'batch': each rank has batch statistics of its own")
    alone = str(training.get("updates", "every_step")) != "every_step"
    parts = {"parameters": SHARED["parameters"]} if alone else SHARED
    groups: dict[tuple[int, int], list[Mark]] = {}
    for mark in recorded:
        groups.setdefault((mark.generation, mark.step), []).append(mark)
    several = {at: marks for at, marks in groups.items() if len({mark.rank for mark in marks}) > 1}
    if training.get("sync_batchnorm") or agreed_at_first(several.values()):
        parts = {**parts, "buffers": BUFFERS}
    problems = [found for marks in several.values() for found in differing(marks, parts)]
    compared = sorted((step, marks[0].t) for (_, step), marks in several.items())
    why_not = "" if compared else "no two ranks recorded a fingerprint of the same step"
    return Agreement(sorted(problems, key=lambda it: it.t), compared, why_not)


def agreed_at_first(groups: Iterable[Sequence[Mark]]) -> bool:
    """Whether all ranks recorded the same buffers when they first recorded anything."""
    first = min(groups, key=lambda marks: marks[0].t, default=())
    return len({mark.buffers_sha256 for mark in first}) == 1 and first[0].buffers_sha256 is not None


def differing(marks: Sequence[Mark], parts: Mapping[str, str]) -> Iterator[Disagreement]:
    """The first part in which the ranks differ."""
    for part, key in parts.items():
        by_hash: dict[str, int] = {}
        for mark in marks:
            value = getattr(mark, key)
            if value is not None:
                by_hash.setdefault(value, mark.rank)
        if len(by_hash) > 1:
            one, other = sorted(by_hash.values())[:2]
            why = (
                f"{part}: ranks {one} and {other} of generation {marks[0].generation} differ after step {marks[0].step}"
            )
            yield Disagreement(marks[0].step, marks[0].generation, min(mark.t for mark in marks), why)
            return
