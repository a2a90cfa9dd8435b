"""Is it still the same training? Fingerprints, bit by bit, against undisturbed jobs of the same configuration.

Called by `reports.recovery.results`. While the world has always had the twin's size, hashes must be the twin's. In
exact mode (`reduction = "exact"` in the plan) they must be every twin's, at every size. Elsewhere, after a change of
size, sums are added in another order, and hashes must be those of the job's replay: the same steps, undisturbed, in
worlds of the same sizes. Where there is no replay nothing can be said. Nor where a trainer of one's own differs after a
start by as little as the order of its sums makes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from proving_ground.reports.recovery.jobs import Fingerprint, Job, apart
from proving_ground.reports.recovery.steps import Stretch

PARTS = {
    "parameters": "parameters_sha256",
    "buffers": "buffers_sha256",
    "optimizer": "optimizer_sha256",
    "learning rate": "lr",
    "random states": "random_sha256",
}
NEAR_LR = 1e-9  # relative; a rate is a pure function of the step
IN_ANY_ORDER = 2  # parts of a sum that give the same bits in every order: a + b is b + a
ROUNDING = 0.01
"""Of the way that the parameters have come since they last were the same: up to here a difference may be rounding.

DDP rebuilds its buckets after the first step of each start, in the order in which gradients were ready. With three
ranks the first step after a restart then adds up in another order. Seen with one small network, AdamW and float32: 5e-8
of the way after ten steps. A lost Adam state is about as far off as the way itself.
"""
REBUILT = (
    "DDP rebuilds its buckets after each start, so three ranks or more add up in another order; with "
    "find_unused_parameters=True bits can be compared"
)
ROUNDED = ("parameters", "buffers", "optimizer")
"""What then differs as well."""

Marks = Mapping[tuple[int, int], Fingerprint]
"""(step, rank) → fingerprint."""


@dataclass(frozen=True)
class Twin:
    """An undisturbed job of the same configuration, its fingerprints, and the sizes of its worlds."""

    job: Job
    world: int
    marks: Marks
    stretches: Sequence[Stretch] = ()


@dataclass(frozen=True)
class Replay:
    """The undisturbed job that made a job's steps again; or why there is none."""

    twin: Twin | None = None
    why_not: str = "no replay of it was run"


@dataclass(frozen=True, slots=True)
class Judged:
    """One part of the state at one fingerprint: `same` is None where it cannot be compared."""

    step: int
    part: str
    same: bool | None
    why: str
    t: float = 0.0
    lacking: bool = False  # there is something to compare, and what was recorded cannot tell


@dataclass(frozen=True)
class Sameness:
    """What all fingerprints of a job say; `twin` is the one they were compared with."""

    twin: str = ""
    judged: Sequence[Judged] = field(default_factory=tuple)
    why_not: str = ""  # why nothing could be compared; empty: something was
    replay: str = ""  # what it was compared with once the size had changed
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

    @property
    def names(self) -> str:
        """`twin t002`, or `twin t002 and replay t003`."""
        return f"twin {self.twin}" + (f" and replay {self.replay}" if self.replay else "")

    @cached_property
    def bitwise(self) -> Sequence[int]:
        """The steps at which the parameters equal the twin's, bit by bit, before anything differs."""
        first = min((one.step for one in self.differing()), default=math.inf)
        equal = {one.step for one in self.judged if one.part == "parameters" and one.same and one.why == BITWISE}
        return sorted(step for step in equal if step < first)

    def undecided(self, since: int, until: int) -> str:
        """Why a part could not be judged at some step after `since` and up to `until`; empty: all could."""
        return next((why for step, why in self._undecided if since < step <= until), "")

    @cached_property
    def _undecided(self) -> Sequence[tuple[int, str]]:
        return [(one.step, one.why) for one in self.judged if one.same is None]

    @cached_property
    def how(self) -> Mapping[int, str]:
        """Step → how the parameters were judged there."""
        return {one.step: one.why for one in self.judged if one.part == "parameters"}

    def lacking(self, since: int) -> str:
        """What only one of two jobs recorded of a later step, thrown away or not; empty: nothing."""
        return next((one.why for one in (*self.judged, *self.thrown_away) if one.lacking and one.step > since), "")

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


