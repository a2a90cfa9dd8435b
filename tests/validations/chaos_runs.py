"""Chaos runs as a person would start them, and schedules as suite files. Called by the validations that break jobs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import rundir
from bench.child import ended_after
from bench.rundir import RunDir
from tests.validations.sitting import ROOT

SOON_S, END_S = 5.0, 30.0  # for a run to take its nodes down: by itself, once it is told to


def chaos_run(runs: Path, suite: str, *words: str) -> RunDir:
    """A run of a suite (a name, or a file); ended with whoever waits for it."""
    asked = ["--runs", str(runs), "run", "--suite", suite, *words]
    with subprocess.Popen([sys.executable, "-m", "chaos", *asked], cwd=ROOT) as process, ended_after(process, END_S):
        try:
            process.wait()
        except KeyboardInterrupt:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SOON_S)  # Ctrl-C in a terminal has reached it as well
            raise
    return rundir.find(runs, Path(suite).stem)


def faults_toml(faults: Sequence[Mapping[str, Any]]) -> str:
    """The faults as the end of a suite file. JSON's numbers and strings are TOML's too."""
    tables = ["".join(f"{key} = {json.dumps(value)}\n" for key, value in fault.items()) for fault in faults]
    return "".join(f"\n[[case.faults]]\n{it}" for it in tables)
