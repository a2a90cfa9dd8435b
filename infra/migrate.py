"""Configurations of older versions brought to the present one. Called by `infra.config.read`.

Version 1 had one `sku` a pool and the idle time in minutes; version 2 has the ordered list `skus` and `idle_timeout_s`.
Version 3 has no `azure.budget.start`, and `azure.storage.delete_after_days` is `keep_versions_days`: nothing current is
deleted by age.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proving_ground.infra.reading import ConfigError

CURRENT = 3


def to_current(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same configuration in the present version; `data` itself is left as it is.

    Raises:
        ConfigError: no version, or one that this release does not know.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"environment: must be a mapping, not {data!r}")
    current = dict(data)
    while current.get("version") != CURRENT:
        version = current.get("version")
        if not isinstance(version, int) or version not in STEPS:
            raise ConfigError(f"version: {version!r} is not known; allowed: {', '.join(map(str, (*STEPS, CURRENT)))}")
        current = STEPS[version](current)
    return current


def _from_1(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "version": 2, "pools": [_pool_from_1(dict(pool)) for pool in data.get("pools", [])]}


def _pool_from_1(pool: dict[str, Any]) -> dict[str, Any]:
    if "sku" in pool:
        pool["skus"] = [pool.pop("sku")]
    if "idle_minutes" in pool:
        pool["idle_timeout_s"] = 60 * pool.pop("idle_minutes")
    return pool


def _from_2(data: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(data.get("azure"), Mapping):
        return {**data, "version": 3}
    azure = dict(data["azure"])
    if isinstance(azure.get("budget"), Mapping):
        azure["budget"] = {key: value for key, value in azure["budget"].items() if key != "start"}
    if isinstance(azure.get("storage"), Mapping):
        azure["storage"] = {RENAMED.get(key, key): value for key, value in azure["storage"].items()}
    return {**data, "version": 3, "azure": azure}


RENAMED = {"delete_after_days": "keep_versions_days"}
STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1, 2: _from_2}
