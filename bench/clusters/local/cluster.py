"""The `local` cluster: nodes on this machine, as isolated as the machine allows. Made by `bench.clusters.CLUSTERS`.

`bench/clusters/README.md` says how a node is imitated and what is not faithful. Parts: `links` (network), `shares`
(CPU), `agent` (a node from the inside), `handles` (the harness' end of it), `probe` (what the machine allows), `clean`.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from proving_ground.bench.agent import machine
from proving_ground.bench.agent.launch import environment
from proving_ground.bench.agent.orders import HARNESS_VARIABLE, RUN_VARIABLE, NodeSetup, Order
from proving_ground.bench.clusters.local import gpus, intruder, links, memory, shares, skew, throttle, volume
from proving_ground.bench.clusters.local.breakable import Breakable, ClusterParts
from proving_ground.bench.clusters.local.clean import end_processes
from proving_ground.bench.clusters.local.groups import Groups, Hierarchy, make_groups, owner
from proving_ground.bench.clusters.local.handles import Agents, interrupts_later
from proving_ground.bench.clusters.local.partition import Drops
from proving_ground.bench.clusters.local.probe import probe
from proving_ground.bench.protocols import Ability, ClusterError, ClusterRequest, Emit, Node, ProcessExit, ProcessSpec
from proving_ground.bench.spec import Trial
from proving_ground.training.events import EVENTS_VARIABLE

ISOLATION = ("namespaces", "links", "cpu_shares", "disks")
BREAKING = (
    "signals", "checkpoints", "partitions", "loss", "delay", "volume", "throttle", "memory", "skew", "gpu_memory",
)  # fmt: skip
NEED_LINKS = ("namespaces", "disks", "partitions", "loss", "delay")
IMITATED = {
    "namespaces": "nodes: network and process namespaces on one machine",
    "links": "links: virtual cables with a token bucket at both ends",
    "cpu_shares": "cores: a quota of this machine's cores for each node",
    "disks": "disks: a tmpfs of limited size for each node",
}
PLAIN = "nodes: plain processes that share this machine's cores: this shows contention, not scaling"
LOOSE = "nodes: plain processes on the loopback interface, each within its share of the cores"
LOOPBACK = "127.0.0.1"
PRELOAD = "proving_ground.training.warm"  # importing it imports what the trainer needs


class LocalCluster(Breakable):
    """A `Cluster` that can be broken. `abilities` replaces what the probe finds: `()` makes it plain."""

    name = option = "local"
    capacity: int | None = links.MAX_NODES
    has_volume = True
    away: Collection[str] = ()

    def __init__(self, abilities: Sequence[Ability] | None = None, preload: str | None = PRELOAD) -> None:
        super().__init__()
        self._given = abilities
        self._preload = preload
        self._stack = ExitStack()
        self._gpus: gpus.Watcher | None = None

    def abilities(self) -> Sequence[Ability]:
        """`ISOLATION` and what can be broken, `BREAKING`: tried, in a process that leaves nothing behind."""
        found = {ability.name: ability for ability in (probe() if self._given is None else self._given)}
        found["checkpoints"] = Ability("checkpoints", yes=True, how="files of the volume, which this machine has")
        network = found.get("links", Ability("links", yes=False, how="off"))
        if not network.yes:  # a node with a network of its own and no cable would be of no use
            without = f"plain processes, since links cannot be had: {network.how}"
            found |= {name: Ability(name, yes=False, how=without) for name in NEED_LINKS} | {"links": network}
        return [found.get(name, Ability(name, yes=False, how="off")) for name in ISOLATION + BREAKING]

    def imitated(self) -> Sequence[str]:
        """What stands in for what."""
        have = [ability.name for ability in self.abilities() if ability.yes]
        plain = [] if "namespaces" in have else [LOOSE if "cpu_shares" in have else PLAIN]
        return plain + [IMITATED[name] for name in have if name in IMITATED]

    def can(self, name: str) -> bool:
        """Whether it has the ability."""
        return any(ability.name == name and ability.yes for ability in self.abilities())

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """The nodes and their processes as text: addresses, limits, environments, commands."""
        names = list(dict.fromkeys(process.node for process in processes))
        lines = []
        for name in names:
            lines.append(f"{name}  {self._describe(name, trial)}")
            setup = NodeSetup(name, disk="$DISK", interface=links.INTERFACE if self.can("namespaces") else None)
            for process in (it for it in processes if it.node == name):
                variables = [
                    f"{key}={shlex.quote(value)}" for key, value in environment(setup, _order(process, {})).items()
                ]
                lines += [f"  {process.name}  log {process.log}", *(f"    {it}" for it in variables)]
                lines.append(f"    {shlex.join(process.argv)}")
        return "\n".join(lines) + "\n"

    def _describe(self, name: str, trial: Trial) -> str:
        if not self.can("namespaces"):
            return f"{LOOPBACK}  plain processes"
        link = f"link {trial.link_mbps:g} Mb/s each way" if trial.link_mbps else "link unlimited"
        share = f"{trial.cpus_per_node:g} cores" if trial.cpus_per_node else "cores unlimited"
        return f"{links.address_of(name)}  own namespaces, {link}, {share}"

    def setup(self, request: ClusterRequest, emit: Emit) -> Sequence[Node]:
        """Bring up nodes n1 …; emits `cluster_up` with the seconds that took.

        Raises:
            ClusterError: a node could not be made; says which and why.
        """
        begin = time.monotonic()
        names = [f"n{number}" for number in range(1, request.nodes + 1)]
        try:
            with interrupts_later():
                self._make(names, request)
            if self._parts.network:
                links.wire(self._parts.network)
        except OSError as error:
            raise ClusterError(f"local: {error}") from None
        agents = self._started()
        agents.wait_until_up()
        emit("cluster_up", seconds=round(time.monotonic() - begin, 3), nodes=names)
        at = links.address_of if self._parts.network else lambda _: LOOPBACK
        host, given = os.uname().nodename, self._parts.allotment
        if given.withheld:
            emit("warning", message=given.withheld)
        return [Node(name, at(name), host=host, gpus=given.count(name), shared_gpus=given.shared) for name in names]

    def _make(self, names: Sequence[str], request: ClusterRequest) -> None:
        """What has to be undone; each part is on the stack as soon as it exists."""
        self._stack.callback(end_processes, request.run_id)
        self._parts.allotment = gpus.Allotment.of(names, request.coordinating)
        self._gpus = gpus.Watcher()
        self._stack.callback(self._gpus.close)
        make = partial(self._make_groups, request.run_id, names)
        self._parts.shares = make("cpu_shares", shares.CONTROLLER, shares.place)
        self._parts.memory = make("memory", memory.CONTROLLER, memory.place)
        self._parts.throttle = make("throttle", throttle.CONTROLLER, throttle.place)
        if self.can("namespaces"):
            self._parts.network = links.open_network(names)
            self._stack.callback(links.close_network, self._parts.network)
            self._parts.drops = Drops(self._parts.network)
        if request.volume_mb is not None:
            self._make_volume(request.scratch.resolve(), request.volume_mb)
        if request.clocks and self.can("skew"):
            self._parts.library = skew.build(request.scratch.resolve())
            self._parts.clocks = {name: skew.make_clock(request.scratch.resolve() / f"clock-{name}") for name in names}
        setups = [self._node(name, request, _files(names, request.scratch)) for name in names]
        marks = {RUN_VARIABLE: request.run_id, HARNESS_VARIABLE: owner()}
        log = request.scratch / "agents.log"
        library = str(self._parts.library) if self._parts.library else None
        self._parts.agents = Agents(setups, marks, log, self._preload, self._parts.mount, library)
        self._stack.callback(self._parts.agents.close)
        self._stack.callback(self._end_intruders)

    def _make_groups(
        self, run_id: str, names: Sequence[str], ability: str, controller: str, place: Callable[[], Hierarchy]
    ) -> Groups | None:
        if not self.can(ability):
            return None
        groups = make_groups(place(), controller, run_id, names)
        self._stack.callback(groups.remove)
        return groups

    def _end_intruders(self) -> None:
        while self._parts.intruders:
            intruder.end(self._parts.intruders.popitem()[1])

    def _make_volume(self, scratch: Path, size_mb: int) -> None:
        """A disk that the fork server mounts, or else a folder."""
        self._parts.volume = scratch / "volume"
        self._parts.volume.mkdir(parents=True, exist_ok=True)
        if self.can("volume"):
            with suppress(OSError):  # the ability says so: then it is memory
                self._parts.disk = volume.make_disk(scratch, size_mb)
                self._stack.callback(self._parts.disk.handle.close)
            self._parts.mount = volume.mount_of(self._parts.disk, size_mb, self._parts.volume)

    def _node(self, name: str, request: ClusterRequest, files: tuple[str, str]) -> NodeSetup:
        own_disk = self.can("disks")
        disk = request.scratch.resolve() / ("disk" if own_disk else f"disk-{name}")
        disk.mkdir(parents=True, exist_ok=True)
        return NodeSetup(
            name=name,
            disk=str(disk),
            disk_mb=request.disk_mb if own_disk else None,
            network=self._parts.network.nodes[name] if self._parts.network else None,
            interface=links.INTERFACE if self._parts.network else None,
            hosts=files[0],
            empty=files[1],
            groups=tuple(dict.fromkeys(str(it.members_file(name)) for it in self._groups())),
            volume=str(self._parts.volume) if self._parts.volume else None,
            clock=str(self._parts.clocks[name]) if name in self._parts.clocks else None,
            isolated=self.can("namespaces"),
        )

    def _groups(self) -> list[Groups]:
        return [it for it in (self._parts.shares, self._parts.memory, self._parts.throttle) if it is not None]

    def shape(self, link_mbps: float | None, cpus_per_node: float | None) -> None:
        """Set links and shares of all nodes, at once and also under running processes.

        Raises:
            ClusterError: a limit is asked for that this machine cannot set.
        """
        for value, name in ((link_mbps, "links"), (cpus_per_node, "cpu_shares")):
            if value is not None and not self.can(name):
                how = next(ability.how for ability in self.abilities() if ability.name == name)
                raise ClusterError(f"local: cannot limit {name} here: {how}")
        self._parts.link_mbps, self._parts.cpus_per_node = link_mbps, cpus_per_node
        try:
            if self._parts.network:
                links.set_rate(self._parts.network, link_mbps)
            if self._parts.shares:
                shares.set_shares(self._parts.shares, cpus_per_node)
        except OSError as error:
            raise ClusterError(f"local: link {link_mbps} Mb/s, {cpus_per_node} cores: {error}") from None

    def start(self, process: ProcessSpec) -> int:
        """Start a process on its node; its pid on this machine (in a namespace it sees itself under another).

        Raises:
            ClusterError: the node's agent is gone, or could not.
        """
        handle = self._handle(process.node)
        pid = int(handle.call("start", _order(process, self._parts.allotment.variables(process))))
        handle.started(process.slot, pid)
        return pid

    def publish(self, path: Path) -> None:
        """Nodes here have the same folder."""

    def exits(self) -> Sequence[ProcessExit]:
        """The processes that ended since the last call, in the order of their ends; those of a lost node included."""
        agents = self._started()
        ended = [it for handle in agents.handles.values() for it in handle.exits()]
        return sorted(ended, key=lambda it: it.t or 0.0)

    def kill(self, node: str, slot: int | None, signal: int) -> Sequence[int]:
        """Signal one process, or all of a node (SIGKILL: everything on it, at one stroke); the pids that got it."""
        handle = self._handle(node)
        pids = handle.call("signal_all", signal) if slot is None else handle.call("signal", slot, signal)
        return [int(pid) for pid in pids]

    def stop(self, grace_s: float) -> None:
        """End all processes of all nodes, children of theirs included; nodes stay."""
        alive = [handle for handle in self._parts.agents.handles.values() if handle.alive] if self._parts.agents else []
        with interrupts_later():
            for handle in alive:
                handle.ask("stop", grace_s)
            for handle in alive:
                if handle.alive:
                    handle.settle(grace_s)

    def sample(self) -> Mapping[str, Any]:
        """Counters of the machine and its GPUs, the volume's space, and by node the seconds held back by its share."""
        throttled = {"throttled_s": shares.throttled_s(self._parts.shares)} if self._parts.shares else {}
        return machine.counters() | throttled | self._space() | (self._gpus.sample() if self._gpus else {})

    def _space(self) -> dict[str, Any]:
        """Size and free space of the volume, in bytes, while it is mounted."""
        try:
            found = os.statvfs(self.volume) if self._parts.mount else None
        except (OSError, ClusterError):
            return {}
        if found is None:
            return {}
        return {"volume": {"size": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}}

    def now(self) -> float:
        """Seconds of the machine's monotonic clock, which all nodes share."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def teardown(self) -> None:
        """End all processes and remove all that was made; safe at any time and twice."""
        with interrupts_later():
            self._stack.close()
            self._parts = ClusterParts()


def _order(process: ProcessSpec, more: Mapping[str, str]) -> Order:
    """What the agent is asked for one process; `more` variables, unless it sets them itself."""
    return Order(
        slot=process.slot,
        argv=tuple(process.argv),
        env={**({EVENTS_VARIABLE: str(process.events.resolve())} if process.events else {}), **more, **process.env},
        log=str(process.log.resolve()) if process.log else None,
    )


def _files(names: Sequence[str], scratch: Path) -> tuple[str, str]:
    """The nodes' /etc/hosts, and an empty file: a look-up that could only time out fails at once."""
    scratch.mkdir(parents=True, exist_ok=True)
    hosts, empty = scratch.resolve() / "hosts", scratch.resolve() / "empty"
    addresses = {"localhost": LOOPBACK} | {name: links.address_of(name) for name in names}
    # The second form is how a socket that serves both families sees a peer; torch looks those up.
    hosts.write_text("".join(f"{at} {name}\n::ffff:{at} {name}-mapped\n" for name, at in addresses.items()))
    empty.write_text("")
    return str(hosts), str(empty)
