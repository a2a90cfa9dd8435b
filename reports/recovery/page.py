"""The HTML page of a chaos run: one file, nothing loaded from outside, the same bytes every time.

Called by `reports.recovery.report`. What is computed is computed here and in the modules below; the template places it.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import jinja2

from bench import rundir
from reports import checks, numbers, results, terminal, values
from reports import page as scaling
from reports.attempts import Attempts, Section, unmade
from reports.figures import pick, pick_all
from reports.recovery import alerts, losses, outlook, shootout, throughput, waterfall, words
from reports.recovery.results import CHECKS, RECOVERED, Analysis
from reports.recovery.timeline import MOMENTS
from reports.recovery.words import Cell

TEMPLATES = Path(__file__).with_name("templates")
UNTIL = {"resume": "", "full_speed_s": "to full speed", "after_held_s": "to full speed once it was lifted"}
"""Figure → what it is the time of; nothing: until training goes on."""

OPEN_ROWS = 24  # a longer table is folded up
MOST_ROWS = 300  # of a table; of more faults than that, `A_FEW` of each combination and those that did not recover
A_FEW, SOME_ROWS = 5, 60
Key = tuple[str, str]  # trial and fault
PACK_BYTES = 200_000  # a larger document is packed


def write(analysis: Analysis, made: Mapping[str, Any] | None = None) -> None:
    """Write `report.html`, whole or not at all; `made`: its `SECTIONS`."""
    rundir.write_atomic(analysis.run.report, html(analysis, made))


def html(analysis: Analysis, made: Mapping[str, Any] | None = None) -> str:
    """The page as text."""
    made = Attempts().sections(analysis, SECTIONS) if made is None else made
    environment = jinja2.Environment(
        finalize=scaling.keep_together, loader=jinja2.FileSystemLoader([TEMPLATES, scaling.TEMPLATES]),
        undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"plain": numbers.plain, "ends": numbers.ends, "anchor": anchor}
    return environment.get_template("recovery.html.j2").render(**context(analysis), **made)


def context(analysis: Analysis) -> dict[str, Any]:
    """Everything that the template shows; it computes nothing itself."""
    found = words.cells(analysis)
    proofs, helds = proofs_of(analysis), {(one.job.id, one.fault): one.held_s for one in analysis.incidents}
    return {
        "run": analysis.run,
        "spec": analysis.spec,
        "overall": checks.overall(analysis.verdicts),
        "verdict_line": words.verdict_line(analysis),
        "headline": words.headline(analysis),
        "reasons": words.reasons(analysis),
        "warnings": [*words.warnings(analysis), *unmade(analysis.verdicts)],
        "label_line": label_line(analysis),
        "matrix": matrix(analysis, found),
        "phase_words": words.PHASES,
        "left_out": words.left_out(analysis),
        "signs": terminal.SIGN,
        "outcome_signs": words.SIGN,
        "outcome_values": words.VALUE,
        "trials": [trial_row(trial, proofs, helds) for trial in listed_trials(analysis, found)],
        "count": len(analysis.trials),
        "fold": len(analysis.trials) > OPEN_ROWS,
        "cells": [cell_row(analysis, cell) for cell in found],
        "priced": bool(pick_all(analysis.figures, "fault_cost")),
        "same": [v for v in analysis.verdicts if "trial" in v["where"] and "fault" not in v["where"]],
        "verdicts": verdict_rows(analysis),
        "check_words": {name: (check.__doc__ or "").splitlines()[0] for name, check in CHECKS.items()},
        "phases": waterfall.LEGEND,
        "facts": scaling.facts(analysis.run, analysis.plan, analysis.provenance, analysis.recorded.events),
        "command": words.again(analysis),
        "figures": analysis.figures,
        "links": links(analysis),
    }


def anchor(cell: Mapping[str, Any] | Cell) -> str:
    """Where the trials of a combination are on the page."""
    where = cell.where if isinstance(cell, Cell) else cell
    return "-".join(str(where[key]) for key in ("kind", "phase", "mechanism", "case"))


def label_line(analysis: Analysis) -> tuple[str, str]:
    """(label, what stands in for what)."""
    plans = [evidence.job.plan for evidence in analysis.jobs]
    labels = {str(plan.get("label", "emulated")) for plan in plans}
    told = [*analysis.plan["cluster"].get("imitated", ()), *(t for plan in plans for t in plan.get("imitated", ()))]
    said = "; ".join(dict.fromkeys(told)) or "nothing stands in for anything"
    return "real" if labels == {"real"} else "emulated", said


def tiles(analysis: Analysis) -> list[dict[str, str]]:
    """The large numbers: recovered, typical and longest resume, lost steps, effective training time."""
    trials = analysis.own_trials
    good = sum(trial["outcome"] == "recovered" for trial in trials)
    made = [{"about": "recovered", "number": f"{good}", "unit": f"of {len(trials)}", "more": "faults, with evidence"}]
    found = pick_all(analysis.own_figures, "resume")
    if found:
        worst = max(found, key=lambda figure: float(figure["median"]))
        more = f"{words.name_of(analysis, worst['where'])}, the slowest kind" + (
            f"; {words.largest(analysis, worst)}" if worst["n"] > 1 else ""
        )
        made.append({"about": "time to recovery", "number": f"{worst['median']:.2f}", "unit": "s", "more": more})
    if lost := [value for figure in pick_all(analysis.own_figures, "lost_steps") for value in figure["values"]]:
        made.append(
            {"about": "work lost, at most", "number": f"{max(lost):.0f}", "unit": "steps", "more": "made again since"}
        )
    if shares := [figure["median"] for figure in pick_all(analysis.own_figures, "ettr", by="measured")]:
        more = "of the wall time" + (f", median of {len(shares)} jobs" if len(shares) > 1 else ", faults and all")
        share = f"{median(shares):.1f}"
        made.append({"about": "effective training time", "number": share, "unit": "%", "more": more})
    return made


def matrix(analysis: Analysis, found: list[Cell]) -> dict[str, Any]:
    """Kinds of fault by phases; a row for each kind and mechanism."""
    tried = list(dict.fromkeys(cell.phase for cell in found))
    phases = sorted(tried, key=lambda phase: (*words.PHASES, phase).index(phase))
    ways = list(dict.fromkeys(cell.mechanism for cell in found))
    rows: dict[str, dict[str, Any]] = {}
    for cell in found:
        rows.setdefault(words.name_of(analysis, cell.where), {})[cell.phase] = cell_row(analysis, cell)
    return {"phases": phases, "rows": rows, "mechanisms": ways}


def cell_row(analysis: Analysis, cell: Cell) -> dict[str, Any]:
    """One cell of the matrix, one row of the table of times."""
    main, resume = words.main_time(analysis, cell), pick(analysis.figures, "resume", **cell.where)
    named = (
        "detect", "resume", "full_speed_s", "held_s", "after_held_s", "made_up_s", "lost_steps", "lost_work_s",
        "lost_node_s", "fault_cost",
    )  # fmt: skip
    return {
        "cell": cell,
        "name": words.name_of(analysis, cell.where),
        "anchor": anchor(cell),
        "outcome": cell.outcome,
        "value": words.VALUE[cell.outcome],
        "n": len(cell.trials),
        "main": main,
        "what": UNTIL[main["name"]] if main else "",
        "figures": {name: pick(analysis.figures, name, **cell.where) for name in named},
        "covers": words.covered(words.recovery_times(analysis, cell.where)) if resume else None,
    }


def listed_trials(analysis: Analysis, found: list[Cell]) -> list[dict[str, Any]]:
    """The faults that the page lists: all, or of very many those that did not recover and some of each combination."""
    if len(analysis.trials) <= MOST_ROWS:
        return analysis.trials
    shown = {id(trial) for cell in found for trial in cell.trials[:A_FEW]}
    bad = [trial for trial in analysis.trials if trial["outcome"] != RECOVERED]
    shown |= {id(trial) for trial in bad[:MOST_ROWS]}
    return [trial for trial in analysis.trials if id(trial) in shown]


def proofs_of(analysis: Analysis) -> dict[Key, str]:
    """(trial, fault) → what proves that the fault happened."""
    told = (v for v in analysis.verdicts if v["check"] == "happened")
    return {(v["where"]["trial"], v["where"]["fault"]): v["why"] for v in told}


def trial_row(trial: Mapping[str, Any], proofs: Mapping[Key, str], helds: Mapping[Key, float | None]) -> dict[str, Any]:
    """One fault: its moments since the injection, why it was judged so, and how to repeat it.

    Where it was at full speed only once the fault was lifted, how long it was held is shown apart (`shown`).
    """
    at = trial["timeline"]
    since = {
        name: None if at.get(name) is None or at["inject"] is None else at[name] - at["inject"] for name in MOMENTS
    }
    held, full = helds.get((trial["trial"], trial["fault"])), since["full_speed"]
    shown = {"held": held, "after_held": None if held is None or full is None else full - held,
             "full_speed": full if held is None else None}  # fmt: skip
    proof = proofs.get((trial["trial"], trial["fault"]), "")
    return {**trial, "since": since, "shown": shown, "proof": proof, "value": words.VALUE[trial["outcome"]]}


def verdict_rows(analysis: Analysis) -> dict[str, list[dict[str, Any]]]:
    """The checks, those that are no pass first; a pass of many faults is one row a check."""
    bad = [v for v in analysis.verdicts if v["verdict"] != checks.PASS]
    bad.sort(key=lambda v: (bool(v["where"].get("peer")), scaling.SEVERITY.index(v["verdict"])))
    passed: dict[str, list[checks.Verdict]] = {}
    for found in analysis.verdicts:
        if found["verdict"] == checks.PASS:
            passed.setdefault(found["check"], []).append(found)
    return {
        "bad": [{**found, "about": subject(found["where"])} for found in bad[:MOST_ROWS]],
        "passed": [{"check": name, "count": len(rows), "rows": rows[:SOME_ROWS]} for name, rows in passed.items()],
    }


def subject(where: Mapping[str, Any]) -> str:
    """`f02 node_kill`; of a peer's with its job, because the run is not judged by it."""
    return (words.about(where).rstrip(": ") or "the run") + (f" · peer, {where['trial']}" if where.get("peer") else "")


