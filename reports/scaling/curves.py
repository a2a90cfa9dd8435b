"""Loss and throughput over time, as recorded. Called by `page`, and for the loss by `reports.recovery.page`.

Loss is read from the event file of one process, since all ranks tell the global mean; of long files every n-th step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import orjson
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from proving_ground.bench.rundir import RunDir
from proving_ground.reports import numbers
from proving_ground.reports.scaling import charts, measure, words
from proving_ground.reports.scaling.results import Analysis
from proving_ground.reports.scaling.timeline import representative
from proving_ground.reports.svg import COLOUR, Chart, chart, quiet_axes, tip

POINTS = 1000  # of a curve at most
BINS = 60  # of throughput at most
STEPS_A_BIN = 5  # at least, on average
GAP = 10.0  # times the usual time between two points: an interruption
MARKS = 24  # on a curve at most that tell their value
CASES = 3  # that are shown; of more the first

Curve = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Panel:
    """One curve: `title` says of what, `unit` what its axis is in; x in seconds."""

    title: str
    unit: str
    points: Curve


def curves(analysis: Analysis) -> Chart | None:
    """Of each case the middle repeat at its largest size: its loss, where it tells one, and its samples/s."""
    found = [panel for case in charts.cases(analysis)[:CASES] for panel in of_case(analysis, case)]
    if not found:
        return None
    sentence = "The middle repeat of each case at its largest size, as recorded, warm-up included."
    return drawn("curves", "Loss and throughput over time", sentence, found)


def of_case(analysis: Analysis, case: str) -> list[Panel]:
    """Loss and throughput of one case."""
    shown = representative(analysis, case)
    if shown is None:
        return []
    plan = shown.trial.plan
    steps = measure.all_steps(analysis.history.trials[plan["id"]])
    begin = float(steps["t"].min())
    about = f"{case}, {words.nodes(plan['nodes'])}"
    loss = losses(files_of(analysis.run, plan["id"]), begin)
    made = [Panel(f"{about}: loss", "loss", loss)] if len(loss[0]) > 1 else []
    rate = rates(steps["t"].to_numpy() - begin, steps["samples"].to_numpy(), len(steps) / plan["nodes"])
    return [*made, Panel(f"{about}: samples/s", "samples/s", rate)] if len(rate[0]) > 1 else made


def of_job(run: RunDir, trial: str, begin: float) -> Chart | None:
    """The loss of one job, over seconds since a moment; None where its trainer tells none."""
    points = losses(files_of(run, trial), begin)
    if len(points[0]) < 2:
        return None
    sentence = f"The loss of job {trial} as its ranks recorded it, steps that were made again included."
    return drawn(f"loss-{trial}", f"Loss of job {trial}", sentence, [Panel("", "loss", points)])


def files_of(run: RunDir, trial: str) -> list[Path]:
    """The event files of a trial's workers, the longest first."""
    found = [it for it in run.events.glob(f"{trial}.*.jsonl") if not it.stem.endswith(".launch")]
    return sorted(found, key=lambda it: (-it.stat().st_size, it.name))


def losses(files: Sequence[Path], begin: float) -> Curve:
    """Seconds and loss of the steps in the longest file."""
    if not files:
        return [], []
    with files[0].open("rb") as lines:
        count = sum(b'"loss"' in line for line in lines)
    every, times, values = count // POINTS + 1, [], []
    with files[0].open("rb") as lines:
        for line in (it for number, it in enumerate(it for it in lines if b'"loss"' in it) if number % every == 0):
            t, value = told(line)
            if value is not None:
                times.append(t - begin)
                values.append(value)
    return times, values


def told(line: bytes) -> tuple[float, float | None]:
    """Moment and loss of one line; None where it is half a line, or no number."""
    try:
        record = orjson.loads(line)
        t, value = float(record["t"]), record.get("loss")
    except (ValueError, KeyError, TypeError):
        return 0.0, None
    good = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
    return t, float(value) if good else None


def rates(times: np.ndarray[tuple[int], np.dtype[np.float64]], samples: object, steps: float) -> Curve:
    """Samples/s of all ranks in bins of equal length; `steps` is how many the job made."""
    bins = int(min(BINS, steps / STEPS_A_BIN))
    if bins < 2:
        return [], []
    total, edges = np.histogram(times, bins=bins, weights=np.asarray(samples, dtype=float))
    return list((edges[1:] + edges[:-1]) / 2), list(total / np.diff(edges))


def drawn(name: str, title: str, sentence: str, found: Sequence[Panel]) -> Chart:
    """Panels in two columns, narrow in one."""

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        columns = 1 if narrow or len(found) == 1 else 2
        axes = drawing.subplots(-(-len(found) // columns), columns, squeeze=False).flatten()
        for one, panel in zip(axes, found, strict=False):
            draw_panel(one, panel)
        for empty in axes[len(found) :]:
            empty.set_visible(False)

    rows = -(-len(found) // 2)
    return chart(name, title, sentence, draw, (190 * rows, 170 * len(found)))


def draw_panel(axes: Axes, panel: Panel) -> None:
    """One curve; a loss that falls by more than a factor of ten on a logarithmic axis."""
    times, values = panel.points
    axes.plot(*interrupted(times, values), color=COLOUR["accent"], linewidth=1.6)
    for t, value in list(zip(times, values, strict=True))[:: len(times) // MARKS + 1]:
        said = f"{numbers.short(t)} s: {numbers.short(value)} {panel.unit}"
        axes.plot(t, value, "o", color=COLOUR["accent"], markersize=3, gid=tip(said))
    if panel.unit == "loss" and min(values) > 0 and max(values) > 10 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 0.01 else f"{value:.0e}")
        axes.minorticks_off()
    else:
        axes.set_ylim(0, 1.12 * max(values) or 1.0)
        axes.yaxis.set_major_formatter(lambda value, _: numbers.plain(value, 0 if abs(value) >= 10 else 1))
    axes.set_xlabel("seconds since the first step")
    axes.set_title(panel.title, pad=6, wrap=True)
    quiet_axes(axes)


def interrupted(times: Sequence[float], values: Sequence[float]) -> Curve:
    """The same curve with a gap where nothing was recorded for ten times as long as usual."""
    usual = median(later - earlier for earlier, later in pairwise(times))
    x, y = [times[0]], [values[0]]
    for before, t, value in zip(times, times[1:], values[1:], strict=False):
        if t - before > GAP * usual:
            x.append(t)
            y.append(math.nan)
        x.append(t)
        y.append(value)
    return x, y
