"""Is it still the same training? Fingerprints along the lineage of the final weights against undisturbed twins.

Called by `reports.recovery.results`. Where the world has always had the twin's size, hashes must be equal, bit by bit;
in exact mode (`reduction = "exact"` in the plan) at every size, and to every twin. Elsewhere, after a change of size,
the order of sums differs, so sketches (seeded random projections of the parameters) are compared: their distance may be
at most `TOLERANCE` times the largest that two undisturbed twins of different sizes have had from each other up to that
step. The learning rate must be equal in any case.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from reports.recovery.jobs import Fingerprint, Job
from reports.recovery.steps import Stretch

PARTS = {
    "parameters": "parameters_sha256",
    "optimizer": "optimizer_sha256",
    "learning rate": "lr",
    "random states": "random_sha256",
}
TOLERANCE = 3  # times the distance of the undisturbed twins: several changes of size add up
TELLING = 0.5  # of the way that the twin has come: a distance that may be larger than this tells nothing
NEAR_LR = 1e-9  # relative; a rate is a pure function of the step

Marks = Mapping[tuple[int, int], Fingerprint]
"""(step, rank) → fingerprint."""


@dataclass(frozen=True)
class Twin:
    """An undisturbed job of the same configuration and its fingerprints."""

    job: Job
    world: int
    marks: Marks


@dataclass(frozen=True, slots=True)
class Judged:
    """One part of the state at one fingerprint: `same` is None where it cannot be compared."""

    step: int
    part: str
    same: bool | None
    why: str
    t: float = 0.0


@dataclass(frozen=True)
class Bound:
    """How far a state may be from the twin's at a step, and how far the twin has come by then; norms of sketches."""

    allowed: float
    come: float


@dataclass(frozen=True)
class Sameness:
    """What all fingerprints of a job say; `twin` is the one they were compared with."""

    twin: str = ""
    judged: Sequence[Judged] = field(default_factory=tuple)
    why_not: str = ""  # why nothing could be compared; empty: something was
    thrown_away: Sequence[Judged] = field(default_factory=tuple)  # of steps that the final weights do not come from

    @cached_property
    def by_part(self) -> Mapping[str, tuple[Sequence[Judged], Sequence[int]]]:
        """Part ("" for all) → (what differs, the steps at which all that was compared is the same); both by step."""
        found = {}
        for part in ("", *PARTS):
            of_part = [one for one in self.judged if part in ("", one.part)]
            differing = sorted((one for one in of_part if one.same is False), key=lambda one: one.step)
            wrong = {one.step for one in differing}
            found[part] = differing, sorted({one.step for one in of_part if one.same} - wrong)
        return found

    @cached_property
    def bitwise(self) -> Sequence[int]:
        """The steps at which the parameters equal the twin's, bit by bit, before anything differs."""
        first = min((one.step for one in self.differing()), default=math.inf)
        equal = {one.step for one in self.judged if one.part == "parameters" and one.same and one.why == BITWISE}
        return sorted(step for step in equal if step < first)

    @cached_property
    def undecided(self) -> str:
        """Why the parameters could not be judged at some step; empty when they could."""
        return next((one.why for one in self.judged if one.same is None and one.part == "parameters"), "")

    @cached_property
    def how(self) -> Mapping[int, str]:
        """Step → how the parameters were judged there."""
        return {one.step: one.why for one in self.judged if one.part == "parameters"}

    def differing(self, part: str = "") -> Sequence[Judged]:
        """What differs, the first step first."""
        return self.by_part[part][0]

    def steps(self, part: str = "") -> Sequence[int]:
        """The steps at which something was compared and is the same."""
        return self.by_part[part][1]

    def bitwise_after(self, step: int) -> int | None:
        """The first step from here on at which the parameters are proven."""
        at = bisect_left(self.bitwise, step)
        return self.bitwise[at] if at < len(self.bitwise) else None


BITWISE = "bitwise equal"
LIKE = "as the twin's"


def marks_of(job: Job, stretches: Sequence[Stretch]) -> dict[tuple[int, int], Fingerprint]:
    """The fingerprints that belong to the final weights."""
    return {(mark.step, mark.rank): mark for mark in job.fingerprints if kept(mark, stretches)}


def kept(mark: Fingerprint, stretches: Sequence[Stretch]) -> bool:
    """Whether what a worker recorded at a step belongs to the final weights."""
    at = bisect_right(stretches, mark.generation, key=lambda part: part.generation) - 1
    part = stretches[at] if at >= 0 else None
    return bool(part and part.generation == mark.generation and part.first <= mark.step <= part.last)


