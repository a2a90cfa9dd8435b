"""The moments of a recovery, in seconds on the run's clock. Called by `reports.recovery.results`.

The README defines each; a moment that did not exist is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from proving_ground.reports.recovery.incidents import Incident
from proving_ground.reports.recovery.jobs import Record
from proving_ground.reports.recovery.steps import between

MOMENTS = (
    "inject", "first_symptom", "detected", "survivors_stopped", "membership_agreed", "state_loaded", "first_step",
    "first_committed_step", "healed", "full_speed", "work_made_up",
)  # fmt: skip
LATE = 3  # times the median step: a step that is later than this is a symptom
WINDOW = 5  # steps at full strength whose median says that full speed is reached
NEAR = 1.10  # of the median step before the fault


def with_moments(one: Incident, committed: pd.DataFrame) -> Incident:
    """The incident with its timeline, from the job's committed steps."""
    if not one.injected:
        return replace(one, moments=dict.fromkeys(MOMENTS))
    after = between(committed, one.inject_t, one.until_t)
    new = after[after["generation"] == one.new] if one.new is not None else after.iloc[:0]
    first_step = float(new["begun"].iloc[0]) if len(new) else None
    before_first = first_step if first_step is not None and math.isfinite(first_step) else one.until_t
    moments = {
        "inject": one.inject_t,
        "first_symptom": first_symptom(one, committed),
        "detected": first(t for t in times(one, "detected") if t <= before_first),
        "survivors_stopped": last(t for t in times(one, "workers_stopped") if t <= before_first),
        "membership_agreed": last(t for t in times(one, "membership") if t <= before_first),
        "state_loaded": last(float(record["t"]) for record in of_generation(one)),
        "first_step": first_step,
        "first_committed_step": one.resumed_t,
        "healed": float(one.end["t"]) if one.end else None,
        "full_speed": full_speed(one, after),
        "work_made_up": first(new.loc[new["step"] > one.newest, "end"]) or made_up_later(one, after),
    }
    return replace(one, moments=known(moments))


def known(moments: dict[str, float | None]) -> dict[str, float | None]:
    """Without what is no number: a trainer may not say when its steps began."""
    return {name: t if t is not None and math.isfinite(t) else None for name, t in moments.items()}


def times(one: Incident, *names: str) -> list[float]:
    """When events of these names were, those in the window."""
    return [float(record["t"]) for record in one.recorded(*names)]


def of_generation(one: Incident) -> list[Record]:
    """What the ranks of the new generation said when their state was loaded."""
    return [record for record in one.recorded("resume", "ready") if one.new and record["generation"] == one.new]


def first(found: Iterable[float]) -> float | None:
    """The earliest moment, if there is one."""
    return min(map(float, found), default=None)


def last(found: Iterable[float]) -> float | None:
    """The latest moment, if there is one."""
    return max(map(float, found), default=None)


def first_symptom(one: Incident, committed: pd.DataFrame) -> float | None:
    """The earliest sign that anybody could have seen: a death, an error, a detection, or a step that is late."""
    deaths = [float(record.get("ended_t") or record["t"]) for record in one.recorded("process_exit")]
    signs = [t for t in deaths if one.within(t)] + times(one, "node_down", "detected", "error")
    late = late_step(one, committed)
    return first([*signs, *([] if late is None else [late])])


def late_step(one: Incident, committed: pd.DataFrame) -> float | None:
    """The moment at which a step had been due for more than three median steps."""
    reach = (1 + LATE) * one.pace_s
    ends = between(committed, one.inject_t - 2 * reach, one.until_t)["end"].to_numpy()
    if not len(ends) or math.isnan(one.pace_s):
        return None
    stop = min(one.until_t, one.job.end_t if math.isfinite(one.job.end_t) else math.inf)
    due = ends + reach
    following = np.append(ends[1:], stop)
    late = due[(following > due) & (due >= one.inject_t) & (due < stop)]
    return float(late[0]) if len(late) and math.isfinite(late[0]) else None


def full_speed(one: Incident, after: pd.DataFrame) -> float | None:
    """The end of the first five steps at full strength that were as fast as before, once what was broken is healed."""
    inside = whole_again(one, after)
    if len(inside) < WINDOW:
        return None
    medians = np.median(np.lib.stride_tricks.sliding_window_view(inside["seconds"], WINDOW), axis=1)
    fast = np.flatnonzero(medians <= NEAR * one.pace_s)
    return float(inside["end"].iloc[fast[0] + WINDOW - 1]) if len(fast) else None


def whole_again(one: Incident, after: pd.DataFrame) -> pd.DataFrame:
    """Those of the steps after a fault that were made at full strength, once what was broken is healed."""
    healed = float(one.end["t"]) if one.end and one.new is None else -math.inf
    later = after["end"] - after["seconds"] >= healed if one.new is None else after["generation"] >= one.new
    return after[later & (after["world"] == one.world)]


def made_up_later(one: Incident, after: pd.DataFrame) -> float | None:
    """Where a further generation made the lost work up (one of several that followed the fault)."""
    if one.new is None:
        return None
    return first(after.loc[(after["generation"] > one.new) & (after["step"] > one.newest), "end"])
