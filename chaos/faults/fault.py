"""What a fault is made of: how to do it, how to undo it, and what proves that it really happened.

The families beside this file make theirs of it; `chaos.faults.FAULTS` lists them all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from proving_ground.bench.capabilities import CanSignal, NodeProcess, offers
from proving_ground.bench.protocols import Cluster, ClusterError, Emit
from proving_ground.bench.spec import SpecError
from proving_ground.chaos.faults.proof import Proof, asked
from proving_ground.chaos.targets import View

GONE_S = 30.0  # for a killed process to be gone, or a stopped one to stand still: the kernel frees its memory first

Evidence = dict[str, Any]
"""Plain JSON values."""

Can_co = TypeVar("Can_co", covariant=True)
"""What a fault makes use of beside what every cluster is: capabilities of `bench.capabilities`."""


@dataclass(frozen=True)
class Arg:
    """A number that a suite may set: its default, the range it must be in, and its unit."""

    default: float
    low: float
    high: float
    unit: str


@dataclass
class Injection(Generic[Can_co]):
    """One fault at work: what it has at hand, and in `state` what healing needs to know of the injection."""

    cluster: Cluster
    nodes: tuple[str, ...]  # aimed at
    view: View  # the whole job
    args: Mapping[str, float]
    seed: int | str
    workers: Mapping[str, Mapping[int, str]]  # node → the trainer's processes there: pid as the node sees it → `n2.1`
    checkpoints: str | None  # folder of the checkpoints on the volume
    emit: Emit
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def can(self) -> Can_co:
        """The cluster as the fault uses it: by what it `needs`, of which `Fault.why_not` has asked."""
        return cast(Can_co, self.cluster)

    @property
    def chance(self) -> random.Random:
        """The same numbers at every call and in every replay."""
        return random.Random(f"{self.seed} fault")  # noqa: S311 - to be repeated, not secret


@dataclass(frozen=True)
class Fault:
    """A kind of fault. `begin` and `heal` return evidence; healing twice, or what never began, does nothing.

    `proof` is what both must show for it to have happened; the report judges by it. `ends` says whose processes are
    gone afterwards and have to be started again by whoever runs the job: `nobody`, `workers` (their launcher does it),
    `launcher`, or `node` (all of it). `victims`, `gone` and `damages` are keys of the evidence of the injection.
    """

    key: str
    meaning: str  # one line
    needs: tuple[str, ...]  # abilities of the cluster
    hold_s: float  # how long it lasts where the suite does not say
    begin: Callable[[Injection[Any]], Evidence]  # with what it needs, which a test compares with `needs`
    heal: Callable[[Injection[Any]], Evidence]
    proof: Proof
    args: Mapping[str, Arg] = field(default_factory=dict)
    target: str = "one"  # where the suite does not say
    ends: str = "nobody"
    victims: str = ""  # the processes that were hit
    gone: str = ""  # the moment from which those that it ended were dead; empty: once the evidence was complete
    damages: str = ""  # path → when, of the checkpoints that it spoils

    def traits(self, args: Mapping[str, float]) -> dict[str, Any]:
        """What a report has to know of a fault with these numbers: it goes into the plan with the fault."""
        return {
            "ends": self.ends, "victims": self.victims, "gone": self.gone, "damages": self.damages, "args": dict(args),
            "proof": asked(self.proof, args),
        }  # fmt: skip

    def digest(self, args: Mapping[str, float]) -> str:
        """SHA-256 of the traits: the injection is told with it, so that a plan that was changed since is noticed."""
        return hashlib.sha256(json.dumps(self.traits(args), sort_keys=True).encode()).hexdigest()

    def inject(self, scene: Injection[Any]) -> Evidence:
        """Do it; where it fails half-way, what was done is undone.

        Raises:
            ClusterError, SpecError, OSError: it cannot be done; says why.
        """
        try:
            return self.begin(scene)
        except BaseException as why:
            try:
                self.heal(scene)
            except (ClusterError, SpecError, OSError) as error:
                raise ClusterError(f"{why}; and it could not be undone: {error}") from why
            raise

    def why_not(self, cluster: Cluster) -> str | None:
        """Why this cluster cannot do it here, in words; None when it can."""
        found = {ability.name: ability for ability in cluster.abilities()}
        reasons = [
            f"{name.replace('_', ' ')}: {found[name].how}"
            if name in found and not found[name].yes
            else f"{cluster.name} has no {name}"
            for name in self.needs
            if name not in found or not found[name].yes or not offers(cluster, name)
        ]
        return "; ".join(reasons) or None

    def with_defaults(self, given: Mapping[str, float], where: str) -> dict[str, float]:
        """Every number of the kind: as given, else its default.

        Raises:
            SpecError: it has no such number, or the value is out of range.
        """
        allowed = ", ".join(f"{name} ({it.low:g} to {it.high:g} {it.unit})" for name, it in self.args.items()) or "none"
        for name, value in given.items():
            arg = self.args.get(name)
            known = arg is not None and isinstance(value, int | float) and not isinstance(value, bool)
            if not known or arg is None or not arg.low <= value <= arg.high:
                raise SpecError(f"{where}: args of {self.key}: {name} = {value!r}; allowed: {allowed}")
        return {name: float(given.get(name, arg.default)) for name, arg in self.args.items()}


def nothing_to_heal(_: Injection[object]) -> Evidence:
    """What ended stays ended; whoever runs the job starts it again."""
    return {}


def described(node: str, processes: Sequence[NodeProcess]) -> list[Evidence]:
    """Processes as evidence."""
    return [{"node": node, **dataclasses.asdict(process)} for process in processes]


def still_there(cluster: CanSignal, known: Sequence[Evidence]) -> list[Evidence]:
    """Which of these processes are still running, looked up by pid and start time; with their present state."""
    nodes = dict.fromkeys(it["node"] for it in known)
    now = {
        (it["node"], it["pid"], it["start"]): it for node in nodes for it in described(node, cluster.processes(node))
    }
    return [{**it, **now[key]} for it in known if (key := (it["node"], it["pid"], it["start"])) in now]


def until_gone(scene: Injection[CanSignal], known: Sequence[Evidence]) -> list[Evidence]:
    """Wait until they have ended, `GONE_S` at most; those that have not."""
    deadline = scene.cluster.now() + GONE_S
    while (left := still_there(scene.can, known)) and scene.cluster.now() < deadline:
        scene.cluster.sleep(0.005)
    return left


def worker_of(scene: Injection[CanSignal], node: str) -> Evidence:
    """One of the trainer's processes on a node, drawn by the fault's seed, with its name.

    Raises:
        ClusterError: there is none.
    """
    there = {it["pid"]: it for it in described(node, scene.can.processes(node))}
    running = [{**there[pid], "process": name} for pid, name in scene.workers.get(node, {}).items() if pid in there]
    if not running:
        raise ClusterError(f"{node}: no worker is running there")
    return scene.chance.choice(running)
