"""The HTML page of one run: one file, nothing loaded from outside, the same bytes every time.

Called by `reports.cli`. What is computed is computed here and in the modules below; the template only places it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proving_ground.reports import allocation, figures, layout, looks, numbers, stability, values, verdicts
from proving_ground.reports.attempts import Attempts, Section, unmade
from proving_ground.reports.figures import Figure
from proving_ground.reports.scaling import (
    advice,
    charts,
    checks,
    curves,
    machine,
    measure,
    sections,
    shares,
    terminal,
    timeline,
    words,
)
from proving_ground.reports.scaling.cells import Cell
from proving_ground.reports.scaling.results import Analysis


def write(analysis: Analysis, made: Mapping[str, Any] | None = None) -> None:
    """Write `report.html`, whole or not at all; `made`: its `SECTIONS`."""
    layout.write(analysis.run, html(analysis, made))


def html(analysis: Analysis, made: Mapping[str, Any] | None = None) -> str:
    """The page as text."""
    made = Attempts().sections(analysis, SECTIONS) if made is None else made
    return layout.render("report.html.j2", {**context(analysis), **made})


def context(analysis: Analysis) -> dict[str, Any]:
    """Everything that the template shows; it computes nothing itself."""
    overall = verdicts.overall(analysis.verdicts)
    return {
        "page_title": f"{overall}: {analysis.run.suite} {analysis.run.run_id}",
        "title": words.title(analysis),
        "verdict_words": VERDICT_WORDS[overall],
        "hero": hero(analysis),
        "answers": answers(analysis),
        "run": analysis.run,
        "nodes": words.nodes,
        "spec": analysis.spec,
        "overall": overall,
        "headline": " ".join(filter(None, [words.headline(analysis), advice.best_words(analysis)])),
        "label": label(analysis),
        "label_words": words.label_line(analysis),
        "decided": list(analysis.plan.get("decided", ())),
        "further": words.further(analysis.plan),
        "warnings": [*terminal.warnings(analysis), *unmade(analysis.verdicts)],
        "reasons": why(analysis, overall),
        "verdicts": verdict_rows(analysis),
        "signs": looks.SIGN,
        "parts": [(part, words.PART_LONG[part]) for part in measure.PARTS if _recorded(analysis, part)],
        "step_parts": [(part, words.PART_LONG[part]) for part in STEP_PARTS],
        "limits": {
            "steal": 100 * stability.STEAL_MAX,
            "busy": 100 * stability.BUSY_MAX,
            "half": 100 * checks.HALF_WIDTH_MAX,
        },
        "facts": [
            *layout.facts(analysis.run, analysis.plan, analysis.provenance, analysis.history.events),
            *allocation.facts(analysis.history.allocation),
        ],
        "command": repeat_command(analysis),
        "figures": analysis.figures,
        "links": values.links(analysis),
    }


VERDICT_WORDS = {
    verdicts.PASS: "every check passed", verdicts.FAIL: "a check failed",
    verdicts.UNKNOWN: "this run cannot tell, which is no pass",
}  # fmt: skip
STEP_PARTS = ("data", "forward", "backward", "wait", "comm", "optimizer")
MOST_ANSWERS = 4  # cases and scalings beside the large number


def label(analysis: Analysis) -> str:
    """Real only if every figure is."""
    labels = {trial.plan.get("label", "emulated") for trial in analysis.trials}
    return "real" if labels == {"real"} else "emulated"


def why(analysis: Analysis, overall: str) -> list[str]:
    """Why it is no pass; of a pass, the thresholds that were reached."""
    return [words.bars_passed(analysis)] if overall == verdicts.PASS else words.reasons(analysis, overall)


def hero(analysis: Analysis) -> dict[str, str] | None:
    """The one large number: efficiency at the largest size of the first case; else the fastest bus bandwidth."""
    best = words.largest(analysis)
    if best:
        cell, found = best[0]
        about = f"efficiency of {cell.case} on {words.nodes(cell.nodes)}, {cell.scaling} scaling"
        limit = judged(analysis, cell)
        asked = f"; threshold {limit['where']['bar']:g} % {looks.SIGN[limit['verdict']]}" if limit else ""
        return {"number": numbers.plain(found["median"], 1), "unit": "%", "ends": ends(found), "about": about + asked}
    fastest = words.fastest(analysis)
    if fastest is None:
        return None
    about = f"bus bandwidth of {fastest['where']['op']} on {words.nodes(fastest['where']['nodes'])}"
    return {"number": numbers.plain(fastest["median"], 0), "unit": "Mb/s", "ends": "", "about": about}


def ends(found: Figure) -> str:
    """`91.0–93.6 (95 % CI)`, or why there is no interval."""
    said = numbers.ends(found, 1).replace(numbers.CANNOT_TELL, "too uncertain") or "one repeat, no interval"
    return f"{said} (95 % CI)" if "–" in said else said


def answers(analysis: Analysis) -> list[dict[str, str]]:
    """What stands beside the large number: the other cases and scalings at their largest size."""
    made = []
    for cell, found in words.largest(analysis)[1 : 1 + MOST_ANSWERS]:
        limit = judged(analysis, cell)
        sign = looks.SIGN[limit["verdict"]] if limit else ""
        name = f"{cell.case}, {cell.scaling}, {words.nodes(cell.nodes)}"
        value, more = numbers.percent(found["median"]), numbers.ends(found, 1) or "one repeat"
        made.append({"name": name, "value": value, "sign": sign, "more": more})
    return made


def groups(analysis: Analysis) -> list[dict[str, Any]]:
    """The efficiency tables: one for each case and scaling, one row a size, the same decimals down a column."""
    made = []
    for key in dict.fromkeys(cell.group for cell in analysis.cells if not cell.program):
        about = {"case": key[0], "scaling": key[1]}
        rates, steps = (figures.pick_all(analysis.figures, name, **about) for name in ("throughput", "step_time"))
        made.append({
            "title": words.about_group([cell for cell in analysis.cells if cell.group == key]),
            "decimals": {"throughput": numbers.column_digits(rates), "step_time": numbers.column_digits(steps)},
            "rows": [size(analysis, cell) for cell in analysis.cells if cell.group == key],
        })  # fmt: skip
    return made


def size(analysis: Analysis, cell: Cell) -> dict[str, Any]:
    """One row of a table."""
    named = ("throughput", "efficiency", "speedup", "step_time")
    found = {name: figures.pick(analysis.figures, name, **cell.where) for name in named}
    rate, kept = found["throughput"], found["efficiency"]
    return {
        **found,
        "nodes": cell.nodes,
        "reference": bool(kept and kept["where"]["base_nodes"] == cell.nodes),
        "noisy": bool(rate and checks.noisy(rate)),
        "judged": judged(analysis, cell),
        "lost": words.lost_to(analysis, cell),
        "failed": next((trial.failed for trial in cell.discarded if trial.failed), ""),
    }


def judged(analysis: Analysis, cell: Cell) -> verdicts.Verdict | None:
    """The verdict on a cell's efficiency, where the suite has a bar for it."""
    every = (v for v in analysis.verdicts if v["check"] == "efficiency")
    return next((v for v in every if v["where"].items() >= cell.where.items()), None)