def compare(job: Job, stretches: Sequence[Stretch], changed: Mapping[int, float], twins: Sequence[Twin]) -> Sameness:
    """Every fingerprint of a job against the twin of its own size (the first), those that were thrown away too.

    `changed` says of each generation from which step on its lineage knows a world of another size than the twin's. In
    exact mode that makes no difference, and every twin counts, whatever its size.
    """
    if not twins:
        return Sameness(why_not="no undisturbed twin was run to compare with")
    twin, marks = twins[0], job.fingerprints
    if not marks or not twin.marks:
        return Sameness(
            twin.job.id, why_not=f"no fingerprint was recorded by {'this job' if not marks else 'its twin'}"
        )
    exactly = (job.plan.get("training") or {}).get("reduction") == "exact"
    bound = bounds(twins)
    judged: list[Judged] = []
    thrown_away: list[Judged] = []
    for one in twins if exactly else [twin]:
        known = by_step(one.marks)
        for mark in marks:
            if mark.step in known:
                exact = exactly or mark.step < changed.get(mark.generation, math.inf)
                same_rank = one.marks.get((mark.step, mark.rank)) or (known[mark.step] if exactly else None)
                found = judge(mark, same_rank, known[mark.step], exact=exact, bound=bound.get(mark.step))
                (judged if kept(mark, stretches) else thrown_away).extend(found)
    why_not = "" if judged or thrown_away else f"no fingerprint of a step that twin {twin.job.id} has too"
    return Sameness(twin.job.id, judged, why_not, thrown_away)


def by_step(marks: Marks) -> dict[int, Fingerprint]:
    """Step → the fingerprint of one of its ranks."""
    return {step: mark for (step, _), mark in sorted(marks.items(), reverse=True)}


def judge(
    mark: Fingerprint, same_rank: Fingerprint | None, any_rank: Fingerprint, *, exact: bool, bound: Bound | None
) -> list[Judged]:
    """The four parts of one fingerprint against the twin's of the same rank, or else of any."""
    other = same_rank or any_rank
    found = []
    same: bool | None
    for part, key in PARTS.items():
        mine, its = getattr(mark, key), getattr(other, key)
        if part == "random states" and not (same_rank and exact):
            continue  # every rank has its own, so there is nothing to compare with in a world of another size
        if mine is None or its is None:
            continue
        if part == "learning rate":
            same, why = same_rate(mine, its)
        elif mine == its:
            same, why = True, BITWISE
        elif exact:
            same, why = False, f"rank {mark.rank}: {str(mine)[:12]}… instead of {str(its)[:12]}…"
        else:
            same, why = same_sketch(part, mark, other, bound)
        found.append(Judged(mark.step, part, same, why, mark.t))
    return found


def same_rate(mine: float, its: float) -> tuple[bool, str]:
    """Whether two learning rates are the same."""
    same = math.isclose(mine, its, rel_tol=NEAR_LR)
    return same, LIKE if same else f"{mine:g}, the twin has {its:g}"


def same_sketch(part: str, mark: Fingerprint, other: Fingerprint, bound: Bound | None) -> tuple[bool | None, str]:
    """Whether two states are as near as sums in another order leave them."""
    if part != "parameters":
        return None, "the world changed its size: judged by the parameters that come of it"
    far = distance(mark, other)
    if far is None or bound is None:
        return None, "the world changed its size, and there are no two twins of different sizes to say how near is near"
    if bound.allowed > TELLING * bound.come:
        apart = f"{bound.allowed / TOLERANCE:.2g} apart where training has come {bound.come:.2g}"
        return None, f"twins of different sizes are {apart}: too much to say how near is near (dropout does that)"
    return far <= bound.allowed, f"{far:.2g} from the twin, allowed {bound.allowed:.2g}, come {bound.come:.2g}"


def distance(one: Fingerprint, other: Fingerprint) -> float | None:
    """Euclidean distance of two sketches; None where one is missing."""
    mine, its = one.sketch, other.sketch
    if not mine or not its or len(mine) != len(its):
        return None
    return float(np.linalg.norm(np.asarray(mine, dtype=float) - np.asarray(its, dtype=float)))


def bounds(twins: Sequence[Twin]) -> dict[int, Bound]:
    """Step → what is allowed, from two twins of different sizes; empty where there are none."""
    for one in twins:
        for other in twins:
            if one.world > other.world:
                return allowed(one.marks, other.marks)
    return {}


def allowed(one: Marks, other: Marks) -> dict[int, Bound]:
    """`TOLERANCE` times the running maximum of two twins' distance, and how far the larger has come by then."""
    mine, theirs = dict(sorted(by_step(one).items())), by_step(other)
    if not mine:
        return {}
    first, second = (list(mine.values()) * 2)[:2]
    found, largest = {}, 0.0
    come = distance(first, second) or 0.0  # of the first fingerprint: as far as from it to the second
    for step, mark in mine.items():
        far = distance(mark, theirs[step]) if step in theirs else None
        if far is not None:
            largest, come = max(largest, far), max(come, distance(first, mark) or 0.0)
            found[step] = Bound(TOLERANCE * largest, come)
    return found
