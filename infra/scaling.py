"""Pools that wanted to grow and could not: what the cluster autoscaler says, and which size to try next.

`up` sees only machines that it makes itself; a pool that starts with none meets a lack of quota or capacity when the
first job comes. The autoscaler then backs off and says so in a ConfigMap. Called by `infra.health` and `pg infra
retry`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import yaml

from proving_ground.infra.config import Pool

STATUS = "cluster-autoscaler-status"
"""The ConfigMap in kube-system; source: "Use the cluster autoscaler in AKS", learn.microsoft.com/azure/aks."""
GROUP = re.compile(r"aks-(?P<pool>[a-z0-9]+)-\d+-vmss")  # how AKS names a pool's scale set


def stuck(status: str) -> dict[str, str]:
    """Pool → why it does not grow now, from the autoscaler's status (YAML; fields as in its `api/types.go`)."""
    found = yaml.safe_load(status) or {}
    groups = found.get("nodeGroups") or [] if isinstance(found, Mapping) else []
    reasons = {}
    for group in groups:
        match, growing = GROUP.fullmatch(str(group.get("name"))), group.get("scaleUp") or {}
        if match and growing.get("status") == "Backoff":
            info = growing.get("backoffInfo") or {}
            said = " ".join(str(info.get(key, "")) for key in ("errorCode", "errorMessage"))
            reasons[match["pool"]] = " ".join(said.split()) or "no reason given"
    return reasons


def following(
    pools: Iterable[Pool], sizes: Mapping[str, str], reasons: Mapping[str, str], nodes: Mapping[str, tuple[int, int]]
) -> dict[str, str]:
    """Pool → the next size of its list, for pools that do not grow and have no node that a change would take away."""
    return {
        pool.name: pool.skus[(pool.skus.index(sizes[pool.name]) + 1) % len(pool.skus)]
        for pool in pools
        if pool.name in reasons and len(pool.skus) > 1 and sizes.get(pool.name) in pool.skus
        if nodes.get(pool.name, (0, 0))[1] == 0
    }
