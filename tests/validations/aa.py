"""Does `reports compare` cry wolf? `python -m tests.validations aa --minutes 45`, again and again until it is known.

Each comparison is one run of two cases, measured in turn: a configuration against itself (called worse: a false alarm),
or against itself with time stretched by 5 % (called worse: found). Kept in `reports/measured/aa.json`, every value.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.clusters import choose
from bench.plan import make_plan
from bench.progress import clock
from bench.protocols import Cluster
from bench.run import TrialFailed, run
from bench.rundir import RunDir
from bench.spec import Case, SpecError, Suite
from reports import pairing, results
from reports.compare import ASSUMED_BETWEEN, MARGIN, WORSE, overall
from tests.validations import tables
from tests.validations.sitting import MEASURED, Document, Sitting, keep, load, origin

FILE = MEASURED / "aa.json"
COMMAND = "nox -s validate -- aa"
BEFORE, AFTER = "before", "after"
SLOWER = 1.05

PACED = Case(
    BEFORE, "resnet18", steps=6, warmup_steps=2, estimated_step_s=0.6, batch_per_node=4, link_mbps=500,
    training={"bucket_mb": 4, "compression": "fp16"},
)  # fmt: skip
REAL = Case(BEFORE, "digits", steps=8, warmup_steps=2, estimated_step_s=0.3, batch_per_node=96, link_mbps=500)
KINDS: dict[str, tuple[Case, float, str]] = {
    "paced": (PACED, 1.0, "paced ResNet-18 on 2 nodes against itself"),
    "paced-slower": (PACED, SLOWER, "paced ResNet-18 on 2 nodes against time stretched by 5 %"),
    "real": (REAL, 1.0, "digits, really computing, on 2 nodes against itself"),
}
"""Kind of comparison → the case, how much slower the other one is, and what it is in words."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.validations aa", description=__doc__)
    made.add_argument("--minutes", type=float, default=45, metavar="M", help="length of this sitting (default 45)")
    made.add_argument("--comparisons", type=int, default=20, metavar="N", help="wanted of every kind (default 20)")
    made.add_argument("--repeats", type=int, default=5, metavar="N", help="of each side of a comparison (default 5)")
    made.add_argument("--kind", choices=list(KINDS), action="append", help="only this kind; may be given again")
    made.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs go (default: runs)")
    made.add_argument(
        "--out", type=Path, default=FILE, metavar="FILE", help=f"default: {FILE.name}, in reports/measured"
    )
    return made


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 if a trial failed."""
    options = parser().parse_args(argv)
    if options.minutes <= 0 or options.comparisons < 1 or options.repeats < 2:
        raise SpecError("--minutes must be above 0, --comparisons at least 1, --repeats at least 2")
    cluster, why = choose("auto")
    print(f"cluster {cluster.name}: {why}")
    document, kinds = load(options.out, COMMAND), options.kind or list(KINDS)
    failures = sit(kinds, document, options, Sitting(options.minutes), cluster)
    print(tables.aa(document))
    return 1 if failures else 0


def sit(
    kinds: Sequence[str], document: Document, options: argparse.Namespace, sitting: Sitting, cluster: Cluster
) -> int:
    """Compare until the time is up or there are enough; how many runs failed."""
    cells, failures = document["cells"], 0
    for kind in kinds:
        cells.setdefault(kind, {"what": KINDS[kind][2], "slowdown": KINDS[kind][1], "comparisons": []})
    while due := [it for it in kinds if len(cells[it]["comparisons"]) < options.comparisons]:
        kind = min(due, key=lambda it: len(cells[it]["comparisons"]))
        suite = suite_of(kind, options.repeats, seed=len(cells[kind]["comparisons"]) + 1)
        estimate_s = make_plan(suite, cluster).estimate_s
        if not sitting.fits(estimate_s) or failures > len(KINDS):
            break
        count = sum(options.comparisons - len(cells[it]["comparisons"]) for it in due)
        sitting.say(f"{kind}: {clock(estimate_s)}; {count} to do; {sitting.left()}")
        try:
            found = compared(run(suite, cluster, options.runs))
        except TrialFailed as failure:
            failures += 1
            sitting.say(f"  failed: {failure}")
            continue
        cells[kind]["comparisons"].append({**found, **origin()})
        sitting.say(
            f"  {found['answer']}: {found['change']:+.2f} % ({found['ci95'][0]:+.2f} to {found['ci95'][1]:+.2f})"
        )
        keep(options.out, document)
    return failures


def suite_of(kind: str, repeats: int, seed: int) -> Suite:
    """Both cases, in turn; the order within a repeat is drawn by the seed."""
    case, slower, _ = KINDS[kind]
    other = replace(case, name=AFTER, dilation=slower)
    return Suite("aa", KINDS[kind][2], (2,), (case, other), repeats=repeats, seed=seed)


def compared(store: RunDir) -> dict[str, Any]:
    """What `reports compare RUN:before RUN:after` says of a run, and the values it looked at."""
    analysis = results.analyse(store)
    sides = pairing.Side(analysis, BEFORE), pairing.Side(analysis, AFTER)
    for side in sides:
        pairing.refuse_bad(side)
    found = pairing.compare_sides(*sides, ASSUMED_BETWEEN, MARGIN)
    gated = next(it for it in found if it.gated)
    answer = overall(found)
    values = {
        side.case: next(one["values"] for one in side.figures.values() if one["name"] == gated.name) for side in sides
    }
    return {
        "run": store.run_id, "answer": answer, "called": answer == WORSE, "figure": gated.name,
        "change": round(gated.change, 3), "ci95": [round(end, 3) for end in gated.ci95], "values": values,
    }  # fmt: skip
