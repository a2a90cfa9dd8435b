"""What the tests of monitoring share: the real servers where they are installed, and runs to follow."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.monitoring.programs import PACKAGES, missing
from tests.bench.clusters.conftest import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]

MUST_BE_THERE = os.environ.get("CI") == "true" and hasattr(os, "geteuid") and os.geteuid() == 0
"""In CI as root the packages are installed: their absence is a failure, not a reason to skip."""

needs_prometheus = pytest.mark.skipif(
    bool(missing()) and not MUST_BE_THERE, reason=f"not installed: {', '.join(missing())} ({PACKAGES})"
)


class Recorded:
    """A run directory as the harness makes it, and a pen for its event files. The run's clock is this machine's."""

    def __init__(self, path: Path, *, trials: int = 1, nodes: int = 3) -> None:
        self.run = RunDir(path)
        self.run.events.mkdir(parents=True)
        self.run.logs.mkdir()
        plans = [
            {
                "id": f"t{number:03}",
                "case": "c",
                "workload": "digits",
                "nodes": nodes,
                "estimate_s": 1000.0,
                "faults": [],
            }
            for number in range(1, trials + 1)
        ]
        self.run.write("plan", {"trials": plans, "cluster": {"name": "local"}})
        self.run.write("provenance", {"wall_s": time.time(), "t": time.monotonic()})
        self.run.write("spec", {"name": "s"})

    def write(self, name: str, event: str, t: float | None = None, **fields: object) -> None:
        """Append an event to `events/<name>.jsonl`."""
        record = {"t": time.monotonic() if t is None else t, "event": event, **fields}
        self.append(name, json.dumps(record) + "\n")

    def append(self, name: str, text: str) -> None:
        """Append any text."""
        with (self.run.events / f"{name}.jsonl").open("a") as file:
            file.write(text)

    def begin(self, trial: str = "t001", nodes: int = 3) -> None:
        """A job of so many nodes begins: launchers, workers, membership."""
        self.write("harness", "trial_start", trial=trial)
        for number in range(1, nodes + 1):
            node = f"n{number}"
            self.write("harness", "process_start", trial=trial, node=node, slot=0, pid=number)
            self.write(f"{trial}.{node}.launch", "workers_start", pids=[1], attempt=0)
            self.write(f"{trial}.{node}.0", "start", rank=number - 1, world_size=nodes, pid=1, wall_s=time.time())
            self.write(f"{trial}.{node}.0", "ready", generation=1, gradient_bytes=1000, parameters=250, steps=500)

    def step(self, number: int, trial: str = "t001", nodes: int = 3, **fields: object) -> None:
        """All ranks make a step of 0.1 s, 10 ms of which is communication."""
        parts = {"step_s": 0.1, "forward_s": 0.04, "backward_s": 0.05, "comm_s": 0.01, "wall_s": time.time()}
        for node in range(1, nodes + 1):
            t = time.monotonic()
            about = {"step": number, "samples": 32, "world_size": nodes, "begin_t": t - 0.1, "loss": 1.0 / number}
            self.write(f"{trial}.n{node}.0", "step", t, **{**about, **parts, **fields})


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """A run that has been begun."""
    made = Recorded(tmp_path / "runs" / "s" / "20260102T030405Z-c0de")
    made.begin()
    return made
