"""Does the right alert come for each fault, and how late: `python -m tests.validations alerts`.

Each sitting runs the chaos suite `alerts` (half an hour), or takes one that was run (`--from RUN`), and keeps what came
for each fault, beside what its rule promises. The suite's undisturbed twin is the control: what comes there is false.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir
from proving_ground.reports.recovery import proof, results
from proving_ground.reports.recovery.alerts import Alerts, Row
from proving_ground.reports.verdicts import FAIL
from tests.validations.chaos_runs import chaos_run
from tests.validations.sitting import MEASURED, ROOT, Document, keep, load, origin

FILE = MEASURED / "alerts.json"
COMMAND = "nox -s validate -- alerts"
SUITE = "alerts"


def main(argv: list[str]) -> int:
    """One run; exit status 1 when an alert was missing or late, or a false one came."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations alerts", description=__doc__)
    parser.add_argument("--from", dest="run", metavar="RUN", help="a run of the suite that is there already")
    options = parser.parse_args(argv)
    document = load(FILE, COMMAND)
    if not options.run:
        chaos_run(ROOT / "runs", SUITE)
    taken = taken_of(rundir.find(ROOT / "runs", options.run or SUITE))
    others = [it for it in document["cells"].get("runs", []) if it.get("run") != taken["run"]]
    document["cells"]["runs"] = [*others, taken]  # one that is taken again counts once
    keep(FILE, document)
    for line in told(document):
        print(line)
    return int(bool(taken["false_alarms"]) or any(it["missing"] or it["late"] for it in taken["faults"]))


def taken_of(store: RunDir) -> Document:
    """What a run says of its alerts; times in seconds, as the rules ran (their durations divided by `factor`).

    Raises:
        RunDirError: it was not monitored.
    """
    found = results.analyse(store).alerts
    if not found.rows:
        raise rundir.RunDirError(f"{store.path}: no alerts to judge: {found.why_not or 'no faults'}")
    return {
        "run": store.run_id, "faults": [one(row) for row in found.rows if proof.answer(row.incident)[0] != FAIL],
        "factor": found.factor, "interval_s": found.rows[0].interval_s, "healthy_s": round(found.healthy_s, 1),
        "false_alarms": sorted(name for _, name in found.false_alarms), **shares(found), **origin(),
    }  # fmt: skip


def one(row: Row) -> dict[str, Any]:
    """One fault: what came, when, and what was late by more than a scrape."""
    return {
        "kind": row.incident.kind, "must": list(row.must), "before": list(row.before), "late": row.late,
        "missing": [name for name in row.missing if name not in row.before],
        "came_s": rounded(row.fired), "took_s": rounded(row.took), "stated_s": rounded(row.stated),
        "consequences_s": rounded(row.consequences), "unexpected_s": rounded(row.unexpected),
    }  # fmt: skip


def rounded(times: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds are enough."""
    return {name: round(seconds, 3) for name, seconds in times.items()}


def shares(found: Alerts) -> dict[str, float]:
    """Recall and precision, 0 to 1."""
    return {name: round(getattr(found, name), 4) for name in ("recall", "precision")}


def told(document: Document) -> list[str]:
    """The newest run in words."""
    newest = document["cells"]["runs"][-1]
    faults = newest["faults"]
    missing, late = ([f"{it['kind']}: {', '.join(it[key])}" for it in faults if it[key]] for key in ("missing", "late"))
    found = f"recall {100 * newest['recall']:.0f} %, precision {100 * newest['precision']:.0f} %"
    control = f"{len(newest['false_alarms'])} false in {newest['healthy_s']:.0f} s of undisturbed training"
    return [
        f"{len(faults)} faults: {found}; {control}",
        *(f"missing: {words}" for words in missing),
        *(f"late: {words}" for words in late),
    ]


def table(document: Mapping[str, Any]) -> str:
    """For the README, over all runs: the alert that a fault must bring, how often it came, and after how long."""
    rows = [
        "| fault | must bring | came | after the fault | after what it is about | its rule | others |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    every = [it for run in document["cells"]["runs"] for it in run["faults"]]
    for kind in dict.fromkeys(it["kind"] for it in every):
        of_kind = [it for it in every if it["kind"] == kind]
        beside = Counter(name for it in of_kind for name in it["consequences_s"])
        beside += Counter(f"{name} (!)" for it in of_kind for name in it["unexpected_s"])
        others = ", ".join(beside) or "–"
        for name in dict.fromkeys(name for it in of_kind for name in it["must"]):
            asked = [it for it in of_kind if name in it["must"] and name not in it["before"]]
            times = [it["came_s"][name] for it in asked if name in it["came_s"]]
            took = [it["took_s"][name] for it in asked if name in it["took_s"]]
            stated = max((it["stated_s"][name] for it in asked if name in it["stated_s"]), default=0.0)
            most = f"{max(times):.1f} s | {max(took):.1f} s | {stated:.1f} s" if times else "– | – | –"
            rows.append(f"| `{kind}` | {name} | {len(times)} of {len(asked)} | {most} | {others} |")
    return "\n".join([*rows, "", words(document["cells"]["runs"])]) + "\n"


def words(runs: Sequence[Mapping[str, Any]]) -> str:
    """What the table's figures are of, and what came while nothing was wrong."""
    newest, false = runs[-1], sum(len(run["false_alarms"]) for run in runs)
    return (
        f"Runs: {len(runs)}; durations of the rules divided by {newest['factor']:g}, a scrape every "
        f"{newest['interval_s']:g} s; (!) was not expected. Newest: recall {100 * newest['recall']:.0f} %, precision "
        f"{100 * newest['precision']:.0f} %. False alarms: {false} in {sum(run['healthy_s'] for run in runs):.0f} s of "
        "undisturbed twins."
    )
