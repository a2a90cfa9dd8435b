"""What an environment is: the typed configuration of a stack, and its one reader. For `infra.program`.

The values stand in `Pulumi.<stack>.yaml` under `proving-ground:environment`. Environment variables named
`PROVING_GROUND_INFRA__<KEY>__<KEY>` go over them (`PROVING_GROUND_INFRA__POOLS__0__MAX_NODES=4`). Nothing else in
`infra` reads configuration: components get these objects. Imports without pulumi.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from proving_ground.infra import checks, migrate
from proving_ground.infra.reading import ConfigError, allowed, build

HERE = Path(__file__).parents[2]
ROOT = HERE if (HERE / "Pulumi.yaml").exists() else Path.cwd()
"""Where the stacks are: the clone; for an installed copy the folder that it is called in."""
KEY = "proving-ground:environment"
PREFIX = "PROVING_GROUND_INFRA__"
STACKS = ("local", "dev", "staging", "prod")


@dataclass(frozen=True)
class Pool:
    """Machines that train. `skus` are tried in this order when one cannot be had; `gpu` None means CPU only."""

    name: str
    max_nodes: int
    min_nodes: int = 0
    nodes: int = 0  # to start with
    gpu: str | None = None
    skus: tuple[str, ...] = ()
    autoscale: bool = True
    idle_timeout_s: int = 600
    spot: bool = False
    zones: tuple[str, ...] = ()


@dataclass(frozen=True)
class SystemPool:
    """Machines for the cluster's own pods and for monitoring; never GPUs."""

    sku: str = "Standard_D4s_v5"
    min_nodes: int = 1
    max_nodes: int = 3
    zones: tuple[str, ...] = ()


@dataclass(frozen=True)
class Network:
    """Address ranges (CIDR); none may overlap another. `admin_cidrs` may reach a public API server."""

    space: str = "10.40.0.0/16"
    nodes: str = "10.40.0.0/18"
    endpoints: str = "10.40.64.0/24"
    ml: str = "10.40.68.0/22"
    services: str = "10.41.0.0/16"
    pods: str = "10.42.0.0/16"
    admin_cidrs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operators:
    """The network of the machines that run `up`, `reap`, `health` and bench: the way into a private stack.

    `network` is a virtual network's id, in any subscription of the same tenant; `cidr` its addresses.
    """

    network: str
    cidr: str


@dataclass(frozen=True)
class MlCompute:
    """Azure ML's own compute cluster, beside AKS."""

    sku: str
    max_nodes: int
    min_nodes: int = 0
    idle_timeout_s: int = 600
    spot: bool = False


@dataclass(frozen=True)
class Storage:
    """Where checkpoints and data are kept. `share_gib` is the read-write-many share (a premium share has ≥100 GiB)."""

    replication: Literal["LRS", "ZRS", "GZRS"] = "LRS"
    share_gib: int = 1024
    keep_deleted_days: int = 14
    cool_after_days: int = 30
    keep_versions_days: int = 180  # of what was replaced or deleted; what is current is never deleted by age
    protected: bool = False  # `down` and `reap` leave checkpoints, data and backups where they are


@dataclass(frozen=True)
class Budget:
    """Money a month; a mail at each of `alerts_percent`; at the last one `pg infra reap` ends the stack."""

    monthly_usd: int
    emails: tuple[str, ...]
    alerts_percent: tuple[int, ...] = (50, 80, 100, 125)


@dataclass(frozen=True)
class Azure:
    """All that is particular to Azure."""

    location: str
    unique: str  # any text of your own; makes the worldwide names yours
    budget: Budget
    kubernetes_version: str = "1.33"
    private_cluster: bool = False
    system_pool: SystemPool = field(default_factory=SystemPool)
    network: Network = field(default_factory=Network)
    operators: Operators | None = None  # a private cluster needs them
    storage: Storage = field(default_factory=Storage)
    ml_compute: MlCompute | None = None
    log_retention_days: int = 30
    admin_group_ids: tuple[str, ...] = ()  # Entra groups of who runs `up`; none: who runs the first one


@dataclass(frozen=True)
class Volume:
    """The shared volume of checkpoints and data. `source` is a node's path, or the NFS export's path."""

    kind: Literal["host_path", "storage_class", "nfs", "azure_file"] = "host_path"
    size_gib: int = 10
    source: str = "/var/lib/proving-ground"
    server: str | None = None  # nfs
    storage_class: str | None = None  # None: the cluster's default class


