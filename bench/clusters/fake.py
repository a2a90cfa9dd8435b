"""A cluster in memory with a virtual clock: the whole pipeline in unit tests, in milliseconds.

Nothing runs: a simple cost model says how long a step would take and the events are written as a trainer would write
them. Its figures mean nothing beyond that, and its label says so.
"""

from __future__ import annotations

import math
import random
import shlex
import signal as signals
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proving_ground.bench.capabilities import NodeProcess
from proving_ground.bench.protocols import Ability, ClusterError, ClusterRequest, Emit, Node, ProcessExit, ProcessSpec
from proving_ground.bench.spec import Trial
from proving_ground.training.events import EventWriter

SAMPLE_S = 0.001  # compute time of one sample
GRADIENT_BITS = 8e6  # 1 MB of gradients
HIDDEN = 0.5  # share of the backward pass under which communication hides
NOISE = 0.002  # standard deviation of a step, as a share of it
MEBI = 1e6  # bits of a megabit
RESTART_S = 1.5  # from a death, or a newcomer, until the ranks have met again
READY_S = 0.001  # from a start to the word that it is ready
CHECKPOINT = 10  # steps: so often all of them are saved


@dataclass
class FakeRank:
    """A rank of the simulated job: a trainer as the harness started it, or one of those that a launcher starts."""

    spec: ProcessSpec  # of what the harness started, with its pid
    pid: int
    events: EventWriter
    first: bool = True  # of its launcher's ranks
    trainer: int = 0  # pid of its trainer, its own where there is no launcher; 0: none is running
    alive: bool = True
    stopped: bool = False

    @property
    def launches(self) -> bool:
        """Whether it is a launcher: nobody told it its rank."""
        return "RANK" not in self.spec.env


@dataclass
class FakeJob:
    """All ranks of one training; they step together, as under an all-reduce, and start again from a checkpoint."""

    ranks: dict[str, FakeRank] = field(default_factory=dict)  # by process; the latest incarnation of each
    step: int = 0
    step_begin_t: float = 0.0
    generation: int = 0
    meet_t: float | None = None  # when its ranks meet and begin; None: they have

    @property
    def first(self) -> ProcessSpec:
        """What its first process was told: the same as all others, but for the rank."""
        return next(iter(self.ranks.values())).spec

    @property
    def env(self) -> Mapping[str, str]:
        """Its environment."""
        return self.first.env

    @property
    def size(self) -> tuple[int, int]:
        """The ranks that it needs at least, and has at most."""
        if "WORLD_SIZE" in self.env:
            return int(self.env["WORLD_SIZE"]), int(self.env["WORLD_SIZE"])
        words, each = self.first.argv, len(self.first.event_files)
        least, _, most = next(
            words[at + 1] for at, word in enumerate(words) if word in ("--nodes", "--nnodes")
        ).partition(":")
        return int(least) * each, int(most or least) * each

    @property
    def there(self) -> list[FakeRank]:
        """The processes that are there, in the order of nodes."""
        return [it for _, it in sorted(self.ranks.items()) if it.alive]

    @property
    def members(self) -> list[FakeRank]:
        """The ranks that train."""
        return [it for it in self.there if it.trainer]

    @property
    def runs(self) -> bool:
        """Whether it makes steps: its ranks have met, all of them are there, and none stands still."""
        return self.meet_t is None and len(self.members) >= self.size[0] and not any(it.stopped for it in self.members)

    @property
    def compute_s(self) -> float:
        """Seconds of a step without communication."""
        return SAMPLE_S * int(self.env["PROVING_GROUND_BATCH"])


