"""The charts of what was measured: efficiency by nodes, and every repeat. Called by `page`."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from proving_ground.reports import figures, numbers
from proving_ground.reports.intervals import half_width
from proving_ground.reports.scaling import checks, words
from proving_ground.reports.scaling.cells import Cell
from proving_ground.reports.scaling.results import Analysis
from proving_ground.reports.svg import COLOUR, Chart, chart, quiet_axes, tip

FIRST = 2  # cases beside the answer; the others have a chart of their own
WIDE_PANEL, NARROW_PANEL = 330, (270, 180)  # drawing units; the latter of one case, and of several
HIGHEST = 150.0  # % of efficiency on an axis; more is noise, and its interval may leave the panel
BAR = 0.22  # half as wide as the line of a threshold, of the distance of two sizes
LABEL_PT = 29.0  # two lines of the words at a line's end
STYLE = {"weak": ("accent", "o", "-"), "strong": ("second", "s", (0, (4, 2)))}


Curves = dict[str, list[tuple[Cell, figures.Figure]]]
"""Scaling → its cells with efficiency."""


def cases(analysis: Analysis) -> list[str]:
    """The cases of a run that train, in the suite's order."""
    return list(dict.fromkeys(cell.case for cell in analysis.cells if not cell.program))


def panels(drawing: Drawing, count: int, *, narrow: bool, sharey: bool) -> list[Axes]:
    """Axes for small multiples: below each other when narrow, side by side otherwise."""
    shape = (count, 1) if narrow else (math.ceil(count / 2), min(2, count))
    found = drawing.subplots(*shape, sharey=sharey, squeeze=False)
    flat: list[Axes] = list(found.flatten())
    for spare in flat[count:]:
        spare.set_visible(False)
    return flat[:count]


def heights(count: int, wide: float, narrow: float) -> tuple[float, float]:
    """Of a drawing with so many panels, wide and narrow."""
    return math.ceil(count / 2) * wide, count * narrow


def efficiency(analysis: Analysis) -> Chart | None:
    """Efficiency by nodes with intervals, the ideal and the suite's thresholds, of the first cases."""
    return _efficiency_of(analysis, "efficiency", curved(analysis)[:FIRST])


def more_efficiency(analysis: Analysis) -> Chart | None:
    """The same of the other cases."""
    return _efficiency_of(analysis, "efficiency-more", curved(analysis)[FIRST:])


def curved(analysis: Analysis) -> list[str]:
    """The cases that have a curve."""
    return [case for case in cases(analysis) if _curves(analysis, case)]


def _efficiency_of(analysis: Analysis, name: str, names: Sequence[str]) -> Chart | None:
    if not names:
        return None

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        every = panels(drawing, len(names), narrow=narrow, sharey=True)
        ends = [_efficiency_panel(axes, analysis, case) for axes, case in zip(every, names, strict=True)]
        lowest, highest = min(low for low, _ in ends), max(high for _, high in ends)
        for axes in every:
            axes.set_ylim(max(0, math.floor((lowest - 6) / 10) * 10), max(108, highest + 4))
        drawing.draw_without_rendering()  # lays the panels out: from here on heights are known
        for axes, case in zip(every, names, strict=True):
            _end_labels(axes, _sizes(analysis, case), _curves(analysis, case))

    sentence = (
        "Samples per second and node as a share of the smallest size's; light strips are 95 % intervals"
        + (", short dark lines the suite's thresholds, told below the axis" if _thresholds(analysis, names) else "")
        + (", dotted lines what the links allow" if figures.pick(analysis.figures, "efficiency_bound") else "")
        + (", dashed lines with hollow marks what was predicted." if analysis.prediction.rows else ".")
    )
    tall = heights(len(names), WIDE_PANEL, NARROW_PANEL[len(names) > 1])
    return chart(name, "Efficiency by number of nodes", sentence, draw, tall)


def _curves(analysis: Analysis, case: str) -> Curves:
    """Of a case, where more than one size was measured."""
    found: Curves = {}
    for cell in analysis.cells:
        value = figures.pick(analysis.figures, "efficiency", **cell.where)
        if cell.case == case and value:
            found.setdefault(cell.scaling, []).append((cell, value))
    return {scaling: points for scaling, points in found.items() if len(points) > 1}


