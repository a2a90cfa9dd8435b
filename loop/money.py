"""What the machines of a stack cost, by its own prices: before it is up, while it is, and of one node in the tables.

Predicted from list prices, and of machines alone: disks, traffic and control plane come on top. Called by `loop.cli`,
`loop.drive` and `loop.keeper`.
"""

from __future__ import annotations

from collections.abc import Mapping

from proving_ground.bench.clusters.remote.stacks import pool_of
from proving_ground.infra import config, cost, health, outputs
from proving_ground.infra.cluster.facts import Facts
from proving_ground.infra.exports import exports
from proving_ground.infra.outputs import StackOutputs
from proving_ground.infra.reading import ConfigError
from proving_ground.loop.ledger import Asked, Spent

NO_POOL, SYSTEM = "-", "system"
"""A machine of no pool, as `infra.health` has it, and what it is in the estimate."""


def estimate(asked: Asked) -> cost.Estimate:
    """What the stack costs for the hours that were asked for.

    Raises:
        ConfigError: there is no such stack, or even its least is more than the budget.
    """
    made = cost.estimate(config.load(asked.stack), cost.load(), asked.hours)
    if asked.budget_usd is not None and made.least > asked.budget_usd:
        least = f"{asked.stack} costs ${made.least:,.2f} at least for {asked.hours:g} h"
        raise ConfigError(f"--budget {asked.budget_usd:g}: {least}; fewer --hours, or more money")
    return made


def expected(stack: str) -> StackOutputs:
    """What a stack would export, as it is configured."""
    environment = config.load(stack)
    first = {pool.name: pool.skus[0] for pool in environment.pools if pool.skus}
    return outputs.read(exports(Facts(environment, first)))


def of_a_node(asked: Asked, stack: StackOutputs) -> float | None:
    """Dollars an hour of a node of the pool that is measured; None where nobody bills for it.

    Of several, which are tried in turn (`a+b`), the dearest's: no table may say less than what comes.

    Raises:
        SpecError: it has no such pool.
    """
    found = (pool_of(stack, name).usd_per_hour for name in (asked.pool or "").split("+"))
    return max((it for it in found if it is not None), default=None)


def container_of(asked: Asked, stack: StackOutputs) -> str | None:
    """Where a backup goes; None where neither the caller nor the stack has a place."""
    own = f"{stack.azure.blob_endpoint.rstrip('/')}/backups" if stack.azure else None
    return asked.container or own


def prices(asked: Asked) -> dict[str, float]:
    """Machine's pool → dollars an hour; empty where nobody bills for any."""
    return {line.name: line.usd_per_hour for line in estimate(asked).lines}


def least(asked: Asked) -> dict[str, int]:
    """How many machines each pool has at least."""
    return {line.name: line.least for line in estimate(asked).lines}


def read(asked: Asked, before: Spent, now: float) -> Spent:
    """A new reading of the meter: the hours since the last one at its rate, and the rate from now on.

    Where the cluster cannot be asked, it is as it was; before it could be asked at all, at its least.
    """
    known = prices(asked)
    if not known:
        return Spent(at=now)
    try:
        found = outputs.load(asked.stack)
        nodes = counted(health.look(found).nodes)
        known |= {it.name: it.usd_per_hour for it in found.pools if it.usd_per_hour is not None}
    except (ConfigError, OSError, ValueError):
        nodes = dict(before.nodes) or least(asked)
    rate = sum(known.get(pool, 0.0) * count for pool, count in nodes.items())
    return Spent(before.until(now), rate, now, nodes)


def counted(nodes: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Machines by pool, ready or not: both are paid for."""
    return {SYSTEM if pool == NO_POOL else pool: everyone for pool, (_, everyone) in nodes.items()}
