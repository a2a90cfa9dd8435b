"""Does `reports compare` cry wolf? `python -m tests.validations aa --minutes 60`, again and again until it is known.

Every run is a harness of its own, with its own processes and run directory. A round is three runs in an order drawn by
its number: a configuration, the same again, and the same 5 % slower. Two comparisons come of it: with its like (called
better or worse: a false alarm) and with the slower one (called worse: found). How many rounds there will be is decided
before the first, and every round counts. Kept in `reports/measured/aa.json`: every value, with date and commit.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.progress import clock
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.bench.spec import SpecError
from proving_ground.reports import document
from proving_ground.reports.comparing import pairing
from proving_ground.reports.comparing.compare import BETTER, MARGIN, WORSE, overall
from proving_ground.reports.scaling import results
from tests.programs import program
from tests.validations import tables
from tests.validations.sitting import MEASURED, ROOT, Document, KeptError, Sitting, State, keep, load, origin

FILE = MEASURED / "aa.json"
COMMAND = "nox -s validate -- aa"
ROUNDS = 100
EARLIER = 10  # runs of the configuration that tell how far apart runs lie; older ones are removed
ROUND_S = 35.0  # expected of the first round
FAILURES_MAX = 3  # in a row: then something is broken
FALSE_ALARMS_MAX, FOUND_MIN = 0.05, 0.9  # shares of the rounds

SUITE = """title = "A/A: paced ResNet-18 on 2 nodes"
nodes = [2]
repeats = 2

[[case]]
name = "paced"
workload = "resnet18"
batch_per_node = 2
steps = 5
warmup_steps = 2
estimated_step_s = 0.3
link_mbps = 600
dilation = {dilation}

[case.training]
bucket_mb = 4
compression = "fp16"
"""
SUITES = {"aa": 1.0, "aa-slower": 1.05}
"""Name of a suite, and of its file → how much slower time runs in it."""

ORDER = ("aa", "aa", "aa-slower")
KINDS = {"alike": ("aa", (BETTER, WORSE)), "slower": ("aa-slower", (WORSE,))}
"""Comparison → the suite of its second run, and the answers that are counted."""

Run = Callable[[Path, str], RunDir]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.validations aa", description=__doc__)
    made.add_argument("--minutes", type=float, default=60, metavar="M", help="length of this sitting (default 60)")
    made.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"decided with the first sitting, the same ever after (default {ROUNDS})",
    )
    made.add_argument(
        "--runs",
        type=Path,
        default=Path("runs/aa"),
        metavar="DIR",
        help="a folder for its runs alone (default: runs/aa)",
    )
    made.add_argument(
        "--out", type=Path, default=FILE, metavar="FILE", help=f"default: {FILE.name}, in reports/measured"
    )
    return made


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 if runs failed."""
    options = parser().parse_args(argv)
    if options.minutes <= 0 or (options.rounds or 1) < 1:
        raise SpecError("--minutes must be above 0, --rounds at least 1")
    document = decided(load(options.out, COMMAND, state), options.rounds)
    failures = sit(document, options.out, options.runs, Sitting(options.minutes), run)
    print(tables.aa(document))
    return 1 if failures else 0


def decided(document: Document, rounds: int | None) -> Document:
    """The document with the number of rounds, which nobody changes once it has one.

    Raises:
        KeptError: somebody wants to.
    """
    document.setdefault("rounds", rounds or ROUNDS)
    if rounds not in (None, document["rounds"]):
        raise KeptError(f"--rounds {rounds}: {document['rounds']} were decided with the first sitting")
    for kind in KINDS:
        document["cells"].setdefault(kind, {"comparisons": []})
    document.setdefault("failed", 0)
    return document


def state(document: Mapping[str, Any]) -> State:
    """How far it is: bad are false alarms and what was not found, where they are more than what is allowed of all."""
    rounds = document.get("rounds", ROUNDS)
    cells = [document["cells"].get(kind, {"comparisons": []})["comparisons"] for kind in KINDS]
    alarms = sum(it["called"] for it in cells[0])
    missed = sum(not it["called"] for it in cells[1])
    over = [count for count, most in ((alarms, FALSE_ALARMS_MAX), (missed, 1 - FOUND_MIN)) if count > most * rounds]
    return State(len(cells[0]), rounds, "rounds", sum(over))


