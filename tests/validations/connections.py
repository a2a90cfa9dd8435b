"""Connections cut at random while jobs are broken on hosts by ssh: `python -m tests.validations connections`.

The hosts are machines of their own in namespaces, with clocks days apart; only the volume is a folder that the harness
has too (`tests/engines`). Counted are records that were lost: gaps that the collector tells, and steps that a process
left out. Outcomes count, not times. Needs root and OpenSSH. Kept in `reports/measured/connections.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir
from tests.engines import sshd
from tests.engines.folders import vanishing
from tests.validations.chaos_runs import chaos_run, results_of
from tests.validations.sitting import MEASURED, Document, Sitting, State, begin, decide, keep, load, origin, runs_of

FILE = MEASURED / "connections.json"
COMMAND = "python -m tests.validations connections"
JOBS, FAULTS = 10, 30  # of a job: fifteen workers and fifteen nodes killed
HOSTS = 4
CUT_S = (0.5, 2.5)  # from one cut to the next, of a host drawn anew each time
JOB_S = 150.0
SUITE = ("--case", "worker", "--case", "node-rank0", "--trials", "15")
NOTHING: dict[str, Any] = {
    "outcomes": {}, "records": 0, "reconnected": 0, "gaps": 0, "left_out": 0, "clock_error_ms": None,
}  # fmt: skip


@contextlib.contextmanager
def cutting(bed: sshd.Hosts, seed: int) -> Iterator[list[str]]:
    """Cut connections meanwhile; the hosts whose were cut."""
    chance, over, cut = random.Random(seed), threading.Event(), list[str]()  # noqa: S311 - to be repeated, not secret

    def now_and_then() -> None:
        while not over.wait(chance.uniform(*CUT_S)):
            host = chance.choice(bed.hosts)
            with contextlib.suppress(subprocess.CalledProcessError):  # it had none just then
                bed.cut(host)
                cut.append(host)

    thread = threading.Thread(target=now_and_then)
    thread.start()
    try:
        yield cut
    finally:
        over.set()
        thread.join()


def one_job(seed: int) -> dict[str, Any]:
    """One run, and what became of its faults and records."""
    with vanishing("pg-volume-") as volume, tempfile.TemporaryDirectory() as runs:
        with sshd.ssh_hosts(HOSTS, volume) as bed, cutting(bed, seed) as cut:
            where = bed.option(volume, HOSTS)
            try:
                store = chaos_run(Path(runs), "live-kill", *SUITE, "--seed", str(seed), "--cluster", where)
                found = counted(store)
            except rundir.RunDirError as error:  # it never began, or left no history
                found = NOTHING | {"why": str(error)}
        return {**origin(), "seed": seed, "cuts": len(cut), **found}


def counted(store: RunDir) -> dict[str, Any]:
    """Outcomes, records, and those that were lost."""
    history = list(rundir.read_history(store))
    told = Counter(str(it["event"]) for it in history)
    outcomes = Counter(str(it["outcome"]) for it in results_of(store)["trials"])
    errors = [1000 * float(it["error_s"]) for it in history if it["event"] == "node_clock"]
    return {
        "outcomes": dict(outcomes), "records": len(history), "reconnected": told["agent_back"], "gaps": told["gap"],
        "left_out": left_out(history), "clock_error_ms": max(errors, default=None),
    }  # fmt: skip


def left_out(history: Sequence[Mapping[str, Any]]) -> int:
    """Steps that a process did not tell though it told a later one of the same life."""
    newest: dict[tuple[str, str], list[int]] = {}
    missing = 0
    for it in history:
        key = (str(it.get("trial")), str(it["source"]))
        if it["event"] in ("start", "resume", "ready"):
            missing += gaps(newest.pop(key, []))
        elif it["event"] == "step":
            newest.setdefault(key, []).append(int(it["step"]))
    return missing + sum(map(gaps, newest.values()))


def gaps(steps: Sequence[int]) -> int:
    """How many steps lack between the first and the last."""
    return sum(after - before - 1 for before, after in pairwise(sorted(set(steps))))


def table(document: Mapping[str, Any]) -> str:
    """What was lost over all jobs."""
    runs = runs_of(document, "ssh")
    outcomes = sum((Counter(it["outcomes"]) for it in runs), Counter[str]())
    heads = ["jobs", "faults", "recovered", "connections cut", "made again", "records", "gaps", "steps left out"]
    sums = [sum(it[key] for it in runs) for key in ("cuts", "reconnected", "records", "gaps", "left_out")]
    counts = [f"{len(runs)} of {JOBS}", outcomes.total(), outcomes["recovered"], *(f"{it:,}" for it in sums)]
    worst = max((it["clock_error_ms"] for it in runs if it["clock_error_ms"] is not None), default=None)
    said = "not measured" if worst is None else f"{worst:.2g} ms at most"
    row = f"| {' | '.join(map(str, counts))} | {said} |"
    return f"| {' | '.join(heads)} | clocks wrong by |\n|{'--:|' * (len(heads) + 1)}\n{row}\n"


def state(document: Mapping[str, Any]) -> State:
    """How far it is; a fault that was not recovered from (or never came), and a lost record, are not as must be."""
    runs = runs_of(document, "ssh")
    bad = sum(it["gaps"] + it["left_out"] + FAULTS - it["outcomes"].get("recovered", 0) for it in runs)
    return State(len(runs), JOBS, "jobs", bad)


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 where something was lost."""
    options = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    options.add_argument("--minutes", type=float, default=30.0, help="how long this sitting may take (default: 30)")
    sitting = Sitting(options.parse_args(argv).minutes)
    document: Document = load(FILE, COMMAND, anywhere=True)
    decide(document, jobs=JOBS, faults=FAULTS, hosts=HOSTS, cut_s=list(CUT_S))
    while (number := len(runs_of(document, "ssh"))) < JOBS and sitting.fits(JOB_S):
        sitting.say(f"job {number + 1} of {JOBS} · {sitting.left()}")
        begin(document, "ssh")
        begun = time.monotonic()
        found = one_job(seed=number + 1)
        document["cells"]["ssh"]["runs"].append(found)
        keep(FILE, document)
        sitting.say(
            f"  {found['outcomes']}, {found['cuts']} cuts, {found['gaps']} gaps, {time.monotonic() - begun:.0f} s"
        )
    sitting.say(table(document))
    sitting.say(str(state(document)))
    return int(state(document).bad > 0)
