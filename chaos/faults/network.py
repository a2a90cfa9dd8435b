"""Networks that lose packets or are slow. In `chaos.faults.FAULTS`."""

from __future__ import annotations

from collections.abc import Sequence

from bench.protocols import ClusterError
from chaos.faults.fault import Arg, Evidence, Fault, Injection

Pairs = Sequence[tuple[str, str]]


def isolate(scene: Injection) -> Evidence:
    """Nothing passes between the nodes aimed at and all others, the coordinator's included."""
    out = _outward(scene)
    return _cut(scene, [pair for one, other in out for pair in ((one, other), (other, one))])


def isolate_oneway(scene: Injection) -> Evidence:
    """What the nodes aimed at send is lost; what is sent to them arrives."""
    return _cut(scene, _outward(scene))


def part_two(scene: Injection) -> Evidence:
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


def _outward(scene: Injection) -> Pairs:
    """From each node aimed at to each that is not; where all are aimed at, to all others."""
    outside = [node for node in scene.view.everybody if node not in scene.nodes] or list(scene.nodes)
    return [(one, other) for one in scene.nodes for other in outside if one != other]


def _cut(scene: Injection, pairs: Pairs) -> Evidence:
    if not pairs:
        raise ClusterError(f"{', '.join(scene.nodes)}: there is no other node to be cut off from")
    before = scene.cluster.drops()
    scene.state["cut"] = pairs
    names = [f"{one}>{other}" for one, other in pairs]
    t = scene.cluster.now()
    scene.cluster.cut(pairs)
    return {"t": t, "cut": names, "dropped_before": {name: before.get(name, 0) for name in names}}


def mend(scene: Injection) -> Evidence:
    """Let everything through again, and count what was dropped."""
    pairs = scene.state.get("cut", [])
    scene.cluster.mend(pairs)
    counts = scene.cluster.drops()
    return {"dropped": {f"{one}>{other}": counts.get(f"{one}>{other}", 0) for one, other in pairs}}


def packets_dropped(begin: Evidence, end: Evidence | None) -> bool | None:
    """The counters of the drop rules have grown; they are read after healing."""
    if end is None:
        return None
    return any(count > begin["dropped_before"].get(name, 0) for name, count in end["dropped"].items())


def limit_link(scene: Injection) -> Evidence:
    """Limit the link of each node, both ways."""
    before = _links(scene)
    t = scene.cluster.now()
    for node in scene.nodes:
        scene.cluster.link(node, scene.args["mbps"])
    return {"t": t, "before": before, "during": _links(scene)}


def restore_link(scene: Injection) -> Evidence:
    """The rate that all links have."""
    found = _links(scene)
    for node in scene.nodes:
        scene.cluster.link(node, None)
    return {"at_end": found, "after": _links(scene)}


def _links(scene: Injection) -> Evidence:
    return {node: dict(scene.cluster.link_state(node)) for node in scene.nodes}


def was_limited(begin: Evidence, end: Evidence | None) -> bool | None:
    """By the queues' account the rate was lower at both ends, and packets had to wait for it."""
    if end is None:
        return None
    return all(
        all(rate is not None and rate < (was or float("inf"))
            for rate, was in zip(now["mbps"], begin["before"][node]["mbps"], strict=True))
        and sum(end["at_end"][node]["held_back"]) > sum(now["held_back"])
        for node, now in begin["during"].items()
    )  # fmt: skip


def lose_packets(scene: Injection) -> Evidence:
    """Drop a share of what each node sends and gets."""
    before = scene.cluster.drops()
    t = scene.cluster.now()
    for node in scene.nodes:
        scene.cluster.loss(node, scene.args["percent"])
    return {"t": t, "dropped_before": {node: before.get(node, 0) for node in scene.nodes}}


def keep_packets(scene: Injection) -> Evidence:
    """Drop none any more, and count what was dropped."""
    for node in scene.nodes:
        scene.cluster.loss(node, None)
    counts = scene.cluster.drops()
    return {"dropped": {node: counts.get(node, 0) for node in scene.nodes}}


def delay_packets(scene: Injection) -> Evidence:
    """Hold every packet of each node, each way."""
    t = scene.cluster.now()
    for node in scene.nodes:
        scene.cluster.delay(node, scene.args["ms"])
    return {"t": t, "during": _links(scene)}


def speed_packets(scene: Injection) -> Evidence:
    """Hold none any more."""
    for node in scene.nodes:
        scene.cluster.delay(node, None)
    return {"after": _links(scene)}


def was_delayed(begin: Evidence, end: Evidence | None) -> bool:
    """By the queues' account both ends held packets."""
    del end
    return all(all(now["delay_ms"]) for now in begin["during"].values())


CUT = ("partitions",)

FAULTS = [
    Fault(
        "partition", "a node cut off from all others: packets dropped silently, both ways", CUT, 10.0,
        isolate, mend, packets_dropped,
    ),
    Fault(
        "partition_pair", "packets dropped only between two workers", CUT, 10.0,
        part_two, mend, packets_dropped,
    ),
    Fault(
        "partition_oneway", "what a node sends is dropped; what is sent to it arrives", CUT, 10.0,
        isolate_oneway, mend, packets_dropped,
    ),
    Fault(
        "link_rate", "a node's link is slow, both ways", ("links",), 5.0,
        limit_link, restore_link, was_limited, {"mbps": Arg(5, 0.1, 400_000, "Mb/s")},
    ),
    Fault(
        "loss", "packets from and to a node lost at random", ("loss",), 5.0,
        lose_packets, keep_packets, packets_dropped, {"percent": Arg(2, 0.01, 100, "%")},
    ),
    Fault(
        "delay", "packets from and to a node arrive late", ("delay",), 5.0,
        delay_packets, speed_packets, was_delayed, {"ms": Arg(50, 0.1, 10_000, "ms each way")},
    ),
]  # fmt: skip
