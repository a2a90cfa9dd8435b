"""The waterfall: what each kind of recovery spends its time on, with every trial above it. Called by the page.

`overview` is the short one beside the answer, `waterfall` the long one with a line for every trial. In both the time
for which a fault was held is hatched: it is the suite's, and no part of a recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from proving_ground.reports import looks
from proving_ground.reports.recovery import effective, replaced, words
from proving_ground.reports.recovery.effective import HELD, PHASES, parts_of
from proving_ground.reports.recovery.incidents import Incident
from proving_ground.reports.recovery.results import Analysis
from proving_ground.reports.recovery.words import Combination
from proving_ground.reports.svg import COLOUR, Chart, chart, quiet_axes, tip

ROLES = {
    "unnoticed": "wait",
    "stopping": "comm",
    "meeting": "data",
    "loading": "forward",
    "first step": "backward",
    "getting up to speed": "optimizer",
}
"""Phase → the role whose colour it has."""
STAGES = {
    stage: role
    for engine in replaced.ENGINES.values()
    for stage, role in zip(engine.stages.values(), ROLES.values(), strict=True)
}
"""Stage of a node that the engine gives again → the role whose colour it has."""
ROLE = {**ROLES, **STAGES}
LEGEND = [*((ROLES[phase], phase) for phase in PHASES.values()), ("held", "held: not counted as recovery")]
LINES = 60  # trials drawn above a bar; with more, every second, third … of them by their length
LINE = 3.2  # drawing units from one trial's line to the next
ROW, BAR = 48, 15  # drawing units of a row without its lines, and of its bar
SHORT_ROW, MOST_HIGH, ROOMY = 28, 44, 300  # drawing units of a row of the overview: least, most, of all of them
MOST_SHORT = 11  # rows of the overview; the slowest of more
HELD_SHARE = 0.5  # of the longest recovery: a fault that was held for longer is drawn as long as that
NAME_LETTERS = 40  # of a row on a narrow screen

TITLE = "What each recovery spends its time on"

Parts = list[tuple[str, float]]


@dataclass(frozen=True)
class Row:
    """One combination: its name, its recoveries from the fastest to the slowest, the medians of their parts."""

    name: str
    cell: Combination
    trials: Sequence[tuple[str, Parts]]
    middle: Parts
    recovery_s: float  # median, until training went on, without what the fault was held for

    @property
    def counted_s(self) -> float:
        """Without what the fault was held for."""
        return sum(seconds for phase, seconds in self.middle if phase != HELD)

    @property
    def held_s(self) -> float:
        """What it was held for."""
        return sum(seconds for phase, seconds in self.middle if phase == HELD)

    @property
    def words(self) -> str:
        """`1.40 s`, `0.60 s + held 3.20 s`."""
        return f"{self.recovery_s:.2f} s" + (f" + held {self.held_s:.2f} s" if self.held_s else "")


def rows_of(analysis: Analysis) -> list[Row]:
    """A row for each combination after which training went on, whatever the checks say of it."""
    found = []
    for cell in words.cells(analysis):
        own = recoveries(analysis, cell)
        if own:
            trials = [(one.fault, parts_of(one)) for one in own]
            name = f"{words.name_of(analysis, cell.where)}{words.at_phase(cell.phase)}"
            middle = median(seconds for one in own if (seconds := effective.recovery_s(one)) is not None)
            found.append(Row(name, cell, trials, medians([parts for _, parts in trials]), middle))
    return found


def medians(each: Sequence[Parts]) -> Parts:
    """The median of each part over the trials that have it, in the order in which they come."""
    order = max(each, key=len)
    names = list(dict.fromkeys([phase for phase, _ in order] + [phase for own in each for phase, _ in own]))
    return [
        (name, median(total(own, name) for own in each if any(phase == name for phase, _ in own))) for name in names
    ]


def total(parts: Parts, name: str) -> float:
    """Seconds of one part."""
    return sum(seconds for phase, seconds in parts if phase == name)


def recoveries(analysis: Analysis, cell: Combination) -> list[Incident]:
    """The incidents of a cell after which training went on, the fastest first; of very many a sample of all lengths."""
    mine = {(trial["trial"], trial["fault"]) for trial in cell.trials}
    found = [one for one, _ in analysis.recoveries if (one.job.id, one.fault) in mine and back(one)]
    found.sort(key=lambda one: sum(seconds for _, seconds in effective.phases_of(one)))
    return found[:: -(-len(found) // LINES)] if found else []


def back(one: Incident) -> bool:
    """Whether training went on after a fault, at whatever speed."""
    return effective.recovery_s(one) is not None and bool(effective.phases_of(one))


def overview(analysis: Analysis) -> Chart | None:
    """One short bar a combination, with its time and whether it is still the same training."""
    every = rows_of(analysis)
    shown = sorted(every, key=lambda row: -row.counted_s)[:MOST_SHORT] if len(every) > MOST_SHORT else every
    if not shown:
        return None
    high = min(MOST_HIGH, max(SHORT_ROW, ROOMY // len(shown)))

    def draw_row(axes: Axes, row: Row, top: float, longest: float, *, narrow: bool) -> None:
        sign = looks.SIGN[words.same(row.cell)]
        heading(axes, row, top, f"{row.words} {sign}" if narrow else f"{row.words} · same {sign}", narrow=narrow)
        segments(axes, row, top + 17 + (high - 22) / 2, high - 22, longest)

    left = f" Shown are the {len(shown)} slowest of {len(every)} kinds and phases." if len(every) > len(shown) else ""
    sentence = (
        "From the fault to full speed, medians by phase. On the right is the time to recovery: until the first "
        f"committed step, or to full speed where training never stopped; then whether it is the same training.{left}"
    )
    return drawn("overview", sentence, shown, [(draw_row, high)] * len(shown))


def waterfall(analysis: Analysis) -> Chart | None:
    """One row a combination: the median of each phase as a bar, every trial as a thin line above it."""
    shown = rows_of(analysis)
    if not shown:
        return None

    return drawn("waterfall", sentence(shown), shown, [(row_with_trials, high(row)) for row in shown])


def high(row: Row) -> float:
    """Drawing units of a row with a line for every trial."""
    return ROW + LINE * len(row.trials)


def row_with_trials(axes: Axes, row: Row, top: float, longest: float, *, narrow: bool) -> None:
    """A row's heading, a line for every trial, and the bar of medians."""
    heading(axes, row, top, row.words, narrow=narrow)
    for number, (fault, parts) in enumerate(row.trials):
        line(axes, parts, top + 22 + LINE * number, longest, fault)
    segments(axes, row, top + 23 + LINE * len(row.trials) + BAR / 2, BAR, longest)


