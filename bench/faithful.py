"""What a calibration decides: links, dilation, shares, models and what there is time for, so that links measure links.

Called by `bench.plan` for suites with `faithful = true`. Links of real compute are lowered to a tenth of what the host
moves; paced compute is dilated instead, its links with it, so that every share of time stays what it is. Cores that
something else uses are left to it. Where all that takes longer than `limit_s`, cases that really compute give way to
their `instead`, then lose their strong scaling, for which there are no bars; then paced ones do. Then go repeats, or
else the largest sizes, of paced cases first: a threshold at a size that is left out stays open (`reports.scaling`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from proving_ground.bench.nodes import on_gpus
from proving_ground.bench.protocols import Workload
from proving_ground.bench.spec import Case, Suite, Trial, variant

HOST_SHARE = 0.1  # of what the host moves without limits: above it, a shaped link would measure the host
SECOND_LOOK = 3  # repeats of real compute that there is to be time for, where four leave something open
MOST_LONGER = 1.5  # times `limit_s`, where something else uses cores
FEWEST = 2  # repeats: one has no interval
FEWEST_REAL = 3  # of real compute, whose repeats differ more
HARNESS_CORES = 0.4  # left to the harness and the kernel when the nodes share the cores
FAITHFUL_PART = 0.6  # of the free cores is for faithful nodes: the kernel moves their packets with the rest
LEAST_SHARE = 0.02  # of a core, however much others use

Host = Mapping[int, float]  # node count → Mb/s of bus bandwidth without limits


@dataclass(frozen=True)
class Pace:
    """How long real compute takes here, in seconds: a step of `batch` samples a node, and a trial beside its steps.

    Both on nodes of `cpus` cores each; None where that was not kept.
    """

    step_s: float
    batch: int
    beside_s: float
    cpus: float | None = None

    def trial_s(self, steps: int, batch: int, cpus: float | None = None) -> float:
        """Seconds that a trial takes, roughly: more samples take longer, and all is faster on a larger share."""
        slower = self.cpus / cpus if self.cpus and cpus else 1.0
        return slower * (self.beside_s + steps * batch * self.step_s / self.batch)


@dataclass(frozen=True)
class Calibration:
    """What was measured before anything was decided; empty where nothing was."""

    host_mbps: Host = field(default_factory=dict)
    taken_cores: float = 0.0  # in use by something else
    paces: Mapping[str, Pace] = field(default_factory=dict)  # by workload
    took_s: float = 0.0

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> Calibration:
        """As `calibration.json` has it; what an older version did not measure is empty."""
        if document is None:
            return cls()
        return cls(
            host_mbps={int(count): float(rate) for count, rate in document["busbw_mbps"].items()},
            taken_cores=float(document.get("taken_cores", 0.0)),
            paces={workload: Pace(**pace) for workload, pace in document.get("paces", {}).items()},
            took_s=float(document.get("took_s", 0.0)),
        )


NOTHING_MEASURED = Calibration()


@dataclass(frozen=True)
class Settled:
    """A suite in which all is decided, what was decided in words, and sizes that are left out: (case, nodes) → why."""

    suite: Suite
    words: tuple[str, ...] = ()
    left_out: Mapping[tuple[str, int], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Way:
    """One way to run a suite: paced cases on at most so many nodes, and what that changes, in words."""

    suite: Suite
    paced_most: int
    changes: tuple[str, ...] = ()

    def most(self, *, paced: bool) -> int:
        """The nodes of the largest trial of a case."""
        return min(self.paced_most, max(self.suite.nodes)) if paced else max(self.suite.nodes)


def settle(
    suite: Suite, found: Calibration, workloads: Mapping[str, Workload], trials_of: Callable[[Settled], Sequence[Trial]]
) -> Settled:
    """The first way whose links are faithful and whose time is within `limit_s`, else the shortest.

    Without a calibration, or where a suite leaves nothing to it, the suite as it is.

    Raises:
        SpecError: an `instead` that makes no case.
    """
    if not suite.faithful or not found.host_mbps:
        return Settled(suite)
    limit_s, whole = left_s(suite, found), list(ways(suite, workloads))
    asked_s = 0.0
    for way, looks in [(it, True) for it in whole] + [(it, False) for it in cuts(whole[-1], workloads)]:
        settled = fitted(way, suite.nodes, found, workloads)
        trials = trials_of(settled)
        took_s, further_s = lasting_s(trials), second_look_s(suite, trials)
        asked_s = asked_s or took_s
        if took_s + (further_s if looks else 0.0) <= limit_s:
            break
    kept = f", {minutes(further_s)} of them for a second look" if further_s and looks else ""
    kept += "; more than on an idle machine" if longer(found.taken_cores) > 1 and limit_s < math.inf else ""
    why = f"as asked the run would take {minutes(asked_s)}, and {minutes(limit_s)} are allowed{kept}"
    changed = (f"{', '.join(way.changes)}: {why}",) if way.changes else ()
    over = () if took_s <= limit_s else (f"still about {minutes(took_s)}: nothing is left that could be dropped",)
    return replace(settled, words=(*settled.words, *changed, *over), left_out=dict.fromkeys(settled.left_out, why))


def lasting_s(trials: Iterable[Trial]) -> float:
    """Seconds that trials take, roughly."""
    return sum(it.estimate_s for it in trials)


def second_look_s(suite: Suite, trials: Iterable[Trial]) -> float:
    """Seconds for further repeats (`bench.further`) of what differs most from repeat to repeat."""
    if not suite.decide:
        return 0.0
    return SECOND_LOOK * lasting_s(
        it for it in trials if it.repeat == 1 and it.compute == "real" and "weak" in it.scaling
    )


def left_s(suite: Suite, found: Calibration) -> float:
    """Seconds that a calibration left to the trials: of `limit_s`, and more of it where cores are taken."""
    return max(0.0, longer(found.taken_cores) * (suite.limit_s or math.inf) - found.took_s)


def longer(taken: float) -> float:
    """How many times `limit_s` a run may take where something else uses so many cores: the others are fewer."""
    cores = os.cpu_count() or 1
    return min(MOST_LONGER, cores / max(LEAST_SHARE, cores - taken))


def node_share(suite: Suite, taken: float = 0.0, most: float = 1.0) -> float:
    """Cores of this machine for each node that may be up, where something else uses `taken` of them.

    `most`: who computes by one thread uses no more than one.
    """
    free = (os.cpu_count() or 1) - taken
    cores = FAITHFUL_PART * free if suite.faithful else free - HARNESS_CORES
    return max(LEAST_SHARE, round(min(most, cores / (max(suite.nodes) + spare_nodes(suite))), 3))


def spare_nodes(suite: Suite) -> int:
    """Nodes that are idle at the largest size too; none where there is no other size to compare it with."""
    return suite.spare_nodes if len(set(suite.nodes)) > 1 else 0


def shared_out(suite: Suite, taken: float, workloads: Mapping[str, Workload]) -> tuple[Suite, tuple[str, ...]]:
    """The suite with its part of the free cores for cases that really compute, and what was changed in words."""
    usual, share = node_share(suite), node_share(suite, taken)
    shared = {it.name: replace(it, cpus_per_node=share, estimated_step_s=it.estimated_step_s * usual / share)
              for it in suite.cases
              if not is_paced(it, workloads) and not on_gpus(it.training) and it.cpus_per_node is None}  # fmt: skip
    slower = f"{', '.join(shared)}: {share:g} cores a node instead of {usual:g}: something else uses {taken:g}"
    said = (slower,) if shared and share < usual else ()
    return replace(suite, cases=tuple(shared.get(it.name, it) for it in suite.cases)), said


def minutes(seconds: float) -> str:
    """`5.5 min`."""
    return f"{seconds / 60:.1f} min"


def ways(suite: Suite, workloads: Mapping[str, Workload]) -> Iterator[Way]:
    """From what is asked to the shortest that has all repeats and sizes."""
    way = Way(suite, max(suite.nodes))
    yield way
    for kind in (False, True):
        for place, case in enumerate(suite.cases):
            for table in case.instead if is_paced(case, workloads) is kind else ():
                way = swapped(way, place, case, table)
                yield way
        barred = [it for it in way.suite.cases if is_paced(it, workloads) is kind and it.efficiency_min]
        if both := [it.name for it in barred if it.batch_per_node and it.global_batch]:
            way = weak_only(way, both)
            yield way


def cuts(way: Way, workloads: Mapping[str, Workload]) -> Iterator[Way]:
    """The same, then with fewer repeats of paced cases, then of real compute, or on fewer nodes, or both."""
    whole = way
    yield way
    for kind, fewest in ((True, FEWEST), (False, FEWEST_REAL)):
        chosen = [case.name for case in way.suite.cases if is_paced(case, workloads) is kind]
        shorter = list(fewer(way, chosen, fewest))
        yield from shorter
        way = shorter[-1] if shorter else way
    yield from smaller(whole, workloads)
    yield from smaller(way, workloads)


def smaller(way: Way, workloads: Mapping[str, Workload]) -> Iterator[Way]:
    """The same on fewer nodes, paced cases first, down to two sizes; fewer nodes have larger shares of the cores."""
    paced = [it.name for it in way.suite.cases if is_paced(it, workloads)]
    sizes, larger = sorted(set(way.suite.nodes)), way
    for most in (it for it in sizes[-2:0:-1] if it > max(way.suite.predict_from, default=0)):
        if paced and len(paced) < len(way.suite.cases):
            said = f"{', '.join(paced)} on at most {most} nodes"
            yield replace(larger, paced_most=most, changes=(*larger.changes, said))
        kept = tuple(it for it in way.suite.nodes if it <= most)
        said = f"at most {most} nodes instead of {sizes[-1]}"
        larger = Way(replace(way.suite, nodes=kept), most, (*way.changes, said))
        yield larger


def weak_only(way: Way, names: Sequence[str]) -> Way:
    """The same without strong scaling of some cases, whose bars are for weak scaling."""
    cases = tuple(replace(it, global_batch=None) if it.name in names else it for it in way.suite.cases)
    said = f"{', '.join(names)} without strong scaling"
    return replace(way, suite=replace(way.suite, cases=cases), changes=(*way.changes, said))


def fewer(way: Way, names: Sequence[str], fewest: int) -> Iterator[Way]:
    """The same with fewer repeats of some cases, one less each time."""
    suite = way.suite
    asked = max((case.repeats or suite.repeats for case in suite.cases if case.name in names), default=fewest)
    for repeats in range(asked - 1, fewest - 1, -1):
        cases = tuple(replace(it, repeats=repeats) if it.name in names else it for it in suite.cases)
        said = f"{repeats} repeats of {', '.join(names)} instead of {asked}"
        yield replace(way, suite=replace(suite, cases=cases), changes=(*way.changes, said))


def swapped(way: Way, place: int, asked: Case, table: Mapping[str, Any]) -> Way:
    """The same with one of its `instead` in the place of a case that the suite asks for."""
    new, cases = variant(asked, table), list(way.suite.cases)
    cases[place] = new
    others = (it for it in way.changes if not it.endswith(f" instead of {asked.name}"))
    suite = replace(way.suite, cases=tuple(cases))
    return replace(way, suite=suite, changes=(*others, f"{new.name} instead of {asked.name}"))


def is_paced(case: Case, workloads: Mapping[str, Workload]) -> bool:
    """Whether its time can be dilated."""
    return case.workload in workloads and workloads[case.workload].compute == "paced"


def fitted(way: Way, asked: Sequence[int], found: Calibration, workloads: Mapping[str, Workload]) -> Settled:
    """The way with shares and links that this host can imitate, what that changes, and the sizes left out."""
    suite, words = shared_out(way.suite, found.taken_cores, workloads)
    cases: list[Case] = []
    left_out: dict[tuple[str, int], str] = {}
    for case in suite.cases:
        paced = is_paced(case, workloads)
        most = way.most(paced=paced)
        rate, count = min((rate, count) for count, rate in found.host_mbps.items() if count <= most)
        fit = dilated(case, HOST_SHARE * rate) if paced else lowered(case, HOST_SHARE * rate)
        if fit != case:
            moves = f"a tenth of the {rate:.0f} Mb/s that this host moves between {count} nodes"
            words = (*words, f"{told(case, fit)}: {moves}")
        cases.append(fit)
        left_out |= {(case.name, nodes): "" for nodes in asked if nodes > most}
    return Settled(replace(suite, cases=tuple(cases), faithful=False), words, left_out)


def dilated(case: Case, tenth_mbps: float) -> Case:
    """The case in slower time, in tenths, so that its links need no more; `dilation` in the suite is the least."""
    needed = math.ceil(10 * (case.link_mbps or 0) / tenth_mbps) / 10
    return replace(case, dilation=max(case.dilation, needed))


def lowered(case: Case, tenth_mbps: float) -> Case:
    """The case with links of at most that rate, in whole Mb/s."""
    slower = case.link_mbps is not None and case.link_mbps > tenth_mbps
    return replace(case, link_mbps=float(max(1, math.floor(tenth_mbps)))) if slower else case


def told(case: Case, fit: Case) -> str:
    """What was changed, in words."""
    if fit.dilation != case.dilation:
        runs_at = (fit.link_mbps or 0) / fit.dilation
        return (
            f"{fit.name}: time dilated by {fit.dilation:g}, links of {fit.link_mbps:g} Mb/s run at {runs_at:.0f} Mb/s"
        )
    return f"{fit.name}: links of {fit.link_mbps:g} Mb/s instead of {case.link_mbps:g}"
