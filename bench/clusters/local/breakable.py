"""What can be broken on the nodes of `local`, and mended again: the capabilities of `bench.capabilities`.

Part of `bench.clusters.local.LocalCluster`, kept apart so that each fits on a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any, TypeVar

from proving_ground.bench.agent import processes
from proving_ground.bench.agent.orders import Mount
from proving_ground.bench.agent.volume import DEEDS
from proving_ground.bench.capabilities import NodeProcess
from proving_ground.bench.clusters.local import gpus, intruder, links, memory, shares, skew, throttle, volume
from proving_ground.bench.clusters.local.groups import Groups
from proving_ground.bench.clusters.local.handles import Agents, Handle
from proving_ground.bench.clusters.local.partition import Drops
from proving_ground.bench.clusters.local.volume import Disk
from proving_ground.bench.protocols import ClusterError

T = TypeVar("T")


@dataclass
class ClusterParts:
    """What a cluster that is up is made of; None: the machine does not allow it, or nobody asked."""

    agents: Agents | None = None
    allotment: gpus.Allotment = field(default_factory=gpus.Allotment)
    network: links.Namespaces | None = None
    drops: Drops | None = None
    shares: Groups | None = None
    memory: Groups | None = None
    throttle: Groups | None = None
    disk: Disk | None = None
    mount: Mount | None = None
    volume: Path | None = None  # as the nodes see it
    link_mbps: float | None = None  # as `shape` was told
    cpus_per_node: float | None = None
    library: Path | None = None  # with the wall clocks
    clocks: dict[str, Path] = field(default_factory=dict)  # node → file with its clock's offset
    intruders: dict[str, Popen[str]] = field(default_factory=dict)


class Breakable:
    """Implements `bench.capabilities`; what the machine does not allow is a ClusterError when it is asked for."""

    def __init__(self) -> None:
        self._parts = ClusterParts()

    def processes(self, node: str) -> Sequence[NodeProcess]:
        """All that run on the node; a node that is down has none."""
        handle = self._handle(node)
        if handle.pid is None or not handle.alive:
            return []
        with _told(f"{node}: its processes"):
            return processes.processes(handle.pid, isolated=self._parts.network is not None)

    def signal(self, node: str, pid: int, signal: int) -> int:
        """Signal the process that the node sees as `pid`; its pid on this machine."""
        for process in self.processes(node):
            if process.pid == pid:
                with _told(f"{node}: process {pid}"):
                    processes.send(process, signal)
                return process.host_pid
        raise ClusterError(f"{node}: no process {pid}")

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Drop what the first node of each pair sends to the second."""
        with _told("the switch's rules"):
            self._drops().cut(pairs)

    def mend(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Let these pairs through again, or everything."""
        with _told("the switch's rules"):
            self._drops().mend(pairs)

    def drops(self) -> Mapping[str, int]:
        """Packets that the switch has dropped, by pair or node."""
        with _told("the switch's rules"):
            return self._drops().counts()

    @property
    def volume(self) -> Path:
        """The shared volume, seen through the fork server where it is mounted."""
        if self._parts.mount:
            return Path(f"/proc/{self._started().server.pid}/root{self.volume_inside}")
        return self.volume_inside

    @property
    def volume_inside(self) -> Path:
        """The shared volume as the nodes see it."""
        if self._parts.volume is None:
            raise ClusterError("local: the run asked for no volume")
        return self._parts.volume

    def at_volume(self, deed: str, folder: str, **about: object) -> Any:  # noqa: ANN401 - whatever the deed returns
        """Do it as root of this machine would."""
        with _told("the volume"):
            return DEEDS[deed](self.volume / folder, **about)

    def fill(self, leave_bytes: int | None) -> None:
        """Take up the volume's free space but for so much; None gives it back."""
        with _told("the volume"):
            self._mount()
            volume.fill(self.volume, leave_bytes)

    def readonly(self, *, on: bool) -> None:
        """Have the volume refuse writes, in every node at once."""
        with _told("the volume cannot turn read-only" if on else "the volume cannot be made writable"):
            volume.remount(self._started().server.pid, self._mount(), readonly=on)

    def link(self, node: str, mbps: float | None) -> None:
        """Limit one node's link; None: as all links are."""
        with _told(f"{node}: its link"):
            links.set_rate_of(self._network(), node, self._parts.link_mbps if mbps is None else mbps)

    def loss(self, node: str, percent: float | None) -> None:
        """Lose a share of one node's packets."""
        with _told("the switch's rules"):
            self._drops().lose(node, percent)

    def delay(self, node: str, ms: float | None) -> None:
        """Delay one node's packets."""
        with _told(f"{node}: its link"):
            links.set_delay_of(self._network(), node, ms)

    def link_state(self, node: str) -> Mapping[str, Any]:
        """What the kernel says of both ends of a node's cable."""
        with _told(f"{node}: its link"):
            return links.state_of(self._network(), node)

    def share(self, node: str, cores: float | None) -> None:
        """Limit one node's computing time; None: as all nodes' is."""
        with _told(f"{node}: its share of the cores"):
            shares.set_share(self._shares(), node, self._parts.cpus_per_node if cores is None else cores)

    def share_state(self, node: str) -> Mapping[str, Any]:
        """What the kernel says of a node's computing time."""
        with _told(f"{node}: its share of the cores"):
            groups = self._shares()
            return {"cores": shares.share(groups, node), "throttled_s": shares.throttled_s(groups)[node]}

    def throttle(self, bytes_per_s: int | None) -> None:
        """Slow the volume down."""
        with _told("the volume's rate"):
            throttle.set_rate(self._throttle(), self._disk().number, bytes_per_s)

    def throttle_state(self) -> int | None:
        """What the kernel says of the volume's rate."""
        with _told("the volume's rate"):
            return throttle.rate(self._throttle(), self._disk().number)

    def write_rate(self, node: str, mebi: int) -> float:
        """Write to the volume as the node would, and see how fast that is."""
        with _told("the volume's rate"):
            file = self.volume / f".rate-{node}"
            said = intruder.end(intruder.start([self._throttle().members_file(node)], "write", str(file), str(mebi)))
            return float(said)

    def limit(self, node: str, mebi: int | None, first: int | None = None) -> None:
        """Limit a node's memory."""
        with _told(f"{node}: its memory"):
            for process in self.processes(node):
                if process.pid == first:
                    memory.put_first(process.host_pid)
            groups = self._memory()
            memory.write_limit(groups.version, groups.of(node), None if mebi is None else mebi * 2**20)

    def crowd(self, node: str, mebi: int | None) -> None:
        """Have another tenant take some of a node's memory."""
        with _told(f"{node}: its memory"):
            groups = self._memory()
            if before := self._parts.intruders.pop(node, None):
                intruder.end(before)
            if mebi is not None:
                self._parts.intruders[node] = intruder.start([groups.members_file(node)], "memory", str(mebi))

    def memory_state(self, node: str) -> Mapping[str, Any]:
        """What the kernel says of a node's memory."""
        with _told(f"{node}: its memory"):
            return memory.counters(self._memory(), node)

    def skew(self, node: str, seconds: float | None) -> None:
        """Set a node's wall clock wrong, or right."""
        self._handle(node)
        with _told(f"{node}: its clock"):
            skew.set_ahead(_had(self._parts.clocks.get(node), "the run asked for no clocks of the nodes"), seconds or 0)

    def wall_clock(self, node: str) -> float:
        """What the node's agent, a process of the node, is told when it asks for the time."""
        return float(self._handle(node).call("wall_clock"))

    def fill_gpu(self, node: str, leave_mebi: int | None) -> None:
        """Take up the GPUs' memory; all nodes here share them."""
        self._handle(node)
        with _told("the GPUs' memory"):
            if before := self._parts.intruders.pop("gpu", None):
                intruder.end(before)
            if leave_mebi is not None:
                self._parts.intruders["gpu"] = tenant = intruder.start([], "gpu", str(leave_mebi))
                if not intruder.ready(tenant):
                    raise OSError("the CUDA driver refuses")

    def gpu_state(self, node: str) -> Sequence[Mapping[str, Any]]:
        """What the driver says of the machine's GPUs."""
        self._handle(node)
        with _told("the GPUs' memory"):
            return gpus.states()

    def _drops(self) -> Drops:
        return _had(self._parts.drops, "nodes without a network of their own cannot be parted")

    def _network(self) -> links.Namespaces:
        return _had(self._parts.network, "nodes have no network of their own here")

    def _mount(self) -> Mount:
        return _had(self._parts.mount, "the volume is a plain folder here, not a disk that could misbehave")

    def _disk(self) -> Disk:
        return _had(self._parts.disk, "the volume is not on a disk of its own")

    def _shares(self) -> Groups:
        return _had(self._parts.shares, "nodes have no share of the cores that could be made smaller")

    def _memory(self) -> Groups:
        return _had(self._parts.memory, "nodes have no limit of their memory here")

    def _throttle(self) -> Groups:
        return _had(self._parts.throttle, "the volume cannot be slowed down here")

    def _started(self) -> Agents:
        if self._parts.agents is None:
            raise ClusterError("local: the cluster is not up")
        return self._parts.agents

    def _handle(self, node: str) -> Handle:
        handles = self._started().handles
        if node not in handles:
            raise ClusterError(f"local: no node {node!r}; there are {', '.join(handles)}")
        return handles[node]


def _had(part: T | None, otherwise: str) -> T:
    """A part of the cluster that is there, or why it cannot be used."""
    if part is None:
        raise ClusterError(f"local: {otherwise}")
    return part


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn what the system says into one line about what was asked."""
    try:
        yield
    except OSError as error:
        raise ClusterError(f"local: {what}: {error.strerror or error}") from None
