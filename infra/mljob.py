"""The trainer as a job of Azure ML: the body that `az ml job create --file` takes, for the compute that a stack has.

Azure ML starts the processes and says by variables which rank each is. Nothing reaches into its nodes, so no harness
measures or breaks such a job: what every rank records and the checkpoints are outputs of the job, to be downloaded.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proving_ground.infra.config import MlCompute
from proving_ground.infra.outputs import AzureOutputs
from proving_ground.infra.reading import ConfigError
from proving_ground.infra.skus import SKUS

EVENTS, CHECKPOINTS = "events", "checkpoints"
SHARED_MEMORY = "8g"  # of a node's container, for loaders' workers
OURS = ("PROVING_GROUND_EVENTS", f"${{{{outputs.{EVENTS}}}}}/$RANK.jsonl")
"""Variable of the trainer, and its value: Azure ML puts the output's folder in, the trainer the rank."""


def body(
    azure: AzureOutputs, compute: MlCompute, image: str, settings: Sequence[str],
    *, nodes: int, ranks: int | None = None, hours: float = 4.0,
) -> dict[str, Any]:  # fmt: skip
    """A command job, as Azure ML's YAML has it, of `nodes` nodes with `ranks` processes each; it ends after `hours`.

    `settings` are KEY=VALUE of `pg training run`; `ranks` is one for each GPU unless it is given.

    Raises:
        ConfigError: the stack has no Azure ML, or not as many nodes or GPUs; a setting is none.
    """
    if azure.ml_compute is None:
        raise ConfigError("job: the stack has no Azure ML; give it azure.ml_compute, and `up` again")
    if not 1 <= nodes <= compute.max_nodes:
        raise ConfigError(f"job: --nodes {nodes}: azure.ml_compute has 1 to {compute.max_nodes}")
    gpus = SKUS[compute.sku].gpus
    if ranks is not None and not 1 <= ranks <= (gpus or ranks):
        raise ConfigError(
            f"job: --ranks {ranks}: {compute.sku} {f'has 1 to {gpus} GPUs' if gpus else 'takes at least 1'}"
        )
    if odd := [it for it in settings if "=" not in it]:
        raise ConfigError(f"job: --set {odd[0]}: must be KEY=VALUE")
    command = ["env", "=".join(OURS), "python", "-m", "proving_ground.training", "run"]
    settings = [*settings, f"checkpoint_dir=${{{{outputs.{CHECKPOINTS}}}}}"]
    return {
        "type": "command",
        "command": shlex.join([*command, *(word for it in settings for word in ("--set", it))]),
        "environment": {"image": image},
        "compute": f"azureml:{azure.ml_compute}",
        "resources": {"instance_count": nodes, "shm_size": SHARED_MEMORY},
        "distribution": {"type": "pytorch", "process_count_per_instance": ranks or gpus or 1},
        "limits": {"timeout": round(3600 * hours)},
        "outputs": {name: {"type": "uri_folder", "mode": "rw_mount"} for name in (EVENTS, CHECKPOINTS)},
        "tags": {"app.kubernetes.io/part-of": "proving-ground"},
    }


def how(azure: AzureOutputs, file: Path) -> list[str]:
    """The commands that send the body in a file and fetch what came of it; NAME is what the first one says."""
    where = f"--resource-group {azure.resource_group} --workspace-name {azure.ml_workspace}"
    return [
        f"az ml job create --file {shlex.quote(str(file))} {where}",
        f"az ml job download --name NAME --output-name {EVENTS} --download-path . {where}",
    ]
