"""Trainers that people have, as they come: each measured on two nodes, and got over a worker's death."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import rundir
from bench.clusters import choose
from bench.run import run
from bench.spec import Suite, suite_from

ROOT = Path(__file__).parents[2]
TRAINERS = ("lightning", "transformers", "accelerate")
PROVEN = ("happened", "healed", "trained_on")


def suite(trainer: str, steps: int, **case: Any) -> Suite:
    words = ["$PROVING_GROUND_STEPS", "$PROVING_GROUND_BATCH", "$PROVING_GROUND_VOLUME/$PROVING_GROUND_TRIAL"]
    command = {"argv": ["python", str(ROOT / "bench" / "examples" / f"{trainer}_trainer.py"), *words]}
    table = {
        "name": trainer, "workload": "command", "batch_per_node": 16, "steps": steps, "warmup_steps": 5,
        "estimated_step_s": 0.001, "startup_s": 180, "command": command, **case,
    }  # fmt: skip
    made = {"title": "Foreign", "nodes": [2], "repeats": 1, "volume_mb": 64, "cases": [table]}
    return suite_from(made, where="test", name=trainer)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_it_is_measured_on_two_nodes(trainer: str, tmp_path: Path) -> None:
    store = run(suite(trainer, 30), choose("local")[0], tmp_path)
    steps = [it for it in rundir.read_history(store) if it["event"] == "step"]
    assert {it["source"]: 0 for it in steps} == {"n1.0": 0, "n2.0": 0}
    assert {it["step"] for it in steps} == set(range(1, 31))
    done = subprocess.run(
        [sys.executable, "-m", "reports", str(store.path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert any(it["name"] == "throughput" and it["median"] > 0 for it in store.read("results")["figures"])


@pytest.mark.parametrize("trainer", TRAINERS)
def test_it_is_got_over_a_worker_s_death(trainer: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    command = suite(trainer, 100_000).cases[0].command["argv"]
    file.write_text(
        f'title = "Broken"\nnodes = [2]\nrepeats = 1\nvolume_mb = 64\n[[case]]\nname = "{trainer}"\n'
        'workload = "command"\nmechanism = "restart"\nbatch_per_node = 16\nsteps = 100000\nwarmup_steps = 5\n'
        'estimated_step_s = 0.0005\nstartup_s = 180\nfaults = [{ kind = "worker_kill", after_steps = 40 }]\n'
        f"[case.command]\nargv = {command}\n"
    )
    words = ["--runs", str(tmp_path / "runs"), "run", "--suite", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "chaos", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    store = rundir.find(tmp_path / "runs", "broken")
    (trial,) = store.read("results")["trials"]
    assert trial["outcome"] in {"recovered", "unproven"}, trial  # it keeps no twin, so sameness is not proven
    assert {name: trial["verdicts"][name] for name in PROVEN} == dict.fromkeys(PROVEN, "pass")
    events = list(rundir.read_history(store))
    (killed,) = [it for it in events if it["event"] == "fault_end"]
    after = next(it["step"] for it in events if it["event"] == "step" and it["t"] > killed["t"] + 0.5)
    assert after > 1, "it went on from its checkpoint"
