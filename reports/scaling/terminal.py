"""The table at the end of a run: one line a size, the verdict, where the report lies. Called by `reports.cli`.

Colour only repeats what the words say. Where the output is no terminal, lines are as long as they need to be.
"""

from __future__ import annotations

import shlex
import sys

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from proving_ground.bench.terminal import Terminal
from proving_ground.reports import allocation, figures, looks, numbers, verdicts
from proving_ground.reports.looks import ROOMY, SIGN, STYLE, WIDE
from proving_ground.reports.scaling import bottlenecks, checks, sections, words
from proving_ground.reports.scaling.cells import Cell
from proving_ground.reports.scaling.results import Analysis


def show(analysis: Analysis, report: str) -> None:
    """Print the table and the verdict; `report` is where the page is, or what to do to get it."""
    console = Terminal(soft_wrap=False, width=None if sys.stdout.isatty() else WIDE)
    if told := list(sections.told(analysis)):
        console.print(Group(Text(), by_programs(told)))
    for group in dict.fromkeys(cell.group for cell in analysis.cells if not cell.program):
        rows = [cell for cell in analysis.cells if cell.group == group]
        blocks = one_line_each(analysis, rows) if console.width >= ROOMY else two_lines_each(analysis, rows)
        console.print(Group(Text(), *blocks))
    for line in footer(analysis, report):
        console.print(line, soft_wrap=not sys.stdout.isatty())


def by_programs(told: list[dict[str, str]]) -> Table:
    """What measuring programs found, a line each."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    columns = {"case": "case", "nodes": "nodes", "name": "figure", "about": "about", "median": "median", "unit": "unit",
               "ends": "(95 % CI)", "link": "of the link"}  # fmt: skip
    for key, head in columns.items():
        made.add_column(head, justify="right" if key in ("nodes", "median", "link") else "left")
    for row in told:
        made.add_row(*(row[key] for key in columns))
    return made


def one_line_each(analysis: Analysis, rows: list[Cell]) -> list[RenderableType]:
    """The table for wide terminals and for logs."""
    name, detail = words.about_group(rows)
    limit = [bound(analysis, cell) for cell in rows]
    shown = ["bound"] if any(limit) else []
    made = table([*shown, "speed-up", "lost to, points", "label"])
    for cell, allowed in zip(rows, limit, strict=True):
        gap = is_reference(analysis, cell) or not cell.counted
        lost = why_missing(cell) or (numbers.GAP if gap else words.lost_to(analysis, cell))
        columns = [allowed or numbers.GAP] if shown else []
        made.add_row(*numbers_of(analysis, cell, rows), *columns, speedup(analysis, cell), lost, cell.label)
    return [Text.assemble((name, "bold"), (f"  {detail}", "dim")), made]


def two_lines_each(analysis: Analysis, rows: list[Cell]) -> list[RenderableType]:
    """The table for 80 columns; what each size lost is listed below it."""
    name, detail = words.about_group(rows)
    limit = [bound(analysis, cell) for cell in rows]
    shown = ["bound"] if any(limit) else []
    made, lost = table(shown), []
    for cell, allowed in zip(rows, limit, strict=True):
        made.add_row(*numbers_of(analysis, cell, rows), *([allowed or numbers.GAP] if shown else []))
        if not is_reference(analysis, cell) or not cell.counted:
            said = why_missing(cell) or f"lost to {words.lost_to(analysis, cell)}"
            lost.append(Text(f"{cell.nodes:>5}  {said}", "dim"))
    return [Text.assemble((name, "bold"), f"  {rows[0].label}"), Text(detail, "dim"), made, *lost]


def table(more: list[str]) -> Table:
    """An empty table: numbers aligned on the right, their interval beside them."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    made.add_column("nodes", justify="right", no_wrap=True)
    for name in ("samples/s", "efficiency"):
        made.add_column(name, justify="right", no_wrap=True)
        made.add_column("(95 % CI)", justify="left", no_wrap=True, style="dim")
    made.add_column("threshold", justify="right", no_wrap=True)
    for name in more:
        right = name in ("bound", "speed-up")
        made.add_column(name, justify="right" if right else "left", no_wrap=name != "lost to, points")
    return made


def numbers_of(analysis: Analysis, cell: Cell, rows: list[Cell]) -> list[RenderableType]:
    """A size's own columns. What was not measured is a gap."""
    rate, kept = (figures.pick(analysis.figures, name, **cell.where) for name in ("throughput", "efficiency"))
    if rate is None:
        return [str(cell.nodes), *[numbers.GAP, ""] * 2, numbers.GAP]
    about = {"case": rows[0].case, "scaling": rows[0].scaling}
    decimals = numbers.column_digits(figures.pick_all(analysis.figures, "throughput", **about))
    return [
        str(cell.nodes),
        numbers.plain(rate["median"], decimals),
        interval(numbers.ends(rate, decimals)) + (" noisy" if rate["ci95"] and checks.noisy(rate) else ""),
        numbers.percent(kept["median"]) if kept else numbers.GAP,
        "reference" if is_reference(analysis, cell) else interval(numbers.ends(kept, 1)),
        bar(analysis, cell),
    ]


