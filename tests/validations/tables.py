"""The tables of the documents, made from `reports/measured/*.json`: `python -m tests.validations tables`.

They stand between `<!-- measured: NAME -->` and `<!-- end -->`; a test keeps them up to date. The line below each says
whether its code is still the same (`depends`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from scipy import special

from tests.benchmarks import step_cost as cost
from tests.validations import (
    clones,
    connections,
    depends,
    gpu,
    headline,
    inputs,
    pulumi,
    restart,
    scaling,
    searches,
    suites,
    tampering,
    trainers,
)
from tests.validations.alerts import table as alerts
from tests.validations.effective import JOBS, MECHANISMS, error, per_minute
from tests.validations.headline import number
from tests.validations.healthy import told as told_healthy
from tests.validations.recovery import LIVE
from tests.validations.restart import RESTART
from tests.validations.schedules import PHASES
from tests.validations.shootout import table as shootout
from tests.validations.sitting import MEASURED, ROOT, has_values, runs_of

FOLDERS = (ROOT, MEASURED, ROOT / "training", ROOT / "reports", ROOT / "monitoring")
DOCUMENTS = (*(folder / "README.md" for folder in FOLDERS), ROOT / "docs" / "gpu.md")
MARKED = re.compile(r"(<!-- measured: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
OUTCOMES = ("recovered", "wrong", "stuck", "slow")


AA = {"alike": ("the same", "≤5 %"), "slower": ("5 % slower", "≥90 %")}
"""Comparison → what its second run is, and how many are asked to be called."""


def aa(document: Mapping[str, Any]) -> str:
    """Pairs of separate runs: how many were called, and what could have been seen."""
    rows = ["| second run | called | of | 95 % | target | cannot tell | seen from, median | worst |",
            "|---|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    for kind, (what, asked) in AA.items():
        found = document["cells"][kind]["comparisons"]
        called, unknown = sum(it["called"] for it in found), sum(it["answer"] == "cannot tell" for it in found)
        seen = [abs(it["smallest"]) for it in found]
        said = [f"{pick(seen):.1f} %" if seen else "–" for pick in (median, max)]
        ends = proportion(called, len(found)) if found else "–"
        rows.append(f"| {what} | {called} | {len(found)} | {ends} | {asked} | {unknown} | {' | '.join(said)} |")
    told = f"{document['rounds']} rounds were decided with the first; {document['failed']} failed and were made again."
    return "\n".join([*rows, "", told]) + "\n"


def proportion(count: int, of: int, decimals: int = 1) -> str:
    """The 95 % interval of a share, in %."""
    low, high = limits(count, of)
    return f"{100 * low:.{decimals}f}–{100 * high:.{decimals}f} %"


def limits(count: int, of: int) -> tuple[float, float]:
    """The same, from 0 to 1 (Clopper and Pearson)."""
    low = special.betaincinv(count, of - count + 1, 0.025) if count else 0.0
    high = special.betaincinv(count + 1, of - count, 0.975) if count < of else 1.0
    return float(low), float(high)


def aa_in_turn(document: Mapping[str, Any]) -> str:
    """Pairs of two cases within one run."""
    rows = ["| comparison | cases | called | of | |", "|---|---|--:|--:|---|"]
    for name, cell in sorted(document["cells"].items()):
        called = sum(it["called"] for it in cell["comparisons"])
        asked = "false alarms, target ≤5 %" if cell["slowdown"] == 1 else "found, target ≥90 %"
        rows.append(f"| {name} | {cell['what']} | {called} | {len(cell['comparisons'])} | {asked} |")
    return "\n".join(rows) + "\n"


def checkpoints(document: Mapping[str, Any]) -> str:
    """The crash points' table: a row a way of saving, a column a kind of crash."""
    everyone = {**document["writers"], **{f"ours, {name}": it for name, it in document["mutants"].items()}}
    kinds = list(dict.fromkeys(kind for it in everyone.values() for kind in it["kinds"]))
    rows = [f"| | points | bad | rate, 95 % | {' | '.join(kinds)} |", f"|---|--:|--:|--:|{'--:|' * len(kinds)}"]
    for name, it in everyone.items():
        low, high = (100 * limit for limit in it["bad_rate_ci95"])
        bad = [sum(count for came, count in it["kinds"].get(kind, {}).items() if came != "ok") for kind in kinds]
        rows.append(f"| {name} | {it['points']} | {it['bad']} | {low:.1f}–{high:.2f} % | {' | '.join(map(str, bad))} |")
    return "\n".join(rows) + "\n"


