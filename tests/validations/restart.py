"""How long restart recovery takes, largest of at least 59 trials a kill: `python -m tests.validations restart`.

Each sitting does as many rounds of the chaos suite `kill` as its minutes allow and keeps what every trial came to.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import rundir
from bench.rundir import RunDir
from tests.validations.sitting import MEASURED, Document, Sitting, keep, load, origin

FILE = MEASURED / "restart.json"
COMMAND = "nox -s validate -- restart"
TRIALS = 59
ROUND = {"worker": 20, "node": 20, "node-lost": 4}
"""Trials in one job. Few where the world shrinks: over many steps rounding grows until nothing can be told from it."""
TRIAL_S = {"worker": 7.0, "node": 10.0, "node-lost": 40.0}  # with its share of the twins
TARGETS_S = {"worker": 3.0, "node": 6.0, "node-lost": 6.0}
ROOT = MEASURED.parent.parent


def main(argv: list[str]) -> int:
    """One sitting; exit status 1 when a trial went wrong or a target is missed once all trials are there."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations restart", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    parser.add_argument(
        "--trials", type=int, default=TRIALS, help=f"of each kill, over all sittings (default {TRIALS})"
    )
    options = parser.parse_args(argv)
    sitting, document = Sitting(options.minutes), load(FILE, COMMAND)
    while (case := behind(document, options.trials)) and sitting.fits(TRIAL_S[case]):
        done = len(trials_of(document, case))
        count = min(ROUND[case], options.trials - done, max(1, int(sitting.seconds_left() / TRIAL_S[case])))
        print(f"{case}: {done} of {options.trials} trials · {sitting.left()}", flush=True)
        seed = 1 + len(document.setdefault("runs", []))
        with tempfile.TemporaryDirectory() as folder:
            take(document, one_round(Path(folder), case, count, seed), seed)
        keep(FILE, document)
    for line in told(document):
        print(line)
    return int(not fine(document))


def trials_of(document: Document, case: str) -> list[dict[str, Any]]:
    """What was kept of one case."""
    found: list[dict[str, Any]] = document["cells"].get(case, {}).get("trials", [])
    return found


def behind(document: Document, trials: int) -> str:
    """The first case that has not all of its trials; empty when none is left."""
    return next((case for case in TRIAL_S if len(trials_of(document, case)) < trials), "")


def one_round(runs: Path, case: str, trials: int, seed: int) -> RunDir:
    """One run of the suite; its verdict is taken from its results, not from its exit status."""
    words = [
        "--runs",
        str(runs),
        "run",
        "--suite",
        "kill",
        "--case",
        case,
        "--trials",
        str(trials),
        "--seed",
        str(seed),
    ]
    subprocess.run([sys.executable, "-m", "chaos", *words], cwd=ROOT, check=False)
    return rundir.find(runs, "latest")


def take(document: Document, store: RunDir, seed: int) -> None:
    """Keep what each trial of a run came to."""
    results, plan = store.read("results"), store.read("plan")
    case_of = {trial["id"]: trial["case"] for trial in plan["trials"]}
    document["runs"].append({"seed": seed, **origin()})
    for trial in results["trials"]:
        cell = document["cells"].setdefault(case_of[trial["trial"]], {"kind": trial["kind"], "trials": []})
        cell["trials"].append({"seed": trial["seed"], "outcome": trial["outcome"], **seconds(trial)} | unusual(trial))


def seconds(trial: dict[str, Any]) -> dict[str, float | None]:
    """Moments after the injection: detected, first committed step, full speed."""
    moments = trial["timeline"]
    names = {"detect_s": "detected", "resume_s": "first_committed_step", "full_speed_s": "full_speed"}
    return {
        short: None if moments[name] is None else round(moments[name] - moments["inject"], 4)
        for short, name in names.items()
    }


def unusual(trial: dict[str, Any]) -> dict[str, Any]:
    """What was not a pass, and why; nothing where all was."""
    verdicts = {name: value for name, value in trial["verdicts"].items() if value != "pass"}
    return ({"verdicts": verdicts} if verdicts else {}) | ({"why": trial["why"]} if trial["why"] else {})


def told(document: Document) -> list[str]:
    """A line for each kill: measured against asked."""
    lines = []
    for case, cell in document["cells"].items():
        times = sorted(it["resume_s"] for it in cell["trials"] if it["resume_s"] is not None)
        good = sum(it["outcome"] == "recovered" for it in cell["trials"])
        if times:
            lines.append(
                f"{case}: {good} of {len(cell['trials'])} recovered; goes on after {times[len(times) // 2]:.2f} s, "
                f"{times[-1]:.2f} s at most (asked: {TARGETS_S[case]:g} s)"
            )
    return lines


def fine(document: Document) -> bool:
    """Whether every trial so far recovered, within its target."""
    trials = [(TARGETS_S[case], it) for case, cell in document["cells"].items() for it in cell["trials"]]
    return all(it["outcome"] == "recovered" and (it["resume_s"] or 0) <= most for most, it in trials)
