"""What each command of `pg chaos` does. Called by `chaos.cli`; errors are exceptions, one line each."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from rich.table import Table

from proving_ground.bench import rundir
from proving_ground.bench.clusters import choose
from proving_ground.bench.jobstate import disturbances
from proving_ground.bench.plan import make_plan
from proving_ground.bench.progress import clock
from proving_ground.bench.protocols import Cluster
from proving_ground.bench.provenance import VERSION
from proving_ground.bench.run import Parts
from proving_ground.bench.runner import named, record, report, watch
from proving_ground.bench.shell import counted, put
from proving_ground.bench.spec import Case, SpecError, Suite, parse_nodes, suite_from, within
from proving_ground.bench.spec import check_suite as check_bench_suite
from proving_ground.bench.terminal import Terminal
from proving_ground.chaos import chance, spec
from proving_ground.chaos.faults import FAULTS
from proving_ground.chaos.nemesis import FaultNemesis
from proving_ground.chaos.schedule import Chaos
from proving_ground.chaos.spec import FaultSpec
from proving_ground.training.typed import unknown

TRIALS_MAX = 10_000

Chosen = tuple[str, Sequence[Mapping[str, Any]]]
"""A case, and faults for it."""


def list_faults(options: Namespace) -> int:
    """Every fault: what it does, and whether this machine can do it."""
    cluster, why = choose(options.cluster)
    if options.json:
        rows = [{"fault": key, "meaning": it.meaning, "target": it.target, "held_s": it.hold_s,
                 "why_not": it.why_not(cluster) or None} for key, it in FAULTS.items()]  # fmt: skip
        return put("chaos-list", {"cluster": cluster.name, "why": why, "faults": rows})
    table = Table("", "fault", "what it does", "aimed at", "held", box=None, padding=(0, 2, 0, 0))
    for key, fault in FAULTS.items():
        reason = fault.why_not(cluster)
        held = f"{fault.hold_s:g} s" if fault.hold_s else "–"
        table.add_row("✗" if reason else "✓", key, f"{fault.meaning}; not here: {reason}" if reason else fault.meaning,
                      fault.target, held)  # fmt: skip
    console = Terminal(soft_wrap=True)
    console.print(f"cluster {cluster.name}: {why}")
    console.print(table)
    return 0


def asked(options: Namespace) -> Suite:
    """The suite that the options mean.

    Raises:
        SpecError: something in it makes no sense.
    """
    suite = spec.load(options.suite)
    suite = replace(suite, cases=named(suite.cases, options.case))
    if options.random is not None:
        suite = at_random(suite, options)
    elif options.overlap is not None:
        raise SpecError("--overlap is of --random's faults: say --random N as well")
    if options.only:
        kept = (only(case, options.only) for case in suite.cases)
        suite = replace(suite, cases=tuple(case for case in kept if case.faults or case.random))
    if options.trials is not None:
        if any(case.random for case in suite.cases):
            raise SpecError("--trials repeats faults that are written down; of random ones --random N draws more")
        if any(it.get("at_s") is not None for case in suite.cases for it in case.faults):
            raise SpecError("--trials repeats faults one after the other, and at_s is one moment")
        within(options.trials, 1, TRIALS_MAX, "--trials")
        suite = replace(suite, cases=tuple(replace(it, faults=it.faults * options.trials) for it in suite.cases))
    suite = replace(
        suite, nodes=parse_nodes(options.nodes) if options.nodes else suite.nodes,
        seed=suite.seed if options.seed is None else options.seed,
    )  # fmt: skip
    suite = check_bench_suite(suite, "command line")
    spec.check_suite(suite)
    for case in suite.cases:
        if case.random:
            chance.chance_of(case)
    return suite


def at_random(suite: Suite, options: Namespace) -> Suite:
    """The suite with random faults in place of those of its case.

    Raises:
        SpecError: it has several cases.
    """
    if len(suite.cases) > 1:
        raise SpecError(f"--random: {options.suite} has several cases, and --case NAME says which")
    (case,) = suite.cases
    about = {"count": options.random, "overlap": options.overlap, "seed": options.seed}
    given = {key: value for key, value in about.items() if value is not None}
    return replace(suite, cases=(replace(case, faults=(), random={**case.random, **given}),))


def only(case: Case, kinds: list[str]) -> Case:
    """The case with the faults of these kinds.

    Raises:
        SpecError: there is no such kind.
    """
    for kind in kinds:
        if kind not in FAULTS:
            raise SpecError(f"--only: {unknown('fault', kind, FAULTS)}")
    if case.random:
        return replace(case, random={**case.random, "among": kinds})
    return without(case, lambda kind: kind not in kinds)


def without(case: Case, left_out: Callable[[str], bool]) -> Case:
    """The case without the faults of some kinds, and without what overlaps with them: it would be another test."""
    groups = (group for group in disturbances(case.faults) if not any(left_out(it["kind"]) for it in group))
    return replace(case, faults=tuple(it for group in groups for it in group))


def possible(suite: Suite, cluster: Cluster) -> tuple[Suite, dict[str, str]]:
    """The suite without the faults that this cluster cannot do, and why not, by kind; what is random is drawn.

    Raises:
        SpecError: nothing is left.
    """
    suite = chance.drawn(suite, cluster)
    kinds = {it["kind"] for case in suite.cases for it in case.faults}
    off = {kind: why for kind in sorted(kinds) if (why := FAULTS[kind].why_not(cluster))}
    cases = tuple(without(case, lambda kind: kind in off) for case in suite.cases)
    left = replace(suite, cases=tuple(case for case in cases if case.faults))
    if not left.cases:
        raise SpecError("; ".join(f"{kind}: {why}" for kind, why in off.items()))
    if off:
        spec.check_suite(left)
    return left, off


def plan(options: Namespace) -> int:
    """Print the faults in their order, and the time they take; nothing is started."""
    cluster, why = choose(options.cluster)
    suite, off = possible(asked(options), cluster)
    made = make_plan(suite, cluster)
    if options.json:
        return put("chaos-plan", {
            "suite": suite.name, "cluster": cluster.name, "why": why, "trials": made.trials, "impossible": off,
            "estimate_s": made.estimate_s,
        })  # fmt: skip
    console = Terminal(soft_wrap=True)
    count = sum(len(trial.faults) for trial in made.trials)
    whole = f"{counted(len(made.trials), 'job')}, {counted(count, 'fault')}, about {clock(made.estimate_s)}"
    console.print(f"suite {suite.name}: {whole}\ncluster {cluster.name}: {why}")
    for trial in made.trials:
        words = f"undisturbed twin of {trial.twin_of}" if trial.twin_of else counted(len(trial.faults), "fault")
        about = f"{trial.id} {trial.case}: {trial.mechanism}, {trial.nodes} nodes, {words}"
        console.print("\n" * bool(trial.faults) + f"{about}, about {clock(trial.estimate_s)}")
        for fault in spec.faults_of(trial.faults, trial.case):
            held = f"held {fault.seconds:g} s" if fault.seconds else ""
            console.print(f"  {fault.id}  {fault.kind:<20} {fault.where:<12} {due(fault):<18} {held}".rstrip())
    remark(console, suite, off)
    return 0


def due(fault: FaultSpec) -> str:
    """When a fault comes, in words."""
    if fault.at_s is not None:
        return f"at {fault.at_s:g} s"
    if fault.after_s is not None:
        return f"{fault.after_s:g} s later"
    return fault.phase or f"after {fault.steps} steps"


def remark(console: Terminal, suite: Suite, off: Mapping[str, str]) -> None:
    """What was drawn, and with which seed; what this machine cannot do."""
    chances = [
        f"case {case.name}: {counted(len(case.faults), 'fault')} drawn with seed {case.drawn['seed']} among "
        f"{counted(len(case.drawn['among']), 'kind')}"
        for case in suite.cases
        if case.drawn
    ]
    for line in (*chances, *(f"not here: {kind}: {why}" for kind, why in off.items())):
        console.print(line)


def run(options: Namespace) -> int:
    """Run a suite and report on it; the report's exit status is the verdict."""
    cluster, why = choose(options.cluster)
    suite, off = possible(asked(options), cluster)
    return carry_out(suite, cluster, why, off, options)


