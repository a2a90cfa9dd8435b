"""Where a model comes from: what is taken, what is proven, and what is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from proving_ground.bench import rundir
from proving_ground.serving import source
from proving_ground.serving.mistakes import FailedError, ServingError
from proving_ground.training.checkpoints import checkpoint
from tests.serving.conftest import Trained

pytestmark = pytest.mark.timeout(400)  # torch and a training, on a busy machine


def test_a_run_gives_lineage_and_metrics_of_all_ranks(trained: Trained) -> None:
    found = source.find("latest", trained.runs)
    about = found.lineage
    assert (about.nodes, about.world_size, about.global_batch, about.step) == ("2", 2, 64, 12)
    assert about.seal_sha256 == rundir.sha256(trained.run / "seal.json")
    assert about.run_id == trained.run.name
    ranks = {name.split("/")[1] for name in found.metrics if name.startswith("rank/")}
    assert len(ranks) == 2
    assert all(found.metrics[f"rank/{it}/steps"] == 12 for it in ranks)
    assert found.metrics["eval/accuracy"] > 0


def test_a_checkpoint_alone_claims_nothing(trained: Trained) -> None:
    about = source.find(str(trained.checkpoints), trained.runs).lineage
    assert (about.step, about.run_id, about.commit, about.seal_sha256) == (12, *["unknown"] * 3)


def test_a_checkpoint_is_of_the_run_that_has_its_hash_and_of_no_other(trained: Trained, tmp_path: Path) -> None:
    newest = max(it for it in trained.checkpoints.iterdir() if it.name.startswith("step-"))
    assert source.find(str(newest), trained.runs, "latest").lineage.run_id == trained.run.name
    other = tmp_path / newest.name
    shutil.copytree(newest, other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["checkpoint"]["wall_s"] += 1
    content, _ = checkpoint.seal(manifest["checkpoint"])
    (other / "manifest.json").write_bytes(content)
    with pytest.raises(ServingError, match="has not made it"):
        source.find(str(other), trained.runs, "latest")


def test_a_run_that_was_changed_is_refused(trained: Trained, tmp_path: Path) -> None:
    copy = tmp_path / "served" / trained.run.name
    shutil.copytree(trained.run, copy)
    with (copy / "history.jsonl").open("a") as lines:
        lines.write("{}\n")
    with pytest.raises(FailedError, match=r"not as it was sealed: history\.jsonl: changed"):
        source.find(str(copy), tmp_path)


def test_a_run_that_failed_is_taken_only_where_that_is_asked_for(trained: Trained, tmp_path: Path) -> None:
    assert source.find("latest", trained.runs).lineage.complete == "true"
    copy = tmp_path / "served" / trained.run.name
    shutil.copytree(trained.run, copy)
    rundir.seal(rundir.RunDir(copy), complete=False)
    with pytest.raises(ServingError, match="failed or was cut off, by its seal; --incomplete"):
        source.find(str(copy), tmp_path)
    assert source.find(str(copy), tmp_path, incomplete=True).lineage.complete == "false"


def test_a_damaged_checkpoint_is_passed_over_and_named(trained: Trained, tmp_path: Path) -> None:
    copy = tmp_path / "checkpoints"
    shutil.copytree(trained.checkpoints, copy)
    newest, older = sorted((it for it in copy.iterdir() if it.name.startswith("step-")), reverse=True)
    (newest / "model.pt").write_bytes(b"nothing")
    found = source.find(str(copy), tmp_path)
    assert found.lineage.step == 6
    assert "model.pt" in found.passed_over[0]
    (older / "model.pt").write_bytes(b"nothing")
    with pytest.raises(FailedError, match="no checkpoint is intact"):
        source.find(str(copy), tmp_path)


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no checkpoint")
    for what in ("nothing", str(tmp_path / "file"), str(tmp_path)):
        with pytest.raises(ServingError, match="checkpoint"):
            source.find(what, tmp_path / "runs")


def test_a_run_whose_checkpoints_are_gone_says_how_to_keep_them(trained: Trained, tmp_path: Path) -> None:
    run = rundir.RunDir(trained.run)
    moved = tmp_path / "away"
    trained.checkpoints.rename(moved)
    try:
        with pytest.raises(ServingError, match=r"are gone, the last was .*training\.checkpoint_dir"):
            source.newest_of(run)
    finally:
        moved.rename(trained.checkpoints)


def test_a_checkpoint_in_an_object_store_is_not_called_gone(tmp_path: Path) -> None:
    run = rundir.RunDir(tmp_path)
    event = {"event": "checkpoint", "t": 1.0, "path": "s3://bucket/folder/step-6", "sha256": "abc"}
    run.history.write_text(json.dumps(event) + "\n")
    with pytest.raises(ServingError, match="s3://bucket/folder/step-6: object stores are not read here"):
        source.newest_of(run)
