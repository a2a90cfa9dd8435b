"""The checks of a chaos run: each looks at one incident and says pass, fail or unknown, and why.

Called by `reports.recovery.results`. Where there is no evidence the answer is unknown, never pass; a check that crashes
is unknown. `CHECKS` is the whole list; `reports.recovery.custody` has those about writers, checkpoints and processes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import PurePath

import numpy as np
import pandas as pd

from proving_ground.reports.agreement import Agreement
from proving_ground.reports.recovery.incidents import Incident, as_one, counted
from proving_ground.reports.recovery.jobs import Job, Record
from proving_ground.reports.recovery.ledger import Ledger, Problem
from proving_ground.reports.recovery.lives import Lives
from proving_ground.reports.recovery.sameness import Sameness
from proving_ground.reports.recovery.steps import Stretch, begins_of, begun_after_the_end, between, in_lineage
from proving_ground.reports.recovery.timeline import WINDOW, whole_again
from proving_ground.reports.stability import MARGIN_S
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN, Verdict, verdict

Answer = tuple[str, str]
PATIENCE_S = 90.0  # of a schedule, where the plan does not say
FEW = 3  # steps, without the time for which nobody can tell whether a job would have gone on
SLOW = 3.0  # times the step before the fault: slower than that is no full speed, whatever the machine's noise


@dataclass(frozen=True)
class Evidence:
    """All that is known about one job with faults."""

    job: Job
    rows: pd.DataFrame  # one row a worker and step
    steps: pd.DataFrame  # one row a step of the job
    stretches: Sequence[Stretch]
    incidents: Sequence[Incident]
    sameness: Sameness
    ledger: Ledger
    agreement: Agreement = field(default_factory=Agreement)
    absolute: Sequence[Answer] = ()  # of the training as such, faults or not: (verdict, why)

    @cached_property
    def commits(self) -> Mapping[str, list[Record]]:
        """Name of a checkpoint → the records of its commits."""
        found: dict[str, list[Record]] = {}
        for record in self.job.of("checkpoint"):
            found.setdefault(PurePath(str(record["path"])).name, []).append(record)
        return found

    @cached_property
    def broken(self) -> Sequence[tuple[str, float]]:
        """(path, when) of the checkpoints that faults broke."""
        return [it for one in self.incidents for it in one.damaged.items()]

    @cached_property
    def recoveries(self) -> Sequence[Incident]:
        """The incidents, those that overlap as one."""
        return [as_one(group) for group in counted(self.incidents)]

    @cached_property
    def lives(self) -> Lives:
        """Which processes ran on which node, and when."""
        return Lives(self.job)

    @cached_property
    def committed(self) -> pd.DataFrame:
        """The steps that every rank of their generation recorded."""
        return self.steps[self.steps["committed"]]

    @cached_property
    def newest_writers(self) -> Sequence[int]:
        """The newest generation that had committed, commit by commit."""
        return list(accumulate((int(record.get("generation") or 0) for record in self.job.of("checkpoint")), max))

    @cached_property
    def thrown_away(self) -> pd.DataFrame:
        """Committed steps that the final weights do not come from."""
        return self.counted[~in_lineage(self.counted, self.stretches) & self.counted["committed"]]

    @cached_property
    def counted(self) -> pd.DataFrame:
        """The job's steps, but for those of generations that began when it was over."""
        return self.steps[~self.steps["generation"].isin(begun_after_the_end(self.job, self.steps))]

    @cached_property
    def thrown_by_generation(self) -> Mapping[Hashable, pd.DataFrame]:
        """Generation → its steps among those that were thrown away."""
        return dict(list(self.thrown_away.groupby("generation")))

    @cached_property
    def last_begin(self) -> float:
        """When the job's last step began: what ended later was only ended with it. Not every trainer tells it.

        A job that the harness ends makes another step or two meanwhile.
        """
        begins = begins_of(self.steps)
        return min(float(begins.max()) if len(begins.dropna()) else math.inf, self.job.over_t)

    @property
    def cut_off(self) -> bool:
        """Whether the recording ended before the job did."""
        return self.job.ok is None


def healed(evidence: Evidence, one: Incident) -> Answer:
    """What was broken is whole again."""
    if one.end is None:
        return (
            UNKNOWN,
            "the recording ended before it was healed" if evidence.cut_off else "nobody recorded the healing",
        )
    return (PASS, "healed") if one.end.get("healed") else (FAIL, "the nemesis could not heal it")


