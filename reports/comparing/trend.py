"""Where a figure changed over many runs, and at which commit. Called by `reports.commands`.

Binary segmentation (Scott and Knott, 1974): the split into before and after that explains a series best is a change
point if it explains more than chance would in a series without one, found by simulation; then each half is searched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

SHORTEST = 3  # runs on each side of a change: two alone may be one bad hour
CHANCE = 0.05  # of a change point in a series that has none
SIMULATED = 2000
SEED = 23


@dataclass(frozen=True)
class Change:
    """At the run number `index` (from 0) the series changed from one level to another (medians)."""

    index: int
    before: float
    after: float

    @property
    def percent(self) -> float:
        """By how much."""
        return 100 * (self.after / self.before - 1)


def changes(values: Sequence[float]) -> list[Change]:
    """All change points of a series of positive values, in its order; none in fewer than 2 x `SHORTEST` runs."""
    logs = np.log(np.asarray(values, dtype=float))
    edges = [0, *sorted(split(logs, 0)), len(logs)]
    found = []
    for left, middle, right in zip(edges, edges[1:], edges[2:], strict=False):
        before, after = (float(np.exp(np.median(logs[a:b]))) for a, b in ((left, middle), (middle, right)))
        found.append(Change(middle, before, after))
    return found


def split(logs: Floats, offset: int) -> list[int]:
    """Change points of a piece of the series that begins at `offset`."""
    if len(logs) < 2 * SHORTEST:
        return []
    scores = statistic(logs[None, :])[0]
    best = int(np.argmax(scores))
    if scores[best] <= threshold(len(logs)):
        return []
    at = best + SHORTEST
    return [*split(logs[:at], offset), offset + at, *split(logs[at:], offset + at)]


def statistic(series: Floats) -> Floats:
    """For each row, the absolute t of the difference of means, for every split that leaves `SHORTEST` on both sides."""
    count = series.shape[1]
    sizes = np.arange(SHORTEST, count - SHORTEST + 1)
    sums, squares = np.cumsum(series, axis=1), np.cumsum(series**2, axis=1)
    left, left_squares = sums[:, sizes - 1], squares[:, sizes - 1]
    right, right_squares = sums[:, -1:] - left, squares[:, -1:] - left_squares
    within = left_squares - left**2 / sizes + right_squares - right**2 / (count - sizes)
    error = np.sqrt(np.maximum(within, 1e-18) / (count - 2) * (1 / sizes + 1 / (count - sizes)))
    found: Floats = np.abs(left / sizes - right / (count - sizes)) / error
    return found


@cache
def threshold(count: int) -> float:
    """What the largest statistic of `count` runs without a change stays below in all but `CHANCE` of the cases."""
    series = np.random.default_rng((SEED, count)).standard_normal((SIMULATED, count))
    return float(np.quantile(statistic(series).max(axis=1), 1 - CHANCE))


def sparkline(values: Sequence[float]) -> str:
    """The series as a line of eight heights, for a terminal."""
    low, high = min(values), max(values)
    scale = 7 / (high - low) if high > low else 0.0
    return "".join("▁▂▃▄▅▆▇█"[math.floor((value - low) * scale + 0.5)] for value in values)
