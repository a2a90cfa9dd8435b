"""Steps in which one rank stood still and all others waited for it. Called by `results`.

A rank's own time in a step runs from the end of its step before to its last local gradient; after that it waits for
the others. Where a step took much longer than the median and one rank alone was late by most of that, it is named. A
process that is stopped while gradients travel holds up everybody alike: then the step is named, and no rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

LONGER_S = 0.5  # than the median, and
TIMES = 4.0  # median steps longer: no noise of a machine; or, where steps are long and even,
SHARE, SPREADS = 0.5, 10.0  # half a step and ten of their robust standard deviations
ROBUST = 1.4826  # of a normal distribution: its standard deviation by its median absolute deviation
MOST = 0.5  # of the step's excess is the one rank's own


@dataclass(frozen=True)
class Stall:
    """One step that took `excess_s` longer than the median; `process` is empty where nobody can be named."""

    step: int
    excess_s: float
    process: str = ""

    @property
    def words(self) -> str:
        """For people."""
        if self.process:
            return f"step {self.step}: {self.process} stood still for {self.excess_s:.1f} s and all waited for it"
        return f"step {self.step} took {self.excess_s:.1f} s longer than most; who held it up cannot be told"


def stalls(steps: pd.DataFrame) -> Iterator[Stall]:
    """The stalls of a trial; `steps` has a row a process and measured step, with `wall_s` since its step before."""
    whole = steps.groupby("step")["wall_s"].max()
    excess = whole - whole.median()
    even = max(SHARE * whole.median(), SPREADS * ROBUST * excess.abs().median())
    late = excess[excess > max(LONGER_S, min(TIMES * whole.median(), even))]
    own = steps.assign(own_s=steps["wall_s"] - (steps["t"] - steps["backward_t"]))
    usual = own.groupby("process")["own_s"].transform("median")
    own["late_s"] = own["own_s"] - usual
    for step, seconds in late.items():
        rows = own[own["step"] == step]
        blamed = rows[rows["late_s"] > MOST * seconds]["process"]
        alone = len(blamed) == 1 and len(rows) > 1
        yield Stall(int(str(step).partition(".")[0]), float(seconds), str(blamed.iloc[0]) if alone else "")
