"""From a suite to its trials: what will run, in which order, labelled how, for about how long. Called by `bench.run`.

A plan is made before anything is started, and what cannot be done is refused here.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from bench.protocols import Ability, Cluster, Workload
from bench.spec import Case, SpecError, Suite, Trial
from bench.workloads import WORKLOADS

HARNESS_CORES = 0.4  # left to the harness and the kernel when the nodes share the cores
CONTENTION = "nodes share the cores: this shows contention, not scaling"
STARTUP_S = 1.5  # of a trial, beside the steps; and for each node
STARTUP_PER_NODE_S = 0.15


@dataclass(frozen=True)
class Plan:
    """All trials in the order in which they run, and the cluster they are meant for."""

    trials: tuple[Trial, ...]
    cluster: str
    abilities: tuple[Ability, ...]
    imitated: tuple[str, ...]

    @property
    def estimate_s(self) -> float:
        """Seconds that the whole will take, roughly."""
        return sum(trial.estimate_s for trial in self.trials)

    def document(self) -> dict[str, object]:
        """As `plan.json` has it."""
        cluster = {"name": self.cluster, "abilities": [asdict(it) for it in self.abilities], "imitated": self.imitated}
        return {"trials": [asdict(it) for it in self.trials], "cluster": cluster, "estimate_s": self.estimate_s}


def make_plan(suite: Suite, cluster: Cluster, workloads: Mapping[str, Workload] = WORKLOADS) -> Plan:
    """The plan of a suite on a cluster: repeats outermost, so that drift of the machine hits every size alike.

    Raises:
        SpecError: an unknown workload, or something that the workload or the cluster cannot do.
    """
    abilities = tuple(cluster.abilities())
    shuffle = random.Random(suite.seed)  # noqa: S311 - an order that can be repeated, no secret
    trials: list[Trial] = []
    for repeat in range(1, max(case.repeats or suite.repeats for case in suite.cases) + 1):
        block = list(trials_of(suite, repeat, workloads))
        shuffle.shuffle(block)
        labelled = [label(trial, cluster, abilities) for trial in block]
        trials += [replace(trial, bound=workloads[trial.workload].bound(trial)) for trial in labelled]
    numbered = tuple(replace(trial, id=f"t{number:03}") for number, trial in enumerate(trials, 1))
    for trial in numbered:
        workloads[trial.workload].check(trial)
    return Plan(numbered, cluster.name, abilities, tuple(cluster.imitated()))


def trials_of(suite: Suite, repeat: int, workloads: Mapping[str, Workload]) -> Iterable[Trial]:
    """One repeat of every case at every size. Weak and strong share a trial where they ask the same."""
    for case in suite.cases:
        if case.workload not in workloads:
            raise SpecError(f"case {case.name!r}: unknown workload {case.workload!r}; allowed: {', '.join(workloads)}")
        if repeat > (case.repeats or suite.repeats):
            continue
        for nodes in suite.nodes:
            for batch, scaling in batches(case, nodes).items():
                yield trial_of(suite, case, nodes, repeat, batch, scaling, workloads[case.workload])


def batches(case: Case, nodes: int) -> dict[int, tuple[str, ...]]:
    """Global batch → the scalings that it serves at this size."""
    wanted: dict[int, tuple[str, ...]] = {}
    if case.batch_per_node is not None:
        wanted[case.batch_per_node * nodes] = ("weak",)
    if case.global_batch is not None:
        if case.global_batch < nodes:
            raise SpecError(f"case {case.name!r}: global_batch {case.global_batch} is smaller than {nodes} nodes")
        wanted[case.global_batch] = (*wanted.get(case.global_batch, ()), "strong")
    return wanted


def trial_of(
    suite: Suite, case: Case, nodes: int, repeat: int, batch: int, scaling: tuple[str, ...], workload: Workload
) -> Trial:
    """One trial, before it has its number and label."""
    bar = case.efficiency_min.get(str(nodes)) if "weak" in scaling else None
    share = batch / nodes / (case.batch_per_node or case.global_batch or batch)
    step_s = case.estimated_step_s * max(share, 0.1)
    return Trial(
        id="", case=case.name, workload=case.workload, scaling=scaling, nodes=nodes, repeat=repeat,
        seed=suite.seed, batch_per_node=-(-batch // nodes), global_batch=batch, steps=case.steps,
        warmup_steps=case.warmup_steps, link_mbps=case.link_mbps, cpus_per_node=share_of_cores(suite, case, workload),
        compute=workload.compute, profile=workload.profile(case), training=case.training, command=case.command,
        efficiency_min=bar, estimate_s=STARTUP_S + STARTUP_PER_NODE_S * nodes + case.steps * step_s,
    )  # fmt: skip


def share_of_cores(suite: Suite, case: Case, workload: Workload) -> float | None:
    """Cores for each node: the same at every size, so that sizes compare; paced compute needs no limit."""
    if case.cpus_per_node is not None or workload.compute == "paced":
        return case.cpus_per_node
    return round(min(1.0, ((os.cpu_count() or 1) - HARNESS_CORES) / max(suite.nodes)), 3)


def label(trial: Trial, cluster: Cluster, abilities: Sequence[Ability]) -> Trial:
    """The trial with its label: what stands in for what. What the cluster cannot imitate is dropped, in words."""
    can = {ability.name for ability in abilities if ability.yes}
    imitated = list(cluster.imitated())
    if not imitated:
        return replace(trial, label="real", cpus_per_node=None, link_mbps=None)
    link = trial.link_mbps if "links" in can else None
    cpus = trial.cpus_per_node if "cpu_shares" in can else None
    if link:
        imitated.append(f"links: limited to {link:g} Mb/s in both directions")
    if cpus:
        imitated.append(f"processors: each node has {cpus:g} of this machine's cores, communication included")
        imitated.append(
            "neighbours: nodes that a trial leaves idle train by themselves, so that cores are equally busy"
        )
    if trial.profile:
        times = f"{trial.training['pace']:g} of the time" if "pace" in trial.training else "the time"
        origin = f"the profile {trial.profile['name']}, {trial.profile['origin']}"
        imitated.append(f"accelerator: compute takes {times} of {origin}")
    if trial.compute == "real" and not cpus:
        imitated.append(CONTENTION)
    said = tuple(dict.fromkeys(imitated))
    return replace(trial, label="emulated", link_mbps=link, cpus_per_node=cpus, neighbours=bool(cpus), imitated=said)