class FakeCluster:
    """Implements `Cluster`, `CanKill`, `CanSignal` and `CanPartition`; `now` moves only in `sleep`."""

    name = option = "fake"
    capacity: int | None = None
    has_volume = True
    away: Collection[str] = ()

    def __init__(self) -> None:
        self._now = 1000.0
        self._jobs: dict[str, FakeJob] = {}
        self._servers: dict[int, ProcessSpec] = {}  # pid → a coordinator that runs
        self._exits: list[ProcessExit] = []
        self._link_mbps: float | None = None
        self._pids = 0
        self._cut: set[str] = set()
        self._drops: dict[str, int] = {}

    def abilities(self) -> Sequence[Ability]:
        """Everything, since nothing is real."""
        names = ("namespaces", "links", "cpu_shares", "disks", "signals", "partitions")
        return [Ability(name, yes=True, how="simulated") for name in names]

    def imitated(self) -> Sequence[str]:
        """All of it."""
        return ["everything: a simulated cluster with a virtual clock; no figure of it means anything"]

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """The commands that it will not really start."""
        lines = [f"{trial.id}: {trial.case}, {trial.nodes} simulated nodes"]
        return "\n".join(lines + [f"  {spec.name}: {shlex.join(spec.argv)}" for spec in processes])

    def setup(self, request: ClusterRequest, emit: Emit) -> Sequence[Node]:
        """Nodes n1 to nN at addresses that nobody calls, the odd ones in zone a and the others in b."""
        nodes = [
            Node(f"n{number}", f"10.0.0.{number}", zone="ba"[number % 2]) for number in range(1, request.nodes + 1)
        ]
        emit("cluster_up", nodes=[node.name for node in nodes], seconds=0.0)
        return nodes

    def shape(self, link_mbps: float | None, cpus_per_node: float | None) -> None:
        """The cost model knows the link rate; CPU shares make no difference to it."""
        del cpus_per_node
        self._link_mbps = link_mbps

    def start(self, process: ProcessSpec) -> int:
        """Add a process to its job, which begins, or begins again, when all of its ranks are there.

        Raises:
            ClusterError: it is none that can be simulated.
        """
        pid = self._pid()
        if process.serves:
            self._servers[pid] = process
            return pid
        if process.events is None:
            raise ClusterError(f"{process.name}: the fake cluster simulates trainers, which have event files")
        job = self._jobs.setdefault(process.events.name.partition(".")[0], FakeJob())
        for name, file in process.event_files.items():
            job.ranks[name] = rank = FakeRank(process, pid, EventWriter(file), name == process.name)
        if rank.launches:
            self._meet(job, RESTART_S if job.generation else 0.0)
        else:
            rank.trainer = pid
            self._say_start(rank, self._now, int(process.env["RANK"]), int(process.env["WORLD_SIZE"]))
            if len(job.there) == job.size[1]:
                self._begin(job, self._now)
        return pid

    def _pid(self) -> int:
        self._pids += 1
        return 100_000 + self._pids

    def _meet(self, job: FakeJob, after_s: float) -> None:
        """Launchers end the trainers that are left, and meet again."""
        for rank in job.ranks.values():
            rank.trainer, rank.stopped = 0, False
        job.meet_t = self._now + after_s

    def _begin(self, job: FakeJob, t: float) -> None:
        """The ranks have met: on from the last checkpoint."""
        job.generation, job.meet_t, job.step_begin_t = job.generation + 1, None, t
        job.step -= job.step % CHECKPOINT
        world = len(job.there)
        for number, rank in enumerate(job.there):
            if rank.launches:
                rank.trainer = self._pid()
                self._say_start(rank, t, number, world)
            if job.generation > 1:
                self._write(rank, t + READY_S / 2, "resume", step=job.step, path="simulated")
            self._write(rank, t + READY_S, "ready", generation=job.generation, rank=number, world_size=world)

    def _say_start(self, rank: FakeRank, t: float, number: int, world: int) -> None:
        self._write(rank, t, "start", rank=number, world_size=world, pid=rank.trainer, wall_s=t)

    @staticmethod
    def _write(to: FakeRank, t: float, event: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        to.events.emit(event, **fields | {"t": t})

    def _advance(self, job: FakeJob, until: float) -> None:
        if job.meet_t is not None and job.meet_t <= until and job.size[0] <= len(job.there):
            self._begin(job, job.meet_t)
        while job.runs and (end := job.step_begin_t + self._step_s(job)) <= until:
            self._step(job, end)

    def _step_s(self, job: FakeJob) -> float:
        """Seconds of the coming step; the same however often it is asked for."""
        noise = random.Random(f"{job.step} {job.step_begin_t}").gauss(1, NOISE)  # noqa: S311 - noise
        return (job.compute_s + self._comm_s(job)) * noise

    def _comm_s(self, job: FakeJob) -> float:
        """Exposed part of a ring all-reduce, 2(n-1)/n · S/B."""
        if self._link_mbps is None:
            return 0.0
        world = len(job.members)
        ring_s = 2 * (world - 1) / world * GRADIENT_BITS / (self._link_mbps * MEBI)
        return max(0.0, ring_s - HIDDEN * job.compute_s)

    def _step(self, job: FakeJob, end: float) -> None:
        job.step += 1
        samples = int(job.env["PROVING_GROUND_BATCH"])
        for rank in job.members:
            self._write(rank, end, "step", step=job.step, samples=samples, epoch=0, step_s=end - job.step_begin_t,
                        **self._parts(job, end))  # fmt: skip
        job.step_begin_t = end
        if job.step == int(job.env["PROVING_GROUND_STEPS"]):
            for rank in job.members:
                self._write(rank, end, "end", step=job.step, reason="done")
                self._end(rank, 0)

    def _parts(self, job: FakeJob, end: float) -> dict[str, float]:
        begin = job.step_begin_t
        comm = min(self._comm_s(job), end - begin)
        compute = end - begin - comm
        forward, backward = begin + compute / 3, begin + compute
        return {
            "data_s": 0.0, "forward_s": compute / 3, "backward_s": compute * 2 / 3, "comm_s": comm, "optimizer_s": 0.0,
            "checkpoint_s": 0.0, "begin_t": begin, "data_t": begin, "forward_t": forward, "backward_t": backward,
            "comm_t": end, "optimizer_t": end,
        }  # fmt: skip

    def _end(self, rank: FakeRank, code: int) -> None:
        if rank.alive:
            rank.alive, rank.trainer = False, 0
            rank.events.close()
            if rank.first:
                self._exits.append(ProcessExit(rank.spec.node, rank.spec.slot, rank.pid, code))

    def publish(self, path: Path) -> None:
        """Nobody reads it."""

    def exits(self) -> Sequence[ProcessExit]:
        """Processes that ended, in the order in which they did."""
        ended, self._exits = self._exits, []
        return ended

    def kill(self, node: str, slot: int | None, signal: int) -> Sequence[int]:
        """End the processes of a node, or one of them."""
        hit = [pid for job in self._jobs.values() for pid in self._kill_ranks(job, node, slot, signal)]
        served = [pid for pid, it in self._servers.items() if it.node == node and slot in (None, it.slot)]
        for pid in served:
            it = self._servers.pop(pid)
            self._exits.append(ProcessExit(it.node, it.slot, pid, -signal))
        return [*hit, *served]

    def _kill_ranks(self, job: FakeJob, node: str, slot: int | None, signal: int) -> list[int]:
        hit = [it for it in job.there if it.spec.node == node and slot in (None, it.spec.slot)]
        for rank in hit:
            self._end(rank, -signal)
        if hit and hit[0].launches:
            self._meet(job, RESTART_S)
        return [rank.pid for rank in hit if rank.first]

    def processes(self, node: str) -> Sequence[NodeProcess]:
        """What has not ended on a node: launchers, trainers, a coordinator."""
        found = [NodeProcess(pid, pid, pid, "S", "coordinator") for pid, it in self._servers.items() if it.node == node]
        for rank in self._ranks():
            if rank.alive and rank.spec.node == node:
                if rank.launches and rank.first:
                    found.append(NodeProcess(rank.pid, rank.pid, rank.pid, "S", "launcher"))
                state = "T" if rank.stopped else "S"
                found += [NodeProcess(it, it, it, state, "trainer") for it in (rank.trainer,) if it]
        return found

    def signal(self, node: str, pid: int, signal: int) -> int:
        """Stop, continue or end one process."""
        for job in self._jobs.values():
            for rank in job.there:
                if rank.spec.node == node and pid in (rank.pid, rank.trainer):
                    self._signal(job, rank, pid, signal)
                    return pid
        if (served := self._servers.get(pid)) and served.node == node:
            self.kill(node, served.slot, signal)
            return pid
        raise ClusterError(f"{node}: no process {pid}")

    def _signal(self, job: FakeJob, rank: FakeRank, pid: int, signal: int) -> None:
        if signal in (signals.SIGSTOP, signals.SIGCONT):
            rank.stopped = signal == signals.SIGSTOP
        elif rank.launches and pid == rank.trainer:
            self._meet(job, RESTART_S)
        else:
            self._kill_ranks(job, rank.spec.node, rank.spec.slot, signal)

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Jobs stand still while any of their packets are dropped."""
        self._cut |= {f"{one}>{other}" for one, other in pairs}
        self._drops |= {name: self._drops.get(name, 0) for name in self._cut}

    def mend(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Let these pairs through again, or everything."""
        self._cut -= self._cut if pairs is None else {f"{one}>{other}" for one, other in pairs}

    def drops(self) -> Mapping[str, int]:
        """One packet a second and cut pair."""
        return dict(self._drops)

    def stop(self, grace_s: float) -> None:
        """End every rank."""
        del grace_s
        for rank in self._ranks():
            self._end(rank, -15)
        self._jobs, self._servers = {}, {}

    def _ranks(self) -> list[FakeRank]:
        return [rank for job in self._jobs.values() for rank in job.ranks.values()]

    def sample(self) -> Mapping[str, Any]:
        """A quiet machine."""
        return {"steal_s": 0.0, "cpu_s": 0.0, "load1": 0.0}

    def now(self) -> float:
        """The virtual clock."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let the job run for so long."""
        if not self._cut:
            for job in self._jobs.values():
                self._advance(job, self._now + seconds)
        for name in self._cut:
            self._drops[name] += math.ceil(seconds)
        self._now += seconds

    def teardown(self) -> None:
        """Nothing is left behind by nothing."""
        self.stop(0)
