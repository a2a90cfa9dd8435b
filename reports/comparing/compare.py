"""Is one run slower than another, beyond noise? Called by `reports.commands`.

Values are compared as logarithms of ratios, so that 5 % is 5 % of anything. Two cases of one run were measured in turn
and are compared in pairs of the same repeat. Two runs are not: the repeats of a run share its hour and its machine, so
their spread says little about another run. How far apart runs of one configuration lie is taken from earlier ones, by
Student's t; with too few of them from a documented prior that is meant to be too large. Better or worse is said only of
a change that is beyond doubt larger than a margin, at 5 % for all gated figures together (S. Holm, Scand. J. Stat. 6,
1979).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import special

from proving_ground.reports.comparing import trend

BETTER, WORSE, SAME, UNKNOWN = "better", "worse", "same", "cannot tell"
MARGIN = 0.01  # changes within ± 1 % are of no interest
ALPHA = 0.05  # of a false alarm, over all gated figures of a comparison
POWER = 0.8  # with which the smallest detectable change would have been found
ENOUGH_RUNS = 5  # earlier runs from which the noise between runs can be taken
PRIOR_BETWEEN = {"paced": 0.03, "real": 0.10}
"""Compute → relative standard deviation between runs of the same code where fewer earlier runs tell.

Above the largest that was measured: 2.1 % paced (`reports/measured/matrix.json`, the cell that was run three times),
9.5 % real (`reports/measured/scaling.json`, digits, five runs). What is neither is taken as real.
"""
KNOWN = 1e6  # degrees of freedom of what is not estimated
DIRECTIONS: dict[str, int] = {
    "throughput": 1, "model_flops": 1, "mfu": 1, "busbw": 1, "efficiency": 1, "step_time": -1,
    "checkpoint_block": -1, "time_to_detect": -1, "resume": -1,
}  # fmt: skip
"""Figures that are compared, and whether more is better (1) or worse (-1)."""
GATED = ("throughput", "busbw", "checkpoint_block", "resume")
"""Figures that decide the exit status; the others follow from them and are shown."""

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True)
class Noise:
    """How far runs of one configuration lie apart: standard deviation of a run's mean, as a share.

    From `runs` earlier ones; with fewer than `ENOUGH_RUNS` it is `assumed`, and is what comes on top of the repeats.
    """

    sd: float
    runs: int = 0
    freedom: float = KNOWN
    assumed: bool = True


@dataclass(frozen=True)
class Effect:
    """Logarithms of the geometric means on both sides, standard error of their difference, degrees of freedom."""

    before: float
    after: float
    error: float
    freedom: float

    @property
    def log(self) -> float:
        """The logarithm of the ratio."""
        return self.after - self.before


@dataclass(frozen=True)
class Difference:
    """One figure in both runs and the answer; `why` says why it supports none, whatever its values."""

    name: str
    where: Mapping[str, Any]
    unit: str
    effect: Effect
    p: float  # that no change beyond the margin looks like this
    why: str = ""
    smallest: float = math.nan  # change for the worse, in %, that would have been found with `POWER`
    answer: str = UNKNOWN

    @property
    def gated(self) -> bool:
        """Whether it decides the exit status."""
        return self.name in GATED

    @property
    def before(self) -> float:
        """Geometric mean over the repeats that were compared."""
        return math.exp(self.effect.before)

    @property
    def after(self) -> float:
        """The same of the other side."""
        return math.exp(self.effect.after)

    @property
    def change(self) -> float:
        """From `before` to `after`, in %; positive: more."""
        return 100 * math.expm1(self.effect.log)

    @property
    def ci95(self) -> tuple[float, float]:
        """Its 95 % interval."""
        low, high = interval(self.effect)
        return 100 * low, 100 * high


def paired(before: Floats, after: Floats) -> Effect:
    """Of values measured in turn, pair by pair."""
    logs = np.log(after) - np.log(before)
    error = float(logs.std(ddof=1) / math.sqrt(len(logs)))
    return Effect(float(np.log(before).mean()), float(np.log(after).mean()), error, len(logs) - 1)


def unpaired(before: Floats, after: Floats, noise: Noise) -> Effect:
    """Of two runs of a configuration whose runs lie so far apart (within a run: Welch's degrees of freedom)."""
    parts = [(float(np.log(values).var(ddof=1)) / len(values), len(values) - 1) for values in (before, after)]
    within, between = sum(variance for variance, _ in parts), 2 * noise.sd**2
    spent = sum(variance**2 / freedom for variance, freedom in parts)
    if noise.assumed:
        total, freedom = within + between, (within + between) ** 2 / spent if spent > 0 else KNOWN
    elif within > between:  # noisier repeats than those of the earlier runs, or fewer
        total, freedom = within, within**2 / spent
    else:
        total, freedom = between, noise.freedom
    return Effect(float(np.log(before).mean()), float(np.log(after).mean()), math.sqrt(total), freedom)


def between_runs(earlier: Sequence[Floats], prior: float) -> Noise:
    """How far runs of one configuration lie apart, from earlier ones in the order of time, one row of repeats each.

    A step in the series (a change of the code) is none of that: the levels on both sides of one are taken off.
    """
    logs = np.array([float(np.log(values).mean()) for values in earlier])
    edges = [0, *sorted(trend.split(logs, 0)), len(logs)]
    residuals = [piece - piece.mean() for a, b in pairwise(edges) if len(piece := logs[a:b])]
    freedom = len(logs) - len(residuals)
    sd = math.sqrt(float(sum((piece**2).sum() for piece in residuals)) / freedom) if freedom > 0 else 0.0
    if len(logs) >= ENOUGH_RUNS:
        return Noise(sd, len(logs), freedom, assumed=False)
    return Noise(max(prior, sd), len(logs))


def interval(effect: Effect) -> tuple[float, float]:
    """The 95 % interval of a change, as shares."""
    half = float(special.stdtrit(effect.freedom, 0.975)) * effect.error
    return math.expm1(effect.log - half), math.expm1(effect.log + half)


def difference(figure: Mapping[str, Any], effect: Effect, margin: float, why: str = "") -> Difference:
    """The change of a figure, not yet judged."""
    beyond = (abs(effect.log) - margin) / max(effect.error, 1e-12)
    p = min(1.0, 2 * float(special.stdtr(effect.freedom, -beyond)))
    return Difference(figure["name"], figure["where"], figure["unit"], effect, p, why)


def judge(found: Sequence[Difference], margin: float) -> list[Difference]:
    """Each with its answer: gated ones at `ALPHA` together, the others likewise among themselves."""
    answers: dict[int, str] = {}
    for gated in (True, False):
        family = sorted((it for it in found if it.gated == gated and not it.why), key=lambda it: it.p)
        sure = True
        for rank, it in enumerate(family):
            sure = sure and it.p <= ALPHA / (len(family) - rank)
            answers[id(it)] = answer(it, margin, sure=sure)
    together = Counter(it.gated for it in found)
    return [
        replace(it, answer=answers.get(id(it), UNKNOWN), smallest=smallest(it, margin, ALPHA / together[it.gated]))
        for it in found
    ]


def smallest(found: Difference, margin: float, alpha: float) -> float:
    """The smallest change for the worse, in %, that is found with `POWER` at `alpha`; below 0 where less is worse.

    By the usual sum of two quantiles in place of the noncentral t, which is a little larger than needed.
    """
    effect = found.effect
    steps = special.stdtrit(effect.freedom, 1 - alpha / 2) + special.stdtrit(effect.freedom, POWER)
    return 100 * math.expm1(-direction(found.name) * (margin + float(steps) * effect.error))


def answer(found: Difference, margin: float, *, sure: bool) -> str:
    """Better, worse, the same within the margin, or cannot tell."""
    if sure:
        return BETTER if found.change * direction(found.name) > 0 else WORSE
    within = max(abs(math.log1p(end / 100)) for end in found.ci95) <= margin
    return SAME if within else UNKNOWN


def direction(name: str) -> int:
    """1 where more is better, -1 where less is."""
    return DIRECTIONS[name]


def overall(found: Sequence[Difference]) -> str:
    """Worse if a gated figure is, else better if one is, else the same if all are, else cannot tell."""
    answers = {it.answer for it in found if it.gated}
    for value in (WORSE, BETTER):
        if value in answers:
            return value
    return SAME if answers == {SAME} else UNKNOWN