def carry_out(suite: Suite, cluster: Cluster, why: str, off: Mapping[str, str], options: Namespace) -> int:
    """Do it, then call the report."""
    console = Terminal(soft_wrap=True, quiet=options.quiet, stderr=options.json)
    made = make_plan(suite, cluster)
    time_s = clock(made.estimate_s)
    console.print(
        f"proving-ground {VERSION} · suite {suite.name} · cluster {cluster.name}: {why} · about {time_s}",
        highlight=False,
    )
    remark(console, suite, off)
    parts = Parts(schedule=Chaos(), nemesis=FaultNemesis(), watch=watch(options), impossible=off)
    return report(record(suite, cluster, options.runs, parts, made=made), options)


def replay(options: Namespace) -> int:
    """Do some faults of an earlier run again in a job of their own: same seeds, same targets, same phases."""
    store = rundir.find(options.runs, options.run)
    chosen = recorded(store.read("plan"), options.fault, str(store.path))
    suite = suite_of(store, chosen)
    cluster, why = choose(options.cluster)
    alone, off = possible(suite, cluster)
    console = Terminal(soft_wrap=True, quiet=options.quiet, stderr=options.json)
    for before, it in pairwise(chosen[1]):
        if it.get("phase") == spec.RECOVERY:
            console.print(f"{it['id']} hits the recovery from {before['id']}, so both are done again")
    return carry_out(alone, cluster, why, off, options)


