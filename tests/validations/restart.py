"""How long restart recovery takes, kill by kill: `python -m tests.validations restart`.

Twelve jobs of a few faults each for every row: trials of one job are not independent of each other. All of that is
decided before the first; every row gets a job, then every row a second one, and none again because of what it came to.
Each sitting does as many jobs of the chaos suite `kill` as its minutes allow and keeps what every trial came to, and
the whole run of a job in which one was wrong, stuck or slow, under `runs/kept`.
(`tests.validations.recovery` does the same with the suite `live-kill`.)
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from proving_ground.bench.progress import clock
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import SpecError
from proving_ground.chaos import spec
from proving_ground.chaos.spec import faults_of
from proving_ground.reports.independence import bounded_percentile, effective_n
from tests.validations import shootout
from tests.validations.chaos_runs import BAD, chaos_run, results_of
from tests.validations.shootout import shown
from tests.validations.sitting import (
    MEASURED,
    ROOT,
    Document,
    Sitting,
    State,
    begin,
    cut_off,
    decide,
    keep,
    load,
    origin,
    runs_of,
    turn,
)

JOBS, FAULTS = 12, 5  # of a row, and of a job
KEPT = ROOT / "runs" / "kept"

Runs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Goal:
    """A row: a case of the suite, in words, and what is asked of it."""

    words: str
    target_s: float  # to recovery, largest of all trials
    job_s: float  # what a job takes with its twins, about
    like: str = ""  # the shoot-out's fault of the same kind and phase; empty: it has none
    faults: int = FAULTS  # of one job


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
    {
        "worker": Goal("a worker, SIGKILL", 3.0, 60.0),
        "node": Goal("a whole node, which boots again after 1 s", 6.0, 70.0, like="node_kill n2"),
        # Each has a node away for 7 s and a second restart when it is back: with four the job takes two minutes.
        "node-lost": Goal("a whole node, which stays away for 7 s: the others go on", 6.0, 120.0, faults=4),
    },
)  # fmt: skip


FILE = RESTART.file


def parser(kind: Kind) -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog=f"python -m tests.validations {kind.name}", description=kind.what)
    made.add_argument("--minutes", type=float, default=60.0, metavar="M", help="of this sitting (default 60)")
    made.add_argument(
        "--jobs", type=int, default=JOBS, metavar="N",
        help=f"of each row over all sittings, decided before the first (default {JOBS})",
    )  # fmt: skip
    made.add_argument("--out", type=Path, default=kind.file, metavar="FILE", help="default: in reports/measured")
    return made


def main(argv: list[str], kind: Kind = RESTART) -> int:
    """One sitting; exit status 1 when a row fails, or all is measured and a row does not pass."""
    options = parser(kind).parse_args(argv)
    if options.minutes <= 0 or options.jobs < 1:
        raise SpecError(f"--minutes {options.minutes:g} --jobs {options.jobs}: must be above 0")
    document, sitting = load(options.out, kind.command, lambda found: state(found, kind)), Sitting(options.minutes)
    decide(document, jobs=options.jobs, faults={case: goal.faults for case, goal in kind.goals.items()})
    sit(document, kind, sitting, options.out)
    for line in told(document, kind):
        print(line)
    verdicts = [verdict(goal, runs_of(document, case)) for case, goal in kind.goals.items()]
    whole = not turn(document, list(kind.goals), options.jobs)
    return int("fail" in verdicts or (whole and set(verdicts) != {"pass"}))


def sit(document: Document, kind: Kind, sitting: Sitting, file: Path) -> None:
    """One job after the other, until the time is up or all are there."""
    jobs = document["plan"]["jobs"]
    sitting.say(ahead(document, kind))
    while (case := turn(document, list(kind.goals), jobs)) and sitting.fits(job_s(document, kind, case)):
        seed = 1 + len(runs_of(document, case))
        sitting.say(f"{case}: job {seed} of {jobs}; all: {clock(left_s(document, kind))}; {sitting.left()}")
        begin(document, case)
        keep(file, document)
        since = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            store = one_job(Path(folder), kind.suite, case, kind.goals[case].faults, seed)
            found = taken(results_of(store), seed)
            if not found["trials"] or any(it["outcome"] in BAD for it in found["trials"]):
                sitting.say(f"kept: {kept(store, f'{kind.name}-{case}-{seed}')}")
        document["cells"][case]["runs"].append(found | {"wall_s": round(time.monotonic() - since, 1)})
        keep(file, document)


def ahead(document: Document, kind: Kind) -> str:
    """How long it takes, before anything is started."""
    jobs, one_s = document["plan"]["jobs"], sum(job_s(document, kind, case) for case in kind.goals)
    return f"{len(kind.goals)} rows of {jobs} jobs, {clock(one_s)} a round; left: {clock(left_s(document, kind))}"


def job_s(document: Document, kind: Kind, case: str) -> float:
    """Seconds that a job takes: the longest so far, else the estimate."""
    known = [float(run["wall_s"]) for run in runs_of(document, case) if "wall_s" in run]
    return max(known, default=kind.goals[case].job_s)


def left_s(document: Document, kind: Kind) -> float:
    """Seconds that all that is to do will take."""
    jobs: int = document["plan"]["jobs"]
    return sum(max(0, jobs - len(runs_of(document, case))) * job_s(document, kind, case) for case in kind.goals)


def one_job(runs: Path, suite: str, case: str, faults: int, seed: int) -> RunDir:
    """One job and its twins; its verdict is taken from its results, not from its exit status."""
    return chaos_run(runs, suite, "--case", case, "--trials", str(faults), "--seed", str(seed))


def kept(store: RunDir, name: str) -> Path:
    """A copy of a run that went wrong, to look into: under `runs/`, by the name of its job."""
    shutil.copytree(store.path, KEPT / name / store.run_id)
    return KEPT / name / store.run_id


def taken(results: Mapping[str, Any], seed: int) -> Document:
    """What is kept of a job: each of its trials."""
    trials = [{"seed": it["seed"], "outcome": it["outcome"], **seconds(it)} | unusual(it) for it in results["trials"]]
    return {"seed": seed, "trials": trials, **origin()} | ({} if trials else {"failed": "no results"})


def seconds(trial: Mapping[str, Any]) -> dict[str, float | None]:
    """Moments after the injection: detected, first committed step, full speed, and when the fault was lifted."""
    moments = trial["timeline"]
    names = {
        "detect_s": "detected", "resume_s": "first_committed_step", "full_speed_s": "full_speed", "healed_s": "healed",
    }  # fmt: skip
    return {
        short: None if moments.get(name) is None else round(moments[name] - moments["inject"], 4)
        for short, name in names.items()
    }


def at_full_speed_s(trial: Mapping[str, Any], held_s: float) -> float | None:
    """Seconds to full speed but for those for which the suite held the fault, if only then; None: not known."""
    full: float | None = trial["full_speed_s"]
    healed: float | None = trial.get("healed_s")
    if full is None or not held_s:
        return full
    return None if healed is None else full - (healed if full > healed else 0.0)


def unusual(trial: Mapping[str, Any]) -> dict[str, Any]:
    """What was not a pass, and why; nothing where all was."""
    verdicts = {name: value for name, value in trial["verdicts"].items() if value != "pass"}
    return ({"verdicts": verdicts} if verdicts else {}) | ({"why": trial["why"]} if trial["why"] else {})


def times(runs: Runs) -> list[list[float]]:
    """Seconds to recovery, job by job; infinite where it is stuck. A fault without evidence says nothing."""
    judged = [[it for it in run["trials"] if it["outcome"] != "invalid"] for run in runs]
    return [
        [math.inf if it["outcome"] == "stuck" else it["resume_s"] for it in job
         if it["outcome"] == "stuck" or it["resume_s"] is not None]
        for job in judged
    ]  # fmt: skip


def verdict(goal: Goal, runs: Runs) -> str:
    """A row against its target; of fewer jobs than `JOBS` nothing is said but that it has failed."""
    outcomes = Counter(it["outcome"] for run in runs for it in run["trials"])
    groups = times(runs)
    if any(outcomes[it] for it in BAD) or any(it > goal.target_s for job in groups for it in job):
        return "fail"
    with_trials, undecided = sum(map(bool, groups)), outcomes.total() - outcomes["recovered"] - outcomes["invalid"]
    if undecided:
        return f"cannot tell: {undecided} undecided"
    return "pass" if with_trials >= JOBS else f"cannot tell: {with_trials} of {JOBS} jobs"


def table(document: Mapping[str, Any], kind: Kind, peers: Mapping[str, Any]) -> str:
    """Row by row: jobs and trials, the time to recovery against its target, and what the shoot-out's baselines took."""
    heads = "fault | jobs | trials | effective n | recovered | time to recovery, median | largest | bounds | target | "
    rows = [f"| {heads}| full speed, largest | baseline |", f"|---|{'--:|' * 8}---|--:|---|"]
    for case, goal in kind.goals.items():
        runs, baseline = runs_of(document, case), shootout.baseline(peers, goal.like, held_s(kind, case))
        rows.append(f"| {goal.words} | {cells(goal, runs, held_s(kind, case))} | {baseline} |")
    again = cut_off(document)
    return "\n".join(rows) + "\n" + (f"\nJobs cut off and begun again: {again}.\n" if again else "")


