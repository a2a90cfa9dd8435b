"""What a cluster may be able to do beside running processes: break things, and undo it. Asked for by `chaos.faults`.

Each is a small protocol; whether a cluster can do it on this machine is told by its abilities, in words. Everything is
undone by the same call with None or False, by `mend`, or by the end of the cluster. `CanKill` stands in
`bench.protocols`. Figures that come back are read from the system, not repeated from what was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from bench.protocols import CanKill

__all__ = ["CanKill", "CanPartition", "CanSignal", "CanUseVolume", "NodeProcess"]


@dataclass(frozen=True)
class NodeProcess:
    """A process of a node."""

    pid: int  # as the node sees it
    host_pid: int  # as the harness sees it
    start: int  # when it was started, in clock ticks: tells it from a later process with the same pid
    state: str  # the kernel's letter; T: stopped
    cmd: str


@runtime_checkable
class CanSignal(Protocol):
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

    def mend(self) -> None:
        """Let everything through again."""

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
