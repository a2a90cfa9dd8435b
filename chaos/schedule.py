"""When which fault is due: one after the other, each once the job is steady again, unless it is to overlap.

Used by `bench.run` as its Schedule.

Everything follows from the plan and from what the job's event files show; the same plan asks for the same faults in the
same order, at the same step or phase.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from proving_ground.bench.jobview import FEW, JobView
from proving_ground.bench.protocols import Operation
from proving_ground.bench.spec import Trial
from proving_ground.chaos.spec import AFTER_STEPS, RECOVERY, FaultSpec, faults_of
from proving_ground.chaos.targets import is_joiner

START = 3  # times as patient before the first fault: the job has to start
PHASE_S = 20.0  # for a phase to be reached
BEFORE, NOW = 15, FEW  # steps, at most, whose median says how fast the job was before a fault, and is
NEAR = 1.05  # of a step before the fault: as fast as before, nearer than the report asks for
LATE_S = 5.0  # a fault of a certain moment is not done later than this after it
SLOW_S = 5.0  # so long a job that is steady may be slower than before: one that a busy machine held up is given time
RECOVERING = "ready"  # the ranks have met again and have not made a step yet


@dataclass
class Campaign:
    """The state of one trial's faults: `at` is the index of the one whose turn it is."""

    faults: list[FaultSpec]
    at: int = 0
    since_t: float | None = None  # when its turn came
    armed: bool = False
    healing: dict[str, float] = field(default_factory=dict)  # fault → when it is to be healed
    injected_t: float = 0.0
    done_t: float | None = None  # when the fault before was in; None: it was refused
    generation: int = 0  # of the job at that moment
    quiet_t: float = 0.0  # since when nothing was done to the job
    newest: int = 0  # step before the last fault: work up to there has to be made up before the next
    step_s: float = math.nan  # of a step before the last fault
    steady_t: float | None = None  # since when the job is at full strength again
    begun_t: float | None = None  # when it was steady for the first time

    @property
    def current(self) -> FaultSpec | None:
        """The fault whose turn it is."""
        return self.faults[self.at] if self.at < len(self.faults) else None

    def advance(self) -> None:
        """On to the next."""
        self.at, self.since_t, self.armed = self.at + 1, None, False


