"""Nodes, machines and a control plane that an engine loses by its own means. In `chaos.faults.FAULTS`."""

from __future__ import annotations

import math
from functools import partial
from typing import Protocol

from proving_ground.bench.capabilities import CanCrash, CanCutPower, CanLoseControl, CanSignal, CanTakeAway
from proving_ground.bench.protocols import ClusterError
from proving_ground.chaos.faults.engine import BACK_S, HIT, LOOK_S, TAKEN, regain, take, there, undo
from proving_ground.chaos.faults.fault import Evidence, Fault, Injection, nothing_to_heal
from proving_ground.chaos.faults.processes import running
from proving_ground.chaos.faults.proof import Condition


class TakesNodes(CanTakeAway, CanSignal, Protocol):
    """A cluster whose engine takes nodes away, and that sees what ran there."""


class CrashesNodes(TakesNodes, CanCrash, Protocol):
    """One whose nodes are containers, too."""


class CutsNodes(CanCutPower, CanSignal, Protocol):
    """A cluster whose machines can be switched off, and that sees what ran there."""


def remove(scene: Injection[TakesNodes], way: str) -> Evidence:
    """Have the engine take every node's pod away."""
    return take(scene, lambda it: scene.can.remove(it["name"], way))


def cordoned(scene: Injection[TakesNodes], way: str) -> Evidence:
    """Let nothing new come to each node's machine, then take its pod away: evicted, that is `kubectl drain`."""
    closed = scene.state["cordoned"] = []  # by us: what was closed before stays so
    for machine in [it["where"] for it in there(scene)]:
        scene.can.cordon(machine, on=True)
        closed.append(machine)
    return {**remove(scene, way), "cordoned": list(closed)}


def uncordon(scene: Injection[CanTakeAway]) -> Evidence:
    """Let pods come to the machines again."""
    return {"uncordoned": undo(scene, "cordoned", lambda machine: scene.can.cordon(machine, on=False))}


def taint(scene: Injection[TakesNodes]) -> Evidence:
    """Taint each node's machine, so that Kubernetes itself evicts the pod there."""
    tainted = scene.state["tainted"] = []

    def do(it: Evidence) -> None:
        scene.can.taint(it["where"], on=True)
        tainted.append(it["where"])

    found = take(scene, do)
    told = [it for pod in found["members"] for it in scene.can.told(pod["name"]) if it["reason"] == EVICTED]
    return {**found, "tainted": list(tainted), "evictions": told}


def untaint(scene: Injection[CanTakeAway]) -> Evidence:
    """Let pods stay on the machines again."""
    return {"untainted": undo(scene, "tainted", lambda machine: scene.can.taint(machine, on=False))}


def crash(scene: Injection[CrashesNodes]) -> Evidence:
    """End each node's container at one stroke; what its machine's kubelet says of it is the evidence."""
    found = take(scene, lambda it: scene.can.crash(it["node"]))
    return {**found, "ended": [{**pod, **scene.can.ended(pod["name"])} for pod in found["members"]]}


def lose(scene: Injection[CutsNodes]) -> Evidence:
    """Cut the power of each node's machine: kubelet, container runtime and pods at once."""
    before, killed_there = there(scene), running(scene)
    off = scene.state["off"] = []
    t = scene.cluster.now()
    for machine in [it["where"] for it in before]:
        scene.can.power(machine, on=False)
        off.append(machine)
    scene.state["gone_t"] = gone_t = scene.cluster.now()
    pulses = [dict(scene.can.pulse(machine)) for machine in off]
    found = {"off": list(off), "pulses": pulses, "every_s": max(it["every_s"] for it in pulses)}
    return {"t": t, "gone_t": gone_t, "killed": killed_there, "members": before, **found}


def find(scene: Injection[CanCutPower]) -> Evidence:
    """Look for a sign of life since, then give the machines their power back and wait for one."""
    if not (off := list(scene.state.get("off", []))):
        return {}
    try:
        pulses = [dict(scene.can.pulse(machine)) for machine in off]
        silent_s = scene.cluster.now() - scene.state.get("gone_t", math.nan)
    finally:  # whether or not there is an answer
        undo(scene, "off", lambda machine: scene.can.power(machine, on=True))
    deadline = scene.cluster.now() + BACK_S
    now = [scene.can.pulse(machine) for machine in off]
    while any(was["at"] == it["at"] for was, it in zip(pulses, now, strict=True)):
        if scene.cluster.now() > deadline:
            raise ClusterError(f"{', '.join(off)}: no sign of life {BACK_S:g} s after the power came back")
        scene.cluster.sleep(LOOK_S)
        now = [scene.can.pulse(machine) for machine in off]
    return {"pulses": pulses, "silent_s": silent_s, "pulses_after": [dict(it) for it in now]}


