"""Every cause of lost time is planted for real on the local cluster, and must be found with its size within 2 points.

`python -m tests.validations attribution --repeats 3`, a few minutes. Each plant is a case of one suite, measured on 1
and on N nodes in turn with a healthy case; it hits N nodes only. Its true size is how much longer the steps became, and
is compared with what the report books on that cause. Kept in `reports/measured/attribution.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from proving_ground.bench.capabilities import CanSlow
from proving_ground.bench.clusters import choose
from proving_ground.bench.progress import Bar
from proving_ground.bench.protocols import Cluster, Node, ProcessSpec, TrialFiles, Workload
from proving_ground.bench.run import Parts, run
from proving_ground.bench.spec import Case, SpecError, Suite, Trial
from proving_ground.bench.workloads import WORKLOADS
from proving_ground.reports.figures import pick
from proving_ground.reports.scaling import results
from proving_ground.reports.scaling.attribution import CAUSES
from proving_ground.reports.scaling.results import Analysis
from tests.validations.sitting import MEASURED, keep, origin

FILE = MEASURED / "attribution.json"
COMMAND = "nox -s validate -- attribution"
ENOUGH_POINTS = 2.0
PACE, LINK_MBPS = 2.0, 600.0  # healthy: compute of about two seconds, communication all but hidden
HEALTHY = "healthy"


@dataclass(frozen=True)
class Plant:
    """What is done to a case on N nodes, and on which cause it must be booked.

    `everywhere` and `last` are settings of the trainer (environment) on all nodes and on the last one; `cores` is what
    the last node is left with.
    """

    cause: str
    words: str
    everywhere: Mapping[str, str] | None = None
    last: Mapping[str, str] | None = None
    cores: float | None = None
    link_mbps: float = LINK_MBPS


PLANTS = {
    "slow-link": Plant("comm", "links of half the rate", link_mbps=LINK_MBPS / 2),
    "slow-loader": Plant(
        "data", "a shared store that is busy for 80 ms with each batch", {"STORE_S": "0.08", "PREFETCH": "0"}
    ),
    "slow-node": Plant("wait", "one node that computes 15 % slower", last={"PACE": f"{1.15 * PACE}"}),
    "synchronous-checkpoints": Plant(
        "checkpoint", "a checkpoint after every step, training waits for it",
        {"CHECKPOINT_EVERY": "1", "CHECKPOINT_ASYNC": "false", "KEEP_CHECKPOINTS": "1"},
    ),
    "throttled-node": Plant("cpu", "one node with 0.05 cores", cores=0.05),
}  # fmt: skip


@dataclass(frozen=True)
class Planted:
    """A workload with a plant in it."""

    inner: Workload
    plant: Plant | None
    cluster: Cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def processes(self, trial: Trial, nodes: Sequence[Node], files: TrialFiles) -> Sequence[ProcessSpec]:
        """Those of the workload, with the plant's settings where there is more than one node."""
        specs = list(self.inner.processes(trial, nodes, files))
        if self.plant is None or len(nodes) == 1:
            return specs
        folder = {"CHECKPOINT_DIR": str(files.scratch / f"{trial.id}-checkpoints")}
        every = dict(self.plant.everywhere or {})
        every |= folder if "CHECKPOINT_EVERY" in every else {}
        specs = [with_env(spec, every) for spec in specs]
        specs[-1] = with_env(specs[-1], self.plant.last or {})
        if self.plant.cores is not None and isinstance(self.cluster, CanSlow):
            self.cluster.share(nodes[-1].name, self.plant.cores)
        return specs


