"""Checkpoints that are whole or not there: written aside, hashed, flushed, then renamed. Called by `training.loop`.

A checkpoint is a folder `step-00000100` of parts, and a `manifest.json` that has the SHA-256 of every one. Nothing is
read from a part before its hash was found right.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMAT = 1
State = dict[str, Any]


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used, in one line: which, and what is wrong with it."""


def random_state() -> State:
    """The state of every source of randomness of this process, in types that load without running code."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002 - the global one is meant
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), position, has_gauss, gauss),  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: State) -> None:
    """Put every source of randomness back; CUDA's only where there are as many devices as when it was saved."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002 - the global one is meant
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def save(folder: Path, step: int, parts: dict[str, State], keep: int) -> tuple[Path, int]:
    """Write one checkpoint durably, then remove all but the newest `keep`; its path and size in bytes.

    Raises:
        OSError: the disk is full, read-only, gone …; nothing half-written keeps the name of a checkpoint.
    """
    target, aside = folder / f"step-{step:08d}", folder / f".step-{step:08d}.{os.getpid()}.new"
    try:
        aside.mkdir(parents=True)
        files = {f"{name}.pt": write_part(aside / f"{name}.pt", part) for name, part in parts.items()}
        manifest = {"format": FORMAT, "step": step, "wall_s": time.time(), "torch": torch.__version__, "files": files}
        write_durably(aside / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())
        sync_folder(aside)
        shutil.rmtree(target, ignore_errors=True)  # a bad one of the same step that was passed over
        aside.rename(target)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for old in newest_first(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return target, sum(entry["bytes"] for entry in files.values())


def write_part(path: Path, part: State) -> dict[str, Any]:
    """Write one part; its entry in the manifest."""
    buffer = io.BytesIO()
    torch.save(part, buffer)
    content = buffer.getbuffer()
    write_durably(path, content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has a folder's entries: a rename is not durable before."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints in a folder, whether they are intact or not."""
    return sorted((path for path in folder.glob("step-*") if path.is_dir()), reverse=True)


def load(path: Path) -> dict[str, State]:
    """The parts of one checkpoint, each hashed before it is read.

    Raises:
        CheckpointError: a part missing, changed, or of another format.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path}: format {manifest['format']}; this version reads format {FORMAT}")
        return {name.removesuffix(".pt"): load_part(path / name, entry) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: manifest.json cannot be read: {type(error).__name__}: {error}") from None


def load_part(path: Path, entry: dict[str, Any]) -> State:
    """One part, if its content is what the manifest says; loading runs no code from the file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) != entry["bytes"] or hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise CheckpointError(f"{path}: {len(content)} of {entry['bytes']} bytes, checksum differs from the manifest's")
    return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))


def load_newest(folder: Path, tell: Callable[[str], None]) -> tuple[Path, dict[str, State]] | None:
    """The newest intact checkpoint, or None when there is none at all; bad ones are passed over and told.

    Raises:
        CheckpointError: there are checkpoints but not one is intact: starting again from nothing would hide the loss.
    """
    candidates = newest_first(folder)
    for path in candidates:
        try:
            return path, load(path)
        except CheckpointError as error:
            tell(f"checkpoint passed over: {error}")
    if candidates:
        raise CheckpointError(f"{folder}: none of {len(candidates)} checkpoints is intact; resume = false starts again")
    return None
