"""Networks that lose packets or are slow. In `chaos.faults.FAULTS`."""

from __future__ import annotations

from collections.abc import Sequence

from proving_ground.bench.capabilities import CanLosePackets, CanPartition, CanShapeNode
from proving_ground.bench.protocols import ClusterError
from proving_ground.chaos.faults.fault import Arg, Evidence, Fault, Injection
from proving_ground.chaos.faults.proof import Condition

Pairs = Sequence[tuple[str, str]]


def isolate(scene: Injection[CanPartition]) -> Evidence:
    """Nothing passes between the nodes aimed at and all others, the coordinator's included."""
    out = _outward(scene)
    return _cut(scene, [pair for one, other in out for pair in ((one, other), (other, one))])


def isolate_oneway(scene: Injection[CanPartition]) -> Evidence:
    """What the nodes aimed at send is lost; what is sent to them arrives."""
    return _cut(scene, _outward(scene))


def part_two(scene: Injection[CanPartition]) -> Evidence:
    """Nothing passes between a worker node and one other; both still reach everybody else.

    Two nodes aimed at are the pair; to a single one another worker node is drawn.
    """
    two = list(scene.nodes[:2])
    others = [node for node in scene.view.workers if node not in two]
    if len(two) == 1 and others:
        two.append(scene.chance.choice(others))
    if len(two) < 2:
        raise ClusterError(f"{two[0]} has no other worker node to be parted from")
    return _cut(scene, [(two[0], two[1]), (two[1], two[0])])


def _outward(scene: Injection[object]) -> Pairs:
    """From each node aimed at to each that is not; where all are aimed at, to all others."""
    outside = [node for node in scene.view.everybody if node not in scene.nodes] or list(scene.nodes)
    return [(one, other) for one in scene.nodes for other in outside if one != other]


def _cut(scene: Injection[CanPartition], pairs: Pairs) -> Evidence:
    if not pairs:
        raise ClusterError(f"{', '.join(scene.nodes)}: there is no other node to be cut off from")
    before = scene.can.drops()
    scene.state["cut"] = pairs
    names = [f"{one}>{other}" for one, other in pairs]
    t = scene.cluster.now()
    scene.can.cut(pairs)
    return {"t": t, "cut": names, "dropped_before": {name: before.get(name, 0) for name in names}}


def mend(scene: Injection[CanPartition]) -> Evidence:
    """Let everything through again, and count what was dropped."""
    pairs = scene.state.get("cut", [])
    scene.can.mend(pairs)
    counts = scene.can.drops()
    return {"dropped": {f"{one}>{other}": counts.get(f"{one}>{other}", 0) for one, other in pairs}}


def limit_link(scene: Injection[CanShapeNode]) -> Evidence:
    """Limit the link of each node, both ways."""
    before = _links(scene)
    t = scene.cluster.now()
    for node in scene.nodes:
        scene.can.link(node, scene.args["mbps"])
    return {"t": t, "before": before, "during": _links(scene)}


def restore_link(scene: Injection[CanShapeNode]) -> Evidence:
    """The rate that all links have."""
    found = _links(scene)
    for node in scene.nodes:
        scene.can.link(node, None)
    return {"at_end": found, "after": _links(scene)}


def _links(scene: Injection[CanShapeNode]) -> Evidence:
    return {node: dict(scene.can.link_state(node)) for node in scene.nodes}


def lose_packets(scene: Injection[CanLosePackets]) -> Evidence:
    """Drop a share of what each node sends and gets."""
    before = scene.can.drops()
    t = scene.cluster.now()
    for node in scene.nodes:
        scene.can.loss(node, scene.args["percent"])
    return {"t": t, "dropped_before": {node: before.get(node, 0) for node in scene.nodes}}


def keep_packets(scene: Injection[CanLosePackets]) -> Evidence:
    """Drop none any more, and count what was dropped."""
    for node in scene.nodes:
        scene.can.loss(node, None)
    counts = scene.can.drops()
    return {"dropped": {node: counts.get(node, 0) for node in scene.nodes}}


def delay_packets(scene: Injection[CanShapeNode]) -> Evidence:
    """Hold every packet of each node, each way."""
    t = scene.cluster.now()
    for node in scene.nodes:
        scene.can.delay(node, scene.args["ms"])
    return {"t": t, "during": _links(scene)}


def speed_packets(scene: Injection[CanShapeNode]) -> Evidence:
    """Hold none any more."""
    for node in scene.nodes:
        scene.can.delay(node, None)
    return {"after": _links(scene)}


CUT = ("partitions",)
PACKETS_DROPPED = (
    Condition(
        "end.dropped.+",
        "above",
        "begin.dropped_before.+",
        means="the counters of the drop rules have grown",
        by_the_job=True,
    ),
)
BETWEEN_NODES = (
    Condition("begin.cut.*", "touches", "target", means="it was where it was aimed at"),
    *PACKETS_DROPPED,
)
AT_THE_NODE = (
    Condition("end.dropped", "among", "target", means="it was where it was aimed at"),
    *PACKETS_DROPPED,
)
WAS_LIMITED = (
    Condition("begin.during", "among", "target", means="it was where it was aimed at"),
    Condition("begin.during.*.mbps.*", "below", "begin.before.*.mbps.*", means="the rate was lower than before"),
    Condition("begin.during.*.mbps.*", "near", "args.mbps", means="the rate was the one that was asked for"),
    Condition(
        "end.at_end.*.held_back.+", "above", "begin.during.*.held_back.+", means="packets had to wait", by_the_job=True
    ),
)
WAS_DELAYED = (
    Condition("begin.during", "among", "target", means="it was where it was aimed at"),
    Condition("begin.during.*.delay_ms.*", "near", "args.ms", means="the queues held packets as long as asked"),
)

FAULTS = [
    Fault(
        "partition", "a node cut off from all others: packets dropped silently, both ways", CUT, 10.0,
        isolate, mend, BETWEEN_NODES,
    ),
    Fault(
        "partition_pair", "packets dropped only between two workers", CUT, 10.0,
        part_two, mend, BETWEEN_NODES,
    ),
    Fault(
        "partition_oneway", "what a node sends is dropped; what is sent to it arrives", CUT, 10.0,
        isolate_oneway, mend, BETWEEN_NODES,
    ),
    Fault(
        "link_rate", "a node's link is slow, both ways", ("links",), 5.0,
        limit_link, restore_link, WAS_LIMITED, {"mbps": Arg(5, 0.1, 400_000, "Mb/s")},
    ),
    Fault(
        "loss", "packets from and to a node lost at random", ("loss",), 5.0,
        lose_packets, keep_packets, AT_THE_NODE, {"percent": Arg(2, 0.01, 100, "%")},
    ),
    Fault(
        "delay", "packets from and to a node arrive late", ("delay",), 5.0,
        delay_packets, speed_packets, WAS_DELAYED, {"ms": Arg(50, 0.1, 10_000, "ms each way")},
    ),
]  # fmt: skip
