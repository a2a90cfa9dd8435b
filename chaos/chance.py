"""Random schedules: from a count and a seed to plain faults, before a plan is made. Called by `chaos.commands`.

Nothing after it knows of chance: suite and plan hold the faults as if they had been written down, and beside them
(`drawn`) what they were drawn with. The same seed draws the same schedule.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from proving_ground.bench.mechanisms import has_launchers, has_survivors
from proving_ground.bench.protocols import Cluster
from proving_ground.bench.spec import Case, Share, SpecError, Suite, build
from proving_ground.chaos.faults import FAULTS, Fault
from proving_ground.chaos.spec import AFTER_STEPS, FaultSpec, clash
from proving_ground.training.typed import Rule, unknown

MORE_STEPS = 10  # at most, beyond the usual ones: so that faults are not always as far from a checkpoint
SOON_S = 1.5  # within which a fault follows that is to overlap: later many a recovery is over
TOGETHER = 3  # faults that overlap, at most
ALONE = ("all_nodes", "slurm_requeue", "slurm_preempt", "slurm_time_limit")  # what nothing is left beside
FOR_GOOD = {"slurm": ("slurm_node_down", "node_lost")}
"""Cluster → what takes a node there that nobody gives back: no other fault is steady after it."""


@dataclass(frozen=True)
class Chance:
    """What `[case.random]` says."""

    count: Annotated[int, Rule(least=1, most=1000)]
    among: tuple[str, ...] = ()  # kinds; empty: all that the cluster can do and that make sense in the case
    seed: Annotated[int, Rule(least=0, most=2**31 - 1)] | None = None  # None: the suite's
    overlap: Share = 0.2  # of the faults that follow another


def chance_of(case: Case) -> Chance:
    """What a case says of chance, checked.

    Raises:
        SpecError: an unknown key or kind, or a number out of range; or faults are written down beside it.
    """
    where = f"case {case.name!r}: random"
    if case.faults:
        raise SpecError(f"{where}: and [[case.faults]]; a case has one of them")
    found = build(Chance, case.random, where)
    for kind in found.among:
        if kind not in FAULTS:
            raise SpecError(f"{where}: among: {unknown('fault', kind, FAULTS)}")
    return found


def drawn(suite: Suite, cluster: Cluster) -> Suite:
    """The suite with the faults of its random cases.

    Raises:
        SpecError: nothing that it may draw from can be done.
    """
    return replace(suite, cases=tuple(with_faults(suite, it, cluster) if it.random else it for it in suite.cases))


def with_faults(suite: Suite, case: Case, cluster: Cluster) -> Case:
    """A case with the faults that its chance draws."""
    asked = chance_of(case)
    kinds = [kind for kind in asked.among or FAULTS if not FAULTS[kind].why_not(cluster)]
    if not asked.among:
        for_good = FOR_GOOD.get(cluster.name, ())
        kinds = [kind for kind in kinds if kind not in for_good and makes_sense(FAULTS[kind], suite, case)]
    if not kinds:
        why = "; ".join(f"{it}: {FAULTS[it].why_not(cluster)}" for it in asked.among) or "the cluster can do no fault"
        raise SpecError(f"case {case.name!r}: random: nothing to draw from: {why}")
    told = replace(asked, among=tuple(kinds), seed=suite.seed if asked.seed is None else asked.seed)
    nodes = [f"n{number}" for number in range(1, min(suite.nodes) + 1)]
    return replace(
        case, random={}, drawn={**asdict(told), "among": kinds}, faults=tuple(schedule(told, nodes, case.mechanism))
    )


def makes_sense(fault: Fault, suite: Suite, case: Case) -> bool:
    """Whether a fault can do something to a case that nobody drew it for by name."""
    needs, ends_last = set(fault.needs), fault.ends == "node" and min(suite.nodes) == 1 and fault.key not in ALONE
    if fault.ends == "launcher" and fault.target != "coordinator" and not has_launchers(case.mechanism):
        return False
    if "checkpoints" in needs and (has_survivors(case.mechanism) or not case.training.get("checkpoint_every")):
        return False  # who joins gets its state from a peer
    return not ends_last and (suite.volume_mb is not None or not needs & {"volume", "checkpoints"})


def schedule(asked: Chance, nodes: Sequence[str], mechanism: str) -> list[dict[str, Any]]:
    """The faults, as tables of a suite: the same for the same seed."""
    dice = random.Random(f"{asked.seed} schedule")  # noqa: S311 - to be repeated, not secret
    found: list[dict[str, Any]] = []
    group: list[dict[str, Any]] = []  # those that overlap with the newest
    for number in range(1, asked.count + 1):
        overlaps = dice.random() < asked.overlap
        after_s, more = round(dice.uniform(0.1, SOON_S), 1), dice.randrange(MORE_STEPS + 1)
        fault = None
        for kind in dice.sample(list(asked.among), len(asked.among)) if overlaps and group else ():
            if fault := beside(kind, group, nodes, mechanism, dice):
                break
        if fault:
            group.append({**fault, "after_s": after_s})
        else:
            group = [{**aimed(dice.choice(asked.among), nodes, dice), "after_steps": AFTER_STEPS + more}]
        found.append({**group[-1], "seed": (asked.seed or 0) * 1000 + number})
    return found


def aimed(kind: str, nodes: Sequence[str], dice: random.Random) -> dict[str, Any]:
    """A fault with its target: a node by its name, where the kind is not always aimed at the same."""
    return {"kind": kind, "target": dice.choice(nodes)} if FAULTS[kind].target == "one" else {"kind": kind}


def beside(
    kind: str, group: Sequence[Mapping[str, Any]], nodes: Sequence[str], mechanism: str, dice: random.Random
) -> dict[str, Any] | None:
    """A fault of this kind that can be done while the others are at work; None where that is none."""
    kinds = [str(it["kind"]) for it in group]
    free = [node for node in nodes if node not in {it.get("target") for it in group}]
    apart = FAULTS[kind].target == "one"
    if len(group) == TOGETHER or {kind, *kinds} & set(ALONE) or (len(free) < 2 if apart else kind in kinds):
        return None
    if wants_workers(kind) and not has_survivors(mechanism) and any(FAULTS[it].ends != "nobody" for it in kinds):
        return None  # all of them are being started again
    fault = aimed(kind, free, dice)
    held = [(FaultSpec(it["kind"]), where_of(it, nodes)) for it in group]
    return None if any(clash((FaultSpec(kind), where_of(fault, nodes)), other) for other in held) else fault


def where_of(fault: Mapping[str, Any], nodes: Sequence[str]) -> Sequence[str]:
    """The nodes that a drawn fault is aimed at."""
    return [str(fault["target"])] if "target" in fault else nodes


def wants_workers(kind: str) -> bool:
    """Whether it is done to a worker's process, which has to be there."""
    return FAULTS[kind].ends == "workers" or kind == "hang"
