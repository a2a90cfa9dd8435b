"""From a suite to its trials: what will run, in which order, labelled how, for about how long. Called by `bench.run`.

A plan is made before anything is started, and what cannot be done is refused here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from proving_ground.bench import mechanisms
from proving_ground.bench.faithful import (
    HOST_SHARE,
    NOTHING_MEASURED,
    Calibration,
    Host,
    Pace,
    Settled,
    node_share,
    settle,
)
from proving_ground.bench.further import Further, again
from proving_ground.bench.jobstate import STEADY_STEPS, disturbances
from proving_ground.bench.mechanisms import MECHANISMS
from proving_ground.bench.nodes import on_gpus
from proving_ground.bench.protocols import Ability, Cluster, Nemesis, Node, Workload
from proving_ground.bench.spec import Case, SpecError, Suite, Trial, variant
from proving_ground.bench.workloads import WORKLOADS, read_profile
from proving_ground.training.typed import unknown

CONTENTION = "nodes share the cores: this shows contention, not scaling"
STARTUP_S = 1.5  # of a trial, beside the steps; and for each node
STARTUP_PER_NODE_S = 0.15
BEYOND_START_S = 30.0  # to notice a fault, to load, and to make up for what was lost
REFERENCE_S = 3.0
MOST_TRIALS = 10_000  # months of them


@dataclass(frozen=True)
class Plan:
    """All trials in the order in which they run, and the cluster they are meant for."""

    trials: tuple[Trial, ...]
    cluster: str
    option: str
    abilities: tuple[Ability, ...]
    imitated: tuple[str, ...]
    refused: tuple[Mapping[str, Any], ...] = ()  # {case, nodes, why} after a calibration, {fault, why} of chaos
    decided: tuple[str, ...] = ()  # what a calibration decided, in words
    looks: int = 1  # how often it is looked at whether all is decided (`bench.further`)
    further: Further | None = None  # what was added after the first look
    nodes: tuple[Node, ...] = ()  # as far as they are known once they are up

    @property
    def estimate_s(self) -> float:
        """Seconds that the whole will take, roughly."""
        return sum(trial.estimate_s for trial in self.trials)

    @property
    def node_hours(self) -> float:
        """The same in hours of one node: what a cluster would be paid for."""
        return sum(trial.nodes * trial.estimate_s for trial in self.trials) / 3600

    def document(self, nemesis: Nemesis | None = None) -> dict[str, object]:
        """As `plan.json` has it; each fault with the traits that the nemesis knows of it."""
        cluster = {
            "name": self.cluster,
            "option": self.option,
            "abilities": [asdict(it) for it in self.abilities],
            "imitated": self.imitated,
            "nodes": [asdict(it) for it in self.nodes],
        }
        trials = [
            asdict(it) | mechanisms.traits_of(it) | {"faults": with_traits(it.faults, nemesis)} for it in self.trials
        ]
        names = sorted({it.profile["name"] for it in self.trials if it.profile})
        profiles = {name: read_profile(name, "plan") for name in names}
        return {
            "trials": trials, "refused": self.refused, "decided": self.decided, "cluster": cluster,
            "estimate_s": self.estimate_s, "profiles": profiles, "looks": self.looks,
            "further": asdict(self.further) if self.further else None,
        }  # fmt: skip

    def extended(self, further: Further) -> Plan:
        """The plan with the trials that are added after the first look.

        Raises:
            SpecError: it has no such case: it is of another version or machine.
        """
        if missing := sorted(further.sizes.keys() - {it.case for it in self.trials}):
            raise SpecError(f"further repeats of {', '.join(missing)}, which the plan lacks by now; start a new run")
        return replace(self, trials=(*self.trials, *again(self.trials, further)), further=further)


def with_traits(faults: Sequence[Mapping[str, Any]], nemesis: Nemesis | None) -> list[dict[str, Any]]:
    """The faults, each with its `traits`."""
    return [{**it, "traits": nemesis.traits(it)} if nemesis else {**it} for it in faults]


def make_plan(
    suite: Suite,
    cluster: Cluster,
    workloads: Mapping[str, Workload] = WORKLOADS,
    found: Calibration = NOTHING_MEASURED,
) -> Plan:
    """The plan of a suite on a cluster: repeats outermost, so that drift of the machine hits every size alike.

    `found` is what a calibration measured.

    Raises:
        SpecError: an unknown workload, something that the workload or the cluster cannot do, or nothing is left to do.
    """
    admit(suite, workloads)
    return planned(settled(suite, cluster, workloads, found), cluster, workloads, found)


def settled(suite: Suite, cluster: Cluster, workloads: Mapping[str, Workload], found: Calibration) -> Settled:
    """What a calibration decides of a suite."""

    def trials(it: Settled) -> Sequence[Trial]:
        return planned(it, cluster, workloads, found).trials

    return settle(suite, found, workloads, trials)


def planned(decided: Settled, cluster: Cluster, workloads: Mapping[str, Workload], found: Calibration) -> Plan:
    """The plan of a suite in which all is decided."""
    suite, abilities = decided.suite, tuple(cluster.abilities())
    refuse_what_is_not_there(suite, cluster)
    shuffle = random.Random(suite.seed)  # noqa: S311 - an order that can be repeated, no secret
    trials: list[Trial] = []
    for name, part in blocks(suite, workloads):
        in_turn: list[Trial] = []
        for repeat in range(1, max(case.repeats or part.repeats for case in part.cases) + 1):
            block = list(trials_of(part, repeat, workloads))
            shuffle.shuffle(block)
            in_turn += block
        in_turn.sort(key=lambda trial: bool(trial.twin_of))  # twins go as far as all that they are compared with
        labelled = [replace(label(trial, cluster, abilities), block=name) for trial in in_turn]
        expected = [timed(trial, found.paces) for trial in labelled]
        trials += [bounded(trial, workloads[trial.workload]) for trial in expected]
    refused = {(it.case, it.nodes): why for it in trials if (why := refusal(it, found.host_mbps))}
    refused |= {(case, nodes): f"{nodes} nodes: {why}" for (case, nodes), why in decided.left_out.items()}
    kept = [trial for trial in trials if (trial.case, trial.nodes) not in refused]
    if not kept:
        raise SpecError(f"suite {suite.name!r}: every trial would measure the host: {next(iter(refused.values()))}")
    in_order = numbered_trials(first_figure_first(kept))
    for trial in in_order:
        workloads[trial.workload].check(trial)
        mechanisms.check(trial)
    bars = {case.name: case.efficiency_min if case.batch_per_node else {} for case in suite.cases}
    why_not = tuple(
        {"case": case, "nodes": nodes, "why": why, "bar": bars[case].get(str(nodes))}
        for (case, nodes), why in refused.items()
    )
    return Plan(
        in_order, cluster.name, cluster.option, abilities, tuple(cluster.imitated()), why_not, decided.words,
        looks=2 if suite.decide else 1,
    )  # fmt: skip


def first_figure_first(trials: Sequence[Trial]) -> list[Trial]:
    """Begin with the two smallest sizes of the quickest case, so that `bench.sofar` has a first figure soon.

    Which of the two is first stays as it was drawn. What is predicted, or has faults, twins and replays, stays too.
    """
    if any(trial.block or trial.role or trial.faults for trial in trials):
        return list(trials)
    sizes: dict[str, list[Trial]] = {}
    for trial in sorted(trials, key=lambda it: it.nodes):
        if trial.repeat == 1 and "weak" in trial.scaling:
            sizes.setdefault(trial.case, []).append(trial)
    pairs = [its[:2] for its in sizes.values() if len(its) > 1]
    chosen = {it.id for it in min(pairs, key=lambda pair: sum(it.estimate_s for it in pair), default=[])}
    return sorted(trials, key=lambda it: it.id not in chosen)


def refuse_what_is_not_there(suite: Suite, cluster: Cluster) -> None:
    """A cluster has no more nodes than it has, and perhaps no volume.

    Raises:
        SpecError: with what is needed and what there is.
    """
    if suite.volume_mb is not None and not cluster.has_volume:
        raise SpecError(
            f"suite {suite.name!r} needs a folder that all nodes share, for checkpoints: "
            f"--cluster {cluster.name}:…,volume=/a/folder/they/share"
        )
    apart = any(it.mechanism in MECHANISMS and MECHANISMS[it.mechanism].own_node for it in suite.cases)
    needed = max(suite.nodes) + apart
    if cluster.capacity is not None and needed > cluster.capacity:
        more = " (one of them for the coordinator)" if apart else ""
        raise SpecError(
            f"suite {suite.name!r} needs {needed} nodes{more}, and cluster {cluster.name} has {cluster.capacity}; "
            "--nodes asks for fewer"
        )


def numbered_trials(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Trials with their ids, `t001` …, in the order in which they run; a replay names the trial that it replays."""
    ids = {trial.id: f"t{number:03}" for number, trial in enumerate(trials, 1) if trial.id}
    return tuple(
        replace(trial, id=f"t{number:03}", replays=ids.get(trial.replays, "")) for number, trial in enumerate(trials, 1)
    )


