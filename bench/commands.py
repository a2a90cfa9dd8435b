"""What each command of `pg bench` does. Called by `bench.cli`; errors are exceptions, one line each."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from proving_ground.bench import doctor as survey
from proving_ground.bench import listing, loglines, rundir
from proving_ground.bench.calibrate import NAME as CALIBRATION
from proving_ground.bench.calibrate import calibrate as measure_host
from proving_ground.bench.calibrate import takes_s
from proving_ground.bench.child import environment, ours
from proving_ground.bench.clusters import ISOLATION, POOLS, choose, refuse_unknown
from proving_ground.bench.clusters.local.clean import clean as remove_leftovers
from proving_ground.bench.clusters.local.clean import leftovers
from proving_ground.bench.clusters.options import described, listed
from proving_ground.bench.clusters.remote.cluster import AgentCluster
from proving_ground.bench.clusters.remote.pool import NOT_ASKED
from proving_ground.bench.faithful import HOST_SHARE, Calibration
from proving_ground.bench.further import Sizes, sizes_of
from proving_ground.bench.plan import Plan, make_plan
from proving_ground.bench.progress import clock
from proving_ground.bench.protocols import Ability, Cluster, Node, TrialFiles
from proving_ground.bench.provenance import VERSION
from proving_ground.bench.run import Parts
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.runner import named, record, report, watch
from proving_ground.bench.shell import counted, place, put
from proving_ground.bench.spec import SpecError, Suite, Trial, check_suite, load_suite, parse_nodes, suite_from
from proving_ground.bench.terminal import Terminal
from proving_ground.bench.workloads import WORKLOADS

LATER = (
    "The host is calibrated when the run begins: links that it cannot imitate are refused; links, dilation, model, "
    "scaling, sizes and repeats of this suite are decided by calibration, and stand here as asked."
)
WIDE = 100
"""Columns of a terminal from which on a list shows all that it knows."""


def doctor(options: Namespace) -> int:
    """Print what works here and what does not, with reasons; of a cluster elsewhere, its options and its machines."""
    engine, _, words = options.cluster.partition(":")
    if engine in POOLS and not words:
        kind = POOLS[engine][0]
        if options.json:
            why = f"its options; with them, `--cluster {engine}:…` looks at its machines"
            return put("bench-doctor", {"cluster": engine, "why": why, "options": listed(kind), "abilities": ()})
        print(described(kind, engine))
        return 0
    cluster, why = choose(options.cluster)
    elsewhere = engine in POOLS
    abilities = [*cluster.abilities(), *(() if elsewhere else survey.survey())]
    if options.json:
        known = listed(POOLS[engine][0]) if elsewhere else ()
        return put("bench-doctor", {"cluster": cluster.name, "why": why, "options": known, "abilities": abilities})
    print(f"proving-ground {VERSION} · cluster {cluster.name}: {why}\n")
    for line in (*cluster.imitated(), f"nodes: {cluster.capacity} at most") if elsewhere else ():
        print(f"·  {line}")
    for ability in abilities:
        print(f"{'✓' if ability.yes else '✗'}  {ability.name.replace('_', ' '):<13} {ability.how}")
    return 0


def asked(options: Namespace) -> Suite:
    """The suite that the options mean, with their overrides.

    Raises:
        SpecError: something in it makes no sense.
    """
    suite = load_suite(options.suite)
    if options.from_run:
        source = rundir.find(options.runs, options.from_run)
        suite = suite_from(source.read("spec"), where=str(source.path / "spec.json"), name=source.suite)
    cases = named(suite.cases, options.case)
    if options.repeats is not None:
        cases = tuple(replace(case, repeats=None) for case in cases)
    if options.link_mbps is not None:
        cases = tuple(replace(case, link_mbps=options.link_mbps) for case in cases)
    if options.repeats is not None:  # asked for, so it may take its time
        suite = replace(suite, limit_s=None, decide=False)
    changed = replace(
        suite, cases=cases, nodes=parse_nodes(options.nodes) if options.nodes is not None else suite.nodes,
        repeats=suite.repeats if options.repeats is None else options.repeats,
        seed=suite.seed if options.seed is None else options.seed,
    )  # fmt: skip
    if any(case.faults or case.random for case in changed.cases):
        raise SpecError(f"suite {changed.name!r} has faults, and bench does none: pg chaos run --suite {options.suite}")
    return check_suite(changed, "command line")


def plan(options: Namespace) -> int:
    """Print every trial, what it would start, and the time it would take."""
    price = options.price_per_node_hour
    if price is not None and not 0 < price < math.inf:
        raise SpecError(f"--price-per-node-hour {price:g}: must be above 0")
    suite = asked(options)
    cluster, why = choose(options.cluster)
    made = make_plan(suite, cluster)
    if options.json:
        return put_plan(made, cluster, why, price)
    print(f"cluster {cluster.name}: {why}\n")
    with tempfile.TemporaryDirectory() as folder:
        for trial in first_repeat(made):
            print(describe(trial, cluster, Path(folder)).replace(folder, "SCRATCH") + "\n")
    if suite.calibrate and links(cluster):
        print(LATER if suite.faithful else LATER.partition(";")[0] + ".")
    if suite.decide:
        busy = ", or half as long again where something else uses the cores" if suite.faithful else ""
        print(f"What these leave open gets further repeats, until {clock(suite.limit_s or 0)} are over{busy}.")
    count, repeats = len(made.trials), max(it.repeat for it in made.trials)
    cost = f", {price * made.node_hours:,.4g} at that price" if price is not None else ""
    print(
        f"{count} trials in {repeats} interleaved repeats (the first is shown) · about {clock(made.estimate_s)} · "
        f"{made.node_hours:.3g} node-hours{cost} (predicted)"
    )
    return 0


def put_plan(made: Plan, cluster: Cluster, why: str, price: float | None) -> int:
    """The plan for machines: every trial, not only those of the first repeat."""
    return put("bench-plan", {
        "cluster": cluster.name, "why": why, "trials": made.trials, "estimate_s": made.estimate_s,
        "node_hours": made.node_hours, "cost": None if price is None else price * made.node_hours,
    })  # fmt: skip


def first_repeat(made: Plan) -> list[Trial]:
    """The trials of the first repeat, smallest first."""
    return sorted((it for it in made.trials if it.repeat == 1), key=lambda it: (it.case, it.nodes))


def describe(trial: Trial, cluster: Cluster, folder: Path) -> str:
    """What one trial would start."""
    nodes = [Node(f"n{number}", f"n{number}") for number in range(1, trial.nodes + 1)]
    files = TrialFiles(folder, folder, folder)
    return cluster.plan(WORKLOADS[trial.workload].processes(trial, nodes, files), trial)


def run(options: Namespace) -> int:
    """Run a suite and report on it; the report's exit status is the verdict."""
    resume = rundir.find(options.runs, options.resume) if options.resume else None
    if resume:
        if resume.suite == CALIBRATION:
            why = "is a calibration, which is made anew: run the suite"
            raise SpecError(f"--resume {options.resume}: {resume.path} {why}")
        options.from_run = str(resume.path)
        options.cluster = option_of(resume)
    suite = asked(options)
    cluster, why = choose(options.cluster)
    console = Terminal(soft_wrap=True, quiet=options.quiet, stderr=options.json)
    measured = host(suite, cluster, options.runs, resume, console)
    made = make_plan(suite, cluster, found=Calibration.of(measured))
    for line in left_out(made):
        console.print(line)
    console.print(headline(suite, cluster, made.abilities, made.estimate_s))
    console.print(f"cluster {cluster.name}: {why}")
    further = partial(undecided, quiet=options.quiet)
    parts = Parts(watch=watch(options), between=predict, undecided=further, calibration=measured)
    store = record(suite, cluster, options.runs, parts, resume, made)
    if options.no_report:
        console.print(f"recorded: {store.path}")
        return 0
    return report(store, options)


