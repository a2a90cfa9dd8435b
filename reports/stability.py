"""Was the machine itself steady while a trial was measured? Says so in flags.

Called by `reports.scaling.results`; the README explains the limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

STEAL_MAX = 0.02  # share of the cores' time that the hypervisor gave to others
MARGIN_S = 2.0  # samples come once a second: those around a window belong to it
BUSY_MAX = 0.97  # share of the cores' time in use: above it nodes wait for each other, not for their own work

Window = tuple[float, float]


@dataclass(frozen=True)
class Steadiness:
    """What the machine's counters say about one window; NaN where they were not recorded. Shares of all cores' time."""

    steal: float
    busy: float
    load1: float
    flags: tuple[str, ...]


def steadiness(machine: pd.DataFrame, window: Window, cores: int) -> Steadiness:
    """Judge one trial's window from the machine's samples around it."""
    inside = machine[machine["t"].between(*window)]
    if len(inside) >= 2:  # the samples just outside belong to starting and stopping, which are busy by nature
        window = float(inside["t"].iloc[0]), float(inside["t"].iloc[-1])
    steal = _rate(machine, "steal_s", window) / cores
    busy = _rate(machine, "cpu_s", window) / cores if len(inside) >= 2 else math.nan
    flags = []
    if steal > STEAL_MAX:
        flags.append(f"the hypervisor took {steal:.1%} of the CPU time (allowed: {STEAL_MAX:.0%})".replace("%", " %"))
    if busy > BUSY_MAX:
        flags.append(f"all cores were busy ({busy:.0%}): nodes waited for each other".replace("%", " %"))
    return Steadiness(steal, busy, float(inside["load1"].mean()) if len(inside) else math.nan, tuple(flags))


def _rate(machine: pd.DataFrame, column: str, window: Window) -> float:
    """Seconds a second that a cumulative counter grew by in the window; NaN where no samples surround it."""
    samples = machine[["t", column]].dropna()
    if len(samples) < 2 or samples["t"].iloc[0] > window[1] or samples["t"].iloc[-1] < window[0]:
        return math.nan
    # np.interp holds the first and last value outside the samples, so only the covered part of the window may divide
    begin, end = max(window[0], samples["t"].iloc[0]), min(window[1], samples["t"].iloc[-1])
    at = np.interp([begin, end], samples["t"], samples[column])
    return float((at[1] - at[0]) / (end - begin)) if end > begin else math.nan


def over_time(machine: pd.DataFrame, cores: int) -> pd.DataFrame:
    """Steal, use and load as shares of all cores, one row a sample, for the chart of the whole run."""
    gap = machine["t"].diff()
    return pd.DataFrame(
        {
            "t": machine["t"],
            "steal": machine["steal_s"].diff() / gap / cores,
            "busy": machine["cpu_s"].diff() / gap / cores,
            "load": machine["load1"] / cores,
        }
    ).iloc[1:]


def throttled(samples: Sequence[tuple[float, Mapping[str, float]]], window: Window, nodes: int) -> float:
    """Seconds a second for which the most throttled of the first `nodes` nodes waited for its share; NaN: unknown."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    known = [
        (t, it) for t, it in samples if window[0] - MARGIN_S <= t <= window[1] + MARGIN_S and set(names) <= set(it)
    ]
    rates = [_rate(pd.DataFrame({"t": [t for t, _ in known], name: [it[name] for _, it in known]}), name, window)
             for name in names]  # fmt: skip
    return max(rates, default=math.nan)