def admit(suite: Suite, workloads: Mapping[str, Workload]) -> None:
    """Refuse cases that no workload can do, and more trials than anybody could wait for.

    Raises:
        SpecError: an unknown workload, a setting that makes no sense, too many trials.
    """
    for case in (it for asked in suite.cases for it in (asked, *(variant(asked, table) for table in asked.instead))):
        if case.workload not in workloads:
            raise SpecError(f"case {case.name!r}: {unknown('workload', case.workload, workloads)}")
        workloads[case.workload].admit(case)
    count = sum(
        (case.repeats or suite.repeats) * len(suite.nodes) * (len(case.faults) if case.apart and case.faults else 1)
        for case in suite.cases
    )
    if count > MOST_TRIALS:
        raise SpecError(f"suite {suite.name!r}: {count} trials; allowed: at most {MOST_TRIALS}")


def blocks(suite: Suite, workloads: Mapping[str, Workload]) -> Iterable[tuple[str, Suite]]:
    """What runs one after the other: with `predict_from`, block a for the fit of a prediction, then all sizes as b.

    Raises:
        SpecError: no case can be predicted.
    """
    if not suite.predict_from or max(suite.nodes) <= max(suite.predict_from):
        return [("", suite)]
    paced = [it for it in suite.cases if it.workload in workloads and workloads[it.workload].compute == "paced"]
    cases = tuple(replace(case, repeats=None) for case in paced if case.link_mbps)
    if not cases:
        raise SpecError(f"suite {suite.name!r}: predict_from: no case has paced compute and a link rate")
    first = replace(suite, nodes=suite.predict_from, repeats=suite.predict_repeats, cases=cases)
    return [("a", first), ("b", suite)]