def trained_on(evidence: Evidence, one: Incident) -> Answer:
    """Training went on: the whole job committed steps after the one that the fault had left."""
    if one.refused:
        return refused_while(evidence, one)
    if not one.injected:
        return UNKNOWN, "its turn never came"
    inside = between(evidence.steps, one.inject_t, one.until_t)
    if one.new is not None:
        inside = inside[inside["generation"] > one.old]
    else:  # only what began after the fault was in: a kill takes a moment, and a step may end meanwhile
        inside = inside[inside["end"] - inside["seconds"] >= float((one.begin or {})["t"])]
    inside = in_time(evidence, inside)
    beyond = inside[inside["step"] > one.since]
    committed = beyond[beyond["committed"]]
    if len(committed):
        return PASS, f"{committed['step'].nunique()} steps beyond step {one.since}"
    if len(beyond):
        return UNKNOWN, f"steps beyond {one.newest} lack the record of a rank"
    words = next((str(record["message"]) for record in one.recorded("gave_up")), "")
    said = f"no step beyond step {one.newest}"
    if why := undecided(evidence, one):
        return UNKNOWN, f"{said}, and {why}"
    return FAIL, said + (f"; it gave up: {words}" if words else "")


def in_time(evidence: Evidence, steps: pd.DataFrame) -> pd.DataFrame:
    """The steps that began before the job was over; who has not left yet may go on without the others."""
    return steps[~(begins_of(steps).fillna(steps["end"]) >= evidence.job.over_t)]


def undecided(evidence: Evidence, one: Incident) -> str:
    """Why nobody can tell whether the job would have gone on: nothing more to do, or no time for a step. Or empty."""
    if evidence.cut_off:
        return "the recording ends in the middle"
    job, since = evidence.job, float((one.end or one.begin or {"t": one.inject_t})["t"])
    patience_s = float(job.plan.get("patience_s") or PATIENCE_S)
    if made_all(evidence, one) and job.end_t - since < patience_s:
        return "the job had made all of its steps"
    had_s = min(one.until_t, max(job.end_t, since + patience_s)) - since  # a job that ends before wanted no more time
    least_s = FEW * one.pace_s
    return f"it had {had_s:.0f} s, less than {FEW} of its steps take ({least_s:.0f} s)" if had_s < least_s else ""


def made_all(evidence: Evidence, one: Incident) -> bool:
    """Whether the job ended well and had made all of its steps before the next fault."""
    steps, made = int(evidence.job.plan.get("steps") or 0), between(evidence.committed, -math.inf, one.until_t)["step"]
    return bool(evidence.job.ok and steps and len(made) and made.max() >= steps)


def refused_while(evidence: Evidence, one: Incident) -> Answer:
    """Of a fault that was refused: stuck, if the job was no longer training when its turn came."""
    ends = between(evidence.steps, -math.inf, one.inject_t)["end"]
    if not len(ends):
        return UNKNOWN, "the job had not made its first step when its turn came"
    idle = one.inject_t - float(ends.max())
    # Of a first step nobody may have told how long it took: then it is as long as the job had been there.
    most = 20 * one.pace_s if one.pace_s > 0 else float(ends.max()) - evidence.job.start_t
    later = in_time(evidence, between(evidence.committed, one.inject_t, one.until_t))
    if idle > max(5.0, most) and not len(later):
        return FAIL, f"the job had made no step for {idle:.0f} s when its turn came, and made none after it"
    return UNKNOWN, "it was never injected"


def full_speed(evidence: Evidence, one: Incident) -> Answer:
    """The whole job, at full strength, is as fast as before."""
    took, held_s = one.took("full_speed"), one.held_s
    if took is not None:
        later = f"after {took:.2f} s"
        return PASS, later if held_s is None else f"{took - held_s:.2f} s after it was held for {held_s:.2f} s"
    whole, why = is_whole(evidence, one), undecided(evidence, one)
    if evidence.cut_off or (why and not whole):
        return UNKNOWN, f"it was not as fast again, and {why}"
    return slow(evidence, one) if whole else (FAIL, "the job never came back to full strength")