def without_its_end(twin: Twin) -> Twin:
    """A twin but for what it did while it was ended: ranks are asked to leave one after the other.

    Those that are left may make a step in a smaller world, and some may not have told their last fingerprint.
    """
    stretches = [it for it in twin.stretches if not 0 < it.world < twin.world]
    marks = {at: mark for at, mark in twin.marks.items() if kept(mark, stretches)}
    last = max((step for step, _ in marks), default=0)
    if {rank for step, rank in marks if step == last} != {rank for _, rank in marks}:
        marks = {(step, rank): mark for (step, rank), mark in marks.items() if step < last}
    return replace(twin, marks=marks, stretches=stretches)


def compare(
    job: Job,
    stretches: Sequence[Stretch],
    changed: Mapping[int, float],
    twins: Sequence[Twin],
    replay: Replay | None = None,
) -> Sameness:
    """Every fingerprint of a job against the twin of its own size (the first), those that were thrown away too.

    `changed` says of each generation from which step on its lineage knows a world of another size than the twin's: from
    there on the replay counts. In exact mode that makes no difference, and every twin counts, whatever its size.
    """
    if not twins:
        return Sameness(why_not="no undisturbed twin was run to compare with")
    twin, marks = twins[0], job.fingerprints
    if not marks or not twin.marks:
        return Sameness(
            twin.job.id, why_not=f"no fingerprint was recorded by {'this job' if not marks else 'its twin'}"
        )
    exactly = (job.plan.get("training") or {}).get("reduction") == "exact"
    again = replay or Replay()
    same_until = math.inf if exactly else same_sizes(stretches, again.twin.stretches) if again.twin else 0
    judged: list[Judged] = []
    thrown_away: list[Judged] = []
    for number, one in enumerate(twins if exactly else [twin]):
        known = by_step(one.marks)
        for mark in marks:
            here = kept(mark, stretches)
            if exactly or mark.step < changed.get(mark.generation, math.inf):
                if mark.step not in known:
                    continue
                same_rank = one.marks.get((mark.step, mark.rank)) or (known[mark.step] if exactly else None)
                found = judge(mark, same_rank)
            elif number:
                continue
            elif again.twin and here and mark.step <= same_until and (mark.step, mark.rank) in again.twin.marks:
                found = judge(mark, again.twin.marks[mark.step, mark.rank])
            else:
                found = [not_comparable(mark, again, here=here)]
            (judged if here else thrown_away).extend(found)
    why_not = "" if judged or thrown_away else f"no fingerprint of a step that twin {twin.job.id} has too"
    since, why = order_of_sums(job, twin)
    judged, thrown_away = ([unless_order(one, since, why) for one in some] for some in (judged, thrown_away))
    return Sameness(twin.job.id, judged, why_not, again.twin.job.id if again.twin else "", thrown_away)


def same_sizes(mine: Sequence[Stretch], its: Sequence[Stretch]) -> int:
    """The last step up to which two jobs made every step in a world of the same size."""
    last = 0
    bounds = sorted({0, *(part.last for part in (*mine, *its))})
    for before, step in pairwise(bounds):
        if size_at(mine, before + 1) != size_at(its, before + 1) or not size_at(mine, step):
            break
        last = step
    return last


def size_at(stretches: Sequence[Stretch], step: int) -> int:
    """The size of the world that made a step; 0: none did."""
    return next((part.world for part in stretches if part.first <= step <= part.last), 0)


def not_comparable(mark: Fingerprint, replay: Replay, *, here: bool) -> Judged:
    """Why nothing can be said of a fingerprint after a change of size."""
    why = replay.why_not if not replay.twin else "its replay has no such step in a world of that size"
    if replay.twin and not here:
        why = "a replay makes only the steps that the final weights come from"
    return Judged(mark.step, "parameters", None, f"the world changed its size: {why}", mark.t)


