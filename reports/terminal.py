"""The table at the end of a run: one line a size, the verdict, where the report lies. Called by `reports.__main__`.

Colour only repeats what the words say. Where the output is no terminal, lines are as long as they need to be.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from reports import checks, figures, numbers, words
from reports.figures import Cell
from reports.results import Analysis

WIDE = 160  # columns of a line in a file or a CI log
STYLE = {checks.PASS: "bold green", checks.FAIL: "bold red", checks.UNKNOWN: "bold yellow"}
SIGN = {checks.PASS: "✓", checks.FAIL: "✗", checks.UNKNOWN: "?"}


def show(analysis: Analysis, report: str) -> None:
    """Print the table and the verdict; `report` is where the page is, or what to do to get it."""
    console = Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else WIDE)
    for group in dict.fromkeys(cell.group for cell in analysis.cells):
        rows = [cell for cell in analysis.cells if cell.group == group]
        console.print(Group(Text(), title(rows), table(analysis, rows, most_lost=4 if console.width >= 140 else 2)))
    for line in footer(analysis, report):
        console.print(line, soft_wrap=not sys.stdout.isatty())


def title(rows: list[Cell]) -> Text:
    """`digits · weak scaling  64 samples a step on each node · real compute`."""
    name, detail = words.about_group(rows)
    return Text.assemble((name, "bold"), (f"  {detail}", "dim"))


def table(analysis: Analysis, rows: list[Cell], most_lost: int) -> Table:
    """One row a size; numbers aligned on the right, their interval beside them."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    made.add_column("nodes", justify="right", no_wrap=True)
    for name in ("samples/s", "efficiency"):
        made.add_column(name, justify="right", no_wrap=True)
        made.add_column("(95 % CI)", justify="left", no_wrap=True, style="dim")
    for name in ("bar", "speed-up"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("lost to, points", overflow="fold")
    made.add_column("label", no_wrap=True)
    decimals = numbers.column_digits(
        figures.pick_all(analysis.figures, "throughput", case=rows[0].case, scaling=rows[0].scaling)
    )
    for cell in rows:
        made.add_row(*row(analysis, cell, decimals, most_lost))
    return made


def row(analysis: Analysis, cell: Cell, decimals: int, most_lost: int) -> list[RenderableType]:
    """One size. What was not measured is a gap."""
    rate, kept, faster = (
        figures.pick(analysis.figures, name, **cell.where) for name in ("throughput", "efficiency", "speedup")
    )
    if rate is None:
        why = next((trial.failed for trial in cell.discarded if trial.failed), "not run")
        return [str(cell.nodes), *[numbers.GAP, ""] * 2, *[numbers.GAP] * 2, Text(why, "red"), numbers.GAP]
    reference = kept is not None and kept["where"]["base_nodes"] == cell.nodes
    return [
        str(cell.nodes),
        numbers.plain(rate["median"], decimals),
        interval(numbers.ends(rate, decimals)) + (" noisy" if rate["ci95"] and checks.noisy(rate) else ""),
        numbers.percent(kept["median"]) if kept else numbers.GAP,
        "reference" if reference else interval(numbers.ends(kept, 1)),
        bar(analysis, cell),
        f"{faster['median']:.2f}×" if faster else numbers.GAP,
        numbers.GAP if reference else words.lost_to(analysis, cell, most_lost),
        cell.label,
    ]


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
    value = checks.overall(analysis.verdicts)
    line = words.verdict_line(analysis)
    lines: list[Text] = [Text(), *(Text(said) for said in words.quality_lines(analysis))]
    lines += [Text.assemble(("warning: ", "yellow"), note) for note in warnings(analysis)]
    lines.append(Text.assemble("verdict: ", (line[: len(value)], STYLE[value]), line[len(value) :]))
    lines += [Text(f"  {reason}") for reason in words.reasons(analysis, value) if value != checks.PASS]
    lines.append(Text(f"report:  {report}"))
    lines.append(Text(f"repeat:  python -m bench run --from {shlex.quote(shown_path(analysis))}"))
    return lines


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
    return notes + analysis.history.warnings[:3]


def shown_path(analysis: Analysis) -> str:
    """The run's path, as short as a person would type it."""
    try:
        return str(analysis.run.path.relative_to(Path.cwd()))
    except ValueError:
        return str(analysis.run.path)