def timed(trial: Trial, paces: Mapping[str, Pace]) -> Trial:
    """The trial with the time that a calibration leads one to expect."""
    if trial.faults or (pace := paces.get(trial.workload)) is None:
        return trial
    return replace(trial, estimate_s=pace.trial_s(trial.steps, trial.batch_per_node, trial.cpus_per_node))


def bounded(trial: Trial, workload: Workload) -> Trial:
    """The trial with its bound, where there is one; its steps take at least so long."""
    bound = workload.bound(trial)
    if bound is None:
        return trial
    estimate_s = STARTUP_S + STARTUP_PER_NODE_S * trial.nodes + trial.steps * bound["step_s"]
    return replace(trial, bound=bound, estimate_s=estimate_s)


def refusal(trial: Trial, host_mbps: Host) -> str:
    """Why a trial would measure the host and not its links, by a calibration; empty if it would not."""
    host = host_mbps.get(trial.nodes)
    if trial.nodes == 1 or not trial.link_mbps or host is None or trial.link_mbps <= HOST_SHARE * host:
        return ""
    return (
        f"{trial.nodes} nodes: links of {trial.link_mbps:g} Mb/s are above a tenth of what this host moves between "
        f"them without limits ({host:.0f} Mb/s bus bandwidth)"
    )


