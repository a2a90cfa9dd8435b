"""What a stack exports, from plain facts: the same with Pulumi (`infra.stack`) and without it (`infra.direct`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proving_ground.infra import cost, outputs
from proving_ground.infra.cluster.labels import (
    MONITORING,
    RAY,
    SHARED_CLAIM,
    TRAINER_ACCOUNT,
    TRAINER_SERVICE,
    TRAINING,
)
from proving_ground.infra.cluster.training import template_name

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts
    from proving_ground.infra.config import Pool


def exports(facts: Facts) -> dict[str, Any]:
    """The contract, but for what a cloud adds to it."""
    environment = facts.environment
    return outputs.to_exports(
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
