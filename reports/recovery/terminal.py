"""The table at the end of a chaos run: one line a kind of fault and phase, the verdict, how to repeat what failed.

Called by `reports.cli`. Colour only repeats what the words say.
"""

from __future__ import annotations

import shlex
import sys

from rich.table import Table
from rich.text import Text

from proving_ground.bench.terminal import Terminal
from proving_ground.reports import allocation, numbers, verdicts
from proving_ground.reports.figures import pick
from proving_ground.reports.looks import ROOMY, SIGN, STYLE, WIDE, elsewhere, shown_path
from proving_ground.reports.recovery import alerts, engine, shootout, words
from proving_ground.reports.recovery.results import Analysis
from proving_ground.reports.recovery.words import Combination

COLUMNS = (
    "detection s", "recovery s", "(95 % CI)", "largest", "full speed s", "held s", "after it s", "lost steps",
)  # fmt: skip
"""`after it`: to full speed, where that had to wait until the fault, which was held for so long, was lifted."""
NARROW = ("recovery s", "(95 % CI)", "largest")
NARROW_HELD = ("recovery s", "largest", "held s", "after it s")
SHORT = {"largest": "max", "held s": "held", "after it s": "after"}
"""Headings on a terminal of 80 columns, where the numbers have to fit first; all of them are seconds there."""
PHASE = 12  # characters of a phase there


def show(analysis: Analysis, report: str) -> None:
    """Print the table and the verdict; `report` is where the page is, or what to do to get it."""
    console = Terminal(soft_wrap=False, width=None if sys.stdout.isatty() else WIDE)
    console.print()
    console.print(Text.assemble((analysis.run.suite, "bold"), f"  {about(analysis)}"))
    console.print(table(analysis, roomy=console.width >= ROOMY))
    if analysis.alerts.rows:
        console.print()
        console.print(alert_table(analysis))
    for line in footer(analysis, report):
        console.print(line, soft_wrap=not sys.stdout.isatty())


def about(analysis: Analysis) -> str:
    """`1 job of 3 nodes · restart · emulated`."""
    jobs = [evidence.job for evidence in analysis.jobs]
    nodes = "/".join(dict.fromkeys(str(job.nodes) for job in jobs))
    labels = "/".join(dict.fromkeys(str(job.plan.get("label", "emulated")) for job in jobs))
    ways = ", ".join(dict.fromkeys(cell.mechanism for cell in words.cells(analysis)))
    return f"{words.plural(len(jobs), 'job')} of {nodes} nodes · {ways} · {labels}"


def table(analysis: Analysis, *, roomy: bool) -> Table:
    """One line a cell."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    made.add_column("fault", no_wrap=True)
    made.add_column("phase", no_wrap=True, max_width=None if roomy else PHASE)
    made.add_column("recovered", no_wrap=True)
    narrow = NARROW_HELD if pick(analysis.figures, "held_s") else NARROW
    shown = COLUMNS if roomy else narrow
    for name in shown:
        heading = name if roomy else SHORT.get(name, name)
        made.add_column(heading, justify="left" if name == "(95 % CI)" else "right", no_wrap=True)
    for cell in words.cells(analysis):
        found = dict(zip(COLUMNS, numbers_of(analysis, cell), strict=True))
        sign = Text(f"{words.SIGN[cell.outcome]} {cell.counts}", STYLE[words.VALUE[cell.outcome]])
        made.add_row(words.name_of(analysis, cell.where), cell.phase, sign, *(found[name] for name in shown))
    return made


def alert_table(analysis: Analysis) -> Table:
    """One line a fault: the alert that had to come, and what else came."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("fault", "alert, after", "missing", "others (!: unexpected)"):
        made.add_column(name)
    for row in alerts.table(analysis.alerts):
        sign = Text(f"{SIGN[row['verdict']]} {row['fault']}", STYLE[row["verdict"]])
        made.add_row(sign, row["came"], row["missing"], row["others"])
    return made


def numbers_of(analysis: Analysis, cell: Combination) -> list[str]:
    """The columns of `COLUMNS`; what does not exist is a gap."""
    named = ("time_to_detect", "resume", "full_speed_s", "held_s", "after_held_s", "lost_steps")
    found = {name: pick(analysis.figures, name, **cell.where) for name in named}
    middle = {name: None if one is None else float(one["median"]) for name, one in found.items()}
    resume = words.counted_time(analysis, cell) if found["resume"] else None  # held time is in a column of its own
    return [
        numbers.plain(middle["time_to_detect"], 2),
        numbers.plain(float(resume["median"]) if resume else None, 2),
        f"({numbers.ends(resume, 2)})" if resume and resume["ci95"] else "",
        numbers.plain(max(resume["values"]) if resume else None, 2),
        *(numbers.plain(middle[name], 2) for name in ("full_speed_s", "held_s", "after_held_s")),
        numbers.plain(middle["lost_steps"], 0),
    ]


def footer(analysis: Analysis, report: str) -> list[Text]:
    """Everything that is not a number."""
    lines = [Text(), Text(words.headline(analysis))]
    lines += [Text(said) for said in [words.clock_bound(analysis)] if said]
    lines += [Text(line) for line in shootout.lines(analysis)]
    lines += [Text(f"{said[0].upper()}{said[1:]}.") for said in alerts.lines(analysis.alerts)]
    lines += [Text(f"{said[0].upper()}{said[1:]}.") for said in [words.ettr(analysis)] if said]
    lines += [Text(f"{said[0].upper()}{said[1:]}.") for said in words.drawn(analysis)]
    lines += [Text(it) for it in allocation.lines(analysis.recorded.allocation)]
    if waits := engine.timeouts(analysis.recorded):
        lines.append(Text(f"Time-outs of {waits}."))
    lines += [Text(f"Noticed: {it}.") for it in engine.noticed(analysis.recorded, analysis.incidents)]
    lines += [Text(f"Not possible here: {kind}: {why}") for kind, why in words.left_out(analysis)]
    lines += [Text.assemble(("warning: ", "yellow"), note) for note in words.warnings(analysis)]
    lines += judged(analysis)
    lines.append(Text(f"report:  {report}"))
    lines.append(Text(f"repeat:  {words.again(analysis)}"))
    which = (shown_path(analysis.run), words.to_replay(analysis), *elsewhere(analysis.plan))
    one = shlex.join(["pg", "chaos", "replay", *which])
    lines.append(Text(f"replay:  {one}"))
    return lines


def judged(analysis: Analysis) -> list[Text]:
    """The verdict and its reasons."""
    value, line = verdicts.overall(analysis.verdicts), words.verdict_line(analysis)
    head = Text.assemble("verdict: ", (line[: len(value)], STYLE[value]), line[len(value) :])
    return [head, *(Text(f"  {reason}") for reason in words.reasons(analysis))]


def verdict(analysis: Analysis, report: str) -> None:
    """Of the table only the verdict and where the report lies (`--quiet`)."""
    for line in (*judged(analysis), Text(f"report:  {report}")):
        Terminal(soft_wrap=True).print(line)