def slow(evidence: Evidence, one: Incident) -> Answer:
    """Whether it is slow, at full strength again: its newest steps against those before the fault, two seconds of each.

    In less than `MARGIN_S` there is no sample of the machine, so nothing tells a slow job from a slow moment: of steps
    of 3 ms, every thirtieth row of fifteen has no five that are as fast as those before, and ends with five that take
    over three times as long.
    """
    before, after = (newest_of(it) for it in around(evidence, one))
    lasted_s, end = float(after["seconds"].sum()), float(after["end"].max())
    if not one.pace_s > 0 or (len(after) < WINDOW and lasted_s < WINDOW * SLOW * one.pace_s):
        return UNKNOWN, "too few steps after it to tell"
    times = float(after["seconds"].median()) / max(one.pace_s, float(before["seconds"].median()))
    said = f"its last {len(after)} steps took {times:.2f} times as long as those before the fault"
    if lasted_s < MARGIN_S:
        return UNKNOWN, f"{said}, in {lasted_s:.2f} s: too short to tell a slow job from a slow moment"
    machine = evidence.job.steadiness(end - lasted_s - MARGIN_S, end)
    if machine.flags:
        return UNKNOWN, f"{said}, and the machine was disturbed: {machine.flags[0]}"
    if math.isnan(machine.busy):
        return UNKNOWN, f"{said}, and the machine's CPU counters were not recorded"
    brief = float(before["seconds"].sum()) < MARGIN_S  # its first steps may come from what was fetched before
    return FAIL if times > (SLOW**2 if brief else SLOW) else UNKNOWN, said


def around(evidence: Evidence, one: Incident) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The job's steps at full strength before a disturbance, and after the last of it was healed."""
    group = [it for it in evidence.incidents if it.until_t == one.until_t and it.injected] or [one]
    healed = max((float(it.end["t"]) for it in group if it.end and lasts(it)), default=one.inject_t)
    steps = evidence.committed[evidence.committed["world"] == one.world]
    after = whole_again(one, between(steps, one.inject_t, one.until_t))
    before = between(steps, -math.inf, min(it.inject_t for it in group))
    for it in evidence.incidents:
        if it.injected and it not in group and it.inject_t < one.inject_t:
            over = max(float((it.end or {"t": it.inject_t})["t"]), it.moments.get("full_speed") or -math.inf)
            before = before[(before["end"] < it.inject_t) | (before["end"] - before["seconds"] >= over)]
    return before, after[after["end"] - after["seconds"] >= healed]


def lasts(one: Incident) -> bool:
    """Whether it goes on until it is healed, a new generation or not; who was killed or stopped is replaced by one."""
    return one.new is None or not one.traits.get("victims")


def newest_of(steps: pd.DataFrame) -> pd.DataFrame:
    """The newest steps that fill `MARGIN_S`, and `WINDOW` at least."""
    longer = np.nancumsum(steps["seconds"].to_numpy()[::-1]) >= MARGIN_S  # of a first step nobody may know how long
    return steps.tail(max(WINDOW, int(longer.argmax()) + 1 if longer.any() else len(steps)))


def is_whole(evidence: Evidence, one: Incident) -> bool:
    """Whether the job committed a step at full strength after it had to recover; one that never had to, is whole."""
    after = between(evidence.steps, one.inject_t, one.until_t)
    whole = after["committed"] & (after["world"] == one.world)
    return one.new is None or bool((whole & (after["generation"] >= one.new)).any())


def same_training(evidence: Evidence, one: Incident) -> Answer:
    """Parameters, optimizer, learning rate and random states are those of the undisturbed twin."""
    found = evidence.sameness
    if found.why_not:
        return UNKNOWN, found.why_not
    if one.until <= one.since:
        return rolled_back(found, one)
    differing, same = found.differing(), found.steps()
    first = differing[0].step if differing else None
    if first is not None and first <= one.since:
        return UNKNOWN, f"the training had differed since step {first}, before this fault"
    proven = same[bisect_right(same, one.since) : bisect_left(same, first) if first is not None else len(same)]
    if first is not None and not (proven and proven[-1] >= one.until):
        return FAIL, difference(found, first)
    return likeness(found, proven, one)


def rolled_back(found: Sameness, one: Incident) -> Answer:
    """Of a fault after which a later one took training back to before it: what was trained meanwhile is compared."""
    inside = [judged for judged in found.thrown_away if one.within(judged.t)]
    if wrong := [judged for judged in inside if judged.same is False]:
        return FAIL, f"{wrong[0].part}: not as in twin {found.twin} at step {wrong[0].step} ({wrong[0].why})"
    if lacking := [judged for judged in inside if judged.lacking]:
        return UNKNOWN, lacking[0].why
    steps = {judged.step for judged in inside if judged.part == "parameters" and judged.same}
    if not steps:
        return UNKNOWN, f"nothing after step {one.since} could be compared with a twin"
    return PASS, f"like twin {found.twin} at {len(steps)} fingerprints, until a later fault took training back"


