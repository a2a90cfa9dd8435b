"""How a job gets over failures: what is put around a workload's processes. Called by `bench.drive` and `bench.plan`.

`MECHANISMS` is the list. Under all of them a node agent (`bench.keeper`) starts again what has ended on a node that has
power; what else is done, and how fast, is the mechanism's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from proving_ground.bench.jobstate import disturbances
from proving_ground.bench.protocols import Node, ProcessSpec, TrialFiles
from proving_ground.bench.spec import SpecError, Trial
from proving_ground.bench.workloads import TRAINER, free_port
from proving_ground.training.events import EVENTS_OF_LAUNCHER, EVENTS_VARIABLE, LOG_VARIABLE
from proving_ground.training.phases import CONTROL_VARIABLE
from proving_ground.training.typed import unknown

PLACE = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "NODE_RANK",
    "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
)  # fmt: skip
TORCHRUN = ("python", "-m", "torch.distributed.run")
TUNED = {
    "last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 3, "read_timeout": 5,
    "close_timeout": 3, "join_timeout": 60,
}  # fmt: skip
TRAINS, TRAINS_ON = (
    0.55,
    0.9,
)  # of the time that a job takes for its faults: where all begin again, where survivors go on
OFTEN = "1000"  # restarts that torchrun is allowed: by default none, so that the first failure would end the job


@dataclass(frozen=True)
class TrialSite:
    """A trial, its nodes and its files, as a mechanism sees them."""

    trial: Trial
    nodes: Sequence[Node]
    files: TrialFiles

    def range(self, each: int = 1) -> str:
        """The nodes at least and at most, as launchers are told; with `each`: so many times as many members."""
        return f"{(self.trial.min_nodes or self.trial.nodes) * each}:{self.trial.nodes * each}"

    def address(self, node: str) -> str:
        """Where a node's peers reach it."""
        return next(it.address for it in self.nodes if it.name == node)


Around = Callable[[Sequence[ProcessSpec], TrialSite], list[ProcessSpec]]


@dataclass(frozen=True)
class Mechanism:
    """One way to get over failures."""

    words: str
    around: Around  # what is started in place of a workload's processes
    own_node: bool  # whether the coordinator has a node of its own; else the first node has it
    fault_s: float = 12.0  # from a fault's turn to the next one's, beside what it is held: for the time left only
    together: bool = False  # whether the end of one process ends all others, and all are started anew
    launchers: bool = True  # whether each node has a process that starts its workers
    survivors: bool = False  # whether those that are left carry on, and who joins gets its state from one of them
    ends_others: bool = False  # whether one failure ends processes elsewhere too, which the node agents start again
    baseline: bool = False  # whether the others are compared with it
    refuses: Callable[[Trial], str] = lambda _trial: ""  # why it cannot be had for a trial


def relaunched(specs: Sequence[ProcessSpec], scene: TrialSite) -> list[ProcessSpec]:
    """The trainers by themselves, each in a new interpreter: nobody keeps a warm one for the next time."""
    del scene
    return [replace(spec, argv=new_interpreter(spec.argv)) for spec in specs]


