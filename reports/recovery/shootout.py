"""One schedule of faults under several mechanisms, side by side. Called by the page and the terminal.

A row is a case of the suite: a mechanism, perhaps with other settings or another trainer than the next. A fault that
one never got over is `stuck`: a result like any other, without a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from proving_ground.reports import numbers, verdicts
from proving_ground.reports.figures import pick_all
from proving_ground.reports.recovery import words
from proving_ground.reports.recovery.figures import lost_seconds, lost_steps
from proving_ground.reports.recovery.healthy import Healthy, against
from proving_ground.reports.recovery.results import RECOVERED, SLOW, STUCK, Analysis, worst
from proving_ground.reports.svg import COLOUR, Chart, chart, quiet_axes, tip

COLOURS = ("wait", "comm", "data", "optimizer", "forward", "backward", "checkpoint", "accent")
SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100)
SHORTEST_S = 0.1  # left edge of the chart, where those are that never stopped
ROW, HEAD = 15, 24  # drawing units of one mechanism's line, and of a fault's name


@dataclass(frozen=True)
class Shot:
    """One fault under one mechanism, once."""

    fault: str  # `node_kill rank0`
    way: str  # the case, with its mechanism where that is not its name
    outcome: str
    seconds: float | None  # to the first committed step; None: training never stopped, or never went on
    lost_steps: float
    lost_s: float
    failed: tuple[str, ...]  # checks

    @property
    def words(self) -> str:
        """What came of it, shortly."""
        if self.outcome == STUCK:
            return "stuck"
        return "never stopped" if self.seconds is None else f"{self.seconds:.2f} s"


def ways(analysis: Analysis) -> dict[str, str]:
    """The cases that were put to the test, in the order of the suite → their mechanisms."""
    known = [(str(case.get("name")), str(case.get("mechanism") or "")) for case in analysis.spec.get("cases", ())]
    tried = dict.fromkeys((one.case, one.mechanism) for one in analysis.incidents)
    return {named(*it): it[1] for it in dict.fromkeys([*known, *tried]) if it in tried}


def named(case: str, mechanism: str) -> str:
    """What a row is called."""
    return case if case == mechanism else f"{case} ({mechanism})"


def is_one(analysis: Analysis) -> bool:
    """Whether there is anything to compare."""
    return len(set(ways(analysis).values())) > 1


def shots(analysis: Analysis) -> list[Shot]:
    """Every fault of every mechanism."""
    jobs = {evidence.job.id: evidence for evidence in analysis.jobs}
    made = []
    for one, trial in analysis.recoveries:
        failed = tuple(name for name, value in trial["verdicts"].items() if value == verdicts.FAIL)
        target = one.plan.get("target")
        aim = target if isinstance(target, str) else ""  # its kind's own target differs between mechanisms
        again = one.new is not None
        made.append(
            Shot(
                f"{one.kind} {aim}".strip(), named(one.case, one.mechanism), trial["outcome"],
                one.took("first_committed_step"),
                lost_steps(one) if again else 0.0, lost_seconds(jobs[one.job.id], one) if again else 0.0, failed,
            )
        )  # fmt: skip
    return made


def costs(analysis: Analysis) -> dict[str, Healthy]:
    """Mechanism → what it costs where nothing fails."""
    where = [(it["where"], it) for it in pick_all(analysis.figures, "step_time")]
    found = {named(about["case"], about["mechanism"]): it for about, it in where}
    base = {named(it.case, it.mechanism) for it in analysis.incidents if it.is_baseline}
    names = sorted(ways(analysis), key=lambda name: name not in base)
    return {name: against(found.get(name), found.get(names[0])) for name in names}


def table(analysis: Analysis) -> dict[str, Any]:
    """Faults by mechanisms, for the page."""
    found, names = shots(analysis), list(ways(analysis))
    faults = list(dict.fromkeys(it.fault for it in sorted(found, key=lambda it: it.fault)))
    cells = {fault: {name: cell([it for it in found if (it.fault, it.way) == (fault, name)]) for name in names}
             for fault in faults}  # fmt: skip
    return {"names": names, "cells": cells, "totals": totals(analysis, found)}


def cell(tried: Sequence[Shot]) -> Mapping[str, Any] | None:
    """One fault under one mechanism: the worst outcome, its times."""
    if not tried:
        return None
    outcome = worst([it.outcome for it in tried])
    times = [it.seconds for it in tried if it.seconds is not None and it.outcome != STUCK]
    good = sum(it.outcome == RECOVERED for it in tried)
    said = f"{median(times):.2f} s" if times else tried[0].words
    more = f"{good} of {len(tried)}" + (f", longest {max(times):.2f} s" if len(times) > 1 else "")
    return {"outcome": outcome, "value": words.VALUE[outcome], "said": said, "more": more}


def totals(analysis: Analysis, found: Sequence[Shot]) -> list[dict[str, Any]]:
    """One row a mechanism."""
    healthy = costs(analysis)
    rows = []
    for name in ways(analysis):
        own = [it for it in found if it.way == name]
        times = [it.seconds for it in own if it.seconds is not None and it.outcome != STUCK]
        failed = Counter(check for it in own if it.outcome != STUCK for check in it.failed)
        rows.append({
            "name": name, "n": len(own), "outcomes": Counter(it.outcome for it in own),
            "median": median(times) if times else None, "largest": max(times, default=None),
            "lost_steps": max(it.lost_steps for it in own), "lost_s": sum(it.lost_s for it in own),
            "step": healthy[name].figure, "cost": healthy[name].words,
            "failed": ", ".join(f"{check} ({count})" for check, count in failed.items()) or "none",
        })  # fmt: skip
    return rows


def lines(analysis: Analysis) -> list[str]:
    """One line a mechanism, for the terminal."""
    if not is_one(analysis):
        return []
    return [
        f"{row['name']}: {row['outcomes'][RECOVERED]} of {row['n']} recovered, {row['outcomes'][STUCK]} stuck"
        f"{f', {slow} slow' if (slow := row['outcomes'][SLOW]) else ''}; "
        f"time to recovery {numbers.plain(row['median'], 2)} s, {numbers.plain(row['largest'], 2)} s at most; "
        f"step {numbers.plain(row['step']['median'] if row['step'] else None, 1)} ms"
        for row in totals(analysis, shots(analysis))
    ]


def drawing(analysis: Analysis) -> Chart | None:
    """Every trial as a dot: how long until training went on, by fault and mechanism."""
    found, names = shots(analysis), list(ways(analysis))
    faults = list(dict.fromkeys(it.fault for it in sorted(found, key=lambda it: it.fault)))
    height = len(faults) * (HEAD + ROW * len(names)) + 48
    longest = max([it.seconds for it in found if it.seconds is not None], default=1.0)

    def draw(into: Drawing, narrow: bool) -> None:  # noqa: FBT001
        axes = into.subplots()
        axes.set_xscale("log")
        for number, fault in enumerate(faults):
            top = number * (HEAD + ROW * len(names))
            axes.text(SHORTEST_S, top + 10, fault, color=COLOUR["ink"], fontsize=11.5, fontweight="bold", va="center")
            for line, name in enumerate(names):
                own = [it for it in found if (it.fault, it.way) == (fault, name)]
                dots(axes, own, top + HEAD + ROW * (line + 0.4), COLOURS[line % len(COLOURS)], 2 * longest, narrow)
        axes.set_ylim(height - 48, 0)
        axes.set_yticks([])
        axes.set_xticks(SECONDS, [f"{it:g}" for it in SECONDS])
        axes.minorticks_off()
        axes.set_xlim(SHORTEST_S * 0.8, 3 * max(longest, 1.0))
        axes.set_xlabel("seconds from the fault until training went on")
        quiet_axes(axes, "x")

    said = (
        f"{len(found)} trials of {len(faults)} faults under {len(names)} mechanisms. A dot is one trial; at the left "
        "edge those in which training never stopped, a cross at the right edge those that were stuck."
    )
    return chart("shootout", "How long until training went on", said, draw, (height, height))


def dots(axes: Axes, own: Sequence[Shot], y: float, role: str, edge_s: float, narrow: bool) -> None:  # noqa: FBT001
    """The trials of one fault under one mechanism."""
    for it in own:
        stuck = it.outcome == STUCK
        x = edge_s if stuck else max(SHORTEST_S, it.seconds or 0.0)
        about = tip(f"{it.way}, {it.fault}: {it.words}, {it.outcome}")
        axes.plot([x], [y], "x" if stuck else "o", color=COLOUR[role], markersize=6, gid=about)
    if own:
        last = max(edge_s if it.outcome == STUCK else max(SHORTEST_S, it.seconds or 0.0) for it in own)
        left = last**2 > SHORTEST_S * edge_s  # the words go where there is room
        said = own[0].way if narrow else f"{own[0].way} {own[-1].words}"
        axes.annotate(said, (last, y), (-8 if left else 8, 0), textcoords="offset points", va="center",
                      ha="right" if left else "left", color=COLOUR["soft"], fontsize=10)  # fmt: skip
