"""How fast the machine was during a trial, by idle nodes that trained by themselves.

Called by `results` and `reports.figures`.

A shared machine is some percent faster at one moment than at another, for all nodes alike. Sizes that are measured one
after the other would differ by that. Idle nodes do the same work in every trial, so that what they differ by is the
machine's, and `reports.figures` takes it out of the comparison.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from proving_ground.reports.scaling.measure import Measured
from proving_ground.training.events import sensible

Window = tuple[float, float]
LATE_MAX = 0.05  # of the window: less changes no figure by as much as is uncertain


def of_trial(paces: Sequence[Mapping[str, Any]], window: Window) -> dict[str, float]:
    """Idle node → samples/s of all its ranks; a node is absent where one of them made less than two steps."""
    ranks = {(str(it["node"]), it.get("slot")): of_rank(it, window) for it in paces if it.get("node")}
    rates: dict[str, float] = {}
    for (node, _), rate in ranks.items():
        rates[node] = rates.get(node, 0.0) + rate
    return {node: rate for node, rate in rates.items() if not math.isnan(rate)}


def of_base(here: Measured, base: Measured) -> float:
    """The samples/s that the smallest size, `base`, would have made while the larger one, `here`, was measured.

    Where the smallest size is one node, idle nodes do the same job: the mean of all that did it at the time, or else of
    all that did it during `base`. Where it is more than one, its samples/s at the pace that idle nodes had at the time.
    Without idle nodes that did the same both times, its samples/s.
    """
    if is_base(here, base):
        return fmean(here.idle.values())
    if not alike(here, base):
        return base.throughput
    if base.plan["nodes"] == 1:
        return fmean((base.throughput, *base.idle.values()))
    return base.throughput * (ratio(here, base) or 1.0)


def is_base(here: Measured, base: Measured) -> bool:
    """Whether the smallest size's rate is that of idle nodes during `here`."""
    return bool(here.idle) and alike(here, base) and base.plan["nodes"] == 1


def alike(here: Measured, base: Measured) -> bool:
    """Whether idle nodes beside `base` did what they do beside `here`, of a larger size: its batch of a node."""
    same = bool(here.plan.get("batch_per_node") == base.plan.get("batch_per_node"))
    return same and here is not base and bool(base.idle)


def ratio(here: Measured, base: Measured) -> float | None:
    """How fast idle nodes were beside `here` over how fast they were beside `base`, of those that were so both times.

    None where no node was. The machine's moment is in it, and what `here` takes from them and `base` does not.
    """
    both = here.idle.keys() & base.idle.keys()
    if not both or not alike(here, base):
        return None
    return fmean(here.idle[it] for it in both) / fmean(base.idle[it] for it in both)


def of_rank(told: Mapping[str, Any], window: Window) -> float:
    """Samples/s over the steps that overlap with the window; NaN for less than one step, or what makes no sense."""
    at, samples = told.get("at"), told.get("samples")
    if not (isinstance(at, list) and isinstance(samples, list) and len(at) == len(samples) > 1):
        return math.nan
    if not all(map(sensible, (*at, *samples))) or at != sorted(at):
        return math.nan
    first = max(0, bisect_right(at, window[0]) - 1)
    last = min(len(at) - 1, bisect_left(at, window[1]))
    done, seconds = samples[last] - samples[first], at[last] - at[first]
    return float(done / seconds) if done > 0 and seconds > 0 else math.nan


def late(up_t: float, window: Window, first_s: float) -> tuple[str, ...]:
    """That idle nodes began to train well within the window only, so that cores were not equally busy; else nothing.

    A node's first step is its slowest: where it ended (`up_t`) before the trial's first measured one, of `first_s`, it
    had begun before the window.
    """
    late_s = up_t - window[0] - first_s  # NaN where no node was to train
    told = f"idle nodes had made no step {late_s:.1f} s after the first measured one"
    return (told,) * (late_s > LATE_MAX * (window[1] - window[0]))
