"""Three kinds of chart for what validations measured: dots in rows, a square for each trial, counts in a grid.

Called by `pictures`. All are laid out in drawing units, so that what is above each other cannot collide, and in the
style of the reports (`reports.svg`).
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

from proving_ground.reports.intervals import Interval
from proving_ground.reports.svg import COLOUR, NARROW, WIDE, Chart, chart, quiet_axes, tip

LETTERS = {False: 100, True: 46}  # in a line of a row's name and what is told of it, wide and narrow
SOFT_LETTERS = {False: 100, True: 52}  # in a line of what is told alone, which is not bold
LINE, STRIP, AXIS = 15, 20, 42  # drawing units: a line of text, of dots, what the axis needs
SQUARE, APART = 10, 3
ROOM = {False: 210, True: 128}  # for the names of a grid's rows
CELL = 24  # a grid's row
DARKEST = 0.42  # of a cell's fill: its number has to be read on it


@dataclass(frozen=True)
class Row:
    """Values of one kind: a dot each, their median and its interval, and what is asked of them."""

    name: str
    values: Sequence[float]  # infinite: it never came
    said: str  # median, interval, n: for the reader
    middle: float | None = None
    ends: Interval | None = None
    bound: float | None = None
    asked: str = ""  # the bound in words


def dots(name: str, title: str, sentence: str, rows: Sequence[Row], unit: str, *, log: bool = False) -> Chart:
    """A strip of dots for each row, all on one axis."""

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        axes, top = drawing.subplots(), 0.0
        for row in rows:
            top = strip(axes, row, top, unit, narrow=narrow)
        scaled(axes, rows, log=log)
        axes.set_ylim(top, 0)
        axes.set_yticks([])
        axes.set_xlabel(unit)
        quiet_axes(axes, "x")
        axes.spines["left"].set_visible(False)

    wide, narrow = (sum(row_height(it, narrow=narrow) for it in rows) + AXIS for narrow in (False, True))
    return chart(name, title, sentence, draw, (wide, narrow))


def wrapped(text: str, *, narrow: bool) -> list[str]:
    """A row's name in lines."""
    return textwrap.wrap(text, LETTERS[narrow])


def told(row: Row) -> str:
    """What stands beside or below a row's name; no line breaks between a number and its unit."""
    return re.sub(r"(?<=\d) (?=%|m?s\b)", "\N{NO-BREAK SPACE}", ", ".join(filter(None, [row.said, row.asked])))


def below(row: Row, *, narrow: bool) -> list[str]:
    """What is told of a row in lines of its own; none where it stands beside the name."""
    beside = len(row.name) + len(told(row)) < LETTERS[narrow]
    return [] if beside else textwrap.wrap(told(row), SOFT_LETTERS[narrow])


def row_height(row: Row, *, narrow: bool) -> float:
    """A row's drawing units."""
    return LINE * (len(wrapped(row.name, narrow=narrow)) + len(below(row, narrow=narrow))) + STRIP


def strip(axes: Axes, row: Row, top: float, unit: str, *, narrow: bool) -> float:
    """One row from `top` on; where it ends."""
    at = top
    for line in wrapped(row.name, narrow=narrow):
        write(axes, 0, at + 10, line, "ink", bold=True)
        at += LINE
    lines = below(row, narrow=narrow)
    if not lines:
        write(axes, 1, top + 10, told(row), "soft", right=True)
    for line in lines:
        write(axes, 0, at + 10, line, "soft")
        at += LINE
    marks(axes, row, at + STRIP / 2 - 2, unit)
    return at + STRIP


def write(axes: Axes, x: float, y: float, text: str, role: str, *, bold: bool = False, right: bool = False) -> None:
    """A text at a share of the width, on paper of its own; it moves nothing else."""
    made = axes.text(x, y, text, transform=axes.get_yaxis_transform(), color=COLOUR[role], fontsize=11, va="baseline",
                     ha="right" if right else "left", fontweight="bold" if bold else "normal", zorder=5,
                     bbox={"facecolor": COLOUR["paper"], "linewidth": 0, "pad": 1})  # fmt: skip
    made.set_in_layout(False)


