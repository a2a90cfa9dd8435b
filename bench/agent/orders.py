"""What the harness and a node's agent say to each other, as plain data over a pipe.

Requests are `(verb, *arguments)`, answered by `("ok", value)` or `("error", message)`. In between an agent may say
`("exit", slot, pid, code, t)` at any time: a process ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

RUN_VARIABLE = "PROVING_GROUND_RUN"
"""Environment variable that marks every process of a run with its id."""

NODE_VARIABLE = "PROVING_GROUND_NODE"
"""The same with the name of its node, on machines elsewhere."""

HARNESS_VARIABLE = "PROVING_GROUND_HARNESS"
"""Names the harness' process, see `groups.owner`: whether it still lives tells a run from a leftover."""

DISK_VARIABLE = "PROVING_GROUND_DISK"
"""The folder of the node's own disk."""

VOLUME_VARIABLE = "PROVING_GROUND_VOLUME"
"""The folder of the volume that all nodes share, where the run has one."""

SHARING = {"PROVING_GROUND_GPUS": "shared"}
"""Of a process that may compute on GPUs which other nodes of this machine use too."""

CLOCK_VARIABLE = "PROVING_GROUND_CLOCK"
"""The file with the offset of the node's wall clock, for processes that start with the library of `skew`."""


@dataclass(frozen=True)
class Mount:
    """What the fork server mounts before it makes the nodes, which inherit it."""

    source: str
    target: str
    kind: str
    options: str = ""


@dataclass(frozen=True)
class NodeSetup:
    """What a node's agent makes of itself before it starts anything. None: the node does without."""

    name: str
    disk: str  # a folder; a node's own only where mounts are
    disk_mb: int | None = None  # size of the tmpfs mounted there
    network: int | None = None  # descriptor of the namespace, inherited
    interface: str | None = None  # for collectives
    hosts: str | None = None  # file to stand in for /etc/hosts
    empty: str | None = None  # empty file to stand in for /etc/resolv.conf
    groups: tuple[str, ...] = ()  # files that a process joins the node's control groups by
    volume: str | None = None  # folder of the volume that all nodes share
    clock: str | None = None  # file with the offset of its wall clock
    isolated: bool = False  # own mounts, host name, processes


@dataclass(frozen=True)
class Order:
    """One process to start; paths are absolute."""

    slot: int
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    log: str | None = None