def cells(goal: Goal, runs: Runs, held_s: float = 0.0) -> str:
    """The measured part of a row whose fault is held for so long; a gap where there is none."""
    ends = Counter(it["outcome"] for run in runs for it in run["trials"])
    groups = times(runs)
    found, n = list(chain.from_iterable(groups)), effective_n(groups)
    if not found:
        return f"{len(runs)} | {ends.total()} | – | – | not measured | – | – | ≤{goal.target_s:g} s | cannot tell | –"
    trials = ends.total() - ends["invalid"]
    invalid = f" and {ends['invalid']} invalid" if ends["invalid"] else ""
    all_full = [at_full_speed_s(it, held_s) for run in runs for it in run["trials"]]
    full = [it for it in all_full if it is not None]
    return (
        f"{len(runs)} | {trials}{invalid} | {n:.0f} | {ends['recovered']} | {shown(median(found))} | "
        f"{shown(max(found))} | P{bounded_percentile(n)} | ≤{goal.target_s:g} s | {verdict(goal, runs)} | "
        f"{f'{max(full):.2f} s (of {len(full)})' if full else 'cannot tell'}"
    )


def held_s(kind: Kind, case: str) -> float:
    """For how long the suite holds a row's fault."""
    (found,) = [it for it in spec.load(kind.suite).cases if it.name == case]
    return faults_of(found.faults, case)[0].seconds


