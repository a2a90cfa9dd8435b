"""Shards elsewhere: the same training as from a folder, through a cache that stays small; one line where it fails."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proving_ground.training.__main__ import main
from proving_ground.training.checkpoints.objects import StoreError
from proving_ground.training.config import ConfigError, from_dict
from proving_ground.training.data import ahead, shards
from proving_ground.training.data import mapped as data
from proving_ground.training.data.mapped import DataError, DataSet
from proving_ground.training.data.shards import Shelf, opened
from proving_ground.training.loop import train
from tests.training.test_stores import KEY, address, azure, s3  # noqa: F401 - fixtures

from .ranks import sets

fsspec = pytest.importorskip("fsspec", reason="needs the extra `stores`")
ROWS, SHARDS = 256, 8
SHARD_BYTES = ROWS // SHARDS * 64 + 128  # the larger file of a shard
SHORT = {"model": "digits", "steps": 6, "global_batch": 16, "eval_every": -1}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the shipped digits, in eight shards."""
    shipped = data.open_data(data.find("digits"))
    columns = {name: shipped.column("train", name).rows(np.arange(ROWS)) for name in ("image", "label")}
    parts = [{name: np.array_split(rows, SHARDS)[number] for name, rows in columns.items()} for number in range(SHARDS)]
    folder = tmp_path_factory.mktemp("sets") / "digits"
    about = {"name": "some digits", "source": "scikit-learn", "licence": "CC BY 4.0"}
    data.write(folder, about, {"train": parts, "test": [{name: rows[:16] for name, rows in columns.items()}]})
    return folder


@pytest.fixture
def at_url(digits: Path, tmp_path: Path) -> str:
    """A copy of the set that a test may damage, as a URL."""
    copy = tmp_path / "elsewhere"
    subprocess.run(["cp", "-r", str(digits), str(copy)], check=True)
    return f"file://{copy}"


def far(url: str, cache: Path, mib: int = 1) -> DataSet:
    return opened(from_dict({"data": url, "cache_dir": str(cache), "cache_mb": mib}), "digits")


def small_cache(url: str, cache: Path, files: int) -> tuple[Shelf, DataSet]:
    """A cache with room for so many of the larger files."""
    shelf = Shelf(url, cache, files * SHARD_BYTES)
    return shelf, data.assembled(url, shelf.manifest(), shelf.piece)


def used(cache: Path) -> int:
    return sum(file.stat().st_size for file in cache.iterdir())


def test_training_from_object_storage_is_the_same_to_the_bit(
    address: str,  # noqa: F811 - the fixture
    digits: Path,
    tmp_path: Path,
) -> None:
    scheme, _, root = address.partition("://")
    files = fsspec.filesystem(scheme, skip_instance_cache=True)
    for file in digits.iterdir():
        files.pipe_file(f"{root}/{file.name}", file.read_bytes())
    here = train(from_dict({**SHORT, "data": str(digits)}), tell=lambda _: None)
    keys = {"data": address, "cache_dir": str(tmp_path / "cache"), "cache_mb": 1, "prefetch": 2, "loaders": 2}
    there = train(from_dict({**SHORT, **keys}), tell=lambda _: None)
    assert there.parameters_sha256 == here.parameters_sha256
    assert used(tmp_path / "cache") > 0


