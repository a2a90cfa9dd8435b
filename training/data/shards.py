"""Data sets elsewhere: shards are fetched when they are read, and kept in a local folder of bounded size.

Called by the tasks in `training.models`; through fsspec, as checkpoints are (`checkpoints.objects`). Files are
named by their SHA-256, which is checked when they arrive and when a process first meets them. What was used last is in
the files' times, so processes of a node can share the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from proving_ground.training.checkpoints.objects import PACKAGES, StoreError, file_system, located, plainly
from proving_ground.training.config import ConfigError
from proving_ground.training.data.mapped import (
    MANIFEST,
    DataError,
    DataSet,
    assembled,
    checked_manifest,
    find,
    mapped,
    open_data,
    sha256,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from proving_ground.training.config import Config
    from proving_ground.training.data.order import Rows

SCHEMES = {**PACKAGES, "file": "fsspec"}
RETRY_S = 30.0
"""For so long a store that fails is asked again."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
ABANDONED_S = 600.0  # without a write: whoever fetched it was killed
BLOCK = 8 * 2**20  # bytes of one request
SHA256 = re.compile("[0-9a-f]{64}")

Entry = dict[str, Any]


def opened(config: Config, shipped: str) -> DataSet:
    """The data set that a configuration names, else the shipped one of that name.

    Raises:
        ConfigError, DataError: there is none, or it is not as its manifest says.
        OSError: its store did not answer.
    """
    if "://" not in config.data:
        return open_data(find(config.data or shipped))
    try:
        shelf = Shelf(config.data, Path(config.cache_dir), config.cache_mb * 2**20)
    except ValueError as error:
        raise ConfigError(f"data: {error}") from None  # the URL may have credentials in it
    return assembled(shelf.address, shelf.manifest(), shelf.piece)


