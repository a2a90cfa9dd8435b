"""What is impossible in a configuration, found before anything is created. Called by `infra.config.read`.

`CHECKS` is a list of functions, each yielding one line a problem: the key, the value, what is allowed.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from proving_ground.infra import naming
from proving_ground.infra.cluster.images import IMAGES
from proving_ground.infra.reading import ConfigError
from proving_ground.infra.reading import allowed as allowed_of
from proving_ground.infra.skus import GPUS, SKUS, with_gpu

if TYPE_CHECKING:  # of what is checked, whose reader calls this module
    from proving_ground.infra.config import Azure, Environment, Kubernetes, MlCompute, Pool

KUBELET_PORT = 10250
MOST_NODES = 1000  # what one AKS node pool takes
SHARE_GIB = range(100, 102_401)  # a premium file share
SERVICE_MASK = 12  # AKS: a service range is smaller than /12
ALERTS = 4  # "Budget can have up to five notifications" (Microsoft.Consumption/budgets); the forecast's mail is one
NETWORK_ID = re.compile(r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft.Network/virtualNetworks/[^/]+")


def check(environment: Environment) -> None:
    """Refuse a configuration that cannot work.

    Raises:
        ConfigError: the first problem found.
    """
    for problems in CHECKS:
        for problem in problems(environment):
            raise ConfigError(problem)


def cloud(environment: Environment) -> Iterator[str]:
    """`azure` is there exactly where the cloud is Azure."""
    if environment.cloud == "azure" and environment.azure is None:
        yield "azure: missing; cloud azure needs it"
    if environment.cloud == "none" and environment.azure is not None:
        yield "azure: given, but cloud is none; allowed: cloud azure, or no azure"


def names(environment: Environment) -> Iterator[str]:
    """Names that Azure takes, at their longest."""
    if not naming.ENVIRONMENT_PATTERN.fullmatch(environment.name):
        yield f"name: {environment.name!r} is not allowed; allowed: lower-case letters and digits, a letter first"
    for kind in naming.RULES if environment.cloud == "azure" else ():
        naming.name(kind, environment.name, "x")
    seen = [pool.name for pool in environment.pools]
    for number, pool in enumerate(environment.pools):
        where = f"pools[{number}].name: {pool.name!r}"
        if not naming.POOL_PATTERN.fullmatch(pool.name) or pool.name == "system":
            yield f"{where} is not allowed; allowed: lower-case letters and digits, a letter first, not system"
        if len(pool.name) > naming.POOL_LONGEST:
            yield f"{where} is too long; allowed: up to {naming.POOL_LONGEST} characters"
        if seen.count(pool.name) > 1:
            yield f"{where} is used twice; allowed: each name once"


def pools(environment: Environment) -> Iterator[str]:
    """At least one pool, each of a possible size and of machines that have what it says."""
    if not environment.pools:
        yield "pools: empty; allowed: one or more"
    for number, pool in enumerate(environment.pools):
        yield from _pool_size(pool, f"pools[{number}]")
        yield from _pool_skus(pool, f"pools[{number}]", on_azure=environment.cloud == "azure")


def _pool_size(pool: Pool, where: str) -> Iterator[str]:
    if not 1 <= pool.max_nodes <= MOST_NODES:
        yield f"{where}.max_nodes: {pool.max_nodes} is not allowed; allowed: 1 to {MOST_NODES}"
    if not 0 <= pool.min_nodes <= pool.max_nodes:
        yield f"{where}.min_nodes: {pool.min_nodes} is not allowed; allowed: 0 to max_nodes ({pool.max_nodes})"
    if not pool.min_nodes <= pool.nodes <= pool.max_nodes:
        allowed = f"min_nodes to max_nodes ({pool.min_nodes} to {pool.max_nodes})"
        yield f"{where}.nodes: {pool.nodes} is not allowed; allowed: {allowed}"
    if pool.idle_timeout_s < 60:  # the autoscaler counts in minutes
        yield f"{where}.idle_timeout_s: {pool.idle_timeout_s} is not allowed; allowed: 60 and more"


def _pool_skus(pool: Pool, where: str, *, on_azure: bool) -> Iterator[str]:
    if pool.gpu is not None and pool.gpu not in GPUS:
        yield f"{where}.gpu: {pool.gpu!r} is not known; {allowed_of(pool.gpu, GPUS)}"
        return
    if on_azure and not pool.skus:
        yield f"{where}.skus: empty; allowed: one or more, tried in this order"
    for index, sku in enumerate(pool.skus):
        if sku not in SKUS:
            yield f"{where}.skus[{index}]: {sku!r} is not known; {allowed_of(sku, SKUS)}"
        elif pool.gpu is not None and SKUS[sku].gpu is None:
            allowed = ", ".join(with_gpu(pool.gpu))
            yield f"{where}.skus[{index}]: {sku} has no GPU, the pool says {pool.gpu}; allowed: {allowed}"
        elif pool.gpu is None and SKUS[sku].gpu is not None:
            allowed = f"a size without, or gpu: {SKUS[sku].gpu}"
            yield f"{where}.skus[{index}]: {sku} has GPUs, the pool says none; allowed: {allowed}"
        elif SKUS[sku].infiniband and pool.max_nodes > 1:
            yield f"{where}.skus[{index}]: {_infiniband(sku, pool)}"


def _infiniband(sku: str, pool: Pool) -> str:
    """Why several such machines are refused, and what to take instead.

    AKS wires nothing by itself: pods see InfiniBand only through NVIDIA's network operator, an RDMA device plugin and
    the feature AKSInfinibandSupport, and need IPC_LOCK (azure.github.io/aks-rdma-infiniband). None of it is here.
    """
    others = [name for name in with_gpu(SKUS[sku].gpu or "") if not SKUS[name].infiniband]
    allowed = ", ".join((f"max_nodes: 1 (it is {pool.max_nodes})", *others))
    return f"{sku} is paid for its InfiniBand, which is not wired on the cluster; allowed: {allowed}"


def network(environment: Environment) -> Iterator[str]:
    """Address ranges that are valid, inside the network's space, and apart from each other."""
    if environment.azure is None:
        return
    given = environment.azure.network
    where = "azure.network"
    ranges: dict[str, ipaddress.IPv4Network] = {}
    for key in ("space", "nodes", "endpoints", "ml", "services", "pods"):
        try:
            ranges[key] = ipaddress.IPv4Network(getattr(given, key))
        except ValueError as error:
            yield f"{where}.{key}: {getattr(given, key)!r} is no address range ({error}); allowed: like 10.40.0.0/16"
            return
    for key in ("nodes", "endpoints", "ml"):
        if not ranges[key].subnet_of(ranges["space"]):
            yield f"{where}.{key}: {ranges[key]} is outside {where}.space; allowed: within {ranges['space']}"
    apart = [("nodes", "endpoints", "ml"), ("space", "services", "pods")]
    for first, second in itertools.chain.from_iterable(itertools.combinations(group, 2) for group in apart):
        if ranges[first].overlaps(ranges[second]):
            pair = f"{ranges[second]} overlaps {where}.{first} ({ranges[first]})"
            yield f"{where}.{second}: {pair}; allowed: ranges that do not overlap"
    yield from _operators(environment.azure, ranges)
    if ranges["services"].prefixlen <= SERVICE_MASK:
        yield f"{where}.services: {ranges['services']} is too large; allowed: smaller than a /{SERVICE_MASK}"


