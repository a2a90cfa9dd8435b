"""What a cluster may be able to do beside running processes: break things, and undo it. Asked for by `chaos.faults`.

Each is a small protocol; whether a cluster can do it on this machine is told by its abilities, in words. Everything is
undone by the same call with None or False, by `mend`, or by the end of the cluster. `CanKill` stands in
`bench.protocols`. Figures that come back are read from the system, not repeated from what was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from proving_ground.bench.agent.processes import NodeProcess
from proving_ground.bench.protocols import CanKill, Node

__all__ = [
    "CanAdminister",
    "CanCrash",
    "CanCutPower",
    "CanFillGpu",
    "CanKill",
    "CanLimitMemory",
    "CanLoseControl",
    "CanLoseController",
    "CanLosePackets",
    "CanPartition",
    "CanReachVolume",
    "CanShapeNode",
    "CanSignal",
    "CanSkewClock",
    "CanSlow",
    "CanTakeAway",
    "CanThrottle",
    "CanUseVolume",
    "CanWithhold",
    "KnowsMachines",
    "KnowsMoments",
    "KnowsTimeouts",
    "MovesNodes",
    "NodeProcess",
    "members",
    "offers",
]


@runtime_checkable
class CanSignal(CanKill, Protocol):
    """A cluster that sees every process of a node, children of children included, and can signal one of them."""

    def processes(self, node: str) -> Sequence[NodeProcess]:
        """All that run on the node now, whoever started them; what the cluster itself needs there is left out."""

    def signal(self, node: str, pid: int, signal: int) -> int:
        """Send `signal` to the process that the node sees as `pid`; its pid as the harness sees it.

        Raises:
            ClusterError: there is no such process on that node.
        """


@runtime_checkable
class CanPartition(Protocol):
    """A cluster that can have the network lose packets between nodes, without a word to either."""

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Drop every packet from the first node to the second of each pair, from now on, beside what is cut already."""

    def mend(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Let through again what was cut: these pairs, or everything."""

    def drops(self) -> Mapping[str, int]:
        """Packets dropped since the cluster is up: `{"n1>n2": count}` for pairs, `{"n1": count}` for a node's loss."""


@runtime_checkable
class CanUseVolume(Protocol):
    """A cluster with a volume that all nodes share, for checkpoints, whose disk can misbehave."""

    @property
    def volume(self) -> Path:
        """The volume's folder as the harness reaches it.

        Raises:
            ClusterError: the request asked for none.
        """

    @property
    def volume_inside(self) -> Path:
        """The same folder as the nodes' processes see it, PROVING_GROUND_VOLUME in their environment."""

    def fill(self, leave_bytes: int | None) -> None:
        """Take up the free space but for `leave_bytes`; None gives it back."""

    def readonly(self, *, on: bool) -> None:
        """Refuse every write, as a disk that has had errors does; only between writes.

        Raises:
            ClusterError: a file is open for writing and does not get closed.
        """


@runtime_checkable
class CanReachVolume(Protocol):
    """A cluster that can look at what lies on the shared volume, and damage it."""

    def at_volume(self, deed: str, folder: str, **about: object) -> Any:  # noqa: ANN401 - whatever the deed returns
        """Do one of `bench.agent.volume.DEEDS` to a folder of the volume.

        Raises:
            ClusterError: it cannot be done; says why.
        """


@runtime_checkable
class CanShapeNode(Protocol):
    """A cluster that can make the network of a single node worse."""

    def link(self, node: str, mbps: float | None) -> None:
        """Limit the node's link to this rate (Mb/s, each way); None: as `shape` left it."""

    def loss(self, node: str, percent: float | None) -> None:
        """Drop this share of the packets from and to the node at random; None: none. `CanPartition.drops` counts."""

    def delay(self, node: str, ms: float | None) -> None:
        """Hold every packet from and to the node for so long, each way; None: none."""

    def link_state(self, node: str) -> Mapping[str, Any]:
        """As the kernel tells: `mbps` (both directions, None: no limit), `held_back` (packets so far), `delay_ms`."""


@runtime_checkable
class CanLosePackets(CanShapeNode, CanPartition, Protocol):
    """A cluster that can lose some of a node's packets, and counts them."""


@runtime_checkable
class CanSlow(Protocol):
    """A cluster that can take computing time away from a single node."""

    def share(self, node: str, cores: float | None) -> None:
        """Give the node this many cores' worth of time; None: as `shape` left it."""

    def share_state(self, node: str) -> Mapping[str, Any]:
        """As the kernel tells: `cores` (None: no limit) and `throttled_s`, for how long it was held back so far."""


@runtime_checkable
class CanThrottle(Protocol):
    """A cluster whose shared volume can be made slow."""

    def throttle(self, bytes_per_s: int | None) -> None:
        """Limit what each node reads and writes of the volume a second; None: no limit."""

    def throttle_state(self) -> int | None:
        """The limit as the kernel tells it; None: no limit."""

    def write_rate(self, node: str, mebi: int) -> float:
        """Bytes a second that the node gets when it writes so much to the volume and waits for the disk: tried now."""


@runtime_checkable
class CanLimitMemory(Protocol):
    """A cluster that can have a node run out of memory."""

    def limit(self, node: str, mebi: int | None, first: int | None = None) -> None:
        """Limit the node's memory; past that the kernel kills, `first` (a pid as the node sees it) before others.

        Raises:
            ClusterError: the limit is below what is in use already.
        """

    def crowd(self, node: str, mebi: int | None) -> None:
        """Have another process of the node take so much memory and hold it; None: it goes.

        It takes no more once the kernel had to kill for it.
        """

    def memory_state(self, node: str) -> Mapping[str, Any]:
        """As the kernel tells: `usage_bytes`, `limit_bytes` (None: no limit), `oom_kills` so far."""


@runtime_checkable
class CanSkewClock(Protocol):
    """A cluster on which a node's wall clock can be wrong; emulated: what reads the clock is told another time."""

    def skew(self, node: str, seconds: float | None) -> None:
        """Have the node's wall clock ahead by so much (or behind, if negative); None: right."""

    def wall_clock(self, node: str) -> float:
        """What a process on the node is told when it asks for the time now, in seconds since 1970."""


@runtime_checkable
class CanFillGpu(Protocol):
    """A cluster with GPUs whose memory can be taken up."""

    def fill_gpu(self, node: str, leave_mebi: int | None) -> None:
        """Have another process of the node take up all free memory of its GPUs but for so much; None: it goes."""

    def gpu_state(self, node: str) -> Sequence[Mapping[str, Any]]:
        """As the driver tells, of each GPU of the node: `name`, `free_bytes`, `total_bytes`."""


@runtime_checkable
class KnowsMachines(Protocol):
    """A cluster whose engine says what it has as a node."""

    def machine(self, node: str) -> Mapping[str, Any]:
        """What the engine has as this node: `id` (empty: nothing; another after a loss), `name`, `where`, `state`.

        Of a cluster also `agent`: which life of the node's agent answers; empty: none does.
        """


@runtime_checkable
class CanTakeAway(KnowsMachines, Protocol):
    """A cluster whose engine can take a node away by its own means, and gives another one for it."""

    def remove(self, name: str, way: str) -> None:
        """Take away what has this name: `delete` with its notice, `force` without any, `evict` as a drain does.

        Raises:
            ClusterError: the engine refuses.
        """

    def cordon(self, where: str, *, on: bool) -> None:
        """Have the engine put nothing new on a machine, or let it again.

        Raises:
            ClusterError: the engine refuses, or somebody else has closed the machine.
        """

    def taint(self, where: str, *, on: bool) -> None:
        """Have the engine itself send all away that is on a machine, and put nothing there; or let it again.

        Raises:
            ClusterError: the engine refuses, or others are on that machine, who would have to go too.
        """

    def ended(self, name: str) -> Mapping[str, Any]:
        """What the engine says of the end of what has this name: `reason`, `code`, `at`; empty: it has seen no end."""

    def told(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The engine's own events about what has or had this name, the oldest first: `reason`, `message`, `at`."""


@runtime_checkable
class CanWithhold(KnowsMachines, Protocol):
    """A cluster whose engine can be kept from giving another node for one that is lost."""

    def withhold(self, by: str, *, on: bool) -> None:
        """Have it give none: by a `quota` that is used up, or by a `webhook` that does not answer; or let it again.

        Raises:
            ClusterError: the engine refuses, or others would get nothing either.
        """

    def refusals(self) -> Sequence[Mapping[str, Any]]:
        """What the engine itself has said of that since: `reason`, `message`, `at`, the oldest first."""


@runtime_checkable
class CanCrash(Protocol):
    """A cluster whose nodes are containers, each with the node's agent as its first process."""

    def crash(self, node: str) -> None:
        """End the node's container at one stroke, without a word to anybody; returns when its agent is silent.

        Raises:
            ClusterError: it still answers.
        """


@runtime_checkable
class CanCutPower(KnowsMachines, Protocol):
    """A cluster whose machines can be switched off and on."""

    def power(self, where: str, *, on: bool) -> None:
        """Switch a machine off at one stroke, or on again.

        Raises:
            ClusterError: it cannot be done; says why.
        """

    def pulse(self, where: str) -> Mapping[str, Any]:
        """The last sign of life by which the engine knows that a machine is there: `at`, one each `every_s` seconds.

        Raises:
            ClusterError: the engine knows of none.
        """


@runtime_checkable
class CanAdminister(KnowsMachines, Protocol):
    """A cluster whose batch system can be told what an operator tells it; its machines have a daemon of its."""

    def mark(self, where: str, state: str) -> None:
        """Have a machine taken for `down`, or `drain` it, or `resume` it, which does nothing where it is open.

        Raises:
            ClusterError: it is refused, or somebody else has closed the machine.
        """

    def state_of(self, where: str) -> Mapping[str, Any]:
        """What is said of a machine, whoever has it: `where`, `state`, `reason`.

        Raises:
            ClusterError: nothing is.
        """

    def requeue(self, nodes: Sequence[str]) -> None:
        """Have the jobs of these nodes ended, with their notice, and put into the queue again.

        Raises:
            ClusterError: it is refused, or other nodes are of the same job, and would have to go too.
        """

    def limit(self, *, on: bool) -> Mapping[str, Any]:
        """Lower the time limit of the job of all nodes, so that its notice comes soon; or set it as it was asked for.

        As the batch system shows it: `before_min`, `limit_min`; `left_s` until the job reaches it.

        Raises:
            ClusterError: it is refused, or the limit is near as it is.
        """

    def preempt(self, *, on: bool) -> None:
        """Have a job that is preferred take all machines from that of all nodes; or end it, so that they are free."""

    def daemon(self, where: str, *, on: bool) -> None:
        """Kill a machine's daemon, or start it again.

        Raises:
            ClusterError: it cannot be done; says why.
        """

    def answers(self, where: str) -> bool:
        """Whether a machine's daemon answers, tried now.

        Raises:
            ClusterError: that cannot be told.
        """

    def pulse(self, where: str) -> Mapping[str, Any]:
        """As `CanCutPower.pulse`."""


@runtime_checkable
class KnowsMoments(Protocol):
    """A cluster to whose nodes orders have to travel, and which hears from there when they were carried out."""

    def struck_t(self, node: str) -> float:
        """When the last signal there was sent, in the harness' time."""


@runtime_checkable
class KnowsTimeouts(Protocol):
    """An engine that says how long it waits before it takes something for lost, or ends it."""

    def timeouts(self) -> Mapping[str, float]:
        """Name, as the engine calls it → seconds."""


@runtime_checkable
class MovesNodes(Protocol):
    """A cluster whose engine may give a lost node back on another machine, with another address."""

    def present(self) -> Sequence[Node]:
        """The nodes as they are now, in the order in which `setup` gave them; nothing is asked."""


@runtime_checkable
class CanLoseControl(Protocol):
    """A cluster whose control plane can be taken away while its machines go on."""

    def control(self, *, on: bool) -> None:
        """Stop the control plane, or start it again.

        Raises:
            ClusterError: it cannot be done; says why.
        """

    def controlled(self) -> bool:
        """Whether the control plane answers, tried now."""


@runtime_checkable
class CanLoseController(CanLoseControl, KnowsMachines, Protocol):
    """A cluster whose batch system's controller can be taken away, and that says what it has as a node."""


CAPABILITIES: dict[str, type] = {
    "signals": CanSignal, "checkpoints": CanReachVolume, "partitions": CanPartition, "links": CanShapeNode,
    "loss": CanLosePackets, "delay": CanShapeNode, "cpu_shares": CanSlow, "volume": CanUseVolume,
    "throttle": CanThrottle, "memory": CanLimitMemory, "skew": CanSkewClock, "gpu_memory": CanFillGpu,
    "pods": CanTakeAway, "eviction": CanTakeAway, "machines": CanTakeAway, "all_pods": CanTakeAway,
    "quotas": CanWithhold, "webhooks": CanWithhold,
    "containers": CanCrash, "power": CanCutPower, "api": CanLoseControl,
    "operator": CanAdminister, "requeue": CanAdminister, "preempt": CanAdminister,
    "time_limit": CanAdminister,
    "slurmd": CanAdminister, "slurmctld": CanLoseController,
}  # fmt: skip
"""Ability, by which a cluster tells what this machine allows → what it must offer to make use of it."""


def offers(cluster: object, ability: str) -> bool:
    """Whether a cluster has the methods that go with an ability.

    Looked up in its class: `isinstance` would ask for the volume, and there may be none yet.
    """
    wanted = members(CAPABILITIES[ability]) if ability in CAPABILITIES else ()
    return all(hasattr(type(cluster), name) for name in wanted)


def members(protocol: type) -> frozenset[str]:
    """What has to be there for a protocol, with what those have that it is made of."""
    made_of = [it for it in protocol.__mro__ if getattr(it, "_is_protocol", False) and it is not Protocol]
    return frozenset(name for it in made_of for name in vars(it) if not name.startswith("_"))
