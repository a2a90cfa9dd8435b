"""Random faults for as long as it takes: `python -m tests.validations soak --minutes 60 [--mechanism restart]`.

Each round is one job put through a schedule that is a function of its seed: kinds, targets, phases and faults during
the recovery from the one before. Sittings accumulate. The first wrong, stuck or slow fault stops everything: suite and
run are kept, and the commands that play it again and that shorten its schedule (`--minimise`) are printed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.mechanisms import MECHANISMS
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import SpecError, load_suite
from proving_ground.chaos.spec import RECOVERY
from tests.validations.chaos_runs import BAD, chaos_process, faults_toml, results_of
from tests.validations.sitting import MEASURED, ROOT, Document, Sitting, keep, load, origin

FILE = MEASURED / "soak.json"
COMMAND = "nox -s validate -- soak"
RUNS = ROOT / "runs"
FAULTS, FAULT_S = 20, 12.0  # of a round, and about how long each takes
HAPPENED = "happened"  # the check of the fault itself: one without evidence was none, and does not count
LOOK_S = 0.2  # between two looks whether a round is over
DOUBLE = 0.2  # of the kills have another fault during their recovery
STEP_PHASES = ("", "", "forward", "allreduce", "before_checkpoint", "checkpoint_write", "before_rename")

Table = dict[str, Any]
Unit = tuple[Table, ...]
"""A fault and those during its recovery: they stay together."""

KILLS: Mapping[str, float] = {"worker_kill": 0, "node_kill": 1, "agent_kill": 3, "preemption": 1}
LASTING: Mapping[str, float] = {
    "coordinator_kill": 1, "hang": 6, "slow_node": 4, "partition": 5, "partition_oneway": 5, "partition_pair": 5,
    "link_rate": 4, "loss": 4, "delay": 4, "disk_full": 4, "disk_slow": 4, "disk_readonly": 4,
}  # fmt: skip
DAMAGE = ("checkpoint_truncated", "checkpoint_bitflip", "checkpoint_missing", "checkpoint_pointer")
ON_NODES = ("hang", "slow_node", "partition", "partition_oneway", "link_rate", "loss", "delay", *KILLS)
"""Kinds that are aimed at one node; the others have targets of their own."""

LINK_MBPS = 10
"""Of every node, in float sums: steps mostly wait, so that rounds side by side do not fight over the cores."""

HEAD = """title = "Soak, seed {seed}"
nodes = [3]
repeats = 1
disk_mb = 64
volume_mb = 256
seed = {seed}