def _sizes(analysis: Analysis, case: str) -> list[int]:
    """Nodes that were measured or predicted."""
    measured = {cell.nodes for cell in analysis.cells if cell.case == case}
    predicted = {f["where"]["nodes"] for f in figures.pick_all(analysis.figures, "prediction", case=case)}
    return sorted(measured | predicted)


def _efficiency_panel(axes: Axes, analysis: Analysis, case: str) -> tuple[float, float]:
    """One case; the lowest and the highest value drawn, in %."""
    curves = _curves(analysis, case)
    sizes = _sizes(analysis, case)
    lowest = highest = 100.0
    for number, (scaling, points) in enumerate(curves.items()):
        shift = 0.07 * (number - (len(curves) - 1) / 2) * 2 if len(curves) > 1 else 0
        lowest = min(lowest, _curve(axes, sizes, scaling, points, shift), *_bound(axes, analysis, sizes, points, shift))
        highest = max(highest, *(_top(found) for _, found in points))
        lowest = min(lowest, *_predicted(axes, analysis, sizes, points, shift), 100)
    lowest = min(lowest, *_bars(axes, analysis, case, sizes), 100)
    axes.axhline(100, color=COLOUR["line"], linewidth=1, zorder=1)
    axes.annotate("ideal", (-0.4, 100), (0, 4), textcoords="offset points", color=COLOUR["soft"], fontsize=11)
    asked = {where["nodes"]: f"\n≥{where['bar']:g} %" for where in _thresholds(analysis, [case])}
    axes.set_xticks(range(len(sizes)), [f"{size}{asked.get(size, '')}" for size in sizes])
    axes.set_xlim(-0.4, len(sizes) - 1 + 0.96)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %" if value <= 100 else "")
    axes.set_title(case, pad=10)
    axes.set_xlabel("nodes, and the threshold" if asked else "nodes")
    quiet_axes(axes)
    return lowest, highest


def _top(found: figures.Figure) -> float:
    """The highest that is drawn of a point: the end of its interval, as far as an axis goes, or itself."""
    return float(max(found["median"], min((found["ci95"] or (0.0, 0.0))[1], HIGHEST)))


def _curve(
    axes: Axes, sizes: Sequence[int], scaling: str, points: list[tuple[Cell, figures.Figure]], shift: float
) -> float:
    """One line with its intervals; the lowest value drawn."""
    role, marker, dash = STYLE.get(scaling, STYLE["strong"])
    xs = [sizes.index(cell.nodes) + shift for cell, _ in points]
    ys = [found["median"] for _, found in points]
    ends = [found["ci95"] or (found["median"], found["median"]) for _, found in points]
    axes.plot(xs, ys, color=COLOUR[role], linestyle=dash, linewidth=2.2, zorder=3)
    for x, y, (low, high), (cell, found) in zip(xs, ys, ends, points, strict=True):
        axes.plot([x, x], [low, high], color=COLOUR[role], linewidth=5, alpha=0.28, solid_capstyle="round", zorder=2)
        said = f"{case_words(cell)}: {numbers.percent(y)}{numbers.in_brackets(found)}"
        face = COLOUR[role] if scaling == "weak" else COLOUR["paper"]
        axes.plot(
            x, y, marker, color=COLOUR[role], markerfacecolor=face, markersize=7, markeredgewidth=2, gid=tip(said)
        )
    return float(min([*ys, *(low for low, _ in ends)]))


