"""Is a cluster well: its nodes, and the pods of the project's namespaces. Called by `pg infra health`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proving_ground.infra import scaling
from proving_ground.infra.cluster.labels import NAMESPACES, POOL_LABEL
from proving_ground.infra.reading import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proving_ground.infra.outputs import StackOutputs

TIMEOUT_S = 20
WELL = ("Running", "Succeeded")


@dataclass(frozen=True)
class Health:
    """Ready and all nodes by pool (`-` for machines of no pool), and what is not well, one line each.

    `stuck`: pool → why the autoscaler gets no machine for it.
    """

    nodes: Mapping[str, tuple[int, int]]
    complaints: tuple[str, ...]
    stuck: Mapping[str, str] = field(default_factory=dict)


def look(outputs: StackOutputs) -> Health:
    """Ask the cluster now.

    Raises:
        ConfigError: no kubectl, or the cluster does not answer.
    """
    with tempfile.TemporaryDirectory() as folder:  # a folder that only its owner can enter
        reach = _reach(outputs, Path(folder) / "kubeconfig")
        nodes = _kubectl([*reach, "get", "nodes"])
        pods = _kubectl([*reach, "get", "pods", "--all-namespaces", "-l", "app.kubernetes.io/part-of=proving-ground"])
        only = ["--namespace", "kube-system", "--field-selector", f"metadata.name={scaling.STATUS}"]
        maps = _kubectl([*reach, "get", "configmaps", *only]) if outputs.azure else []
    return judge(nodes, pods, "\n".join(item.get("data", {}).get("status", "") for item in maps))


def _reach(outputs: StackOutputs, file: Path) -> list[str]:
    if outputs.kubeconfig is not None:
        file.write_text(outputs.kubeconfig)
        return ["--kubeconfig", str(file)]
    return ["--context", outputs.context] if outputs.context else []


def _kubectl(arguments: list[str]) -> list[dict[str, Any]]:
    command = ["kubectl", *arguments, "-o", "json", "--request-timeout", f"{TIMEOUT_S}s"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=2 * TIMEOUT_S, env=os.environ
        )
    except FileNotFoundError:
        raise ConfigError("kubectl: the command is not on PATH") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"kubectl: no answer within {2 * TIMEOUT_S} s") from None
    if done.returncode:
        raise ConfigError(f"kubectl: {(done.stderr.strip().splitlines() or ['failed without a message'])[-1]}")
    return list(json.loads(done.stdout)["items"])


def judge(nodes: list[dict[str, Any]], pods: list[dict[str, Any]], autoscaler: str = "") -> Health:
    """What the API server's answers mean."""
    by_pool: dict[str, tuple[int, int]] = {}
    complaints = []
    for node in nodes:
        pool, ready = node["metadata"].get("labels", {}).get(POOL_LABEL, "-"), _ready(node)
        well, everyone = by_pool.get(pool, (0, 0))
        by_pool[pool] = (well + ready, everyone + 1)
        complaints += [] if ready else [f"node {node['metadata']['name']}: not ready"]
    for pod in pods:
        phase, name = pod["status"].get("phase", "Unknown"), pod["metadata"]
        if name["namespace"] in NAMESPACES and (phase not in WELL or (phase == "Running" and not _ready(pod))):
            complaints.append(f"pod {name['namespace']}/{name['name']}: {phase if phase not in WELL else 'not ready'}")
    stuck = scaling.stuck(autoscaler)
    complaints += [f"pool {pool}: gets no machine: {why}" for pool, why in stuck.items()]
    return Health(by_pool, tuple(complaints), stuck)


def _ready(thing: dict[str, Any]) -> bool:
    conditions = thing["status"].get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
