"""Real jobs with real faults: the right trainer passes every verdict, and each defect put in on purpose is caught."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.clusters.local.cluster import LocalCluster
from proving_ground.bench.run import Parts, run
from proving_ground.bench.spec import suite_from
from proving_ground.chaos.faults import FAULTS
from proving_ground.chaos.nemesis import FaultNemesis
from proving_ground.chaos.schedule import Chaos
from tests.bench.clusters.conftest import pytest_collection_modifyitems
from tests.validations.defects import DEFECTS

__all__ = ["pytest_collection_modifyitems"]

ROOT = Path(__file__).parents[2]
TRAINING = {
    "optimizer": "adamw", "lr": 0.002, "lr_schedule": "cosine", "clip_norm": 1.0, "dropout": 0.1, "checkpoint_every": 6,
    "fingerprint_every": 6, "ledger": True,
}  # fmt: skip


WHOLE = {"mechanism": "restart", "twins": [2]}
RESIZED = {"global_batch": 48, "twins": [3], "min_nodes": 2}


def judged(folder: Path, cases: dict[str, str]) -> dict[str, Any]:
    """Put a job with each of these trainers through its fault; the report's results. Name of a trainer → fault."""
    return report_of(folder, 2, [case_of(name, {"kind": kind}, **WHOLE) for name, kind in cases.items()])


def case_of(trainer: str, fault: dict[str, Any], **keys: object) -> dict[str, Any]:
    """A suite's case: a job of this trainer's, and its fault."""
    return {
        "name": trainer.replace("_", "-"), "command": {"entry": f"{module_of(trainer)}:{trainer}"},
        "workload": "digits", "global_batch": 32, "steps": 400, "estimated_step_s": 0.1,
        "training": TRAINING, "patience_s": 45,  # a busy machine takes 20 s to start a job
        "faults": [{"after_steps": 40, **fault}], **keys,  # a checkpoint is durable by then, on a slow disk too
    }  # fmt: skip


def report_of(folder: Path, nodes: int, table: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of a run of these cases."""
    document = {"title": "mutants", "nodes": [nodes], "repeats": 1, "disk_mb": 16, "volume_mb": 64, "case": table}
    suite = suite_from(document, where="test", name="mutants")
    store = run(suite, LocalCluster(), folder, Parts(schedule=Chaos(), nemesis=FaultNemesis()))
    subprocess.run(
        [sys.executable, "-m", "proving_ground.reports", str(store.path)], cwd=ROOT, check=False, capture_output=True
    )
    found: dict[str, Any] = json.loads((store.path / "results.json").read_text())
    cases = {trial["id"]: trial["case"] for trial in store.read("plan")["trials"]}
    for it in (*found["trials"], *(verdict["where"] for verdict in found["verdicts"])):
        it["case"] = cases.get(it.get("trial"))
    return found


def module_of(name: str) -> str:
    """Where a trainer is."""
    return "tests.validations.defective" if name in DEFECTS else "tests.chaos.mutants"


def outcomes(results: dict[str, Any]) -> dict[str, str]:
    """Trainer → outcome of its fault."""
    return {trial["case"]: trial["outcome"] for trial in results["trials"]}


def failed(results: dict[str, Any], case: str) -> set[str]:
    """The checks that a trainer failed."""
    return {it["check"] for it in results["verdicts"] if it["verdict"] == "fail" and it["where"]["case"] == case}


@pytest.mark.root
def test_every_defect_is_caught_and_the_right_trainer_passes(tmp_path: Path) -> None:
    results = judged(
        tmp_path,
        {
            "right": "worker_kill", "schedule_begins_anew": "worker_kill", "data_one_step_ahead": "worker_kill",
            "last_sample_dropped": "worker_kill", "optimizer_forgotten": "worker_kill",
            "checksum_off": "checkpoint_bitflip",
        },
    )  # fmt: skip
    found = outcomes(results)
    assert found.pop("right") == "recovered"
    assert set(found.values()) == {"wrong"}
    assert "same_training" in failed(results, "schedule-begins-anew")
    assert "exactly_once" in failed(results, "data-one-step-ahead")
    assert "exactly_once" in failed(results, "last-sample-dropped")
    assert "same_training" in failed(results, "optimizer-forgotten")
    assert "intact_only" in failed(results, "checksum-off")


@pytest.mark.root
def test_a_defect_of_a_float_job_that_changes_its_size_is_caught_by_its_replay(tmp_path: Path) -> None:
    """Live and by restart; a sound live job beside them, whose sums are in another order and which is right."""
    kill, away = {"kind": "worker_kill", "after_steps": 8}, {"kind": "node_kill", "hold_s": 2}  # live: needs no file
    results = report_of(
        tmp_path, 3, [
            case_of("right", kill, mechanism="live", **RESIZED),
            case_of("bucket_dropped_once", kill, mechanism="live", **RESIZED),
            case_of("weights_one_percent_off", away, mechanism="restart", **RESIZED),
        ],
    )  # fmt: skip
    assert outcomes(results) == {
        "right": "recovered",
        "bucket-dropped-once": "wrong",
        "weights-one-percent-off": "wrong",
    }
    assert "same_training" in failed(results, "bucket-dropped-once")
    assert "same_training" in failed(results, "weights-one-percent-off")
    replays = [it["why"] for it in results["verdicts"] if it["check"] == "same_training" and "replay" in it["why"]]
    assert replays


@pytest.mark.root
def test_recovery_switched_off_is_stuck_and_an_idle_injector_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = dataclasses.replace(
        FAULTS["hang"], begin=lambda scene: {"t": scene.cluster.now(), "stopped": []}, hold_s=1.0
    )
    monkeypatch.setitem(FAULTS, "hang", idle)
    alone = {**WHOLE, "twins": []}  # neither is compared with anything
    table = [case_of("no_recovery", {"kind": "worker_kill"}, **alone), case_of("right", {"kind": "hang"}, **alone)]
    results = report_of(tmp_path, 2, table)
    assert outcomes(results) == {"no-recovery": "stuck", "right": "invalid"}