def option_of(store: RunDir) -> str:
    """What `--cluster` has to say for the cluster of a run."""
    cluster = store.read("plan")["cluster"]
    return str(cluster.get("option", cluster["name"]))


def host(suite: Suite, cluster: Cluster, runs: Path, resume: RunDir | None, console: Terminal) -> dict[str, Any] | None:
    """What the host moves without limits, if the suite asks: measured now, or when the resumed run began."""
    if not suite.calibrate or not links(cluster):
        return None
    if resume:
        return listing.read_or_none(resume, "calibration")
    make_plan(suite, cluster)  # as asked: it refuses the caller's mistakes before a minute is spent on measuring
    if max(suite.nodes) == 1:
        return None
    takes = clock(takes_s(cluster, suite.nodes, suite))
    computes = ", and how fast it computes" if suite.faithful else ""
    console.print(f"calibrating: what this host moves between its nodes, what of it is free{computes} · about {takes}")
    return measure_host(cluster, suite.nodes, runs, of=suite)


def links(cluster: Cluster) -> bool:
    """Whether it limits links: one that does not imitates none that could measure the host."""
    return any(it.name == "links" and it.yes for it in cluster.abilities())


def left_out(made: Plan) -> list[str]:
    """What was decided by a calibration, and what is not run; a line for each decision and reason."""
    why: dict[str, list[str]] = {}
    for it in made.refused:
        why.setdefault(it["why"], []).append(it["case"])
    decided = [f"decided by calibration: {it}" for it in made.decided]
    return decided + [f"refused: {len(cases)} of the cases at {reason}" for reason, cases in why.items()]