@dataclass(frozen=True)
class Ports:
    """The only ports open between trainers: `rendezvous`, and `first` to `last` for the collectives."""

    rendezvous: int = 29500
    first: int = 30000
    last: int = 30999


@dataclass(frozen=True)
class Kubernetes:
    """What goes on the cluster. `images` replaces single images (keys: `infra.cluster.images`)."""

    context: str | None = None  # of the kubeconfig; only where no cloud makes the cluster
    images: Mapping[str, str] = field(default_factory=dict)
    volume: Volume = field(default_factory=Volume)
    ports: Ports = field(default_factory=Ports)
    ray_workers: int | None = None  # of the first pool; None: no Ray at all
    retention_days: int = 15
    node_exporter_port: int = 9100  # of each node; another one where something else has it
    prometheus_operator: bool = False  # the cluster has the operator: the rules become PrometheusRule objects too
    runbook_base: str | None = None  # address below which the repository's files can be read; alerts link there
    api_port: int = 443
    wait: bool = True  # `up` and `down` end when what they made works, or is gone; false: when the cluster has taken it


@dataclass(frozen=True)
class Environment:
    """One stack, whole."""

    version: int
    name: str
    owner: str
    cloud: Literal["none", "azure"]
    pools: tuple[Pool, ...]
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    azure: Azure | None = None
    ttl_hours: int | None = None

    @property
    def has_gpus(self) -> bool:
        """Whether any pool carries accelerators."""
        return any(pool.gpu for pool in self.pools)


def read(data: Mapping[str, Any], stack: str, environ: Mapping[str, str] | None = None) -> Environment:
    """The environment from plain data: migrated, overridden, typed and checked.

    Raises:
        ConfigError: one line with the key, what is wrong, and what is allowed.
    """
    current = migrate.to_current(data)
    for variable, value in sorted((os.environ if environ is None else environ).items()):
        if variable.startswith(PREFIX):
            current = override(current, variable, _value(variable, value))
    environment = build(Environment, current, "")
    if environment.name != stack:
        raise ConfigError(f"name: {environment.name!r} is not the stack's; allowed: {stack}")
    checks.check(environment)
    return environment


def _value(variable: str, text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{variable}: {text!r} is not YAML: {' '.join(str(error).split())}") from None


def override(data: Any, variable: str, value: object) -> Any:  # noqa: ANN401 - plain data
    """A copy of `data` with the value at the variable's path replaced; list items are numbered from 0.

    Raises:
        ConfigError: the path leads through a list item that does not exist.
    """
    return _put(data, variable.removeprefix(PREFIX).lower().split("__"), value, variable)


def _put(data: Any, path: list[str], value: object, variable: str) -> Any:  # noqa: ANN401 - plain data
    if not path:
        return value
    head, *rest = path
    if isinstance(data, list):
        if not head.isdigit() or int(head) >= len(data):
            raise ConfigError(f"{variable}: there is no item {head!r}; allowed: 0 to {len(data) - 1}")
        return [_put(item, rest, value, variable) if number == int(head) else item for number, item in enumerate(data)]
    mapping = data if isinstance(data, Mapping) else {}
    return {**mapping, head: _put(mapping.get(head), rest, value, variable)}


def load(stack: str, root: Path = ROOT, environ: Mapping[str, str] | None = None) -> Environment:
    """The environment of a stack from its file `Pulumi.<stack>.yaml`, without the Pulumi program around it.

    Raises:
        ConfigError: no such stack, unreadable, no YAML, or what `read` refuses.
    """
    file, stacks = root / f"Pulumi.{stack}.yaml", known(root)
    if not stacks:
        raise ConfigError(f"{root}: no Pulumi.STACK.yaml here; allowed: a clone of the project")
    if stack not in stacks:
        raise ConfigError(f"stack {stack!r}: there is no {file.name}; {allowed(stack, stacks)}")
    try:
        document = yaml.safe_load(file.read_text()) or {}
        data = document["config"][KEY]
    except OSError as error:
        raise ConfigError(f"{file.name}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f"{file.name}: not YAML: {' '.join(str(error).split())}") from None
    except (KeyError, TypeError):
        raise ConfigError(f"{file.name}: config.{KEY} is missing") from None
    return read(data, stack, environ)


def known(root: Path = ROOT) -> list[str]:
    """The stacks that have a file, the project's own first."""
    found = {file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in root.glob("Pulumi.*.yaml")}
    return [stack for stack in STACKS if stack in found] + sorted(found - set(STACKS))
