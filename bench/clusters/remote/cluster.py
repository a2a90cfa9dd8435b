"""The cluster of machines elsewhere: an agent on each, reached by a byte stream. Made by `bench.clusters.choose`.

    harness ──ssh, srun …──▶ bridge ──socket──▶ agent ──fork──▶ n1.0 ─▶ its own children

The agent outlives the connection. Which machines, and which program leads there, is the business of a pool (`ssh`,
`slurm`, `kubernetes`, `ray`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from proving_ground.bench.agent.launch import environment
from proving_ground.bench.agent.orders import NodeSetup, Order
from proving_ground.bench.agent.processes import NodeProcess
from proving_ground.bench.capabilities import (
    CanAdminister,
    CanCutPower,
    CanLoseControl,
    CanTakeAway,
    CanWithhold,
    KnowsMachines,
    KnowsTimeouts,
)
from proving_ground.bench.clusters.local.handles import interrupts_later
from proving_ground.bench.clusters.remote import carried
from proving_ground.bench.clusters.remote.absent import Absent
from proving_ground.bench.clusters.remote.link import Link
from proving_ground.bench.clusters.remote.node import AGAIN_S, FIRST_READINGS, RemoteNode
from proving_ground.bench.clusters.remote.pool import (
    KeepsAccounts,
    Member,
    Moves,
    Pool,
    SaysWhy,
    StandsInQueue,
    TakesBack,
)
from proving_ground.bench.protocols import Ability, ClusterError, ClusterRequest, Emit, Node, ProcessExit, ProcessSpec
from proving_ground.bench.spec import SpecError, Trial
from proving_ground.training.events import EVENTS_VARIABLE

UP_S = 120.0  # importing torch from a cold disk, and then some
ANSWER_S = 30.0
TELL_CLOCK_S = 30.0
REACH_S = 5.0  # at the end, for a connection that is just down
PLACE_S = 1.0  # from a question where a node is, that had no answer, to the next one
TAKEN_S = 60.0  # from the end of what ran on a node to the engine's word what has become of the node
INPUTS = "{in}"
TURN_S = 0.05  # at most between two looks at what is due


class AgentCluster:
    """Implements `Cluster`, `CanKill` and `CanSignal` over the agents of a pool's machines."""

    def __init__(self, pool: Pool, option: str = "") -> None:
        self.pool, self.option = pool, option or pool.name
        self.name = pool.name
        self._nodes: dict[str, RemoteNode] = {}
        self._request: ClusterRequest | None = None
        self._run = Path()
        self._emit: Emit = lambda _event, **_fields: None
        self._told_clock_t = 0.0
        self._struck: dict[str, float] = {}  # node → when a signal was sent there last
        self._where: dict[str, str] = {}  # node → its machine, as the engine said last
        self._present: dict[str, Node] = {}
        self._placed: dict[str, str] = {}  # node → the incarnation of which `_present` tells
        self._place_t = 0.0  # when the engine is asked next where nodes are
        self._absent = Absent(pool, self._nodes_wait) if isinstance(pool, SaysWhy) else None
        self._takes_back = pool if isinstance(pool, TakesBack) else None
        self._over = ""  # why all nodes have ended, for good

    @property
    def capacity(self) -> int | None:
        """Nodes at most."""
        return self.pool.capacity

    @property
    def has_volume(self) -> bool:
        """Whether the options name one."""
        return bool(self.pool.volume)

    def abilities(self) -> Sequence[Ability]:
        """Signals always; what else the pool allows. The machines are as they are."""
        signals = Ability("signals", yes=True, how="by the agent on each node")
        shared = "by the agents, on the shared volume" if self.pool.volume else "no volume= that the machines share"
        checkpoints = Ability("checkpoints", yes=bool(self.pool.volume), how=shared)
        own = "the machines' own; nothing is changed there"
        lacks = [Ability(name, yes=False, how=own) for name in ("namespaces", "links", "cpu_shares", "disks")]
        return [signals, checkpoints, *lacks, *self.pool.abilities()]

    def imitated(self) -> Sequence[str]:
        """What the pool says of its machines."""
        return self.pool.imitated()

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """How the machines are had, and the processes on each: environments and commands."""
        lines = [self.pool.plan(processes, trial).rstrip()]
        for process in processes:
            setup = NodeSetup(process.node, disk="$DISK", volume=self.pool.volume or None)
            order = Order(process.slot, process.argv, dict(process.env))
            lines += [f"  {process.name}", *(f"    {key}={value}" for key, value in environment(setup, order).items())]
            lines.append("    " + " ".join(process.argv))
        return "\n".join(lines) + "\n"

    # --- up

    def setup(self, request: ClusterRequest, emit: Emit) -> Sequence[Node]:
        """Have machines, bring an agent up on each, and carry the trainer's code there.

        Raises:
            ClusterError: one cannot be reached, or lacks what is needed; says which and why.
        """
        begin = time.monotonic()
        self._request, self._emit, self._run = request, emit, request.scratch.resolve().parent
        greeting = partial(
            carried.greeting,
            run_id=request.run_id,
            lease_s=self.pool.lease_s,
            volume=self._volume(request),
            harness=secrets.token_hex(8),
        )
        members = self.pool.allocate(request, greeting, self._waits_for)
        for member in members:
            link = Link(member.argv, partial(greeting, member))
            self._nodes[member.name] = RemoteNode(member.name, link, self._run, emit, closed=self.pool.closed)
        self._await_all(lambda it: len(it.clock.readings) >= FIRST_READINGS, UP_S, "no answer")
        self._refuse_one_machine()
        self._await_all(lambda it: it.ready, UP_S, "not ready")  # agents answer nothing while they import
        self._await_names([it.address for it in members])
        for member in members:
            self._describe(member)
        self._tell_clocks()
        emit("cluster_up", seconds=round(time.monotonic() - begin, 3), nodes=list(self._nodes), **self._queued())
        self._tell_timeouts()
        return self.present()

    def present(self) -> Sequence[Node]:
        """The nodes as they are now, in the order of their names at the beginning."""
        return list(self._present.values())

    def _volume(self, request: ClusterRequest) -> str:
        """The sitting's own folder on the volume: it stays, and no other run, nor this one resumed, is to find it."""
        if not self.pool.volume or request.volume_mb is None:
            return ""
        return f"{self.pool.volume}/{request.run_id}" + (f".{request.sitting}" if request.sitting > 1 else "")

    def _waits_for(self, words: str) -> None:
        """What the engine makes a run wait for: told at once, and kept."""
        print(f"{self.name}: {words}", file=sys.stderr)
        self._emit("queued", why=words, wait_s=self.pool.wait_s)

    def _nodes_wait(self, nodes: Sequence[str], why: str) -> None:
        """What the engine lets nodes wait for that have been lost: told and kept alike."""
        print(f"{self.name}: {', '.join(nodes)} wait{'s' * (len(nodes) == 1)}: {why}", file=sys.stderr)
        for node in nodes:
            self._emit("queued", node=node, why=why)

    def _queued(self) -> dict[str, float]:
        """How long the run stood in the engine's queue, where it has one: no time of any trial."""
        queued_s = self.pool.queued_s if isinstance(self.pool, StandsInQueue) else None
        return {} if queued_s is None else {"queued_s": round(queued_s, 3)}

    def _refuse_one_machine(self) -> None:
        """Numbers of nodes that share a machine are not those of real nodes, and their label has to say so.

        Raises:
            ClusterError: they share one, and nobody said so.
        """
        kernels = [node.about["boot_id"] for node in self._nodes.values()]
        if not self.imitated() and len(set(kernels)) < len(kernels):
            raise ClusterError(
                f"{self.name}: several nodes are one machine (its boot id is the same): say emulated=true"
            )

    def _await_names(self, addresses: Sequence[str]) -> None:
        """An engine's DNS learns the names of new machines late, and a process that asks too early has it remembered.

        Raises:
            ClusterError: a node does not know another by its name.
        """
        names = [it for it in addresses if not it.replace(".", "").isdigit()]
        deadline = time.monotonic() + UP_S
        for node in self._nodes.values() if names else ():
            while missing := self._call(node, "unresolved", names=names):
                if time.monotonic() > deadline:
                    raise ClusterError(f"{node.name}: no address for {missing[0]} within {UP_S:g} s: is there DNS?")
                self.sleep(TURN_S)

    def _describe(self, member: Member) -> None:
        """Note what a node is; the port where ranks meet stays with its address."""
        node, before = self._nodes[member.name], self._present.get(member.name)
        stays = before is not None and before.address == member.address
        port = before.port if before and stays else int(self._call(node, "free_port", address=member.address))
        hosts = {"host": member.host, **{key: node.about[key] for key in ("host", "python", "cores", "torch")}}
        self._emit("node", node=member.name, address=member.address, incarnation=node.incarnation, about=hosts)
        slots = node.about["cores"] if member.slots is None else member.slots
        self._present[member.name] = Node(
            member.name, member.address, port, member.host, slots, node.about["gpus"], member.zone, member.labels
        )  # fmt: skip
        self._placed[member.name] = node.incarnation

    def _place(self) -> None:
        """Ask the engine where nodes are that have come back, perhaps elsewhere; where it does not say, again later."""
        for node in self._nodes.values():
            if isinstance(self.pool, Moves) and self._is_unplaced(node) and time.monotonic() > self._place_t:
                self._place_t = time.monotonic() + PLACE_S
                with contextlib.suppress(SpecError, ClusterError):
                    if member := self.pool.member(node.name):
                        self._describe(member)
                        self._place_t = 0.0

    def _is_unplaced(self, node: RemoteNode) -> bool:
        """Whether it has come back, and nobody knows yet where it is now."""
        there = node.attached and node.ready
        return isinstance(self.pool, Moves) and there and self._placed.get(node.name) != node.incarnation

    # --- waiting: all nodes at once

    def pump(self, seconds: float) -> None:
        """Take in what comes from any node for so long; at least what is there now."""
        deadline = time.monotonic() + seconds
        self._turn(0.0)
        while (left := deadline - time.monotonic()) > 0:
            self._turn(left)
        self._place()
        if time.monotonic() - self._told_clock_t > TELL_CLOCK_S:
            self._tell_clocks()

    def _await_back(self, seconds: float) -> None:
        """Until all nodes are there that the engine owes; one for which it waits for nothing, for so long at most.

        Raises:
            ClusterError: one does not come, or does not get ready; says why.
        """
        deadline = time.monotonic() + seconds
        while self.away - self._lost:
            self.sleep(TURN_S)
            self._refuse_absence()
            if self._takes_back and self._away_s:
                deadline = time.monotonic() + seconds
            late = next((it for it in self._nodes.values() if it.why or time.monotonic() > deadline), None)
            if late and (owed := self.away - self._lost):
                raise ClusterError(f"{', '.join(sorted(owed))}: not ready again{f': {late.why}' * bool(late.why)}")

    @property
    def _lost(self) -> frozenset[str]:
        """Nodes that the engine has taken away and gives nothing for."""
        return frozenset(self._takes_back.lost()) if self._takes_back else frozenset()

    @property
    def _away_s(self) -> dict[str, float]:
        """Node that the engine owes → for how many seconds it could have been reached, and was not."""
        now, owed = time.monotonic(), self._takes_back.waits() if self._takes_back else self._nodes
        found = {name: node.away_s(now) for name, node in self._nodes.items() if name in owed and not node.leaving}
        return {name: seconds for name, seconds in found.items() if seconds > 0}

    def _refuse_absence(self) -> None:
        """Give the run up, once, for nodes that do not come back: what comes then is its end.

        Raises:
            ClusterError: all have ended, or one has been away for too long; says why, in the engine's words.
        """
        if self._takes_back and self._over:
            self._takes_back = self._absent = None
            raise ClusterError(f"{self.name}: {self._over}")
        if self._absent and (why := self._absent.overdue(self._away_s)):
            self._absent = None
            raise ClusterError(f"{self.name}: {why}")

    def fate(self, node: str) -> str:
        """Wait for the engine's word on a node that it is taking away, if it is one that says so."""
        if (takes := self._takes_back) is None:
            return ""
        self._turn(0.0)
        self._until(lambda: bool(self._over) or node in takes.waits() or node not in self.away - self._lost, TAKEN_S)
        self._refuse_absence()
        return takes.waits().get(node, "")

    def _lose_all(self, why: str) -> None:
        """All nodes have ended: what they still said is taken in, and nothing is waited for any more."""
        self._over = why
        for node in self._nodes.values():
            node.leaving = True
        self._until(lambda: all(it.link.state == "down" for it in self._nodes.values()), REACH_S)
        for node in self._nodes.values():
            node.lose(why)

    def _turn(self, seconds: float) -> None:
        """Wait until a node says something, so long at most, and take it in; look for those that are not there."""
        with selectors.DefaultSelector() as selector:
            for node in self._nodes.values():
                if node.link.reads is not None:
                    selector.register(node.link.reads, selectors.EVENT_READ, node.hear)
                if node.link.writes is not None:
                    selector.register(node.link.writes, selectors.EVENT_WRITE, node.link.flush)
            for key, _ in selector.select(min(seconds, TURN_S)):
                key.data()
        for node in self._nodes.values():  # only now: who was silent may just not have been listened to
            node.tend()
        if self._takes_back and not self._over and (why := self._takes_back.over()):
            self._lose_all(why)
        if self._absent:
            self._absent.look(self._away_s)

    def _tell_clocks(self) -> None:
        self._told_clock_t = time.monotonic()
        for node in self._nodes.values():
            if node.attached and node.clock.readings:
                self._emit("node_clock", node=node.name, incarnation=node.incarnation, **node.clock.event())

    def _await_all(self, done: Callable[[RemoteNode], bool], seconds: float, otherwise: str) -> None:
        """Until it is so of every node.

        Raises:
            SpecError: the way to one is refused, and the caller can mend that.
            ClusterError: it is not in time; says of which node, and why its link is down.
        """
        nodes = self._nodes.values()
        in_time = self._until(lambda: all(done(it) or it.why for it in nodes), seconds)
        if refused := next((it for it in nodes if it.why), None):
            mistaken = self.pool.mistaken(refused.why)
            raise (SpecError if mistaken else ClusterError)(f"{refused.name}: {refused.why}{self._says(refused.name)}")
        if not in_time:
            late = [it.name for it in nodes if not done(it)]
            raise ClusterError(f"{', '.join(late)}: {otherwise} within {seconds:g} s{self._says(late[0])}")

    def _says(self, node: str) -> str:
        """What the engine has said last of a node that is not there, to end a line with."""
        why = self._absent.why(node) if self._absent else ""
        return f"; {why}" if why else ""

    def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Take in what comes until something is so, for so long at most; whether it is."""
        deadline = time.monotonic() + seconds
        while not (found := done()) and time.monotonic() < deadline:
            self._turn(TURN_S)
        return found

    def _gather(self, asked: Mapping[str, int], seconds: float) -> dict[str, Any]:
        """The answers of several nodes, by node.

        Raises:
            ClusterError: one refused, or did not answer in time.
        """
        if late := self._late(asked, seconds):
            why = self._nodes[late[0]].link.why
            for name, number in asked.items():
                self._nodes[name].withdraw(number)
            raise ClusterError(f"{', '.join(late)}: no answer within {seconds:g} s" + (f": {why}" if why else ""))
        return {name: self._nodes[name].answer(number) for name, number in asked.items()}

    def _late(self, asked: Mapping[str, int], seconds: float) -> list[str]:
        """Wait for the answers of nodes; the names of those that did not come."""

        def late() -> list[str]:
            return [name for name, number in asked.items() if number not in self._nodes[name].answers]

        self._until(lambda: not late(), seconds)
        return late()

    def _call(self, node: RemoteNode, verb: str, blob: bytes = b"", **arguments: object) -> Any:  # noqa: ANN401 - JSON
        """Ask one node and wait for its answer."""
        with interrupts_later():
            return self._gather({node.name: node.ask(verb, blob, **arguments)}, ANSWER_S)[node.name]

    # --- processes

    def start(self, process: ProcessSpec) -> int:
        """Start a process on its node, with the files of the run that it reads; its pid as the node sees it."""
        node = self._node(process.node)
        outputs = {EVENTS_VARIABLE: self._home(process.events)} if process.events else {}
        env = {}
        for name, value in process.env.items():
            if (there := self._output(value)) is not None:
                outputs[name] = there
            else:
                env[name] = self._carried(node, value)
        argv = [self._carried(node, word) for word in process.argv]
        log = self._home(process.log) if process.log else ""
        return int(self._call(node, "start", slot=process.slot, argv=argv, env=env, log=log, outputs=outputs))

    def _home(self, path: Path) -> str:
        """What a file of the run is called on a node and on the way here."""
        return str(path.resolve().relative_to(self._run))

    def _output(self, value: str) -> str | None:
        """The name of a file that is written and sent home, if the value is one."""
        path = Path(value)
        inside = path.is_absolute() and path.is_relative_to(self._run) and not path.is_relative_to(self._scratch)
        return str(path.relative_to(self._run)) if inside else None

    @property
    def _scratch(self) -> Path:
        assert self._request is not None  # noqa: S101 - it is up
        return self._request.scratch.resolve()

    def _carried(self, node: RemoteNode, word: str) -> str:
        """What a word that names an input of the run's is on the node, where that input is put."""
        if not word.startswith((str(self._scratch), str(self._request.scratch if self._request else ""))):
            return word
        path = Path(word).resolve()
        name = str(path.relative_to(self._scratch))
        if path.is_file():
            self._call(node, "put", path.read_bytes(), name=name)
        return f"{INPUTS}/{name}"

    def publish(self, path: Path) -> None:
        """Have every node see a file of the scratch folder as it is now, or that it is not there."""
        name, content = str(path.resolve().relative_to(self._scratch)), path.read_bytes() if path.exists() else None
        asked = {
            name_of: node.ask("put", content or b"", name=name, there=content is not None)
            for name_of, node in self._there.items()
        }
        self._settle({it: number for it, number in asked.items() if self._nodes[it].attached}, ANSWER_S)

    def exits(self) -> Sequence[ProcessExit]:
        """The processes that ended since the last call, in the order of their ends."""
        with interrupts_later():
            self.pump(0.0)
        self._refuse_absence()
        ended = [it for node in self._nodes.values() for it in node.took()]
        return sorted(ended, key=lambda it: it.t or 0.0)

    def kill(self, node: str, slot: int | None, signal: int) -> Sequence[int]:
        """Signal one process, or all of a node (SIGKILL: all that ever came of them, at one stroke)."""
        where = {} if slot is None else {"slot": slot}
        verb = "signal" if where else "signal_all"
        return [int(pid) for pid in self._strike(node, verb, number=signal, **where)]

    def processes(self, node: str) -> Sequence[NodeProcess]:
        """All that its agent has started, children of children included."""
        return [NodeProcess(**it) for it in self._call(self._node(node), "processes")]

    def signal(self, node: str, pid: int, signal: int) -> int:
        """Signal the process that the node sees as `pid`."""
        for process in self.processes(node):
            if process.pid == pid:
                self._strike(node, "signal_pid", process=vars(process), number=signal)
                return process.host_pid
        raise ClusterError(f"{node}: no process {pid}")

    def _strike(self, name: str, verb: str, **arguments: object) -> Any:  # noqa: ANN401 - whatever the verb returns
        """Have a signal sent, and note when it was: the way there takes its time."""
        node = self._node(name)
        answer = self._call(node, verb, b"", **arguments)
        self._struck[name] = node.here(float(answer["t"]))
        return answer["did"]

    def struck_t(self, node: str) -> float:
        """When the last signal there was sent, by the node's own clock."""
        return self._struck[node]

    # --- what the engine itself does to nodes

    def machine(self, node: str) -> Mapping[str, Any]:
        """What the engine has as this node now; `agent`: which life of its agent answers; `noticed_t`: its notice."""
        if not isinstance(self.pool, KnowsMachines):
            raise ClusterError(f"{self.name}: the engine does not say what it has as a node")
        here, found = self._node(node), self.pool.machine(node)
        self._where[node] = str(found["where"])
        agent = here.incarnation if here.attached else ""
        return {**found, "node": node, "agent": agent, "noticed_t": here.noticed_t}

    def remove(self, name: str, way: str) -> None:
        """Have the engine take away what it calls so, in one of the pool's ways."""
        self._takes.remove(name, way)

    def cordon(self, where: str, *, on: bool) -> None:
        """Have the engine put nothing new on a machine of its, or let it again."""
        self._takes.cordon(where, on=on)

    def taint(self, where: str, *, on: bool) -> None:
        """Have the engine send all away that is on a machine of its, or let it again."""
        self._takes.taint(where, on=on)

    def ended(self, name: str) -> Mapping[str, Any]:
        """What the engine says of the end of what it calls so."""
        return self._takes.ended(name)

    def told(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The engine's own events about what it calls so."""
        return self._takes.told(name)

    @property
    def _takes(self) -> CanTakeAway:
        if not isinstance(self.pool, CanTakeAway):
            raise ClusterError(f"{self.name}: nodes are not taken away by the engine")
        return self.pool

    def withhold(self, by: str, *, on: bool) -> None:
        """Have the engine give no other node for one that is lost, or let it again."""
        self._withholds.withhold(by, on=on)

    def refusals(self) -> Sequence[Mapping[str, Any]]:
        """What the engine has said of that."""
        return self._withholds.refusals()

    @property
    def _withholds(self) -> CanWithhold:
        if not isinstance(self.pool, CanWithhold):
            raise ClusterError(f"{self.name}: the engine is not kept from giving nodes")
        return self.pool

    def mark(self, where: str, state: str) -> None:
        """Have the engine take a machine for down, drain it, or resume it."""
        self._administers.mark(where, state)

    def state_of(self, where: str) -> Mapping[str, Any]:
        """What the engine says of a machine, whoever has it."""
        return self._administers.state_of(where)

    def requeue(self, nodes: Sequence[str]) -> None:
        """Have the engine put the jobs of nodes into its queue again."""
        self._administers.requeue(nodes)

    def limit(self, *, on: bool) -> Mapping[str, Any]:
        """Have the time limit of the job of all nodes come near, or set it as it was asked for."""
        return self._administers.limit(on=on)

    def preempt(self, *, on: bool) -> None:
        """Have a job that is preferred take all machines, or end it."""
        self._administers.preempt(on=on)

    def daemon(self, where: str, *, on: bool) -> None:
        """Kill the engine's daemon on a machine, or start it again."""
        self._administers.daemon(where, on=on)

    def answers(self, where: str) -> bool:
        """Whether that daemon answers."""
        return self._administers.answers(where)

    @property
    def _administers(self) -> CanAdminister:
        if not isinstance(self.pool, CanAdminister):
            raise ClusterError(f"{self.name}: it is no batch system that can be told what to do")
        return self.pool

    def crash(self, node: str) -> None:
        """Have the agent end at once, as its container's first process, and with it all that runs there."""
        here = self._node(node)
        incarnation, number = here.incarnation, here.ask("crash")
        if not self._until(lambda: not here.attached or here.incarnation != incarnation, ANSWER_S):
            raise ClusterError(f"{node}: its agent still answers")
        here.withdraw(number)

    def power(self, where: str, *, on: bool) -> None:
        """Switch a machine off, or on again; nothing is waited for that a node there could still say.

        That may take minutes, and agents that hear of nobody for so long would end.
        """
        with ThreadPoolExecutor(1) as beside:
            switched = beside.submit(self._switches.power, where, on=on)
            while not switched.done():
                self.sleep(TURN_S)
        switched.result()
        for node in [] if on else [it for name, it in self._nodes.items() if self._where.get(name) == where]:
            node.link.close("its machine was switched off")

    def pulse(self, where: str) -> Mapping[str, Any]:
        """The last sign of life that the engine has of a machine."""
        return self._switches.pulse(where)

    @property
    def _switches(self) -> CanCutPower:
        if not isinstance(self.pool, CanCutPower):
            raise ClusterError(f"{self.name}: machines are not switched off")
        return self.pool

    def control(self, *, on: bool) -> None:
        """Stop the engine's control plane, or start it again."""
        self._controls.control(on=on)

    def controlled(self) -> bool:
        """Whether it answers."""
        return self._controls.controlled()

    @property
    def _controls(self) -> CanLoseControl:
        if not isinstance(self.pool, CanLoseControl):
            raise ClusterError(f"{self.name}: its control plane is let be")
        return self.pool

    def at_volume(self, deed: str, folder: str, **about: object) -> Any:  # noqa: ANN401 - whatever the deed returns
        """Have it done by a node that can be reached: they all share the volume."""
        node = next((it for it in self._nodes.values() if it.attached and it.ready), None)
        if node is None:
            raise ClusterError(f"{self.name}: no node can be reached")
        return self._call(node, "volume", b"", what=deed, folder=folder, **about)

    @property
    def away(self) -> frozenset[str]:
        """Nodes on which nothing can be started at present: no connection, or an agent that comes up or goes."""
        return frozenset(
            name
            for name, node in self._nodes.items()
            if node.gone or node.departing or not (node.attached and node.ready) or self._is_unplaced(node)
        )

    def stop(self, grace_s: float) -> None:
        """End all processes of all nodes; a node whose connection is just down does so as soon as it is back."""
        with interrupts_later():
            late = self._settle({it: node.ask("stop", grace_s=grace_s) for it, node in self._there.items()}, grace_s)
            for node in self._there.values():
                node.forget()
            self._until(lambda: not any(it.forgetting for it in self._there.values()), ANSWER_S)
            for name, node in self._nodes.items():
                if node.gone:
                    node.tell_gaps()
                elif name in late or node.forgetting:
                    self._emit("warning", message=f"{name}: no word whether all has ended there and has arrived")
            self._tell_events()

    def _tell_timeouts(self) -> None:
        """How long the engine itself waits; a run that is up goes on without."""
        try:
            if isinstance(self.pool, KnowsTimeouts):
                self._emit("engine_timeouts", engine=self.name, seconds=dict(self.pool.timeouts()))
        except (SpecError, ClusterError) as why:
            self._emit("warning", message=f"the engine's time-outs are not to be had: {why}")

    def _tell_events(self) -> None:
        """What the engine itself noted meanwhile; without its word a run is none the worse."""
        try:
            for it in self.pool.events():
                self._emit("engine_event", **it)
        except (SpecError, ClusterError) as why:
            self._emit("warning", message=f"the engine's own events are not to be had: {why}")

    @property
    def _there(self) -> dict[str, RemoteNode]:
        """The nodes that are not given up."""
        return {name: node for name, node in self._nodes.items() if not node.gone}

    def _settle(self, asked: Mapping[str, int], seconds: float) -> list[str]:
        """Wait for the answers of nodes, so much longer than usual, whatever they are; the names of the late ones."""
        late = self._late(asked, seconds + ANSWER_S)
        for name, number in asked.items():
            self._nodes[name].answers.pop(number, None)
        return late

    # --- the rest of `Cluster`

    def shape(self, link_mbps: float | None, cpus_per_node: float | None) -> None:
        """Their links and cores are what they are; nodes that the engine still owes are waited for.

        Raises:
            ClusterError: a limit is asked for, or a node does not come.
        """
        if self._absent and self.away:
            self._await_back(UP_S if self._takes_back else self._absent.wait_s + UP_S)
        if link_mbps is not None or cpus_per_node is not None:
            raise ClusterError(f"{self.name}: links and cores of these machines are not limited")

    def sample(self) -> Mapping[str, Any]:
        """Counters over all nodes, as they were told last: the highest load, the lowest clock rate, and seconds.

        Seconds are a core's mean, times the cores of this machine: by those they are divided where shares are shown.
        """
        for node in self._nodes.values():
            if node.attached:
                node.ask("sample")
        told = [node.counters for node in self._nodes.values() if node.counters]
        cores = sum(it.get("cores") or 0 for it in told)

        def shared(seconds: list[float]) -> float:
            return sum(seconds) * ((os.cpu_count() or 1) / cores if cores else 1.0)

        folds: dict[str, Callable[[list[float]], float]] = {
            "steal_s": shared, "cpu_s": shared, "load1": max, "mhz": min,
        }  # fmt: skip
        return {
            key: fold([it[key] for it in told]) for key, fold in folds.items() if told and all(key in it for it in told)
        }

    def now(self) -> float:
        """Seconds of the harness' monotonic clock; what nodes tell is put into it."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait, and take in what comes."""
        with interrupts_later():
            self.pump(seconds)

    def teardown(self) -> None:
        """End the agents and give the machines back; safe at any time and twice."""
        with interrupts_later():
            self._takes_back = self._absent = None  # what ends from now on, this does
            known = [it for it in self._nodes.values() if it.incarnation and not it.gone]
            self._until(lambda: all(it.attached for it in known), AGAIN_S + REACH_S)
            for node in known:
                node.leave()
            self._until(lambda: not any(it.link.state == "up" for it in known), ANSWER_S)
            for node in self._nodes.values():
                node.link.end()
            self._nodes = {}
            self.pool.release()
            if isinstance(self.pool, KeepsAccounts) and (counted := self.pool.accounts()):
                self._emit("accounting", engine=self.name, **counted)

    def _node(self, name: str) -> RemoteNode:
        if name not in self._nodes:
            raise ClusterError(f"{self.name}: no node {name!r}; there are {', '.join(self._nodes)}")
        return self._nodes[name]
