"""What can be seen of the shared volume, and done to what lies there, from where it can be reached.

Called by `bench.agent.serve` on a machine elsewhere and by `local.breakable` here. `DEEDS` is the list; each
takes a folder of the volume. Checkpoints are those of `training.checkpoints`: `step-*/` with a manifest, written last.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

POINTER = "latest"
MANIFEST = "manifest.json"
STEP = re.compile(r"\d+")
FAR_AHEAD = 1_000_000  # steps


def space(folder: Path) -> dict[str, int]:
    """Size and free space, in bytes."""
    found = os.statvfs(folder)
    return {"size": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}


def newest(folder: Path) -> str:
    """The newest committed checkpoint.

    Raises:
        OSError: there is none.
    """
    committed = [path for path in folder.glob("step-*") if (path / MANIFEST).exists()]
    if not committed:
        raise OSError("there is no checkpoint yet that could be damaged")
    return max(path.name for path in committed)


def largest_part(folder: Path) -> str:
    """The path of the largest file of the newest checkpoint.

    Raises:
        OSError: it has no parts.
    """
    name = newest(folder)
    parts = [path for path in (folder / name).iterdir() if path.is_file() and path.name != MANIFEST]
    if not parts:
        raise OSError(f"{name} has no parts that could be damaged")
    return f"{name}/{max(parts, key=lambda part: part.stat().st_size).name}"


def fingerprint(folder: Path, path: str) -> dict[str, Any] | None:
    """Size and hash of a file; None where there is none."""
    try:
        content = (folder / path).read_bytes()
    except FileNotFoundError:
        return None
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def truncate(folder: Path, path: str, keep_percent: float) -> None:
    """Keep only the first bytes, as after a write that never got to the disk."""
    part = folder / path
    os.truncate(part, int(part.stat().st_size * keep_percent / 100))


def flip_bit(folder: Path, path: str, share: float) -> None:
    """Turn one bit over, so far into the file (a share of it); size and everything else stay."""
    part = folder / path
    at = int(share * part.stat().st_size * 8)
    with part.open("r+b") as file:
        file.seek(at // 8)
        byte = file.read(1)[0]
        file.seek(at // 8)
        file.write(bytes([byte ^ (1 << at % 8)]))


def remove(folder: Path, path: str) -> None:
    """Have the file gone while the manifest names it."""
    (folder / path).unlink()


def mislead(folder: Path) -> dict[str, Any]:
    """Have what says which checkpoint is the newest name one that is not there; its path, and what it was and is.

    That is the file `latest` where there is one. Else it is the folder's name with its manifest: then a later step's
    appears, whose manifest names parts that do not exist.
    """
    name, path = newest(folder), POINTER
    if not (folder / POINTER).exists():
        path = f"{STEP.sub(lambda step: f'{int(step.group()) + FAR_AHEAD:08d}', name, count=1)}/{MANIFEST}"
    before = fingerprint(folder, path)
    content = "step-none\n" if path == POINTER else (folder / name / MANIFEST).read_text()
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text(content)
    return {"path": path, "before": before, "after": fingerprint(folder, path)}


def lead_back(folder: Path, path: str) -> None:
    """Take away a pointer to nothing, since every later checkpoint would be older; a file `latest` is written anew."""
    pointer = folder / path
    if pointer.name == MANIFEST and pointer.exists():
        pointer.unlink()
        if not any(pointer.parent.iterdir()):
            pointer.parent.rmdir()


DEEDS: dict[str, Callable[..., Any]] = {
    "space": space, "newest": newest, "largest_part": largest_part, "fingerprint": fingerprint, "truncate": truncate,
    "flip_bit": flip_bit, "remove": remove, "mislead": mislead, "lead_back": lead_back,
}  # fmt: skip
