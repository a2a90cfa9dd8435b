"""Where a run can take place. A cluster is chosen by name; `auto` takes the best that this machine allows.

Clusters elsewhere have options behind a colon: `ssh:host1,host2,volume=/shared`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.clusters.local.cluster import ISOLATION, LocalCluster
from proving_ground.bench.clusters.options import read_options
from proving_ground.bench.clusters.remote.cluster import AgentCluster
from proving_ground.bench.clusters.remote.kubernetes import KubernetesOptions, KubernetesPool
from proving_ground.bench.clusters.remote.ray import RayOptions, RayPool
from proving_ground.bench.clusters.remote.slurm import SlurmOptions
from proving_ground.bench.clusters.remote.slurm_array import pool_of
from proving_ground.bench.clusters.remote.ssh import SshOptions, SshPool
from proving_ground.bench.protocols import Cluster
from proving_ground.bench.spec import SpecError
from proving_ground.training.typed import unknown

__all__ = ["CLUSTERS", "ISOLATION", "POOLS", "choose", "elsewhere", "refuse_unknown"]

CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "local": LocalCluster,
    "fake": FakeCluster,
}
POOLS: dict[str, tuple[type[Any], Callable[[Any], Any]]] = {
    "ssh": (SshOptions, SshPool),
    "slurm": (SlurmOptions, pool_of),
    "kubernetes": (KubernetesOptions, KubernetesPool),
    "ray": (RayOptions, RayPool),
}
"""Engine → its options, and what makes its pool of machines of them."""
AUTO = "auto"


def choose(name: str) -> tuple[Cluster, str]:
    """The cluster called `name`, with its options behind a colon, and why it is this one.

    Raises:
        SpecError: there is none of that name, or its options make no sense.
    """
    refuse_unknown(name)
    if name == AUTO:
        cluster = LocalCluster()
        missing = [it.name.replace("_", " ") for it in cluster.abilities() if it.name in ISOLATION and not it.yes]
        return cluster, "chosen by itself: nodes on this machine" + (
            f", without {', '.join(missing)}" if missing else ", all of it isolated"
        )
    engine, _, words = name.partition(":")
    if engine in POOLS:
        options, kind = POOLS[engine]
        pool = kind(read_options(options, engine, words))
        return AgentCluster(pool, (isinstance(pool, SshPool) and pool.option) or name), "as asked"
    return CLUSTERS[name](), "as asked"


def refuse_unknown(name: str) -> None:
    """Refuse what is no cluster's name.

    Raises:
        SpecError: says which there are.
    """
    if name != AUTO and name not in CLUSTERS and name.partition(":")[0] not in POOLS:
        raise SpecError(unknown("cluster", name, [AUTO, *CLUSTERS, *(f"{it}:…" for it in POOLS)]))


def elsewhere(words: list[str]) -> bool:
    """Whether a command line asks for a cluster of other machines: then this one needs no namespaces."""
    return any(word.removeprefix("--cluster=").partition(":")[0] in POOLS for word in words)
