"""The waterfall: what each kind of recovery spends its time on, with every trial above it. Called by the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from reports.recovery import words
from reports.recovery.effective import PHASES, phases_of
from reports.recovery.figures import RESUMED
from reports.recovery.incidents import Incident
from reports.recovery.results import Analysis
from reports.recovery.words import Cell
from reports.svg import COLOUR, Chart, chart, quiet_axes, tip

ROLES = {
    "unnoticed": "wait",
    "stopping": "comm",
    "meeting": "data",
    "loading": "forward",
    "first step": "backward",
    "getting up to speed": "optimizer",
}
"""Phase → the role whose colour it has."""
LEGEND = [(ROLES[phase], phase) for phase in PHASES.values()]
LINES = 60  # trials drawn above a bar; with more, every second, third … of them by their length
LINE = 3.2  # drawing units from one trial's line to the next
ROW, BAR = 44, 15  # drawing units of a row without its lines, and of its bar


def waterfall(analysis: Analysis) -> Chart | None:
    """One row a combination that recovered: the median of each phase as a bar, every trial as a thin line above it."""
    rows = [(cell, found) for cell in words.cells(analysis) if (found := recoveries(analysis, cell))]
    if not rows:
        return None
    height = sum(row_height(found) for _, found in rows) + 46

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        axes = drawing.subplots()
        below = 0.0
        for cell, found in rows:
            draw_row(axes, (words.name_of(analysis, cell.where), cell), found, below, narrow=narrow)
            below += row_height(found)
        axes.set_ylim(below, 0)
        axes.set_xlim(left=0)
        axes.set_yticks([])
        axes.set_xlabel("seconds, without those for which a fault was held")
        quiet_axes(axes, "x")

    return chart("waterfall", "What each recovery spends its time on", sentence(analysis), draw, (height, height))


def recoveries(analysis: Analysis, cell: Cell) -> list[Incident]:
    """The incidents of a cell that recovered, the fastest first; of very many a sample over all lengths."""
    outcomes = {(trial["trial"], trial["fault"]): trial["outcome"] for trial in cell.trials}
    found = [one for one in analysis.incidents if outcomes.get((one.job.id, one.fault)) in RESUMED and phases_of(one)]
    found.sort(key=lambda one: sum(seconds for _, seconds in phases_of(one)))
    return found[:: -(-len(found) // LINES)] if found else []


def row_height(found: Sequence[Incident]) -> float:
    """Drawing units."""
    return ROW + LINE * len(found)


def draw_row(axes: Axes, named: tuple[str, Cell], found: Sequence[Incident], top: float, *, narrow: bool) -> None:
    """The name, the trials' lines, the bar of medians."""
    each = [phases_of(one) for one in found]
    middle = [(phase, median(known)) for phase in ROLES if (known := [s for own in each for p, s in own if p == phase])]
    name, cell = f"{named[0]}{words.at_phase(named[1].phase)}", named[1]
    axes.text(0, top + 12, name, color=COLOUR["ink"], fontsize=11.5, fontweight="bold", va="center")
    for number, (one, own) in enumerate(zip(found, each, strict=True)):
        line(axes, own, top + 22 + LINE * number, one.fault)
    bar_top = top + 22 + LINE * len(found) + BAR / 2 - 1
    total = sum(seconds for _, seconds in middle)
    segments(axes, middle, bar_top, BAR, f"{name}, median of {cell.counts}: {total:.2f} s to full speed")
    if not narrow:
        axes.annotate(f"{total:.1f} s", (total, bar_top), (5, 0), textcoords="offset points", va="center",
                      color=COLOUR["soft"], fontsize=11)  # fmt: skip


def line(axes: Axes, phases: Sequence[tuple[str, float]], y: float, fault: str) -> None:
    """One trial, cut into its phases: a single drawn thing, since there are many."""
    ends = list(accumulate(seconds for _, seconds in phases))
    spans = [(end - seconds, seconds) for (_, seconds), end in zip(phases, ends, strict=True)]
    said = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in phases)
    colours = [COLOUR[ROLES[phase]] for phase, _ in phases]
    axes.broken_barh(spans, (y - 1, 2), facecolors=colours, linewidth=0, gid=tip(f"{fault}: {said}"))


def segments(axes: Axes, phases: Sequence[tuple[str, float]], y: float, height: float, said: str) -> None:
    """One horizontal bar, cut into its phases."""
    begin = 0.0
    for phase, seconds in phases:
        axes.barh(y, seconds, height, begin, color=COLOUR[ROLES[phase]], linewidth=0, gid=tip(f"{phase}: {said}"))
        begin += seconds


def sentence(analysis: Analysis) -> str:
    """What the chart shows, in words."""
    count = sum(trial["outcome"] in RESUMED for trial in analysis.trials)
    counted = "1 recovery" if count == 1 else f"{count} recoveries"
    return (
        f"From the fault to full speed, {counted}. The bar of a row is "
        "put together from the median of each phase, a thin line above it is one trial. Where a job could be at full "
        "speed only once the fault was lifted, the time for which it was held is left out."
    )