def _end_labels(axes: Axes, sizes: Sequence[int], curves: Curves) -> None:
    """What each line has reached, right of its last point; two that are close are moved apart."""
    lasts = [(scaling, *points[-1]) for scaling, points in curves.items()]
    pixels = [float(axes.transData.transform((0, found["median"]))[1]) for _, _, found in lasts]
    heights = [height * 72 / axes.figure.dpi for height in pixels]
    for (scaling, cell, found), height, moved in zip(lasts, heights, apart(heights, LABEL_PT), strict=True):
        goes_on = cell.nodes < sizes[-1]  # with what was predicted: the label stands over it
        right, up = (0.1, LABEL_PT / 2 + 4) if goes_on else (BAR + 0.06, 0.0)
        axes.annotate(
            f"{scaling}\n{numbers.percent(found['median'])}", (sizes.index(cell.nodes) + right, found["median"]),
            (0, moved - height + up), textcoords="offset points", va="center", color=COLOUR[STYLE[scaling][0]],
            fontsize=11.5, fontweight="bold", linespacing=1.15,
        )  # fmt: skip


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """The same heights, moved as little as keeps a gap between any two; where none is too close, as they are."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for below, above in itertools.pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    too_high = sum(map(operator.sub, placed, heights)) / max(1, len(heights))
    return [height - too_high for height in placed]


def _predicted(
    axes: Axes, analysis: Analysis, sizes: Sequence[int], points: list[tuple[Cell, figures.Figure]], shift: float
) -> list[float]:
    """What was predicted, dashed, with hollow diamonds and thin intervals; its heights."""
    fitted = [point for point in points if point[0].nodes in analysis.prediction.document.get("fitted_from", ())]
    cell, base = (fitted or points)[-1]  # the largest size that the fit has seen: there the prediction begins
    about = {"case": cell.case, "scaling": cell.scaling}
    found = figures.pick_all(analysis.figures, "prediction", of="efficiency", **about)
    role = STYLE.get(cell.scaling, STYLE["strong"])[0]
    xs = [sizes.index(f["where"]["nodes"]) + shift for f in found]
    ys = [f["median"] for f in found]
    if found:
        axes.plot([sizes.index(cell.nodes) + shift, *xs], [base["median"], *ys], color=COLOUR[role], linewidth=1.3,
                  linestyle=(0, (5, 3)), zorder=2.4)  # fmt: skip
    for x, f in zip(xs, found, strict=True):
        said = f"predicted {numbers.percent(f['median'])}{numbers.in_brackets(f)} at {words.nodes(f['where']['nodes'])}"
        axes.plot([x, x], f["ci95"], color=COLOUR[role], linewidth=1.3, alpha=0.7, zorder=2.4)
        axes.plot(x, f["median"], "D", color=COLOUR[role], markerfacecolor=COLOUR["paper"], markersize=5.5,
                  markeredgewidth=1.3, gid=tip(said), zorder=2.6)  # fmt: skip
    return [end for f in found for end in (f["ci95"] or ())]


def _bound(
    axes: Axes, analysis: Analysis, sizes: Sequence[int], points: list[tuple[Cell, figures.Figure]], shift: float
) -> list[float]:
    """What the link allows, as a dotted line; its heights."""
    found = [figures.pick(analysis.figures, "efficiency_bound", **cell.where) for cell, _ in points]
    known = [(sizes.index(f["where"]["nodes"]) + shift, f["median"], f["where"]) for f in found if f]
    xs, ys = [x for x, _, _ in known], [y for _, y, _ in known]
    axes.plot(xs, ys, color=COLOUR["soft"], linestyle=(0, (1, 1.6)), linewidth=2, zorder=2.5)
    for x, y, where in known:
        said = f"the link allows {numbers.percent(y)} at {words.nodes(where['nodes'])} ({where['scaling']})"
        axes.plot(x, y, "_", color=COLOUR["soft"], markersize=9, markeredgewidth=2, gid=tip(said), zorder=2.5)
    return ys


def case_words(cell: Cell) -> str:
    """`digits, weak, 8 nodes`."""
    return f"{cell.case}, {cell.scaling}, {words.nodes(cell.nodes)}"


def _thresholds(analysis: Analysis, names: Sequence[str]) -> list[dict[str, Any]]:
    """What the suite asks of these cases: `nodes` and `bar`, in %."""
    every = (v["where"] for v in analysis.verdicts if v["check"] == "efficiency")
    run = {(cell.case, cell.nodes) for cell in analysis.cells}  # others were left out, and have no place in a chart
    return [where for where in every if where["case"] in names and (where["case"], where["nodes"]) in run]


def _bars(axes: Axes, analysis: Analysis, case: str, sizes: Sequence[int]) -> list[float]:
    """The suite's thresholds as short lines at their sizes; their heights."""
    found = _thresholds(analysis, [case])
    for where in found:
        x = sizes.index(where["nodes"])
        said = f"threshold of the suite: {where['bar']:g} % at {words.nodes(where['nodes'])}"
        axes.plot([x - BAR, x + BAR], [where["bar"]] * 2, color=COLOUR["bar"], linewidth=2, zorder=1.5, gid=tip(said))
    return [where["bar"] for where in found]