class Chaos:
    """A Schedule: breaks what the trial's plan says; ends the trial once its last fault is got over."""

    def __init__(self) -> None:
        self._campaigns: dict[str, Campaign] = {}
        self._ends: dict[str, dict[str, int]] = {}  # case with faults → its trials → the last step of each

    def due(self, trial: Trial, view: JobView) -> Iterable[Operation]:
        """What is to be healed, and the next fault if its moment has come."""
        campaign = self._campaigns.setdefault(trial.id, Campaign(faults_of(trial.faults, trial.case)))
        for fault, t in list(campaign.healing.items()):
            if view.now() >= t:
                del campaign.healing[fault]
                yield Operation("heal", {"fault": fault})
                campaign.quiet_t, campaign.steady_t = view.now(), None  # healing may take its time: a machine boots
        if campaign.begun_t is None and view.steady(AFTER_STEPS, view.begin_t):
            campaign.begun_t = view.now()
        spec = campaign.current
        if spec is None:
            return
        if spec.after_s is not None:
            yield from self._overlapping(campaign, spec, spec.after_s, view)
        elif spec.at_s is not None:
            yield from self._at_its_moment(campaign, spec, spec.at_s, view)
        elif spec.phase == RECOVERY:
            yield from self._during_recovery(campaign, spec, view)
        elif not campaign.healing:
            yield from self._when_steady(campaign, spec, view)

    def _overlapping(self, campaign: Campaign, spec: FaultSpec, after_s: float, view: JobView) -> Iterable[Operation]:
        """So long after the fault before was in, whatever the job does."""
        if campaign.done_t is None:
            yield from self._refuse(campaign, spec, "the fault before was refused: there was nothing to overlap with")
        elif view.now() - campaign.done_t >= after_s:
            yield from self._inject(campaign, spec, view)

    def _at_its_moment(self, campaign: Campaign, spec: FaultSpec, at_s: float, view: JobView) -> Iterable[Operation]:
        """So long after the job was steady for the first time, whatever it does."""
        campaign.since_t = view.now() if campaign.since_t is None else campaign.since_t
        if campaign.begun_t is None:
            if (waited_s := view.now() - campaign.since_t) > view.trial.patience_s * START:
                why = view.unsteady(AFTER_STEPS, view.begin_t)
                yield from self._refuse(campaign, spec, f"the job was not steady for {waited_s:.0f} s: {why}")
        elif (late_s := view.now() - campaign.begun_t - at_s) > LATE_S:
            why = f"its moment, {at_s:g} s, was {late_s:.1f} s ago: the fault before took so long"
            yield from self._refuse(campaign, spec, why)
        elif late_s >= 0:
            yield from self._inject(campaign, spec, view)

    def _during_recovery(self, campaign: Campaign, spec: FaultSpec, view: JobView) -> Iterable[Operation]:
        """When the ranks have met again after the fault before, and before their first step.

        A joiner is there earlier: once its trainer has started, and until it has met the others.
        """
        joins = is_joiner(spec.where)
        met = any(it["event"] == RECOVERING and it["t"] > campaign.injected_t for it in view.told)
        if view.joiners() if joins else met:
            yield from self._inject(campaign, spec, view)
        elif view.now() - (campaign.done_t or campaign.injected_t) > view.trial.patience_s:
            why = "no node came to join" if joins else "the ranks did not meet again: there was no recovery to disturb"
            yield from self._refuse(campaign, spec, why)

    def _when_steady(self, campaign: Campaign, spec: FaultSpec, view: JobView) -> Iterable[Operation]:
        """Once the job has made its steps at full strength, at a phase if one is asked for."""
        if campaign.since_t is None:
            campaign.since_t = view.now()
        waited_s = view.now() - campaign.since_t
        if campaign.armed:
            if any(it["event"] == "phase" and it.get("hold") == spec.id for it in view.told):
                yield from self._inject(campaign, spec, view)
            elif waited_s > PHASE_S:
                yield from self._refuse(campaign, spec, f"phase {spec.phase} was not reached in {PHASE_S:.0f} s")
        elif got_over(campaign, spec.steps, view):
            if not spec.phase:
                yield from self._inject(campaign, spec, view)
                return
            campaign.armed, campaign.since_t = True, view.now()
            yield Operation("arm", {"spec": spec})
        elif waited_s > view.trial.patience_s * (1 if campaign.at else START):
            why = view.unsteady(spec.steps, campaign.quiet_t, campaign.newest)
            why = why or unmarked(campaign, view) or "it is slower than before"
            yield from self._refuse(campaign, spec, f"the job was not steady for {waited_s:.0f} s: {why}")

    def _inject(self, campaign: Campaign, spec: FaultSpec, view: JobView) -> Iterable[Operation]:
        disturbed = campaign.healing or (campaign.at and not got_over(campaign, AFTER_STEPS, view))
        if spec.phase != RECOVERY and spec.after_s is None and not (spec.at_s is not None and disturbed):
            campaign.step_s = view.step_s(BEFORE)
        campaign.injected_t = campaign.quiet_t = view.now()
        campaign.generation, campaign.steady_t = view.generation, None
        campaign.newest = max(campaign.newest, view.step)
        yield Operation("inject", {"spec": spec})
        campaign.done_t = view.now()  # injecting may take its time
        campaign.healing[spec.id] = campaign.done_t + spec.seconds
        campaign.advance()

    def _refuse(self, campaign: Campaign, spec: FaultSpec, why: str) -> Iterable[Operation]:
        yield Operation("refuse", {"spec": spec, "why": why})
        campaign.done_t = None
        campaign.advance()

    def share(self, trial: Trial, view: JobView) -> float:
        """How much of the trial is done, 0 to 1: by its faults, or as a twin by the step it has to reach."""
        if trial.twin_of:
            return min(1.0, view.step / max(1, self._farthest(trial)))
        campaign = self._campaigns.get(trial.id)
        return campaign.at / len(campaign.faults) if campaign and campaign.faults else 0.0

    def waits_for(self, trial: Trial, view: JobView) -> str:
        """What the next fault waits for."""
        campaign = self._campaigns.get(trial.id)
        if campaign is None or (spec := campaign.current) is None or spec.after_s is not None:
            return ""
        if spec.at_s is not None and campaign.begun_t is not None:
            return f"{spec.kind} is due in {max(0.0, campaign.begun_t + spec.at_s - view.now()):.0f} s"
        if campaign.healing:
            return ""
        if campaign.armed:
            return f"{spec.kind} waits for phase {spec.phase}"
        why = "" if spec.phase == RECOVERY else view.unsteady(spec.steps, campaign.quiet_t, campaign.newest)
        return f"{spec.kind} waits: {why}" if why else ""

    def over(self, trial: Trial, view: JobView) -> bool:
        """Whether the last fault is got over; for a twin, whether it is beyond what it is compared with.

        A rank that has made the next step has told all of the one before, its fingerprint included.
        """
        if trial.twin_of:  # a replay ends by itself
            return trial.role != "replay" and view.step > self._farthest(trial)
        ends = self._ends.setdefault(trial.case, {})
        ends.setdefault(trial.id, trial.steps)  # unless it is ended before: it may end by itself
        campaign = self._campaigns.get(trial.id)
        if campaign is None or campaign.current or not campaign.faults:
            return False
        last = campaign.faults[-1]
        alone = not last.whatever  # of several, nobody can tell which of them is got over
        met_anew = alone and view.generation > campaign.generation  # got over what lasts, such as a worker that hangs
        steady = (met_anew or not campaign.healing) and got_over(campaign, last.steps, view)
        healed_t = max([campaign.quiet_t, *campaign.healing.values()])
        if steady or view.now() - healed_t > trial.patience_s:
            ends[trial.id] = view.step
            return True
        return False

    def _farthest(self, twin: Trial) -> int:
        """The last step of the jobs that a twin is compared with."""
        return max(self._ends.get(twin.twin_of, {}).values(), default=twin.steps)


def got_over(campaign: Campaign, steps: int, view: JobView) -> bool:
    """Whether a job has made so many steps at full strength, and is as fast as before or had time enough to be."""
    if not view.steady(steps, campaign.quiet_t, campaign.newest) or unmarked(campaign, view):
        return False
    campaign.steady_t = view.now() if campaign.steady_t is None else campaign.steady_t
    slower = view.step_s(NOW, campaign.quiet_t) > NEAR * campaign.step_s  # never where one of them is not known
    return not slower or view.now() - campaign.steady_t > SLOW_S


def unmarked(campaign: Campaign, view: JobView) -> str:
    """No rank is beyond the first fingerprint after the fault before: nobody could tell what the fault did."""
    every = view.trial.training.get("fingerprint_every") or 0
    if not every or not campaign.at:
        return ""
    due = (campaign.newest // every + 1) * every
    return "" if view.step > due else f"the fingerprint of step {due} is still to come"