def marks(axes: Axes, row: Row, y: float, unit: str) -> None:
    """The dots of a row, its median with interval, its bound."""
    finite = [it for it in row.values if math.isfinite(it)]
    for number, value in enumerate(finite):
        lift = 3.2 * (number % 3 - 1) if len(finite) > 3 else 0.0
        axes.plot(value, y + lift, "o", color=COLOUR["accent"], markersize=5, markeredgewidth=0,
                  alpha=0.45 if len(finite) > 9 else 0.9, zorder=3,
                  gid=tip(f"{row.name}: {value:,.4g} {unit}"))  # fmt: skip
    if row.ends:
        axes.plot(row.ends, [y, y], color=COLOUR["ink"], linewidth=1.6, solid_capstyle="butt", zorder=4)
    if row.middle is not None and math.isfinite(row.middle):
        axes.plot([row.middle] * 2, [y - 8, y + 8], color=COLOUR["ink"], linewidth=2.2, gid=tip(row.said), zorder=4)
    if row.bound is not None:
        axes.plot([row.bound] * 2, [y - 9, y + 9], color=COLOUR["bad"], linewidth=2, linestyle=(0, (2, 1.2)),
                  gid=tip(row.asked), zorder=2)  # fmt: skip
    if len(finite) < len(row.values):
        axes.plot(0.99, y, "X", transform=axes.get_yaxis_transform(), color=COLOUR["bad"], markersize=8,
                  gid=tip(f"{row.name}: {len(row.values) - len(finite)} never"), zorder=4)  # fmt: skip


def scaled(axes: Axes, rows: Sequence[Row], *, log: bool) -> None:
    """The axis around all values and bounds; from 0 on where none is below."""
    every = [value for row in rows for value in (*row.values, *(row.ends or ()), row.bound)
             if value is not None and math.isfinite(value)]  # fmt: skip
    low, high = min(every), max(every)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.25, high * 1.35)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.minorticks_off()
        return
    span = (high - low) or abs(high) or 1.0
    zero = low >= 0 and low < span
    axes.set_xlim(0 if zero else low - 0.05 * span, high + 0.06 * span)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}".replace("-", "\N{MINUS SIGN}"))


@dataclass(frozen=True)
class Squares:
    """Trials of one kind, a square each: (role of its colour, what the mouse is told)."""

    name: str
    each: Sequence[tuple[str, str]]


def sheet(drawing: Drawing, width: float, height: float) -> Axes:
    """Axes over the whole drawing, in drawing units from the upper left corner."""
    drawing.set_layout_engine("none")
    axes = drawing.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return axes


def squares(name: str, title: str, sentence: str, groups: Sequence[Squares], *, bad: Sequence[str] = ()) -> Chart:
    """All trials, group by group; those of a role in `bad` are crossed out as well."""
    tall = [sum(group_height(it, width) for it in groups) for width in (WIDE, NARROW)]

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        width, top = (WIDE, NARROW)[narrow], 0.0
        axes = sheet(drawing, width, tall[narrow])
        for it in groups:
            place(axes, it, top, width, bad)
            top += group_height(it, width)

    return chart(name, title, sentence, draw, (tall[0], tall[1]))


