"""The matrix, cell by cell: `python -m tests.validations matrix --minutes 60`, again and again until all is measured.

Every cell is run once, then every cell a second time: no cell out of turn, and none again because of its value. A run
that failed or whose machine was disturbed is kept as that and counts. The host is calibrated at the beginning of each
sitting. Kept in `reports/measured/matrix.json`: every value, its bound, date and commit; `headline` says what counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proving_ground.bench.calibrate import calibrate
from proving_ground.bench.clusters import choose
from proving_ground.bench.commands import predict
from proving_ground.bench.faithful import Calibration
from proving_ground.bench.plan import Plan, make_plan, settled
from proving_ground.bench.progress import clock
from proving_ground.bench.protocols import Cluster
from proving_ground.bench.run import Parts, TrialFailed, run
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Case, SpecError, Suite, load_suite
from proving_ground.bench.workloads import WORKLOADS
from proving_ground.reports.figures import pick
from proving_ground.reports.scaling import results
from tests.validations import headline
from tests.validations.sitting import (
    MEASURED,
    Document,
    Sitting,
    State,
    begin,
    decide,
    keep,
    load,
    origin,
    runs_of,
    turn,
)

FIGURES = {
    "step_ms": "step_time", "above_bound_percent": "above_bound", "efficiency_percent": "efficiency",
    "prediction_error_percent": "prediction_error",
}  # fmt: skip
"""What is kept of a run's figures, by node count: key → name in `results.json`; what a run lacks is a gap."""

BOUNDS = {"bound_ms": "step_bound", "efficiency_bound_percent": "efficiency_bound"}


@dataclass(frozen=True)
class Kind:
    """What differs between validations that measure a suite's cases one by one."""

    suite: str
    what: str  # for `--help`
    rounds: int  # runs of every case, unless another number is decided before the first
    show: Callable[[Document], Sequence[str]]  # the last lines for the terminal
    missed: Callable[[Document], tuple[int, int]]  # of its targets (known to be missed, cannot be told)

    @property
    def command(self) -> str:
        """What a person types."""
        return f"nox -s validate -- {self.suite}"

    @property
    def file(self) -> Path:
        """Where its results are kept."""
        return MEASURED / f"{self.suite}.json"


MATRIX = Kind("matrix", __doc__, headline.ENOUGH, headline.lines, headline.missed)
FILE = MATRIX.file


def parser(kind: Kind) -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog=f"python -m tests.validations {kind.suite}", description=kind.what)
    made.add_argument("--minutes", type=float, default=60, metavar="M", help="length of this sitting (default 60)")
    made.add_argument(
        "--rounds", type=int, default=kind.rounds, metavar="N",
        help="runs of every case over all sittings, decided before the first (default %(default)s)",
    )  # fmt: skip
    made.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs go (default: runs)")
    made.add_argument("--out", type=Path, default=kind.file, metavar="FILE", help="default: in reports/measured")
    return made


def main(argv: Sequence[str], kind: Kind = MATRIX) -> int:
    """One sitting; exit status 1 if a trial failed."""
    options = parser(kind).parse_args(argv)
    if options.minutes <= 0 or options.rounds < 1:
        raise SpecError(f"--minutes {options.minutes:g} --rounds {options.rounds}: must be above 0")
    suite = load_suite(kind.suite)
    document, sitting = load(options.out, kind.command, lambda found: state(found, kind)), Sitting(options.minutes)
    decide(document, rounds=options.rounds, cells=[case.name for case in suite.cases])
    cluster, why = choose("auto")
    print(f"cluster {cluster.name}: {why}")
    calibration = calibrated(cluster, suite, options.runs, document) if suite.calibrate else None
    suite = settled(suite, cluster, WORKLOADS, Calibration.of(calibration)).suite
    keep(options.out, document)
    bench = Bench(suite, cluster, options.runs, calibration, predict)
    failures = sit(bench, suite.cases, document, options.out, sitting)
    print("\n".join(kind.show(document)))
    return 1 if failures else 0


def state(document: Document, kind: Kind = MATRIX) -> State:
    """How far it is."""
    plan = document.get("plan", {})
    cells = headline.cells_of(document) if plan else load_suite(kind.suite).cases
    done = sum(len(found["runs"]) for found in document["cells"].values())
    return State(done, len(cells) * plan.get("rounds", kind.rounds), "runs", *kind.missed(document))


def calibrated(cluster: Cluster, suite: Suite, runs: Path, document: Document) -> dict[str, Any]:
    """What the host moves today, told and kept."""
    calibration = calibrate(cluster, suite.nodes, runs)
    document.setdefault("calibrations", []).append({**calibration, **origin()})
    rates = (f"{count} nodes {rate:.0f} Mb/s" for count, rate in calibration["busbw_mbps"].items())
    print("host without limits:", ", ".join(rates))
    return calibration