def trials_of(suite: Suite, repeat: int, workloads: Mapping[str, Workload]) -> Iterable[Trial]:
    """One repeat of every case at every size. Weak and strong share a trial where they ask the same."""
    for case in suite.cases:
        if repeat > (case.repeats or suite.repeats):
            continue
        for nodes in suite.nodes:
            for batch, scaling in batches(case, nodes).items():
                workload = workloads[case.workload]
                whole = trial_of(suite, case, nodes, repeat, batch, scaling, workload)
                for number, trial in enumerate(apart(whole) if case.apart and case.faults else [whole]):
                    yield replace(trial, id=f"{case.name}/{nodes}/{batch}/{repeat}/{number}")
                    if case.faults and workload.replays(trial):
                        yield replay_of(replace(trial, id=f"{case.name}/{nodes}/{batch}/{repeat}/{number}"))
                if repeat == 1:
                    yield from twins_of(suite, case, batch, workload)
                    if case.faults and workload.has_reference(whole):
                        yield reference_of(whole)


def apart(trial: Trial) -> Iterable[Trial]:
    """A trial for each fault and those that overlap with it; they keep their ids and seeds."""
    calm_s = trial.estimate_s - mechanisms.faults_s(trial.mechanism, trial.faults)
    groups = [tuple(group) for group in disturbances(trial.faults)]
    return [replace(trial, faults=it, estimate_s=calm_s + mechanisms.faults_s(trial.mechanism, it)) for it in groups]


def twins_of(suite: Suite, case: Case, batch: int, workload: Workload) -> Iterable[Trial]:
    """Undisturbed trials of a case with faults: the same training, at the node counts that it names."""
    for nodes in case.twins:
        undisturbed = trial_of(suite, replace(case, faults=(), drawn={}), nodes, 1, batch, ("strong",), workload)
        jobs = disturbances(case.faults) if case.apart else [case.faults]
        as_far_s = max((mechanisms.trains_s(case.mechanism, list(it)) for it in jobs), default=0.0)
        yield replace(undisturbed, twin_of=case.name, role="twin", estimate_s=undisturbed.estimate_s + as_far_s)


def replay_of(trial: Trial) -> Trial:
    """The undisturbed trial that makes the steps of a job with faults again, in worlds of the same sizes."""
    calm_s = trial.estimate_s - mechanisms.faults_s(trial.mechanism, trial.faults)
    return beside(trial, role="replay", replays=trial.id, estimate_s=calm_s)


def beside(trial: Trial, **about: Any) -> Trial:  # noqa: ANN401 - fields of a trial
    """An undisturbed trial without a mechanism, by which a job with faults is judged."""
    seeded = mechanisms.has_survivors(trial.mechanism)
    calm: dict[str, Any] = {"mechanism": "", "min_nodes": None, "faults": (), "drawn": {}}
    own = {"id": "", **calm, "twin_of": trial.case, "seeded": seeded}
    return replace(trial, **(own | about))


def reference_of(trial: Trial) -> Trial:
    """The first steps of a case by a plain loop."""
    return beside(trial, role="reference", estimate_s=REFERENCE_S)


def batches(case: Case, nodes: int) -> dict[int, tuple[str, ...]]:
    """Global batch → the scalings that it serves at this size."""
    wanted: dict[int, tuple[str, ...]] = {}
    if case.batch_per_node is not None:
        if case.batch_per_node < case.ranks_per_node:
            raise SpecError(f"case {case.name!r}: batch_per_node {case.batch_per_node} is smaller than ranks_per_node")
        wanted[case.batch_per_node * nodes] = ("weak",)
    if case.global_batch is not None:
        if case.global_batch < nodes * case.ranks_per_node:
            ranks = f"{nodes} nodes" if case.ranks_per_node == 1 else f"{nodes * case.ranks_per_node} ranks"
            raise SpecError(f"case {case.name!r}: global_batch {case.global_batch} is smaller than {ranks}")
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
        warmup_steps=case.warmup_steps, ranks_per_node=case.ranks_per_node,
        link_mbps=case.link_mbps and case.link_mbps / case.dilation,
        dilation=case.dilation, cpus_per_node=share_of_cores(suite, case, workload), compute=workload.compute,
        profile=workload.profile(case), training=dilated(case, workload), command=case.command,
        efficiency_min=bar, quality_min=case.quality_min, mechanism=case.mechanism,
        min_nodes=case.min_nodes and min(case.min_nodes, nodes),
        faults=numbered(case.faults, suite.seed), drawn=case.drawn, patience_s=patience_s(case),
        startup_s=case.startup_s, silence_s=case.silence_s, neighbours=case.neighbours, peer=case.peer,
        estimate_s=STARTUP_S + STARTUP_PER_NODE_S * nodes + case.steps * step_s
        + mechanisms.faults_s(case.mechanism, case.faults),
    )  # fmt: skip


