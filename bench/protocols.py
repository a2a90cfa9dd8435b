"""The architecture on one page: what a run is made of, and what each part must be able to do.

`bench.run` drives these and nothing else. A cluster brings nodes up and starts processes on them; a workload says which
processes; a schedule says when a nemesis does what (a benchmark has neither). Optional capabilities (`Can…`) are asked
for by name: a plan that needs one which the cluster lacks is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from proving_ground.bench.jobview import JobView
from proving_ground.bench.spec import Case, Trial

Emit = Callable[..., None]
"""`emit(event, **fields)` appends one harness event to the history at the cluster's present moment."""


class ClusterError(RuntimeError):
    """The cluster could not do what it was asked: one line with what and why. Exit status 1."""


@dataclass(frozen=True)
class Node:
    """A machine, real or emulated: `name` is n1, n2 …; `address` is where its peers reach it. None: not known."""

    name: str
    address: str
    port: int = 29500  # where the ranks may meet: nobody else has it
    host: str = ""  # as the engine calls the machine
    slots: int | None = None  # ranks that it has room for
    gpus: int | None = None  # that its ranks may use, and no other node's
    zone: str = ""  # failure domain: what may fail together
    labels: Mapping[str, str] = field(default_factory=dict)  # what else the engine says of it
    role: str = "trains"  # or `coordinates` (`bench.nodes`)
    shared_gpus: int = 0  # of a machine that several nodes are on: ranks that exchange by Gloo may use them too

    @property
    def marks(self) -> Mapping[str, str]:
        """What it can be aimed at by: its labels and its zone."""
        return {**self.labels, **({"zone": self.zone} if self.zone else {})}


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start on a node: the command a person would type there, its environment and its files."""

    node: str
    slot: int  # number of the process on its node (the local rank; of a launcher the first of its workers')
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    events: Path | None = None  # where it appends its events
    log: Path | None = None  # where its stdout and stderr go
    serves: bool = False  # there for the others: the trial does not wait for its end
    further: Mapping[str, Path] = field(default_factory=dict)
    """Of a launcher with several workers: the name of each but the first → its event file."""

    @property
    def event_files(self) -> dict[str, Path]:
        """Rank → where its events are, by the names in the history."""
        own = {self.name: self.events} if self.events else {}
        return {**own, **self.further}

    @property
    def name(self) -> str:
        """The process' name in the history, e.g. `n3.0`."""
        return f"{self.node}.{self.slot}"


@dataclass(frozen=True)
class ProcessExit:
    """A process that ended: `code` is the exit status, or minus the signal's number."""

    node: str
    slot: int
    pid: int
    code: int
    t: float | None = None  # when it was seen to be gone, on the cluster's clock
    why: str = ""  # what its node knows of the cause


@dataclass(frozen=True)
class Ability:
    """One thing a cluster can or cannot do here, and how or why not, in words for people."""

    name: str
    yes: bool
    how: str


@dataclass(frozen=True)
class ClusterRequest:
    """What a run needs of a cluster at most, over all its trials."""

    run_id: str
    nodes: int
    disk_mb: int
    scratch: Path  # a folder of the run, on the harness' machine, gone after it
    volume_mb: int | None = None  # size of a volume that all nodes share; None: none is needed
    clocks: bool = False  # whether nodes' wall clocks are to be set wrong
    coordinating: range = range(0)  # of the nodes, by position from 0: no ranks are there
    sitting: int = 1  # one more each time the run is resumed: what an earlier one left is not to be found


class Cluster(Protocol):
    """Brings nodes up, starts processes on them, takes everything down again."""

    name: str

    @property
    def option(self) -> str:
        """What `--cluster` has to say for the same cluster."""

    @property
    def capacity(self) -> int | None:
        """Nodes at most; None: not known before they are asked for."""

    @property
    def has_volume(self) -> bool:
        """Whether it can have a folder that all nodes share."""

    @property
    def away(self) -> Collection[str]:
        """Nodes on which nothing can be started at present."""

    def abilities(self) -> Sequence[Ability]:
        """What it can do here (`namespaces`, `cpu_shares`, `links`, `disks` …); nothing is started."""

    def imitated(self) -> Sequence[str]:
        """What stands in for a real cluster, for the labels; empty when nothing does."""

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """Exactly what it would start for one trial, as text; nothing is started."""

    def setup(self, request: ClusterRequest, emit: Emit) -> Sequence[Node]:
        """Bring the nodes up."""

    def shape(self, link_mbps: float | None, cpus_per_node: float | None) -> None:
        """Set every node's link rate (Mb/s, each way) and CPU share (cores) for the next trial; None: no limit."""

    def start(self, process: ProcessSpec) -> int:
        """Start one process; its pid."""

    def publish(self, path: Path) -> None:
        """Have all nodes see a file of the scratch folder as it is now, or that it is not there any more."""

    def exits(self) -> Sequence[ProcessExit]:
        """The processes that ended since the last call."""

    def stop(self, grace_s: float) -> None:
        """End every started process: SIGTERM, and SIGKILL after `grace_s` seconds. Returns when all are gone."""

    def sample(self) -> Mapping[str, Any]:
        """The machine's present state for `machine` events: steal_s, load1, mhz, throttled_s by node, where known."""

    def now(self) -> float:
        """Seconds on the clock that all events of the run use."""

    def sleep(self, seconds: float) -> None:
        """Let that clock advance."""

    def teardown(self) -> None:
        """Remove all that setup made; safe to call twice, and after a failed setup."""


