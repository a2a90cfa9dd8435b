"""The matrix, cell by cell: `python -m tests.validations matrix --minutes 60`, again and again until all is measured.

Cells with the fewest repeats come first, the cheapest of them at first. The host is calibrated at the beginning of each
sitting. Kept in `reports/measured/matrix.json`: every value, its bound, date and commit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.calibrate import calibrate
from bench.clusters import choose
from bench.commands import predict
from bench.plan import Plan, host_mbps, make_plan, settled
from bench.progress import clock
from bench.protocols import Cluster
from bench.run import Parts, TrialFailed, run
from bench.rundir import RunDir
from bench.spec import Case, SpecError, Suite, load_suite
from bench.workloads import WORKLOADS
from reports import results
from reports.figures import pick
from tests.validations import tables
from tests.validations.sitting import MEASURED, Document, Sitting, keep, load, origin

FIGURES = {
    "step_ms": "step_time", "above_bound_percent": "above_bound", "efficiency_percent": "efficiency",
    "prediction_error_percent": "prediction_error",
}  # fmt: skip
"""What is kept of a run's figures, by node count: key → name in `results.json`; what a run lacks is a gap."""

ATTEMPTS = 3  # at a cell whose machine was not steady, for every repeat asked for

BOUNDS = {"bound_ms": "step_bound", "efficiency_bound_percent": "efficiency_bound"}


@dataclass(frozen=True)
class Kind:
    """What differs between validations that measure a suite's cases one by one."""

    suite: str
    what: str  # for `--help`
    repeats: int  # of every case, unless told
    show: Callable[[Document], Sequence[str]]  # the last lines for the terminal

    @property
    def command(self) -> str:
        """What a person types."""
        return f"nox -s validate -- {self.suite}"

    @property
    def file(self) -> Path:
        """Where its results are kept."""
        return MEASURED / f"{self.suite}.json"


MATRIX = Kind("matrix", __doc__, 1, tables.matrix_targets)


def parser(kind: Kind) -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog=f"python -m tests.validations {kind.suite}", description=kind.what)
    made.add_argument("--minutes", type=float, default=60, metavar="M", help="length of this sitting (default 60)")
    made.add_argument(
        "--repeats", type=int, default=kind.repeats, metavar="N", help="of each case (default %(default)s)"
    )
    made.add_argument("--cells", default="", metavar="TEXT", help="only cases with this in their name")
    made.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs go (default: runs)")
    made.add_argument("--out", type=Path, default=kind.file, metavar="FILE", help="default: in reports/measured")
    return made


def main(argv: Sequence[str], kind: Kind = MATRIX) -> int:
    """One sitting; exit status 1 if a trial failed."""
    options = parser(kind).parse_args(argv)
    suite = load_suite(kind.suite)
    if options.minutes <= 0 or options.repeats < 1:
        raise SpecError(f"--minutes {options.minutes:g} --repeats {options.repeats}: must be above 0")
    document, sitting = load(options.out, kind.command), Sitting(options.minutes)
    cluster, why = choose("auto")
    print(f"cluster {cluster.name}: {why}")
    calibration = calibrated(cluster, suite, options.runs, document) if suite.calibrate else None
    suite = settled(suite, cluster, WORKLOADS, host_mbps(calibration)).suite
    cases = tuple(case for case in suite.cases if options.cells in case.name)
    if not cases:
        raise SpecError(f"--cells {options.cells}: no case has that in its name; such as {suite.cases[0].name}")
    keep(options.out, document)
    bench = Bench(suite, cluster, options.runs, calibration, predict)
    failures = sit(bench, cases, document, options.out, sitting, options.repeats)
    print("\n".join(kind.show(document)))
    return 1 if failures else 0


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
            return make_plan(self.only(case), self._cluster, host_mbps=host_mbps(self._calibration))
        except SpecError as error:
            if "would measure the host" in str(error):
                return None
            raise

    def run(self, case: Case) -> results.Analysis:
        """Measure one cell."""
        parts = Parts(calibration=self._calibration, between=self._predict)
        return results.analyse(run(self.only(case), self._cluster, self._runs, parts))


def sit(bench: Bench, cases: Sequence[Case], document: Document, file: Path, sitting: Sitting, repeats: int) -> int:
    """Measure cells until the time is up or all is done; how many trials failed."""
    plans = {case.name: plan for case in cases if (plan := bench.plan(case))}
    refused = [case.name for case in cases if case.name not in plans]
    failed: list[str] = []
    while due := todo(cases, plans, document, repeats, failed):
        fitting = [case for case in due if sitting.fits(plans[case.name].estimate_s)]
        left_s = sum(plans[case.name].estimate_s * (repeats - done(document, case, repeats)) for case in due)
        if not fitting:
            break
        case = fitting[0]
        sitting.say(
            f"{case.name}: {clock(plans[case.name].estimate_s)}; all that is to do: {clock(left_s)}; {sitting.left()}"
        )
        try:
            analysis = bench.run(case)
        except TrialFailed as failure:
            failed.append(case.name)
            sitting.say(f"  failed: {failure}")
            continue
        sitting.say(add(document, case, plans[case.name], analysis))
        keep(file, document)
    sitting.say(f"{len(due)} cells to do, {len(failed)} failed, {len(refused)} refused whole")
    return len(failed)


def todo(
    cases: Sequence[Case], plans: Mapping[str, Plan], document: Document, repeats: int, failed: Sequence[str]
) -> list[Case]:
    """The cells that want another repeat, the next one first."""
    due = [it for it in cases if it.name in plans and it.name not in failed and done(document, it, repeats) < repeats]
    return sorted(due, key=lambda case: (attempts(document, case), plans[case.name].estimate_s))


def attempts(document: Document, case: Case) -> int:
    """How often a cell was run."""
    return len(document["cells"].get(case.name, {}).get("runs", []))


def done(document: Document, case: Case, repeats: int) -> int:
    """Repeats that count: those that nothing disturbed; or enough, once a cell was tried `ATTEMPTS` times as often."""
    if attempts(document, case) >= ATTEMPTS * repeats:
        return repeats
    runs = document["cells"].get(case.name, {}).get("runs", [])
    return sum(not any(size.get("disturbed") for size in run["sizes"].values()) for run in runs)


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
    cell["sizes"] = {count: summarised(cell["runs"], count) for count in sizes}
    told = [
        f"{count} nodes {figures['efficiency_percent']:.1f} %"
        + (f" ({figures['above_bound_percent']:+.1f} % above the bound)" if "above_bound_percent" in figures else "")
        for count, figures in sorted(cell["sizes"].items(), key=lambda it: int(it[0]))
        if "efficiency_percent" in figures
    ]
    return f"  efficiency: {', '.join(told) or 'none, the machine was not steady'}"


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


def summarised(runs: Sequence[Mapping[str, Any]], count: str) -> dict[str, Any]:
    """Over a cell's runs at one size: `n`, medians, bounds; of runs that nothing disturbed, if there is one."""
    every_run = [run["sizes"][count] for run in runs if count in run["sizes"]]
    steady = [it for it in every_run if not it.get("disturbed")]
    at_size = steady or every_run
    made: dict[str, Any] = {"n": sum(len(it.get("step_ms", [])) for it in at_size)}
    made |= {} if steady else {"disturbed": True}
    for key in FIGURES:
        every = [value for it in at_size for value in it.get(key, [])]
        made |= {key: round(median(every), 4)} if every else {}
    for key in BOUNDS:
        found = [it[key] for it in at_size if key in it]
        made |= {key: found[-1]} if found else {}
    return made
