"""The steps of a loop in their order, each as the commands that it is: pure. Called by `loop.drive` and `loop.cli`.

A step that is begun again does no harm: `up` and `down` are the same however often, a benchmark is resumed where it
stopped, a chaos run begins anew.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir
from proving_ground.loop.ledger import Asked, Ledger

Command = Sequence[str]


@dataclass(frozen=True)
class Known:
    """What a step's commands need beside what was asked: `usd_per_hour` and `container` are the stack's."""

    asked: Asked
    runs: Path
    recorded: Sequence[str] = ()  # run directories
    unfinished: bool = False  # the newest of them
    usd_per_hour: float | None = None
    container: str | None = None
    cluster_gone: bool = False

    @property
    def where(self) -> tuple[str, str]:
        """The option that names the cluster."""
        pool = f",pool={self.asked.pool}" if self.asked.pool else ""
        more = f",{self.asked.options}" if self.asked.options else ""
        return "--cluster", f"kubernetes:stack={self.asked.stack}{pool}{more}"

    @property
    def price(self) -> tuple[str, ...]:
        """The option that says what a node costs; nothing where nobody bills for it."""
        return ("--price-per-node-hour", f"{self.usd_per_hour:g}") if self.usd_per_hour else ()

    @property
    def sizes(self) -> tuple[str, ...]:
        """The option that says how many nodes."""
        return ("--nodes", self.asked.nodes) if self.asked.nodes else ()


def python(*words: str) -> list[str]:
    """A command of the project's, by this Python."""
    return [sys.executable, "-m", "proving_ground", *words]


def check(known: Known) -> list[Command]:
    """The configuration is sound."""
    return [python("infra", "check", known.asked.stack)]


def cost(known: Known) -> list[Command]:
    """What it would cost."""
    return [python("infra", "cost", known.asked.stack, "--hours", f"{known.asked.hours:g}")]


def up(known: Known) -> list[Command]:
    """The stack is there."""
    return [python("infra", "up", known.asked.stack)]


def bench(known: Known) -> list[Command]:
    """How training scales; resumed where it was interrupted."""
    suite = ("--suite", known.asked.bench, *known.sizes, *known.where)
    runs = ("--runs", str(known.runs))
    if known.unfinished:
        return [python("bench", "run", "--resume", known.recorded[-1], "--no-report", *runs)]
    if known.recorded:
        return []
    return [
        python("bench", "plan", *suite, *known.price),
        python("bench", "run", *suite, "--no-report", *runs),
    ]


def chaos(known: Known) -> list[Command]:
    """How training recovers."""
    return [python("chaos", "run", "--suite", known.asked.chaos, *known.where, "--quiet", "--runs", str(known.runs))]


def report(known: Known) -> list[Command]:
    """What was found, with what it cost."""
    return [python("reports", run, *known.price) for run in known.recorded]


def backup(known: Known) -> list[Command]:
    """What was recorded, in the stack's storage; none where it has none."""
    if known.container is None:
        return []
    return [python("infra", "backup", str(known.runs), "--name", known.asked.stack, "--container", known.container)]


def down(known: Known) -> list[Command]:
    """The stack is gone."""
    gone = ["--cluster-gone"] if known.cluster_gone else []
    return [python("infra", "down", known.asked.stack, *gone)]


STEPS: Mapping[str, Callable[[Known], list[Command]]] = {
    "check": check, "cost": cost, "up": up, "bench": bench, "chaos": chaos, "report": report, "backup": backup,
    "down": down,
}  # fmt: skip
FINDS = ("chaos", "report")
"""Steps that end with status 1 where a check failed: a finding, of a chaos run if it is recorded whole."""
NOTHING = {
    "bench": "it is recorded already",
    "report": "nothing was recorded",
    "backup": "the stack has no object storage; --container URL names one",
}
"""Why a step has no commands."""


def known(ledger: Ledger, asked: Asked, usd_per_hour: float | None, container: str | None) -> Known:
    """What there is now."""
    runs = rundir.all_runs(ledger.runs)
    unfinished = bool(runs) and not whole(runs[-1])
    return Known(asked, ledger.runs, [str(it.path) for it in runs], unfinished, usd_per_hour, container)


def whole(run: RunDir) -> bool:
    """Whether a run is recorded whole: one that failed or was interrupted is sealed as well, and says so."""
    with contextlib.suppress(rundir.RunDirError, AttributeError):
        return bool(run.read("seal").get("complete"))
    return False


def found(step: str, ledger: Ledger, before: int) -> bool:
    """Whether a step that ended with status 1 has found something; `before` is how many runs there were before it."""
    runs = rundir.all_runs(ledger.runs)
    return step in FINDS and (step != "chaos" or (len(runs) > before and whole(runs[-1])))