def checkpoint_speed(document: Mapping[str, Any]) -> str:
    """What a checkpoint costs."""
    asked = {"block_s": "60 ms", "durable_s": "1 s", "load_s": "1 s", "first_block_s": "–"}
    rows = ["| | median | 95 % | target, 95 % |", "|---|--:|--:|--:|"]
    for name, most in asked.items():
        values = [it[name] * 1e3 for it in document["rounds"]]
        p95 = quantiles(values, n=20, method="inclusive")[-1]
        rows.append(f"| `{name}` | {median(values):.0f} ms | {p95:.0f} ms | {most} |")
    return "\n".join([*rows, "", f"{len(document['rounds'])} rounds, {document['label']}."]) + "\n"


def attribution(document: Mapping[str, Any]) -> str:
    """Each cause that was planted, and what the report booked on it."""
    rows = ["| planted | repeats | step | true size | booked on | booked | most elsewhere |",
            "|---|--:|--:|--:|---|--:|---|"]  # fmt: skip
    for it in document["plants"].values():
        others = {part: points for part, points in it["booked_points"].items() if part != it["cause"]}
        worst = max(others, key=lambda part: abs(others[part]))
        rows.append(
            f"| {it['planted']} | {it['repeats']} | {it['step_ms']:,.0f} ms instead of {it['healthy_step_ms']:,.0f} | "
            f"{it['true_points']:.1f} points | `{it['cause']}` | {it['booked_points'][it['cause']]:.1f} | "
            f"`{worst}` {others[worst]:+.1f} |"
        )
    return "\n".join(rows) + f"\n\n{document['nodes']} nodes; found means within 2 points.\n"


def healthy(document: Mapping[str, Any]) -> str:
    """Alarms and evictions while nothing was wrong."""
    said = told_healthy(document)
    return f"{said[0].upper()}{said[1:]}.\n"


def restart_table(document: Mapping[str, Any]) -> str:
    """How long training takes to recover from a kill, by a restart."""
    return restart.table(document, RESTART, measured("shootout"))


def recovery_table(document: Mapping[str, Any]) -> str:
    """How long live recovery takes."""
    return restart.table(document, LIVE, measured("shootout"))


def measured(name: str) -> dict[str, Any]:
    """A measured file; without anything in it where it is missing, or was begun and has no value yet."""
    file = MEASURED / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found if has_values(found) else {}


def effective(document: Mapping[str, Any]) -> str:
    """Effective training time of each job, beside what the closed form says of it, or said before."""
    rows = ["| mechanism | faults | recovered | faults a minute | effective | the formula said | off |",
            "|---|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    jobs = [
        (mechanism, one[name], said)
        for mechanism, cell in document["cells"].items()
        for one in cell["rounds"]
        for name, said in JOBS.items()
    ]
    for mechanism, job, said in jobs:
        good, formula, off = sum(it == "recovered" for it in job["outcomes"]), job.get(said), error(job, said)
        about = f"{len(job['outcomes'])} | {good} | {per_minute(job):.2f} | {100 * job['share']:.1f} %"
        told = number(formula and 100 * formula, "{:.1f} %" + (" before" if said == "forecast" else ""))
        rows.append(f"| {mechanism} | {about} | {told} | {number(off, '{:+.1f} points')} |")
    rows += [f"| {it} | 0 | – | – | not measured | – | – |" for it in MECHANISMS if it not in document["cells"]]
    return "\n".join(rows) + "\n"


