"""The chart of the machine while it ran: steal, use, load, measured windows shaded. Called by `page`."""

from __future__ import annotations

from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from proving_ground.reports import numbers, stability
from proving_ground.reports.scaling import words
from proving_ground.reports.scaling.results import Analysis
from proving_ground.reports.svg import COLOUR, Chart, chart, quiet_axes, tip

LINES = (("load", "load", "soft", (0, (2, 2))), ("busy", "in use", "second", "-"), ("steal", "stolen", "bad", "-"))
POINTS_MAX = 600  # on a line; a longer run is averaged
MARKS = 20  # on a line that tell their value
WINDOWS_MAX = 400  # shaded; a longer run has none


def machine(analysis: Analysis) -> Chart | None:
    """Steal, use and load over the run; None where the harness recorded none."""
    frame = stability.over_time(analysis.history.machine_frame(), analysis.cores)
    if len(frame) < 2:
        return None
    draw = partial(_draw, analysis, frame)
    return chart("machine", "The machine while it ran", _sentence(analysis, frame), draw, (210, 210))


def _sentence(analysis: Analysis, frame: pd.DataFrame) -> str:
    steal = frame["steal"].max()
    stolen = "No CPU time was stolen by other guests of the host"
    if pd.isna(steal):
        stolen = "Steal time was not recorded"
    elif steal >= 0.0005:
        stolen = f"At most {100 * steal:.1f} % of the CPU time was stolen in any second"
    flagged = sum(bool(trial.flags) for trial in analysis.trials)
    return (
        f"{stolen}; {flagged} of {len(analysis.trials)} measured windows (shaded) were disturbed. "
        f"Shares of the time of {analysis.cores} cores; load is the one-minute average of tasks a core."
    )


def _draw(analysis: Analysis, all_samples: pd.DataFrame, drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
    axes = drawing.subplots()
    begin = float(all_samples["t"].iloc[0])
    _windows(axes, analysis, begin)
    frame = all_samples.groupby(all_samples.index // -(-len(all_samples) // POINTS_MAX)).mean()
    for column, name, role, dash in LINES:
        seconds, share = frame["t"] - begin, 100 * frame[column].clip(upper=2)
        axes.plot(seconds, share, color=COLOUR[role], linestyle=dash, linewidth=1.6, label=name)
        for t, value in list(zip(seconds, share, strict=True))[:: len(share) // MARKS + 1]:
            said = f"{name} {value:.0f} % after {t:.0f} s"
            axes.plot(t, value, "o", color=COLOUR[role], markersize=2.5, gid=tip(said))
    highest = frame[["busy", "load"]].max().max()
    axes.set_ylim(0, 5 + 100 * (1 if pd.isna(highest) else min(2, max(1, float(highest)))))
    axes.set_xlim(0, float(frame["t"].iloc[-1]) - begin)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.xaxis.set_major_formatter(lambda value, _: numbers.seconds(value) if value else "0")
    axes.locator_params(axis="x", nbins=4 if narrow else 8)
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, fontsize=11)
    quiet_axes(axes)


def _windows(axes: Axes, analysis: Analysis, begin: float) -> None:
    """Shade each trial's measured window; red where the machine disturbed it."""
    for trial in analysis.trials if len(analysis.trials) <= WINDOWS_MAX else ():
        if trial.window:
            said = f"{trial.plan['id']}: {trial.plan['case']}, {words.nodes(trial.plan['nodes'])}, measured window"
            start, end = trial.window[0] - begin, trial.window[1] - begin
            colour = COLOUR["bad" if trial.flags else "grid"]
            axes.axvspan(start, end, color=colour, alpha=0.45, linewidth=0, gid=tip(said))