def _operators(azure: Azure, ranges: Mapping[str, ipaddress.IPv4Network]) -> Iterator[str]:
    """A private API server has a way in, from a network that can be peered: one that overlaps nothing of ours."""
    where, given = "azure.operators", azure.operators
    if given is None:
        if azure.private_cluster:
            allowed = "network and cidr, or private_cluster: false"
            yield f"{where}: missing, and the API server is private; allowed: {allowed}"
        return
    if not NETWORK_ID.fullmatch(given.network):
        allowed = "/subscriptions/…/resourceGroups/…/providers/Microsoft.Network/virtualNetworks/…"
        yield f"{where}.network: {given.network!r} is no network's id; allowed: {allowed}"
    try:
        cidr = ipaddress.IPv4Network(given.cidr)
    except ValueError as error:
        yield f"{where}.cidr: {given.cidr!r} is no address range ({error}); allowed: like 10.50.0.0/24"
        return
    for key in ("space", "services", "pods"):
        if cidr.overlaps(ranges[key]):
            pair = f"{cidr} overlaps azure.network.{key} ({ranges[key]})"
            yield f"{where}.cidr: {pair}; allowed: ranges that do not overlap"


def azure_values(environment: Environment) -> Iterator[str]:
    """Sizes, sums and dates that Azure takes."""
    azure = environment.azure
    if azure is None:
        return
    if azure.storage.share_gib not in SHARE_GIB:
        allowed = f"{SHARE_GIB.start} to {SHARE_GIB.stop - 1}"
        yield f"azure.storage.share_gib: {azure.storage.share_gib} is not allowed; allowed: {allowed}"
    if azure.system_pool.sku not in SKUS or SKUS[azure.system_pool.sku].gpu:
        allowed = ", ".join(name for name, sku in SKUS.items() if not sku.gpu)
        yield f"azure.system_pool.sku: {azure.system_pool.sku!r} is not allowed; allowed: {allowed}"
    pool = azure.system_pool
    if not 1 <= pool.min_nodes <= pool.max_nodes:
        yield f"azure.system_pool.min_nodes: {pool.min_nodes} is not allowed; allowed: 1 to {pool.max_nodes}"
    if not azure.private_cluster and not azure.network.admin_cidrs:
        allowed = "one or more ranges, or private_cluster: true"
        yield f"azure.network.admin_cidrs: empty, and the API server is public; allowed: {allowed}"
    yield from _budget(azure)
    if azure.ml_compute is not None:
        yield from _ml_compute(azure.ml_compute)


