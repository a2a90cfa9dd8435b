"""What an engine must do for `remote.cluster`: bring machines up, and say which program leads to each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

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
    start: str = "here"  # whoever comes by that program starts the agent; `not`: the engine has; `stay`: it becomes it
    first_s: float = 0.0  # how long an agent waits for its first harness, where that is longer than its lease


Asked = Callable[[Member], bytes]
"""All that a node's Python gets on its standard input to bring the agent of a member up."""


class Pool(Protocol):
    """One engine with its options."""

    name: str
    capacity: int | None  # machines at most; None: not known before it is asked for them

    @property
    def volume(self) -> str:
        """A folder that all of its machines share; empty: there is none."""

    def abilities(self) -> Sequence[Ability]:
        """What can be broken there, beside processes."""

    def imitated(self) -> Sequence[str]:
        """What stands in for real machines: found by asking them, or as the options say."""

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """How machines would be had and reached, as text."""

    def allocate(self, request: ClusterRequest, ask: Asked, tell: Callable[[str], None]) -> Sequence[Member]:
        """Have machines; `ask` makes what an agent that the engine starts has to be told, `tell` what is waited for.

        Raises:
            ClusterError: there are none to be had; says why in the engine's words.
        """

    def release(self) -> None:
        """Give them back; safe twice."""

    def clean(self, *, dry_run: bool) -> Sequence[str]:
        """Remove what killed runs left there (or only say what would be removed), a line each; runs in use are let be.

        Raises:
            ClusterError: one cannot be reached; says why.
        """


@runtime_checkable
class Takes(Protocol):
    """A pool whose engine can take a node away by its own means, and give another one for it."""

    def machine(self, node: str) -> Mapping[str, Any]:
        """What the engine has as this node now: `id` (another one after it was replaced), `where`, `state`.

        Raises:
            ClusterError: it does not say.
        """

    def remove(self, node: str, way: str) -> None:
        """Have the engine take a node away by its own means; asked only where an ability says that it can.

        Raises:
            ClusterError: it refuses.
        """

    def cordon(self, where: str, *, on: bool) -> None:
        """Have the engine put nothing new on a machine, or let it again.

        Raises:
            ClusterError: it refuses.
        """


def work_root(folder: str) -> str:
    """The folder of all agents of a user; `bench.agent.boot` fills in the braces."""
    return f"{folder.rstrip('/')}/proving-ground-{{uid}}"


def work_folder(folder: str, request: ClusterRequest) -> str:
    """Where an agent keeps its files meanwhile. A socket's path is short."""
    return f"{work_root(folder)}/{request.run_id}/{{node}}"