class Shelf:
    """The files of a data set elsewhere, of which some are here; several threads may ask for them."""

    def __init__(self, address: str, folder: Path, most_bytes: int) -> None:
        """Nothing is contacted yet.

        Raises:
            ValueError: another kind of URL, one with credentials in it, or its package is not installed.
            DataError: the folder cannot be made.
        """
        scheme, self._root = located(address, SCHEMES)
        self.address, self._folder, self._most = f"{scheme}://{self._root}", folder, most_bytes
        self._files = file_system(scheme)
        self._room = threading.Lock()  # of who makes room and takes it
        self._turns: dict[str, threading.Lock] = defaultdict(threading.Lock)  # of who fetches a file
        self._met: set[str] = set()  # files that this process has checked
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"cache_dir = {folder}: {error.strerror}") from None

    def manifest(self) -> dict[str, Any]:
        """What the set has.

        Raises:
            DataError: no manifest there, or one of another format.
            StoreError: the store did not answer.
        """
        where = f"{self.address}/{MANIFEST}"
        try:
            content = patiently(where, lambda: self._files.cat_file(f"{self._root}/{MANIFEST}"))
        except FileNotFoundError:
            raise DataError(f"{self.address}: no {MANIFEST}; a data set is a folder with one") from None
        return checked_manifest(content, where)

    def piece(self, entry: Entry, rows: int, described: dict[str, Any]) -> FarPiece:
        """One file of the set, which is not fetched yet.

        Raises:
            DataError: it could not be kept here, or checked.
        """
        if entry["bytes"] > self._most:
            raise DataError(
                f"{self.address}/{entry['file']}: {entry['bytes']} bytes are more than cache_mb = {self._most // 2**20}"
            )
        if not SHA256.fullmatch(str(entry.get("sha256"))):
            raise DataError(f"{self.address}/{MANIFEST}: {entry['file']} has no sha256 to check it by")
        return FarPiece(self, entry, rows, described)

    def array(self, entry: Entry, rows: int, described: dict[str, Any]) -> NDArray[Any]:
        """A file's array, mapped; fetched before where it is not here. Removing the file later does it no harm.

        Raises:
            DataError: it is not what the manifest says.
            OSError: the store did not answer, or the disk is full.
        """
        file = self._folder / f"{entry['sha256']}.npy"
        with self._turns[file.name]:
            while True:
                if not self._is_here(file, entry):
                    self._fetch(file, entry)
                with contextlib.suppress(FileNotFoundError):  # another process has removed it since
                    os.utime(file)
                    return mapped(file, rows, described)

    def _is_here(self, file: Path, entry: Entry) -> bool:
        """Whether the file is here; looked into the first time, since another process may have left it."""
        if not file.exists():
            return False
        if file.name not in self._met:
            if file.stat().st_size != entry["bytes"] or sha256(file) != entry["sha256"]:
                file.unlink(missing_ok=True)
                return False
            self._met.add(file.name)
        return True

    def _fetch(self, file: Path, entry: Entry) -> None:
        """Bring a file here, whole and checked, or not at all."""
        part = file.with_suffix(f".{os.getpid()}.part")
        try:
            with self._room:
                self._make_room(entry["bytes"])
                with part.open("wb") as taken:
                    allocate(taken.fileno(), max(1, entry["bytes"]))
            self._download(part, entry)
            part.rename(file)
            self._met.add(file.name)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            where = f"cache_dir = {self._folder}: cannot take {entry['file']} ({entry['bytes']} bytes)"
            raise OSError(error.errno, f"{where}: {error.strerror}") from None
        finally:
            part.unlink(missing_ok=True)

    def _make_room(self, wanted: int) -> None:
        """Remove the files that were not used for longest, until there is room for so many bytes."""
        here = []
        for file in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                about = file.stat()
                if file.suffix == ".part" and time.time() - about.st_mtime > ABANDONED_S:
                    file.unlink()
                else:
                    here.append((about.st_mtime_ns, about.st_size, file))
        used = sum(size for _, size, _ in here)
        for _, size, file in sorted(it for it in here if it[2].suffix == ".npy"):
            if used + wanted <= self._most:
                return
            file.unlink(missing_ok=True)
            used -= size

    def _download(self, part: Path, entry: Entry) -> None:
        """Write an object's bytes, block by block, and compare length and hash with the manifest's."""
        path, where, digest = f"{self._root}/{entry['file']}", f"{self.address}/{entry['file']}", hashlib.sha256()
        try:
            size = patiently(where, lambda: self._files.size(path))
            if size != entry["bytes"]:
                raise DataError(f"{where}: {size} bytes, the manifest says {entry['bytes']}: truncated or replaced")
            with part.open("r+b") as file:
                for start in range(0, size, BLOCK):
                    end = min(size, start + BLOCK)
                    block = patiently(where, partial(self._files.cat_file, path, start=start, end=end))
                    digest.update(block)
                    file.write(block)
        except FileNotFoundError:
            raise DataError(f"{where}: missing, though the manifest names it") from None
        if digest.hexdigest() != entry["sha256"]:
            raise DataError(f"{where}: content changed: its SHA-256 is not the manifest's")


@dataclass(frozen=True)
class FarPiece:
    """One shard's part of a column, fetched when rows of it are asked for."""

    shelf: Shelf
    entry: Entry
    rows: int
    described: dict[str, Any]

    def __getitem__(self, rows: Rows, /) -> NDArray[Any]:
        """The given rows, in memory."""
        return np.asarray(self.shelf.array(self.entry, self.rows, self.described)[rows])


def allocate(file: int, size: int) -> None:
    """Take the room on the disk now, so that another thread finds it taken; some systems can only note the size."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


def patiently(where: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the client returns
    """What a request gives; one that fails is made again, ever later, for `RETRY_S`.

    Raises:
        FileNotFoundError: no such object.
        StoreError: it still fails, or asking again does not help.
    """
    until, pause = time.monotonic() + RETRY_S, FIRST_PAUSE_S
    while True:
        try:
            with plainly(where):
                return call()
        except StoreError as error:
            if not error.passing:
                raise
            if time.monotonic() + pause > until:
                raise StoreError(error.errno, f"{error.strerror}, for {RETRY_S:g} s", where) from None
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
