"""Is the learning rate of every step the one that was configured? Called by `reports.recovery.results`.

The rate is a pure function of the step. The trainer says its rule when it is ready; here the rule is worked out again,
so that a rate that job and twin have both wrong is seen as well. Where no rule was said, the twin's rates count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from proving_ground.reports.recovery.jobs import Job
from proving_ground.reports.recovery.sameness import NEAR_LR, Judged

POWER = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def wrong_rates(job: Job, rows: pd.DataFrame, twin_rows: pd.DataFrame | None) -> list[Judged]:
    """What is wrong with the rates of a job's steps, the first of each step; `rows` are one a worker and step."""
    told = rows.loc[rows["lr"].notna(), ["step", "lr", "t", "rank"]]
    if told.empty:
        return []
    steps = told["step"].to_numpy(dtype=float)
    rule = job.said_ready("rate")
    wanted = by_rule(rule, steps) if isinstance(rule, Mapping) else by_twin(twin_rows, steps)
    off = ~np.isclose(told["lr"].to_numpy(), wanted, rtol=NEAR_LR, atol=0) & np.isfinite(wanted)
    wrong = told.assign(wanted=wanted)[off].drop_duplicates("step").sort_values("step")
    by = "configured" if isinstance(rule, Mapping) else "the twin's"
    return [
        Judged(int(it.step), "learning rate", same=False, why=f"{it.lr:g}, {by} is {it.wanted:g}", t=float(it.t))
        for it in wrong.itertuples()
    ]


def by_rule(rule: Mapping[str, Any], steps: Floats) -> Floats:
    """The rates of steps (from 1) by the rule of `training/README.md`: scaled by batch, warmed up, then scheduled."""
    peak = float(rule["lr"]) * (rule["global_batch"] / rule["base_batch"]) ** POWER[str(rule["scaling"])]
    done, warm = steps - 1, int(rule["warmup_steps"])
    share = np.clip((done - warm) / max(1, int(rule["steps"]) - warm), 0, None)
    after = peak * 0.5 * (1 + np.cos(np.pi * share)) if rule["schedule"] == "cosine" else np.full_like(steps, peak)
    return np.where(done < warm, peak * (done + 1) / max(1, warm), after)


def by_twin(twin: pd.DataFrame | None, steps: Floats) -> Floats:
    """The twin's rates of the same steps; NaN where it has none."""
    if twin is None or twin["lr"].isna().all():
        return np.full_like(steps, np.nan)
    known = twin.loc[twin["lr"].notna()].drop_duplicates("step").set_index("step")["lr"]
    return known.reindex(steps).to_numpy(dtype=float)


def contradicts_plan(job: Job) -> str:
    """Where the rule that the trainer said is not what the plan asked for; empty: it is, or nothing was said."""
    rule, asked = job.said_ready("rate"), job.plan.get("training") or {}
    if not isinstance(rule, Mapping):
        return ""
    planned = {
        "lr": asked.get("lr"), "base_batch": asked.get("base_batch"), "scaling": asked.get("lr_scaling"),
        "warmup_steps": asked.get("lr_warmup_steps"), "schedule": asked.get("lr_schedule"),
        "global_batch": job.plan.get("global_batch"),
    }  # fmt: skip
    different = [key for key, value in planned.items() if value is not None and rule.get(key) != value]
    return ", ".join(f"{key} {rule.get(key)!r} instead of {planned[key]!r}" for key in different)
