"""Why a step takes longer on more nodes: every lost percent booked on the cause that was measured for it.

Called by `measure` (the causes within one trial) and `reports.figures` (the loss between two sizes). All ranks
of a synchronous job go as fast as the slowest, so the slow cost the fast: the step of the faster half of the ranks is
taken apart, and what they wait for the last one is booked on what made that one late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

Grid = np.ndarray[Any, np.dtype[np.float64]]  # one row a rank, one column a step

OWN = ("data", "forward", "backward", "optimizer", "checkpoint", "between", "stall")
OPTIONAL = ("checkpoint", "between", "stall")
LATE = ("data", "optimizer", "checkpoint")  # a rank late by these: booked there; late by anything else: a straggler
AFTER = ("optimizer", "checkpoint")  # what lies between the exchange and the end of a step
NEEDED = ("t", "begin_t", "backward_t", "comm_s", *(f"{part}_s" for part in OWN if part not in OPTIONAL))
CAUSES = ("comm", "wait", "data", "checkpoint", "cpu", "optimizer", "forward", "backward", "between", "stall", "rest")
"""What a loss is booked on. `wait`: stragglers; `cpu`: held back by the node's CPU share; `between`: two steps;
`stall`: single steps that stood still; `rest`: unexplained."""

THROTTLED_FIRST = ("wait", "forward", "backward", "between", "stall", "data", "optimizer", "comm", "checkpoint", "rest")
"""Parts that throttling may stand behind, the likeliest first."""


def causes(steps: pd.DataFrame, warmup: int) -> dict[str, float]:
    """Mean seconds of a measured step by cause, of the faster half of the ranks; empty where marks are missing.

    `steps` has one row a process and step. A wait is the time from a rank's own last gradient to the last rank's, at
    most its `comm_s`. Since the exchange before, both did optimizer, checkpoint, data, forward and backward: what took
    the last one longer is what it was late by.
    """
    grids = grid_of(steps)
    if not grids:
        return {}
    absent = {part for part in OPTIONAL if not np.isfinite(grids[f"{part}_s"]).any()}
    grids |= {f"{part}_s": np.nan_to_num(grids[f"{part}_s"]) for part in OPTIONAL}
    waited, late = waits(grids)
    waited, late = waited[:, warmup:], {part: seconds[:, warmup:] for part, seconds in late.items()}
    fast = np.argsort(-waited.mean(axis=1), kind="stable")[: -(-len(waited) // 2)]
    found = {part: float(grids[f"{part}_s"][fast, warmup:].mean()) for part in OWN}
    wait = float(waited[fast].mean())
    found["comm"] = float(grids["comm_s"][fast, warmup:].mean()) - wait
    for part, seconds in late.items():
        booked = float(seconds[fast].mean())
        found[part] += booked + float(at_the_ends(grids, part, warmup)[fast].mean())
        wait -= booked
    return {part: seconds for part, seconds in (found | {"wait": wait}).items() if part not in absent}


def grid_of(steps: pd.DataFrame) -> dict[str, Grid]:
    """The columns that are needed as rank x step; empty where something was not recorded for every rank and step."""
    ranks = steps["process"].nunique()
    if not set(NEEDED) <= set(steps) or len(steps) % max(1, ranks) or steps[list(NEEDED)].isna().to_numpy().any():
        return {}
    ordered = steps.sort_values(["process", "step"], kind="stable")
    shape = (ranks, len(steps) // ranks)
    if (steps.groupby("process").size() != shape[1]).any():
        return {}
    told = ordered.reindex(columns=[*NEEDED, *(f"{part}_s" for part in OPTIONAL)])
    return {str(name): told[name].to_numpy(dtype=float).reshape(shape) for name in told}


def waits(grids: Mapping[str, Grid]) -> tuple[Grid, dict[str, Grid]]:
    """(seconds that each rank waits for the last in each step, of these: by what the last was late)."""
    arrival = grids["backward_t"]
    last = arrival.argmax(axis=0)
    behind = arrival.max(axis=0) - arrival
    waited = np.minimum(behind, grids["comm_s"])
    share = np.divide(waited, behind, out=np.zeros_like(behind), where=behind > 0)
    late = {}
    for part in LATE:
        took = grids[f"{part}_s"]
        # optimizer and checkpoint of the step before lie between the two exchanges
        since = took if part == "data" else np.hstack([np.zeros((len(took), 1)), took[:, :-1]])
        late[part] = share * (since[last, np.arange(since.shape[1])] - since)
    return waited, late


def at_the_ends(grids: Mapping[str, Grid], part: str, warmup: int) -> Grid:
    """Seconds a step by which the window ends later than a rank does, because of a part of the last step.

    The window runs from the last rank's end of a step to the last rank's end of another; what the last one did between
    its exchange and its end made all of them late at the end, less what it did at the beginning.
    """
    ends, took = grids["t"], grids[f"{part}_s"]
    if part not in AFTER or not warmup:
        return np.zeros(len(ends))
    last = ends.argmax(axis=0)
    behind = took[last, np.arange(ends.shape[1])] - took
    found: Grid = (behind[:, -1] - behind[:, warmup - 1]) / (ends.shape[1] - warmup)
    return found


def losses(here: Mapping[str, float], base: Mapping[str, float], growth: float, step_s: float) -> dict[str, float]:
    """Shares of a step of `step_s` that each part costs beyond `growth` times what it costs at the base."""
    return {part: (here[part] - growth * base.get(part, 0.0)) / step_s for part in CAUSES if part in here}


def book_throttling(lost: Mapping[str, float], throttled: float, link: float = 0.0) -> dict[str, float]:
    """Move a loss by CPU throttling (share of a step) out of the parts that it lengthened, into `cpu`.

    Throttled seconds lie within the other parts. They are taken from those that grew, first where a node computes (or
    is waited for), then where it communicates, and at most what these grew by: what cost nothing is not booked. What
    the link alone exposes (`link`, the bound's share of a step) is the link's, throttled or not.
    """
    left, booked = max(0.0, throttled), dict(lost)
    for part in THROTTLED_FIRST:
        grew = booked.get(part, 0.0) - (link if part == "comm" else 0.0)
        taken = min(left, max(0.0, grew))
        if taken:
            booked[part] -= taken
            left -= taken
    return {**booked, "cpu": max(0.0, throttled) - left}
