"""The chart of where each step's time went: one stacked bar a size. Called by `page`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from proving_ground.reports import figures, numbers
from proving_ground.reports.scaling import charts, words
from proving_ground.reports.scaling.cells import Cell
from proving_ground.reports.scaling.measure import PARTS
from proving_ground.reports.scaling.results import Analysis
from proving_ground.reports.svg import COLOUR, Chart, chart, quiet_axes, tip

MIN_LABEL = 0.07  # of the panel's width; narrower segments have no number on them
DARK_PARTS = ("backward", "comm", "optimizer")  # numbers on them are white
Parts = dict[str, tuple[float, float]]


def shares(analysis: Analysis) -> Chart | None:
    """Stacked bars, one a size; None where no trainer recorded the parts of its steps."""
    groups = [group for group in _groups(analysis) if any(parts_of(analysis, cell) for cell in group)]
    if not groups:
        return None
    tall = sum(30 * len(group) + 62 for group in groups)
    draw = partial(_draw, analysis, groups)
    return chart("shares", "Where each step's time went", _sentence(analysis), draw, (tall, tall))


def _groups(analysis: Analysis) -> list[list[Cell]]:
    keys = dict.fromkeys(cell.group for cell in analysis.cells if not cell.program)
    return [[cell for cell in analysis.cells if cell.group == key and cell.counted] for key in keys]


def parts_of(analysis: Analysis, cell: Cell) -> Parts:
    """Part → (ms, %), medians over repeats; parts that were not recorded are absent."""
    found = figures.pick_all(analysis.figures, "time_share", **cell.where)
    ms, share = ({f["where"]["part"]: f["median"] for f in found if f["unit"] == unit} for unit in ("ms", "%"))
    return {part: (ms[part], share[part]) for part in PARTS if part in ms}


def _sentence(analysis: Analysis) -> str:
    said = []
    for cell, _ in words.largest(analysis):
        parts = parts_of(analysis, cell)
        if parts:
            computing, waiting = (
                sum(parts[part][1] for part in names if part in parts)
                for names in (("forward", "backward", "optimizer"), ("comm", "wait"))
            )
            said.append(
                f"{cell.case} ({cell.scaling}) on {words.nodes(cell.nodes)} computes {computing:.0f} % of the time, "
                f"communicates or waits {waiting:.0f} %; {parts['rest'][1]:.1f} % is unexplained."
            )
    return "Mean over ranks and measured steps. " + " ".join(said)


def _draw(analysis: Analysis, groups: Sequence[Sequence[Cell]], drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
    ratios = [len(group) + 0.9 for group in groups]
    axes = drawing.subplots(len(groups), 1, squeeze=False, height_ratios=ratios)
    for panel, group in zip(axes.flatten(), groups, strict=True):
        _panel(panel, group, [parts_of(analysis, cell) for cell in group], narrow=narrow)


def _panel(axes: Axes, group: Sequence[Cell], every: Sequence[Parts], *, narrow: bool) -> None:
    longest = max((sum(max(ms, 0) for ms, _ in parts.values()) for parts in every), default=1) or 1
    for row, (cell, parts) in enumerate(zip(group, every, strict=True)):
        _bar(axes, row, cell, parts, longest * MIN_LABEL * (1.6 if narrow else 1))
    axes.set_yticks(range(len(group)), [words.nodes(cell.nodes) for cell in group])
    axes.set_ylim(len(group) - 0.45, -0.55)
    axes.set_xlim(0, longest * 1.01)
    axes.set_title(f"{group[0].case}, {group[0].scaling} scaling", pad=6, wrap=True)
    millisecond_axis(axes, narrow=narrow)


def _bar(axes: Axes, row: int, cell: Cell, parts: Parts, label_from: float) -> None:
    """One size; segments wider than `label_from` ms have their % written on them."""
    if not parts:
        axes.text(0, row, " not recorded", va="center", color=COLOUR["soft"])
    left = 0.0
    for part, (ms, share) in parts.items():
        if ms <= 0:
            continue
        said = f"{charts.case_words(cell)}: {words.PART_LONG[part]} {numbers.short(ms)} ms, {share:.1f} %"
        segment(axes, row, (left, ms), part, said)
        if ms > label_from:
            colour = COLOUR["ink"] if part == "rest" else "#ffffff" if part in DARK_PARTS else "#1a1a1a"
            axes.text(left + ms / 2, row, f"{share:.0f} %", ha="center", va="center", fontsize=11, color=colour)
        left += ms


def segment(axes: Axes, row: float, span: tuple[float, float], part: str, said: str) -> None:
    """One coloured piece of a bar, from `span[0]` and `span[1]` long (ms); the unexplained part is hatched."""
    rest = part == "rest"
    face, edge = ("none", COLOUR["rest"]) if rest else (COLOUR[part], COLOUR["paper"])
    hatch = "////" if rest else None
    axes.barh(row, span[1], 0.72, span[0], linewidth=0.8, hatch=hatch, facecolor=face, edgecolor=edge)
    axes.patches[-1].set_gid(tip(said))


def millisecond_axis(axes: Axes, *, narrow: bool) -> None:
    """A quiet time axis below horizontal bars."""
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g} ms" if value else "0")
    axes.locator_params(axis="x", nbins=4 if narrow else 8)
    quiet_axes(axes, grid="x")
    axes.spines["left"].set_visible(False)
