"""How a job gets over failures: what is put around a workload's processes. Called by `bench.drive` and `bench.plan`.

`restart`: on every node torch elastic's launcher (`python -m training launch`), which starts all workers again from the
newest checkpoint, and a coordinator on a node of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.protocols import Node, ProcessSpec, TrialFiles
from bench.spec import SpecError, Trial
from bench.workloads import free_port
from training.events import EVENTS_OF_LAUNCHER
from training.phases import CONTROL_VARIABLE

MECHANISMS = ("restart",)
TRAINER = ("python", "-m", "training")
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def extra_nodes(trial: Trial) -> int:
    """Nodes beside those that train: the coordinator's."""
    return 1 if trial.mechanism else 0


def check(trial: Trial) -> None:
    """Refuse a mechanism that does not exist, and counts that make no sense.

    Raises:
        SpecError: with what is allowed.
    """
    where = f"case {trial.case!r}"
    if trial.mechanism and trial.mechanism not in MECHANISMS:
        raise SpecError(f"{where}: mechanism {trial.mechanism!r}; allowed: {', '.join(MECHANISMS)}")
    if trial.faults and not trial.mechanism:
        raise SpecError(f"{where}: faults need a mechanism to get over them; allowed: {', '.join(MECHANISMS)}")
    if trial.min_nodes is not None and not 1 <= trial.min_nodes <= trial.nodes:
        raise SpecError(f"{where}: min_nodes {trial.min_nodes}; allowed: 1 to {trial.nodes}")


def control_folder(trial: Trial, files: TrialFiles) -> Path:
    """Where the nemesis asks a rank to stand still (`training.phases`)."""
    return files.scratch / "control" / trial.id


def supervised(
    specs: Sequence[ProcessSpec], trial: Trial, nodes: Sequence[Node], files: TrialFiles
) -> list[ProcessSpec]:
    """A coordinator on the last node, and on each other one a launcher of what would have been started there."""
    coordinator = nodes[trial.nodes]
    control = control_folder(trial, files)
    control.mkdir(parents=True, exist_ok=True)
    log = files.log_file(trial.id, f"{coordinator.name}.0")
    port = free_port(coordinator.address)
    serve = ProcessSpec(coordinator.name, 0, (*TRAINER, "coordinator", "--port", str(port)), log=log, serves=True)
    meet = f"{coordinator.address}:{port}"
    addresses = {node.name: node.address for node in nodes}
    where = {CONTROL_VARIABLE: str(control)}
    return [
        serve,
        *(launched(spec, trial, addresses, meet, where | own_file(spec, trial, files)) for spec in specs),
    ]


def own_file(spec: ProcessSpec, trial: Trial, files: TrialFiles) -> dict[str, str]:
    """Where the launcher of a node appends its own events."""
    return {EVENTS_OF_LAUNCHER: str(files.event_file(trial.id, f"{spec.node}.launch").resolve())}


def launched(
    spec: ProcessSpec, trial: Trial, addresses: Mapping[str, str], coordinator: str, env: Mapping[str, str]
) -> ProcessSpec:
    """The launcher of one node; who is which rank is agreed among the launchers."""
    nodes = f"{trial.min_nodes or trial.nodes}:{trial.nodes}"
    meet = ("--nodes", nodes, "--coordinator", coordinator, "--job", trial.id)
    me = ("--address", addresses[spec.node])
    words = spec.argv[3:] if spec.argv[:3] == TRAINER else ("--entry", "training.launch:program", *spec.argv)
    if entry := trial.command.get("entry"):
        words = ("--entry", str(entry), *words)
    rest = {name: value for name, value in spec.env.items() if name not in PLACE}
    return replace(spec, argv=(*TRAINER, "launch", *meet, *me, *words), env=rest | dict(env))