def with_env(spec: ProcessSpec, settings: Mapping[str, str]) -> ProcessSpec:
    """A process that is told more settings of the trainer."""
    return replace(spec, env={**spec.env, **{f"PROVING_GROUND_{key}": value for key, value in settings.items()}})


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.validations attribution", description=__doc__)
    made.add_argument("--repeats", type=int, default=3, metavar="N", help="of each case at each size (default 3)")
    made.add_argument("--nodes", type=int, default=4, metavar="N", help="the larger size (default 4)")
    made.add_argument("--plant", action="append", choices=list(PLANTS), help="only this one; may be given again")
    made.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs go (default: runs)")
    made.add_argument("--out", type=Path, default=FILE, metavar="FILE", help=f"default: {FILE.name}")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure all plants; exit status 1 where one was not found with its size."""
    options = parser().parse_args(argv)
    if options.nodes < 2 or options.repeats < 1:
        raise SpecError(f"--nodes {options.nodes} --repeats {options.repeats}: at least 2 nodes and 1 repeat")
    cluster, why = choose("auto")
    print(f"cluster {cluster.name}: {why}")
    names = options.plant or list(PLANTS)
    if options.plant and options.out == FILE:
        raise SpecError(f"--plant: {FILE.name} has all plants of one run; name another file with --out")
    analysis = measure(cluster, names, options.nodes, options.repeats, options.runs)
    found = {name: judge(analysis, name, options.nodes) for name in names}
    keep(
        options.out,
        {"command": COMMAND, "run": analysis.run.run_id, "nodes": options.nodes, "plants": found, **origin()},
    )
    for name, it in found.items():
        print(line(name, it))
    return 0 if all(it["found"] for it in found.values()) else 1


def measure(cluster: Cluster, names: Sequence[str], nodes: int, repeats: int, runs: Path) -> Analysis:
    """One run with a healthy case and one for each plant."""
    plants = {HEALTHY: None, **{name: PLANTS[name] for name in names}}
    cases = tuple(case(name, plant) for name, plant in plants.items())
    suite = Suite("attribution", "Each cause of lost time, planted", (1, nodes), cases, repeats, disk_mb=512)
    workloads = {name: Planted(WORKLOADS["resnet18"], plant, cluster) for name, plant in plants.items()}
    return results.analyse(run(suite, cluster, runs, Parts(workloads=workloads, watch=Bar())))


def case(name: str, plant: Plant | None) -> Case:
    """One case; its workload has the name of the plant."""
    training = {"profile": "resnet18-cpu", "pace": PACE, "bucket_mb": 4}
    link = plant.link_mbps if plant else LINK_MBPS
    return Case(name, name, steps=6, estimated_step_s=2.2, batch_per_node=8, link_mbps=link, training=training)


def judge(analysis: Analysis, name: str, nodes: int) -> dict[str, Any]:
    """How large a plant was, in points of the step, and what was booked on each cause because of it."""
    steps = {(it, n): step_ms(analysis, it, n) for it in (name, HEALTHY) for n in (1, nodes)}
    whole = steps[name, nodes]
    longer = (whole - steps[HEALTHY, nodes]) - (steps[name, 1] - steps[HEALTHY, 1])
    shrunk = steps[HEALTHY, nodes] / whole  # the healthy shares, in the longer step
    booked = {
        part: lost(analysis, name, part, nodes) - shrunk * lost(analysis, HEALTHY, part, nodes) for part in CAUSES
    }
    truth, cause = 100 * longer / whole, PLANTS[name].cause
    rest = lost(analysis, name, "rest", nodes)
    good = abs(booked[cause] - truth) <= ENOUGH_POINTS and abs(rest) <= ENOUGH_POINTS and truth > 0
    return {
        "cause": cause, "planted": PLANTS[name].words, "true_points": round(truth, 3), "found": good,
        "booked_points": {part: round(points, 3) for part, points in booked.items()}, "rest_points": round(rest, 3),
        "step_ms": round(whole, 2), "healthy_step_ms": round(steps[HEALTHY, nodes], 2),
        "repeats": len([t for t in analysis.trials if t.plan["case"] == name and t.plan["nodes"] == nodes and t.good]),
    }  # fmt: skip


def step_ms(analysis: Analysis, name: str, nodes: int) -> float:
    """Median milliseconds of a step of a case at a size."""
    trials = [it for it in analysis.trials if it.plan["case"] == name and it.plan["nodes"] == nodes and it.good]
    return 1000 * median(float(it.seconds.mean()) for it in trials)


def lost(analysis: Analysis, name: str, part: str, nodes: int) -> float:
    """Points of efficiency that the report books on a cause; none is zero."""
    figure = pick(analysis.figures, "lost", case=name, part=part, nodes=nodes)
    return float(figure["median"]) if figure else 0.0


def line(name: str, found: Mapping[str, Any]) -> str:
    """One plant for the terminal."""
    others = {part: points for part, points in found["booked_points"].items() if part != found["cause"]}
    worst = max(others, key=lambda part: abs(others[part]))
    sign = "✓" if found["found"] else "✗"
    return (
        f"{sign} {name:<24} true {found['true_points']:5.1f} points, booked on {found['cause']} "
        f"{found['booked_points'][found['cause']]:5.1f}; most elsewhere: {worst} {others[worst]:+.1f}"
    )
