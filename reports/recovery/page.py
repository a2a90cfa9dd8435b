"""The HTML page of a chaos run: one file, nothing loaded from outside, the same bytes every time.

Called by `reports.recovery.report`. What is computed is computed here and in the modules below; the template places it.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from proving_ground.reports import allocation, document, layout, looks, numbers, values, verdicts
from proving_ground.reports.attempts import Attempts, Section, unmade
from proving_ground.reports.figures import pick, pick_all
from proving_ground.reports.recovery import alerts, engine, losses, outlook, shootout, throughput, waterfall, words
from proving_ground.reports.recovery.figures import RESUMED
from proving_ground.reports.recovery.results import CHECKS, RECOVERED, Analysis
from proving_ground.reports.recovery.timeline import MOMENTS
from proving_ground.reports.recovery.words import Combination

TEMPLATES = Path(__file__).with_name("templates")
OPEN_ROWS = 24  # a longer table is folded up
MOST_ROWS = 300  # of a table; of more faults than that, `A_FEW` of each combination and those that did not recover
A_FEW, SOME_ROWS = 5, 60
Key = tuple[str, str]  # trial and fault
PACK_BYTES = 200_000  # a larger document is packed


def write(analysis: Analysis, made: Mapping[str, Any] | None = None) -> None:
    """Write `report.html`, whole or not at all; `made`: its `SECTIONS`."""
    layout.write(analysis.run, html(analysis, made))


def html(analysis: Analysis, made: Mapping[str, Any] | None = None) -> str:
    """The page as text."""
    made = Attempts().sections(analysis, SECTIONS) if made is None else made
    return layout.render("recovery.html.j2", {**context(analysis), **made}, [TEMPLATES])


def context(analysis: Analysis) -> dict[str, Any]:
    """Everything that the template shows; it computes nothing itself."""
    found = words.cells(analysis)
    overall, label = verdicts.overall(analysis.verdicts), label_line(analysis)
    proofs, helds = proofs_of(analysis), {(one.job.id, one.fault): one.held_s for one in analysis.incidents}
    return {
        "run": analysis.run,
        "spec": analysis.spec,
        "page_title": f"{overall}: {analysis.run.suite} {analysis.run.run_id}",
        "overall": overall,
        "title": words.title(analysis),
        "verdict_words": words.counted(analysis.own_trials) or "no trials",
        "hero": hero(analysis, found),
        "headline": words.headline(analysis),
        "clock_bound": words.clock_bound(analysis),
        "reasons": words.reasons(analysis),
        "warnings": [*words.warnings(analysis), *unmade(analysis.verdicts)],
        "label": label[0],
        "label_words": label[1],
        "matrix": matrix(analysis, found),
        "ways": list(dict.fromkeys(cell.mechanism for cell in found)),
        "phase_words": words.PHASES,
        "left_out": words.left_out(analysis),
        "signs": looks.SIGN,
        "outcome_signs": words.SIGN,
        "outcome_values": words.VALUE,
        "trials": [trial_row(trial, proofs, helds) for trial in listed_trials(analysis, found)],
        "count": len(analysis.trials),
        "fold": len(analysis.trials) > OPEN_ROWS,
        "cells": [cell_row(analysis, cell) for cell in found],
        "bounds": [
            f"{words.name_of(analysis, it['where'])}{words.at_phase(it['where']['phase'])}: "
            f"{words.largest(analysis, it)}"
            for it in pick_all(analysis.figures, "resume")
            if it["n"] > 1
        ],
        "priced": bool(pick_all(analysis.figures, "fault_cost")),
        "same": [v for v in analysis.verdicts if "trial" in v["where"] and "fault" not in v["where"]],
        "verdicts": verdict_rows(analysis),
        "check_words": {name: (check.__doc__ or "").splitlines()[0] for name, check in CHECKS.items()},
        "phases": waterfall.LEGEND,
        "stages": waterfall.stage_legend(analysis),
        "facts": [
            *layout.facts(analysis.run, analysis.plan, analysis.provenance, analysis.recorded.events),
            *(("faults", said) for said in words.drawn(analysis)),
            *allocation.facts(analysis.recorded.allocation),
            *engine_facts(analysis),
        ],
        "command": words.again(analysis),
        "figures": analysis.figures,
        "links": links(analysis),
    }


def engine_facts(analysis: Analysis) -> list[tuple[str, str]]:
    """What the engine says by itself."""
    waits = engine.timeouts(analysis.recorded)
    told = [("engine noticed", it) for it in engine.noticed(analysis.recorded, analysis.incidents)]
    return [*([("engine's time-outs", waits)] if waits else []), *told]


def anchor(cell: Mapping[str, Any] | Combination) -> str:
    """Where the trials of a combination are on the page."""
    where = cell.where if isinstance(cell, Combination) else cell
    return "-".join(str(where[key]) for key in ("kind", "phase", "mechanism", "case"))


def label_line(analysis: Analysis) -> tuple[str, str]:
    """(label, what stands in for what)."""
    plans = [evidence.job.plan for evidence in analysis.jobs]
    labels = {str(plan.get("label", "emulated")) for plan in plans}
    told = [*analysis.plan["cluster"].get("imitated", ()), *(t for plan in plans for t in plan.get("imitated", ()))]
    said = "; ".join(dict.fromkeys(told)) or "nothing stands in for anything"
    return "real" if labels == {"real"} else "emulated", said


def hero(analysis: Analysis, found: list[Combination]) -> dict[str, str] | None:
    """The one large number: the time to recovery of the slowest kind; what faults were held for is not in it."""
    stopped = words.stopped_times(analysis)
    own = [cell for cell in found if not all(trial.get("peer") for trial in cell.trials)]
    times = stopped or [(cell, time) for cell in own if (time := words.counted_time(analysis, cell))]
    if not times:
        back = "that training went on after" if words.unproven(analysis) else "recovered"
        good, every = sum(it["outcome"] in RESUMED for it in analysis.own_trials), len(analysis.own_trials)
        return {"number": f"{good}", "unit": f"of {every}", "ends": "", "about": f"faults {back}"} if every else None
    cell, time = max(times, key=lambda it: float(it[1]["median"]))
    name = f"{words.name_of(analysis, cell.where)}{words.at_phase(cell.phase)}"
    what = "time to recovery" if stopped else "to full speed"
    ends = numbers.ends(time, 2)
    return {
        "number": f"{time['median']:.2f}", "unit": "s", "ends": f"{ends} (95 % CI)" if "–" in ends else ends,
        "about": f"{what}, slowest kind: {name}" + (f", n = {time['n']}" if time["n"] > 1 else ", one trial"),
    }  # fmt: skip


def answers(analysis: Analysis) -> list[dict[str, str]]:
    """The two answers side by side, then what was lost and what was kept."""
    trials = analysis.own_trials
    good = sum(trial["outcome"] in RESUMED for trial in trials)
    proven = sum(trial["verdicts"].get("same_training") == verdicts.PASS for trial in trials)
    same = words.sameness_of(analysis)
    recovered = verdicts.worst(
        [verdicts.PASS if it["outcome"] in RESUMED else words.VALUE[it["outcome"]] for it in trials]
    )
    back = "training went on" if words.unproven(analysis) else "recovered"
    made = [
        answer(back, f"{good} of {len(trials)}", f"faults{at_full_speed(trials)}", looks.SIGN[recovered]),
        answer("same training", words.SAME[same], f"proven after {proven} of {len(trials)}", looks.SIGN[same]),
    ]
    if lost := [value for figure in pick_all(analysis.own_figures, "lost_steps") for value in figure["values"]]:
        made.append(answer("work lost, at most", words.plural(round(max(lost)), "step"), "made again since"))
    if shares := [figure["median"] for figure in pick_all(analysis.own_figures, "ettr", by="measured")]:
        more = "of the wall time" + (f", median of {len(shares)} jobs" if len(shares) > 1 else ", faults and all")
        more += words.more_than_all(median(shares))
        made.append(answer("goodput (ETTR)", f"{median(shares):.1f} %", more))
    return made


def at_full_speed(trials: Sequence[Mapping[str, Any]]) -> str:
    """`, at full speed again`, or after how many of them; empty where nothing is known of any."""
    fast = sum(trial["verdicts"].get("full_speed") == verdicts.PASS for trial in trials)
    return ", at full speed again" if fast == len(trials) else f", {fast} of them at full speed again" if fast else ""


def answer(name: str, value: str, more: str, sign: str = "") -> dict[str, str]:
    """One of them."""
    return {"name": name, "value": value, "more": more, "sign": sign}


def matrix(analysis: Analysis, found: list[Combination]) -> dict[str, list[dict[str, Any]]]:
    """Kind of fault, with its strategy where there are several → what came of it at each phase that was tried."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for cell in found:
        rows.setdefault(words.name_of(analysis, cell.where), []).append(cell_row(analysis, cell))
    order = list(words.PHASES)
    for row in rows.values():
        row.sort(key=lambda it: order.index(it["cell"].phase) if it["cell"].phase in order else len(order))
    return rows


