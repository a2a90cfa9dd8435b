"""Chaos runs as a person would start them, and schedules as suite files. Called by the validations that break jobs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from proving_ground.bench import contract, rundir
from proving_ground.bench.child import ended_after
from proving_ground.bench.rundir import RunDir
from proving_ground.reports.recovery.words import VALUE
from proving_ground.reports.verdicts import FAIL
from tests.validations.sitting import ROOT

BAD = tuple(outcome for outcome, verdict in VALUE.items() if verdict == FAIL)
"""Outcomes of a fault that fail a run."""
SOON_S, END_S = 5.0, 30.0  # for a run to take its nodes down: by itself, once it is told to


def chaos_run(runs: Path, suite: str, *words: str) -> RunDir:
    """A run of a suite (a name, or a file); ended with whoever waits for it."""
    with chaos_process(runs, suite, *words) as process:
        process.wait()
    return rundir.find(runs, Path(suite).stem)


def results_of(store: RunDir) -> dict[str, Any]:
    """What the report says; of a run that was never judged, that nothing is known."""
    return contract.read(store) if (store.path / "results.json").exists() else {"trials": [], "verdicts": []}


@contextlib.contextmanager
def chaos_process(runs: Path, suite: str, *words: str, log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """The same while it runs; what it says goes to the terminal, or to a file."""
    asked = [sys.executable, "-m", "proving_ground.chaos", "--runs", str(runs), "run", "--suite", suite, *words]
    with contextlib.ExitStack() as after:
        said = after.enter_context(log.open("wb")) if log else None
        process = after.enter_context(subprocess.Popen(asked, cwd=ROOT, stdout=said, stderr=said))
        after.enter_context(ended_after(process, END_S))
        try:
            yield process
        except KeyboardInterrupt:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SOON_S)  # Ctrl-C in a terminal has reached it as well
            raise


def faults_toml(faults: Sequence[Mapping[str, Any]]) -> str:
    """The faults as the end of a suite file. JSON's numbers and strings are TOML's too."""
    tables = ["".join(f"{key} = {json.dumps(value)}\n" for key, value in fault.items()) for fault in faults]
    return "".join(f"\n[[case.faults]]\n{it}" for it in tables)
