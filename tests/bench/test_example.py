"""A trainer of the user's own, measured for real: the example in `bench/examples/` on local nodes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from bench import rundir
from bench.clusters.local.cluster import LocalCluster
from bench.run import run
from bench.spec import load_suite

ROOT = Path(__file__).parent.parent.parent
STEPS = 8


def test_a_trainer_that_only_prints_is_measured(tmp_path: Path) -> None:
    suite = load_suite(str(ROOT / "bench/examples/own.toml"))
    short = replace(suite.cases[0], steps=STEPS, warmup_steps=2, cpus_per_node=1.0)
    store = run(replace(suite, nodes=(2,), repeats=1, cases=(short,)), LocalCluster(), tmp_path / "runs")
    steps = [it for it in rundir.read_history(store) if it["event"] == "step"]
    assert sorted((it["source"], it["step"]) for it in steps) == [
        (source, step) for source in ("n1.0", "n2.0") for step in range(1, STEPS + 1)
    ]
    assert {it["samples"] for it in steps} == {256}
    done = subprocess.run(
        [sys.executable, "-m", "reports", str(store.path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = {it["name"] for it in store.read("results")["figures"]}
    assert "throughput" in figures
    assert "time_share" not in figures, "a part that was not measured is a gap"


def test_a_trainer_that_only_prints_is_broken_and_comes_back(tmp_path: Path) -> None:
    """Nothing of ours in it: rank, world size and its end are known from what was started."""
    words = ["--runs", str(tmp_path / "runs"), "run", "--suite", "bench/examples/own-chaos.toml"]
    done = subprocess.run(
        [sys.executable, "-m", "chaos", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "verdict: unknown" in done.stdout  # whether it stayed the same training cannot be told: no pass
    store = rundir.find(tmp_path / "runs", "own-chaos")
    trials = store.read("results")["trials"]
    assert [(it["kind"], it["outcome"]) for it in trials] == [("worker_kill", "recovered"), ("node_kill", "recovered")]
    events = rundir.read_history(store)
    starts = [it for it in events if it["event"] == "start"]
    assert {it["world_size"] for it in starts} == {2}
    assert {it["rank"] for it in starts} == {0, 1}
