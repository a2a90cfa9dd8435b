"""Effective training time: measured, by the closed form, and what would raise it. Called by `reports.recovery.results`.

ETTR ≈ (1 − r (u + b dt/2)) / (1 + w/dt) with r faults a second that interrupt training, u seconds from a fault to the
first committed step after it, b the share of them after which training goes back to a checkpoint (1 under restart),
dt seconds of training between checkpoints, w seconds that a checkpoint blocks training: the usual first-order model of
checkpoint and restart. The best interval is sqrt(2 w / (b r)) (J. W. Young, CACM 17, 1974; J. T. Daly, FGCS 22, 2006).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import numpy as np
import pandas as pd

from proving_ground.reports.numbers import short
from proving_ground.reports.recovery.checks import Evidence
from proving_ground.reports.recovery.incidents import Incident
from proving_ground.reports.recovery.steps import in_lineage

PHASES = {
    "detected": "unnoticed",
    "survivors_stopped": "stopping",
    "membership_agreed": "meeting",
    "state_loaded": "loading",
    "first_committed_step": "first step",
    "full_speed": "getting up to speed",
}
"""The moment that ends a phase → the phase. One that lacks its moment is counted with the phase that follows."""
HELD = "held"
"""What stands in place of a phase while the suite holds the fault: no part of a recovery."""


@dataclass(frozen=True)
class Costs:
    """What was measured of one job, in seconds; NaN or None where it was not."""

    wall_s: float  # from the first step's begin to the last step's end
    steps: int  # that the final weights come from
    step_s: float  # undisturbed, on average; what a checkpoint blocks is not in it
    faults: int  # that made the job start again
    restart_s: float  # mean from a fault to the first committed step after it
    interval_s: float  # of training between checkpoints
    block_s: float  # mean, a checkpoint
    down_s: float = 0.0  # from the faults to the first committed steps after them, these not included
    redone_s: float = 0.0  # of steps that were thrown away
    back: float = 1.0  # share of the faults after which training went back to a checkpoint

    @property
    def measured(self) -> float:
        """Share of the wall time that went into the final weights at the undisturbed pace."""
        return self.steps * self.step_s / self.wall_s

    @property
    def shares(self) -> dict[str, float]:
        """Where the wall time went, shares that add up to 1; `slower` is what training took beyond its own pace."""
        used = self.steps * self.step_s
        parts = {"in the final weights": used, "down": self.down_s, "thrown away": self.redone_s}
        return {name: seconds / self.wall_s for name, seconds in parts.items()} | {
            "slower": 1 - sum(parts.values()) / self.wall_s
        }

    @property
    def rate(self) -> float:
        """Faults a second."""
        return self.faults / self.wall_s

    def formula(self, interval_s: float | None = None, restart_s: float | None = None) -> float:
        """The closed form, with another interval or restart cost if given."""
        interval = self.interval_s if interval_s is None else interval_s
        restart = self.restart_s if restart_s is None else restart_s
        return (1 - self.rate * (restart + self.back * interval / 2)) / (1 + self.block_s / interval)

    @property
    def best_interval_s(self) -> float:
        """By Young and Daly; infinite where no fault took training back."""
        return math.sqrt(2 * self.block_s / (self.back * self.rate)) if self.back * self.rate else math.inf


def costs(evidence: Evidence) -> Costs | None:
    """The costs of one job; None where it has too little to say."""
    steps = evidence.steps
    kept = steps[in_lineage(steps, evidence.stretches)]
    if len(kept) < 2:
        return None
    first = kept["begin"].min()
    wall = float(evidence.counted["end"].max() - (first if math.isfinite(first) else steps["end"].min()))
    took = [s for one in evidence.recoveries if (s := one.took("first_committed_step")) is not None]
    commits = [record for record in evidence.job.of("checkpoint") if record.get("block_s") is not None]
    at = sorted({int(record["step"]) for record in commits})
    gaps = [later - earlier for earlier, later in pairwise(at)]
    block = fmean(float(record["block_s"]) for record in commits) if commits else math.nan
    pace = fmean(calm(evidence)) - (block / median(gaps) if gaps else 0.0)
    interval = median(gaps) * pace if gaps else math.nan
    redone = float(evidence.thrown_away["seconds"].sum())
    restart = fmean(took) if took else math.nan
    down, back = sum(took) - pace * len(took), share_back(evidence.recoveries)
    return Costs(wall, len(kept), pace, len(took), restart, interval, block, down, redone, back)


def share_back(incidents: Sequence[Incident]) -> float:
    """Of the faults that interrupted training, those after which it went back to a checkpoint; 1 if there was none."""
    back = [one.went_back for one in incidents if one.took("first_committed_step") is not None]
    return fmean(back) if back else 1.0


def calm(evidence: Evidence) -> pd.Series[float]:
    """Seconds of the committed steps at full strength outside of every recovery; of all steps where there is none."""
    steps = evidence.steps
    kept = (steps["committed"] & (steps["world"] == steps["world"].max())).to_numpy(copy=True)
    ends = steps["end"].to_numpy()
    for one in evidence.incidents:
        if (begin := one.moments.get("inject")) is not None:
            until = one.moments.get("full_speed") or one.until_t
            kept[np.searchsorted(ends, begin) : np.searchsorted(ends, until, "right")] = False
    return (steps[kept] if kept.any() else steps)["seconds"]


def phases_of(one: Incident) -> list[tuple[str, float]]:
    """(phase, seconds) of one recovery, in order; they add up to the time from the fault to full speed.

    Less that for which the fault was held, where the job could be at full speed only once it was lifted.
    """
    return [(phase, seconds) for phase, seconds in parts_of(one) if phase != HELD]


def parts_of(one: Incident) -> list[tuple[str, float]]:
    """The same with `HELD` in its place; they add up to the whole time from the fault to full speed."""
    found: list[tuple[str, float]] = []
    before, lifted = one.moments.get("inject"), lifted_t(one)
    if before is not None and lifted is not None and waited(one):
        found.append((HELD, lifted - before))
        before = lifted
    moments = PHASES if one.new is not None else {"full_speed": PHASES["full_speed"]}  # training never stopped
    for moment, phase in moments.items():
        at = one.moments.get(moment)
        if moment == "full_speed" and before is not None and lifted is not None and lifted > before:
            found.append((HELD, lifted - before))  # on with fewer nodes meanwhile
            before = lifted
        if at is not None and before is not None:
            found.append((phase, max(0.0, at - before)))
            before = max(before, at)
    return found


def lifted_t(one: Incident) -> float | None:
    """When the fault was lifted, where the job was at full speed only after that; else None."""
    return None if one.held_s is None else one.moments.get("healed")


def waited(one: Incident) -> bool:
    """Whether training was back only once the fault was lifted: what it was held for is the suite's time then."""
    lifted, back = lifted_t(one), one.moments.get("first_committed_step")
    return lifted is not None and (one.new is None or (back is not None and back > lifted))


