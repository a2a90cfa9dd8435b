"""Checkpoints that are damaged, missing, or pointed to where there is none. In `chaos.faults.FAULTS`.

The newest committed one is damaged behind the trainer's back. Nobody reads it before a restart, so a worker of each
node aimed at is killed right after, unless `kill` is 0. Damage is not undone: finding it is the trainer's part.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from bench.protocols import ClusterError
from chaos.faults.fault import Arg, Evidence, Fault, Injection, worker_of
from chaos.faults.processes import kill_worker
from chaos.faults.proof import Condition, killed

POINTER = "latest"
MANIFEST = "manifest.json"
STEP = re.compile(r"\d+")
FAR_AHEAD = 1_000_000  # steps
WRITE_S, LOOK_S = 0.4, 0.02  # a restart reads a checkpoint no sooner than that
READ_S = 8.0  # for the restart that meets the false name

Damage = Callable[[Injection, Path], None]


def damaged(scene: Injection, damage: Damage) -> Evidence:
    """Do it to the largest part of the newest checkpoint; hashes of the part before and after."""
    _largest_part(_newest(scene))
    _victims(scene)
    t = scene.cluster.now()
    found = _damage_newest(scene, damage)
    killed = _killed(scene)
    while killed and scene.cluster.now() < t + WRITE_S:  # one that was being written just then is the newest now
        if _newest(scene) != scene.state["part"].parent:
            found = _damage_newest(scene, damage)
        time.sleep(LOOK_S)
    return {"t": t, **found, **killed}


def _damage_newest(scene: Injection, damage: Damage) -> Evidence:
    part = _largest_part(_newest(scene))
    before = _print(part)
    damage(scene, part)
    scene.state["part"] = part
    return {"path": _name(scene, part), "before": before, "after": _print(part)}


def truncate(scene: Injection, part: Path) -> None:
    """Keep only the first bytes, as after a write that never got to the disk."""
    os.truncate(part, int(part.stat().st_size * scene.args["keep_percent"] / 100))


def flip_bit(scene: Injection, part: Path) -> None:
    """Turn one bit over; size and everything else stay."""
    at = scene.chance.randrange(part.stat().st_size * 8)
    with part.open("r+b") as file:
        file.seek(at // 8)
        byte = file.read(1)[0]
        file.seek(at // 8)
        file.write(bytes([byte ^ (1 << at % 8)]))


def remove(scene: Injection, part: Path) -> None:
    """Have the part gone while the manifest names it."""
    del scene
    part.unlink()


def mislead(scene: Injection) -> Evidence:
    """Have what says which checkpoint is the newest name one that is not there.

    That is the file `latest` where there is one. Else it is the folder's name with its manifest: then a later step's
    appears, whose manifest names parts that do not exist.
    """
    newest = _newest(scene)
    _victims(scene)
    pointer = newest.parent / POINTER
    t = scene.cluster.now()
    if not pointer.exists():
        ahead = STEP.sub(lambda step: f"{int(step.group()) + FAR_AHEAD:08d}", newest.name, count=1)
        pointer = newest.parent / ahead / MANIFEST
    before = _print(pointer)
    content = (newest / MANIFEST).read_text() if pointer.name == MANIFEST else "step-none\n"
    pointer.parent.mkdir(exist_ok=True)
    pointer.write_text(content)
    scene.state["part"] = scene.state["pointer"] = pointer
    return {"t": t, "path": _name(scene, pointer), "before": before, "after": _print(pointer), **_killed(scene)}


def leave(scene: Injection) -> Evidence:
    """Say what has become of it; only a pointer to nothing is taken away, since every later one would be older."""
    part, pointer = scene.state.get("part"), scene.state.pop("pointer", None)
    found = _print(part) if part else None
    if pointer is not None and pointer.name == MANIFEST and pointer.exists():
        pointer.unlink()
        if not any(pointer.parent.iterdir()):
            pointer.parent.rmdir()
    return {"now": found}


def _newest(scene: Injection) -> Path:
    """The newest committed checkpoint."""
    folder = scene.checkpoints
    found = [*folder.glob("step-*")] if folder else []
    committed = [path for path in found if (path / MANIFEST).exists()]
    if not committed:
        raise ClusterError("there is no checkpoint yet that could be damaged")
    return max(committed, key=lambda path: path.name)


def _largest_part(checkpoint: Path) -> Path:
    parts = [path for path in checkpoint.iterdir() if path.is_file() and path.name != MANIFEST]
    if not parts:
        raise ClusterError(f"{checkpoint.name} has no parts that could be damaged")
    return max(parts, key=lambda part: part.stat().st_size)


def _print(part: Path) -> Evidence | None:
    """Size and hash of a file; None where there is none."""
    try:
        content = part.read_bytes()
    except FileNotFoundError:
        return None
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _name(scene: Injection, part: Path) -> str:
    return str(part.relative_to(scene.checkpoints or part.anchor))


def _victims(scene: Injection) -> None:
    """Nothing is damaged where nobody could be killed after it."""
    if scene.args["kill"]:
        for node in scene.nodes:
            worker_of(scene, node)


def _killed(scene: Injection) -> Evidence:
    return kill_worker(scene) if scene.args["kill"] else {}


DIFFERS = (
    Condition("begin.before", "differ", "begin.after", means="the bytes are not what they were"),
    *killed(only_with="kill"),
)
KILL = {"kill": Arg(1, 0, 1, "(1: a worker is killed right after)")}


def of_a_part(key: str, meaning: str, damage: Damage, **args: Arg) -> Fault:
    """A fault that damages the largest part of the newest checkpoint."""

    def inject(scene: Injection) -> Evidence:
        return damaged(scene, damage)

    meaning = f"{meaning}, then a worker killed"
    return Fault(
        key, meaning, ("signals",), 0.0, inject, leave, DIFFERS, KILL | args,
        ends="workers", victims="killed", gone="t", damages="path",
    )  # fmt: skip


FAULTS = [
    of_a_part(
        "checkpoint_truncated", "the newest checkpoint's largest part cut short", truncate,
        keep_percent=Arg(50, 0, 99, "%"),
    ),
    of_a_part("checkpoint_bitflip", "one bit of the newest checkpoint turned over", flip_bit),
    of_a_part("checkpoint_missing", "a part of the newest checkpoint gone", remove),
    Fault(
        "checkpoint_pointer", "what names the newest checkpoint names one that is not there, then a worker killed",
        ("signals",), READ_S, mislead, leave, DIFFERS, KILL,
        ends="workers", victims="killed", gone="t", damages="path",
    ),
]  # fmt: skip