def sit(document: Document, file: Path, runs: Path, sitting: Sitting, made: Run) -> int:
    """Rounds until the time is up or all are done; how many failed."""
    done, failed, in_a_row, took_s = len(document["cells"]["alike"]["comparisons"]), 0, 0, ROUND_S
    while done < document["rounds"] and in_a_row < FAILURES_MAX and sitting.fits(took_s):
        begun = time.monotonic()
        sitting.say(f"round {done + 1} of {document['rounds']}: {clock(took_s)}; {sitting.left()}")
        try:
            lead_in(runs, made, sitting)
            found = one_round(runs, done, made)
        except (subprocess.CalledProcessError, RunDirError) as failure:
            failed, in_a_row, document["failed"] = failed + 1, in_a_row + 1, document["failed"] + 1
            sitting.say(f"  failed: {failure}")
            keep(file, document)
            continue
        for kind, it in found.items():
            document["cells"][kind]["comparisons"].append({**it, **origin()})
            sitting.say(
                f"  {kind}: {it['answer']}: {it['change']:+.2f} %; {seen_from(it)}{it['why'] and '; '}{it['why']}"
            )
        keep(file, document)
        done, in_a_row, took_s = done + 1, 0, time.monotonic() - begun
    return failed


def lead_in(runs: Path, made: Run, sitting: Sitting) -> None:
    """So many runs of the configuration before the first comparison that each has as many to learn from."""
    while (have := len(of_suite(runs, "aa"))) < EARLIER:
        sitting.say(f"  a run to learn from, {have + 1} of {EARLIER}")
        made(runs, "aa")


def one_round(runs: Path, number: int, made: Run) -> dict[str, dict[str, Any]]:
    """Three runs and what `reports compare` says of two pairs of them; older runs are removed."""
    order = list(ORDER)
    random.Random(number).shuffle(order)  # noqa: S311 - an order that can be repeated, no secret
    for suite in order:
        made(runs, suite)
    before, after = of_suite(runs, "aa")[-2:]
    sides = {"alike": after, "slower": of_suite(runs, "aa-slower")[-1]}
    found = {kind: compared(runs, before, other, KINDS[kind][1]) for kind, other in sides.items()}
    for suite in SUITES:
        for old in of_suite(runs, suite)[:-EARLIER]:
            shutil.rmtree(old.path)
    return found


def seen_from(comparison: Document) -> str:
    """The smallest change that could have been seen."""
    return f"seen from {comparison['smallest']:+.1f} %"


def of_suite(runs: Path, suite: str) -> list[RunDir]:
    """Its runs that have a report, oldest first."""
    return [run for run in rundir.all_runs(runs) if run.suite == suite and run.results.exists()]


def run(runs: Path, suite: str) -> RunDir:
    """One run by a harness of its own, analysed.

    Raises:
        CalledProcessError: it failed.
    """
    file = runs / f"{suite}.toml"
    runs.mkdir(parents=True, exist_ok=True)
    file.write_text(SUITE.format(dilation=SUITES[suite]))
    words = program("bench", "--runs", str(runs.resolve()), "run", "--suite", str(file.resolve()))
    subprocess.run([*words, "--no-report"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    made = rundir.find(runs, suite)
    document.write(made, results.analyse(made).results)
    return made


def compared(runs: Path, before: RunDir, after: RunDir, counted: Sequence[str]) -> dict[str, Any]:
    """What `reports compare` says of two runs, with the values it looked at.

    It would refuse a run whose time is dilated otherwise; here that is how the slower one is made slower.
    """
    one, other = (pairing.Side(results.analyse(it)) for it in (before, after))
    for side in (one, other):
        pairing.refuse_bad(side)
    noises = pairing.noise_between(runs, one, other)
    found = pairing.compare_sides(one, other, noises, MARGIN)
    gated = next(it for it in found if it.gated)
    noise = noises({"name": gated.name, "where": gated.where})
    answer = overall(found)
    values = [next(it["values"] for it in side.figures.values() if it["name"] == gated.name) for side in (one, other)]
    return {
        "runs": [it.run_id for it in (before, after)], "answer": answer, "called": answer in counted,
        "why": gated.why, "change": round(gated.change, 3), "ci95": [round(end, 3) for end in gated.ci95],
        "smallest": round(gated.smallest, 3),
        "between": round(noise.sd, 6), "earlier": noise.runs, "values": values,
    }  # fmt: skip