def a_line(width: float) -> int:
    """How many squares stand beside each other."""
    return int(width // (SQUARE + APART))


def group_height(it: Squares, width: float) -> float:
    """Drawing units of a group with its name."""
    return 20 + math.ceil(len(it.each) / a_line(width)) * (SQUARE + APART) + 8


def place(axes: Axes, it: Squares, top: float, width: float, bad: Sequence[str]) -> None:
    """One group."""
    axes.text(0, top + 13, it.name, color=COLOUR["ink"], fontsize=11, fontweight="bold")
    for number, (role, text) in enumerate(it.each):
        down, across = divmod(number, a_line(width))
        x, y = across * (SQUARE + APART), top + 20 + down * (SQUARE + APART)
        axes.add_patch(Rectangle((x, y), SQUARE, SQUARE, facecolor=COLOUR[role], linewidth=0, gid=tip(text)))
        if role in bad:
            axes.plot([x, x + SQUARE], [y, y + SQUARE], color=COLOUR["ink"], linewidth=1.5)


@dataclass(frozen=True)
class Cell:
    """A number in a grid: its text, how much of its colour it has (0 to 1), what the mouse is told."""

    text: str
    share: float
    tip: str
    role: str = "accent"


def grid(
    name: str, title: str, sentence: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]]
) -> Chart:
    """Rows of cells below heads; names and heads are wrapped where there is little room."""
    heights = [head_height(heads, narrow=it) + CELL * len(rows) + 4 for it in (False, True)]

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        width, top, left = (WIDE, NARROW)[narrow], head_height(heads, narrow=narrow), ROOM[narrow]
        axes, step = sheet(drawing, width, heights[narrow]), step_of(heads, narrow=narrow)
        for column, head in enumerate(heads):
            lines = head if is_steep(heads, narrow=narrow) else "\n".join(in_lines(head, step))
            axes.text(left + (column + 0.5) * step, top - 7, lines, color=COLOUR["soft"], fontsize=10.5, va="bottom",
                      ha="center", rotation=90 if is_steep(heads, narrow=narrow) else 0)  # fmt: skip
        for number, (label, cells) in enumerate(rows):
            in_grid(axes, label, cells, (left, top + CELL * number, step), narrow=narrow)

    return chart(name, title, sentence, draw, (heights[0], heights[1]))


LETTER = 6.4  # drawing units of a letter of a head


def in_lines(head: str, step: float) -> list[str]:
    """A head in lines that are no wider than its column."""
    return textwrap.wrap(head, max(1, int(step / LETTER)), break_long_words=False)


def step_of(heads: Sequence[str], *, narrow: bool) -> float:
    """How wide a column is."""
    return ((WIDE, NARROW)[narrow] - ROOM[narrow]) / len(heads)


def is_steep(heads: Sequence[str], *, narrow: bool) -> bool:
    """Whether the heads have to stand upright: a word is wider than its column."""
    return max(len(word) for head in heads for word in head.split()) * LETTER > step_of(heads, narrow=narrow)


def head_height(heads: Sequence[str], *, narrow: bool) -> float:
    """Drawing units above the cells."""
    if is_steep(heads, narrow=narrow):
        return 14 + max(map(len, heads)) * LETTER
    return 10 + 14 * max(len(in_lines(head, step_of(heads, narrow=narrow))) for head in heads)


def in_grid(axes: Axes, label: str, cells: Sequence[Cell], at: tuple[float, float, float], *, narrow: bool) -> None:
    """One row of a grid: `at` is where its cells begin, left and top, and how far apart they are."""
    left, top, step = at
    lines = textwrap.wrap(label, 22 if narrow else 36)
    axes.text(0, top + CELL / 2, "\n".join(lines), color=COLOUR["ink"], fontsize=9 if len(lines) > 1 else 10.5,
              va="center", linespacing=1.0)  # fmt: skip
    for column, it in enumerate(cells):
        x = left + column * step
        axes.add_patch(Rectangle((x + 1, top + 1), step - 2, CELL - 2, facecolor=COLOUR["grid"], linewidth=0))
        axes.add_patch(Rectangle((x + 1, top + 1), step - 2, CELL - 2, facecolor=COLOUR[it.role], linewidth=0,
                                 alpha=DARKEST * min(1.0, max(0.0, it.share)), gid=tip(it.tip)))  # fmt: skip
        axes.text(x + step / 2, top + CELL / 2 + 0.5, it.text, color=COLOUR["ink"], fontsize=10, ha="center",
                  va="center")  # fmt: skip
