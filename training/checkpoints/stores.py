"""Where checkpoints lie: a folder (local, NFS, a mounted volume) or object storage. Called by `checkpoint`.

A store knows names, drafts, commits and claims, and nothing of what is in a checkpoint. There is no pointer to the
newest: a checkpoint is there once it is committed, and whoever looks takes the newest that is intact.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import socket
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MANIFEST = "manifest.json"
GENERATIONS, QUARANTINE = "generations", "quarantine"
KEPT_CLAIMS = 3
"""Older claims are removed; those of the newest generations are all that a fence needs."""


class Store(Protocol):
    """What a place for checkpoints can do. Methods raise OSError."""

    def where(self, name: str = "") -> str:
        """A checkpoint's address for people and events, without secrets."""

    def names(self) -> list[str]:
        """Everything committed under a checkpoint's name, intact or not, in no order."""

    def free(self) -> int | None:
        """Bytes that can still be written; None where nobody knows."""

    def begin(self, name: str) -> None:
        """Start a draft; nothing of it is a checkpoint before `commit`."""

    def create(self, name: str, part: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A new part of a draft, to be written from its beginning; durable once the context was left in peace."""

    def commit(self, name: str, manifest: bytes, last_check: Callable[[], None]) -> None:
        """Make the draft a checkpoint, all of it or nothing; `last_check` is called right before and may raise."""

    def discard(self, name: str) -> None:
        """Remove a draft; never raises."""

    def open(self, name: str, part: str) -> IO[bytes]:
        """A part of a checkpoint, to be read."""

    def remove(self, name: str) -> None:
        """Remove a checkpoint: first its name, then its parts, so that half of one is never seen."""

    def set_aside(self, name: str) -> str:
        """Move a bad checkpoint to the folder `quarantine`; its new address."""

    def sweep(self, keep: Callable[[str], bool]) -> None:
        """Remove what dead writers left of drafts whose name `keep` does not want; never raises."""

    def claims(self) -> list[int]:
        """The generations that were claimed."""

    def claim(self, generation: int) -> bool:
        """Claim a generation for this process; False if another has it."""

    def claimed(self, generation: int) -> bool:
        """Whether this process has that generation."""


@functools.cache
def _token(pid: int) -> str:
    return f"{socket.gethostname()} {pid} {secrets.token_hex(8)}"


def owner() -> str:
    """What this process writes into its claims: a text that no other process has, a forked one included."""
    return _token(os.getpid())


def open_store(address: str) -> Store:
    """The store at a path, or at a URL such as `abfs://container/folder` or `s3://bucket/folder`.

    Raises:
        ValueError: a URL of another kind, or its package is not installed.
    """
    if "://" not in address:
        return Folder(Path(address))
    from proving_ground.training.checkpoints.objects import Objects  # noqa: PLC0415 - its packages are an extra

    return Objects(address)


def sync(folder: Path) -> None:
    """Wait until the disk has a folder's entries: neither a new file's name nor a rename is durable before."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it, durably."""
    if not folder.is_dir():
        make_folders(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        sync(folder.parent)


class Folder:
    """Checkpoints in a folder: each a folder of its own, written under a hidden name and renamed when it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def where(self, name: str = "") -> str:
        """The path."""
        return str(self.path / name)

    def names(self) -> list[str]:
        """The folders that have a checkpoint's name."""
        with contextlib.suppress(FileNotFoundError):
            return [entry.name for entry in os.scandir(self.path) if entry.name.startswith("step-") and entry.is_dir()]
        return []

    def free(self) -> int | None:
        """What the file system has left for us."""
        there = next(folder for folder in (self.path, *self.path.parents) if folder.exists())
        state = os.statvfs(there)
        return state.f_bavail * state.f_frsize

    def begin(self, name: str) -> None:
        """Make the hidden folder; one left by a save that failed before is replaced."""
        make_folders(self.path)
        self.discard(name)
        self._draft(name).mkdir()

    @contextlib.contextmanager
    def create(self, name: str, part: str) -> Iterator[IO[bytes]]:
        """A new file in the hidden folder, flushed to the disk at the end."""
        with (self._draft(name) / part).open("xb", buffering=0) as file:
            yield file
            os.fsync(file.fileno())

    def commit(self, name: str, manifest: bytes, last_check: Callable[[], None]) -> None:
        """Manifest, folder, rename, folder above: each is on the disk before the next."""
        with self.create(name, MANIFEST) as file:
            write_all(file, manifest)
        sync(self._draft(name))
        last_check()
        self._draft(name).rename(self.path / name)
        sync(self.path)

    def discard(self, name: str) -> None:
        """Remove the hidden folder."""
        shutil.rmtree(self._draft(name), ignore_errors=True)

    def open(self, name: str, part: str) -> IO[bytes]:
        """The file."""
        return (self.path / name / part).open("rb", buffering=0)

    def remove(self, name: str) -> None:
        """Hide it, then remove it."""
        hidden = self.path / f".{name}.old"
        (self.path / name).rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def set_aside(self, name: str) -> str:
        """Rename it into the folder `quarantine`."""
        make_folders(self.path / QUARANTINE)
        target = self.path / QUARANTINE / name
        tried = 1
        while target.exists():
            tried += 1
            target = target.with_name(f"{name}.{tried}")
        (self.path / name).rename(target)
        sync(self.path)
        return str(target)

    def sweep(self, keep: Callable[[str], bool]) -> None:
        """Remove hidden folders: drafts, and what was half removed."""
        for entry in self.path.glob(".step-*.*"):
            if not keep(entry.name[1:].rpartition(".")[0]):
                shutil.rmtree(entry, ignore_errors=True)

    def claims(self) -> list[int]:
        """The files in the folder `generations`."""
        with contextlib.suppress(FileNotFoundError):
            return [int(entry.name) for entry in (self.path / GENERATIONS).iterdir() if entry.name.isdecimal()]
        return []

    def claim(self, generation: int) -> bool:
        """A file that only one process can create."""
        folder = self.path / GENERATIONS
        make_folders(folder)
        try:
            with self._claim(generation).open("xb", buffering=0) as file:
                write_all(file, owner().encode())
                os.fsync(file.fileno())
        except FileExistsError:
            return False
        sync(folder)
        for old in sorted(self.claims())[:-KEPT_CLAIMS]:
            self._claim(old).unlink(missing_ok=True)
        return True

    def claimed(self, generation: int) -> bool:
        """Whether the file is ours."""
        with contextlib.suppress(FileNotFoundError):
            return self._claim(generation).read_bytes() == owner().encode()
        return False

    def _claim(self, generation: int) -> Path:
        return self.path / GENERATIONS / f"{generation:08d}"

    def _draft(self, name: str) -> Path:
        return self.path / f".{name}.new"


def write_all(file: IO[bytes], content: bytes | memoryview) -> None:
    """Write everything: an unbuffered file may take less than it is given."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