@runtime_checkable
class CanKill(Protocol):
    """A cluster that can signal a process or a whole node."""

    def kill(self, node: str, slot: int | None, signal: int) -> Sequence[int]:
        """Send `signal` to one process, or to all of the node when slot is None; the pids that got it."""


@runtime_checkable
class KnowsFate(Protocol):
    """A cluster whose engine may take its nodes away, and says what becomes of them."""

    def fate(self, node: str) -> str:
        """Why a node that is being taken away is gone, in the engine's words, once it has said so; empty: it does not.

        Raises:
            ClusterError: all nodes have ended, for good; says why.
        """


class Workload(Protocol):
    """Says which processes make up one trial of a training job."""

    @property
    def compute(self) -> str:
        """`real`, or `paced`: it takes the time of a recorded profile."""

    def profile(self, case: Case) -> Mapping[str, str] | None:
        """`{"name", "origin"}` of the profile that paces it; None for real compute.

        Raises:
            SpecError: the case names a profile that does not exist.
        """

    def admit(self, case: Case) -> None:
        """Refuse settings that make no sense, before there are trials.

        Raises:
            SpecError: with what is wrong and what is allowed.
        """

    def check(self, trial: Trial) -> None:
        """Refuse a trial that cannot run, before anything starts.

        Raises:
            SpecError: with what is wrong and what is allowed.
        """

    def bound(self, trial: Trial) -> Mapping[str, Any] | None:
        """What the link allows: `{"step_s", "exposed_s", "comm_s", "settings"}`; None where it cannot be known."""

    def replays(self, trial: Trial) -> bool:
        """Whether a job with faults needs a replay to be judged by: its size may change, and its sums with it."""

    def has_reference(self, trial: Trial) -> bool:
        """Whether the first steps of a training can be made by a plain loop, to check them by."""

    def processes(self, trial: Trial, nodes: Sequence[Node], files: TrialFiles) -> Sequence[ProcessSpec]:
        """The processes of one trial, one or more a node."""


@dataclass(frozen=True)
class TrialFiles:
    """Where the files of one trial go: folders that exist already."""

    events: Path
    logs: Path
    scratch: Path  # configs, checkpoints; gone after the run

    def event_file(self, trial: str, process: str) -> Path:
        """The event file of one process."""
        return self.events / f"{trial}.{process}.jsonl"

    def log_file(self, trial: str, process: str) -> Path:
        """The log of one process."""
        return self.logs / f"{trial}.{process}.log"


@dataclass(frozen=True)
class Operation:
    """Something a nemesis does to the cluster, e.g. `kill` with {"node": "n2"}."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


class Schedule(Protocol):
    """Says what is to be done when; a benchmark's schedule has nothing to say."""

    def due(self, trial: Trial, view: JobView) -> Iterable[Operation]:
        """The operations due by now; each is returned once."""

    def share(self, trial: Trial, view: JobView) -> float:
        """How much of the trial is done, 0 to 1."""

    def waits_for(self, trial: Trial, view: JobView) -> str:
        """What the next thing to do waits for, in words; empty where it waits for nothing."""

    def over(self, trial: Trial, view: JobView) -> bool:
        """Whether the trial may end here, before all of its steps are done."""


class Nemesis(Protocol):
    """Does the operations of a schedule; same life cycle as everything else."""

    @property
    def down(self) -> Collection[str]:
        """Nodes without power: nothing is started there."""

    def needs(self, fault: Mapping[str, Any]) -> Collection[str]:
        """Names of the abilities without which a planned fault cannot be done."""

    def traits(self, fault: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a planned fault ends and damages, and what proves it: the plan has it beside what was asked for."""

    def setup(self, cluster: Cluster, emit: Emit) -> None:
        """Get hold of the cluster; refuse what it cannot do."""

    def invoke(self, operation: Operation, view: JobView) -> None:
        """Do one operation on a job and emit what was really done, with evidence."""

    def calm(self) -> None:
        """Heal everything that is still broken, at the end of a trial."""

    def teardown(self) -> None:
        """Heal everything that is still broken, at the end of the run."""