def cell_row(analysis: Analysis, cell: Combination) -> dict[str, Any]:
    """One cell of the matrix, one row of the table of times."""
    main, resume = words.counted_time(analysis, cell), pick(analysis.figures, "resume", **cell.where)
    held, same = pick(analysis.figures, "held_s", **cell.where), words.same(cell)
    named = (
        "time_to_detect", "resume", "full_speed_s", "held_s", "after_held_s", "made_up_s", "lost_steps",
        "lost_work_s", "lost_node_s", "fault_cost",
    )  # fmt: skip
    return {
        "cell": cell,
        "name": words.name_of(analysis, cell.where),
        "anchor": anchor(cell),
        "outcome": cell.outcome,
        "value": words.VALUE[cell.outcome],
        "n": len(cell.trials),
        "main": main,
        "what": "to full speed" if main and not resume and cell.outcome in RESUMED else "",
        "held": held["median"] if held else None,
        "same": same,
        "same_words": words.SAME[same],
        "figures": {name: pick(analysis.figures, name, **cell.where) for name in named},
        "covers": words.covered(words.recovery_times(analysis, cell.where)) if resume else None,
    }


def listed_trials(analysis: Analysis, found: list[Combination]) -> list[dict[str, Any]]:
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
    return {
        **trial,
        "anchor": anchor(trial),
        "since": since,
        "shown": shown,
        "proof": proof,
        "value": words.VALUE[trial["outcome"]],
    }


