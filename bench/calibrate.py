"""What this host moves between nodes when no link is limited, and what is free of it. Called by `bench.commands`.

A link that is a small part of it is imitated faithfully; one that is not measures the host. `bench.plan` refuses trials
whose links are above a tenth of it at their node count.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import rundir
from bench.plan import make_plan
from bench.protocols import Cluster
from bench.run import Parts, run
from bench.rundir import RunDir
from bench.spec import Case, SpecError, Suite

OP = "all_reduce"
BYTES = 64 * 2**20
"""Large enough that latency does not count."""

ROUNDS = 4
WATCHED_S = 2.0
IDLE_CORES = 0.2  # an idle machine uses less


def calibrate(cluster: Cluster, nodes: Sequence[int], runs: Path, parts: Parts | None = None) -> dict[str, Any]:
    """Measure the bus bandwidth of an all-reduce over unlimited links at every node count above one.

    Returns `{"busbw_mbps": {node count as text: median Mb/s of one rank's bus bandwidth}, "taken_cores", "op", "bytes",
    "run"}`; something else used so many of this machine's cores before anything was started.

    Raises:
        SpecError: there is no node count above one.
        TrialFailed: a trial failed.
    """
    counts = tuple(count for count in nodes if count > 1)
    if not counts:
        raise SpecError(f"calibrate: nodes: {list(nodes)}; allowed: at least one count above 1")
    taken = busy_cores(cluster)
    store = run(suite(counts), cluster, runs, parts)
    found = {str(count): rate for count, rate in bandwidths(store).items()}
    return {"busbw_mbps": found, "op": OP, "bytes": BYTES, "run": store.run_id, "taken_cores": taken}


def takes_s(cluster: Cluster, nodes: Sequence[int]) -> float:
    """Seconds that it will take, roughly."""
    return WATCHED_S + make_plan(suite(tuple(count for count in nodes if count > 1)), cluster).estimate_s


def busy_cores(cluster: Cluster) -> float:
    """Cores that are in use before anything is started, in tenths; 0 where that is what an idle machine uses."""
    before, since = cluster.sample(), cluster.now()
    cluster.sleep(WATCHED_S)
    after, seconds = cluster.sample(), cluster.now() - since
    used = sum(after.get(key, 0.0) - before.get(key, 0.0) for key in ("cpu_s", "steal_s")) / seconds
    return round(used, 1) if used >= IDLE_CORES else 0.0


def suite(nodes: tuple[int, ...]) -> Suite:
    """One all-reduce, some rounds, no limits."""
    case = Case(
        name="unshaped", workload="collectives", steps=ROUNDS, warmup_steps=1, estimated_step_s=0.5, batch_per_node=1,
        training={"ops": [OP], "sizes": [BYTES]},
    )  # fmt: skip
    return Suite("calibration", "What this host moves between nodes", nodes, (case,), repeats=1)


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
