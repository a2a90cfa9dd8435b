"""The shipped suites can be planned, and a small one of each kind runs on real local nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.plan import make_plan
from proving_ground.bench.spec import SpecError, load_suite, suite_from, suite_names
from proving_ground.bench.workloads import WORKLOADS, Program

ROOT = Path(__file__).parent.parent.parent
SMALL: dict[str, dict[str, Any]] = {
    "collectives": {"sizes": [4096, 262144]},
    "loading": {"data_mb": 8, "shard_mb": 2, "batch": 4},
    "storing": {"sizes_mb": [2]},
    "plain": {"device": "cpu", "batch": 2, "steps": 2},
    "memory": {"models": ["resnet18"], "batches": [1], "steps": 1, "device": "cpu"},
}
NAMES = {
    "collectives": {"busbw"},
    "loading": {"load_rate", "load_bandwidth", "load_wait", "load_samples", "load_memory"},
    "storing": {"checkpoint_block", "checkpoint_save", "checkpoint_load"},
    "memory": {"memory_peak"},
    "plain": {"plain_rate"},
}
MATRIX = """
title = "Small matrix"
nodes = [1, 2]
repeats = 1
calibrate = true
[matrix.case]
workload = "resnet18"
batch_per_node = 1
steps = 2
warmup_steps = 1
estimated_step_s = 1.0
training = { bucket_mb = 25, compression = "fp16" }
[matrix.axes.link]
slow = { link_mbps = 100, dilation = 0.5 }
too-fast = { link_mbps = 15000, dilation = 0.5 }
"""


def small(workload: str, nodes: int) -> dict[str, Any]:
    case = {
        "name": workload, "workload": workload, "batch_per_node": 1, "steps": 2, "warmup_steps": 1,
        "estimated_step_s": 1.0, "training": SMALL[workload],
    }  # fmt: skip
    return {"title": "Small", "nodes": [nodes], "repeats": 1, "cases": [case]}


def bench(tmp_path: Path, suite: str, text: str) -> tuple[subprocess.CompletedProcess[str], rundir.RunDir]:
    file = tmp_path / f"{suite}.toml"
    file.write_text(text)
    command = [
        sys.executable,
        "-m",
        "bench",
        "--runs",
        str(tmp_path / "runs"),
        "run",
        "--suite",
        str(file),
        "--no-report",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, rundir.find(tmp_path / "runs", suite)


def toml(document: dict[str, Any]) -> str:
    """A suite with one case, as text."""
    (case,) = document.pop("cases")
    training = case.pop("training")
    parts = (("", document), ("[[case]]\n", case), ("[case.training]\n", training))
    return "".join(head + "".join(f"{key} = {json.dumps(it)}\n" for key, it in table.items()) for head, table in parts)


@pytest.mark.parametrize("name", suite_names())
def test_every_shipped_suite_can_be_planned(name: str) -> None:
    suite = load_suite(name)
    made = make_plan(suite, FakeCluster())
    assert {trial.case for trial in made.trials} == {case.name for case in suite.cases}
    assert all(trial.estimate_s > 0 for trial in made.trials)


def test_a_program_s_keys_are_checked_before_anything_starts() -> None:
    document = small("collectives", 2)
    document["cases"][0]["training"] = {"size": [4]}
    with pytest.raises(SpecError, match="case 'collectives': training: unknown key 'size'; allowed: rounds, ops"):
        make_plan(suite_from(document, where="t", name="t"), FakeCluster())


def test_programs_get_no_share_of_the_cores() -> None:
    made = make_plan(suite_from(small("collectives", 2), where="t", name="t"), FakeCluster())
    assert (made.trials[0].cpus_per_node, made.trials[0].compute) == (None, "none")


def test_every_program_is_a_workload() -> None:
    assert {name for name, it in WORKLOADS.items() if isinstance(it, Program)} == set(SMALL)


@pytest.mark.parametrize("workload", list(SMALL))
def test_a_small_one_runs_on_real_nodes(tmp_path: Path, workload: str) -> None:
    _, store = bench(tmp_path, "small", toml(small(workload, 1 if workload == "memory" else 2)))
    events = list(rundir.read_history(store))
    measured = {it["name"] for it in events if it["event"] == "measure"}
    measured |= {"busbw" for it in events if it["event"] == "collective" and it["busbw"] > 0}
    assert measured == NAMES[workload]
    assert store.read("seal")["complete"]


@pytest.mark.root
def test_a_small_matrix_calibrates_runs_and_refuses(tmp_path: Path) -> None:
    done, store = bench(tmp_path, "cells", MATRIX)
    calibration = store.read("calibration")
    assert calibration["busbw_mbps"]["2"] > 100
    assert [(it["case"], it["nodes"]) for it in store.read("plan")["refused"]] == [("too-fast", 2)]
    assert "refused: 1 of the cases at 2 nodes: links of 30000 Mb/s" in done.stdout
    steps = [it for it in rundir.read_history(store) if it["event"] == "step"]
    assert all("compress_s" in it for it in steps)
    assert {trial["link_mbps"] for trial in store.read("plan")["trials"]} == {200.0, 30000.0}
