"""What an engine must do for `remote.cluster`: bring machines up, and say which program leads to each."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from proving_ground.bench.clusters.local.clean import lives
from proving_ground.bench.clusters.local.groups import owner
from proving_ground.bench.protocols import Ability, ClusterRequest, ProcessSpec
from proving_ground.bench.spec import Trial

LEASE_S = 120.0
NOT_ASKED = "not asked"
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
    slots: int | None = None  # of `Node`, where the engine says; else by the machine's own word
    zone: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    first_s: float = 0.0  # how long an agent waits for its first harness, where that is longer than its lease


Asked = Callable[[Member], bytes]
"""All that a node's Python gets on its standard input to bring the agent of a member up."""


class Pool(Protocol):
    """One engine with its options."""

    name: str
    capacity: int | None  # machines at most; None: not known before it is asked for them
    lease_s: float  # an agent that heard of nobody for so long ends its node's processes and itself
    wait_s: float  # how long a run waits for its machines at most

    @property
    def volume(self) -> str:
        """A folder that all of its machines share; empty: there is none."""

    def abilities(self) -> Sequence[Ability]:
        """What can be broken there by the engine's means."""

    def imitated(self) -> Sequence[str]:
        """What stands in for real machines: found by asking them, or as the options say."""

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """How machines would be had and reached, as text."""

    def allocate(self, request: ClusterRequest, ask: Asked, tell: Callable[[str], None]) -> Sequence[Member]:
        """Have machines; `ask` makes what an agent that the engine starts has to be told, `tell` what is waited for.

        Raises:
            ClusterError: there are none to be had; says why in the engine's words.
        """

    def mistaken(self, why: str) -> bool:
        """Whether what a way to a machine complained of is for the caller to mend, not a bad day of the engine's."""

    def closed(self, why: str) -> bool:
        """Whether a way to a machine failed because all of them are closed: that says nothing of the machine."""

    def events(self) -> Iterable[Mapping[str, Any]]:
        """What the engine has noted about the run since the last call, on our clock: fields of `engine_event`s.

        Raises:
            SpecError, ClusterError: it does not say.
        """

    def release(self) -> None:
        """Give them back; safe twice."""

    def clean(self, *, dry_run: bool) -> Sequence[str]:
        """Remove what killed runs left there (or only say what would be removed), a line each; runs in use are let be.

        A machine that cannot be asked has a line that begins with `NOT_ASKED`.

        Raises:
            ClusterError: the engine cannot be reached; says why.
        """


@runtime_checkable
class SaysWhy(Protocol):
    """A pool whose engine gives another machine for one that is lost, and says what it waits for."""

    wait_s: float  # how long a node may be away before the run is given up

    def waits(self) -> Mapping[str, str]:
        """Node → why it has nothing that runs, in the engine's words; those that run are left out.

        Raises:
            SpecError, ClusterError: it does not say.
        """


@runtime_checkable
class Moves(Protocol):
    """A pool whose engine may give a lost node back on another machine, with another address."""

    def member(self, name: str) -> Member | None:
        """The node as it is now; None: the engine has nothing there that runs.

        Raises:
            SpecError, ClusterError: it does not say.
        """


@runtime_checkable
class TakesBack(SaysWhy, Protocol):
    """A pool whose machines are had together: its engine may end them all, begin them all again, or take one away.

    What it says is what is known by now; nobody waits for an answer.
    """

    def lost(self) -> Collection[str]:
        """Nodes that were taken away while the others go on: nothing is given for them."""

    def over(self) -> str:
        """Why all have ended, for good, in the engine's words; empty: they have not."""


@runtime_checkable
class StandsInQueue(Protocol):
    """A pool whose engine has a run wait until there are machines for it."""

    queued_s: float | None  # from the engine's word that it has been asked until all machines were had; None: not yet


@runtime_checkable
class KeepsAccounts(Protocol):
    """A pool whose site counts what is used there."""

    def accounts(self) -> Mapping[str, Any]:
        """What the site has counted of what was just released: fields of an `accounting` event; empty: of nothing.

        Takes seconds at most and raises nothing: where there is no answer, `why` says so.
        """


def signature() -> str:
    """Who has machines of an engine's: this host and this process, for `is_left` of a later one."""
    return f"{socket.gethostname()}/{owner()}"


def is_left(signed: str) -> bool:
    """Whether a harness that signed so was of this host and is gone; of another host nobody here can tell."""
    host, _, who = signed.partition("/")
    return host == socket.gethostname() and not lives(who)


def left_line(host: str, found: Mapping[str, Any]) -> str:
    """What `bench.agent.left` found on a machine, as a line of `clean`."""
    return f"{'in use, let be' if found['in_use'] else 'left'}: {host}: {found['node']} of run {found['run']}"


def work_root(folder: str) -> str:
    """The folder of all agents of a user; `bench.agent.boot` fills in the braces."""
    return f"{folder.rstrip('/')}/proving-ground-{{uid}}"


def work_folder(folder: str, request: ClusterRequest) -> str:
    """Where an agent keeps its files meanwhile. A socket's path is short."""
    return f"{work_root(folder)}/{request.run_id}/{{node}}"
