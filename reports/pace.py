"""How fast the machine was during a trial, by idle nodes that trained by themselves. Called by `reports.results`.

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

from reports.measure import Measured
from training.events import sensible

Window = tuple[float, float]


def of_trial(paces: Sequence[Mapping[str, Any]], window: Window) -> tuple[float, ...]:
    """Samples/s of each idle node all of whose ranks made two steps."""
    rates: dict[str, float] = {}
    for it in paces:
        rates[str(it.get("node"))] = rates.get(str(it.get("node")), 0.0) + of_rank(it, window)
    return tuple(rate for rate in rates.values() if not math.isnan(rate))


def of_base(here: Measured, base: Measured) -> float:
    """The samples/s that the smallest size, `base`, would have made while the larger one, `here`, was measured.

    Where the smallest size is one node, idle nodes do the same job: the mean of all that did it at the time, or else of
    all that did it during `base`. Where it is more than one, its samples/s at the pace that idle nodes had at the time.
    Without idle nodes that did the same both times, its samples/s.
    """
    own, batch = base.throughput, base.plan.get("batch_per_node")
    if here is base or not base.idle or here.plan.get("batch_per_node") != batch:
        return own
    if base.plan["nodes"] == 1 and base.plan.get("global_batch") == batch:
        return fmean(here.idle) if here.idle else fmean((own, *base.idle))
    return own * fmean(here.idle) / fmean(base.idle) if here.idle else own


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
    """That idle nodes began to train within the window only, so that the cores were not equally busy; else nothing.

    A node's first step is its slowest: where it ended (`up_t`) before the trial's first measured one, of `first_s`, it
    had begun before the window.
    """
    late_s = up_t - window[0] - first_s  # NaN where no node was to train
    return (f"idle nodes had made no step {late_s:.1f} s after the first measured one",) * (late_s > 0)
