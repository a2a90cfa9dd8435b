"""Nodes that an engine may not give again once they are lost. In `chaos.faults.FAULTS`."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from proving_ground.bench.capabilities import CanWithhold
from proving_ground.chaos.faults.engine import LOOK_S, TAKEN, known
from proving_ground.chaos.faults.fault import Evidence, Fault, Injection
from proving_ground.chaos.faults.pods import TakesNodes, remove
from proving_ground.chaos.faults.proof import Condition

SAID_S = 90.0  # for an engine to try, and to say that it may not


class WithholdsNodes(TakesNodes, CanWithhold, Protocol):
    """A cluster whose engine takes nodes away, and can be kept from giving others."""


def withhold(scene: Injection[WithholdsNodes], by: str) -> Evidence:
    """Have the engine give no pods, then take each node's pod away by force."""
    scene.state["withheld"] = True
    scene.can.withhold(by, on=True)
    found = remove(scene, "force")
    scene.state["taken"] = True
    return found


def give(scene: Injection[CanWithhold], by: str) -> Evidence:
    """Wait until the engine has said that it may give none, see that there is none, and let it again."""
    if not scene.state.get("withheld"):
        return {}
    deadline = scene.cluster.now() + (SAID_S if scene.state.get("taken") else 0.0)
    try:
        while not (said := scene.can.refusals()) and scene.cluster.now() < deadline:
            scene.cluster.sleep(LOOK_S)
        without = [it["node"] for it in known(scene) if not it["id"]]
    finally:  # whether or not there is an answer
        scene.can.withhold(by, on=False)
        scene.state["withheld"] = False
    return {"refusals": [dict(it) for it in said], "without": without}


WITHHELD = (
    *TAKEN,
    Condition("end.refusals", "some", means="the Job controller said that it may make no pod, and what forbids it"),
    Condition("end.without", "some", means="no other pod had come until then"),
    Condition("end.without.*", "among", "target", means="for the nodes that were aimed at"),
)

FAULTS = [
    Fault(
        key, meaning, (ability, "pods", "signals"), 20.0, partial(withhold, by=by), partial(give, by=by), WITHHELD,
        ends="node", victims="killed", gone="gone_t",
    )
    for key, by, ability, meaning in (
        ("quota_used_up", "quota", "quotas", "a node's pod deleted while the namespace's quota allows no other"),
        ("webhook_away", "webhook", "webhooks", "a node's pod deleted while a webhook that no other may pass is away"),
    )
]  # fmt: skip