def verdict_rows(analysis: Analysis) -> dict[str, list[dict[str, Any]]]:
    """The checks, those that are no pass first; a pass of many faults is one row a check."""
    bad = [v for v in analysis.verdicts if v["verdict"] != verdicts.PASS]
    bad.sort(key=lambda v: (bool(v["where"].get("peer")), verdicts.SEVERITY.index(v["verdict"])))
    passed: dict[str, list[verdicts.Verdict]] = {}
    for found in analysis.verdicts:
        if found["verdict"] == verdicts.PASS:
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
        "results.json": ("application/json", document.text(analysis.results)),
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
    rows.writerow([*keys, "target", "inject_t", *MOMENTS[1:], *CHECKS, "command"])
    for trial in (trial_row(trial, {}, {}) for trial in analysis.trials):
        since = ["" if (s := trial["since"][name]) is None else round(s, 6) for name in MOMENTS[1:]]
        judged = [trial["verdicts"].get(check, "") for check in CHECKS]
        about_it = [trial[key] for key in keys]
        rows.writerow(
            [*about_it, "+".join(trial["target"]), trial["timeline"]["inject"], *since, *judged, trial["command"]]
        )
    return out.getvalue()


SECTIONS = {
    "answers": Section("the answers", answers, []),
    "overview_chart": Section("the chart beside the answer", waterfall.overview),
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
    "charged": Section("what the site counted", lambda it: allocation.table(it.recorded.allocation), {}),
    "waterfall_chart": Section("the chart of recoveries", waterfall.waterfall),
    "replacements_chart": Section("the chart of nodes that the engine gave again", waterfall.replacements),
    "throughput_charts": Section("the charts of throughput", throughput.throughput, []),
    "loss_charts": Section("the charts of the loss", throughput.losses, []),
}
