"""`pg chaos shrink RUN`: which few faults of a schedule that failed are enough for it. Called by `chaos.cli`.

Each try is a run like any other, recorded and reported. It counts as failing if a check fails that failed before: a
schedule that fails in another way is another finding, and is told.
"""

from __future__ import annotations

import subprocess
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proving_ground.bench import contract, rundir
from proving_ground.bench.child import environment, ours
from proving_ground.bench.clusters import choose
from proving_ground.bench.jobstate import disturbances
from proving_ground.bench.plan import make_plan
from proving_ground.bench.progress import Quiet, clock
from proving_ground.bench.protocols import Cluster
from proving_ground.bench.run import Parts, TrialFailed
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.runner import record
from proving_ground.bench.shell import counted, place
from proving_ground.bench.spec import SpecError, within
from proving_ground.bench.terminal import Terminal
from proving_ground.chaos.commands import picked, possible, suite_of, with_what_is_hit
from proving_ground.chaos.ddmin import Part, Reduction, shrunk
from proving_ground.chaos.nemesis import FaultNemesis
from proving_ground.chaos.schedule import Chaos

BUDGET = 20
BUDGET_MAX = 1000

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Failure:
    """The first job of a run that failed: its case, its faults, the checks that failed, the faults they are about."""

    trial: str
    case: str
    faults: Sequence[Document]
    checks: frozenset[str]
    blamed: frozenset[str]

    @property
    def whole(self) -> Part:
        """All of its faults."""
        return tuple(str(it["id"]) for it in self.faults)

    @property
    def guesses(self) -> list[Part]:
        """What is most likely enough: the first disturbance that failed by itself; all up to it."""
        upto: list[str] = []
        for group in disturbances(self.faults):
            own = [str(it["id"]) for it in group]
            upto += own
            if self.blamed & set(own):
                needed = with_what_is_hit(self.faults, own)
                return [tuple(it for it in upto if it in needed), tuple(upto)]
        return []

    def sensible(self, part: Part) -> bool:
        """Whether a part can be run by itself: no fault of it hits the recovery from one that is left out."""
        return with_what_is_hit(self.faults, part) == set(part)


def shrink(options: Namespace) -> int:
    """Run smaller and smaller parts of a schedule that failed, until none of its faults can be left out."""
    within(options.budget, 1, BUDGET_MAX, "--budget")
    store = rundir.find(options.runs, options.run)
    failure = failed(store.read("plan"), results_of(store), str(store.path))
    console = Terminal(soft_wrap=True, quiet=options.quiet)
    cluster, why = choose(options.cluster)
    tries = Tries(store, failure, cluster, options, console)
    if len(failure.whole) > 1:
        most = f"at most {counted(options.budget, 'run')} of about {clock(tries.estimate_s(failure.whole))}"
        console.print(f"{failure.trial} failed {', '.join(sorted(failure.checks))}: "
                      f"{counted(len(failure.whole), 'fault')}, {most} · cluster {cluster.name}: {why}")  # fmt: skip
    search = shrunk(failure.whole, failure.guesses, options.budget, tries.fails, failure.sensible)
    print(found(failure, search, options.budget))
    for it in failure.faults:
        if it["id"] in search.best:
            print(f"  {it['id']}  {it['kind']}")
    names = " ".join(f"{failure.trial}.{it}" for it in search.best)
    print(f"replay:  pg chaos{place(options)} replay {store.path} {names}")
    return 0 if search.minimal else 1


def found(failure: Failure, search: Reduction, budget: int) -> str:
    """What was found, in a line."""
    least, all_of_them = len(search.best), len(failure.whole)
    runs = counted(len(search.known), "run")
    if least < all_of_them:
        enough = f"{least} of {counted(all_of_them, 'fault')} {'is' if least == 1 else 'are'} enough"
        state = "none can be left out" if search.minimal else f"perhaps not the fewest: --budget {budget} is spent"
        return f"{enough} ({state}; {runs})"
    if all_of_them == 1:
        return "it had one fault only"
    if search.minimal:
        return f"no part of its {all_of_them} faults failed ({runs}): all are needed, or it does not fail every time"
    return f"no smaller part of its {all_of_them} faults failed so far ({runs}): --budget {budget} is spent"


class Tries:
    """Runs parts of the schedule."""

    def __init__(
        self, store: RunDir, failure: Failure, cluster: Cluster, options: Namespace, console: Terminal
    ) -> None:
        self._store, self._failure, self._cluster = store, failure, cluster
        self._options, self._console = options, console
        self._took_s: list[float] = []

    def estimate_s(self, part: Part) -> float:
        """About how long a run of a part takes."""
        suite, _ = possible(suite_of(self._store, (self._failure.case, self._faults(part))), self._cluster)
        return make_plan(suite, self._cluster).estimate_s

    def _faults(self, part: Part) -> Sequence[Document]:
        return picked(self._failure.faults, part)

    def fails(self, part: Part) -> bool:
        """Run a part; whether a check fails that failed in the run that is being shrunk."""
        cluster, _ = choose(self._options.cluster)  # a new one for each run: none has anything of the run before
        suite, off = possible(suite_of(self._store, (self._failure.case, self._faults(part))), cluster)
        if off:
            raise SpecError("; ".join(f"{kind}: {why}" for kind, why in off.items()))
        begin = time.monotonic()
        parts = Parts(schedule=Chaos(), nemesis=FaultNemesis(), watch=Quiet())
        try:
            made = record(suite, cluster, self._options.runs, parts)
        except TrialFailed:
            made = rundir.find(self._options.runs, suite.name)
        self._took_s.append(time.monotonic() - begin)
        results = results_of(made)
        failing = checks_failed(results)
        again = bool(failing & self._failure.checks)
        self._tell(part, failing, made, again=again)
        return again

    def _tell(self, part: Part, failing: frozenset[str], made: RunDir, *, again: bool) -> None:
        done = len(self._took_s)
        left_s = (self._options.budget - done) * sum(self._took_s) / done
        came = "fails" if again else f"fails otherwise ({', '.join(sorted(failing))})" if failing else "does not fail"
        self._console.print(
            f"run {done} of at most {self._options.budget}: {' '.join(part)}: {came} · {made.path} · "
            f"{clock(left_s)} left at most"
        )


def results_of(store: RunDir) -> Document:
    """What the report says of a run; it is made anew.

    Raises:
        RunDirError: no report can be made of it.
    """
    done = subprocess.run(
        ours("reports", str(store.path), "--quiet"), env=environment(), check=False, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):
        raise rundir.RunDirError(done.stderr.strip() or f"{store.path}: no report could be made")
    return contract.read(store)


def checks_failed(results: Document, trial: str = "") -> frozenset[str]:
    """The checks that a run failed, or one of its trials."""
    return frozenset(
        str(it["check"])
        for it in results["verdicts"]
        if it["verdict"] == "fail" and not it["where"].get("peer") and trial in ("", it["where"].get("trial"))
    )


def failed(plan: Document, results: Document, where: str) -> Failure:
    """What failed in a run.

    Raises:
        SpecError: no job with faults did.
    """
    for trial in plan["trials"]:
        if trial.get("faults") and (checks := checks_failed(results, trial["id"])):
            mine = [it["where"] for it in results["verdicts"] if it["verdict"] == "fail"]
            blamed = frozenset(str(it["fault"]) for it in mine if it.get("trial") == trial["id"] and "fault" in it)
            return Failure(trial["id"], trial["case"], trial["faults"], checks, blamed)
    raise SpecError(f"{where}: no job with faults failed: there is nothing to shrink")
