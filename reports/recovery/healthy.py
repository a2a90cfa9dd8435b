"""What a mechanism costs while nothing fails: step times of undisturbed jobs, set beside each other.

Called by `reports.recovery.results` and `reports.recovery.shootout`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from proving_ground.reports import intervals
from proving_ground.reports.figures import Figure
from proving_ground.reports.recovery.checks import Evidence
from proving_ground.reports.recovery.figures import figure, label_of

FIRST = 10  # steps of a job that are left out: buckets are built again, connections made
WINDOW = 10  # steps that are averaged before their median is taken


@dataclass(frozen=True)
class Healthy:
    """A mechanism's step time, and what it is against another's: a share, 0.02 for 2 % longer."""

    figure: Figure | None
    cost: float | None = None
    ends: tuple[float, float] | None = None

    @property
    def words(self) -> str:
        """The cost in words: no number where noise hides it."""
        if self.cost is None:
            return "–"
        if self.ends is None:
            return "cannot tell: one undisturbed job"
        said = f"{100 * self.ends[0]:+.1f} to {100 * self.ends[1]:+.1f} %"
        return f"cannot tell: {said}" if self.ends[0] <= 0 <= self.ends[1] else f"{100 * self.cost:+.1f} % ({said})"


def step_times(twins: Sequence[Evidence]) -> Iterator[Figure]:
    """The step time in ms of each case with a mechanism: one value a twin of the full size (`undisturbed_s`)."""
    for case, name in dict.fromkeys(map(way, twins)):
        own = [it for it in twins if way(it) == (case, name)]
        size = max(it.job.nodes for it in own)
        values = [1000 * pace for it in own if it.job.nodes == size and math.isfinite(pace := undisturbed_s(it))]
        if name and values:
            yield figure("step_time", "ms", label_of(own), values, {"case": case, "mechanism": name, "nodes": size})


def way(evidence: Evidence) -> tuple[str, str]:
    """(case, mechanism) of a job."""
    plan = evidence.job.plan
    return str(plan.get("case") or ""), str(plan.get("mechanism") or "")


def undisturbed_s(evidence: Evidence) -> float:
    """The step of a job without faults, with its share of what is done every few steps; NaN of one too short."""
    steps = evidence.steps
    calm = steps.loc[steps["committed"] & (steps["step"] > FIRST), "seconds"]
    return float(calm.rolling(min(WINDOW, len(calm))).mean().median()) if len(calm) else math.nan


def over_rounds(ratios: Sequence[float]) -> Healthy:
    """What so many rounds come to, in each of which two step times were compared."""
    middle = median(ratios)
    ends = intervals.plain_interval(middle, ratios)
    return Healthy(None, middle - 1, (ends[0] - 1, ends[1] - 1) if ends else None)


def against(own: Figure | None, base: Figure | None) -> Healthy:
    """One step time over another, with the interval of that ratio (Student's t on the logarithms)."""
    if own is None or base is None or own is base:
        return Healthy(own)
    cost = own["median"] / base["median"] - 1
    fewest = min(own["n"], base["n"])
    if fewest < 2:
        return Healthy(own, cost)
    errors = [intervals.standard_error(np.log(intervals.constant_draws(it["values"]))) for it in (own, base)]
    half = intervals.student(fewest) * math.hypot(*errors)
    return Healthy(own, cost, ((1 + cost) * math.exp(-half) - 1, (1 + cost) * math.exp(half) - 1))