def new_interpreter(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The same command, not as a copy of a process that has everything imported (`bench.agent.launch`)."""
    return ("python", "-u", *argv[1:]) if argv[0] == "python" else argv


def torchrun(specs: Sequence[ProcessSpec], scene: TrialSite) -> list[ProcessSpec]:
    """As in its manual: the first node's launcher has the store; all settings as they come, but for restarts."""
    meet = f"{scene.nodes[0].address}:{free_port(scene.nodes[0])}"
    return [under_torchrun(spec, scene, meet) for spec in launchers(specs)]


def torchrun_tuned(specs: Sequence[ProcessSpec], scene: TrialSite) -> list[ProcessSpec]:
    """With short time-outs, the store on a node of its own, and without addresses of the round before."""
    serve, meet = coordinator(scene, "coordinator")
    known = ",".join(f"{key}={value}" for key, value in {**TUNED, "is_host": "false"}.items())
    cure = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return [serve, *(under_torchrun(spec, scene, meet, ("--rdzv-conf", known), cure) for spec in launchers(specs))]


def under_torchrun(
    spec: ProcessSpec, scene: TrialSite, meet: str, flags: Sequence[str] = (), more: dict[str, str] | None = None
) -> ProcessSpec:
    """What runs torchrun on one node, with the workers there."""
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", meet, "--rdzv-id", scene.trial.id)
    workers = str(scene.trial.ranks_per_node)
    me = ("--nproc-per-node", workers, "--local-addr", scene.address(spec.node), "--max-restarts", OFTEN)
    argv = (*TORCHRUN, "--nnodes", scene.range(), *where, *me, *flags, *spec.argv[1:])
    return replace(spec, argv=argv, env=placeless(spec) | (more or {}))


def restarted(specs: Sequence[ProcessSpec], scene: TrialSite) -> list[ProcessSpec]:
    """Our own launcher on each node, a coordinator on a node of its own."""
    serve, meet = coordinator(scene, "coordinator")
    return [serve, *(launched(spec, scene, meet) for spec in launchers(specs))]


def launchers(specs: Sequence[ProcessSpec]) -> list[ProcessSpec]:
    """One process for each node, which starts the workers there and tells each where its own events and output go."""
    return [of_node(list(own)) for _, own in groupby(specs, key=lambda spec: spec.node)]


def of_node(specs: Sequence[ProcessSpec]) -> ProcessSpec:
    """The first of a node's ranks, with the files of the others."""
    first, *others = specs
    told = {
        f"{variable}_{it.slot}": str(file.resolve())
        for it in others
        for variable, file in ((EVENTS_VARIABLE, it.events), (LOG_VARIABLE, it.log))
        if file
    }
    further = {it.name: it.events for it in others if it.events}
    return replace(first, env={**first.env, **told}, further=further)


def coordinator(scene: TrialSite, command: str, *more: str) -> tuple[ProcessSpec, str]:
    """(what the nodes meet at, on the last node, by a command of the trainer's; where it is reached)."""
    node = scene.nodes[scene.trial.nodes]
    log = scene.files.log_file(scene.trial.id, f"{node.name}.0")
    port = free_port(node)
    serve = ProcessSpec(node.name, 0, (*TRAINER, command, "--port", str(port), *more), log=log, serves=True)
    return serve, f"{node.address}:{port}"


def launched(spec: ProcessSpec, scene: TrialSite, meet: str) -> ProcessSpec:
    """The launcher of one node; who is which rank is agreed among the launchers."""
    job = ("--nodes", scene.range(), "--coordinator", meet, "--job", scene.trial.id)
    me: tuple[str, ...] = ("--address", scene.address(spec.node))
    if (workers := scene.trial.ranks_per_node) > 1:
        me += ("--workers", str(workers))
    words = spec.argv[len(TRAINER) :]
    if entry := scene.trial.command.get("entry"):
        words = ("--entry", str(entry), *words)
    own = {EVENTS_OF_LAUNCHER: str(scene.files.event_file(scene.trial.id, f"{spec.node}.launch").resolve())}
    return replace(spec, argv=(*TRAINER, "launch", *job, *me, *words), env=placeless(spec) | own)


def live(specs: Sequence[ProcessSpec], scene: TrialSite) -> list[ProcessSpec]:
    """The trainers themselves, which meet at a lighthouse on a node of its own; no launcher."""
    members = scene.range(scene.trial.ranks_per_node)
    serve, meet = coordinator(scene, "lighthouse", "--least", members.partition(":")[0])
    return [serve, *(alive(spec, scene, meet, members) for spec in specs)]


def alive(spec: ProcessSpec, scene: TrialSite, meet: str, members: str) -> ProcessSpec:
    """One trainer, by its number, node by node; ranks are agreed at every change."""
    node = next(at for at, node in enumerate(scene.nodes) if node.name == spec.node)
    number = node * scene.trial.ranks_per_node + spec.slot
    me: tuple[str, ...] = ("--number", str(number), "--address", scene.address(spec.node))
    if entry := scene.trial.command.get("entry"):
        me += ("--entry", str(entry))
    argv = (*TRAINER, "live", "--nodes", members, "--lighthouse", meet, *me, *spec.argv[3:])
    return replace(spec, argv=argv, env=placeless(spec))


def not_live(trial: Trial) -> str:
    """Why a trial cannot be live; empty when it can."""
    if trial.nodes < 2:
        return "needs two nodes at least: with one there is no survivor"
    if trial.workload == "command":
        return "knows this project's trainer only; a trainer of your own: restart"
    if (parallel := trial.training.get("parallel", "ddp")) != "ddp":
        return f"with parallel = {parallel!r}: a node that is lost takes its part of the model along; use 'restart'"
    return "" if find_spec("torchft") else "needs torchft: pip install '.[live]' (Linux, x86-64)"


def placeless(spec: ProcessSpec) -> dict[str, str]:
    """The environment without who is which rank: a launcher says that."""
    return {name: value for name, value in spec.env.items() if name not in PLACE}


MECHANISMS: dict[str, Mechanism] = {
    "relaunch": Mechanism(
        "no launcher: when one process ends, all are killed and started anew",
        relaunched,
        own_node=False,
        together=True,
        launchers=False,
        ends_others=True,
        baseline=True,
    ),
    "torchrun": Mechanism(
        "torchrun as it comes, the store on the first node", torchrun, own_node=False, ends_others=True
    ),
    "torchrun-tuned": Mechanism(
        "torchrun with short time-outs, the store on its own node", torchrun_tuned, own_node=True, ends_others=True
    ),
    "restart": Mechanism(
        "our own launcher: all workers start again from a checkpoint", restarted, own_node=True, fault_s=7.0
    ),
    "live": Mechanism(
        "torchft: survivors carry on, a replacement gets its state from one of them",
        live,
        own_node=True,
        fault_s=4.0,
        launchers=False,
        survivors=True,
        refuses=not_live,
    ),
}


def traits_of(trial: Trial) -> dict[str, dict[str, bool]]:
    """What a report has to know of a trial's mechanism, under `traits`: it goes into the plan and into the history."""
    if not trial.mechanism:
        return {}
    it = MECHANISMS[trial.mechanism]
    return {"traits": {"ends_others": it.ends_others, "baseline": it.baseline}}


def has_survivors(mechanism: str | None) -> bool:
    """Whether under a mechanism those that are left carry on; one that does not exist is refused later (`check`)."""
    return mechanism in MECHANISMS and MECHANISMS[mechanism].survivors


def has_launchers(mechanism: str | None) -> bool:
    """Whether under a mechanism each node has a launcher."""
    return mechanism not in MECHANISMS or MECHANISMS[mechanism].launchers


def faults_s(mechanism: str | None, faults: Sequence[Mapping[str, Any]]) -> float:
    """About how long a job takes for its faults, in seconds."""
    each_s = MECHANISMS[mechanism].fault_s if mechanism in MECHANISMS else 0.0
    end_s = 0.0
    for group in disturbances(faults):
        took_s = each_s + max(float(it.get("after_s") or 0) + float(it.get("hold_s") or 0) for it in group)
        at_s = group[0].get("at_s")
        end_s = end_s + took_s if at_s is None else max(end_s, float(at_s) + took_s)
    return end_s


def trains_s(mechanism: str | None, faults: Sequence[Mapping[str, Any]]) -> float:
    """About how much of that time it trains, in seconds: a twin takes as long for the same steps."""
    return (TRAINS_ON if has_survivors(mechanism) else TRAINS) * faults_s(mechanism, faults)


def extra_nodes(trial: Trial) -> int:
    """Nodes beside those that train: the coordinator's."""
    return 1 if trial.mechanism and MECHANISMS[trial.mechanism].own_node else 0


def coordinator_of(trial: Trial, names: Sequence[str]) -> str | None:
    """The node where the nodes of a job meet; None for a job without a mechanism."""
    return names[trial.nodes if extra_nodes(trial) else 0] if trial.mechanism else None


def check(trial: Trial) -> None:
    """Refuse a mechanism that does not exist, and counts that make no sense.

    Raises:
        SpecError: with what is allowed.
    """
    where = f"case {trial.case!r}"
    if trial.mechanism and trial.mechanism not in MECHANISMS:
        raise SpecError(f"{where}: {unknown('mechanism', trial.mechanism, MECHANISMS)}")
    if trial.faults and not trial.mechanism:
        raise SpecError(f"{where}: faults need a mechanism to get over them; allowed: {', '.join(MECHANISMS)}")
    if trial.mechanism and (why := MECHANISMS[trial.mechanism].refuses(trial)):
        raise SpecError(f"{where}: mechanism {trial.mechanism!r} {why}")
    if trial.min_nodes is not None and not 1 <= trial.min_nodes <= trial.nodes:
        raise SpecError(f"{where}: min_nodes {trial.min_nodes}; allowed: 1 to {trial.nodes}")


def control_folder(trial: Trial, files: TrialFiles) -> Path:
    """Where the nemesis asks a rank to stand still (`training.phases`)."""
    return files.scratch / "control" / trial.id


def supervised(
    specs: Sequence[ProcessSpec], trial: Trial, nodes: Sequence[Node], files: TrialFiles
) -> list[ProcessSpec]:
    """What is started in place of a workload's processes; its trainers can be made to stand still."""
    control = control_folder(trial, files)
    control.mkdir(parents=True, exist_ok=True)
    made = MECHANISMS[trial.mechanism].around(specs, TrialSite(trial, nodes, files))
    told = {CONTROL_VARIABLE: str(control)}
    return [spec if spec.serves else replace(spec, env={**spec.env, **told}) for spec in made]