def _budget(azure: Azure) -> Iterator[str]:
    budget = azure.budget
    if budget.monthly_usd <= 0:
        yield f"azure.budget.monthly_usd: {budget.monthly_usd} is not allowed; allowed: 1 and more"
    if not budget.emails:
        yield "azure.budget.emails: empty; allowed: one or more addresses"
    if 125 not in budget.alerts_percent or len(budget.alerts_percent) > ALERTS:
        given = list(budget.alerts_percent)
        yield f"azure.budget.alerts_percent: {given} is not allowed; allowed: up to {ALERTS} values with 125 among them"


def _ml_compute(compute: MlCompute) -> Iterator[str]:
    if compute.sku not in SKUS:
        yield f"azure.ml_compute.sku: {compute.sku!r} is not known; {allowed_of(compute.sku, SKUS)}"
    if not 0 <= compute.min_nodes <= compute.max_nodes or compute.max_nodes < 1:
        allowed = f"0 to max_nodes ({compute.max_nodes})"
        yield f"azure.ml_compute.min_nodes: {compute.min_nodes} is not allowed; allowed: {allowed}"


def kubernetes(environment: Environment) -> Iterator[str]:
    """Volumes, ports and images that fit together."""
    volume, ports = environment.kubernetes.volume, environment.kubernetes.ports
    if volume.size_gib < 1:
        yield f"kubernetes.volume.size_gib: {volume.size_gib} is not allowed; allowed: 1 and more"
    if volume.kind == "nfs" and not volume.server:
        yield "kubernetes.volume.server: missing; a volume of kind nfs needs it"
    if volume.kind == "azure_file" and environment.cloud != "azure":
        yield "kubernetes.volume.kind: azure_file needs cloud azure; allowed here: host_path, storage_class, nfs"
    if not (1024 <= ports.rendezvous < ports.first < ports.last <= 65_535):  # the ports that are not privileged
        yield (
            f"kubernetes.ports: rendezvous {ports.rendezvous}, first {ports.first}, last {ports.last}; "
            "allowed: 1024 ≤ rendezvous < first < last ≤ 65535"
        )
    yield from _monitoring(environment.kubernetes)
    for key in environment.kubernetes.images:
        if key not in IMAGES:
            yield f"kubernetes.images.{key}: unknown image; {allowed_of(key, IMAGES)}"


def _monitoring(kubernetes: Kubernetes) -> Iterator[str]:
    """A port that is no other's on a node, and an address that a browser opens."""
    port, base = kubernetes.node_exporter_port, kubernetes.runbook_base
    if not 1024 <= port <= 65_535 or port == KUBELET_PORT:
        yield f"kubernetes.node_exporter_port: {port} is not allowed; allowed: 1024 to 65535, but {KUBELET_PORT}"
    if base is not None and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", base):
        yield f"kubernetes.runbook_base: {base!r} is no address; allowed: https://HOST/PATH, or null"


def lifetime(environment: Environment) -> Iterator[str]:
    """A time to live that is one."""
    if environment.ttl_hours is not None and environment.ttl_hours < 1:
        yield f"ttl_hours: {environment.ttl_hours} is not allowed; allowed: 1 and more, or null for no end"
    if environment.ttl_hours is not None and environment.azure is not None and environment.azure.storage.protected:
        yield "azure.storage.protected: true, and the stack has a time to live; allowed: false, or ttl_hours: null"


CHECKS: tuple[Callable[[Environment], Iterator[str]], ...] = (
    cloud,
    names,
    pools,
    network,
    azure_values,
    kubernetes,
    lifetime,
)
