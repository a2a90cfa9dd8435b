"""Processes that end or stop: of a worker, a launcher, a node, all nodes. In `chaos.faults.FAULTS`."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from proving_ground.bench.capabilities import CanSignal, KnowsMoments
from proving_ground.bench.protocols import ClusterError
from proving_ground.chaos.faults.fault import (
    GONE_S,
    Arg,
    Evidence,
    Fault,
    Injection,
    described,
    nothing_to_heal,
    still_there,
    until_gone,
    worker_of,
)
from proving_ground.chaos.faults.proof import Condition, killed


def kill_worker(scene: Injection[CanSignal]) -> Evidence:
    """SIGKILL to one of the trainer's processes on each node."""
    killed = [worker_of(scene, node) for node in scene.nodes]
    t = scene.cluster.now()
    for process in killed:
        scene.can.signal(process["node"], process["pid"], signal.SIGKILL)
    return {**sent(scene, t), "killed": killed, "left": until_gone(scene, killed)}


def struck(scene: Injection[object], since_t: float) -> Evidence:
    """When the first of the nodes was signalled: at once, or, where orders travel, by the nodes' own word."""
    told = [scene.can.struck_t(it) for it in scene.nodes] if isinstance(scene.can, KnowsMoments) else [since_t]
    return {"t": max(since_t, min(told))}


def sent(scene: Injection[object], since_t: float) -> Evidence:
    """The moments of the first and of the last signal; the nodes' word may be ahead of our clock by its error."""
    first = struck(scene, since_t)
    return {**first, "sent_t": max(first["t"], scene.cluster.now())}


def kill_launcher(scene: Injection[CanSignal]) -> Evidence:
    """SIGKILL to the process that the harness started on each node, and to no other there."""
    before, t = processes_of(scene), scene.cluster.now()
    pids = {pid for node in scene.nodes for pid in scene.can.kill(node, 0, signal.SIGKILL)}
    killed = [it for it in before if it["host_pid"] in pids]
    if len(killed) != len(scene.nodes):
        raise ClusterError(f"{', '.join(scene.nodes)}: no launcher is running there")
    moments = sent(scene, t)
    left = until_gone(scene, killed)
    return {**moments, "killed": killed, "left": left, "orphans": still_there(scene.can, _others(before, killed))}


def kill_node(scene: Injection[CanSignal]) -> Evidence:
    """A power cut: every process of each node at one stroke."""
    return cut_power(scene, running(scene))


def running(scene: Injection[CanSignal]) -> list[Evidence]:
    """The processes of the nodes that are aimed at.

    Raises:
        ClusterError: there are none.
    """
    if not (found := processes_of(scene)):
        raise ClusterError(f"{', '.join(scene.nodes)}: no process is running there")
    return found


def processes_of(scene: Injection[CanSignal]) -> list[Evidence]:
    """The same, where there may be none."""
    return [it for node in scene.nodes for it in described(node, scene.can.processes(node))]


def cut_power(scene: Injection[CanSignal], before: Sequence[Evidence]) -> Evidence:
    """SIGKILL to whatever runs there; `before` has what that is."""
    t = scene.cluster.now()
    for node in scene.nodes:
        scene.can.kill(node, None, signal.SIGKILL)
    return {**sent(scene, t), "killed": list(before), "left": processes_of(scene)}


def preempt(scene: Injection[CanSignal]) -> Evidence:
    """SIGTERM to all that the harness started on each node, `notice_s` to leave in good order, then the power cut."""
    noticed = running(scene)
    notice_t = scene.cluster.now()
    for node in scene.nodes:
        for slot in sorted({0, *(int(name.rpartition(".")[2]) for name in scene.workers.get(node, {}).values())}):
            scene.can.kill(node, slot, signal.SIGTERM)  # nobody, where a launcher started that one
    notice_t = struck(scene, notice_t)["t"]
    while still_there(scene.can, noticed) and scene.cluster.now() < notice_t + scene.args["notice_s"]:
        scene.cluster.sleep(0.02)
    cut = cut_power(scene, processes_of(scene))
    cut_off = {(it["node"], it["pid"], it["start"]) for it in cut["killed"]}
    ended = [it for it in noticed if (it["node"], it["pid"], it["start"]) not in cut_off]
    moments = {"t": notice_t, "cut_t": cut["t"], "sent_t": cut["sent_t"]}
    return {**moments, "killed": noticed, "ended_in_time": ended, "left": cut["left"]}


