"""The tables of the documents, made from `reports/measured/*.json`: `python -m tests.validations tables`.

They stand between `<!-- measured: NAME -->` and `<!-- end -->`; a test keeps them up to date.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median, quantiles
from typing import Any

from scipy import special

from reports.intervals import plain_interval
from tests.benchmarks import step_cost as cost
from tests.validations.alerts import table as alerts
from tests.validations.effective import JOBS, error, per_minute
from tests.validations.healthy import told as told_healthy
from tests.validations.recovery import LIVE
from tests.validations.restart import RESTART, Kind
from tests.validations.schedules import PHASES
from tests.validations.shootout import table as shootout
from tests.validations.sitting import MEASURED, ROOT

FOLDERS = (ROOT, MEASURED, ROOT / "training", ROOT / "reports", ROOT / "monitoring")
DOCUMENTS = tuple(folder / "README.md" for folder in FOLDERS)
MARKED = re.compile(r"(<!-- measured: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
BARS = {"2": (98.0, 97.0), "4": (96.0, 95.0), "8": (93.0, 92.0)}
"""Nodes → (the efficiency that the bound must allow, the efficiency asked for), in %."""

CLOSE_PERCENT = 5.0
OUTCOMES = ("recovered", "wrong", "stuck", "invalid")
ERROR_MEAN_PERCENT, ERROR_WORST_PERCENT = 3.0, 8.0


def matrix_targets(document: Mapping[str, Any]) -> list[str]:
    """What the matrix says about its targets, a line each."""
    return [closeness(document), predictions(document), *efficiencies(document)]


def sizes(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], str, Mapping[str, Any]]]:
    """(cell's name, cell, node count, figures) of everything that was measured."""
    return [
        (name, cell, count, figures)
        for name, cell in sorted(document["cells"].items())
        for count, figures in sorted(cell.get("sizes", {}).items(), key=lambda it: int(it[0]))
    ]


def closeness(document: Mapping[str, Any]) -> str:
    """How far the steps are from their bounds."""
    off = [
        (it["above_bound_percent"], name, count)
        for name, _, count, it in sizes(document)
        if "above_bound_percent" in it
    ]
    if not off:
        return "distance from the bound: nothing measured"
    within = sum(abs(value) <= CLOSE_PERCENT for value, _, _ in off)
    worst, name, count = max(off, key=lambda it: abs(it[0]))
    return (
        f"distance from the bound: {within} of {len(off)} sizes within {CLOSE_PERCENT:g} %, worst {worst:+.1f} % "
        f"({name}, {count} nodes), {len(document['cells'])} cells"
    )


def predictions(document: Mapping[str, Any]) -> str:
    """Errors of the predictions from the smallest sizes."""
    errors = [
        (abs(it["prediction_error_percent"]), name, count)
        for name, _, count, it in sizes(document)
        if "prediction_error_percent" in it
    ]
    if not errors:
        return "prediction: nothing scored"
    worst, name, count = max(errors)
    cells = len({name for _, name, _ in errors})
    return (
        f"prediction: mean error {mean(it[0] for it in errors):.2f} % (asked ≤{ERROR_MEAN_PERCENT:g}), "
        f"worst {worst:.1f} % (asked ≤{ERROR_WORST_PERCENT:g}; {name}, {count} nodes), "
        f"{len(errors)} predictions in {cells} cells"
    )


def efficiencies(document: Mapping[str, Any]) -> list[str]:
    """For each model and hook the efficiency at the lowest link rate whose bound allows what is asked."""
    lines = []
    for count, (allowed, asked) in BARS.items():
        lowest: dict[tuple[str, float, str], tuple[float, float, float]] = {}
        for _, cell, nodes, it in sizes(document):
            if nodes == count and it.get("efficiency_bound_percent", 0) >= allowed and "efficiency_percent" in it:
                key = (cell["workload"], cell["bucket_mb"], cell["compression"])
                found = (cell["link_mbps"], it["efficiency_percent"], it["efficiency_bound_percent"])
                lowest[key] = min(lowest.get(key, found), found)
        passed = sum(efficiency >= asked for _, efficiency, _ in lowest.values())
        said = f"efficiency at {count} nodes, lowest link whose bound is ≥{allowed:g} %: "
        if lowest:
            (model, bucket, hook), (link, efficiency, bound) = min(lowest.items(), key=lambda it: it[1][1])
            said += (
                f"{passed} of {len(lowest)} combinations ≥{asked:g} %; lowest {efficiency:.1f} % of {bound:.1f} % "
                f"({model}, {link:g} Mb/s, {bucket:g} MB, {hook})"
            )
        lines.append(said if lowest else said + "no cell allows it")
    return lines


def matrix_table(document: Mapping[str, Any]) -> list[str]:
    """One row a cell: steps at the largest size against their bound, efficiencies, prediction errors."""
    rows = ["| cell | nodes | n | step ms | bound ms | above | efficiency | bound | prediction error |",
            "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    for name, _, count, it in sizes(document):
        if count == "1":
            continue
        shown = [number(it.get(key), form) for key, form in (
            ("step_ms", "{:,.0f}"), ("bound_ms", "{:,.0f}"), ("above_bound_percent", "{:+.1f} %"),
            ("efficiency_percent", "{:.1f} %"), ("efficiency_bound_percent", "{:.1f} %"),
            ("prediction_error_percent", "{:+.1f} %"),
        )]  # fmt: skip
        n = f"{it['n']}*" if it.get("disturbed") else it["n"]
        rows.append(f"| {name} | {count} | {n} | {' | '.join(shown)} |")
    return rows


def number(value: float | None, form: str) -> str:
    """A value for a table; a dash where there is none."""
    return "–" if value is None else form.format(value)


def targets(document: Mapping[str, Any]) -> str:
    """What the matrix says about its targets, as a list."""
    return "".join(f"- {line}\n" for line in matrix_targets(document))


def matrix(document: Mapping[str, Any]) -> str:
    """Every cell."""
    return "\n".join(matrix_table(document)) + "\n"


def scaling(document: Mapping[str, Any]) -> str:
    """Efficiencies of the default suite against its bars."""
    rows = ["| case | nodes | n | efficiency | 95 % CI | bar | |", "|---|--:|--:|--:|--:|--:|---|"]
    for name, cell in sorted(document["cells"].items()):
        for count, bar in sorted(cell["bars"].items(), key=lambda it: int(it[0])):
            values = [
                value
                for run in cell["runs"]
                if not run["sizes"].get(count, {}).get("disturbed")
                for value in run["sizes"].get(count, {}).get("efficiency_percent", [])
            ]
            rows.append(f"| {name} | {count} | {len(values)} | {against(values, 100 * bar)} |")
    return "\n".join(rows) + "\n"


def against(values: Sequence[float], bar: float) -> str:
    """Cells of a table: median, interval, bar, and what can be said: below a bar only if the whole interval is."""
    ends = plain_interval(median(values), values) if values else None
    if ends is None:
        return f"{number(median(values) if values else None, '{:.1f} %')} | – | {bar:g} % | cannot tell"
    said = "pass" if ends[0] >= bar else "fail" if ends[1] < bar else "cannot tell"
    return f"{median(values):.1f} % | {ends[0]:.1f}–{ends[1]:.1f} % | {bar:g} % | {said}"


AA = {"alike": ("the same", "≤5 %"), "slower": ("5 % slower", "≥90 %")}
"""Comparison → what its second run is, and how many are asked to be called."""


def aa(document: Mapping[str, Any]) -> str:
    """Pairs of separate runs: how many were called, and what could have been seen."""
    rows = ["| second run | called | of | 95 % | asked | cannot tell | seen from, median | worst |",
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


def proportion(count: int, of: int) -> str:
    """The 95 % interval of a share (Clopper and Pearson), in %."""
    low = special.betaincinv(count, of - count + 1, 0.025) if count else 0.0
    high = special.betaincinv(count + 1, of - count, 0.975) if count < of else 1.0
    return f"{100 * low:.1f}–{100 * high:.1f} %"


def aa_in_turn(document: Mapping[str, Any]) -> str:
    """Pairs of two cases within one run."""
    rows = ["| comparison | cases | called | of | |", "|---|---|--:|--:|---|"]
    for name, cell in sorted(document["cells"].items()):
        called = sum(it["called"] for it in cell["comparisons"])
        asked = "false alarms, asked ≤5 %" if cell["slowdown"] == 1 else "found, asked ≥90 %"
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
    rows = ["| | median | 95 % | asked, 95 % |", "|---|--:|--:|--:|"]
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


KILLS = {
    "worker": ("a worker, SIGKILL", "torchrun defaults: 5.7 s, 10.8 s, once never"),
    "node": ("a whole node, which boots again after 1 s", "torchrun tuned: 7.4–8.0 s"),
    "node-lost": ("a whole node, which stays away: the others go on", "torchrun tuned: 7.4–8.0 s"),
}
"""Case of the suite `kill` → what is killed, and what people live with (measured on 2 cores, small steps)."""
LIVE_FAULTS = {
    "worker": ("a worker, SIGKILL", "torchrun defaults: 5.7 s, 10.8 s, once never"),
    "worker-allreduce": ("a worker inside the all-reduce", "torchft: 4 of 24 took a whole time-out, 5.0 s"),
    "node-rank0": ("the node of rank 0", "torchrun: never"),
    "coordinator": ("the coordinator, started again after 0.5 s", "torchrun: ends the job"),
    "isolated": ("a node's packets are dropped, all of them", "time-outs of 600 to 1,800 s; tuned 11.7 s"),
    "pair": ("packets between two workers are dropped", "torchft: no progress while it lasts"),
    "hang": ("a worker hangs, SIGSTOP", "torchrun tuned: 43 s"),
}
"""Case of the suite `live-kill` → the same."""


def restart(document: Mapping[str, Any]) -> str:
    """How long training takes to go on after a kill, by a restart."""
    return recoveries(document, RESTART, KILLS)


def recovery(document: Mapping[str, Any]) -> str:
    """How long live recovery takes."""
    return recoveries(document, LIVE, LIVE_FAULTS)


def recoveries(document: Mapping[str, Any], kind: Kind, cases: Mapping[str, tuple[str, str]]) -> str:
    """Fault by fault: trials, the time until training goes on against what is asked and known, until all is as before.

    A job on a noisy machine may not tell when its steps are as fast as before: of how many trials it could, is said.
    """
    rows = ["| fault | trials | recovered | goes on after, median | largest | asked | full speed, largest | others |",
            "|---|--:|--:|--:|--:|--:|--:|---|"]  # fmt: skip
    for case, (words, others) in cases.items():
        trials = document["cells"].get(case, {}).get("trials", [])
        times = [it["resume_s"] for it in trials if it["resume_s"] is not None]
        good = sum(it["outcome"] == "recovered" for it in trials)
        if times:
            found = f"{len(trials)} | {good} | {median(times):.2f} s | {max(times):.2f} s"
            whole = [it["full_speed_s"] for it in trials if it["full_speed_s"] is not None]
            full = f"{max(whole):.2f} s (of {len(whole)})" if whole else "unknown"
            rows.append(f"| {words} | {found} | ≤{kind.goals[case].asked_s:g} s | {full} | {others} |")
    return "\n".join(rows) + "\n"


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
    """Faults that jobs were put through, unattended, and what came of them."""
    rows = ["| mechanism | faults | of them during a recovery | rounds | recovered | wrong | stuck | invalid |",
            "|---|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    for name, cell in sorted(document["cells"].items()):
        counts = [sum(kind.get(it, 0) for kind in cell["kinds"].values()) for it in OUTCOMES]
        about = f"{cell['faults']} | {cell['double']} | {len(cell['rounds'])}"
        rows.append(f"| {name} | {about} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows) + "\n"


def simulation(document: Mapping[str, Any]) -> str:
    """Runs of the membership logic, and the mutants that were found."""
    rows = ["| jobs | runs | of which | hours of virtual time | not as it must be |", "|---|--:|---|--:|--:|"]
    for mechanism, cell in sorted(document["cells"].items(), reverse=True):
        sorts = ", ".join(f"{count:,} {name}" for name, count in sorted(cell["sorts"].items(), key=lambda it: -it[1]))
        hours, wrong = cell["virtual_s"] / 3600, len(cell.get("wrong", []))
        rows.append(f"| {mechanism} | {cell['count']:,} | {sorts} | {hours:,.0f} | {wrong} |")
    rows += ["", "| jobs | switched off | is seen by | first in run |", "|---|---|---|--:|"]
    for mechanism, mutants in sorted(document["mutants"].items(), reverse=True):
        rows += [f"| {mechanism} | {name} | {it['breaks']} | {it['seed']} |" for name, it in mutants.items()]
    return "\n".join(rows) + "\n"


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "matrix": matrix, "matrix-targets": targets, "aa": aa, "aa-in-turn": aa_in_turn, "attribution": attribution,
    "scaling": scaling, "restart": restart, "recovery": recovery, "checkpoints": checkpoints,
    "checkpoint-speed": checkpoint_speed, "simulation": simulation, "soak": soak, "effective": effective,
    "shootout": shootout, "same-training": same_training, "step-cost": step_cost, "alerts": alerts, "healthy": healthy,
}  # fmt: skip


def rendered(text: str) -> str:
    """A document's text with every marked table made again; a table whose file is missing says so."""

    def made(match: re.Match[str]) -> str:
        file = MEASURED / f"{match[2].removesuffix('-targets')}.json"
        body = TABLES[match[2]](json.loads(file.read_text())) if file.exists() else "Not measured yet.\n"
        return match[1] + body + match[4]

    return MARKED.sub(made, text)


def main(argv: Sequence[str]) -> int:
    """Write the tables into the documents."""
    del argv
    for path in DOCUMENTS:
        path.write_text(rendered(path.read_text()))
    return 0
