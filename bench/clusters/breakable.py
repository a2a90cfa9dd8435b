"""What can be broken on the nodes of `local`, and mended again: the capabilities of `bench.capabilities`.

Part of `bench.clusters.local.LocalCluster`, kept apart so that each fits on a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.capabilities import NodeProcess
from bench.clusters import links, processes, volume
from bench.clusters.handles import Agents, Handle
from bench.clusters.orders import Mount
from bench.clusters.partition import Drops
from bench.clusters.shares import Shares
from bench.protocols import ClusterError


@dataclass
class Parts:
    """What a cluster that is up is made of; None: the machine does not allow it, or nobody asked."""

    agents: Agents | None = None
    network: links.Network | None = None
    drops: Drops | None = None
    shares: Shares | None = None
    mount: Mount | None = None
    volume: Path | None = None  # as the nodes see it


class Breakable:
    """Implements `CanSignal`, `CanPartition`, `CanUseVolume`."""

    def __init__(self) -> None:
        self._parts = Parts()

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

    def mend(self) -> None:
        """Let everything through again."""
        with _told("the switch's rules"):
            self._drops().mend()

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

    def fill(self, leave_bytes: int | None) -> None:
        """Take up the volume's free space but for so much; None gives it back."""
        with _told("the volume"):
            self._mount()
            volume.fill(self.volume, leave_bytes)

    def readonly(self, *, on: bool) -> None:
        """Have the volume refuse writes, in every node at once."""
        with _told("the volume cannot turn read-only" if on else "the volume cannot be made writable"):
            volume.remount(self._started().server.pid, self._mount(), readonly=on)

    def _drops(self) -> Drops:
        if self._parts.drops is None:
            raise ClusterError("local: nodes without a network of their own cannot be parted")
        return self._parts.drops

    def _mount(self) -> Mount:
        if self._parts.mount is None:
            raise ClusterError("local: the volume is a plain folder here, not a disk that could misbehave")
        return self._parts.mount

    def _started(self) -> Agents:
        if self._parts.agents is None:
            raise ClusterError("local: the cluster is not up")
        return self._parts.agents

    def _handle(self, node: str) -> Handle:
        handles = self._started().handles
        if node not in handles:
            raise ClusterError(f"local: no node {node!r}; there are {', '.join(handles)}")
        return handles[node]


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn what the system says into one line about what was asked."""
    try:
        yield
    except OSError as error:
        raise ClusterError(f"local: {what}: {error.strerror or error}") from None
