"""One stack, whole: the cloud where there is one, what goes on the cluster, what is exported. For `infra.program`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.azure.environment import OnAzure, stand_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pulumi

    from infra.config import Environment


@dataclass(frozen=True)
class Secrets:
    """Pulumi secrets from the configuration."""

    grafana_password: pulumi.Output[str]
    webhook: pulumi.Output[str] | None = None


def build(environment: Environment, secrets: Secrets, skus: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Declare every resource; the exports by name (`infra.outputs.StackOutputs`).

    `skus`: pool → size, where an earlier one of the pool's list could not be had (`infra.life`).
    """
    made = _cloud(environment, skus or {})
    return {"kubeconfig": made.kubeconfig if made else None}


def _cloud(environment: Environment, skus: Mapping[str, str]) -> OnAzure | None:
    if environment.azure is None:
        return None
    chosen = {pool.name: skus.get(pool.name, pool.skus[0]) for pool in environment.pools}
    return stand_up(environment, environment.azure, chosen)