def difference(found: Sameness, first: int) -> str:
    """`optimizer, parameters differ from twin t002 at step 60 (…)`."""
    differing = [judged for judged in found.differing() if judged.step == first]
    parts = ", ".join(dict.fromkeys(judged.part for judged in differing))
    return f"{parts}: not as in twin {found.twin} at step {first}, the first that differs ({differing[0].why})"


def likeness(found: Sameness, proven: Sequence[int], one: Incident) -> Answer:
    """What equal fingerprints after a fault prove; one that could not be judged, of its own steps, voids that."""
    if why := found.undecided(one.since, one.until):
        return UNKNOWN, why
    if not proven:
        return UNKNOWN, f"nothing after step {one.since} could be compared with a twin"
    return (
        PASS,
        f"like {found.names} at {len(proven)} fingerprints up to step {proven[-1]}: {found.how[proven[-1]]}",
    )


def ranks_agree(evidence: Evidence, one: Incident) -> Answer:
    """All ranks of a generation had the same state after each step that has fingerprints."""
    found = evidence.agreement
    if wrong := found.first(one.since, one.until, one.inject_t, one.until_t):
        return FAIL, wrong.why
    if found.why_not:
        return UNKNOWN, found.why_not
    steps = {step for step, t in found.compared if one.since < step <= one.until or one.within(t)}
    if not steps:
        return UNKNOWN, f"no two ranks recorded a fingerprint of a step after step {one.since}"
    return PASS, f"the same on all ranks at {len(steps)} fingerprints"


def exactly_once(evidence: Evidence, one: Incident) -> Answer:
    """Each sample that the final weights come from counted once, the right ones in every step."""
    if evidence.ledger.why_not:
        return UNKNOWN, evidence.ledger.why_not
    if one.until <= one.since and one.took("full_speed") is not None:
        return PASS, "a later fault took training back to before it: nothing of it is in the final weights"
    mine = [problem for problem in evidence.ledger.problems if one.since < problem.step <= one.until]
    return about_ledger(evidence, mine, one.until - one.since)


def about_ledger(evidence: Evidence, problems: Sequence[Problem], steps: int) -> Answer:
    """The verdict on some of the ledger's problems; a lost record is made good by a later bitwise equal fingerprint."""
    wrong = [problem for problem in problems if not problem.proof_needed]
    gaps = [problem for problem in problems if problem.proof_needed]
    unproven = [problem for problem in gaps if evidence.sameness.bitwise_after(problem.step) is None]
    if wrong:
        return FAIL, wrong[0].why + (f", and {len(wrong) - 1} steps more" if len(wrong) > 1 else "")
    if evidence.ledger.doubt:
        return UNKNOWN, evidence.ledger.doubt
    if unproven:
        return UNKNOWN, f"{unproven[0].why}, and no later fingerprint proves what it did"
    if steps <= 0:
        return UNKNOWN, "no step of the final weights answers for it"
    proved = f"; of {len(gaps)} a rank's record died with it, and equal fingerprints prove them" if gaps else ""
    with_twin = "the twin's" if evidence.ledger.steps else "none twice"
    return PASS, f"{steps} steps, every sample once, {with_twin}{proved}"


Check = Callable[[Evidence, Incident], Answer]


def judge(evidence: Evidence, checks: dict[str, Check]) -> dict[str, list[Verdict]]:
    """Fault id → its verdicts, one a check; of a fault that was never injected only those that say so."""
    return {
        one.fault: [
            answered(name, check, evidence, one)
            for name, check in checks.items()
            if one.injected or name in ("happened", "trained_on")
        ]
        for one in evidence.incidents
    }


def answered(name: str, check: Check, evidence: Evidence, one: Incident) -> Verdict:
    """One check of one incident; one that crashes is unknown."""
    try:
        value, why = check(evidence, one)
    except Exception as error:  # noqa: BLE001 - a crashed check is unknown, whatever it crashed on
        value, why = UNKNOWN, f"the check itself failed: {type(error).__name__}: {error}"
    return verdict(name, value, why, one.where)
