"""Where a run can take place. A cluster is chosen by name; `auto` takes the best that this machine allows."""

from __future__ import annotations

from collections.abc import Callable

from bench.clusters.fake import FakeCluster
from bench.clusters.local import ISOLATION, LocalCluster
from bench.protocols import Cluster
from bench.spec import SpecError

__all__ = ["CLUSTERS", "ISOLATION", "choose"]

CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "local": LocalCluster,
    "fake": FakeCluster,
}


def choose(name: str) -> tuple[Cluster, str]:
    """The cluster called `name` and why it is this one.

    Raises:
        SpecError: there is none of that name.
    """
    if name == "auto":
        cluster = LocalCluster()
        missing = [it.name.replace("_", " ") for it in cluster.abilities() if it.name in ISOLATION and not it.yes]
        return cluster, "chosen by itself: nodes on this machine" + (
            f", without {', '.join(missing)}" if missing else ", all of it isolated"
        )
    if name not in CLUSTERS:
        raise SpecError(f"unknown cluster {name!r}; allowed: auto, {', '.join(CLUSTERS)}")
    return CLUSTERS[name](), "as asked"