def replacements(analysis: Analysis) -> Chart | None:
    """The same of nodes that the engine gave again: from the fault to the first step of what came in their place."""
    shown, errors, engine = list[Row](), list[float](), replacing(analysis)
    if engine is None:
        return None
    for cell in words.cells(analysis):
        own = [(trial["fault"], it) for trial in cell.trials for it in trial.get("replaced", ())]
        errors += [it["error_s"] for _, it in own]
        if trials := [(f"{fault} {it['node']}", replaced.parts(it)) for fault, it in own]:
            name = f"{words.name_of(analysis, cell.where)}{words.at_phase(cell.phase)}"
            whole = median(sum(seconds for _, seconds in parts) for _, parts in trials)
            shown.append(Row(name, cell, trials, medians([parts for _, parts in trials]), whole))
    count = sum(len(row.trials) for row in shown)
    said = (
        f"From the fault to the first step of {engine.given}, {words.plural(count, engine.thing)}, "
        f"medians by stage; what a fault was held for is in it. {engine.whose}, right to {max(errors):.1f} s; the "
        "other moments are the harness' and the trainer's."
    )
    return drawn("replacements", said, shown, [(row_with_trials, high(row)) for row in shown], engine.title)


def replacing(analysis: Analysis) -> replaced.Engine | None:
    """The engine that gave nodes again; None: none did, or none told."""
    found = (it for trial in analysis.trials for it in trial.get("replaced", ()))
    return next(map(replaced.engine_of, found), None)


