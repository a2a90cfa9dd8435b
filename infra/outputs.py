"""The contract between a stack and those who use its cluster: what a stack exports. Imports without pulumi.

Written by `infra.stack`; read by `bench/clusters`: `load("dev")`, or `read(mapping)` for outputs that came another way.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proving_ground.infra import trouble
from proving_ground.infra.reading import ConfigError, build

SCHEMA = 1
NULLABLE = ("kubeconfig", "context", "ray_client")
SECRETS = ("kubeconfig",)  # exported as Pulumi secrets; never print them
TIMEOUT_S = 120


@dataclass(frozen=True)
class PoolOutput:
    """Machines that a run may ask for; `usd_per_hour` is one machine's estimate, None where nobody bills for it."""

    name: str
    max_nodes: int
    gpu: str | None
    gpus_per_node: int
    spot: bool
    pod_template: str  # the trainer's PodTemplate for this pool, in the training namespace
    usd_per_hour: float | None = None
    sku: str | None = None  # the machine's size; None where nobody knows


@dataclass(frozen=True)
class AzureOutputs:
    """Where things are on Azure; `ml_compute` is None where the stack has no Azure ML."""

    subscription: str
    resource_group: str
    registry: str  # login server
    blob_endpoint: str
    checkpoint_container: str
    ml_workspace: str | None = None
    ml_compute: str | None = None


@dataclass(frozen=True)
class StackOutputs:
    """All that a bench needs to know of a stack."""

    schema: int
    environment: str
    kubeconfig: str | None  # None: the user's own, with `context`
    context: str | None
    namespace: str  # where trainers run
    service_account: str  # the trainers'
    headless_service: str  # gives pods names: <hostname>.<service>
    claim: str  # the volume of checkpoints and data
    rendezvous_port: int
    pools: tuple[PoolOutput, ...]
    prometheus: str  # URL inside the cluster
    loki: str
    ray_client: str | None  # None: the stack has no Ray
    ttl_hours: int | None = None
    azure: AzureOutputs | None = None

    def __repr__(self) -> str:
        """Without the secrets, so that a log or a traceback cannot show them."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in SECRETS]
        return f"StackOutputs({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def to_exports(outputs: StackOutputs) -> dict[str, Any]:
    """Plain data, one export a field."""
    return {field.name: plain(getattr(outputs, field.name)) for field in dataclasses.fields(outputs)}


def plain(value: Any) -> Any:  # noqa: ANN401 - fields of any type
    """A field's value as YAML and JSON have it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def read(exports: Mapping[str, Any]) -> StackOutputs:
    """The typed outputs from a stack's exports.

    Raises:
        ConfigError: not this contract's fields, or of another version of it.
    """
    if exports.get("schema") != SCHEMA:
        given = exports.get("schema")
        raise ConfigError(f"stack outputs: schema {given!r} is not known; allowed: {SCHEMA}; run `pulumi up` again")
    absent = {name: None for name in NULLABLE if name not in exports}  # null exports vanish
    return build(StackOutputs, {**absent, **exports}, "stack outputs")


def load(stack: str, root: Path | None = None) -> StackOutputs:
    """The outputs of a stack that is up, asked of the Pulumi CLI; of its cluster where it was made without (`direct`).

    Raises:
        ConfigError: no CLI, no such stack, nothing in it, or what `read` refuses.
    """
    from proving_ground.infra import config, direct  # noqa: PLC0415 - it makes the outputs of this module

    if root is None and direct.possible(config.load(stack)):
        return read(direct.outputs_of(stack))
    command = ["pulumi", "stack", "output", "--json", "--show-secrets", "--stack", stack]
    try:
        folder = root or Path(__file__).parents[2]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except FileNotFoundError:
        raise ConfigError("pulumi: the command is not on PATH; install it (infra/README.md, step 1)") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"pulumi: no answer within {TIMEOUT_S} s about stack {stack}") from None
    if done.returncode:
        raise ConfigError(f"stack {stack}: {trouble.why(done.stderr)}")
    exports = json.loads(done.stdout)
    if not exports:
        raise ConfigError(f"stack {stack}: it has no outputs; run `pulumi up --stack {stack}` first")
    return read(exports)