[[case]]
name = "soak"
workload = "digits"
mechanism = "{mechanism}"
min_nodes = {min_nodes}
global_batch = 24
link_mbps = {link_mbps}
steps = 200000
warmup_steps = 5
estimated_step_s = 0.001
twins = [3]
training = {{ {sums}optimizer = "adamw", lr = 0.002, lr_schedule = "cosine", clip_norm = 1.0, dropout = 0.1, \
checkpoint_every = 5, fingerprint_every = 5, ledger = true }}
"""


EXACT = 'reduction = "exact", shards = 12, '
"""Of a live job: who takes part changes, and the bits must not."""


def draw(seed: int, count: int) -> list[Unit]:
    """So many faults of a seed, in units."""
    chance = random.Random(seed)  # noqa: S311 - to be repeated, not secret
    found: list[Unit] = []
    while sum(map(len, found)) < count:
        found.append(unit(chance))
    return found


def unit(chance: random.Random) -> Unit:
    """A fault, perhaps with another during its recovery."""
    kind = chance.choices([*KILLS, *LASTING, *DAMAGE], [4.0] * len(KILLS) + [1.0] * (len(LASTING) + len(DAMAGE)))[0]
    first = {"kind": kind, "after_steps": 15 if kind in DAMAGE else chance.randint(6, 18)}
    if kind in ON_NODES:
        first["target"] = chance.choice(("one", "rank0"))
    if kind in KILLS and (phase := chance.choice(STEP_PHASES)):
        first["phase"] = phase
    if hold_s := {**KILLS, **LASTING}.get(kind):
        first["hold_s"] = hold_s
    if kind in KILLS and chance.random() < DOUBLE:
        second = chance.choice(("worker_kill", "node_kill"))
        return first, {"kind": second, "phase": RECOVERY, "target": "one", "hold_s": KILLS[second]}
    return (first,)


def suite(seed: int, mechanism: str, faults: Sequence[Table]) -> str:
    """The suite file of a schedule. Live, the others go on when a node is lost; else they wait for it."""
    min_nodes, sums, link_mbps = (1, EXACT, 2 * LINK_MBPS) if mechanism == "live" else (3, "", LINK_MBPS)
    head = HEAD.format(seed=seed, mechanism=mechanism, min_nodes=min_nodes, sums=sums, link_mbps=link_mbps)
    return head + faults_toml(faults)


def flat(units: Sequence[Unit]) -> list[Table]:
    """The faults one after the other."""
    return [fault for it in units for fault in it]


def shortest(units: Sequence[Unit], fails: Callable[[Sequence[Unit]], bool]) -> list[Unit]:
    """A schedule that still fails and from which no unit can be left out (delta debugging).

    A. Zeller, R. Hildebrandt: Simplifying and Isolating Failure-Inducing Input, IEEE TSE 28 (2002).
    """
    left, parts = list(units), 2
    while len(left) > 1:
        size = -(-len(left) // parts)
        shorter = [left[:at] + left[at + size :] for at in range(0, len(left), size)]
        found = next((it for it in shorter if it and fails(it)), None)
        if found is not None:
            left, parts = found, max(parts - 1, 2)
        elif parts < len(left):
            parts = min(2 * parts, len(left))
        else:
            break
    return left


def units_of(faults: Sequence[Mapping[str, Any]]) -> list[Unit]:
    """A suite's faults, those during a recovery with the one before."""
    found: list[Unit] = []
    for fault in map(dict, faults):
        if fault.get("phase") == RECOVERY and found:
            found[-1] = (*found[-1], fault)
        else:
            found.append((fault,))
    return found