def stage_legend(analysis: Analysis) -> list[tuple[str, str]]:
    """(role, stage) of the chart of nodes that the engine gave again."""
    engine = replacing(analysis)
    return [(STAGES[stage], stage) for stage in engine.stages.values()] if engine else []


def drawn(
    name: str,
    sentence: str,
    shown: Sequence[Row],
    each: Sequence[tuple[Callable[..., None], float]],
    title: str = TITLE,
) -> Chart:
    """Rows below each other on one axis of seconds; `each` draws one and says how high it is."""
    height = sum(high for _, high in each) + 44
    every = [parts for row in shown for parts in (row.middle, *(own for _, own in row.trials))]
    longest = max(sum(seconds for phase, seconds in parts if phase != HELD) for parts in every)
    end = max(sum(seconds for _, seconds in clipped(parts, longest)) for parts in every)

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        axes, top = drawing.subplots(), 0.0
        for row, (draw_row, high) in zip(shown, each, strict=True):
            draw_row(axes, row, top, longest, narrow=narrow)
            top += high
        axes.set_ylim(top, 0)
        axes.set_xlim(0, end * 1.002)
        axes.set_yticks([])
        axes.set_xlabel("seconds" + ("; hatched: held, not to scale" if shortened(every, longest) else ""))
        quiet_axes(axes, "x")

    return chart(name, title, sentence, draw, (height, height))


def clipped(parts: Parts, longest: float) -> Parts:
    """The parts as they are drawn: what a fault was held for takes at most a share of the axis."""
    return [(phase, min(seconds, HELD_SHARE * longest) if phase == HELD else seconds) for phase, seconds in parts]


def shortened(every: Sequence[Parts], longest: float) -> bool:
    """Whether any part is drawn shorter than it was."""
    return any(clipped(parts, longest) != parts for parts in every)


def heading(axes: Axes, row: Row, top: float, said: str, *, narrow: bool) -> None:
    """The row's name on the left, its time on the right."""
    name = (
        row.name if not narrow or len(row.name + said) <= NAME_LETTERS else row.name[: NAME_LETTERS - len(said)] + "…"
    )
    axes.text(0, top + 9, name, color=COLOUR["ink"], fontsize=11.5, fontweight="bold", va="center")
    axes.annotate(said, (1, top + 9), xycoords=("axes fraction", "data"), ha="right", va="center", color=COLOUR["soft"],
                  fontsize=11)  # fmt: skip


def line(axes: Axes, parts: Parts, y: float, longest: float, fault: str) -> None:
    """One trial, cut into its parts: a single drawn thing, since there are many."""
    said = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in parts)
    spans, begin = [], 0.0
    for _, seconds in (shown := clipped(parts, longest)):
        spans.append((begin, seconds))
        begin += seconds
    colours = [COLOUR["grid" if phase == HELD else ROLE[phase]] for phase, _ in shown]
    axes.broken_barh(spans, (y - 1, 2), facecolors=colours, linewidth=0, gid=tip(f"{fault}: {said}"))


def segments(axes: Axes, row: Row, y: float, height: float, longest: float) -> None:
    """One horizontal bar, cut into its parts; what the fault was held for is hatched."""
    begin, true = 0.0, dict(row.middle)
    for phase, seconds in clipped(row.middle, longest):
        held = phase == HELD
        said = f"{row.name}: {phase} {true[phase]:.2f} s" + (", not counted" if held else f" of {row.counted_s:.2f} s")
        axes.barh(y, seconds, height, begin, linewidth=0, hatch="////" if held else None,
                  facecolor="none" if held else COLOUR[ROLE[phase]], edgecolor=COLOUR["rest"])  # fmt: skip
        axes.patches[-1].set_gid(tip(said))
        begin += seconds


def sentence(shown: Sequence[Row]) -> str:
    """What the chart shows, in words."""
    count = sum(len(row.trials) for row in shown)
    counted = "1 recovery" if count == 1 else f"{count} recoveries"
    return (
        f"From the fault to full speed, {counted}. A thick bar is put together from the median of each phase, a thin "
        "line above it is one trial. Hatched is the time for which the suite held a fault: it is not counted."
    )
