"""The files that processes of a node append to, sent home as they grow. Called by `bench.agent.serve`.

They stay on the node's disk until the harness says that they may go, so a lost connection loses nothing: whoever
connects says how much of each has arrived, and gets the rest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PIECE = 2**18  # bytes sent at once


class Outputs:
    """What is written under a folder, by name; each has the offset from which on it has not been sent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sent: dict[str, int] = {}

    def path(self, name: str) -> Path:
        """Where a process is to write what is called `name`; sent from now on.

        Raises:
            OSError: the name leads out of the folder, or its folder cannot be made.
        """
        path = inside(self.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._sent.setdefault(name, 0)
        return path

    def again_from(self, arrived: dict[str, int]) -> None:
        """Send once more what has not arrived, by a new connection."""
        for name in self._sent:
            self._sent[name] = arrived.get(name, 0)

    def appended(self) -> Iterator[tuple[str, int, bytes]]:
        """What has grown: (name, offset, the next bytes), a piece of each."""
        for name, offset in self._sent.items():
            more = read_from(self.folder / name, offset)
            if more:
                self._sent[name] = offset + len(more)
                yield name, offset, more

    def forget(self, arrived: dict[str, int]) -> list[str]:
        """Remove those that have arrived whole, each with so many bytes; the names of those that have not."""
        left = []
        for name, count in arrived.items():
            path = inside(self.folder, name)
            if path.exists() and path.stat().st_size > count:
                left.append(name)
                continue
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            self._sent.pop(name, None)
        return left


def read_from(path: Path, offset: int) -> bytes:
    """The bytes of a file from an offset on, a piece at most; empty where there is no file yet."""
    try:
        if path.stat().st_size <= offset:
            return b""
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(PIECE)
    except FileNotFoundError:
        return b""


def put(folder: Path, name: str, content: bytes | None) -> Path:
    """Have a file with this content, at once and whole; None: have none."""
    path = inside(folder, name)
    if content is None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    os.replace(temporary, path)  # noqa: PTH105 - says atomic to a reader
    return path


def inside(folder: Path, name: str) -> Path:
    """The path called `name` in a folder.

    Raises:
        OSError: it would lie elsewhere.
    """
    if name.startswith("/") or ".." in name.split("/"):
        raise OSError(f"{name!r} is outside of the agent's folder")
    return folder / name
