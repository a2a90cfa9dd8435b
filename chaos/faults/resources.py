"""Too little of something on a node: computing time, memory. In `chaos.faults.FAULTS`."""

from __future__ import annotations

import time
from typing import Protocol

from proving_ground.bench.capabilities import CanFillGpu, CanLimitMemory, CanSignal, CanSkewClock, CanSlow
from proving_ground.chaos.faults.fault import Arg, Evidence, Fault, Injection, still_there, worker_of
from proving_ground.chaos.faults.proof import Condition, killed

MEBI = 2**20
GPU_SLACK_BYTES = 64 * MEBI  # a driver keeps and gives in large pieces
CLOCK_SLACK_S = 1.0
KILL_S = 5.0  # for the kernel to kill


class KillsByMemory(CanLimitMemory, CanSignal, Protocol):
    """A cluster that can have a node run out of memory, and sees its processes end."""


def slow_down(scene: Injection[CanSlow]) -> Evidence:
    """Leave each node so many cores' worth of time."""
    before = {node: scene.can.share_state(node) for node in scene.nodes}
    t = scene.cluster.now()
    for node in scene.nodes:
        scene.can.share(node, scene.args["cores"])
    return {"t": t, "before": before, "during": {node: scene.can.share_state(node) for node in scene.nodes}}


def speed_up(scene: Injection[CanSlow]) -> Evidence:
    """Give them back what all nodes have; says for how long they were held back."""
    found = {node: scene.can.share_state(node) for node in scene.nodes}
    for node in scene.nodes:
        scene.can.share(node, None)
    after = {node: scene.can.share_state(node)["cores"] for node in scene.nodes}
    return {"at_end": found, "cores_after": after}


def run_out_of_memory(scene: Injection[KillsByMemory]) -> Evidence:
    """Limit each node's memory to little more than is in use, and have another tenant of the node use that up.

    The kernel then kills, a worker before anybody else.
    """
    victims = [worker_of(scene, node) for node in scene.nodes]
    before = {node: scene.can.memory_state(node) for node in scene.nodes}
    margin = round(scene.args["margin_mb"])
    t = scene.cluster.now()
    for victim in victims:
        node = victim["node"]
        limit = before[node]["usage_bytes"] // MEBI + margin
        scene.can.limit(node, limit, first=victim["pid"])
        scene.can.crowd(node, limit)  # some of what is in use are copies of files, which the kernel lets go of first
    while (left := still_there(scene.can, victims)) and scene.cluster.now() < t + KILL_S:
        scene.cluster.sleep(0.01)
    after = {node: scene.can.memory_state(node) for node in scene.nodes}
    return {"t": t, "before": before, "after": after, "killed": victims, "left": left}


def give_memory(scene: Injection[CanLimitMemory]) -> Evidence:
    """No limit any more, and the other tenant goes."""
    for node in scene.nodes:
        scene.can.crowd(node, None)
        scene.can.limit(node, None)
    return {"now": {node: scene.can.memory_state(node) for node in scene.nodes}}


def fill_gpu(scene: Injection[CanFillGpu]) -> Evidence:
    """Take up the free memory of each node's GPUs but for `leave_mb`."""
    before = {node: scene.can.gpu_state(node) for node in scene.nodes}
    t = scene.cluster.now()
    for node in scene.nodes:
        scene.can.fill_gpu(node, round(scene.args["leave_mb"]))
    after = {node: scene.can.gpu_state(node) for node in scene.nodes}
    return {"t": t, "leave_bytes": round(scene.args["leave_mb"]) * MEBI, "before": before, "after": after}


def free_gpu(scene: Injection[CanFillGpu]) -> Evidence:
    """Give it back."""
    for node in scene.nodes:
        scene.can.fill_gpu(node, None)
    return {"now": {node: scene.can.gpu_state(node) for node in scene.nodes}}


def skew_clock(scene: Injection[CanSkewClock]) -> Evidence:
    """Set the wall clock of each node wrong by `seconds`."""
    before = _ahead(scene)
    t = scene.cluster.now()
    for node in scene.nodes:
        scene.can.skew(node, scene.args["seconds"])
    return {"t": t, "label": "emulated", "asked_s": scene.args["seconds"], "before_s": before, "ahead_s": _ahead(scene)}


def right_clock(scene: Injection[CanSkewClock]) -> Evidence:
    """Set it right."""
    found = _ahead(scene)
    for node in scene.nodes:
        scene.can.skew(node, None)
    return {"at_end_s": found, "ahead_s": _ahead(scene)}


def _ahead(scene: Injection[CanSkewClock]) -> dict[str, float]:
    """By how much each node's wall clock is ahead of the harness', as its own processes read it."""
    return {node: round(scene.can.wall_clock(node) - time.time(), 3) for node in scene.nodes}


WAS_SLOWED = (
    Condition("begin.during", "among", "target", means="it was where it was aimed at"),
    Condition("begin.during.*.cores", "below", "begin.before.*.cores", means="the quota was smaller than before"),
    Condition("begin.during.*.cores", "near", "args.cores", means="the quota was the one that was asked for"),
    Condition(
        "end.at_end.*.throttled_s",
        "above",
        "begin.during.*.throttled_s",
        means="every node had to wait for the quota",
        by_the_job=True,
    ),
)
KILLED_BY_THE_KERNEL = (
    *killed(),
    Condition(
        "begin.after.*.oom_kills", "above", "begin.before.*.oom_kills",
        means="by its own counter the kernel killed for lack of memory",
    ),
)  # fmt: skip
GPU_WAS_FULL = (
    Condition("begin.after", "among", "target", means="it was where it was aimed at"),
    Condition("begin.after.*", "some", means="the driver told of a GPU"),
    Condition("begin.after.*.*.free_bytes", "below", "begin.before.*.*.free_bytes", means="less was free than before"),
    Condition(
        "begin.after.*.*.free_bytes", "at_most", "args.leave_mb", times=MEBI, plus=GPU_SLACK_BYTES,
        means="no more was free than asked",
    ),
)  # fmt: skip
WAS_SKEWED = (
    Condition("begin.ahead_s", "among", "target", means="it was where it was aimed at"),
    Condition(
        "begin.ahead_s.*", "near", "args.seconds", plus=CLOCK_SLACK_S,
        means="a process was told a time that was wrong by what was asked",
    ),
    Condition("end.at_end_s.*", "near", "args.seconds", plus=CLOCK_SLACK_S, means="until it was healed"),
)  # fmt: skip

FAULTS = [
    Fault(
        "slow_node", "a node gets less computing time", ("cpu_shares",), 5.0,
        slow_down, speed_up, WAS_SLOWED, {"cores": Arg(0.1, 0.01, 1024, "cores")},
    ),
    Fault(
        "memory_limit", "a node runs out of memory: the kernel kills a worker", ("memory", "signals"), 0.0,
        run_out_of_memory, give_memory, KILLED_BY_THE_KERNEL, {"margin_mb": Arg(32, 8, 100_000, "MiB")},
        ends="workers", victims="killed",
    ),
    Fault(
        "gpu_memory", "the memory of a node's GPUs is taken up", ("gpu_memory",), 5.0,
        fill_gpu, free_gpu, GPU_WAS_FULL, {"leave_mb": Arg(64, 0, 1_000_000, "MiB")},
    ),
    Fault(
        "clock_skew", "a node's wall clock is wrong (emulated)", ("skew",), 5.0,
        skew_clock, right_clock, WAS_SKEWED, {"seconds": Arg(60, -10_000_000, 10_000_000, "s ahead")},
    ),
]  # fmt: skip
