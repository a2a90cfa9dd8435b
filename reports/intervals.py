"""95 % intervals of medians over few repeats. Called by `reports.figures`.

median ± t · s, with Student's t for (repeats - 1) degrees of freedom. `s` is the standard error of a median: that of
the mean, from how far repeats lie apart, times `MEDIAN`. What steps differ by within a repeat is in that already; it
counts by itself only where it is more, since few repeats may agree by luck. It comes from a bootstrap over blocks of
steps, because neighbouring steps depend on each other: H. Künsch, Ann. Stat. 17 (1989).
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
MEDIAN = (1.0, 1.160, 1.092, 1.198, 1.135, 1.214, 1.160, 1.223)
"""By how much a median of 2, 3 … 9 values spreads more than their mean does, where noise is normal: by simulation."""
MEDIAN_OF_MANY = math.sqrt(math.pi / 2)  # the limit, and more than for any lower number

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
    """The standard error of the median over repeats; `draws` has one row a repeat, and there are two or more."""
    repeats = len(draws)
    between, within = draws.mean(axis=1).var(ddof=1), draws.var(axis=1).mean()
    factor = MEDIAN[repeats - 2] if repeats - 2 < len(MEDIAN) else MEDIAN_OF_MANY
    return factor * math.sqrt(max(between, within) / repeats)


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
