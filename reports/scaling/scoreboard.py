"""Predictions beside what was measured later: figures and the verdict on them. Called by `results`.

`prediction.json` was written between block A and block B (`forecast`). Here it is only read, and its evidence
checked: the harness recorded its hash and the moment, and the events of block A are still those that the fit has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir
from proving_ground.reports import figures, intervals
from proving_ground.reports.figures import Figure
from proving_ground.reports.history import History
from proving_ground.reports.scaling import forecast
from proving_ground.reports.scaling.cells import Cell, figure

ERROR_MEAN_MAX, ERROR_WORST_MAX = 3.0, 8.0  # % of the step time, over the predicted sizes that were measured


@dataclass(frozen=True)
class Prediction:
    """The sealed document, and what speaks against its having been made before it was scored (empty: nothing)."""

    document: Mapping[str, Any] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One a case, scaling and number of nodes; empty where nothing was predicted."""
        return list(self.document.get("predictions", ()))


def read(run: RunDir, plan: Mapping[str, Any], history: History) -> Prediction:
    """The prediction of a run, with its evidence checked; an empty one where there is none."""
    file = run.path / "prediction.json"
    if not file.exists():
        return Prediction()
    made = run.read("prediction")
    return Prediction(made, tuple(doubts(made, rundir.sha256(file), forecast.evidence(run, plan), plan, history)))


def doubts(made: Mapping[str, Any], found: str, seen: str, plan: Mapping[str, Any], history: History) -> Iterator[str]:
    """What speaks against the prediction's having been made from block A alone and before block B."""
    if history.prediction is None:
        yield "the harness recorded no prediction"
        return
    if history.prediction.get("sha256") != found:
        yield "prediction.json is not the one that the harness recorded"
    if made.get("events_sha256") != seen:
        yield "the events of block a are not those that the fit has seen"
    later = [history.trials[name].start_t for it in plan["trials"] if it.get("block") == "b"
             and (name := str(it["id"])) in history.trials]  # fmt: skip
    if any(start < float(history.prediction["t"]) for start in later):
        yield "block b had begun when it was recorded"


def all_figures(prediction: Prediction, cells: Sequence[Cell]) -> Iterator[Figure]:
    """What was predicted, and where it was measured later, how far off it was."""
    measured = {(cell.case, cell.scaling, cell.nodes): cell for cell in cells}
    for row in prediction.rows:
        where = {key: row[key] for key in ("case", "workload", "scaling", "nodes")}
        for of, unit, scale in (("efficiency", "%", 100), ("step_time", "ms", 1000)):
            value, low, high = (scale * number for number in row["efficiency" if of == "efficiency" else "step_s"])
            about = Cell(**where, counted=())
            yield figure("prediction", unit, about, [value], (low, high), "predicted", of=of)
        cell = measured.get((row["case"], row["scaling"], row["nodes"]))
        if cell and cell.counted:
            off = [100 * (row["step_s"][0] / float(trial.seconds.mean()) - 1) for trial in cell.counted]
            yield figure("prediction_error", "%", cell, off, intervals.plain_interval(median(off), off))


def judge(prediction: Prediction, listed: Sequence[Figure]) -> tuple[str, str] | None:
    """(pass, fail or unknown, why) on the predictions under weak scaling; None where nothing was predicted."""
    if not prediction.rows:
        return None
    if prediction.doubts:
        return "unknown", f"not shown to have been made beforehand: {'; '.join(prediction.doubts)}"
    scored = figures.pick_all(listed, "prediction_error", scaling="weak")
    if not scored:
        return "unknown", "no predicted size was measured under weak scaling"
    sizes = f"{len(scored)} predicted size" + "s" * (len(scored) > 1)
    ends = {"on average": interval_of(np.mean, scored), "at worst": interval_of(np.max, scored)}
    asked = {"on average": ERROR_MEAN_MAX, "at worst": ERROR_WORST_MAX}
    said = ", ".join(f"{off:.1f} % {how}" + (f" ({low:.1f} to {high:.1f})" if low < high else "")
                     for how, (off, low, high) in ends.items())  # fmt: skip
    said = f"step times of {sizes} off by {said}; at most {ERROR_MEAN_MAX:g} and {ERROR_WORST_MAX:g} % asked"
    if min(found["n"] for found in scored) < 2:
        return "unknown", f"cannot tell: one repeat, and its noise is not known; {said}"
    if any(ends[how][1] > most for how, most in asked.items()):
        return "fail", said
    return (
        ("pass", said)
        if all(ends[how][2] <= most for how, most in asked.items())
        else ("unknown", f"cannot tell: {said}")
    )


def interval_of(over: Callable[..., Any], scored: Sequence[Figure]) -> tuple[float, float, float]:
    """The mean or the largest of the sizes' errors without their signs, with its 95 % interval; all in %.

    From medians over drawn repeats; the same repeats are drawn of every size, because they were interleaved.
    """
    off = float(over([abs(found["median"]) for found in scored]))
    draws = [np.abs(intervals.medians(intervals.constant_draws(found["values"]))) for found in scored]
    repeats = min(found["n"] for found in scored)
    half = intervals.student(repeats) * float(over(draws, axis=0).std()) if repeats > 1 else 0.0
    return off, max(0.0, off - half), off + half
