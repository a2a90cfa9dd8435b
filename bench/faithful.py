"""What a calibration decides: links, dilation, shares, model and repeats, so that links measure links, not the host.

Called by `bench.plan` for suites with `faithful = true`. Links of real compute are lowered to a tenth of what the host
moves; paced compute is dilated instead, its links with it, so that every share of time stays what it is. Cores that
something else uses are left to it. Where all that takes longer than `limit_s`, a case gives way to its `instead`, then
paced cases lose repeats, then cases that really compute do, then paced ones their largest sizes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.protocols import Workload
from bench.spec import Case, Suite, variant

HOST_SHARE = 0.1  # of what the host moves without limits: above it, a shaped link would measure the host
FEWEST = 2  # repeats: one has no interval
FEWEST_REAL = 3  # of real compute, whose repeats differ more
HARNESS_CORES = 0.4  # left to the harness and the kernel when the nodes share the cores
FAITHFUL_PART = 0.6  # of the free cores is for faithful nodes: the kernel moves their packets with the rest
LEAST_SHARE = 0.02  # of a core, however much others use

Host = Mapping[int, float]  # node count → Mb/s of bus bandwidth without limits


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
    most: int
    changes: tuple[str, ...] = ()


def settle(
    suite: Suite, host: Host, taken: float, workloads: Mapping[str, Workload], estimate_s: Callable[[Settled], float]
) -> Settled:
    """The first way whose links are faithful and whose time is within `limit_s`, else the shortest.

    Without a calibration (`host` is empty), or where a suite leaves nothing to it, the suite as it is. `taken` cores
    are in use by something else.

    Raises:
        SpecError: an `instead` that makes no case.
    """
    if not suite.faithful or not host:
        return Settled(suite)
    limit_s, (suite, shares) = suite.limit_s or math.inf, shared_out(suite, taken, workloads)
    tried: list[tuple[float, Way, Settled]] = []
    for way in ways(suite, workloads):
        found = fitted(way, host, workloads)
        tried.append((estimate_s(found), way, found))
        if tried[-1][0] <= limit_s:
            break
    took_s, way, found = tried[-1]
    why = f"as asked the run would take {minutes(tried[0][0])}, and {minutes(limit_s)} are allowed"
    changed = (f"{', '.join(way.changes)}: {why}",) if way.changes else ()
    over = () if took_s <= limit_s else (f"still about {minutes(took_s)}: nothing is left that could be dropped",)
    return Settled(found.suite, (*shares, *found.words, *changed, *over), dict.fromkeys(found.left_out, why))


def node_share(suite: Suite, taken: float = 0.0) -> float:
    """Cores of this machine for each node of the largest size, where something else uses `taken` of them."""
    free = (os.cpu_count() or 1) - taken
    cores = FAITHFUL_PART * free if suite.faithful else free - HARNESS_CORES
    return max(LEAST_SHARE, round(min(1.0, cores / max(suite.nodes)), 3))


def shared_out(suite: Suite, taken: float, workloads: Mapping[str, Workload]) -> tuple[Suite, tuple[str, ...]]:
    """The suite with its part of the free cores for cases that really compute, and what was changed in words."""
    usual, share = node_share(suite), node_share(suite, taken)
    shared = {it.name: replace(it, cpus_per_node=share, estimated_step_s=it.estimated_step_s * usual / share)
              for it in suite.cases if not is_paced(it, workloads) and it.cpus_per_node is None}  # fmt: skip
    slower = f"{', '.join(shared)}: {share:g} cores a node instead of {usual:g}: something else uses {taken:g}"
    said = (slower,) if shared and share < usual else ()
    return replace(suite, cases=tuple(shared.get(it.name, it) for it in suite.cases)), said


def minutes(seconds: float) -> str:
    """`5.5 min`."""
    return f"{seconds / 60:.1f} min"


def ways(suite: Suite, workloads: Mapping[str, Workload]) -> Iterator[Way]:
    """From what is asked to what is shortest."""
    way = Way(suite, max(suite.nodes))
    yield way
    for level in range(max(len(case.instead) for case in suite.cases)):
        way = swapped(suite, level)
        yield way
    for kind, fewest in ((True, FEWEST), (False, FEWEST_REAL)):
        chosen = [case.name for case in way.suite.cases if is_paced(case, workloads) is kind]
        shorter = list(fewer(way, chosen, fewest))
        yield from shorter
        way = shorter[-1] if shorter else way
    paced = [case.name for case in way.suite.cases if is_paced(case, workloads)]
    for count in sorted(suite.nodes, reverse=True)[1:]:
        if paced and count > 1:
            yield replace(way, most=count, changes=(*way.changes, f"{', '.join(paced)} on at most {count} nodes"))


def fewer(way: Way, names: Sequence[str], fewest: int) -> Iterator[Way]:
    """The same with fewer repeats of some cases, one less each time."""
    suite = way.suite
    asked = max((case.repeats or suite.repeats for case in suite.cases if case.name in names), default=fewest)
    for repeats in range(asked - 1, fewest - 1, -1):
        cases = tuple(replace(it, repeats=repeats) if it.name in names else it for it in suite.cases)
        said = f"{repeats} repeats of {', '.join(names)} instead of {asked}"
        yield Way(replace(suite, cases=cases), way.most, (*way.changes, said))


def swapped(suite: Suite, level: int) -> Way:
    """Each case replaced by what stands in its `instead` at this place, or by the last of it."""
    cases = tuple(variant(it, it.instead[min(level, len(it.instead) - 1)]) if it.instead else it for it in suite.cases)
    said = (f"{new.name} instead of {old.name}" for old, new in zip(suite.cases, cases, strict=True) if old.instead)
    return Way(replace(suite, cases=cases), max(suite.nodes), tuple(said))


def is_paced(case: Case, workloads: Mapping[str, Workload]) -> bool:
    """Whether its time can be dilated."""
    return case.workload in workloads and workloads[case.workload].compute == "paced"


def fitted(way: Way, host: Host, workloads: Mapping[str, Workload]) -> Settled:
    """The way with links that this host can imitate, and what was changed for it."""
    cases: list[Case] = []
    words: list[str] = []
    left_out: dict[tuple[str, int], str] = {}
    for case in way.suite.cases:
        paced = is_paced(case, workloads)
        most = way.most if paced else max(way.suite.nodes)
        rate, count = min((rate, count) for count, rate in host.items() if count <= most)
        fit = dilated(case, HOST_SHARE * rate) if paced else lowered(case, HOST_SHARE * rate)
        if fit != case:
            words.append(
                f"{told(case, fit)}: a tenth of the {rate:.0f} Mb/s that this host moves between {count} nodes"
            )
        cases.append(fit)
        left_out |= {(case.name, nodes): "" for nodes in way.suite.nodes if nodes > most}
    return Settled(replace(way.suite, cases=tuple(cases), faithful=False), tuple(words), left_out)


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