def by_step(marks: Marks) -> dict[int, Fingerprint]:
    """Step → the fingerprint of one of its ranks."""
    return {step: mark for (step, _), mark in sorted(marks.items(), reverse=True)}


def judge(mark: Fingerprint, other: Fingerprint | None) -> list[Judged]:
    """The parts of one fingerprint, bit by bit, against another's of the same rank; what both lack is left out."""
    if other is None:
        return [Judged(mark.step, "parameters", None, f"the twin has no rank {mark.rank}", mark.t)]
    found = []
    for part, key in PARTS.items():
        mine, its = getattr(mark, key), getattr(other, key)
        if mine is None and its is None:
            continue
        if mine is None or its is None:
            why = f"rank {mark.rank}: only one of the two recorded {key}"
            found.append(Judged(mark.step, part, None, why, mark.t, lacking=True))
            continue
        if part == "learning rate":
            same, why = same_rate(mine, its)
        elif mine == its:
            same, why = True, BITWISE
        else:
            same, why = False, f"rank {mark.rank}: {str(mine)[:12]}… instead of {str(its)[:12]}…"
        found.append(Judged(mark.step, part, same, why, mark.t))
    return found


def order_of_sums(job: Job, twin: Twin) -> tuple[float, str]:
    """(from when on the order of sums alone may make a difference, why); infinite where it may not.

    So it is in a trainer of one's own, of more ranks than `IN_ANY_ORDER`, from its second start on, if the parameters
    are off by no more than `ROUNDING` where they first differ. This project's own trainer keeps its buckets.
    """
    if job.plan.get("workload") != "command" or job.ranks <= IN_ANY_ORDER or not job.fingerprints:
        return math.inf, ""
    start = min(mark.generation for mark in job.fingerprints)
    again = sorted((mark for mark in job.fingerprints if mark.generation > start), key=lambda mark: mark.t)
    if not again:
        return math.inf, ""
    pairs = [(mark, other) for mark in again if (other := twin.marks.get((mark.step, mark.rank)))]
    differing = next((it for it in pairs if it[0].parameters_sha256 != it[1].parameters_sha256), None)
    rank, seen = (differing[0].rank, how_far(job, twin, *differing)) if differing else (again[0].rank, "")
    return (math.inf, "") if seen is None else (again[0].t, f"rank {rank}: {seen}{REBUILT}")


def how_far(job: Job, twin: Twin, mark: Fingerprint, other: Fingerprint) -> str | None:
    """In words how far the first parameters that differ are off; None where that is more than an order of sums does."""
    off, way = apart(mark.sketch, other.sketch), travelled(job, twin, mark)
    if (mark.sketch is None and other.sketch is None) or (off and way is None):
        return "parameters differ, and nothing tells by how much; "
    if way and 0 < off <= ROUNDING * way:
        return f"parameters differ by {off / way:.1g} of the way they have come; "
    return None


def travelled(job: Job, twin: Twin, mark: Fingerprint) -> float | None:
    """How far the twin's parameters have come since they last were the job's, by sketches; None: they never were."""
    same = [
        it.step for it in job.fingerprints
        if it.rank == mark.rank and it.step < mark.step and (other := twin.marks.get((it.step, it.rank)))
        and it.parameters_sha256 == other.parameters_sha256
    ]  # fmt: skip
    if not same:
        return None
    return apart(twin.marks[mark.step, mark.rank].sketch, twin.marks[max(same), mark.rank].sketch)


def unless_order(one: Judged, since: float, why: str) -> Judged:
    """What was judged; unknown where it differs, and the order of sums alone may have made that."""
    may_be = one.same is False and one.part in ROUNDED and one.t >= since
    return replace(one, same=None, why=why, lacking=True) if may_be else one


def same_rate(mine: float, its: float) -> tuple[bool, str]:
    """Whether two learning rates are the same."""
    same = math.isclose(mine, its, rel_tol=NEAR_LR)
    return same, LIKE if same else f"{mine:g}, the twin has {its:g}"
