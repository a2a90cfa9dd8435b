"""Backup and restore: in memory, and against a real Blob emulator; all nodes lost included."""

from __future__ import annotations

import datetime as dt
import io
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from pathlib import Path
from typing import BinaryIO

import pytest
from azure.core.exceptions import AzureError, ClientAuthenticationError, ResourceNotFoundError, ServiceRequestError

from proving_ground.infra import backup
from proving_ground.infra.blobs import CONNECTION, Blobs, container
from proving_ground.infra.reading import ConfigError
from tests.infra import azurite
from tests.infra.gotools import UnavailableError

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


class Memory:
    """Object storage in memory; `at` is its clock, in days. `before` is called before each request."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.changes: dict[str, tuple[str, float]] = {}
        self.sent: list[str] = []
        self.at = 0.0
        self.before: Callable[[], None] = lambda: None

    def _changed(self, name: str) -> None:
        self.changes[name] = (f"{len(self.changes)}-{secrets.token_hex(4)}", self.at)

    def found(self, prefix: str) -> Iterable[backup.Found]:
        self.before()
        chosen = [(name, *self.changes.get(name, ("", 0.0))) for name in self.objects if name.startswith(prefix)]
        return [backup.Found(name, tag, NOW + at * DAY) for name, tag, at in chosen]

    def renew(self, name: str) -> bool:
        self.before()
        if name in self.objects:
            self._changed(name)
        return name in self.objects

    def names(self, prefix: str) -> Iterable[str]:
        self.before()
        return [name for name in self.objects if name.startswith(prefix)]

    def put(self, name: str, data: BinaryIO) -> None:
        self.before()
        self.sent.append(name)
        self.objects[name] = data.read()
        self._changed(name)

    def get(self, name: str, out: BinaryIO) -> None:
        self.before()
        if name not in self.objects:
            raise ConfigError(f"backup: {name} is not in the container")
        out.write(self.objects[name])

    def delete(self, name: str, tag: str | None = None) -> bool:
        self.before()
        here = name in self.objects and (tag is None or tag == self.changes[name][0])
        if here:
            del self.objects[name]
        return here


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with azurite.running(tmp_path_factory.mktemp("azurite")) as text:
            yield text
    except UnavailableError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"in CI there must be a Blob emulator: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(params=["memory", pytest.param("azurite", marks=pytest.mark.apiserver)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[backup.Store]:
    """Each test runs with both."""
    if request.param == "memory":
        yield Memory()
    else:
        text = request.getfixturevalue("connection")
        with azurite.container(text, f"t{abs(hash(tmp_path)) % 10**12}") as blobs:
            yield blobs


def run(folder: Path, **files: bytes) -> Path:
    """A folder like a run's, with a checkpoint in a folder of its own."""
    (folder / "checkpoints").mkdir(parents=True)
    for name, data in files.items():
        (folder / "checkpoints" / name).write_bytes(data)
    (folder / "spec.json").write_text("{}")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_all_nodes_lost_and_everything_back(store: backup.Store, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", step_1=os.urandom(3 << 20), step_2=b"2")
    before = content(folder)
    backup.backup(store, folder, "prod", NOW)
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    folder.rmdir()
    backup.restore(store, "prod", folder)
    assert content(folder) == before
    assert [item.name for item in tmp_path.iterdir()] == ["run"]


def test_an_earlier_backup_and_retention(store: backup.Store, tmp_path: Path) -> None:
    times = []
    for number in range(3):
        folder = run(tmp_path / str(number), step=str(number).encode())
        times.append(backup.backup(store, folder, "prod", NOW + number * DAY).taken)
    backup.backup(store, run(tmp_path / "other", step=b"0"), "other", NOW)
    assert backup.taken(store, "prod") == times
    backup.restore(store, "prod", tmp_path / "back", times[1])
    assert (tmp_path / "back" / "checkpoints" / "step").read_bytes() == b"1"
    assert backup.prune(store, "prod", 1, grace=dt.timedelta(0)) == times[:2]
    backup.restore(store, "prod", tmp_path / "newest")
    backup.restore(store, "other", tmp_path / "others")  # shares a file with one that is forgotten
    assert len(list(store.names("objects/"))) == 3  # spec.json, step 2, the other's step 0


def test_a_damaged_object_is_never_restored(store: backup.Store, tmp_path: Path) -> None:
    made = backup.backup(store, run(tmp_path / "run", step=b"good"), "prod", NOW)
    store.put(f"objects/{made.files['checkpoints/step']}", io.BytesIO(b"goof"))
    with pytest.raises(ConfigError, match=r"checkpoints/step is not what was backed up; .*--at"):
        backup.restore(store, "prod", tmp_path / "back")
    assert [item.name for item in tmp_path.iterdir()] == ["run"]


def test_a_missing_object_is_told(store: backup.Store, tmp_path: Path) -> None:
    made = backup.backup(store, run(tmp_path / "run", step=b"good"), "prod", NOW)
    store.delete(f"objects/{made.files['checkpoints/step']}")
    with pytest.raises(ConfigError, match="is not in the container"):
        backup.restore(store, "prod", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_an_interrupted_backup_is_none(tmp_path: Path) -> None:
    class Dies(Memory):
        def put(self, name: str, data: BinaryIO) -> None:
            if len(self.sent) == 1:
                raise ConnectionError
            super().put(name, data)

    store = Dies()
    with pytest.raises(ConnectionError):
        backup.backup(store, run(tmp_path / "run", step=b"good"), "prod", NOW)
    with pytest.raises(ConfigError, match="backup 'prod': not there; there are: none"):
        backup.restore(store, "prod", tmp_path / "back")


def test_only_what_changed_is_sent(tmp_path: Path) -> None:
    store = Memory()
    folder = run(tmp_path / "run", step_1=b"1")
    backup.backup(store, folder, "prod", NOW)
    (folder / "checkpoints" / "step_2").write_bytes(b"2")
    store.sent.clear()
    backup.backup(store, folder, "prod", NOW + DAY)
    assert [name.partition("/")[0] for name in store.sent] == ["objects", "prod"]


def test_two_backups_at_once_can_both_be_restored_whatever_request_comes_first(tmp_path: Path) -> None:
    """One backup and prune, whole, before each request of another; what both need lies there old and unneeded."""
    first, second = run(tmp_path / "1", step=b"shared", one=b"1"), run(tmp_path / "2", step=b"shared", two=b"2")
    for who in ("saving", "pruning"):
        for number in range(50):
            store = Memory()
            before = run(tmp_path / f"{who}{number}", step=b"shared", one=b"1", two=b"2")
            backup.backup(store, before, "old", NOW)
            (listed,) = [name for name in store.objects if name.startswith("old/")]
            store.delete(listed)
            store.at = 30.0
            done = _interrupted(store, number, who, first, second)
            for name, folder in (("a", first), ("b", second)):
                backup.restore(store, name, tmp_path / f"{who}{number}{name}")
                assert content(tmp_path / f"{who}{number}{name}") == content(folder)
            if not done:
                break
        assert 4 < number < 49  # it was every request


def _interrupted(store: Memory, number: int, who: str, first: Path, second: Path) -> bool:
    """Back up `first` and prune; before request `number` of the saving or the pruning, all of `second`'s backup."""
    left = [number]

    def meanwhile() -> None:
        left[0] -= 1
        if left[0] == -1:
            backup.backup(store, second, "b", NOW)
            backup.prune(store, "b", 1)

    store.before = meanwhile if who == "saving" else store.before
    backup.backup(store, first, "a", NOW)
    store.before = meanwhile
    backup.prune(store, "a", 1)
    store.before = lambda: None
    if left[0] >= 0:
        backup.backup(store, second, "b", NOW)
    return left[0] < 0


def _save(store: backup.Store, name: str, folder: Path, now: dt.datetime) -> None:
    backup.backup(store, folder, name, now)
    backup.prune(store, name, 1)


@pytest.mark.apiserver
def test_backups_at_once_can_all_be_restored_from_a_real_store(connection: str, tmp_path: Path) -> None:
    folders = {f"n{number}": run(tmp_path / f"n{number}", step=b"same", own=b"%d" % number) for number in range(4)}
    with azurite.container(connection, "at-once") as store:
        for turn in range(5):
            with futures.ThreadPoolExecutor() as workers:
                done = [workers.submit(_save, store, *item, NOW + turn * DAY) for item in folders.items()]
            assert [it.exception() for it in done] == [None] * len(folders)
            for name, folder in folders.items():
                backup.restore(store, name, tmp_path / f"back-{turn}-{name}")
                assert content(tmp_path / f"back-{turn}-{name}") == content(folder)


def test_an_object_that_was_renewed_is_not_deleted_by_who_saw_it_old(store: backup.Store) -> None:
    store.put("objects/1", io.BytesIO(b"1"))
    (seen,) = store.found("objects/")
    assert store.renew("objects/1")
    assert not store.delete("objects/1", seen.tag)
    (now,) = store.found("objects/")
    assert now.tag != seen.tag
    assert now.changed >= seen.changed
    assert store.delete("objects/1", now.tag)
    assert not store.delete("objects/1", now.tag)
    assert not store.renew("objects/1")
    assert list(store.names("objects/")) == []


def test_what_nobody_needs_goes_after_a_while(tmp_path: Path) -> None:
    """An interrupted backup's files, for instance; by the store's clock, and not before `GRACE`."""
    store = Memory()
    store.put("objects/left-over", io.BytesIO(b"1"))
    for at, left in ((1.0, True), (2.0, False)):
        store.at = at
        backup.backup(store, run(tmp_path / str(at), step=str(at).encode()), "prod", NOW)
        backup.prune(store, "prod", 5)
        assert ("objects/left-over" in store.objects) is left


def test_a_backup_that_took_too_long_is_none(tmp_path: Path) -> None:
    times = iter((0.0, backup.GRACE.total_seconds() + 1))
    store = Memory()
    with pytest.raises(ConfigError, match=r"took longer than 2 days, .* start once more"):
        backup.backup(store, run(tmp_path / "run", step=b"1"), "prod", NOW, clock=lambda: next(times))
    assert backup.taken(store, "prod") == []


def test_a_damaged_list_stops_the_pruning(tmp_path: Path) -> None:
    store = Memory()
    backup.backup(store, run(tmp_path / "run", step=b"1"), "prod", NOW)
    store.put("other/20270101T000000.000000Z.json", io.BytesIO(b"{"))
    with pytest.raises(ConfigError, match="damaged"):
        backup.prune(store, "prod", 1, grace=dt.timedelta(0))


def test_the_callers_mistakes(tmp_path: Path) -> None:
    store = Memory()
    with pytest.raises(ConfigError, match="no files to back up"):
        backup.backup(store, tmp_path / "nowhere", "prod", NOW)
    backup.backup(store, run(tmp_path / "run", step=b"1"), "prod", NOW)
    with pytest.raises(ConfigError, match="is in the way"):
        backup.restore(store, "prod", tmp_path / "run")
    with pytest.raises(ConfigError, match="of then: not there; there are: 20260101T"):
        backup.restore(store, "prod", tmp_path / "back", "then")
    with pytest.raises(ConfigError, match="keep: 0 is not allowed"):
        backup.prune(store, "prod", 0)
    store.objects["prod/20270101T000000.000000Z.json"] = b"{"
    with pytest.raises(ConfigError, match="damaged"):
        backup.restore(store, "prod", tmp_path / "back")
    store.objects["prod/20270101T000000.000000Z.json"] = b'{"taken": "x", "files": {"../out": "0"}}'
    with pytest.raises(ConfigError, match="leads out of the folder"):
        backup.restore(store, "prod", tmp_path / "back")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ClientAuthenticationError("no credential\nat all\nof eight"), "credentials: no credential (az login)"),
        (ServiceRequestError("no such host"), "objects/1 cannot be had: no such host"),
        (ResourceNotFoundError("The blob does not exist"), "objects/1 is not in the container"),
    ],
)
def test_azure_s_errors_are_one_line(error: AzureError, says: str) -> None:
    class Client:
        """Refuses whatever is asked."""

        def __getattr__(self, name: str) -> Callable[..., None]:
            def refuse(*_: object, **__: object) -> None:
                raise error

            return refuse

    store, file = Blobs(Client()), io.BytesIO()  # type: ignore[arg-type]
    tries: list[Callable[[], object]] = [lambda: store.get("objects/1", file), lambda: store.put("objects/1", file)]
    if not isinstance(error, ResourceNotFoundError):
        tries += [lambda: store.delete("objects/1"), lambda: store.renew("objects/1")]
    for attempt in tries:
        with pytest.raises(ConfigError, match=re.escape(says) + "$"):
            attempt()
    with pytest.raises(ConfigError, match=r"^(backup|credentials): [^\n]*$"):
        store.names("objects/")


@pytest.mark.apiserver
def test_a_container_that_is_not_there(connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONNECTION, connection)
    with pytest.raises(ConfigError, match="the container is not there"):
        container("absent").names("objects/")
