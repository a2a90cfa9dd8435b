"""The chart of one step on every rank: computing, communicating, waiting. Called by `page`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from proving_ground.reports import numbers
from proving_ground.reports.history import Process
from proving_ground.reports.scaling import charts, measure, shares, words
from proving_ground.reports.scaling.measure import Measured
from proving_ground.reports.scaling.results import Analysis
from proving_ground.reports.svg import Chart, chart


@dataclass(frozen=True)
class StepShown:
    """The step that stands for a case: `rows` has one row a rank, in rank order."""

    case: str
    trial: Measured
    rows: pd.DataFrame

    @property
    def title(self) -> str:
        """What the panel shows."""
        plan, step = self.trial.plan, self.rows["step"].iloc[0]
        return f"{self.case} on {words.nodes(plan['nodes'])}: step {step:.0f} of trial {plan['id']}"


def representative(analysis: Analysis, case: str) -> StepShown | None:
    """The middle repeat of a case at its largest size (weak first), and its step of median length on all ranks."""
    own = [cell for cell in analysis.cells if cell.case == case and cell.counted]
    if not own:
        return None
    cell = min(own, key=lambda cell: (-cell.nodes, cell.scaling != "weak"))
    trials = sorted(cell.counted, key=lambda trial: trial.throughput)
    trial = trials[(len(trials) - 1) // 2]
    recorded = analysis.history.trials[trial.plan["id"]]
    rows = measure.median_step(measure.all_steps(recorded), trial.window or (0.0, 0.0))
    ranks = {name: rank_of(process) for name, process in recorded.processes.items()}
    return (
        StepShown(case, trial, rows.assign(rank=rows["process"].map(ranks)).sort_values("rank")) if len(rows) else None
    )


def rank_of(process: Process) -> int:
    """Its rank; the number of its node where the trainer did not say."""
    return process.rank if process.rank >= 0 else int("".join(filter(str.isdigit, process.name.partition(".")[0])) or 0)


def timeline(analysis: Analysis) -> Chart | None:
    """One step on all ranks, for each case; None where no trainer recorded the moments within its steps."""
    found = [shown for case in charts.cases(analysis) if (shown := representative(analysis, case))]
    if not found:
        return None
    tall = sum(21 * len(shown.rows) + 74 for shown in found)
    sentence = "The measured step of median length in the middle repeat at the largest size. " + " ".join(
        map(_said, found)
    )
    return chart("timeline", "One step on every rank", sentence, partial(_draw, found), (tall, tall))


def _said(shown: StepShown) -> str:
    rows = shown.rows
    exposed = 1000 * (rows["comm_t"].max() - rows["backward_t"].max())
    lag = ""
    if len(rows) > 1:
        who = str(rows.loc[rows["backward_t"] == rows["backward_t"].max(), "process"].iloc[0]).partition(".")[0]
        behind = 1000 * (rows["backward_t"].max() - rows["backward_t"].min())
        lag = f"the last rank to finish its gradients ({who}) is {numbers.short(behind)} ms behind the first, and "
    return (
        f"{shown.case}, {words.nodes(shown.trial.plan['nodes'])}: {lag}{numbers.short(exposed)} ms of "
        "communication stay exposed."
    )


def _draw(found: list[StepShown], drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
    ratios = [len(shown.rows) + 1.2 for shown in found]
    axes = drawing.subplots(len(found), 1, squeeze=False, height_ratios=ratios)
    for panel, shown in zip(axes.flatten(), found, strict=True):
        _panel(panel, shown, narrow=narrow)


def _panel(axes: Axes, shown: StepShown, *, narrow: bool) -> None:
    rows = shown.rows
    begin, last = rows["begin_t"].min(), rows["backward_t"].max()
    for row, (_, step) in enumerate(rows.iterrows()):
        for part, start, end in spans(step, last):
            said = f"{step['process']}: {words.PART_LONG[part]}, {numbers.short(1000 * (end - start))} ms"
            shares.segment(axes, row, (1000 * (start - begin), 1000 * (end - start)), part, said)
    names = [name.removesuffix(".0") for name in map(str, rows["process"])]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1000 * (rows["t"].max() - begin) * 1.005)
    axes.set_title(shown.title, pad=6, wrap=True)
    shares.millisecond_axis(axes, narrow=narrow)


def spans(step: Mapping[str, float] | pd.Series, last_gradient: float) -> list[tuple[str, float, float]]:
    """(part, begin, end) of one rank's step in seconds; waiting ends when the slowest rank has its gradients."""
    waited = min(max(last_gradient, step["backward_t"]), step["comm_t"])
    edges = [
        ("data", step["begin_t"], step["data_t"]),
        ("forward", step["data_t"], step["forward_t"]),
        ("backward", step["forward_t"], step["backward_t"]),
        ("wait", step["backward_t"], waited),
        ("comm", waited, step["comm_t"]),
        ("optimizer", step["comm_t"], step["optimizer_t"]),
    ]
    return [(part, begin, end) for part, begin, end in edges if end > begin]