def recovery_s(one: Incident) -> float | None:
    """Seconds until training went on, or to full speed where it never stopped; without those it was held for."""
    whole = one.took("first_committed_step") if one.new is not None else one.took("full_speed")
    return None if whole is None else whole - ((one.held_s or 0.0) if waited(one) else 0.0)


def lost_by_phase(evidence: Evidence) -> dict[str, float]:
    """Phase → mean seconds over the restarts of a job; phases that none of them has are absent."""
    found: dict[str, list[float]] = {}
    for one in evidence.recoveries:
        for phase, seconds in phases_of(one) if one.new is not None else ():
            found.setdefault(phase, []).append(seconds)
    return {phase: fmean(found[phase]) for phase in PHASES.values() if phase in found}


def advice(found: Costs, phases: Mapping[str, float]) -> list[tuple[str, float]]:
    """(what to do, predicted gain in points of effective training time), the most worth first."""
    made = []
    known = all(map(math.isfinite, (found.interval_s, found.block_s, found.restart_s))) and found.faults > 0
    if known and found.step_s < found.best_interval_s < math.inf:
        now, best = found.formula(), found.formula(interval_s=found.best_interval_s)
        steps = max(1, round(found.best_interval_s / found.step_s))
        every = f"a checkpoint every {steps} steps ({short(found.best_interval_s)} s)"
        what = f"{every} instead of every {short(found.interval_s)} s, by Young and Daly"
        made.append((what, 100 * (best - now)))
    before = {name: seconds for name, seconds in phases.items() if name != PHASES["full_speed"]}
    if known and before:
        name, seconds = max(before.items(), key=lambda phase: phase[1])
        gain = found.formula(restart_s=found.restart_s - seconds / 2) - found.formula()
        made.append((f"halving the longest phase of recovery, {name} ({seconds:.2f} s)", 100 * gain))
    return sorted(made, key=lambda one: -one[1])