def _others(all_of_them: Sequence[Evidence], some: Sequence[Evidence]) -> list[Evidence]:
    return [it for it in all_of_them if it not in some]


def stop_worker(scene: Injection[CanSignal]) -> Evidence:
    """SIGSTOP to one of the trainer's processes on each node; what it holds open stays open."""
    stopped = [worker_of(scene, node) for node in scene.nodes]
    scene.state["stopped"] = stopped
    t = scene.cluster.now()
    for process in stopped:
        scene.can.signal(process["node"], process["pid"], signal.SIGSTOP)
    t = struck(scene, t)["t"]
    now = still_there(scene.can, stopped)
    while any(it["state"] != "T" for it in now) and scene.cluster.now() < t + GONE_S:
        scene.cluster.sleep(0.002)
        now = still_there(scene.can, stopped)
    return {"t": t, "stopped": now}


def continue_worker(scene: Injection[CanSignal]) -> Evidence:
    """SIGCONT, where the process has not been killed meanwhile."""
    stopped = scene.state.pop("stopped", [])
    before = still_there(scene.can, stopped)
    for process in before:
        scene.can.signal(process["node"], process["pid"], signal.SIGCONT)
    return {"was": [it["state"] for it in before], "killed_meanwhile": len(stopped) - len(before)}


SIGNALS = ("signals",)
STOOD_STILL = (
    Condition("begin.stopped", "some", means="a process was stopped"),
    Condition("begin.stopped.*.node", "among", "target", means="it was where it was aimed at"),
    Condition("begin.stopped.*.state", "equal", value="T", means="by /proc it stood still"),
    Condition("end.was.*", "equal", value="T", means="nobody else let it go on"),
)

FAULTS = [
    Fault(
        "worker_kill", "SIGKILL to a worker process", SIGNALS, 0.0,
        kill_worker, nothing_to_heal, killed(), ends="workers", victims="killed", gone="t",
    ),
    Fault(
        "agent_kill", "SIGKILL to a node's launcher only; its worker is orphaned", SIGNALS, 3.0,
        kill_launcher, nothing_to_heal, killed(), ends="launcher", victims="killed", gone="t",
    ),
    Fault(
        "node_kill", "every process of a node killed at one stroke", SIGNALS, 3.0,
        kill_node, nothing_to_heal, killed(), ends="node", victims="killed", gone="t",
    ),
    Fault(
        "all_nodes", "every worker node killed; started again by hand", SIGNALS, 3.0,
        kill_node, nothing_to_heal, killed(), target="all", ends="node", victims="killed", gone="t",
    ),
    Fault(
        "coordinator_kill", "SIGKILL to the coordinator's process", SIGNALS, 1.0,
        kill_launcher, nothing_to_heal, killed(), target="coordinator",
        ends="launcher", victims="killed", gone="t",
    ),
    Fault(
        "preemption", "SIGTERM to a node's launcher as notice, then a power cut", SIGNALS, 3.0,
        preempt, nothing_to_heal, killed(), {"notice_s": Arg(2, 0, 120, "s")},
        ends="node", victims="killed", gone="cut_t",
    ),
    Fault(
        "hang", "SIGSTOP: a worker stands still, its connections stay open", SIGNALS, 10.0,
        stop_worker, continue_worker, STOOD_STILL, victims="stopped",
    ),
]  # fmt: skip
