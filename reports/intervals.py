"""95 % intervals of medians over few repeats. Called by `reports.figures`.

A bootstrap in two stages, repeats and blocks of steps within a repeat, gives the standard error of the median;
Student's t with (repeats - 1) degrees of freedom gives the width. The plain percentile bootstrap is not used: with 3
repeats its widest possible interval (lowest to highest value) covers the true median in only 75 % of the cases.
Source: T. Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69 (2015), section 4
("t with bootstrap standard error"); blocks, because neighbouring steps depend on each other: H. Künsch, Ann. Stat. 17
(1989).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Draws = np.ndarray[tuple[int, int], np.dtype[np.float64]]

DRAWS = 4000
LEVEL = 0.95
BLOCKS = 32  # at most, a trial; longer trials have longer blocks
SEED = 20  # any constant: the same run must give the same interval

Interval = tuple[float, float]


def rate_draws(samples: Floats, seconds: Floats, salt: int) -> Floats:
    """`DRAWS` values that a trial's throughput (samples/s) could have taken, from its own blocks of steps."""
    edges = np.linspace(0, len(seconds), min(BLOCKS, max(1, len(seconds) // 2)) + 1).astype(int)[:-1]
    amount, time = np.add.reduceat(samples, edges), np.add.reduceat(seconds, edges)
    chosen = np.random.default_rng((SEED, salt)).integers(len(edges), size=(DRAWS, len(edges)))
    drawn: Floats = amount[chosen].sum(axis=1) / time[chosen].sum(axis=1)
    return drawn


def stack(rows: Sequence[Floats]) -> Draws:
    """One row a repeat."""
    return np.stack(list(rows))


def constant_draws(values: Sequence[float]) -> Draws:
    """Draws for values whose noise within a repeat is not known: each repeat is its value."""
    return np.repeat(np.asarray(values, dtype=float)[:, None], DRAWS, axis=1)


def standard_error(draws: Draws) -> float:
    """The bootstrap standard error of the median over repeats; `draws` has one row a repeat."""
    return float(medians(draws).std())


def medians(draws: Draws) -> Floats:
    """`DRAWS` medians over drawn repeats; for equally many repeats always the same ones are drawn, as blocks."""
    repeats = len(draws)
    chosen = np.random.default_rng((SEED, repeats)).integers(repeats, size=(DRAWS, repeats))
    found: Floats = np.median(draws[chosen.T, np.arange(DRAWS)], axis=0)
    return found


def ratio_interval(median: float, draws: Draws) -> Interval | None:
    """The interval of a median of positive values, symmetrical in the logarithm; None for one repeat."""
    if len(draws) < 2:
        return None
    half = student(len(draws)) * standard_error(np.log(draws))
    return median * math.exp(-half), median * math.exp(half)


def plain_interval(median: float, values: Sequence[float]) -> Interval | None:
    """The interval of a median of values that may be zero or negative; None for one repeat."""
    if len(values) < 2:
        return None
    half = student(len(values)) * standard_error(constant_draws(values))
    return median - half, median + half


def student(repeats: int, level: float = LEVEL) -> float:
    """Student's t for an interval of that level from so many repeats."""
    return float(special.stdtrit(repeats - 1, (1 + level) / 2))


def at_level(found: Mapping[str, Any], level: float, *, ratio: bool) -> Interval | None:
    """The interval of a figure at another level than 95 %, from that; of a ratio symmetrical in the logarithm."""
    if found["ci95"] is None or level == LEVEL:
        return found["ci95"] and (found["ci95"][0], found["ci95"][1])
    wider, middle, high = student(found["n"], level) / student(found["n"]), found["median"], found["ci95"][1]
    if ratio:
        return middle * (middle / high) ** wider, middle * (high / middle) ** wider
    return middle - wider * (high - middle), middle + wider * (high - middle)


def half_width(median: float, interval: Interval | None) -> float:
    """Half of the interval's width as a share of the median; infinite where there is none."""
    return (interval[1] - interval[0]) / 2 / abs(median) if interval and median else math.inf
