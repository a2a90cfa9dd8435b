"""All that goes on a cluster, in an order in which it can be made. Called by `infra.stack` and `infra.chart`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proving_ground.infra.cluster import access, dashboards, gpu, logs, metrics, networking, ray, training

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts
    from proving_ground.infra.cluster.manifest import Manifest

PARTS = (access, networking, training, gpu, ray, metrics, dashboards, logs)


def manifests(facts: Facts) -> list[Manifest]:
    """Every object, the same path for every environment."""
    return [manifest for part in PARTS for manifest in part.manifests(facts)]


def label(manifest: Manifest) -> str:
    """A name for an object that no other one of the cluster has: `namespace/kind/name`."""
    metadata = manifest["metadata"]
    return "/".join(part for part in (metadata.get("namespace"), manifest["kind"].lower(), metadata["name"]) if part)