def links(analysis: Analysis) -> dict[str, str]:
    """File name → the document behind the page as a `data:` link; large ones are packed by gzip."""
    documents = {
        "results.json": ("application/json", results.text(analysis.results)),
        "figures.csv": ("text/csv", values.figures_csv(analysis.figures)),
        "trials.csv": ("text/csv", trials_csv(analysis)),
    }
    return dict(link(name, kind, text) for name, (kind, text) in documents.items())


def link(name: str, kind: str, text: str) -> tuple[str, str]:
    """(file name, link) of one document."""
    if len(text) <= PACK_BYTES:
        return name, values.data_link(kind, text)
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f"{name}.gz", f"data:application/gzip;base64,{packed}"


def trials_csv(analysis: Analysis) -> str:
    """All faults, one a row, with every moment in seconds since the injection; empty where there was none."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    keys = ("trial", "fault", "kind", "phase", "mechanism", "seed", "outcome", "why")
    rows.writerow([*keys, "target", "inject_t", *MOMENTS[1:], *CHECKS, "replay"])
    for trial in (trial_row(trial, {}, {}) for trial in analysis.trials):
        since = ["" if (s := trial["since"][name]) is None else round(s, 6) for name in MOMENTS[1:]]
        judged = [trial["verdicts"].get(check, "") for check in CHECKS]
        about_it = [trial[key] for key in keys]
        rows.writerow(
            [*about_it, "+".join(trial["target"]), trial["timeline"]["inject"], *since, *judged, trial["replay"]]
        )
    return out.getvalue()


SECTIONS = {
    "tiles": Section("the large numbers", tiles, []),
    "losses": Section("what was lost", losses.rows, []),
    "advice": Section("advice", losses.advice, []),
    "ettr": Section("effective training time", words.ettr, ""),
    "alerts": Section("alerts", lambda it: alerts.table(it.alerts), []),
    "alert_lines": Section("alerts in words", lambda it: alerts.lines(it.alerts), []),
    "outlook": Section("the forecast", outlook.page, {"head": (), "blocks": []}),
    "shootout": Section("mechanisms side by side", lambda it: shootout.table(it) if shootout.is_one(it) else None),
    "shootout_chart": Section(
        "the chart of mechanisms", lambda it: shootout.drawing(it) if shootout.is_one(it) else None
    ),
    "waterfall_chart": Section("the chart of recoveries", waterfall.waterfall),
    "throughput_charts": Section("the charts of throughput", throughput.throughput, []),
    "loss_charts": Section("the charts of the loss", throughput.losses, []),
}
