"""What this host moves between nodes when no link is limited, what is free of it, and how fast it computes.

Called by `bench.commands`. A link that is a small part of what it moves is imitated faithfully; one that is not
measures the host: `bench.plan` refuses trials whose links are above a tenth of it at their node count. How long real
compute takes says which cases and repeats fit into a suite's time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.faithful import Pace, node_share
from proving_ground.bench.nodes import on_gpus
from proving_ground.bench.plan import make_plan
from proving_ground.bench.protocols import Cluster
from proving_ground.bench.run import Parts, run
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Case, SpecError, Suite, Trial
from proving_ground.bench.workloads import WORKLOADS

NAME = "calibration"
"""The suite's; a run of it is a means to another one, and is made anew rather than resumed."""
OP = "all_reduce"
BYTES = 64 * 2**20
"""Large enough that latency does not count."""

ROUNDS = 4
PACE_STEPS = 3  # of real compute, with half of the samples; the first is warm-up
WATCHED_S = 2.0
IDLE_CORES = 0.2  # an idle machine uses less


def calibrate(
    cluster: Cluster, nodes: Sequence[int], runs: Path, parts: Parts | None = None, of: Suite | None = None
) -> dict[str, Any]:
    """Measure the bus bandwidth of an all-reduce over unlimited links at every node count above one.

    Returns `{"busbw_mbps": {node count as text: median Mb/s of one rank's bus bandwidth}, "paces": {workload: seconds
    of real compute (`bench.faithful.Pace`), for the cases of `of`}, "taken_cores", "took_s", "op", "bytes", "run"}`;
    something else used so many of this machine's cores before anything was started.

    Raises:
        SpecError: there is no node count above one.
        TrialFailed: a trial failed.
    """
    counts, begin_t = tuple(count for count in nodes if count > 1), cluster.now()
    if not counts:
        raise SpecError(f"calibrate: nodes: {list(nodes)}; allowed: at least one count above 1")
    taken = busy_cores(cluster)
    store = run(suite(counts, real_cases(of, taken)), cluster, runs, parts)
    found = {str(count): rate for count, rate in bandwidths(store).items()}
    return {
        "busbw_mbps": found, "paces": {workload: asdict(pace) for workload, pace in paces(store).items()},
        "op": OP, "bytes": BYTES, "run": store.run_id, "taken_cores": taken,
        "took_s": round(cluster.now() - begin_t, 1),
    }  # fmt: skip


def takes_s(cluster: Cluster, nodes: Sequence[int], of: Suite | None = None) -> float:
    """Seconds that it will take, roughly."""
    counts = tuple(count for count in nodes if count > 1)
    return WATCHED_S + make_plan(suite(counts, real_cases(of, 0.0)), cluster).estimate_s


def real_cases(of: Suite | None, taken: float) -> list[Case]:
    """A suite's cases that really compute and are left to a calibration, with few steps and nothing to prove."""
    if of is None or not of.faithful:
        return []
    return [
        replace(it, cpus_per_node=it.cpus_per_node or node_share(of, taken), steps=PACE_STEPS, warmup_steps=1,
                repeats=1, batch_per_node=max(1, (it.batch_per_node or (it.global_batch or 1) // max(of.nodes)) // 2),
                global_batch=None, efficiency_min={}, quality_min={}, instead=())
        for it in of.cases if it.workload in WORKLOADS and WORKLOADS[it.workload].compute == "real"
    ]  # fmt: skip


def busy_cores(cluster: Cluster) -> float:
    """Cores that are in use before anything is started, in tenths; 0 where that is what an idle machine uses."""
    before, since = cluster.sample(), cluster.now()
    cluster.sleep(WATCHED_S)
    after, seconds = cluster.sample(), cluster.now() - since
    used = sum(after.get(key, 0.0) - before.get(key, 0.0) for key in ("cpu_s", "steal_s")) / seconds
    return round(used, 1) if used >= IDLE_CORES else 0.0


def suite(nodes: tuple[int, ...], real: Sequence[Case] = ()) -> Suite:
    """One all-reduce, some rounds, no limits; beside it cases that really compute."""
    case = Case(
        name="unshaped", workload="collectives", steps=ROUNDS, warmup_steps=1, estimated_step_s=0.5, batch_per_node=1,
        training={"ops": [OP], "sizes": [BYTES]},
    )  # fmt: skip
    return Suite(NAME, "What this host moves between nodes, and computes", nodes, (case, *real), repeats=1)


def bandwidths(store: RunDir) -> dict[int, float]:
    """Node count → median bus bandwidth in Mb/s, without the first round."""
    warmup = {trial["id"]: trial["warmup_steps"] for trial in store.read("plan")["trials"]}
    rates: dict[int, list[float]] = {}
    for record in collectives(rundir.read_history(store)):
        if record["step"] > warmup[record["trial"]]:
            rates.setdefault(record["ranks"], []).append(record["busbw"] * 8e-6)
    return {count: round(statistics.median(rates[count]), 1) for count in sorted(rates)}


def collectives(records: Iterable[rundir.Record]) -> Iterable[rundir.Record]:
    """The measurements among all events."""
    return (record for record in records if record["event"] == "collective")


def paces(store: RunDir) -> dict[str, Pace]:
    """Workload → the median over its trials; of several cases of a workload the slowest."""
    trials = {trial["id"]: Trial(**trial) for trial in store.read("plan")["trials"]}
    found: dict[str, dict[str, list[Pace]]] = {}
    for name, records in by_trial(rundir.read_history(store)).items():
        if (trial := trials[name]).compute == "real":
            found.setdefault(trial.workload, {}).setdefault(trial.case, []).append(pace(trial, records))
    return {
        workload: max((middle(trials) for trials in cases.values()), key=lambda it: it.step_s)
        for workload, cases in found.items()
    }


def by_trial(records: Iterable[rundir.Record]) -> dict[str, list[rundir.Record]]:
    """The records of each trial."""
    found: dict[str, list[rundir.Record]] = {}
    for record in records:
        if record.get("trial"):
            found.setdefault(record["trial"], []).append(record)
    return found


def pace(trial: Trial, records: Sequence[rundir.Record]) -> Pace:
    """How long one trial took: the median step after the first ones, and all else."""
    moments = {it["event"]: it["t"] for it in records if it["event"] in ("trial_start", "trial_end")}
    step_s = statistics.median(
        it["step_s"] for it in records if it["event"] == "step" and it["step"] > trial.warmup_steps
    )
    whole_s = moments["trial_end"] - moments["trial_start"]
    cpus = None if on_gpus(trial.training) else trial.cpus_per_node
    return Pace(step_s, trial.batch_per_node, max(0.0, whole_s - trial.steps * step_s), cpus)


def middle(found: Sequence[Pace]) -> Pace:
    """The median of each quantity over trials of one case."""
    step_s, beside_s = (statistics.median(getattr(it, name) for it in found) for name in ("step_s", "beside_s"))
    return replace(found[0], step_s=step_s, beside_s=beside_s)