def verdict_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """The checks, the worst first; those that say the same of several sizes share a row."""
    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for found in sorted(analysis.verdicts, key=lambda v: verdicts.SEVERITY.index(v["verdict"])):
        rows.setdefault((found["check"], found["verdict"], found["why"]), []).append(found["where"])
    return [
        {"check": check, "verdict": verdict, "why": why, "about": about(where)}
        for (check, verdict, why), where in rows.items()
    ]


def about(where: Sequence[dict[str, Any]]) -> str:
    """`digits weak 1, 2, 4 nodes; digits strong 2 nodes`."""
    sizes: dict[str, list[str]] = {}
    for found in where:
        if "case" in found:
            name = " ".join(str(found[key]) for key in ("case", "scaling", "trial") if key in found)
            sizes.setdefault(name, []).append(str(found["nodes"]))
    return "; ".join(f"{name} at {', '.join(counts)} nodes" for name, counts in sizes.items()) or "the run"


def discarded(analysis: Analysis) -> list[dict[str, Any]]:
    """What is in no figure, and why; and what is in them although the machine, or one rank, disturbed it."""
    rows = []
    kept = {id(trial) for cell in analysis.cells for trial in cell.counted}
    for trial in analysis.trials:
        why = trial.failed or ("not run" if trial.not_run else "; ".join((*trial.flags, *trial.stalls)))
        if why:
            inside = "yes: too few others" if trial.flags else "yes"
            rows.append({"plan": trial.plan, "why": why, "kept": inside if id(trial) in kept else "no"})
    return rows


def _recorded(analysis: Analysis, part: str) -> bool:
    return any(found["median"] > 0 for found in figures.pick_all(analysis.figures, "time_share", part=part))


def repeat_command(analysis: Analysis) -> str:
    """What repeats the run, from the folder that its `runs` folder lies in; the same wherever the page is made."""
    return f"pg bench run --from runs/{analysis.run.suite}/{analysis.run.run_id}"


SECTIONS = {
    "groups": Section("the tables of efficiency", groups, []),
    "discarded": Section("what was left out", discarded, []),
    "quality": Section("what the models are worth", words.quality_lines, []),
    "efficiency_chart": Section("the chart of efficiency", charts.efficiency),
    "more_efficiency_chart": Section("the chart of the other cases", charts.more_efficiency),
    "shares_chart": Section("the chart of where time goes", shares.shares),
    "timeline_chart": Section("the chart of a step", timeline.timeline),
    "curves_chart": Section("the chart over time", curves.curves),
    "repeats_chart": Section("the chart of repeats", charts.repeats),
    "machine_chart": Section("the chart of the machine", machine.machine),
    "charged": Section("what the site counted", lambda it: allocation.table(it.history.allocation), {}),
    **sections.SECTIONS,
}