def main(argv: list[str]) -> int:
    """One sitting, or the shortening of a schedule; exit status 1 when a fault was not got over rightly."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    parser.add_argument("--mechanism", choices=MECHANISMS, default="restart", help="what recovers (default restart)")
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"of a round (default {FAULTS})")
    parser.add_argument("--jobs", type=int, default=1, help="rounds side by side (default 1)")
    parser.add_argument("--minimise", metavar="FILE.toml", help="shorten the schedule of a soak that went wrong")
    options = parser.parse_args(argv)
    if options.faults < 1 or options.jobs < 1:
        raise SpecError(f"--faults {options.faults} --jobs {options.jobs}: must be at least 1")
    if options.minimise:
        return minimise(Path(options.minimise))
    return soak(Sitting(options.minutes), options.mechanism, options.faults, options.jobs)


def soak(sitting: Sitting, mechanism: str, faults: int, jobs: int) -> int:
    """Rounds, so many side by side, until the time is over or one was wrong."""
    document = load(FILE, COMMAND, anywhere=True)
    cell = document["cells"].setdefault(mechanism, {"faults": 0, "double": 0, "kinds": {}, "rounds": []})
    playing: list[Round] = []
    with ExitStack() as begun:
        while True:
            while len(playing) < jobs and sitting.fits(faults * FAULT_S):
                seed = unused({it["seed"] for it in cell["rounds"]} | {it.seed for it in playing})
                print(f"round {seed}: {cell['faults']} faults so far · {sitting.left()}", flush=True)
                playing.append(begun.enter_context(played(seed, mechanism, flat(draw(seed, faults)), alone=jobs == 1)))
            if not playing:
                print(told(document, mechanism))
                return 0
            for one in first_over(playing):
                playing.remove(one)
                bad = take(cell, one.store(), one.seed)
                keep(FILE, document)
                if bad:
                    return stop(bad, one)
                one.forget()


def unused(seeds: Collection[int]) -> int:
    """The first seed that was not played yet."""
    return next(seed for seed in itertools.count(1) if seed not in seeds)


@dataclass(frozen=True)
class Round:
    """A job that is being put through its schedule; judged by its results, not by its exit status."""

    seed: int
    file: Path  # its suite
    process: subprocess.Popen[bytes]

    def over(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def store(self) -> RunDir:
        """Its run."""
        return rundir.find(RUNS, self.file.stem)

    def forget(self) -> None:
        """Nothing was wrong: keep none of its files."""
        run = self.store().path
        shutil.rmtree(run)
        if all(other.is_symlink() for other in run.parent.iterdir()):
            shutil.rmtree(run.parent)  # nothing but a link to it
        for file in (self.file, log_of(self.file)):
            file.unlink(missing_ok=True)


def log_of(file: Path) -> Path:
    """Where it goes what a round says that shares the terminal with others."""
    return file.with_suffix(".log")


@contextmanager
def played(seed: int, mechanism: str, faults: Sequence[Table], *, alone: bool = True) -> Iterator[Round]:
    """A round; ended with the block."""
    RUNS.mkdir(exist_ok=True)
    file = RUNS / f"soak-{mechanism}-{seed}.toml"
    file.write_text(suite(seed, mechanism, faults))
    with chaos_process(RUNS, str(file), log=None if alone else log_of(file)) as process:
        yield Round(seed, file, process)


def first_over(playing: Sequence[Round]) -> list[Round]:
    """Those that have ended, once there is one."""
    while not (over := [it for it in playing if it.over()]):
        time.sleep(LOOK_S)
    return over


def take(cell: Table, store: RunDir, seed: int) -> list[str]:
    """Keep what each fault came to; those that were wrong, stuck or slow, and a run that was cut off."""
    results = results_of(store)
    for trial in results["trials"]:
        kind = cell["kinds"].setdefault(trial["kind"], {})
        kind[trial["outcome"]] = kind.get(trial["outcome"], 0) + 1
        cell["faults"] += trial["outcome"] != "invalid"
        cell["double"] += trial["phase"] == RECOVERY and trial["outcome"] != "invalid"
    outcomes = Counter(trial["outcome"] for trial in results["trials"])
    cell["rounds"].append({"seed": seed, "outcomes": dict(outcomes), **origin()})
    bad = [
        f"{it['fault']} {it['kind']}: {it['outcome']}: {it['why']}" for it in results["trials"] if it["outcome"] in BAD
    ]
    failed = [it for it in results["verdicts"] if it["verdict"] == "fail" and it["check"] != HAPPENED]
    return bad or [f"{it['check']}: {it['why']}" for it in failed]


def stop(bad: Sequence[str], one: Round) -> int:
    """Say what was wrong and how to see it again; nothing is removed."""
    for line in bad:
        print(f"WRONG: {line}")
    print(f"kept:    {shown(one.store().path)}\nagain:   pg chaos run --suite {shown(one.file)}")
    print(f"shorten: python -m tests.validations soak --minimise {shown(one.file)}")
    return 1


def shown(path: Path) -> str:
    """A path as one would type it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def minimise(file: Path) -> int:
    """Shorten the schedule of a suite file to one that still fails; writes it beside the file.

    Raises:
        SpecError: no such suite, or it is none of a soak.
    """
    asked = load_suite(str(file))
    (case,) = asked.cases if len(asked.cases) == 1 else (None,)
    if case is None or not case.faults:
        raise SpecError(f"{file}: must have one case, with faults")

    def fails(units: Sequence[Unit]) -> bool:
        with played(asked.seed, case.mechanism, flat(units)) as one:
            first_over([one])
            bad = take({"faults": 0, "double": 0, "kinds": {}, "rounds": []}, one.store(), asked.seed)
        print(f"{len(flat(units))} faults: {bad[0] if bad else 'all right'}", flush=True)
        one.forget()
        return bool(bad)

    short = file.with_name(f"{file.stem}-short.toml")
    whole = units_of(case.faults)
    text = file.read_text()
    if not fails(whole):
        file.write_text(text)
        print("it does not fail again: what went wrong does not follow from the schedule alone")
        return 1
    left = flat(shortest(whole, fails))
    file.write_text(text)
    short.write_text(suite(asked.seed, case.mechanism, left))
    print(f"{len(left)} of {len(case.faults)} faults are enough: pg chaos run --suite {shown(short)}")
    return 0


def told(document: Document, mechanism: str) -> str:
    """What the soak has come to."""
    cell = document["cells"][mechanism]
    outcomes: Counter[str] = Counter()
    for kind in cell["kinds"].values():
        outcomes.update(kind)
    said = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
    count = f"{cell['faults']} faults in {len(cell['rounds'])} rounds, {cell['double']} double"
    return f"{mechanism}: {count}: {said or 'none'}"
