"""Whole runs on real local nodes, from the command line: the smoke suite, and workers that die."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.drive import ABORTED

ROOT = Path(__file__).parent.parent.parent
DYING = """
title = "T"
nodes = [2]
repeats = 1
[[case]]
name = "own"
workload = "command"
steps = 8
estimated_step_s = 0.1
batch_per_node = 8
[case.command]
argv = ["python", "-c", "SCRIPT"]
"""


def bench(runs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proving_ground.bench", "--runs", str(runs), "run", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def die(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    suite = tmp_path / "dying.toml"
    suite.write_text(DYING.replace("SCRIPT", script))
    return bench(tmp_path / "runs", "--suite", str(suite))


def test_the_smoke_suite_runs_and_reports(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    done = bench(runs, "--suite", "smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    store = rundir.find(runs)
    assert store.read("seal")["complete"]
    assert rundir.verify(store) == []
    steps = [it for it in rundir.read_history(store) if it["event"] == "step"]
    assert {"data_s", "forward_s", "backward_s", "comm_s", "optimizer_s", "checkpoint_s", "step_s"} <= set(steps[0])
    hashes = {
        it["parameters_sha256"] for it in rundir.read_history(store) if it["event"] == "end" and it["trial"] == "t001"
    }
    assert len(hashes) == 1, "all ranks of a trial end with the same weights"
    figures = store.read("results")["figures"]
    assert {it["where"]["nodes"] for it in figures if it["name"] == "throughput"} == {1, 2}
    assert "digits" in store.report.read_text()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import sys; sys.exit('no data in /data')", r"exited with status 1: no data in /data"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
        (f"import os; os.write(2, b'{ABORTED}'); os.abort()", "end yours with os._exit(0)"),
    ],
)
def test_a_worker_that_dies_at_start_fails_the_run(tmp_path: Path, script: str, why: str) -> None:
    done = die(tmp_path, script)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("bench: trial t001 (own, 2 nodes): n")
    assert why in last
    assert "Traceback" not in done.stderr


def test_a_mistake_in_the_trainers_keys_is_found_before_anything_starts(tmp_path: Path) -> None:
    suite = tmp_path / "typo.toml"
    smoke = (ROOT / "bench" / "suites" / "smoke.toml").read_text()
    suite.write_text(smoke + "\n[case.training]\nlearning_rate = 0.1\n")
    done = bench(tmp_path / "runs", "--suite", str(suite))
    assert done.returncode == 2
    assert "learning_rate" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_failed_run_can_still_be_reported(tmp_path: Path) -> None:
    assert die(tmp_path, "import sys; sys.exit(3)").returncode == 1
    store = rundir.find(tmp_path / "runs")
    done = subprocess.run(
        [sys.executable, "-m", "proving_ground.reports", str(store.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    verdicts = json.loads(store.results.read_text())["verdicts"]
    assert "fail" in {it["verdict"] for it in verdicts}
