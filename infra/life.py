"""A stack's life from Python: up with fall-back over sizes, queue, time to live. Called by `pg infra`.

`Stack` is what is asked of the Pulumi CLI (`infra.stacks`); tests put a double in its place.
"""

from __future__ import annotations

import datetime as dt
import json
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from proving_ground.infra.config import ROOT, Environment, Pool
from proving_ground.infra.reading import ConfigError
from proving_ground.infra.trouble import Trouble, classify, why

QUEUE = ROOT / ".proving-ground" / "queue.json"
WEBHOOK_TIMEOUT_S = 10

Say = Callable[[str], None]


class Stack(Protocol):
    """What is asked of a stack."""

    def up(self) -> None:
        """Make it so. Raises `StackError` with the provider's message."""

    def preview(self) -> None:
        """Say what `up` would do."""

    def destroy(self, *, cluster_gone: bool = False) -> None:
        """Take all of it away but what is protected; `cluster_gone`: forget what was on a cluster that is no more."""

    def mend(self, *, force: bool = False) -> None:
        """Bring the state back in order after a command that was killed; `force`: whoever holds its lock."""

    def waiting(self) -> str | None:
        """Why it waits for machines; None where it does not."""

    def set_waiting(self, reason: str | None) -> None:
        """Note that with the stack itself, so that every machine knows it."""

    def skus(self) -> Mapping[str, str]:
        """The size that each pool has; nothing before the first `up`."""

    def set_skus(self, skus: Mapping[str, str]) -> None:
        """Choose the size of each pool for the next `up`."""

    def created(self) -> dt.datetime | None:
        """When the present resources were first made; None when there are none."""


class StackError(RuntimeError):
    """The provider's or Pulumi's message."""


class InterruptedStackError(StackError):
    """The user stopped it; the state is consistent."""


@dataclass(frozen=True)
class Result:
    """How an `up` ended: `up`, `queued` (no machine to be had) or `failed`, why, step by step, and the exit status."""

    outcome: str
    skus: Mapping[str, str]
    steps: tuple[str, ...]
    status: int = 1


def provision(stack: Stack, environment: Environment, say: Say, instead: Mapping[str, str] | None = None) -> Result:
    """Bring the stack up; where a pool's size cannot be had, try the next of its list, and say in detail why.

    It starts from the sizes that the pools have, or those to take `instead`: a pool is not replaced without need.

    Raises:
        InterruptedStackError: the user stopped it.
    """
    kept = {**stack.skus(), **(instead or {})}
    untried = {pool.name: _sizes(pool, kept.get(pool.name)) for pool in environment.pools if pool.skus}
    chosen = {name: sizes.pop(0) for name, sizes in untried.items()}
    steps: list[str] = []
    while True:
        stack.set_skus(chosen)
        try:
            stack.up()
        except InterruptedStackError:
            raise
        except StackError as error:
            trouble, pool = classify(str(error)), blamed(str(error), environment.pools, chosen)
            steps.append(_told(trouble, pool, chosen, str(error)))
            say(steps[-1])
            if not trouble.try_next or pool is None:
                return Result("failed", chosen, tuple(steps), trouble.status)
            if not untried[pool.name]:
                return Result("queued", chosen, tuple(steps))
            chosen[pool.name] = untried[pool.name].pop(0)
        else:
            return Result("up", chosen, tuple(steps))


def blamed(message: str, pools: tuple[Pool, ...], chosen: Mapping[str, str]) -> Pool | None:
    """The pool that an error is about: named by its resource, else the only one with the size that is named."""
    by_name = [pool for pool in pools if pool.name in chosen and f"{pool.name}-pool" in message]
    by_size = [pool for pool in pools if pool.name in chosen and chosen[pool.name] in message]
    return next(iter(by_name or by_size), None)


def _sizes(pool: Pool, kept: str | None) -> list[str]:
    """The pool's sizes as they are tried: the kept one first."""
    return sorted(pool.skus, key=lambda sku: sku != kept)


def _told(trouble: Trouble, pool: Pool | None, chosen: Mapping[str, str], message: str) -> str:
    what = f"pool {pool.name}, {chosen[pool.name]}" if pool else "stack"
    return f"{what}: {trouble.kind}: {why(message)} ({trouble.advice})"


def explained(error: StackError) -> tuple[str, int]:
    """A failure in one line with what to do, and the exit status."""
    found = classify(str(error))
    return f"{found.kind}: {why(str(error))} ({found.advice})", found.status


def enqueue(environment: str, result: Result, now: dt.datetime, file: Path) -> None:
    """Remember a stack that waits for machines, since when, and why; `pg infra retry` tries it again."""
    waiting = queued(file)
    since = waiting.get(environment, {}).get("since", now.isoformat())
    waiting[environment] = {"since": since, "why": list(result.steps)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(waiting, indent=1) + "\n")


def dequeue(environment: str, file: Path) -> None:
    """Forget a stack that no longer waits."""
    waiting = queued(file)
    if waiting.pop(environment, None) is not None:
        file.write_text(json.dumps(waiting, indent=1) + "\n")


def queued(file: Path) -> dict[str, Any]:
    """The stacks that wait for machines.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{file}: not JSON: {error}; delete it to start an empty queue") from None
    return found


def notify(text: str, file: Path, webhook: str | None, now: dt.datetime) -> str | None:
    """Append a line to a file and post it to a webhook; why that did not work, or None. The address is never told."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(f"{now.isoformat()} {text}\n")
    if webhook is None:
        return None
    body, kind = json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(webhook, body, kind)  # noqa: S310 - the user's own address
        urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_S).close()  # noqa: S310 - same
    except (OSError, ValueError) as error:
        return f"the webhook could not be told: {type(error).__name__}"
    return None


def due(environment: Environment, created: dt.datetime | None, now: dt.datetime, spent_usd: float | None) -> str | None:
    """Why a stack must go now, or None: older than its time to live, or past the last step of its budget."""
    if created is None:
        return None
    hours = (now - created).total_seconds() / 3600
    if environment.ttl_hours is not None and hours >= environment.ttl_hours:
        return f"{environment.name}: {hours:.1f} hours old, its time to live is {environment.ttl_hours}"
    if environment.azure is None or spent_usd is None:
        return None
    budget = environment.azure.budget
    ceiling = budget.monthly_usd * max(budget.alerts_percent) / 100
    if spent_usd >= ceiling:
        return f"{environment.name}: ${spent_usd:.2f} spent this month, it stops at ${ceiling:.2f}"
    return None
