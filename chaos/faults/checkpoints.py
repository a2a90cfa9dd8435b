"""Checkpoints that are damaged, missing, or pointed to where there is none. In `chaos.faults.FAULTS`.

The newest committed one is damaged behind the trainer's back. Nobody reads it before a restart, so a worker of each
node aimed at is killed right after, unless `kill` is 0. Damage is not undone: finding it is the trainer's part.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, Protocol

from proving_ground.bench.capabilities import CanReachVolume, CanSignal
from proving_ground.bench.protocols import ClusterError
from proving_ground.chaos.faults.fault import Arg, Evidence, Fault, Injection, worker_of
from proving_ground.chaos.faults.processes import kill_worker
from proving_ground.chaos.faults.proof import Condition, killed

WRITE_S, LOOK_S = 0.4, 0.02  # a restart reads a checkpoint no sooner after the kill than that
READ_S = 8.0  # for the restart that meets the false name


class DamagesCheckpoints(CanReachVolume, CanSignal, Protocol):
    """A cluster that reaches the checkpoints, and kills the worker that is to read them."""


Damage = Callable[[Injection[CanReachVolume], str], object]


def at_checkpoints(scene: Injection[CanReachVolume], deed: str, **about: object) -> Any:  # noqa: ANN401 - the deed's
    """Do one of `bench.agent.volume.DEEDS` to the job's checkpoints, or look at them.

    Raises:
        ClusterError: it cannot be done; says why.
    """
    if scene.checkpoints is None:
        raise ClusterError("there is no checkpoint yet that could be damaged")
    return scene.can.at_volume(deed, scene.checkpoints, **about)


def damaged(scene: Injection[DamagesCheckpoints], damage: Damage) -> Evidence:
    """Do it to the largest part of the newest checkpoint; hashes of the part before and after.

    A restart may read the one that was the newest or the one that was being written just then: both are damaged, and
    `damaged` says each one's moment.
    """
    at_checkpoints(scene, "largest_part")
    _victims(scene)
    t = scene.cluster.now()
    each: dict[str, float] = {}
    found = _damage_newest(scene, damage, each)
    killed = _killed(scene)
    since, looked_t = scene.cluster.now(), -math.inf
    while killed and looked_t < since + WRITE_S:  # the last look comes after the time is over
        looked_t = scene.cluster.now()
        with contextlib.suppress(ClusterError):  # the restart has moved the only one away
            if at_checkpoints(scene, "newest") > max(each).partition("/")[0]:  # not one that it went back to
                found = _damage_newest(scene, damage, each)
        scene.cluster.sleep(LOOK_S)
    return {"t": t, **found, "damaged": each, **killed}


def _damage_newest(scene: Injection[CanReachVolume], damage: Damage, each: dict[str, float]) -> Evidence:
    part = str(at_checkpoints(scene, "largest_part"))
    before = at_checkpoints(scene, "fingerprint", path=part)
    each[part] = scene.cluster.now()  # whatever becomes of the answer
    damage(scene, part)
    scene.state["part"] = part
    after = at_checkpoints(scene, "fingerprint", path=part)
    return {"path": part, "before": before, "after": after}


def truncate(scene: Injection[CanReachVolume], part: str) -> None:
    """Keep only the first bytes, as after a write that never got to the disk."""
    at_checkpoints(scene, "truncate", path=part, keep_percent=scene.args["keep_percent"])


def flip_bit(scene: Injection[CanReachVolume], part: str) -> None:
    """Turn one bit over; size and everything else stay."""
    at_checkpoints(scene, "flip_bit", path=part, share=scene.chance.random())


def remove(scene: Injection[CanReachVolume], part: str) -> None:
    """Have the part gone while the manifest names it."""
    at_checkpoints(scene, "remove", path=part)


def mislead(scene: Injection[DamagesCheckpoints]) -> Evidence:
    """Have what says which checkpoint is the newest name one that is not there (`bench.agent.volume.mislead`)."""
    at_checkpoints(scene, "newest")
    _victims(scene)
    t = scene.cluster.now()
    found = at_checkpoints(scene, "mislead")
    scene.state["part"] = scene.state["pointer"] = found["path"]
    return {"t": t, **found, "damaged": {found["path"]: t}, **_killed(scene)}


def leave(scene: Injection[CanReachVolume]) -> Evidence:
    """Say what has become of it; only a pointer to nothing is taken away."""
    part, pointer = scene.state.get("part"), scene.state.pop("pointer", None)
    found = at_checkpoints(scene, "fingerprint", path=part) if part else None
    if pointer is not None:
        at_checkpoints(scene, "lead_back", path=pointer)
    return {"now": found}


def _victims(scene: Injection[CanSignal]) -> None:
    """Nothing is damaged where nobody could be killed after it."""
    if scene.args["kill"]:
        for node in scene.nodes:
            worker_of(scene, node)


def _killed(scene: Injection[CanSignal]) -> Evidence:
    return kill_worker(scene) if scene.args["kill"] else {}


DIFFERS = (
    Condition("begin.before", "differ", "begin.after", means="the bytes are not what they were"),
    *killed(only_with="kill"),
)
NEEDS = ("signals", "checkpoints")
KILL = {"kill": Arg(1, 0, 1, "(1: a worker is killed right after)")}


def of_a_part(key: str, meaning: str, damage: Damage, **args: Arg) -> Fault:
    """A fault that damages the largest part of the newest checkpoint."""

    def inject(scene: Injection[DamagesCheckpoints]) -> Evidence:
        return damaged(scene, damage)

    meaning = f"{meaning}, then a worker killed"
    return Fault(
        key, meaning, NEEDS, 0.0, inject, leave, DIFFERS, KILL | args,
        ends="workers", victims="killed", gone="t", damages="damaged",
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
        NEEDS, READ_S, mislead, leave, DIFFERS, KILL,
        ends="workers", victims="killed", gone="t", damages="damaged",
    ),
]  # fmt: skip
