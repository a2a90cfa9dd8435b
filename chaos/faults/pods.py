"""Nodes that the engine takes away by its own means, and gives others for. In `chaos.faults.FAULTS`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bench.protocols import ClusterError
from chaos.faults.fault import Evidence, Fault, Injection, nothing_to_heal
from chaos.faults.processes import running
from chaos.faults.proof import Condition, killed

LOOK_S = 0.1
GONE_S = 60.0  # a pod may use the notice that it asks for, and its machine may be slow


def take(scene: Injection, way: str) -> Evidence:
    """Have every node's pod taken away; over when the API server and the agents' silence say that they are gone."""
    before, killed_there = there(scene), running(scene)
    if absent := [it["node"] for it in before if not it["id"]]:
        raise ClusterError(f"{', '.join(absent)}: there is no pod just now")
    t = scene.cluster.now()
    for it in before:
        scene.cluster.remove(it["name"], way)
    deadline = t + GONE_S
    while (left := still(scene, before)) and scene.cluster.now() < deadline:
        scene.cluster.sleep(LOOK_S)
    return {"t": t, "gone_t": scene.cluster.now(), "killed": killed_there, "pods": before, "left": left}


def there(scene: Injection) -> list[Evidence]:
    """What the engine has as the nodes that are aimed at."""
    return [dict(scene.cluster.machine(node)) for node in scene.nodes]


def still(scene: Injection, before: Sequence[Evidence]) -> list[Evidence]:
    """Those that are still there: the same pod by its id, or an agent that still answers."""
    pairs = zip(before, there(scene), strict=True)
    return [now for was, now in pairs if now["id"] == was["id"] or (now["agent"] and now["agent"] == was["agent"])]


def drain(scene: Injection) -> Evidence:
    """Let nothing new come to each node's machine, then evict its pod, as `kubectl drain` does."""
    closed = scene.state["cordoned"] = []  # by us: what was closed before stays so
    for machine in [it["where"] for it in there(scene) if it["where"]]:
        scene.cluster.cordon(machine, on=True)
        closed.append(machine)
    return {**take(scene, "evict"), "cordoned": list(closed)}


def undrain(scene: Injection) -> Evidence:
    """Let pods come to the machines again."""
    machines = scene.state.pop("cordoned", [])
    for machine in machines:
        scene.cluster.cordon(machine, on=False)
    return {"uncordoned": machines}


TAKEN = (
    *killed(),
    Condition("begin.pods.*.node", "among", "target", means="it was the pod of a node that was aimed at"),
    Condition("begin.pods.*.id", "some", means="there was a pod"),
)
DRAINED = (
    *TAKEN,
    Condition("begin.cordoned", "some", means="a machine was closed to new pods"),
    Condition("end.uncordoned.*", "among", "begin.cordoned", means="and opened again"),
)

FAULTS = [
    Fault(
        "pod_delete", "a node's pod deleted, with its notice; the Job makes another", ("pods", "signals"), 1.0,
        partial(take, way="delete"), nothing_to_heal, TAKEN, ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "pod_kill", "a node's pod deleted by force: a second's notice at most", ("pods", "signals"), 1.0,
        partial(take, way="force"), nothing_to_heal, TAKEN, ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "node_drain", "a node's machine cordoned, its pod evicted", ("eviction", "machines", "signals"), 10.0,
        drain, undrain, DRAINED, ends="node", victims="killed", gone="gone_t",
    ),
]  # fmt: skip