def step_cost(document: Mapping[str, Any]) -> str:
    """Step times of live recovery and exact sums where nothing fails, against the same without and plain float."""
    cells = document["cells"]
    rows = ["| training | step | against | longer by, 95 % CI | rounds |", "|---|--:|---|--:|--:|"]
    for way in (it for it in cost.ORDER if it in cells):
        told = "– | –" if cost.is_base(way) else f"{cost.base_of(cells, way)} | {cost.against(cells, way).words}"
        rows.append(f"| {way} | {cost.step_ms(cells[way]):.1f} ms | {told} | {len(cells[way])} |")
    background = (f"{way} {100 * median(cores):.1f} %" for way, cores in document["background_cores"].items())
    told = (
        f"{document['ranks']} ranks, digits, {document['batch']} samples a step, {document['label']}; jobs take turns. "
        f"In the background, of one core, coordinator and {document['ranks']} ranks: {', '.join(background)}; "
        f"{document['gradients'] / 1e6:g} million gradients to integers and back: {document['conversion_ms']:.0f} ms. "
        f"Relative error of a summed gradient: {errors(document['errors'])}."
    )
    return "\n".join([*rows, "", told]) + "\n"


def errors(off: Mapping[str, float]) -> str:
    """How far sums are off the one in double precision."""
    return ", ".join(f"{way} {it:.1e}" for way, it in sorted(off.items()))


def same_training(document: Mapping[str, Any]) -> str:
    """What the random schedules came to, and which changes of membership they were made of."""
    rows = document["cells"].get("schedules", [])
    ends = Counter(row["outcome"] for row in rows)
    changes = [change.partition(" ") for row in rows for change in row.get("changes", ())]
    sizes = sorted({size for row in rows for size in row.get("sizes", ())})
    counts = [len(rows), len(changes), sum(row.get("killed", 0) for row in rows), f"{sizes[0]} to {sizes[-1]}"]
    counts += [ends["same"], ends["different"], ends["samples"], ends["stuck"] + ends["unknown"]]
    heads = ["schedules", "changes of membership", "SIGKILLs", "ranks", "bitwise the same", "different"]
    lines = [
        f"| {' | '.join([*heads, 'samples lost or repeated', 'stuck or unknown'])} |",
        f"|{'--:|' * len(counts)}",
        f"| {' | '.join(map(str, counts))} |\n",
        f"| where | {' | '.join(CHANGES.values())} |",
        f"|---|{'--:|' * len(CHANGES)}",
    ]
    for phase in ("", *PHASES):
        made = Counter(how for how, _, where in changes if where == phase)
        lines.append(f"| {phase or 'anywhere'} | {' | '.join(str(made[how]) for how in CHANGES)} |")
    return "\n".join(lines) + "\n"


CHANGES = {
    "kill": "some ranks are killed",
    "crash": "all are killed",
    "join": "newcomers: all are ended and start again",
    "leave": "one is asked to leave",
}
"""How membership changes in a schedule → in words."""


def soak(document: Mapping[str, Any]) -> str:
    """Faults that jobs were put through, unattended, and what came of those that left evidence."""
    heads = "rounds | faults | invalid | judged | during a recovery | recovered | wrong | stuck | slow"
    rows = [f"| mechanism | measured at | {heads} |", f"|---|---|{'--:|' * 9}"]
    for name, cell in sorted(document["cells"].items()):
        ends = Counter[str]()
        for kind in cell["kinds"].values():
            ends.update(kind)
        counts = [len(cell["rounds"]), ends.total(), ends["invalid"], ends.total() - ends["invalid"], cell["double"]]
        counts += [ends[it] for it in OUTCOMES]
        rows.append(f"| {mechanism(name)} | {between(cell['rounds'])} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows) + "\n"


def mechanism(cell: str) -> str:
    """A cell's mechanism, without what was changed between it and the next."""
    return cell.partition(",")[0]


def between(measurements: Sequence[Mapping[str, Any]]) -> str:
    """The first and the last commit of a row."""
    commits = [it["commit"] or "no commit" for it in measurements]
    return " to ".join(dict.fromkeys([*commits[:1], *commits[-1:]])) or "–"


def simulation(document: Mapping[str, Any]) -> str:
    """Runs of the membership logic, and the mutants that were found."""
    rows = [
        "| jobs | measured at | runs | of which | hours of virtual time | violations |",
        "|---|---|--:|---|--:|--:|",
    ]
    for name, cell in sorted(document["cells"].items(), reverse=True):
        sorts = ", ".join(f"{count:,} {sort}" for sort, count in sorted(cell["sorts"].items(), key=lambda it: -it[1]))
        hours, wrong = cell["virtual_s"] / 3600, len(cell.get("wrong", []))
        about = f"{mechanism(name)} | {between(cell['sittings'])}"
        rows.append(f"| {about} | {cell['count']:,} | {sorts} | {hours:,.0f} | {wrong} |")
    rows += ["", "| jobs | switched off | is seen by | first in run |", "|---|---|---|--:|"]
    for jobs, mutants in sorted(document["mutants"].items(), reverse=True):
        rows += [f"| {jobs} | {name} | {it['breaks']} | {it['seed']} |" for name, it in mutants.items()]
    return "\n".join(rows) + "\n"


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "trainers": trainers.table, "tampering": tampering.table, "suites": suites.table, "inputs": inputs.table,
    "inputs-first": inputs.table,
    "gpu": gpu.table, "pulumi": pulumi.table, "clones": clones.table, "connections": connections.table,
    "searches": searches.table,
    "matrix": headline.table, "matrix-targets": headline.targets, "aa": aa, "aa-in-turn": aa_in_turn,
    "attribution": attribution,
    "scaling": scaling.table, "restart": restart_table, "recovery": recovery_table, "checkpoints": checkpoints,
    "checkpoint-speed": checkpoint_speed, "simulation": simulation, "soak": soak, "effective": effective,
    "shootout": shootout, "same-training": same_training, "step-cost": step_cost, "alerts": alerts, "healthy": healthy,
}  # fmt: skip