def patience_s(case: Case) -> float:
    """Seconds until a job that is not steady again counts as stuck: most ways back begin with another start."""
    asked = [*(it.get("after_steps") for it in case.faults), case.training.get("fingerprint_every")]
    steps = max([STEADY_STEPS, *(it for it in asked if isinstance(it, int))])
    usual = case.startup_s + BEYOND_START_S + steps * case.estimated_step_s
    return usual if case.patience_s is None else case.patience_s


def numbered(faults: Sequence[Mapping[str, Any]], seed: int) -> tuple[Mapping[str, Any], ...]:
    """Faults with an `id` (f01 …) and a `seed` each; a fault that has them already (a replay's) keeps them."""
    return tuple({"id": f"f{number:02}", "seed": seed * 1000 + number, **it} for number, it in enumerate(faults, 1))


def dilated(case: Case, workload: Workload) -> Mapping[str, Any]:
    """The case's training with its times stretched.

    Raises:
        SpecError: real compute takes the time that it takes.
    """
    if case.dilation == 1:
        return case.training
    if workload.compute != "paced":
        raise SpecError(f"case {case.name!r}: dilation = {case.dilation:g}: allowed for paced compute only")
    return {**case.training, "pace": case.training.get("pace", 1.0) * case.dilation}


def share_of_cores(suite: Suite, case: Case, workload: Workload) -> float | None:
    """Cores for each node: the same at every size, so that sizes compare; what does not compute needs no limit.

    A GPU is fed by several threads: read ahead, forward, backward. A share of one core would hold it back.
    """
    if case.cpus_per_node is not None or workload.compute != "real":
        return case.cpus_per_node
    return node_share(suite, most=math.inf if on_gpus(case.training) else 1.0)


def label(trial: Trial, cluster: Cluster, abilities: Sequence[Ability]) -> Trial:
    """The trial with its label: what stands in for what. What the cluster cannot imitate is dropped, in words."""
    can = {ability.name for ability in abilities if ability.yes}
    imitated = list(cluster.imitated())
    if not imitated and not trial.profile and trial.dilation == 1:
        return replace(trial, label="real", cpus_per_node=None, link_mbps=None, neighbours=False)
    link = trial.link_mbps if "links" in can else None
    cpus = trial.cpus_per_node if "cpu_shares" in can else None
    if link:
        imitated.append(f"links: limited to {link:g} Mb/s in both directions")
    if link and trial.dilation != 1:
        imitated.append(
            f"time: dilated by {trial.dilation:g}, compute and links alike: these stand for links of "
            f"{link * trial.dilation:g} Mb/s"
        )
    if cpus:
        imitated.append(f"processors: each node has {cpus:g} of this machine's cores, communication included")
    company = bool(cpus) and trial.neighbours and not trial.mechanism and not trial.role
    if company:
        imitated.append(
            "neighbours: nodes that a trial leaves idle train by themselves, so that cores are equally busy, "
            "and weak scaling is compared with them"
        )
    if trial.profile:
        times = f"{trial.training['pace']:g} of the time" if "pace" in trial.training else "the time"
        origin = f"the profile {trial.profile['name']}, {trial.profile['origin']}"
        imitated.append(f"accelerator: compute takes {times} of {origin}")
    if trial.compute == "real" and not cpus:
        imitated.append(CONTENTION)
    said = tuple(dict.fromkeys(imitated))
    return replace(
        trial, label="emulated", link_mbps=link, cpus_per_node=cpus, neighbours=company, imitated=said
    )  # fmt: skip
