"""What the measured recovery costs would mean on many nodes: all of it `predicted`. Called by `outlook`.

The closed form is that of `reports.recovery.effective`; a simulation of jobs with failures at random moments, whose
recoveries take times drawn from those measured, gives the interval. Recoveries and checkpoints are taken to cost at
any size what they cost in the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy import special

from proving_ground.reports.recovery.checks import Evidence
from proving_ground.reports.recovery.effective import Costs, costs, share_back
from proving_ground.reports.recovery.failures import MIX, REPAIR_SHARE
from proving_ground.reports.recovery.figures import RESUMED, label_of
from proving_ground.reports.recovery.results import SLOW, STUCK, Analysis

NODES = (8, 64, 512, 2048, 16_384)
REPAIR_HOURS = 24.0  # that a failed node is away
WAITING = 0.01  # of the time at most may go by in waiting for a repair
JOB_DAYS, MOST_FAILURES, JOBS, SEED = 30.0, 1000, 200, 11
NONE_OF = 3.0  # over n: the highest share that n trials without one leave possible, at 95 % (the rule of three)
CLOSE_POINTS = 3.0  # that a forecast for a held-out run may be off

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Known:
    """What a run measured of one mechanism."""

    mechanism: str
    nodes: int
    label: str
    times: Mapping[str, Sequence[float]]  # kind of fault → seconds to the first committed step after it
    block_s: float  # of training, a checkpoint
    step_s: float
    stuck: int = 0  # faults after which training stood still or stayed slow: their times are left out
    back: float = 1.0  # share of the faults after which training goes back to a checkpoint

    @property
    def every(self) -> list[float]:
        """All recovery times."""
        return [seconds for values in self.times.values() for seconds in values]

    def like(self, kinds: Sequence[str]) -> list[float]:
        """The times of some kinds; of all where none of these was measured."""
        return [seconds for kind in kinds for seconds in self.times.get(kind, ())] or self.every

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Recovery times in seconds of so many failures of the published mix."""
        weights = np.array([cause.count for cause in MIX.values()], dtype=float)
        causes = rng.choice(len(MIX), size=count, p=weights / weights.sum())
        drawn = np.empty(count)
        for number, cause in enumerate(MIX.values()):
            chosen = causes == number
            drawn[chosen] = rng.choice(self.like(cause.like), size=int(chosen.sum()))
        return drawn

    @property
    def restart_s(self) -> float:
        """The mean recovery time, over the published mix."""
        return sum(cause.count * fmean(self.like(cause.like)) for cause in MIX.values()) / sum(
            cause.count for cause in MIX.values()
        )


@dataclass(frozen=True)
class Asked:
    """What a forecast is for."""

    nodes: Sequence[int] = NODES
    mtbf_node_hours: float = 0.0
    repair_hours: float = REPAIR_HOURS
    price: float | None = None  # of a node's hour


@dataclass(frozen=True)
class Row:
    """The forecast for one number of nodes; shares of 1."""

    nodes: int
    failures_per_day: float
    interval_s: float  # best, by Young and Daly
    ettr: float  # closed form, at that interval
    middle: float  # simulated: median and 95 % of the jobs
    ends: tuple[float, float]
    spares: int
    lost_node_hours: float  # a day
    price: float | None = field(default=None)

    @property
    def cost(self) -> float | None:
        """Of the lost node-hours of a day; None without a price."""
        return None if self.price is None else self.price * self.lost_node_hours


def known(analysis: Analysis) -> list[Known]:
    """What the run measured, mechanism by mechanism; those without a recovery or a checkpoint are left out."""
    outcome = {one: str(trial["outcome"]) for one, trial in analysis.recoveries if not one.among}  # of one cause
    found = []
    for name in dict.fromkeys(one.mechanism for one in outcome):
        jobs = [it for it in analysis.jobs if any(one.mechanism == name for one in it.incidents)]
        times: dict[str, list[float]] = {}
        for one, came in outcome.items():
            seconds = one.took("first_committed_step")
            if one.mechanism == name and came in RESUMED and seconds is not None and one.new is not None:
                times.setdefault(one.kind, []).append(seconds)
        stuck = sum(came in (SLOW, STUCK) for one, came in outcome.items() if one.mechanism == name)
        of_jobs = [it for job in jobs if (it := costs(job)) and math.isfinite(it.block_s)]
        if times and of_jobs:
            found.append(measured(name, jobs, times, of_jobs, stuck))
    return found


def measured(
    name: str, jobs: Sequence[Evidence], times: Mapping[str, Sequence[float]], of_jobs: Sequence[Costs], stuck: int
) -> Known:
    """The costs of several jobs taken together."""
    block_s = fmean(it.block_s for it in of_jobs)
    # a trainer that does not say when a step began has no step time: then no interval is too short
    step_s = median([it.step_s for it in of_jobs if math.isfinite(it.step_s)] or [0.0])
    seen = share_back([one for job in jobs for one in job.recoveries])
    back = seen or min(1.0, NONE_OF / sum(map(len, times.values())))
    return Known(name, max(it.job.nodes for it in jobs), label_of(jobs), times, block_s, step_s, stuck, back)