class Bench:
    """Runs one cell at a time."""

    def __init__(
        self, suite: Suite, cluster: Cluster, runs: Path, calibration: Mapping[str, Any] | None,
        predict: Callable[[RunDir], None] | None = None,
    ) -> None:  # fmt: skip
        self._suite, self._cluster, self._runs, self._calibration = suite, cluster, runs, calibration
        self._predict = predict

    def only(self, case: Case) -> Suite:
        """The suite with nothing but one cell, once."""
        predict_from = self._suite.predict_from if WORKLOADS[case.workload].compute == "paced" else ()
        return replace(self._suite, cases=(replace(case, repeats=None),), repeats=1, predict_from=predict_from)

    def plan(self, case: Case) -> Plan | None:
        """The plan of one cell; None if all of it is refused."""
        try:
            return make_plan(self.only(case), self._cluster, found=Calibration.of(self._calibration))
        except SpecError as error:
            if "would measure the host" in str(error):
                return None
            raise

    def run(self, case: Case) -> results.Analysis:
        """Measure one cell."""
        parts = Parts(calibration=self._calibration, between=self._predict)
        return results.analyse(run(self.only(case), self._cluster, self._runs, parts))


def sit(bench: Bench, cases: Sequence[Case], document: Document, file: Path, sitting: Sitting) -> int:
    """Measure one cell after the other until the time is up or all is done; how many runs failed."""
    plans = {case.name: plan for case in cases if (plan := bench.plan(case))}
    document["refused"] = [case.name for case in cases if case.name not in plans]
    rounds, by_name, failed = document["plan"]["rounds"], {case.name: case for case in cases}, 0
    sitting.say(ahead(plans, document, rounds))
    while (name := turn(document, list(plans), rounds)) and sitting.fits(plans[name].estimate_s):
        sitting.say(f"{name}: {clock(plans[name].estimate_s)}; all: {clock(left_s(plans, document, rounds))}; "
                    f"{sitting.left()}")  # fmt: skip
        begin(document, name)
        keep(file, document)
        try:
            sitting.say(add(document, by_name[name], plans[name], bench.run(by_name[name])))
        except TrialFailed as failure:
            failed += 1
            document["cells"][name]["runs"].append({"failed": str(failure), "sizes": {}, **origin()})
            sitting.say(f"  failed: {failure}")
        keep(file, document)
    due = sum(len(runs_of(document, it)) < rounds for it in plans)
    sitting.say(f"{due} cells to do, {failed} failed, {len(document['refused'])} refused whole")
    return failed


def ahead(plans: Mapping[str, Plan], document: Document, rounds: int) -> str:
    """How long it takes, before anything is started."""
    one_s = sum(plan.estimate_s for plan in plans.values())
    return (
        f"{len(plans)} cells, {rounds} rounds of {clock(one_s)}; left: {clock(left_s(plans, document, rounds))}, "
        "beside calibration and reports"
    )


def left_s(plans: Mapping[str, Plan], document: Document, rounds: int) -> float:
    """Seconds that all that is to do will take."""
    return sum(max(0, rounds - len(runs_of(document, name))) * plan.estimate_s for name, plan in plans.items())


def add(document: Document, case: Case, plan: Plan, analysis: results.Analysis) -> str:
    """Keep what a run measured of a cell; a line about it."""
    cell = document["cells"].setdefault(case.name, {"runs": []})
    cell |= {
        "workload": case.workload, "link_mbps": case.link_mbps, "dilation": case.dilation, **case.training,
        "bars": dict(case.efficiency_min),
        "refused": {str(it["nodes"]): it["why"] for it in plan.refused},
    }  # fmt: skip
    sizes = {str(trial.nodes): values(analysis, trial.nodes) for trial in plan.trials}
    cell["runs"].append({"run": analysis.run.run_id, "sizes": sizes, **origin()})
    told = [
        f"{count} nodes {figures['efficiency_percent'][0]:.1f} %{' (disturbed)' if figures.get('disturbed') else ''}"
        for count, figures in sorted(sizes.items(), key=lambda it: int(it[0]))
        if figures.get("efficiency_percent")
    ]
    return f"  efficiency: {', '.join(told) or 'none'}"


def values(analysis: results.Analysis, nodes: int) -> dict[str, Any]:
    """What one run measured at one size: every figure's values, and the bounds; what was set aside is a gap."""
    found: dict[str, Any] = {}
    for key, name in FIGURES.items():
        figure = pick(analysis.figures, name, nodes=nodes, scaling="weak")
        found |= {key: figure["values"]} if figure else {}
    for key, name in BOUNDS.items():
        figure = pick(analysis.figures, name, nodes=nodes, scaling="weak")
        found |= {key: figure["median"]} if figure else {}
    why = sorted({flag for trial in analysis.trials if trial.plan["nodes"] == nodes for flag in trial.flags})
    return found | ({"disturbed": why} if why else {})
