"""The HTML page that sets two or more runs side by side: charts laid over each other, and what differs around them.

Called by `reports.commands`. Benchmarks are judged by `compare`, each against the first run. Recovery times of
two runs are shown with their intervals and not judged.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from proving_ground.reports import figures, layout, numbers
from proving_ground.reports.comparing import compare, comparison
from proving_ground.reports.comparing.comparison import Comparison
from proving_ground.reports.document import codes
from proving_ground.reports.figures import Figure
from proving_ground.reports.scaling import charts
from proving_ground.reports.svg import COLOUR, Chart, chart, quiet_axes, tip

ROLES = ("accent", "comm", "optimizer", "checkpoint", "wait", "second")
MARKS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚"}
"""Marker → the letter that looks like it: no run is told by its colour alone."""
MOST = len(ROLES)  # runs on one page
RECOVERY = {
    "time_to_detect": "time to detect",
    "time_to_recovery": "time to recovery",
    "ettr": "goodput (ETTR)",
    "lost_steps": "lost steps",
}
VALUE = {compare.WORSE: "fail", compare.BETTER: "pass", compare.SAME: "pass", compare.UNKNOWN: "unknown"}
"""Answer → the verdict whose colour it has."""
ROW = 20  # drawing units of one run in a row of recovery times


@dataclass(frozen=True)
class RunShown:
    """One of the runs: what it is called, its figures, where it came from."""

    name: str
    figures: Sequence[Figure]
    cluster: str
    provenance: Mapping[str, Any]


def html(shown: Sequence[RunShown], compared: Sequence[Comparison]) -> str:
    """The page as text; `compared` sets each later run against the first, and is empty where nothing is judged."""
    around = environments(shown)
    return layout.render("compare.html.j2", {
        "page_title": f"{len(shown)} runs side by side",
        "title": title(shown, compared),
        "runs": [{"name": it.name, "role": role, "mark": mark, "letter": letter}
                 for it, role, mark, letter in zip(shown, ROLES, MARKS.values(), "ABCDEF", strict=False)],
        "compared": [{"made": it, "rows": list(rows(it))} for it in compared],
        "answers": comparison.WORDS,
        "values": VALUE,
        "heads": comparison.HEADS,
        "differs": [row for row in around if row["differs"]],
        "alike": [row for row in around if not row["differs"]],
        "hero": hero(compared),
        "main_chart": throughputs(shown) or recoveries(shown),
        "efficiency_chart": efficiencies(shown),
        "table": table(shown),
    })  # fmt: skip


def title(shown: Sequence[RunShown], compared: Sequence[Comparison]) -> str:
    """The answer in at most two short lines."""
    answers = [compare.overall(it.found) for it in compared]
    if not answers:
        return f"{len(shown)} chaos runs side by side; not judged"
    if len(answers) > 1:
        counts = ", ".join(f"{answers.count(it)} {comparison.WORDS[it]}" for it in comparison.WORDS if it in answers)
        return f"Against the first run: {counts}"
    return {
        compare.WORSE: "The second run is worse", compare.BETTER: "The second run is better",
        compare.SAME: "Both runs are the same", compare.UNKNOWN: "No difference can be told",
    }[answers[0]]  # fmt: skip


def hero(compared: Sequence[Comparison]) -> dict[str, str] | None:
    """The largest change of a gated figure."""
    gated = [it for made in compared for it in made.found if it.gated]
    if not gated:
        return None
    most = max(gated, key=lambda it: abs(it.effect.log))
    low, high = (f"{end:+.1f}".replace("-", numbers.MINUS) for end in most.ci95)
    about = f"{most.name} of {comparison.about(most.where)}: {comparison.WORDS[most.answer]}"
    number = f"{most.change:+.1f}".replace("-", numbers.MINUS)
    return {"number": number, "unit": "%", "ends": f"{low} to {high} (95 % CI)", "about": f"largest change: {about}"}


def rows(made: Comparison) -> list[dict[str, Any]]:
    """The rows of one comparison, each with its answer."""
    order = sorted(made.found, key=lambda it: not it.gated)
    cells = list(comparison.rows(made.found))
    return [{"cells": row, "answer": it.answer} for row, it in zip(cells, order, strict=True)]


def environments(shown: Sequence[RunShown]) -> list[dict[str, Any]]:
    """What each run was measured on and with, a row a thing: in the order of the first run that has it."""
    every = [environment(it) for it in shown]
    names = list(dict.fromkeys(name for one in every for name in one))
    found = [{"name": name, "values": [one.get(name, numbers.GAP) for one in every]} for name in names]
    return [{**row, "differs": len(set(row["values"])) > 1} for row in found]


def environment(shown: RunShown) -> dict[str, str]:
    """Host, software, code, command and cluster of one run, flat."""
    origin = shown.provenance
    made = {"cluster": shown.cluster, "commit": ", then ".join(codes(origin))}
    made |= {f"host: {key}": written(value) for key, value in (origin.get("host") or {}).items()}
    made |= {"Python": str(origin.get("python", "not known")), "seed": str(origin.get("seed", "not known"))}
    made |= {f"package: {key}": str(value) for key, value in sorted((origin.get("packages") or {}).items())}
    return made | {"command": shlex.join(str(word).rpartition("/")[2] for word in origin.get("argv", ()))}


def written(value: object) -> str:
    """A value of a JSON document in one line."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def table(shown: Sequence[RunShown]) -> list[dict[str, Any]]:
    """Every figure that at least two runs have: its median and interval in each."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for number, it in enumerate(shown):
        for figure in it.figures:
            if figure["name"] not in (*compare.DIRECTIONS, *RECOVERY):
                continue
            key = figure["name"], json.dumps(figure["where"], sort_keys=True)
            row = found.setdefault(key, {"name": RECOVERY.get(figure["name"], figure["name"]), "unit": figure["unit"],
                                         "about": about(figure), "cells": [None] * len(shown)})  # fmt: skip
            row["cells"][number] = cell(figure)
    return [row for row in found.values() if sum(it is not None for it in row["cells"]) > 1]


def about(figure: Figure) -> str:
    """What a figure is about, in words."""
    return ", ".join(f"{value} nodes" if key == "nodes" else str(value) for key, value in figure["where"].items()
                     if key not in ("workload", "base_nodes"))  # fmt: skip


def cell(figure: Figure) -> dict[str, str]:
    """Median and interval of one figure."""
    digits = numbers.digits(figure["median"], figure["ci95"])
    ends = numbers.ends(figure, digits) or f"n = {figure['n']}"
    return {"median": numbers.plain(figure["median"], digits), "ends": ends}


def throughputs(shown: Sequence[RunShown]) -> Chart | None:
    """Samples per second and node by size, all runs on the same axes."""
    said = "Samples per second and node by number of nodes; upright lines are 95 % intervals. Each run has its mark."
    return by_size(shown, "throughput", "Throughput per node", said, per_node=True)


def efficiencies(shown: Sequence[RunShown]) -> Chart | None:
    """Efficiency by size, all runs on the same axes."""
    said = (
        "Efficiency against each run's own smallest size, in %, by number of nodes; upright lines are 95 % intervals."
    )
    return by_size(shown, "efficiency", "Efficiency", said, per_node=False)


def by_size(shown: Sequence[RunShown], name: str, head: str, said: str, *, per_node: bool) -> Chart | None:
    """One panel for each case and scaling that two runs have at two sizes or more."""
    every = [[f for f in figures.pick_all(list(it.figures), name) if "nodes" in f["where"]] for it in shown]
    groups = [group for group in dict.fromkeys(group_of(f) for own in every for f in own)
              if len({f["where"]["nodes"] for own in every for f in own if group_of(f) == group}) > 1]  # fmt: skip
    if not groups:
        return None

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        found = charts.panels(drawing, len(groups), narrow=narrow, sharey=False)
        for axes, group in zip(found, groups, strict=True):
            panel(axes, shown, [[f for f in own if group_of(f) == group] for own in every], per_node=per_node)
            axes.set_title(" ".join(filter(None, group)), pad=8)

    return chart(f"overlay-{name}", head, said, draw, charts.heights(len(groups), 250, 200))


def group_of(figure: Figure) -> tuple[str, str]:
    """Case and scaling."""
    return str(figure["where"].get("case", "")), str(figure["where"].get("scaling", ""))


def panel(axes: Axes, shown: Sequence[RunShown], every: Sequence[Sequence[Figure]], *, per_node: bool) -> None:
    """The runs of one case and scaling, a little beside each other."""
    sizes = sorted({f["where"]["nodes"] for own in every for f in own})
    for number, (it, own, role, mark) in enumerate(zip(shown, every, ROLES, MARKS, strict=False)):
        shift = 0.09 * (number - (len(shown) - 1) / 2)
        points = [(sizes.index(f["where"]["nodes"]) + shift, f, f["where"]["nodes"] if per_node else 1) for f in own]
        axes.plot(
            [x for x, _, _ in points], [f["median"] / by for _, f, by in points], color=COLOUR[role], linewidth=1.3
        )
        for x, f, by in points:
            low, high = f["ci95"] or (f["median"], f["median"])
            axes.plot([x, x], [low / by, high / by], color=COLOUR[role], linewidth=1.6)
            text = f"{it.name}, {f['where']['nodes']} nodes: {numbers.short(f['median'] / by)} {f['unit']}"
            axes.plot(x, f["median"] / by, mark, color=COLOUR[role], markersize=6, gid=tip(text))
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.margins(y=0.15)
    axes.ticklabel_format(axis="y", style="plain", useOffset=False)
    axes.locator_params(axis="y", nbins=5)
    axes.set_xlabel("nodes")
    quiet_axes(axes)


def recoveries(shown: Sequence[RunShown]) -> Chart | None:
    """Every recovery time as a mark, kind by kind, a line for each run."""
    every = [figures.pick_all(list(it.figures), "time_to_recovery") for it in shown]
    kinds = list(dict.fromkeys((f["where"]["kind"], f["where"]["phase"]) for own in every for f in own))
    if not kinds:
        return None
    high = 24 + ROW * len(shown)

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001, ARG001 - the same in both
        axes = drawing.subplots()
        for row, (kind, phase) in enumerate(kinds):
            name = kind if phase == "step" else f"{kind}, {phase}"
            axes.text(0, row * high + 12, name, color=COLOUR["ink"], fontsize=11.5, fontweight="bold", va="center")
            for number, (it, own) in enumerate(zip(shown, every, strict=True)):
                times = [f for f in own if (f["where"]["kind"], f["where"]["phase"]) == (kind, phase)]
                marks(axes, it, times, row * high + 24 + ROW * (number + 0.4), number)
        axes.set_ylim(high * len(kinds), 0)
        axes.set_xlim(left=0)
        axes.set_yticks([])
        axes.set_xlabel("time to recovery, s")
        quiet_axes(axes, "x")

    said = "Time to recovery of every fault, a mark each, and its median as an upright line; each run has its own mark."
    tall = high * len(kinds) + 44
    return chart("overlay-recovery", "Time to recovery", said, draw, (tall, tall))


def marks(axes: Axes, shown: RunShown, times: Sequence[Figure], y: float, number: int) -> None:
    """The times of one run and kind."""
    role, mark = ROLES[number], list(MARKS)[number]
    for found in times:
        for value in found["values"]:
            axes.plot(value, y, mark, color=COLOUR[role], markersize=6, gid=tip(f"{shown.name}: {value:.2f} s"))
        axes.plot([found["median"]] * 2, [y - 7, y + 7], color=COLOUR[role], linewidth=1.6)