def best_interval_s(it: Known, rate: float) -> float:
    """By Young and Daly, at `rate` failures a second of the whole job; at least a step."""
    return max(it.step_s, math.sqrt(2 * it.block_s / (it.back * rate)))


def closed_form(it: Known, rate: float, interval_s: float) -> float:
    """ETTR of the formula; 0 where failures come faster than work is done."""
    return max(0.0, (1 - rate * (it.restart_s + it.back * interval_s / 2)) / (1 + it.block_s / interval_s))


def rows(it: Known, asked: Asked) -> list[Row]:
    """The forecast for every number of nodes that is asked for."""
    return [row(it, nodes, asked) for nodes in asked.nodes]


def row(it: Known, nodes: int, asked: Asked) -> Row:
    """The forecast for one number of nodes."""
    rate = nodes / asked.mtbf_node_hours / 3600
    interval_s = best_interval_s(it, rate)
    seconds = min(JOB_DAYS * 86400, MOST_FAILURES / rate)
    shares = simulated(it, rate, interval_s, seconds)
    low, middle, high = (float(value) for value in np.quantile(shares, (0.025, 0.5, 0.975)))
    away = nodes / asked.mtbf_node_hours * REPAIR_SHARE * asked.repair_hours
    lost = 24 * nodes * (1 - float(shares.mean()))
    spares = spares_needed(away)
    return Row(
        nodes, rate * 86400, interval_s, closed_form(it, rate, interval_s), middle, (low, high), spares, lost,
        asked.price,
    )  # fmt: skip


def simulated(it: Known, rate: float, interval_s: float, seconds: float) -> Floats:
    """The effective share of the time of `JOBS` jobs that run for so long, failing at random moments.

    From one failure to the next: recover (a failure meanwhile begins it anew), then train; what was trained since the
    last checkpoint is lost where the failure takes training back to it.
    """
    rng = np.random.default_rng((SEED, round(interval_s * 1e6), round(seconds)))
    count = max(50, math.ceil(rate * seconds * 1.5) + 50)
    gaps = rng.exponential(1 / rate, size=(JOBS, count))
    recover = it.draw(rng, JOBS * count).reshape(JOBS, count)
    recover[:, 0] = 0.0  # the job begins whole
    begin = np.cumsum(gaps, axis=1) - gaps
    trained = np.clip(np.minimum(gaps, seconds - begin) - recover, 0.0, None)
    whole = np.floor(trained / (interval_s + it.block_s)) * interval_s
    kept = begin + gaps >= seconds  # what is under way at the end of the time is not lost
    kept |= rng.random(gaps.shape) >= it.back  # nor where a state stays alive
    useful = np.where(kept, trained / (1 + it.block_s / interval_s), whole)
    share: Floats = useful.sum(axis=1) / seconds
    return share


def spares_needed(away: float) -> int:
    """The fewest spare nodes so that more are away than there are spares in less than `WAITING` of the time.

    Nodes in repair are Poisson with the mean `away` (M/G/∞), whatever the repair times' distribution.
    """
    spares = 0
    while 1 - float(special.pdtr(spares, away)) >= WAITING:
        spares += 1
    return spares


@dataclass(frozen=True)
class Score:
    """A forecast for a run at another rate of faults, from costs that were measured elsewhere; shares of 1."""

    job: str
    faults: int
    formula: float
    ends: tuple[float, float]
    measured: float

    @property
    def error_points(self) -> float:
        """By how many points the formula is off."""
        return 100 * (self.formula - self.measured)

    @property
    def close(self) -> bool:
        """Whether that is little enough."""
        return abs(self.error_points) <= CLOSE_POINTS


def held_out(it: Known, other: Analysis) -> Iterator[Score]:
    """Set the forecast beside every job of another run of the same mechanism."""
    for job in other.jobs:
        own = costs(job)
        same = any(one.mechanism == it.mechanism for one in job.incidents)
        if own and same and own.faults and math.isfinite(own.interval_s):
            yield score(it, job, own)


def score(it: Known, job: Evidence, own: Costs) -> Score:
    """One job: its rate of faults and its checkpoint interval, the costs that are known from elsewhere."""
    rng = np.random.default_rng(SEED)
    kinds = [one.kind for one in job.recoveries if one.new is not None]
    restart = fmean(fmean(it.like([kind])) for kind in kinds)
    drawn = sum(rng.choice(it.like([kind]), size=JOBS) for kind in kinds)
    lost = rng.uniform(0, own.interval_s, size=(len(kinds), JOBS)) * (rng.random((len(kinds), JOBS)) < it.back)
    drawn = drawn + lost.sum(axis=0)
    paid = 1 + it.block_s / own.interval_s
    formula = (1 - own.rate * (restart + it.back * own.interval_s / 2)) / paid
    low, high = np.quantile((1 - drawn / own.wall_s) / paid, (0.025, 0.975))
    return Score(job.job.id, own.faults, formula, (float(low), float(high)), own.measured)
