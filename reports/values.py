"""The values behind the page, to download from it without a network: JSON and CSV. Called by `reports.scaling.page`."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Sequence
from statistics import fmean

from proving_ground.reports import document
from proving_ground.reports.figures import Figure
from proving_ground.reports.scaling import measure
from proving_ground.reports.scaling.measure import Measured
from proving_ground.reports.scaling.results import Analysis

PLANNED = ("id", "case", "nodes", "repeat", "global_batch", "steps", "warmup_steps", "label")


def links(analysis: Analysis) -> dict[str, str]:
    """The documents as `data:` links."""
    return {
        "json": data_link("application/json", document.text(analysis.results)),
        "figures": data_link("text/csv", figures_csv(analysis.figures)),
        "trials": data_link("text/csv", trials_csv(analysis)),
    }


def data_link(kind: str, text: str) -> str:
    """A document as a `data:` link."""
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def figures_csv(figures: Sequence[Figure]) -> str:
    """All figures, one a row, values separated by blanks."""
    about = list(dict.fromkeys(key for found in figures for key in found["where"]))
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["name", "unit", "label", *about, "n", "median", "ci95_low", "ci95_high", "values"])
    for found in figures:
        low, high = found["ci95"] or ("", "")
        where = [found["where"].get(key, "") for key in about]
        values = " ".join(map(str, found["values"]))
        rows.writerow(
            [found["name"], found["unit"], found["label"], *where, found["n"], found["median"], low, high, values]
        )
    return out.getvalue()


def trials_csv(analysis: Analysis) -> str:
    """All trials, one a row, with every part of a step in seconds; empty where nothing was recorded."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    parts = [f"{part}_s" for part in measure.PARTS]
    rows.writerow(
        [*PLANNED, "scaling", "state", "samples_per_s", "step_s", *parts, "steal", "busy", "idle_samples_per_s"]
    )
    for trial in analysis.trials:
        about = [*(trial.plan.get(key, "") for key in PLANNED), "+".join(trial.plan["scaling"]), state(trial)]
        rows.writerow([*about, *("" if math.isnan(value) else round(value, 9) for value in measured(trial))])
    return out.getvalue()


def state(trial: Measured) -> str:
    """`counted`, `not run`, or why it failed or was flagged."""
    return trial.failed or ("not run" if trial.not_run else "; ".join(trial.flags) or "counted")


def measured(trial: Measured) -> list[float]:
    """A trial's numbers in the order of the columns; NaN is a gap."""
    parts = [trial.parts.get(part, math.nan) for part in measure.PARTS]
    machine = (trial.machine.get(key, math.nan) for key in ("steal", "busy"))
    return [trial.throughput, trial.step_s, *parts, *machine, fmean(trial.idle.values()) if trial.idle else math.nan]