def repeats(analysis: Analysis) -> Chart | None:
    """Every repeat as a dot, the discarded ones crossed; the line is the median of what counts."""
    names = [case for case in cases(analysis) if any(c.counted for c in analysis.cells if c.case == case)]
    if not names:
        return None

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        for axes, case in zip(panels(drawing, len(names), narrow=narrow, sharey=False), names, strict=True):
            _repeats_panel(axes, [cell for cell in analysis.cells if cell.case == case])

    return chart("repeats", "Every repeat", _repeats_sentence(analysis), draw, heights(len(names), 280, 240))


def _repeats_sentence(analysis: Analysis) -> str:
    good, flagged = [t for t in analysis.trials if t.good], [t for t in analysis.trials if t.flags]
    rates = figures.pick_all(analysis.figures, "throughput")
    spread = max((half_width(f["median"], f["ci95"]) for f in rates if f["ci95"]), default=math.nan)
    worst = "" if math.isnan(spread) else f" The least certain throughput is known to ±{100 * spread:.1f} %."
    rest = f"; {len(flagged)} of them were disturbed by the machine" if flagged else ""
    return (
        f"{len(good)} of {len(analysis.trials)} trials ended well{rest}. Each dot is one trial's throughput "
        f"against the median of its size; the shaded band is ±{100 * checks.HALF_WIDTH_MAX:g} %, "
        f"a cross a trial that was left out.{worst}"
    )


def _repeats_panel(axes: Axes, cells: Sequence[Cell]) -> None:
    sizes = sorted({cell.nodes for cell in cells})
    kinds = list(dict.fromkeys(cell.scaling for cell in cells))
    limit = 100 * checks.HALF_WIDTH_MAX
    axes.axhspan(-limit, limit, color=COLOUR["grid"], alpha=0.55, linewidth=0, zorder=0)
    for cell in cells:
        middle = sizes.index(cell.nodes) + 0.36 * (kinds.index(cell.scaling) - (len(kinds) - 1) / 2)
        _dots(axes, cell, middle)
    furthest = max((abs(end) for end in axes.get_ylim()), default=0)
    axes.set_ylim(-max(furthest, 1.4 * limit), max(furthest, 1.4 * limit))
    axes.yaxis.set_major_formatter(
        lambda value, _: f"{value:+.0f} %".replace("-", numbers.MINUS) if value else "median"
    )
    axes.locator_params(axis="y", nbins=6, integer=True)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_title(cells[0].case, pad=8)
    shown = ", ".join({"weak": "● weak", "strong": "□ strong"}.get(kind, kind) for kind in kinds)
    axes.set_xlabel(f"nodes ({shown})")
    quiet_axes(axes)


def _dots(axes: Axes, cell: Cell, middle: float) -> None:
    """One cell's repeats, as % from the median of those that count."""
    role, marker, _ = STYLE.get(cell.scaling, STYLE["strong"])
    if not cell.counted:
        return
    level = median(trial.throughput for trial in cell.counted)
    for trial in (*cell.counted, *(trial for trial in cell.discarded if trial.good)):
        kept, repeat = trial in cell.counted, trial.plan["repeat"]
        said = f"{trial.plan['id']}: {case_words(cell)}, repeat {repeat}: {trial.throughput:,.4g} samples/s"
        said += "" if kept else f" (left out: {trial.flags[0]})"
        axes.plot(
            middle + 0.06 * (repeat - 2), 100 * (trial.throughput / level - 1), marker if kept else "x",
            color=COLOUR[role if kept else "bad"], markersize=6.5, markeredgewidth=1.8, gid=tip(said), zorder=3,
            markerfacecolor=COLOUR[role] if kept and cell.scaling == "weak" else COLOUR["paper"],
        )  # fmt: skip
