"""Object storage, against real emulators: the same promises as a folder, and no secret in what is told."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from proving_ground.training.__main__ import main
from proving_ground.training.checkpoints import checkpoint, stores
from proving_ground.training.checkpoints.checkpoint import CheckpointError, SupersededError
from proving_ground.training.checkpoints.objects import Objects, StoreError
from proving_ground.training.checkpoints.stores import open_store
from proving_ground.training.events import EVENTS_VARIABLE

PARTS: dict[str, dict[str, Any]] = {"model": {"w": torch.arange(1000.0)}, "training": {"step": 3}}
KEY = "do-not-tell-this-key"


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A container of a Blob emulator: its address and the environment that opens it."""
    pytest.importorskip("adlfs", reason="needs the extra `stores`")
    blob = pytest.importorskip("azure.storage.blob", reason="needs the extra `infra`")
    from tests.infra import azurite  # noqa: PLC0415 - its packages are an extra
    from tests.infra.gotools import UnavailableError  # noqa: PLC0415 - same

    try:
        with azurite.running(tmp_path_factory.mktemp("azurite")) as connection:
            with blob.ContainerClient.from_connection_string(connection, "saved") as client:
                client.create_container()
            yield "abfs://saved", {"AZURE_STORAGE_CONNECTION_STRING": connection}
    except UnavailableError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"in CI there must be a Blob emulator: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, dict[str, str]]]:
    """A bucket of an S3 emulator: its address and the environment that opens it."""
    pytest.importorskip("s3fs", reason="needs the extra `stores`")
    boto3 = pytest.importorskip("boto3", reason="needs the extra `dev`")
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - an extra

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": KEY, "AWS_DEFAULT_REGION": "us-east-1"}
    about = {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"}
    client = boto3.client("s3", aws_access_key_id="tests", aws_secret_access_key=KEY, **about)
    client.create_bucket(Bucket="saved")
    yield "s3://saved", {"AWS_ENDPOINT_URL": f"http://{host}:{port}", **keys}
    client.close()
    server.stop()


@pytest.fixture(params=[pytest.param("azure", marks=pytest.mark.apiserver), "s3"])
def address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in object storage."""
    place, environ = request.getfixturevalue(request.param)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return f"{place}/{uuid.uuid4().hex}"


def newest(store: stores.Store) -> tuple[str, list[tuple[str, str]]]:
    bad: list[tuple[str, str]] = []
    found = checkpoint.load_newest(store, lambda path, why: bad.append((path, why)))
    assert found is not None
    assert torch.equal(found.parts["model"]["w"], PARTS["model"]["w"])
    return found.path, bad


def test_a_checkpoint_s_life(address: str) -> None:
    store = open_store(address)
    assert isinstance(store, Objects)
    assert checkpoint.load_newest(store, print) is None
    first = checkpoint.claim_generation(store)
    assert (first, store.claim(first), store.claimed(first)) == (1, False, True)
    for step in (1, 2, 3):
        checkpoint.save(store, step, first, PARTS, keep=2)
    assert checkpoint.newest_first(store) == ["step-00000003-g00000001", "step-00000002-g00000001"]
    damage(store, "step-00000003-g00000001/model.pt")
    path, bad = newest(store)
    assert path == f"{address}/step-00000002-g00000001"
    ((moved, why),) = bad
    assert moved.startswith(f"{address}/quarantine/step-00000003-g00000001")
    assert "model.pt: 1 of" in why
    assert newest(store) == (path, [])


def damage(store: Objects, part: str) -> None:
    store._files.pipe_file(f"{store._root}/{part}", b"x")


def test_the_manifest_is_the_commit_and_a_new_incarnation_clears_what_has_none(address: str) -> None:
    store = open_store(address)
    generation = checkpoint.claim_generation(store)
    checkpoint.save(store, 1, generation, PARTS, keep=5)
    with store.create("step-00000002-g00000001", "model.pt") as file:
        file.write(b"half a checkpoint")
    assert newest(store) == (f"{address}/step-00000001-g00000001", [])
    checkpoint.claim_generation(store)
    assert isinstance(store, Objects)
    assert list(store._found()) == ["step-00000001-g00000001"]


def test_the_fence(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(address)
    old = checkpoint.claim_generation(store)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("proving_ground.training.checkpoints.objects.owner", lambda: "another process")
        assert store.claim(old) is False
        assert [checkpoint.claim_generation(store) for _ in range(4)] == [2, 3, 4, 5]
    assert store.claims() == [3, 4, 5]
    with pytest.raises(SupersededError, match="generation 5 of the job has taken over"):
        checkpoint.save(store, 1, old, PARTS, keep=5)
    assert store.names() == []


def test_training_saves_and_goes_on_there(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "e.jsonl"))
    sets = ["--set", "model=stocks", "--set", f"checkpoint_dir={address}"]
    assert main(["run", *sets, "--set", "steps=2"]) == 0
    assert main(["run", *sets, "--set", "steps=4"]) == 0
    assert f"resumed after step 2 from {address}/step-00000002-g00000001" in capsys.readouterr().out
    told = (tmp_path / "e.jsonl").read_text()
    assert '"generation":2' in told
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AWS_SECRET_ACCESS_KEY"):
        secret = os.environ.get(name, KEY).partition("AccountKey=")[2].partition(";")[0] or KEY
        assert secret not in told


def test_storage_that_fails_is_one_line_without_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="needs the extra `stores`")
    store = Objects("s3://saved/job")

    class Broken:
        """A client whose errors quote what it was given."""

        def find(self, _path: str) -> list[str]:
            raise RuntimeError(f"denied for {KEY}")

        pipe_file = cat_file = find

    monkeypatch.setattr(store, "_files", Broken())
    with pytest.raises(StoreError, match=r"object storage failed \(RuntimeError\)") as error:
        store.names()
    assert KEY not in str(error.value)
    with pytest.raises(CheckpointError, match=r"s3://saved/job/: cannot be read: object storage failed") as refused:
        checkpoint.load_newest(store, print)
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ftp://host/folder", "must be a path, or a URL that begins with abfs:// or s3://"),
        (f"abfs://saved/x?sig={KEY}", "must be abfs://CONTAINER/FOLDER; credentials: see the README"),
        (f"s3://user:{KEY}@bucket/x", "must be s3://CONTAINER/FOLDER; credentials: see the README"),
        ("s3:///x", "must be s3://CONTAINER/FOLDER"),
    ],
)
def test_addresses_that_are_none_are_the_caller_s_mistake(
    address: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--set", "model=stocks", "--set", f"checkpoint_dir={address}"]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert KEY not in printed
    assert printed.count("\n") == 1


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(ValueError, match=r"needs the package s3fs: pip install '\.\[stores\]'"):
        open_store("s3://saved/job")
