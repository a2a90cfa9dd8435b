"""A recorded trace of file operations below one folder. Called by `tests.validations.writers`.

Python's file functions are replaced while a recording lasts, so whatever is written through them is seen: our own
checkpoints and other libraries' alike. What C++ writes by itself is not, so give such a library an open file.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from errno import ENOSPC
from pathlib import Path
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Op:
    """One operation. `node` and `folder` are numbers of files and folders (0: the root), as a disk's inodes are.

    `write`: `data` at `offset` of `node`; `truncate`: `node` becomes empty; `sync`: wait for `node`'s data, or for its
    entries where it is a folder; `enter`: atomic changes of entries (folder, name, node or None); `durable`: the writer
    said that the checkpoint of `step` is safe now.
    """

    kind: str
    node: int = 0
    offset: int = 0
    data: bytes = b""
    entries: tuple[tuple[int, str, int | None], ...] = ()
    is_folder: bool = False
    step: int = 0


@dataclass
class Trace:
    """Everything that happened below `root`, in order; a disk with `room` bytes for data is full after them."""

    root: Path
    room: int | None = None
    ops: list[Op] = field(default_factory=list)
    _nodes: dict[str, int] = field(default_factory=lambda: {".": 0})  # path below the root → number
    _count: int = 0

    def durable(self, step: int) -> None:
        """Remember that the writer has promised this step."""
        self.ops.append(Op("durable", step=step))

    def inside(self, path: object) -> str:
        """The path below the root (`.`: itself); empty for what is elsewhere."""
        if not isinstance(path, str | os.PathLike):
            return ""
        where = Path(os.fspath(path))
        below = os.path.relpath(where if where == self.root else where.parent.resolve() / where.name, self.root)
        return "" if below.startswith("..") else below

    def new(self, path: str, *, is_folder: bool = False) -> int:
        """A file or folder appears."""
        self._count += 1
        self._nodes[path] = self._count
        self.ops.append(Op("enter", entries=(self._entry(path, self._count),), is_folder=is_folder, node=self._count))
        return self._count

    def opened(self, path: str, mode: str) -> int:
        """A file is opened for writing; its number."""
        if path not in self._nodes:
            return self.new(path)
        if "w" in mode:
            self.ops.append(Op("truncate", node=self._nodes[path]))
        return self._nodes[path]

    def wrote(self, node: int, offset: int, data: bytes) -> None:
        """Bytes were written."""
        self.ops.append(Op("write", node=node, offset=offset, data=data))

    def synced(self, path: str) -> None:
        """The writer waited for a file or a folder."""
        if path in self._nodes:
            self.ops.append(Op("sync", node=self._nodes[path]))

    def renamed(self, old: str, new: str) -> None:
        """A file or a folder with all that is in it got another path."""
        node = self._nodes[old]
        self.ops.append(Op("enter", entries=(self._entry(old, None), self._entry(new, node))))
        for path in [path for path in self._nodes if path == old or path.startswith(old + "/")]:
            self._nodes[new + path.removeprefix(old)] = self._nodes.pop(path)

    def removed(self, path: str) -> None:
        """A file or an empty folder is gone."""
        self.ops.append(Op("enter", entries=(self._entry(path, None),)))
        del self._nodes[path]

    def take(self, size: int) -> int:
        """How many of so many bytes the disk still takes."""
        if self.room is None:
            return size
        taken = min(size, self.room)
        self.room -= taken
        return taken

    def _entry(self, path: str, node: int | None) -> tuple[int, str, int | None]:
        folder, _, name = path.rpartition("/")
        return self._nodes[folder or "."], name, node


class Written(io.FileIO):
    """A file below the root that tells the trace what is written to it, on a disk that may be full."""

    def __init__(self, trace: Trace, path: str, mode: str) -> None:
        super().__init__(trace.root / path, mode)
        self._trace, self._node = trace, trace.opened(path, mode)

    def write(self, data: Any, /) -> int:
        """Write what the disk still takes."""
        view = memoryview(data).cast("B")
        taken = self._trace.take(len(view))
        if view and not taken:
            raise OSError(ENOSPC, "No space left on device")
        self._trace.wrote(self._node, self.tell(), bytes(view[:taken]))
        return super().write(view[:taken])


@contextlib.contextmanager
def recording(root: Path, room: int | None = None) -> Iterator[Trace]:
    """Record what happens below `root` (an empty folder), on a disk that takes `room` bytes of data and no more."""
    trace = Trace(Path(os.path.realpath(root)), room)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("io.open", opener(trace, io.open)))
        stack.enter_context(mock.patch("builtins.open", opener(trace, builtins.open)))
        for name, told in TOLD.items():
            stack.enter_context(mock.patch.object(os, name, watched(trace, getattr(os, name), told)))
        yield trace


def opener(trace: Trace, real: Callable[..., Any]) -> Callable[..., Any]:
    """`open`, with files to be written below the root in our hands."""

    def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any) -> Any:
        path = "" if isinstance(file, int) else trace.inside(file)
        if not path or not set(mode) & set("wxa+"):
            return real(file, mode, buffering, *rest, **more)
        raw = Written(trace, path, mode.replace("b", "").replace("t", ""))
        binary: Any = raw if buffering == 0 else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding="utf-8")

    return opened


def watched(trace: Trace, real: Callable[..., Any], told: Callable[..., None]) -> Callable[..., Any]:
    """A function of `os` that tells the trace after it was done."""

    def done(*given: Any, **more: Any) -> Any:
        inside = [trace.inside(full_path(value, more.get("dir_fd"))) for value in given if not is_mode(value, given)]
        result = real(*given, **more)
        if inside[0]:
            told(trace, *inside)
        return result

    return done


def is_mode(value: object, given: tuple[object, ...]) -> bool:
    """Whether an argument is the mode of `mkdir`: a number that is not the first."""
    return isinstance(value, int) and value is not given[0]


def full_path(value: Any, folder: int | None) -> str:
    """The path that an argument means: a path, or an open file's number."""
    if isinstance(value, int):
        return str(Path(f"/proc/self/fd/{value}").readlink())
    return str(Path(f"/proc/self/fd/{folder}").readlink() / value) if folder is not None else os.fspath(value)


TOLD: dict[str, Callable[..., None]] = {
    "fsync": lambda trace, path: trace.synced(path),
    "rename": lambda trace, old, new: trace.renamed(old, new),
    "replace": lambda trace, old, new: trace.renamed(old, new),
    "mkdir": lambda trace, path, *_: trace.new(path, is_folder=True),
    "unlink": lambda trace, path: trace.removed(path),
    "remove": lambda trace, path: trace.removed(path),
    "rmdir": lambda trace, path: trace.removed(path),
}