def test_rows_are_those_of_the_folder_and_the_cache_stays_small(at_url: str, digits: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    near = data.open_data(digits)
    _, there = small_cache(at_url, cache, files=3)
    random = np.random.default_rng(1)
    for _ in range(20):
        rows = random.integers(0, ROWS, 12)
        for name in ("image", "label"):
            assert (there.column("train", name).rows(rows) == near.column("train", name).rows(rows)).all()
            assert 0 < used(cache) <= 3 * SHARD_BYTES


def test_what_was_not_used_for_longest_goes_first(at_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, there = small_cache(at_url, tmp_path / "cache", files=3)
    fetched: list[str] = []
    fetch = Shelf._fetch

    def noted(self: Shelf, file: Path, entry: dict[str, Any]) -> None:
        fetched.append(entry["file"])
        fetch(self, file, entry)

    monkeypatch.setattr(Shelf, "_fetch", noted)
    each = ROWS // SHARDS
    for shard in (0, 1, 2, 0, 3, 0, 1):  # 1 goes for 3, for it was used before 2 and 0
        there.column("train", "image").rows(np.array([shard * each]))
    assert [name.split("-")[1] for name in fetched] == ["0000", "0001", "0002", "0003", "0001"]
    assert shelf.address == at_url


def test_threads_that_want_the_same_shard_fetch_it_once(
    at_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = far(at_url, tmp_path / "cache")
    fetched = []
    download = Shelf._download
    monkeypatch.setattr(Shelf, "_download", lambda *given: fetched.append(1) or download(*given))  # type: ignore[func-returns-value]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: there.column("train", "label").rows(np.arange(ROWS)).tolist(), range(8)))
    assert len(fetched) == SHARDS
    assert all(rows == got[0] for rows in got)


def test_a_process_that_finds_a_cache_checks_it_and_another_may_empty_it(at_url: str, tmp_path: Path) -> None:
    cache, rows = tmp_path / "cache", np.arange(ROWS)
    first = far(at_url, cache).column("train", "label").rows(rows)
    hurt = next(iter(cache.iterdir()))
    hurt.write_bytes(bytes(hurt.stat().st_size))
    column = far(at_url, cache).column("train", "label")
    assert (column.rows(rows) == first).all()
    for file in cache.iterdir():
        file.unlink()
    assert (column.rows(rows) == first).all()


def test_what_a_killed_process_left_half_goes_and_what_is_being_fetched_stays(at_url: str, tmp_path: Path) -> None:
    there = far(at_url, tmp_path / "cache")
    old, new = (tmp_path / "cache" / f"{name}.1.part" for name in ("old", "new"))
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (1, 1))
    there.column("train", "label").rows(np.arange(1))
    assert (old.exists(), new.exists()) == (False, True)


def damage_last_byte(url: str) -> Path:
    file = Path(url.removeprefix("file://")) / "train-0003-image.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    return file


def loaders() -> list[threading.Thread]:
    """The threads that read ahead."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(ahead.THREADS)]


def refused(capsys: pytest.CaptureFixture[str], status: int, **keys: object) -> str:
    """The one line with which a training ends."""
    assert main(["run", *sets(**(SHORT | keys))]) == status
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", "bytes, the manifest says 2176: truncated or replaced"),
        ("changed", "content changed: its SHA-256 is not the manifest's"),
        ("gone", "missing, though the manifest names it"),
    ],
)
def test_a_damaged_object_is_one_line_and_stays_out_of_the_cache(
    how: str, words: str, prefetch: int, at_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = damage_last_byte(at_url)
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    if how == "gone":
        file.unlink()
    cache = tmp_path / "cache"
    said = refused(capsys, 2, data=at_url, cache_dir=cache, prefetch=prefetch, steps=20)
    assert "train-0003-image.npy: " in said
    assert words in said
    for thread in loaders():
        thread.join()  # what failed does not wait for the batches of later steps
    assert all(it.suffix == ".npy" and data.sha256(it) == it.stem for it in cache.iterdir())


KINDLY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>do-not-tell-this-key</Message></Error>"


class Busy(BaseHTTPRequestHandler):
    """An S3 service that answers 503, until it has been asked often enough; then it has one object."""

    failures, content, asked = 0, b"", 0

    def do_GET(self) -> None:
        """Any object."""
        self.answer()

    def do_HEAD(self) -> None:
        """What the client looks up by itself."""
        self.answer()

    def answer(self) -> None:
        """Busy, or the object."""
        type(self).asked += 1
        status, content = (503, KINDLY) if self.asked <= self.failures else (200, self.content)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch, digits: Path) -> Iterator[type[Busy]]:
    """The service, running; the client's own attempts are one, so that its requests can be counted."""
    pytest.importorskip("s3fs", reason="needs the extra `stores`")
    service = type("Service", (Busy,), {"content": (digits / data.MANIFEST).read_bytes(), "asked": 0})
    with ThreadingHTTPServer(("127.0.0.1", 0), service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, KEY)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setattr(shards, "FIRST_PAUSE_S", 0.01)
        yield service
        server.shutdown()


def test_a_503_is_asked_again(busy: type[Busy], tmp_path: Path) -> None:
    busy.failures = 3
    assert Shelf("s3://bucket/set", tmp_path / "cache", 2**20).manifest()["name"] == "some digits"
    assert busy.asked > 3


def test_a_503_that_stays_is_one_line_after_the_stated_time(
    busy: type[Busy], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy.failures = 10**6
    monkeypatch.setattr(shards, "RETRY_S", 10.0)  # the first answer alone took over 2.5 s on a busy machine
    said = refused(capsys, 1, data="s3://bucket/set", cache_dir=tmp_path / "cache")
    assert "object storage failed (OSError 16), for 10 s: 's3://bucket/set/manifest.json'" in said
    assert KEY not in said
    assert busy.asked > 1


def test_what_asking_again_does_not_help_is_not_asked_again(at_url: str, tmp_path: Path) -> None:
    shelf = Shelf(at_url, tmp_path / "cache", 2**20)
    asked: list[str] = []

    class Denied:
        """A client that may not read."""

        def cat_file(self, path: str) -> bytes:
            asked.append(path)
            raise PermissionError(13, f"denied {KEY}")

    shelf._files = Denied()
    with pytest.raises(StoreError, match=r"object storage failed \(PermissionError 13\)") as failed:
        shelf.manifest()
    assert len(asked) == 1
    assert KEY not in str(failed.value)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system must be mounted, which needs root: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_line_and_nothing_is_lost(
    at_url: str, tiny_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds two of sixteen files; the checkpoint of before is what training goes on from with another folder."""
    saved = {"checkpoint_dir": tmp_path / "saved", "data": at_url, "eval_every": -1}
    plenty = saved | {"cache_dir": tmp_path / "cache"}
    assert main(["run", *sets(**(SHORT | plenty | {"steps": 3}))]) == 0
    capsys.readouterr()
    said = refused(capsys, 1, **(saved | {"cache_dir": tiny_disk}))
    assert f"cache_dir = {tiny_disk}: cannot take train-" in said
    assert "No space left on device" in said
    assert not list(tiny_disk.glob("*.part"))
    assert all(data.sha256(it) == it.stem for it in tiny_disk.iterdir())
    assert main(["run", *sets(**(SHORT | plenty))]) == 0
    assert "resumed after step 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"data": "s3://b/set"}, "data at a URL needs a cache_dir, no other does"),
        ({"cache_dir": "/x"}, "data at a URL needs a cache_dir, no other does"),
        ({"data": "s3://b/set", "cache_dir": "/x", "cache_mb": 0}, "cache_mb = 0: must be at least 1"),
        (
            {"data": "ftp://b/set", "cache_dir": "c"},
            "must be a path, or a URL that begins with abfs:// or s3:// or file",
        ),
        ({"data": f"s3://u:{KEY}@b/set", "cache_dir": "c"}, "must be s3://CONTAINER/FOLDER; credentials"),
        ({"data": "file://set", "cache_dir": "c"}, "must be file:///FOLDER"),
        ({"data": "file:///no/such", "cache_dir": "c"}, "file:///no/such: no manifest.json"),
        ({"data": "s3://b/set", "cache_dir": "/dev/null/c"}, "cache_dir = /dev/null/c: Not a directory"),
    ],
)
def test_impossible_keys_are_one_line(
    keys: dict[str, object],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, 2, **keys)
    assert words in said
    assert KEY not in said


def test_a_shard_that_the_cache_cannot_hold_is_refused_before_anything_is_fetched(at_url: str, tmp_path: Path) -> None:
    shelf = Shelf(at_url, tmp_path / "cache", 1000)
    with pytest.raises(DataError, match=r"image\.npy: 2176 bytes are more than cache_mb"):
        data.assembled(at_url, shelf.manifest(), shelf.piece)
    assert not list((tmp_path / "cache").iterdir())


def test_without_a_hash_nothing_can_be_checked(at_url: str, tmp_path: Path) -> None:
    manifest = Path(at_url.removeprefix("file://")) / data.MANIFEST
    document = json.loads(manifest.read_text())
    document["splits"]["test"][0]["files"]["label"]["sha256"] = ""
    manifest.write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"test-0000-label\.npy has no sha256 to check it by"):
        far(at_url, tmp_path / "cache")


def test_a_cache_folder_may_name_variables() -> None:
    from proving_ground.training.config import load  # noqa: PLC0415 - only here

    keys = ["data=s3://b/set", "cache_dir=$DISK/cache"]
    assert load(environ={"DISK": "/fast"}, sets=keys).cache_dir == "/fast/cache"
    with pytest.raises(ConfigError, match=r"cache_dir = '\$DISK/cache': 'DISK' is not set"):
        load(sets=keys)
