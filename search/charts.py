"""The charts of a search: every trial's curve, parallel coordinates, overhead by length. Called by `search.page`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from proving_ground.reports.svg import COLOUR, Chart, chart, quiet_axes, tip
from proving_ground.search import ledger
from proving_ground.search.ledger import Trial
from proving_ground.search.results import Analysis
from proving_ground.search.spec import Bounds
from proving_ground.search.words import params_words, value_words

MARGIN = 0.06  # of an axis, beyond its first and last value
STYLE: Mapping[str, tuple[str, Any, float]] = {
    ledger.FINISHED: ("second", "-", 0.7),
    ledger.STOPPED: ("wait", "-", 0.8),
    ledger.FAILED: ("bad", (0, (2, 2)), 0.9),
    ledger.RUNNING: ("rest", (0, (1, 2)), 0.9),
}
"""State → colour, dashes and opacity of its curve."""
WORDS = {
    ledger.FINISHED: "in full", ledger.STOPPED: "stopped early", ledger.FAILED: "failed", ledger.RUNNING: "not ended",
}  # fmt: skip


def state_words(trial: Trial) -> str:
    """How a trial ended."""
    return "cut off by the budget" if trial.cut_off else WORDS[trial.state]


def curves(analysis: Analysis) -> Chart | None:
    """The metric over steps, of every trial; the best one stands out."""
    shown = [it for it in analysis.trials.values() if it.curve]
    if not shown:
        return None
    metric = analysis.search.metric

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        del narrow
        axes = drawing.subplots()
        for it in sorted(shown, key=lambda it: it is analysis.best):
            curve(axes, it, metric, best=it is analysis.best)
        quiet_axes(axes)
        axes.set_xlabel("step")
        axes.set_ylabel(metric)
        axes.set_xlim(0, analysis.search.steps * (1 + MARGIN))

    found = {state_words(it): COLOURS_SAID[it.state] for it in shown}
    kinds = ", ".join(f"{words} {colour}" for words, colour in found.items())
    sentence = f"{metric.capitalize()} at each evaluation: {kinds}. The best trial is the thick blue line."
    return chart("curves", f"{metric} of every trial", sentence, draw, (360, 260))


COLOURS_SAID = {
    ledger.FINISHED: "grey", ledger.STOPPED: "orange", ledger.FAILED: "red and dashed", ledger.RUNNING: "dotted",
}  # fmt: skip


def curve(axes: Axes, trial: Trial, metric: str, *, best: bool) -> None:
    """One trial's curve, with a mark at its end that tells about it."""
    colour, dashes, opacity = ("accent", "-", 1.0) if best else STYLE[trial.state]
    steps, values = zip(*trial.curve, strict=True)
    axes.plot(
        steps, values, color=COLOUR[colour], linestyle=dashes, linewidth=2.4 if best else 1.1, alpha=opacity,
        zorder=3 if best else 2,
    )  # fmt: skip
    end = f"{state_words(trial)} at step {steps[-1]}: {metric} {value_words(values[-1])}"
    said = f"{trial.id}, {end}; {params_words(trial.params)}"
    size = 5 if best else 3.5
    axes.plot(steps[-1:], values[-1:], marker="o", markersize=size, color=COLOUR[colour], zorder=4, gid=tip(said))


def parallel(analysis: Analysis) -> Chart | None:
    """Parallel coordinates: an axis for each parameter and one for the metric, a line for each trial."""
    mode = analysis.search.mode
    shown = [(it, found[1]) for it in analysis.trials.values() if (found := it.best(mode))]
    if len(shown) < 2:
        return None
    low, high = min(value for _, value in shown), max(value for _, value in shown)
    bounds = analysis.search.bounds

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        axes = drawing.subplots()
        for trial, value in sorted(shown, key=lambda pair: pair[0] is analysis.best):
            params = trial.best_params(mode)
            heights = [place(it, params[name]) for name, it in bounds.items()]
            heights.append((value - low) / (high - low) if high > low else 0.5)
            line(axes, trial, heights, analysis)
        dress(axes, list(bounds.items()), (analysis.search.metric, low, high), narrow=narrow)

    sentence = "Each line is a trial: where it lay on the axis of each parameter, and its best value on the last axis."
    return chart("parallel", "Parameters and what came of them", sentence, draw, (320, 300))


def place(bounds: Bounds, value: Any) -> float:  # noqa: ANN401 - a value of the trainer's
    """Where a value lies between the ends of its axis, 0 to 1."""
    if bounds.kind == "choice":
        return bounds.values.index(value) / max(1, len(bounds.values) - 1) if value in bounds.values else 0.5
    low, high = bounds.ends
    if bounds.kind == "loguniform":
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def line(axes: Axes, trial: Trial, heights: Sequence[float], analysis: Analysis) -> None:
    """One trial's line; the best one stands out."""
    best = trial is analysis.best
    found = trial.best(analysis.search.mode)
    params = trial.best_params(analysis.search.mode)
    said = f"{trial.id}: {params_words(params)}; {value_words(found[1]) if found else ''}"
    colour = "accent" if best else STYLE[trial.state][0]
    axes.plot(
        range(len(heights)), heights, color=COLOUR[colour], linewidth=2.6 if best else 1.1, alpha=1 if best else 0.7,
        zorder=3 if best else 2, gid=tip(said),
    )  # fmt: skip


def dress(axes: Axes, named: Sequence[tuple[str, Bounds]], last: tuple[str, float, float], *, narrow: bool) -> None:
    """The axes' lines, their names below, their ends beside them."""
    metric, low, high = last
    ends = [(str_of(it.values[0]), str_of(it.values[-1])) for _, it in named]
    ends.append((value_words(low), value_words(high)))
    for at, (bottom, top) in enumerate(ends):
        axes.axvline(at, color=COLOUR["line"], linewidth=1, zorder=1)
        axes.annotate(bottom, (at, 0), (0, -5), textcoords="offset points", ha="center", va="top", fontsize=11)
        axes.annotate(top, (at, 1), (0, 4), textcoords="offset points", ha="center", va="bottom", fontsize=11)
    names = [*(name for name, _ in named), metric]
    axes.set_xticks(range(len(names)), names, rotation=30 if narrow and len(names) > 3 else 0)
    axes.tick_params(length=0, pad=22)
    axes.set_yticks([])
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(-0.35, len(names) - 0.65)
    for spine in axes.spines.values():
        spine.set_visible(False)


def str_of(value: object) -> str:
    """An end of an axis."""
    return value_words(value) if isinstance(value, float) else str(value)


def overhead(analysis: Analysis) -> Chart | None:
    """Of each trial the share of its slot's time in which it did not train, by how long it trained."""
    found = [
        (name, it.seconds, 100 * (1 - it.seconds / analysis.times.held_s[name]))
        for name, it in analysis.times.trials.items()
        if it.seconds and analysis.times.held_s[name]
    ]
    if not found:
        return None

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        del narrow
        axes = drawing.subplots()
        for name, seconds, share in found:
            said = f"{name}: {seconds:.3g} s of training, overhead {share:.1f} %"
            axes.plot([seconds], [share], marker="o", markersize=5, color=COLOUR["accent"], gid=tip(said))
        quiet_axes(axes)
        axes.set_xlabel("seconds of training")
        axes.set_ylabel("overhead, %")
        axes.set_ylim(0, 100)
        axes.set_xlim(left=0)

    sentence = "Each mark is a trial. Overhead is the share of the time in its slot in which its trainer did not train."
    return chart("overhead", "Overhead by length of a trial", sentence, draw, (260, 220))