def calibrate(options: Namespace) -> int:
    """Measure what the host moves, and say which links it can imitate."""
    nodes = parse_nodes(options.nodes)
    cluster, why = choose(options.cluster)
    if not options.json:
        print(f"cluster {cluster.name}: {why}")
    found = Calibration.of(measure_host(cluster, nodes, options.runs)).host_mbps
    if options.json:
        sizes = [{"nodes": it, "busbw_mbps": rate, "link_mbps": HOST_SHARE * rate} for it, rate in found.items()]
        return put("bench-calibrate", {"cluster": cluster.name, "why": why, "sizes": sizes})
    for count, rate in found.items():
        print(
            f"{count:>3} nodes  bus bandwidth {rate:>8.0f} Mb/s  links up to {HOST_SHARE * rate:.0f} Mb/s are faithful"
        )
    return 0


def headline(suite: Suite, cluster: Cluster, abilities: Iterable[Ability], estimate_s: float) -> str:
    """The first line of a run."""
    isolated = [it for it in abilities if it.name in ISOLATION]
    can = " ".join(f"{it.name.replace('_', ' ')} {'✓' if it.yes else '✗'}" for it in isolated)
    return f"proving-ground {VERSION} · suite {suite.name} · cluster {cluster.name} ({can}) · about {clock(estimate_s)}"


def predict(store: RunDir) -> None:
    """Have `reports` fit what block a measured and write `prediction.json`; what it prints is for people."""
    subprocess.run(ours("reports", "predict", str(store.path)), env=environment(), check=False)


def undecided(store: RunDir, *, quiet: bool = False) -> Sizes:
    """Have `reports` judge what is there and write `undecided.json`; the sizes at which a verdict is still open."""
    say = subprocess.DEVNULL if quiet else None
    done = subprocess.run(ours("reports", "undecided", str(store.path)), env=environment(), check=False, stdout=say)
    return {} if done.returncode else sizes_of(store.read("undecided"))


