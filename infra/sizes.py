"""Which machine size each pool has: the one in the stack's state, until somebody or a failure chooses another.

Another size replaces a pool with all its machines, so neither the order of a list nor the machine that `up` runs on may
decide it: what the state holds stays. `infra.life` hands its choice to the program in the environment (`VARIABLE`).
Called by `infra.program` and `infra.stacks`. Imports without pulumi.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from proving_ground.infra.config import Pool
from proving_ground.infra.reading import ConfigError

VARIABLE = "PROVING_GROUND_SKUS"
POOL = "azure-native:containerservice:AgentPool"
READ_STATE = "pulumi:pulumi:readStackResourceOutputs"
"""What the engine itself answers of a stack's state, that of the program's own stack included."""


def chosen(pools: Iterable[Pool], environ: Mapping[str, str], state: Mapping[str, str]) -> dict[str, str]:
    """The size of each pool: the one chosen now, else the one it has, else the first of its list.

    Raises:
        ConfigError: the environment's choice is no mapping in JSON.
    """
    try:
        wish = dict(json.loads(environ.get(VARIABLE, "{}")))
    except (ValueError, TypeError):
        raise ConfigError(
            f"{VARIABLE}: {environ[VARIABLE]!r} is not allowed; allowed: {{pool: size}} as JSON"
        ) from None
    return {
        pool.name: next((sku for sku in (wish.get(pool.name), state.get(pool.name)) if sku in pool.skus), pool.skus[0])
        for pool in pools
        if pool.skus
    }


def of_engine(answer: Mapping[str, Any]) -> dict[str, str]:
    """Pool → size, from what the engine answers to READ_STATE; nothing before the first `up`."""
    found = [item["outputs"] for item in answer.get("outputs", {}).values() if item["type"] == POOL]
    return {item["name"]: item["vmSize"] for item in found}


def of_export(deployment: Mapping[str, Any]) -> dict[str, str]:
    """Pool → size, from the deployment that `pulumi stack export` prints; nothing before the first `up`."""
    found = [item["inputs"] for item in deployment.get("resources") or [] if item["type"] == POOL]
    return {item["agentPoolName"]: item["vmSize"] for item in found}
