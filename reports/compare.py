"""Is one run slower than another, beyond noise? Called by `reports.commands`.

Values are compared as logarithms of ratios, so that 5 % is 5 % of anything. Two cases of one run were measured in turn
and are compared in pairs of the same repeat. Two runs are not: beside the spread of repeats within each there is what
differs between runs of the same code (another hour, another neighbour), taken from earlier runs of the suite. Better or
worse is said only of a change that is beyond doubt larger than a margin, at 5 % for all gated figures together
(S. Holm, Scand. J. Stat. 6, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy import special

BETTER, WORSE, SAME, UNKNOWN = "better", "worse", "same", "cannot tell"
MARGIN = 0.01  # changes within ± 1 % are of no interest
ALPHA = 0.05  # of a false alarm, over all gated figures of a comparison
ASSUMED_BETWEEN = 0.005  # standard deviation between runs of the same code, where no earlier runs tell
ENOUGH_RUNS = 5  # earlier runs from which the noise between runs can be taken
DIRECTIONS: dict[str, int] = {
    "throughput": 1, "busbw": 1, "efficiency": 1, "step_time": -1, "checkpoint_block": -1, "detect": -1, "resume": -1,
}  # fmt: skip
"""Figures that are compared, and whether more is better (1) or worse (-1)."""
GATED = ("throughput", "busbw", "checkpoint_block", "resume")
"""Figures that decide the exit status; the others follow from them and are shown."""

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True)
class Difference:
    """One figure in both runs: medians, the change in % with its 95 % interval (positive: more), and the answer."""

    name: str
    where: Mapping[str, Any]
    unit: str
    before: float
    after: float
    change: float
    ci95: tuple[float, float]
    p: float  # that no change beyond the margin looks like this
    answer: str = UNKNOWN

    @property
    def gated(self) -> bool:
        """Whether it decides the exit status."""
        return self.name in GATED


@dataclass(frozen=True)
class Effect:
    """An estimated logarithm of a ratio, its standard error and degrees of freedom."""

    log: float
    error: float
    freedom: float


def paired(before: Floats, after: Floats) -> Effect:
    """Of values measured in turn, pair by pair."""
    logs = np.log(after) - np.log(before)
    return Effect(float(logs.mean()), float(logs.std(ddof=1) / math.sqrt(len(logs))), len(logs) - 1)


def unpaired(before: Floats, after: Floats, between: float) -> Effect:
    """Of two runs, with a standard deviation `between` runs of the same code (Welch's degrees of freedom)."""
    parts = [(float(np.log(values).var(ddof=1)) / len(values), len(values) - 1) for values in (before, after)]
    within = sum(variance for variance, _ in parts)
    total = within + 2 * between**2
    spent = sum(variance**2 / freedom for variance, freedom in parts)
    freedom = total**2 / spent if spent > 0 else 1e6
    return Effect(float(np.log(after).mean() - np.log(before).mean()), math.sqrt(total), freedom)


def between_runs(series: Iterable[Sequence[Floats]]) -> float | None:
    """Relative standard deviation between runs of the same code, from series of runs in the order of time.

    From differences of neighbours, by their median: a step in the series (a change of the code) moves it little. What
    the spread within runs explains is taken off. None where no series is long enough.
    """
    found = []
    for runs in series:
        if len(runs) < ENOUGH_RUNS:
            continue
        logs = np.array([np.log(values).mean() for values in runs])
        variance = (float(np.median(np.abs(np.diff(logs)))) / 0.6745 / math.sqrt(2)) ** 2  # normal: MAD / 0.6745
        within = fmean(float(np.log(values).var(ddof=1)) / len(values) for values in runs if len(values) > 1)
        found.append(math.sqrt(max(0.0, variance - within)))
    return median(found) if found else None


def interval(effect: Effect) -> tuple[float, float]:
    """The 95 % interval of a change, as shares."""
    half = float(special.stdtrit(effect.freedom, 0.975)) * effect.error
    return math.expm1(effect.log - half), math.expm1(effect.log + half)


def difference(figure: Mapping[str, Any], other: Mapping[str, Any], effect: Effect, margin: float) -> Difference:
    """The change from one figure to the other, not yet judged."""
    beyond = (abs(effect.log) - margin) / max(effect.error, 1e-12)
    p = min(1.0, 2 * float(special.stdtr(effect.freedom, -beyond)))
    low, high = (100 * end for end in interval(effect))
    return Difference(
        figure["name"], figure["where"], figure["unit"], figure["median"], other["median"],
        100 * math.expm1(effect.log), (low, high), p,
    )  # fmt: skip


def judge(found: Sequence[Difference], margin: float) -> list[Difference]:
    """Each with its answer: gated ones at `ALPHA` together, the others likewise among themselves."""
    answers: dict[int, str] = {}
    for gated in (True, False):
        family = sorted((it for it in found if it.gated == gated), key=lambda it: it.p)
        sure = True
        for rank, it in enumerate(family):
            sure = sure and it.p <= ALPHA / (len(family) - rank)
            answers[id(it)] = answer(it, margin, sure=sure)
    return [Difference(**{**it.__dict__, "answer": answers[id(it)]}) for it in found]


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
