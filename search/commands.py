"""What each command of `pg search` does. Called by `search.cli`; errors are exceptions, one line each."""

from __future__ import annotations

import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table

from proving_ground.bench.child import environment, ours
from proving_ground.bench.provenance import VERSION, provenance
from proving_ground.bench.rundir import RunDirError, held
from proving_ground.bench.shell import place, put
from proving_ground.bench.terminal import Terminal
from proving_ground.search import ledger, store, watch
from proving_ground.search.auto import propose
from proving_ground.search.progress import Bar, told
from proving_ground.search.spec import Search, SearchError, as_document, load, search_from
from proving_ground.search.store import SearchDir
from proving_ground.search.watch import SearchFailed
from proving_ground.training import config as trainer
from proving_ground.training.typed import ConfigError, one_line

MISTAKES = (ConfigError, RunDirError)
"""What the caller did wrong: exit status 2."""
FAILURES = (SearchFailed, OSError)
"""What went wrong: exit status 1."""
OVERRIDES = ("algorithm", "trials", "concurrent", "steps", "seed", "budget_s", "budget_steps")
"""Options that replace a key of the suite."""
GPU = Path("/dev/nvidiactl")
"""Is where a driver for GPUs is."""
AUTO_S = 300.0
"""Seconds that a search proposed by itself may take, unless told."""


def run(options: Namespace) -> int:
    """Run a search and report on it; the report's exit status is the verdict."""
    check_installed()
    search, why = asked(options)
    console = Terminal(soft_wrap=True, quiet=options.quiet, stderr=options.json)
    console.print(headline(search))
    for line in why:
        console.print(f"proposed: {line}")
    if GPU.exists():
        console.print("trials run on the CPU: a search has no GPUs yet")
    return carried_out(store.create(options.runs, search, why), search, options)


def resume(options: Namespace) -> int:
    """Finish an interrupted search: what has ended is not run again; of one that is over there is the report."""
    check_installed()
    run_dir = store.find(options.runs, options.search)
    search = store.asked(run_dir)
    known = ledger.trials(ledger.read(run_dir.ledger))
    console = Terminal(soft_wrap=True, quiet=options.quiet, stderr=options.json)
    console.print(f"{headline(search)}; so far: {told(search, known)}")
    return carried_out(run_dir, search, options)


def asked(options: Namespace) -> tuple[Search, tuple[str, ...]]:
    """The search that the options mean, and why it is so where it was proposed.

    Raises:
        ConfigError: something in it makes no sense.
    """
    pairs = map(trainer.pair, options.set or ())
    fixed = {name: trainer.from_text(name, text, f"--set {name}") for name, text in pairs}
    if options.auto is not None:
        budget_s = AUTO_S if options.budget_s is None else options.budget_s
        made = propose({"model": trainer.value_of("model", options.auto, "--auto"), **fixed}, budget_s)
        return overridden(made.search, options), made.why
    earlier = options.from_search
    search = store.asked(store.find(options.runs, earlier)) if earlier else load(options.suite)
    return overridden(replace(search, training={**search.training, **fixed}), options), ()


def overridden(search: Search, options: Namespace) -> Search:
    """The search with the command line's options, checked once more."""
    given = {it: getattr(options, it) for it in OVERRIDES if getattr(options, it) is not None}
    return search_from(as_document(replace(search, **given)), "command line" if given else search.name)


def headline(search: Search) -> str:
    """The first line of a search."""
    return (
        f"proving-ground {VERSION} · search {search.name} · {search.algorithm}, {search.planned} trials of "
        f"{search.steps} steps, {search.concurrent} at once · {search.mode} {search.metric}"
    )


def carried_out(run_dir: SearchDir, search: Search, options: Namespace) -> int:
    """Let the trials run, then report; what is interrupted says how it goes on."""
    options.resume = run_dir.run_id
    with held(run_dir):
        records = ledger.read(run_dir.ledger)
        if not ledger.over(records):
            trace(run_dir, search, ledger.sittings(records))
            bar = Bar(search)
            with nullcontext() if options.quiet else bar:
                show: Callable[..., Any] = (lambda *_: None) if options.quiet else bar.tell
                watch.run(run_dir, show, place(options))
        elif (run_dir.path / "seal.json").exists():
            return report_of(run_dir, options)
        store.seal(run_dir, complete=ledger.over(ledger.read(run_dir.ledger)))
    return report_of(run_dir, options)


def trace(run_dir: SearchDir, search: Search, before: int) -> None:
    """Write of what code and machine this is; of a search that goes on, beside what it was."""
    origin = provenance(sys.argv, search.seed, time.monotonic())
    if before:
        first = run_dir.read("provenance")
        origin = {**first, "sittings": [*first.get("sittings", ()), {**origin, "sitting": before + 1}]}
    run_dir.write("provenance", origin)


def check_installed() -> None:
    """That Ray and Optuna are there.

    Raises:
        SearchError: they are not; says how to get them.
    """
    missing = [it for it in ("ray", "optuna") if find_spec(it) is None]
    if missing:
        raise SearchError(f"{' and '.join(missing)}: not installed: pip install '.[search]'")


def report_of(run_dir: SearchDir, options: Namespace) -> int:
    """Have the report made; its exit status is the verdict."""
    words = [str(run_dir.path), *(f"--{it}" for it in ("quiet", "json") if getattr(options, it, False))]
    command = ours("search.report", *words)
    return subprocess.run(  # Ctrl-C is for this process alone
        command, env=environment(), check=False, start_new_session=True
    ).returncode


def report(options: Namespace) -> int:
    """The report once more."""
    return report_of(store.find(options.runs, options.search), options)


def list_searches(options: Namespace) -> int:
    """One line a search, the newest last."""
    rows = [listed(it) for it in store.every(options.runs)]
    if options.json:
        return put("search-list", {"searches": rows})
    if not rows:
        print(f"no searches under {options.runs}; start with: pg search run{place(options)}")
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("search", "suite", "algorithm", "state", "so far"):
        table.add_column(name, no_wrap=name != "so far")
    for it in rows:
        table.add_row(*(str(it[key]) for key in ("search", "suite", "algorithm", "state", "told")))
    Terminal(soft_wrap=True).print(table)
    return 0


def listed(run_dir: SearchDir) -> dict[str, Any]:
    """What a list tells of a search; of one that cannot be read, why."""
    about = {"search": run_dir.run_id, "suite": run_dir.suite, "path": str(run_dir.path)}
    try:
        search, records = store.asked(run_dir), ledger.read(run_dir.ledger)
        said = told(search, ledger.trials(records))
    except (*MISTAKES, OSError) as error:
        return {**about, "algorithm": "", "state": "cannot be read", "told": one_line(str(error))}
    state = "over" if ledger.over(records) else "interrupted or in progress"
    return {**about, "algorithm": search.algorithm, "state": state, "told": said}