def is_reference(analysis: Analysis, cell: Cell) -> bool:
    """Whether the others are compared with this size."""
    return figures.pick(analysis.figures, "efficiency", **cell.where, base_nodes=cell.nodes) is not None


def speedup(analysis: Analysis, cell: Cell) -> str:
    """`7.40×`; a gap where there is none."""
    found = figures.pick(analysis.figures, "speedup", **cell.where)
    return f"{found['median']:.2f}×" if found else numbers.GAP


def bound(analysis: Analysis, cell: Cell) -> str:
    """`99.2 %`: the efficiency that the link allows; empty where it is not known, or at the reference."""
    found = figures.pick(analysis.figures, "efficiency_bound", **cell.where)
    return numbers.percent(found["median"]) if found and found["where"]["base_nodes"] != cell.nodes else ""


def why_missing(cell: Cell) -> str:
    """Why a size has no numbers; empty when it has some."""
    return "" if cell.counted else next((trial.failed for trial in cell.discarded if trial.failed), "not run")


def interval(ends: str) -> str:
    """In brackets; `(one repeat)` where there is none."""
    return f"({ends})" if ends else "(one repeat)"


def bar(analysis: Analysis, cell: Cell) -> Text:
    """The suite's bar with the sign of its verdict; a gap where there is none."""
    found = [v for v in analysis.verdicts if v["check"] == "efficiency" and v["where"].items() >= cell.where.items()]
    if not found:
        return Text(numbers.GAP)
    return Text(f"≥{found[0]['where']['bar']:g} % {SIGN[found[0]['verdict']]}", STYLE[found[0]["verdict"]])


def footer(analysis: Analysis, report: str) -> list[Text]:
    """Everything that is not a number: what to beware of, the verdict, the report, how to repeat it."""
    lines: list[Text] = [Text(), *(Text(said) for said in words.quality_lines(analysis))]
    lines += [Text(f"decided by calibration: {it}") for it in analysis.plan.get("decided", ())]
    lines += [Text(it) for it in allocation.lines(analysis.history.allocation)]
    lines += [Text(f"further repeats: {it}") for it in [words.further(analysis.plan)] if it]
    lines += [Text.assemble(("warning: ", "yellow"), note) for note in warnings(analysis)]
    lines += judged(analysis)
    lines += [Text(said) for said in [sections.line(analysis)] if said]
    lines += [Text(f"advice:  {it.line}") for it in bottlenecks.find(analysis)]
    lines += [Text(f"cost:    {said}") for said in sections.money(analysis)]
    lines.append(Text(f"report:  {report}"))
    again = ("pg", "bench", "run", "--from", looks.shown_path(analysis.run), *looks.elsewhere(analysis.plan))
    lines.append(Text(f"repeat:  {shlex.join(again)}"))
    return lines


def judged(analysis: Analysis) -> list[Text]:
    """The verdict, and its reasons where it is no pass."""
    value, line = verdicts.overall(analysis.verdicts), words.verdict_line(analysis)
    head = Text.assemble("verdict: ", (line[: len(value)], STYLE[value]), line[len(value) :])
    return [head, *(Text(f"  {reason}") for reason in words.reasons(analysis, value) if value != verdicts.PASS)]


def verdict(analysis: Analysis, report: str) -> None:
    """Of the table only the verdict and where the report lies (`--quiet`)."""
    for line in (*judged(analysis), Text(f"report:  {report}")):
        Terminal(soft_wrap=True).print(line)


def warnings(analysis: Analysis) -> list[str]:
    """What a reader must know before believing a number."""
    notes = [] if analysis.complete else ["this run is incomplete; the figures are those of the trials that ended"]
    said = [
        *analysis.plan["cluster"].get("imitated", ()),
        *(t for trial in analysis.trials for t in trial.plan.get("imitated", ())),
    ]
    if any("contention" in text for text in said):
        notes.append(checks.CONTENTION)
    flagged = [trial for trial in analysis.trials if trial.flags]
    if flagged:
        which = ", ".join(str(trial.plan["id"]) for trial in flagged[:6]) + (" …" if len(flagged) > 6 else "")
        notes.append(
            f"the machine was not steady in {len(flagged)} of {len(analysis.trials)} trials "
            f"({which}): {flagged[0].flags[0]}"
        )
    return notes + stood_still(analysis)[:3] + refused(analysis) + analysis.history.warnings[:3]


def stood_still(analysis: Analysis) -> list[str]:
    """The steps in which one rank held up all others."""
    return [f"trial {trial.plan['id']}: {said}" for trial in analysis.trials for said in trial.stalls]


def refused(analysis: Analysis) -> list[str]:
    """What was planned and not run, because it would have measured the host; a line for each reason."""
    cases: dict[str, list[str]] = {}
    for it in analysis.plan.get("refused", ()):
        cases.setdefault(str(it["why"]), []).append(str(it["case"]))
    return [f"not run: {', '.join(names[:4])}{' …' if len(names) > 4 else ''} at {why}" for why, names in cases.items()]