def suite_of(store: rundir.RunDir, chosen: Chosen) -> Suite:
    """The suite of a run with some of its faults only."""
    suite = suite_from(store.read("spec"), where=str(store.path / "spec.json"), name=store.suite)
    case, faults = chosen
    cases = tuple(replace(it, faults=tuple(faults), drawn={}) for it in suite.cases if it.name == case)
    suite = replace(suite, cases=cases)
    spec.check_suite(suite)
    return suite


def recorded(plan: Mapping[str, Any], wanted: Sequence[str], where: str) -> Chosen:
    """The case and the tables of faults in a run's plan, in its order.

    Each is named by its id, such as `f07`, or `t002.f07` where several trials have faults; `f03..f07` are all between.

    Raises:
        SpecError: there is none, or they are of several trials.
    """
    found = {f"{trial['id']}.{it['id']}": trial for trial in plan["trials"] for it in trial["faults"]}
    if not found:
        raise SpecError(f"{where}: no fault {wanted[0]!r}: it is no chaos run")
    names = [name for words in wanted for name in between(words, list(found), where)]
    trials = {found[name]["id"]: found[name] for name in names}
    if len(trials) > 1:
        raise SpecError(f"{where}: {', '.join(sorted(trials))} have these faults; allowed: faults of one trial")
    (trial,) = trials.values()
    ids = {name.partition(".")[2] for name in names}
    return trial["case"], picked(trial["faults"], with_what_is_hit(trial["faults"], ids))


def between(words: str, known: Sequence[str], where: str) -> Sequence[str]:
    """The faults that `f03` or `f03..f07` means, with the names of their trials."""
    first, dots, last = words.partition("..")
    begin = one_of(first, known, where)
    if not dots:
        return [begin]
    trial = begin.partition(".")[0]
    end = one_of(last if "." in last else f"{trial}.{last}", known, where)
    if known.index(end) < known.index(begin):
        raise SpecError(f"{where}: {words}: {end} comes before {begin}")
    return known[known.index(begin) : known.index(end) + 1]


def one_of(word: str, known: Sequence[str], where: str) -> str:
    """The fault that a word names: the first where several trials have one of that id.

    Raises:
        SpecError: there is none.
    """
    found = next((name for name in known if word in (name, name.partition(".")[2])), None)
    if found is None:
        raise SpecError(f"{where}: {unknown('fault', word, known)}")
    return found


def with_what_is_hit(faults: Sequence[Mapping[str, Any]], ids: Collection[str]) -> set[str]:
    """The ids, and before each fault that hits a recovery those that the job recovers from: it is nothing without."""
    found = set(ids)
    groups = [[], *disturbances(faults)]
    for before, group in reversed(list(pairwise(groups))):
        hit = {str(it["id"]) for it in before}
        if found.isdisjoint(hit) and any(it["id"] in found and it.get("phase") == spec.RECOVERY for it in group):
            found |= hit
    return found


def picked(faults: Sequence[Mapping[str, Any]], ids: Collection[str]) -> list[Mapping[str, Any]]:
    """Some of a trial's faults; one whose disturbance lost all before it is the first of what is left."""
    made: list[Mapping[str, Any]] = []
    for group in disturbances(faults):
        kept = [it for it in group if it["id"] in ids]
        for number, it in enumerate(kept):
            left_out = {"traits"} | ({"after_s"} if number == 0 else set())  # the new plan has its own traits
            made.append({key: value for key, value in it.items() if key not in left_out})
    return made
