"""How long restart recovery takes, largest of at least 59 trials a kill: `python -m tests.validations restart`.

Each sitting does as many rounds of the chaos suite `kill` as its minutes allow and keeps what every trial came to.
(`tests.validations.recovery` does the same with the suite `live-kill`.)
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.rundir import RunDir
from tests.validations.chaos_runs import chaos_run
from tests.validations.sitting import MEASURED, Document, Sitting, keep, load, origin

TRIALS = 59


@dataclass(frozen=True)
class Goal:
    """What is asked of one case of a suite: seconds until training goes on, largest of all trials."""

    asked_s: float
    trial_s: float  # what a trial takes, with its share of the twins
    at_once: int = 20  # trials in one job


@dataclass(frozen=True)
class Kind:
    """What differs between validations that repeat the cases of a chaos suite."""

    name: str
    suite: str
    what: str  # for `--help`
    goals: Mapping[str, Goal]

    @property
    def command(self) -> str:
        """What a person types."""
        return f"nox -s validate -- {self.name}"

    @property
    def file(self) -> Path:
        """Where its results are kept."""
        return MEASURED / f"{self.name}.json"


RESTART = Kind(
    "restart", "kill", __doc__,
    # Few at once where the world shrinks: over many steps rounding grows until nothing can be told from it.
    {"worker": Goal(3.0, 7.0), "node": Goal(6.0, 10.0), "node-lost": Goal(6.0, 40.0, at_once=4)},
)  # fmt: skip


def main(argv: list[str], kind: Kind = RESTART) -> int:
    """One sitting; exit status 1 when a trial went wrong or a target is missed once all trials are there."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.validations {kind.name}", description=kind.what)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    parser.add_argument(
        "--trials", type=int, default=TRIALS, help=f"of each case, over all sittings (default {TRIALS})"
    )
    options = parser.parse_args(argv)
    sitting, document = Sitting(options.minutes), load(kind.file, kind.command)
    while (case := behind(document, kind, options.trials)) and sitting.fits(kind.goals[case].trial_s):
        done, goal = len(trials_of(document, case)), kind.goals[case]
        count = min(goal.at_once, options.trials - done, max(1, int(sitting.seconds_left() / goal.trial_s)))
        print(f"{case}: {done} of {options.trials} trials · {sitting.left()}", flush=True)
        seed = 1 + len(document.setdefault("runs", []))
        with tempfile.TemporaryDirectory() as folder:
            take(document, one_round(Path(folder), kind.suite, case, count, seed), seed)
        keep(kind.file, document)
    for line in told(document, kind):
        print(line)
    return int(not fine(document, kind))


def trials_of(document: Document, case: str) -> list[dict[str, Any]]:
    """What was kept of one case."""
    found: list[dict[str, Any]] = document["cells"].get(case, {}).get("trials", [])
    return found


def behind(document: Document, kind: Kind, trials: int) -> str:
    """The first case that has not all of its trials; empty when none is left."""
    return next((case for case in kind.goals if len(trials_of(document, case)) < trials), "")


def one_round(runs: Path, suite: str, case: str, trials: int, seed: int) -> RunDir:
    """One run of the suite; its verdict is taken from its results, not from its exit status."""
    return chaos_run(runs, suite, "--case", case, "--trials", str(trials), "--seed", str(seed))


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


def told(document: Document, kind: Kind) -> list[str]:
    """A line for each case: measured against asked."""
    lines = []
    for case, cell in document["cells"].items():
        times = sorted(it["resume_s"] for it in cell["trials"] if it["resume_s"] is not None)
        good = sum(it["outcome"] == "recovered" for it in cell["trials"])
        if times:
            lines.append(
                f"{case}: {good} of {len(cell['trials'])} recovered; goes on after {times[len(times) // 2]:.2f} s, "
                f"{times[-1]:.2f} s at most (asked: {kind.goals[case].asked_s:g} s)"
            )
    return lines


def fine(document: Document, kind: Kind) -> bool:
    """Whether every trial so far recovered, within its target."""
    trials = [(kind.goals[case].asked_s, it) for case, cell in document["cells"].items() for it in cell["trials"]]
    return all(it["outcome"] == "recovered" and (it["resume_s"] or 0) <= most for most, it in trials)
