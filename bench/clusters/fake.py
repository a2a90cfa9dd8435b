"""A cluster in memory with a virtual clock: the whole pipeline in unit tests, in milliseconds.

Nothing runs: a simple cost model says how long a step would take and the events are written as a trainer would write
them. Its figures mean nothing beyond that, and its label says so.
"""

from __future__ import annotations

import math
import random
import shlex
import signal as signals
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.capabilities import NodeProcess
from bench.protocols import Ability, ClusterError, ClusterRequest, Emit, Node, ProcessExit, ProcessSpec
from bench.spec import Trial
from training.events import EventWriter

SAMPLE_S = 0.001  # compute time of one sample
GRADIENT_BITS = 8e6  # 1 MB of gradients
HIDDEN = 0.5  # share of the backward pass under which communication hides
NOISE = 0.002  # standard deviation of a step, as a share of it
MEBI = 1e6  # bits of a megabit


@dataclass
class FakeRank:
    """One process of the simulated job."""

    spec: ProcessSpec
    pid: int
    events: EventWriter
    alive: bool = True
    stopped: bool = False
    code: int = 0


@dataclass
class FakeJob:
    """All ranks of one training; they step together, as under an all-reduce."""

    ranks: list[FakeRank] = field(default_factory=list)
    step: int = 0
    step_begin_t: float = 0.0

    @property
    def env(self) -> Mapping[str, str]:
        """What its ranks were told; the same for all but for RANK."""
        return self.ranks[0].spec.env

    @property
    def world(self) -> int:
        """Ranks that it waits for."""
        return int(self.env["WORLD_SIZE"])

    @property
    def runs(self) -> bool:
        """Whether all of its ranks are there."""
        return len(self.ranks) == self.world and all(rank.alive and not rank.stopped for rank in self.ranks)

    @property
    def compute_s(self) -> float:
        """Seconds of a step without communication."""
        return SAMPLE_S * int(self.env["PROVING_GROUND_BATCH"])


class FakeCluster:
    """Implements `Cluster`, `CanKill`, `CanSignal` and `CanPartition`; `now` moves only in `sleep`."""

    name = "fake"

    def __init__(self) -> None:
        self._now = 1000.0
        self._jobs: dict[str, FakeJob] = {}
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
        """Nodes n1 to nN at addresses that nobody calls."""
        nodes = [Node(f"n{number}", f"10.0.0.{number}") for number in range(1, request.nodes + 1)]
        emit("cluster_up", nodes=[node.name for node in nodes], seconds=0.0)
        return nodes

    def shape(self, link_mbps: float | None, cpus_per_node: float | None) -> None:
        """The cost model knows the link rate; CPU shares make no difference to it."""
        del cpus_per_node
        self._link_mbps = link_mbps

    def start(self, process: ProcessSpec) -> int:
        """Add a rank; the job begins when all of its ranks are there."""
        if process.events is None:
            raise ValueError("the fake cluster simulates trainers: it needs an event file")
        self._pids += 1
        rank = FakeRank(process, 100_000 + self._pids, EventWriter(process.events))
        self._write(rank, self._now, "start", rank=int(process.env["RANK"]), world_size=int(process.env["WORLD_SIZE"]),
                    pid=rank.pid, wall_s=self._now)  # fmt: skip
        job = self._jobs.setdefault(process.events.name.partition(".")[0], FakeJob())
        job.ranks.append(rank)
        job.step_begin_t = self._now
        return rank.pid

    @staticmethod
    def _write(to: FakeRank, t: float, event: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        to.events.emit(event, **fields | {"t": t})

    def _advance(self, job: FakeJob, until: float) -> None:
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
        ring_s = 2 * (job.world - 1) / job.world * GRADIENT_BITS / (self._link_mbps * MEBI)
        return max(0.0, ring_s - HIDDEN * job.compute_s)

    def _step(self, job: FakeJob, end: float) -> None:
        job.step += 1
        samples = int(job.env["PROVING_GROUND_BATCH"])
        for rank in job.ranks:
            self._write(rank, end, "step", step=job.step, samples=samples, epoch=0, step_s=end - job.step_begin_t,
                        **self._parts(job, end))  # fmt: skip
        job.step_begin_t = end
        if job.step == int(job.env["PROVING_GROUND_STEPS"]):
            for rank in job.ranks:
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
            rank.alive, rank.code = False, code
            rank.events.close()
            self._exits.append(ProcessExit(rank.spec.node, rank.spec.slot, rank.pid, code))

    def exits(self) -> Sequence[ProcessExit]:
        """Ranks that ended, in the order in which they did."""
        ended, self._exits = self._exits, []
        return ended

    def kill(self, node: str, slot: int | None, signal: int) -> Sequence[int]:
        """End the ranks of a node, or one of them."""
        hit = [it for it in self._ranks() if it.alive and it.spec.node == node and slot in (None, it.spec.slot)]
        for rank in hit:
            self._end(rank, -signal)
        return [rank.pid for rank in hit]

    def processes(self, node: str) -> Sequence[NodeProcess]:
        """The ranks of a node that have not ended."""
        alive = [it for it in self._ranks() if it.alive and it.spec.node == node]
        return [NodeProcess(it.pid, it.pid, it.pid, "T" if it.stopped else "S", "rank") for it in alive]

    def signal(self, node: str, pid: int, signal: int) -> int:
        """Stop, continue or end one rank."""
        for rank in self._ranks():
            if (rank.spec.node, rank.pid, rank.alive) == (node, pid, True):
                if signal in (signals.SIGSTOP, signals.SIGCONT):
                    rank.stopped = signal == signals.SIGSTOP
                else:
                    self._end(rank, -signal)
                return pid
        raise ClusterError(f"{node}: no process {pid}")

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
        self._jobs = {}

    def _ranks(self) -> list[FakeRank]:
        return [rank for job in self._jobs.values() for rank in job.ranks]

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
