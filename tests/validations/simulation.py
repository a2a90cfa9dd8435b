"""The membership logic over a million seeded runs on virtual machines: `python -m tests.validations simulation`.

Of jobs that all start again (`tests.validations.members`) and of live jobs (`tests.validations.live_jobs`), which say
what is real there and what must always be so. Before anything else each mutant, one rule switched off, has to be
found; then runs go on from the seeds at which the sitting before ended. The first run in which something is not so
stops all; `--mechanism` and `--seed` play it again.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from tests.validations import live_runs, rules_off, runs
from tests.validations.members import ViolationError
from tests.validations.rules_off import Mutant
from tests.validations.sitting import MEASURED, Document, Pace, keep, load, origin
from tests.validations.virtual import Stage

FILE = MEASURED / "simulation.json"
COMMAND = "nox -s validate -- simulation"
RUNS = 1_000_000
BLOCK = 250  # runs that a process does before it tells
SOUGHT = 3000  # runs in which a mutant must be found


@dataclass(frozen=True)
class Simulation:
    """How a mechanism's jobs are played."""

    simulate: Callable[..., str]  # of a seed and, live, of some sorts of runs
    staged: Callable[[], AbstractContextManager[None]]
    mutants: Mapping[str, Mutant]


SIMULATIONS = {
    "restart": Simulation(runs.simulate, runs.staged, rules_off.RESTART),
    "live": Simulation(live_runs.simulate, live_runs.staged, rules_off.LIVE),
}


@dataclass(frozen=True)
class Found:
    """What a block of runs came to."""

    sorts: Counter[str]
    virtual_s: float
    seed: int | None = None  # of the first run in which something was not so
    why: str = ""


def block(mechanism: str, first: int, count: int) -> Found:
    """So many runs, until one goes wrong."""
    sorts: Counter[str] = Counter()
    virtual_s, simulation = 0.0, SIMULATIONS[mechanism]
    with simulation.staged(), uncollected():
        for seed in range(first, first + count):
            try:
                sorts[simulation.simulate(seed)] += 1
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


def seek(simulation: Simulation, mutant: Mutant, count: int = SOUGHT) -> Found:
    """Runs with a mutant, until it is found."""
    among = (mutant.among,) if mutant.among else ()
    with simulation.staged(), mutant.on():
        for seed in range(count):
            try:
                simulation.simulate(seed, *among)
            except ViolationError as error:
                return Found(Counter(), 0.0, seed, str(error))
    return Found(Counter(), 0.0)


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 when something is not so, or a mutant was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"in all, earlier sittings included (default {RUNS:,})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: as many as cores)")
    parser.add_argument("--mechanism", choices=SIMULATIONS, help="only these jobs (default: both, in turn)")
    parser.add_argument("--seed", type=int, help="play this one run of a mechanism again, and nothing else")
    options = parser.parse_args(argv)
    if options.seed is not None:
        if not options.mechanism:
            parser.error("--seed: of which --mechanism?")
        return replay(options.mechanism, options.seed)
    chosen = [options.mechanism] if options.mechanism else [*SIMULATIONS]
    document = load(FILE, COMMAND, anywhere=True)
    document.setdefault("mutants", {})
    status = mutants(document, chosen)
    if not status:
        status = sitting(document, chosen, options.runs, options.jobs)
    keep(FILE, document)
    return status


def replay(mechanism: str, seed: int) -> int:
    """One run; what came of it."""
    found = block(mechanism, seed, 1)
    print(f"{mechanism}, seed {seed}: {found.why or f'{next(iter(found.sorts))}, all as it must be'}")
    return int(bool(found.why))


def mutants(document: Document, chosen: Sequence[str]) -> int:
    """Find every mutant, by the invariant that it breaks."""
    for mechanism in chosen:
        told = document["mutants"][mechanism] = {}
        for name, mutant in SIMULATIONS[mechanism].mutants.items():
            found = seek(SIMULATIONS[mechanism], mutant)
            told[name] = {"seed": found.seed, "why": found.why, "breaks": mutant.breaks}
            print(f"mutant, {mechanism}: {name}: {found.why or 'NOT FOUND'} (seed {found.seed})", flush=True)
            if not found.why.startswith(mutant.breaks):
                return 1
    return 0


def sitting(document: Document, chosen: Sequence[str], count: int, jobs: int) -> int:
    """Up to so many runs in all, each mechanism's from where the sitting before ended."""
    cells = document["cells"]
    for mechanism in chosen:
        cell = cells.setdefault(mechanism, {"count": 0, "virtual_s": 0.0, "sorts": {}, "sittings": []})
        cell["sittings"].append({"from": cell["count"], **origin()})
    before = sum(cell["count"] for cell in cells.values())
    pace, blocks = Pace(count - before), planned({it: cells[it]["count"] for it in chosen}, count - before)
    with several(jobs) as each:
        for (mechanism, _, _), found in zip(blocks, each(one_block, blocks), strict=True):
            take(cells[mechanism], found)
            if found.seed is not None:
                cells[mechanism].setdefault("wrong", []).append({"seed": found.seed, "why": found.why})
                again = f"python -m tests.validations simulation --mechanism {mechanism} --seed {found.seed}"
                print(f"{mechanism}, seed {found.seed}: {found.why}\nagain: {again}")
                return 1
            keep(FILE, document)
            done = sum(cell["count"] for cell in cells.values())
            if left := pace.left(done - before):
                print(f"{done:,} of {count:,} runs, nothing wrong · {left}", flush=True)
    for mechanism, cell in cells.items():
        hours = cell["virtual_s"] / 3600
        print(f"{mechanism}: {cell['count']:,} runs, {hours:,.0f} hours of virtual time: nothing wrong")
    return 0


def planned(firsts: Mapping[str, int], count: int) -> list[tuple[str, int, int]]:
    """So many runs in blocks of (mechanism, first seed, runs), of each mechanism in turn."""
    turns, at = itertools.cycle(firsts), dict(firsts)
    found: list[tuple[str, int, int]] = []
    for left in range(count, 0, -BLOCK):
        mechanism, size = next(turns), min(BLOCK, left)
        found.append((mechanism, at[mechanism], size))
        at[mechanism] += size
    return found


def one_block(it: tuple[str, int, int]) -> Found:
    """As planned."""
    return block(*it)


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
        try:
            yield pool.imap
        except BaseException:
            threading.Thread(target=insist, args=(multiprocessing.active_children(),), daemon=True).start()
            raise


def insist(workers: Sequence[BaseProcess]) -> None:
    """Ask them to end until they have: what a worker is at may take a single SIGTERM for its own."""
    while any(it.is_alive() for it in workers):
        for it in workers:
            it.terminate()
        time.sleep(0.1)


def obey() -> None:
    """Ctrl-C is for the process that started this one, which then ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
