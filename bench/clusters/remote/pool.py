"""What an engine must do for `remote.cluster`: bring machines up, and say which program leads to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.protocols import Ability, ClusterRequest, ProcessSpec
from bench.spec import Trial

BOOT = "import sys;r=sys.stdin.buffer;exec(r.read(int(r.readline())))"
"""Program of `python3 -c` on the node: reads `bench.agent.boot` from its standard input and becomes it."""


@dataclass(frozen=True)
class Member:
    """One machine of the engine's: how it is reached, and what it is to be."""

    name: str  # n1, n2 …
    host: str  # as the engine calls it
    address: str  # where its peers reach it
    argv: tuple[str, ...]  # the program that leads there, with BOOT at its end
    work: str  # folder of the agent there
    starts: bool = True  # whether whoever comes by that program starts the agent; else the engine has
    power_off: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


class Pool(Protocol):
    """One engine with its options."""

    name: str
    volume: str  # folder that all of its machines share; empty: there is none
    capacity: int | None  # machines at most; None: not known before it is asked for them

    def abilities(self) -> Sequence[Ability]:
        """What can be broken there, beside processes."""

    def imitated(self) -> Sequence[str]:
        """What stands in for real machines, as found by asking them."""

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """How machines would be had and reached, as text."""

    def allocate(self, request: ClusterRequest) -> Sequence[Member]:
        """Have machines.

        Raises:
            ClusterError: there are none to be had; says why in the engine's words.
        """

    def release(self) -> None:
        """Give them back; safe twice."""
