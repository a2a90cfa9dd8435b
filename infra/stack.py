"""One stack, whole: the cloud where there is one, what goes on the cluster, what is exported. For `infra.program`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_kubernetes

from infra import cost, outputs
from infra.azure.environment import OnAzure, stand_up
from infra.cluster.apply import OnCluster
from infra.cluster.everything import manifests
from infra.cluster.facts import Facts
from infra.cluster.labels import MONITORING, RAY, SHARED_CLAIM, TRAINER_ACCOUNT, TRAINER_SERVICE, TRAINING
from infra.cluster.training import template_name
from infra.config import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.config import Environment, Pool


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
    facts = gather(environment, secrets, chosen, made)
    cluster = made.aks.cluster if made else None
    OnCluster(manifests(facts), _provider(environment, made), cluster=cluster, wait=environment.kubernetes.wait)
    return _exports(facts, made)


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
        rules=files(ROOT / "monitoring" / "rules", "*.y*ml"),
        dashboards=files(ROOT / "monitoring" / "dashboards", "*.json"),
    )


def files(folder: Path, pattern: str) -> dict[str, str]:
    """File name → text, tests of rules left out; empty where the folder does not exist."""
    found = sorted(file for file in folder.glob(pattern) if "test" not in file.stem)
    return {file.name: file.read_text() for file in found}


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


def _exports(facts: Facts, made: OnAzure | None) -> dict[str, Any]:
    environment = facts.environment
    exports = outputs.to_exports(
        outputs.StackOutputs(
            schema=outputs.SCHEMA,
            environment=environment.name,
            kubeconfig=None,
            context=environment.kubernetes.context,
            namespace=TRAINING,
            service_account=TRAINER_ACCOUNT,
            headless_service=TRAINER_SERVICE,
            claim=SHARED_CLAIM,
            rendezvous_port=environment.kubernetes.ports.rendezvous,
            pools=tuple(_pool(pool, facts) for pool in environment.pools),
            prometheus=f"http://prometheus.{MONITORING}:9090",
            loki=f"http://loki.{MONITORING}:3100",
            ray_client=None if environment.kubernetes.ray_workers is None else f"ray://ray-head.{RAY}:10001",
            ttl_hours=environment.ttl_hours,
        )
    )
    return {**exports, "kubeconfig": made.kubeconfig, "azure": _azure(made)} if made else exports


def _pool(pool: Pool, facts: Facts) -> outputs.PoolOutput:
    sku = facts.skus.get(pool.name)
    usd = cost.price(cost.load(), sku).hourly(spot=pool.spot)[0] if sku and facts.on_azure else None
    return outputs.PoolOutput(
        name=pool.name,
        max_nodes=pool.max_nodes,
        gpu=pool.gpu,
        gpus_per_node=facts.gpus(pool.name),
        spot=pool.spot,
        pod_template=template_name(pool.name),
        usd_per_hour=usd,
        sku=sku,
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
