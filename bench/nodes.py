"""What is known of a run's nodes: held against what its trials ask for, and told in words. Called by `bench.run`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from proving_ground.bench.protocols import Node
from proving_ground.bench.shell import counted
from proving_ground.bench.spec import SpecError, Trial

TRAINS, COORDINATES, SPARE = "trains", "coordinates", "spare"


def with_roles(nodes: Sequence[Node], coordinating: range) -> list[Node]:
    """The nodes as what they are there for: before those that coordinate trials train, after them nodes are spare."""
    roles = [*[TRAINS] * coordinating.start, *[COORDINATES] * len(coordinating), *[SPARE] * len(nodes)]
    return [replace(node, role=role) for node, role in zip(nodes, roles, strict=False)]


def refuse_what_does_not_fit(trials: Iterable[Trial], nodes: Sequence[Node]) -> None:
    """A node takes no more ranks than it has slots, nor, where they compute on GPUs, than it has of those.

    Raises:
        SpecError: names the case, the node and what it has; and the other cases that do not fit.
    """
    lacking: dict[str, str] = {}
    for trial in trials:
        for node in nodes[: trial.nodes]:
            if why := lack(trial, node):
                lacking.setdefault(trial.case, f"ranks_per_node = {trial.ranks_per_node}: {why}")
    if lacking:
        (case, why), *others = lacking.items()
        likewise = f"; these cases do not fit either: {', '.join(name for name, _ in others)}" if others else ""
        raise SpecError(f"case {case!r}: {why}{likewise}")


def lack(trial: Trial, node: Node) -> str:
    """What a node has too little of for its ranks of a trial; empty where it has enough, or that is not known."""
    name = f"{node.name} ({node.host})" if node.host else node.name
    if node.slots is not None and trial.ranks_per_node > node.slots:
        return f"{name} has {counted(node.slots, 'slot')}"
    if not on_gpus(trial.training) or node.gpus is None or trial.ranks_per_node <= node.gpus:
        return ""
    if shares_gpus(trial.training) and node.shared_gpus:
        return ""
    beside = f" of the machine's {node.shared_gpus}" if node.shared_gpus > node.gpus else ""
    return f"{name} has {counted(node.gpus, 'GPU')}{beside}, and each rank is to have one"


def on_gpus(training: Mapping[str, Any]) -> bool:
    """Whether a case asks for GPUs to compute on."""
    return training.get("device") == "cuda" or training.get("backend") == "nccl"


def shares_gpus(training: Mapping[str, Any]) -> bool:
    """Whether a case's ranks may compute on one GPU together: Gloo lets them, NCCL does not."""
    return training.get("device") == "cuda" and training.get("backend") == "gloo"


def in_words(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Recorded nodes, those of a kind together: `n1, n2: 64 slots, 8 GPUs, zone a; n3: …`."""
    kinds: dict[str, list[str]] = {}
    for it in nodes:
        counts = ((it["slots"], "slot"), (it["gpus"], "GPU"))
        about = [counted(count, word) for count, word in counts if count is not None]
        about += [f"zone {it['zone']}"] if it["zone"] else []
        about += [] if it["role"] == TRAINS else [it["role"]]
        kinds.setdefault(", ".join(about), []).append(it["name"])
    return "; ".join(", ".join(names) + f": {about}" * bool(about) for about, names in kinds.items())