def list_runs(options: Namespace) -> int:
    """One line a run, the newest last."""
    runs = rundir.all_runs(options.runs)
    if options.json:
        return put("bench-list", {"runs": [listing.listed(it) for it in runs]})
    if not runs:
        print(f"no runs under {options.runs}; start with: pg bench run{place(options)}")
        return 0
    found = [listing.listed(it) for it in runs]
    console = Terminal(soft_wrap=True)
    hidden = () if console.width >= WIDE else ("trials", "took")
    least = {"run": max(len(it.run) for it in found), "headline": 14}  # an id that is cut off cannot be typed
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in (it for it in listing.HEADS if it not in hidden):
        table.add_column(name, no_wrap=name not in ("headline", "verdicts"), min_width=least.get(name, len(name)))
    for it in found:
        table.add_row(*(cell for name, cell in zip(listing.HEADS, it.cells, strict=True) if name not in hidden))
    console.print(table)
    return 0


def logs(options: Namespace) -> int:
    """Print what the processes said, merged by time, each line with trial, process, rank and step before it."""
    store = rundir.find(options.runs, options.run)
    begin_t = loglines.clock(store).t
    for line in loglines.lines(store, loglines.Wanted(options.trial, options.node, options.rank, options.since)):
        print(json.dumps(line.record()) if options.json else loglines.shown(line, begin_t))
    return 0


def clean(options: Namespace) -> int:
    """Remove what killed runs left behind."""
    refuse_unknown(options.cluster)
    if options.cluster.partition(":")[0] in POOLS:
        return clean_elsewhere(options)
    found = leftovers() if options.dry_run else remove_leftovers()
    if options.json:
        return put("bench-clean", cleaned([str(it) for it in found], dry_run=options.dry_run))
    for line in found:
        print(line)
    done = "would be removed" if options.dry_run else "removed"
    print(f"{counted(len(found), 'thing')} {done}" if found else "nothing was left behind")
    return 0


def cleaned(
    removed: Sequence[str], in_use: Sequence[str] = (), not_asked: Sequence[str] = (), *, dry_run: bool
) -> Mapping[str, Any]:
    """What `clean` says to machines."""
    return {"removed": removed, "in_use": in_use, "not_asked": not_asked, "dry_run": dry_run}


def clean_elsewhere(options: Namespace) -> int:
    """The same on the machines of a cluster, or in its queue."""
    cluster, _ = choose(options.cluster)
    found = cluster.pool.clean(dry_run=options.dry_run) if isinstance(cluster, AgentCluster) else ()
    left, in_use, not_asked = ([it for it in found if it.startswith(word)] for word in ("left", "in use", NOT_ASKED))
    if options.json:
        put("bench-clean", cleaned(left, in_use, not_asked, dry_run=options.dry_run))
        return 1 if not_asked else 0
    for line in found:
        print(line)
    done = "would be removed" if options.dry_run else "removed"
    others = f"; {counted(len(not_asked), 'machine')} could not be asked: run it again" if not_asked else ""
    print((f"{counted(len(left), 'thing')} {done}" if left else "nothing was left behind") + others)
    return 1 if not_asked else 0


def prune(options: Namespace) -> int:
    """Keep the newest runs of each suite."""
    if options.keep < 1:
        raise SpecError(f"--keep: {options.keep}; allowed: 1 or more")
    suites: dict[str, list[RunDir]] = {}
    for store in rundir.all_runs(options.runs):
        suites.setdefault(store.suite, []).append(store)
    old = [store for stores in suites.values() for store in stores[: -options.keep] if not rundir.in_progress(store)]
    for store in old:
        if not options.json:
            print(f"{'would remove' if options.dry_run else 'removed'} {store.path}")
        if not options.dry_run:
            shutil.rmtree(store.path)
    if options.json:
        return put("bench-prune", {"removed": [str(it.path) for it in old], "dry_run": options.dry_run})
    count = sum(map(len, suites.values()))
    done = "would be removed" if options.dry_run else "removed"
    print(f"{len(old)} of {count} runs {done}" if old else f"nothing to remove: {count} runs, none beyond --keep")
    return 0
