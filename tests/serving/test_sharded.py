"""A model that was trained cut over ranks is registered, checked and the same to the bit as what the ranks had."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from proving_ground.serving import cli, model, registry, servers, source
from tests.training.ranks import Ranks, sets, start

pytestmark = pytest.mark.timeout(400)  # torch, MLflow and a training, on a busy machine

KEYS = {
    "model": "vit", "parallel": "fsdp", "optimizer": "adamw", "global_batch": 6, "steps": 2, "eval_every": -1,
    "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Two ranks that each saved a part."""
    folder = tmp_path_factory.mktemp("cut")
    job = start(folder, 2, sets(**KEYS, checkpoint_dir=folder / "saved"))
    assert job.wait(200) == [0, 0], job.printed()
    return job


def test_its_weights_are_those_that_the_ranks_ended_with(cut: Ranks) -> None:
    found = source.find(str(cut.folder / "saved"), cut.folder)
    _, network = model.rebuilt(found)
    digest = hashlib.sha256()
    for tensor in network.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    assert digest.hexdigest() == cut.events(0, "end")[0]["parameters_sha256"]
    assert (found.lineage.world_size, found.lineage.step) == (2, 2)


@pytest.mark.filterwarnings("ignore:.*noload:DeprecationWarning")  # MLflow's own way to its database
def test_it_is_registered_and_an_end_point_answers_as_it_does(
    cut: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    words = ["register", str(cut.folder / "saved"), "--name", "cut", "--runs", str(tmp_path), "--tracking-uri", uri]
    assert cli.main(words) == 0
    assert capsys.readouterr().out.startswith("cut/1: registered")
    with registry.fetched("cut", uri) as (folder, _), servers.running(folder, "mlflow", 0, 1, print) as it:
        assert cli.main(["check", str(folder), "--endpoint", it.url]) == 0
        assert "same answers" in capsys.readouterr().out