EARLIER = "; its code has changed since"
HEADLINES = ("trainers", "same-training", "recovery")


def headlines(trainers_: Mapping[str, Any], schedules: Mapping[str, Any], recovery_: Mapping[str, Any]) -> str:
    """What the README says first, a line for each that has values yet, with the way to their tables."""
    cells = trainers_.get("cells", {}).values()
    effective_ = [it for it in cells if it["defect"] != trainers.SOUND and it["effective"]]
    sound = [it for it in cells if it["defect"] == trainers.SOUND]
    wrong = sum(it["outcome"] == "wrong" for it in effective_)
    good = sum(it["outcome"] == "recovered" for it in sound)
    rows = schedules.get("cells", {}).get("schedules", [])
    same, kills = sum(it["outcome"] == "same" for it in rows), sum(it.get("killed", 0) for it in rows)
    runs = runs_of({"cells": {}} | dict(recovery_), "worker")
    times = [it["resume_s"] for run in runs for it in run["trials"] if it["outcome"] == "recovered"]
    page = "reports/measured/README.md"
    since = [EARLIER if depends.has_changed(it) else "" for it in (trainers_, schedules, recovery_)]
    judged = f"([how]({page}#the-judgement-judged){since[0]})"
    ended = f"([how]({page}#scaling-recovery-sameness){since[1]})"
    timed = f"([all]({page}#scaling-recovery-sameness){since[2]})"
    planted = f"**{wrong} of {len(effective_)}** defects planted in trainers are called wrong"
    ends = f"**{same} of {len(rows)}** random schedules with {kills:,} kills end bitwise like an undisturbed training"
    said = []
    if effective_:
        said.append(f"- {planted}, and {good} of {len(sound)} sound trainers recovered\n  {judged}.\n")
    if rows:
        said.append(f"- {ends}, at every size\n  {ended}.\n")
    if times:
        cost_ = f"**{median(times):.2f} s** is what a killed worker costs a live job: median of {len(times)} kills"
        said.append(f"- {cost_} in {len(runs)} jobs, {max(times):.2f} s at most\n  {timed}.\n")
    return "".join(said)


def rendered(text: str) -> str:
    """A document's text with every marked table made again, and below it whether its code is still the same."""

    def made(match: re.Match[str]) -> str:
        if match[2] == "headlines":
            return match[1] + headlines(*map(measured, HEADLINES)) + match[4]
        document = measured(match[2].removesuffix("-targets"))
        body = f"{TABLES[match[2]](document)}\n{depends.words(document)}\n" if document else "Not measured yet.\n"
        return match[1] + body + match[4]

    return MARKED.sub(made, text)


def main(argv: Sequence[str]) -> int:
    """Write the tables into the documents; for the terminal, how many commits have changed the code behind each."""
    del argv
    for path in DOCUMENTS:
        path.write_text(rendered(path.read_text()))
    for name in depends.CODE:
        print(f"{name}: {depends.commits_since(found) if (found := measured(name)) else 'not measured yet'}")
    return 0
