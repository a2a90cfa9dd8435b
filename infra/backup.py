"""Backup of checkpoints and run directories to object storage, and the way back. Called by `pg infra`.

A backup is a list of files with their SHA-256, written last, as `<name>/<UTC time>.json`; the files themselves are kept
once under their hash (`objects/<sha256>`), so that the next backup sends what changed. A restore verifies every file,
and puts the folder in place whole or not at all.

Several may run at once, without a lock. A backup makes each object that it counts on new: it stores it, or renews the
one that is there. `prune` deletes an object only if no list needs it, if it was not new for `GRACE`, and if it is still
the one that was looked at. So an object is gone before a backup renews it, and is then stored again, or it stays.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from proving_ground.infra.reading import ConfigError, build

TIME = "%Y%m%dT%H%M%S.%fZ"
GRACE = dt.timedelta(days=2)  # longer than a backup takes


@dataclass(frozen=True)
class Found:
    """An object: `tag` is another after each change, `changed` is by the store's own clock."""

    name: str
    tag: str
    changed: dt.datetime


class Store(Protocol):
    """Object storage, as far as a backup needs it."""

    def names(self, prefix: str) -> Iterable[str]:
        """The objects whose names begin with `prefix`."""

    def found(self, prefix: str) -> Iterable[Found]:
        """The objects whose names begin with `prefix`, and how old they are."""

    def put(self, name: str, data: BinaryIO) -> None:
        """Store an object whole, in place of an older one."""

    def renew(self, name: str) -> bool:
        """Give an object a new tag and time; False when it is not there."""

    def get(self, name: str, out: BinaryIO) -> None:
        """Write an object's bytes to `out`. Raises ConfigError when it is not there."""

    def delete(self, name: str, tag: str | None = None) -> bool:
        """Remove an object, with a `tag` only if it still has it; whether it was removed."""


@dataclass(frozen=True)
class Backup:
    """One backup: when, and relative path → SHA-256."""

    taken: str
    files: Mapping[str, str]


def backup(
    store: Store, folder: Path, name: str, now: dt.datetime, clock: Callable[[], float] = time.monotonic
) -> Backup:
    """Send a folder's files that are not there yet, then the list that makes them a backup.

    Raises:
        ConfigError: the folder is missing or empty, a file changed while it was read, or it took longer than `GRACE`.
    """
    begun = clock()
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    if not files:
        raise ConfigError(f"{folder}: no files to back up")
    there: set[str] = set()
    made = Backup(now.strftime(TIME), {str(file.relative_to(folder)): _send(store, file, there) for file in files})
    if clock() - begun > GRACE.total_seconds():
        raise ConfigError(f"{folder}: took longer than {GRACE}, what was sent first may be gone again; start once more")
    with tempfile.TemporaryFile() as text:
        text.write(json.dumps({"taken": made.taken, "files": dict(made.files)}, indent=1).encode())
        text.seek(0)
        store.put(f"{name}/{made.taken}.json", text)
    return made


def _send(store: Store, file: Path, there: set[str]) -> str:
    with file.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
        if digest not in there and not store.renew(f"objects/{digest}"):
            data.seek(0)
            store.put(f"objects/{digest}", data)
            data.seek(0)
            if hashlib.file_digest(data, "sha256").hexdigest() != digest:
                raise ConfigError(f"{file}: changed while it was read; back up a finished checkpoint")
    there.add(digest)
    return digest


def taken(store: Store, name: str) -> list[str]:
    """The times of a name's backups, oldest first."""
    return sorted(found.rpartition("/")[2].removesuffix(".json") for found in store.names(f"{name}/"))


def restore(store: Store, name: str, folder: Path, at: str | None = None) -> Backup:
    """Bring a backup (the newest, or the one taken `at`) back into a folder that is not there yet.

    Raises:
        ConfigError: no such backup, the folder is in the way, or a file is not what was backed up.
    """
    if folder.exists():
        raise ConfigError(f"{folder}: is in the way; restore into a folder that does not exist")
    made = read(store, name, at)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=folder.parent) as waiting:
        whole = Path(waiting) / "whole"
        for path, digest in made.files.items():
            _fetch(store, digest, whole / path, path)
        shutil.move(whole, folder)
    return made


def read(store: Store, name: str, at: str | None = None) -> Backup:
    """The list of a backup's files.

    Raises:
        ConfigError: there is none, or it is damaged; names the ones there are.
    """
    times = taken(store, name)
    if not times or (at is not None and at not in times):
        raise ConfigError(
            f"backup {name!r}{f' of {at}' if at else ''}: not there; there are: {', '.join(times) or 'none'}"
        )
    with tempfile.TemporaryFile() as text:
        store.get(f"{name}/{at or times[-1]}.json", text)
        text.seek(0)
        try:
            return build(Backup, json.load(text), f"backup {name} of {at or times[-1]}")
        except ValueError as error:
            raise ConfigError(f"backup {name} of {at or times[-1]}: damaged: {error}; try an earlier one") from None


def _fetch(store: Store, digest: str, file: Path, path: str) -> None:
    if ".." in Path(path).parts or Path(path).is_absolute():
        raise ConfigError(f"backup: {path!r} leads out of the folder")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w+b") as out:
        store.get(f"objects/{digest}", out)
        out.flush()
        out.seek(0)
        if hashlib.file_digest(out, "sha256").hexdigest() != digest:
            raise ConfigError(f"backup: {path} is not what was backed up; restore an earlier backup with --at")


def prune(store: Store, name: str, keep: int, grace: dt.timedelta = GRACE) -> list[str]:
    """Forget all but the newest `keep` backups of a name, and the files that no backup needs; the times forgotten.

    Raises:
        ConfigError: `keep` below 1, or a list that is damaged: what it needs is not known then.
    """
    if keep < 1:
        raise ConfigError(f"keep: {keep} is not allowed; allowed: 1 and more")
    gone = taken(store, name)[:-keep]
    for at in gone:
        store.delete(f"{name}/{at}.json")
    _sweep(store, grace)
    return gone


def _sweep(store: Store, grace: dt.timedelta) -> None:
    """Delete what no list needs. Objects are looked at first: what comes later is not touched."""
    objects = list(store.found("objects/"))
    lists = [found for found in store.found("") if not found.name.startswith("objects/")]
    needed = {digest for found in lists for digest in _needs(store, found.name)}
    newest = max((found.changed for found in (*objects, *lists)), default=dt.datetime.max.replace(tzinfo=dt.UTC))
    for found in objects:
        if found.name.removeprefix("objects/") not in needed and found.changed <= newest - grace:
            store.delete(found.name, found.tag)


def _needs(store: Store, listed: str) -> Iterable[str]:
    """The objects of a list; none if another `prune` has just deleted it."""
    name, _, at = listed.removesuffix(".json").rpartition("/")
    try:
        return read(store, name, at).files.values()
    except ConfigError:
        if at in taken(store, name):
            raise
        return ()