def state(document: Mapping[str, Any], kind: Kind = RESTART) -> State:
    """How far it is."""
    found = {case: runs_of(document, case) for case in kind.goals}
    verdicts = [verdict(kind.goals[case], runs) for case, runs in found.items()]
    return State(sum(map(len, found.values())), JOBS * len(found), "jobs", verdicts.count("fail"))


def told(document: Document, kind: Kind) -> list[str]:
    """A line for each row."""
    jobs = document["plan"]["jobs"]
    return [f"{case}: {line(goal, runs_of(document, case), jobs)}" for case, goal in kind.goals.items()]


def line(goal: Goal, runs: Runs, jobs: int) -> str:
    """One row: measured against its target."""
    groups = times(runs)
    found, n = list(chain.from_iterable(groups)), effective_n(groups)
    if not found:
        return f"not measured, {len(runs)} of {jobs} jobs"
    good = sum(it["outcome"] == "recovered" for run in runs for it in run["trials"])
    return (
        f"{good} of {sum(len(it['trials']) for it in runs)} recovered in {len(runs)} jobs; time to recovery "
        f"{shown(median(found))}, {shown(max(found))} at most: P{bounded_percentile(n)} at effective n {n:.0f} "
        f"(target {goal.target_s:g} s): {verdict(goal, runs)}"
    )
