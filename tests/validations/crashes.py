"""What a disk may hold after a crash at any point of a trace. Called by `tests.validations.checkpoints`.

The model is what POSIX promises and no more: data are safe once their file was synced, an entry of a folder once that
folder was; all else may be there, be missing, or be there in part, in any order. File systems are kinder than that most
of the time (ext4 writes data before the rename that shows them, journals entries in order); a checkpoint that needs
their kindness is not safe on the next one, on network storage, or with delayed allocation.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.validations.tracing import Op

KINDS = ("kill", "lost", "torn", "reordered", "entries", "full", "truncated", "bitflip")
"""`kill`: the process alone dies; `lost`: nothing that was not synced is there; `torn`: unsynced writes end somewhere;
`reordered`: any of their sectors are there; `entries`: unsynced entries are there or not, each by itself; `full`: the
disk takes no more bytes from somewhere on; `truncated`, `bitflip`: a file of the newest checkpoint is damaged later."""

SECTORS = (512, 4096)


@dataclass
class Disk:
    """Folders and files as they may be found; 0 is the root."""

    entries: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    folders: set[int] = field(default_factory=lambda: {0})
    content: dict[int, bytearray] = field(default_factory=lambda: defaultdict(bytearray))

    def build(self, root: Path, node: int = 0) -> None:
        """Make it real, below an empty folder."""
        for name, child in self.entries[node].items():
            if child in self.folders:
                (root / name).mkdir()
                self.build(root / name, child)
            else:
                (root / name).write_bytes(self.content[child])


def promised(ops: list[Op]) -> int:
    """The newest step that the writer had called durable; 0: none."""
    return max((op.step for op in ops if op.kind == "durable"), default=0)


def after_crash(ops: list[Op], kind: str, dice: random.Random) -> Disk:
    """One of the states that may be found after the operations `ops`, drawn by `dice`."""
    safe = synced_at(ops)
    disk, sector = Disk(), dice.choice(SECTORS)
    for place, op in enumerate(ops):
        if op.kind == "enter":
            if op.is_folder:
                disk.folders.add(op.node)
            is_safe = all(safe.get(folder, -1) > place for folder, _, _ in op.entries)
            if is_safe or kept_entry(kind, dice):
                enter(disk, op)
        elif op.kind == "truncate":
            if safe.get(op.node, -1) > place or kind != "lost":
                disk.content[op.node].clear()
        elif op.kind == "write":
            write(disk.content[op.node], op, "kill" if safe.get(op.node, -1) > place else kind, sector, dice)
    return disk


def synced_at(ops: list[Op]) -> dict[int, int]:
    """Node → the place of its last sync: what was done to it before is safe."""
    return {op.node: place for place, op in enumerate(ops) if op.kind == "sync"}


def kept_entry(kind: str, dice: random.Random) -> bool:
    """Whether an unsynced change of a folder is found."""
    return kind in ("kill", "torn", "full") or (kind != "lost" and dice.random() < 0.5)


def enter(disk: Disk, op: Op) -> None:
    """Change entries; a name that is moved away while its creation was lost is no matter."""
    for folder, name, node in op.entries:
        if node is None:
            disk.entries[folder].pop(name, None)
        else:
            disk.entries[folder][name] = node


def write(content: bytearray, op: Op, kind: str, sector: int, dice: random.Random) -> None:
    """What is found of one write: all, nothing, a beginning, or any of its sectors (what was there between them)."""
    data = op.data
    if kind == "lost":
        return
    if kind == "torn":
        data = data[: dice.randrange(0, len(data) + 1, sector)]
    end = op.offset + len(data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if kind not in ("reordered", "entries"):
        content[op.offset : end] = data
        return
    for start in range(0, len(data), sector):
        if dice.random() < 0.5:
            piece = data[start : start + sector]
            content[op.offset + start : op.offset + start + len(piece)] = piece


def damage(root: Path, newest: Path, kind: str, dice: random.Random) -> None:
    """Cut off or flip a bit of one file of the newest checkpoint (a file or a folder below `root`)."""
    files = sorted(path for path in newest.rglob("*") if path.is_file()) if newest.is_dir() else [newest]
    sizes = [file.stat().st_size for file in files]
    file = dice.choices(files, sizes)[0]  # a cosmic ray or a bad block hits by size
    content = bytearray(file.read_bytes())
    if kind == "truncated":
        file.write_bytes(content[: dice.randrange(len(content))])
    else:
        bit = dice.randrange(len(content) * 8)
        content[bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
    assert file.is_relative_to(root)
