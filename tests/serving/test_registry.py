"""MLflow's registry: in a SQLite file, without a training."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from proving_ground.monitoring.mlflow_store import told
from proving_ground.monitoring.tracking import TrackingError
from proving_ground.serving import left, model, registry
from proving_ground.serving.mistakes import ServingError
from proving_ground.serving.source import Lineage, Source

pytestmark = [
    pytest.mark.timeout(300),  # MLflow, on a busy machine
    pytest.mark.filterwarnings("ignore"),  # SQLAlchemy's, of MLflow's own tables
]
ALONE = Source({}, Lineage("step-0", "abc", 7, "digits", 1, 1, "fp32", 0, "2"))
PROVEN = replace(ALONE, lineage=replace(ALONE.lineage, run_id="the-run", seal_sha256="5ea1", complete="true"))


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def save(source: Source, folder: Path) -> None:
        folder.mkdir()
        (folder / "MLmodel").write_text(source.lineage.run_id)

    monkeypatch.setattr(model, "save", save)
    return f"sqlite:///{tmp_path}/mlflow.db"


def test_what_mlflow_says_of_an_address_has_no_password() -> None:
    words = f"{'x' * 170} http://me:s3cret-{'y' * 50}@here/api failed"  # cut before its @, it would show
    with pytest.raises(TrackingError) as found, told("http://me:s3cret@here/?key=s3cret"):
        raise MlflowException(words, error_code=1000)
    assert "xxx" in str(found.value)
    assert "s3cret" not in str(found.value)


def test_lineage_is_what_the_registry_has_and_is_added_once_proven(uri: str) -> None:
    said: list[str] = []
    first = registry.register(ALONE, "digits", uri, said.append)
    assert (first.new, first.version, first.tags[registry.RUN_ID_TAG]) == (True, 1, "unknown")
    proven = registry.register(PROVEN, "digits", uri, said.append)
    assert (proven.new, proven.version, proven.tags[registry.RUN_ID_TAG]) == (False, 1, "the-run")
    assert said == ["digits/1 was registered without lineage; it is proven now, and its tags say so"]
    stored = MlflowClient(uri).get_model_version("digits", "1").tags
    assert stored == dict(proven.tags)
    again = registry.register(ALONE, "digits", uri, said.append)
    assert again.tags == stored
    assert len(said) == 1


def test_of_two_that_register_at_a_time_the_younger_version_goes(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register(PROVEN, "digits", uri, print)
    real, looked = registry.versions_of, []

    def late(*words: Any) -> list[ModelVersion]:
        looked.append(words)
        return real(*words) if len(looked) > 1 else []  # the first time the other had not registered

    monkeypatch.setattr(registry, "versions_of", late)
    found = registry.register(ALONE, "digits", uri, print)
    assert (found.new, found.version, found.tags[registry.RUN_ID_TAG]) == (False, 1, "the-run")
    assert [int(it.version) for it in MlflowClient(uri).search_model_versions("name = 'digits'")] == [1]


def test_a_version_is_found_by_number_alias_and_as_the_latest(uri: str) -> None:
    registry.register(PROVEN, "digits", uri, print)
    newer = replace(ALONE, lineage=replace(ALONE.lineage, checkpoint_sha256="def"))
    registry.register(newer, "digits", uri, print)
    MlflowClient(uri).set_registered_model_alias("digits", "champion", "1")
    for what, version in (("digits", 2), ("digits/latest", 2), ("digits/1", 1), ("models:/digits@champion", 1)):
        with registry.fetched(what, uri) as (folder, name):
            assert name == f"digits/{version}"
            assert (folder / "MLmodel").read_text() == ("the-run" if version == 1 else "unknown")
    for what, said in (("digits@no", "has no alias 'no'; it has champion"), ("digits/3", "has no version 3")):
        with pytest.raises(ServingError, match=said), registry.fetched(what, uri):
            pass


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a killed process has left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import os; from proving_ground.serving import left; "
        "held = left.folder('model'); held.__enter__(); os.kill(os.getpid(), 9)"
    )
    root = Path(left.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    (folder,) = tmp_path.glob("proving-ground-model-*")
    return folder


def test_what_a_killed_process_left_is_removed_and_what_is_held_stays(killed: Path) -> None:
    with left.folder("serving"):
        assert killed.exists()
    with left.folder("model") as first, left.folder("model") as second:
        assert not killed.exists()
        assert first.exists()
        assert second.exists()


def test_looking_for_a_model_makes_no_registry(tmp_path: Path) -> None:
    said = "neither a folder nor a model in .*, which does not exist"
    uri = f"sqlite:///{tmp_path}/new/mlflow.db"
    with pytest.raises(ServingError, match=said), registry.fetched("digits", uri):
        pass
    assert list(tmp_path.iterdir()) == []
