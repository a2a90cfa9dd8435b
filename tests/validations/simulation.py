"""The membership logic over millions of seeded runs on virtual machines: `python -m tests.validations simulation`.

`tests.validations.members` says what is real there and what must always be so. Before anything else each mutant, one
rule switched off, has to be found; then runs go on from the seed at which the sitting before ended. The first run in
which something is not so stops all; `--seed` plays it again.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

from bench.keeper import Keeper
from tests.validations import members
from tests.validations.members import ViolationError
from tests.validations.runs import simulate, staged
from tests.validations.sitting import MEASURED, Document, Pace, keep, load, origin
from tests.validations.virtual import Stage
from training import checkpoint, launch, patience, rendezvous

FILE = MEASURED / "simulation.json"
COMMAND = "nox -s validate -- simulation"
RUNS = 1_000_000
BLOCK = 500  # runs that a process does before it tells
SOUGHT = 3000  # runs in which a mutant must be found

tend = Keeper.tend
torch_looks = dynamic.DynamicRendezvousHandler.num_nodes_waiting


class NoChance:
    """Random numbers that are none."""

    @staticmethod
    def randbelow(_most: int) -> int:
        """Always the same."""
        return 0


class Tireless(launch.Retries):
    """Tries for ever."""

    def wait_s(self, *, progress: bool) -> float:
        """Never gives up."""
        del progress
        return launch.BACKOFF_S


@dataclass(frozen=True)
class Mutant:
    """One rule switched off, and the invariant that must then be seen not to hold."""

    of: Any
    name: str
    instead: Any
    breaks: str

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """While it is switched off."""
        with patch.object(self.of, self.name, self.instead):
            yield


MUTANTS = {
    "no fence around checkpoints": Mutant(checkpoint, "check_generation", lambda *_about: None, "fence"),
    "the dead are never struck off": Mutant(rendezvous, "EXPIRY_S", 1e9, "finite"),
    "the membership is looked at as torch does": Mutant(
        rendezvous.Handler, "num_nodes_waiting", torch_looks, "eviction"
    ),
    "tries for ever": Mutant(members, "Retries", Tireless, "finite"),
    "never started again": Mutant(Keeper, "_is_due", lambda *_about: False, "finite"),
    "dead after one late heartbeat": Mutant(rendezvous, "EXPIRY_S", 0.6, "eviction"),
    "slow is dead": Mutant(patience, "LEAST_S", 0.0, "eviction"),
    "a rebooted node has its old name": Mutant(rendezvous, "secrets", NoChance, "reboot"),
    "started without power": Mutant(Keeper, "tend", lambda keeper, ended, _down: tend(keeper, ended, ()), "power"),
}
"""What is switched off → how. The invariants are those of `tests.validations.members`."""


@dataclass(frozen=True)
class Found:
    """What a block of runs came to."""

    sorts: Counter[str]
    virtual_s: float
    seed: int | None = None  # of the first run in which something was not so
    why: str = ""


def block(first: int, count: int) -> Found:
    """So many runs, until one goes wrong."""
    sorts: Counter[str] = Counter()
    virtual_s = 0.0
    with staged(), uncollected():
        for seed in range(first, first + count):
            try:
                sorts[simulate(seed)] += 1
            except ViolationError as error:
                return Found(sorts, virtual_s, seed, str(error))
            virtual_s += Stage.world.now
    return Found(sorts, virtual_s)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Garbage is left until the end of a block: looking for it takes a quarter of the time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seek(mutant: Mutant, runs: int = SOUGHT) -> Found:
    """Runs with a mutant, until it is found."""
    with staged(), mutant.on():
        for seed in range(runs):
            try:
                simulate(seed)
            except ViolationError as error:
                return Found(Counter(), 0.0, seed, str(error))
    return Found(Counter(), 0.0)


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 when something is not so, or a mutant was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"in all, earlier sittings included (default {RUNS:,})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: as many as cores)")
    parser.add_argument("--seed", type=int, help="play this one run again, and nothing else")
    options = parser.parse_args(argv)
    if options.seed is not None:
        return replay(options.seed)
    document = load(FILE, COMMAND, anywhere=True)
    document.setdefault("mutants", {})
    status = mutants(document)
    if not status:
        status = sitting(document, options.runs, options.jobs)
    keep(FILE, document)
    return status


def replay(seed: int) -> int:
    """One run; what came of it."""
    found = block(seed, 1)
    print(f"seed {seed}: {found.why or f'{next(iter(found.sorts))}, all as it must be'}")
    return int(bool(found.why))


def mutants(document: Document) -> int:
    """Find every mutant, by the invariant that it breaks."""
    for name, mutant in MUTANTS.items():
        found = seek(mutant)
        document["mutants"][name] = {"seed": found.seed, "why": found.why, "breaks": mutant.breaks}
        print(f"mutant: {name}: {found.why or 'NOT FOUND'} (seed {found.seed})", flush=True)
        if not found.why.startswith(mutant.breaks):
            return 1
    return 0


def sitting(document: Document, runs: int, jobs: int) -> int:
    """Up to so many runs in all, from where the sitting before ended."""
    cell = document["cells"].setdefault("runs", {"count": 0, "virtual_s": 0.0, "sorts": {}, "sittings": []})
    first = cell["count"]
    cell["sittings"].append({"from": first, **origin()})
    pace = Pace(runs - first)
    with several(jobs) as each:
        for found in each(partial(one_block, last=runs), range(first, runs, BLOCK)):
            take(cell, found)
            if found.seed is not None:
                cell.setdefault("wrong", []).append({"seed": found.seed, "why": found.why})
                print(
                    f"seed {found.seed}: {found.why}\nagain: python -m tests.validations simulation --seed {found.seed}"
                )
                return 1
            keep(FILE, document)
            if left := pace.left(cell["count"] - first):
                print(f"{cell['count']:,} of {runs:,} runs, nothing wrong · {left}", flush=True)
    hours = cell["virtual_s"] / 3600
    print(f"{cell['count']:,} runs, {hours:,.0f} hours of virtual time: nothing wrong")
    return 0


def one_block(first: int, last: int) -> Found:
    """The runs from one seed on, before the last."""
    return block(first, min(BLOCK, last - first))


def take(cell: dict[str, Any], found: Found) -> None:
    """Add what a block came to."""
    cell["count"] += sum(found.sorts.values())
    cell["virtual_s"] = round(cell["virtual_s"] + found.virtual_s, 1)
    cell["sorts"] = dict(Counter(cell["sorts"]) + found.sorts)


@contextlib.contextmanager
def several(jobs: int) -> Iterator[Callable[..., Any]]:
    """`map` over several processes, in order; over none for one job."""
    if jobs == 1:
        yield map
        return
    with multiprocessing.get_context("fork").Pool(jobs, obey) as pool:
        yield pool.imap


def obey() -> None:
    """Ctrl-C is for the process that started this one, which then ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