def part(scene: Injection[CanLoseControl]) -> Evidence:
    """Stop the control plane; the pods go on, and every line to them breaks."""
    t, scene.state["stopped"] = scene.cluster.now(), True
    scene.can.control(on=False)
    return {"t": t, "answers": scene.can.controlled()}


def rejoin(scene: Injection[CanLoseControl]) -> Evidence:
    """Look whether it still is away and nodes cannot be reached; start it again and wait until it answers."""
    if not scene.state.get("stopped"):
        return {}
    try:
        found = {"unreached": sorted(scene.cluster.away), "answered": scene.can.controlled()}
    finally:
        scene.can.control(on=True)
        scene.state["stopped"] = False
    return {**found, "answers": regain(scene)}


EVICTED = "TaintManagerEviction"
KILLED = 137  # as Kubernetes tells of SIGKILL
DRAINED = (
    *TAKEN,
    Condition("begin.cordoned", "some", means="a machine was closed to new pods"),
    Condition("end.uncordoned.*", "among", "begin.cordoned", means="and opened again"),
)
TAINTED = (
    *TAKEN,
    Condition("begin.evictions", "some", means="Kubernetes said that it evicts the pod for a taint"),
    Condition("end.untainted.*", "among", "begin.tainted", means="the taint was taken away again"),
)
CRASHED = (
    *TAKEN,
    Condition("begin.ended.*.code", "equal", value=KILLED, means="its kubelet saw the container end by SIGKILL"),
)
LOST = (
    Condition("begin.killed", "some", means="something was running there"),
    Condition("begin.killed.*.node", "among", "target", means="it was where it was aimed at"),
    *HIT,
    Condition("begin.off", "some", means="a machine was switched off"),
    Condition("end.pulses", "some", means="the engine had a sign of life of it"),
    Condition("end.pulses.*.at", "equal", "begin.pulses.*.at", means="there was no other"),
    Condition("end.silent_s", "above", "begin.every_s", means="for longer than between two of them"),
    Condition("end.pulses_after.*.at", "differ", "begin.pulses.*.at", means="there was one again once it had power"),
)
PARTED = (
    Condition("begin.answers", "equal", value=False, means="the API server did not answer any more"),
    Condition("end.answered", "equal", value=False, means="nor at the end"),
    Condition("end.unreached", "some", means="the lines to the nodes, which go by it, were broken"),
    Condition("end.answers", "equal", value=True, means="it answered once it had been started again"),
)

FAULTS = [
    Fault(
        "pod_delete", "a node's pod deleted, with its notice; the Job makes another", ("pods", "signals"), 1.0,
        partial(remove, way="delete"), nothing_to_heal, TAKEN, ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "pod_kill", "a node's pod deleted by force: a second's notice at most", ("pods", "signals"), 1.0,
        partial(remove, way="force"), nothing_to_heal, TAKEN, ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "node_drain", "a node's machine cordoned, its pod evicted", ("eviction", "machines", "signals"), 10.0,
        partial(cordoned, way="evict"), uncordon, DRAINED, ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "node_cordon", "a node's machine cordoned, its pod deleted by force: it has to come up elsewhere, or wait",
        ("pods", "machines", "signals"), 10.0, partial(cordoned, way="force"), uncordon, DRAINED,
        ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "node_taint", "a node's machine tainted NoExecute: Kubernetes evicts its pod",
        ("pods", "machines", "all_pods", "signals"), 10.0, taint, untaint, TAINTED,
        ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "container_kill", "a node's container ended at one stroke, as by the kernel: no notice, and its pod fails",
        ("pods", "containers", "signals"), 1.0, crash, nothing_to_heal, CRASHED,
        ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "node_lost", "a node's machine without power: all that the engine has there, at once",
        ("power", "signals"), 20.0, lose, find, LOST, ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "api_server_away", "the API server stopped: pods go on, and nobody reaches them by it",
        ("api",), 30.0, part, rejoin, PARTED, target="all",
    ),
]  # fmt: skip
