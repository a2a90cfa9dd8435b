"""One stack, whole: the cloud where there is one, what goes on the cluster, what is exported. For `infra.program`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_kubernetes

from proving_ground.infra.azure.environment import OnAzure, stand_up
from proving_ground.infra.cluster import facts
from proving_ground.infra.cluster.apply import OnCluster
from proving_ground.infra.cluster.everything import manifests
from proving_ground.infra.cluster.facts import Facts
from proving_ground.infra.exports import exports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proving_ground.infra.config import Environment


@dataclass(frozen=True)
class Secrets:
    """Pulumi secrets from the configuration."""

    grafana_password: pulumi.Output[str]
    webhook: pulumi.Output[str] | None = None


def build(environment: Environment, secrets: Secrets, skus: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Declare every resource; the exports by name (`infra.outputs.StackOutputs`).

    `skus`: pool → size, where an earlier one of the pool's list could not be had (`infra.life`).
    """
    chosen = {pool.name: (skus or {}).get(pool.name, pool.skus[0]) for pool in environment.pools if pool.skus}
    made = stand_up(environment, environment.azure, chosen) if environment.azure else None
    known = gather(environment, secrets, chosen, made)
    cluster = made.aks.cluster if made else None
    OnCluster(manifests(known), _provider(environment, made), cluster=cluster, wait=environment.kubernetes.wait)
    found = exports(known)
    return {**found, "kubeconfig": made.kubeconfig, "azure": _azure(made)} if made else found


def gather(environment: Environment, secrets: Secrets, skus: Mapping[str, str], made: OnAzure | None) -> Facts:
    """What the manifests need, from the configuration, the cloud and the files of `monitoring/`."""
    return Facts(
        environment=environment,
        skus=skus,
        grafana_password=secrets.grafana_password,
        webhook=secrets.webhook,
        trainer_client_id=made.trainer_client_id if made else None,
        file_account=made.file_account if made else None,
        file_key=made.file_key if made else None,
        rules=facts.rules(),
        dashboards=facts.dashboards(),
    )


def _provider(environment: Environment, made: OnAzure | None) -> pulumi_kubernetes.Provider:
    """The cluster that Azure made, or the one of the caller's kubeconfig."""
    return pulumi_kubernetes.Provider(
        "cluster",
        kubeconfig=made.kubeconfig if made else None,
        context=environment.kubernetes.context,
        enable_server_side_apply=True,
        enable_config_map_mutable=True,  # a change is an update: no moment without it, no pod that cannot start
        enable_secret_mutable=True,
        opts=pulumi.ResourceOptions(depends_on=list(made.ready) if made else []),
    )


def _azure(made: OnAzure) -> dict[str, Any]:
    return {
        "subscription": made.subscription,
        "resource_group": made.group,
        "registry": made.registry,
        "blob_endpoint": made.blob_endpoint,
        "checkpoint_container": "checkpoints",
        "ml_workspace": made.ml.workspace.name if made.ml else None,
        "ml_compute": made.ml.compute.name if made.ml else None,
    }
