"""Names and tags of cloud resources, as pure functions. Called by the components and by the configuration's checks.

Azure limits the length and the alphabet of every kind of name; some names are unique in the whole world, those carry a
short hash of the environment's `unique` text, so that two teams do not collide and the same input gives the same name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from proving_ground.infra.reading import ConfigError

PROJECT = "proving-ground"
SHORT = "pg"


@dataclass(frozen=True)
class Rule:
    """How one kind of name is made; `worldwide` ones are unique among all of Azure's customers."""

    suffix: str
    longest: int
    hyphens: bool = True
    worldwide: bool = False


RULES: dict[str, Rule] = {
    "resource_group": Rule("rg", 90),
    "network": Rule("vnet", 64),
    "security_group": Rule("nsg", 80),
    "endpoint": Rule("pe", 64),
    "cluster": Rule("aks", 63),
    "identity": Rule("id", 128),
    "registry": Rule("acr", 50, hyphens=False, worldwide=True),
    "blob_account": Rule("blob", 24, hyphens=False, worldwide=True),
    "file_account": Rule("file", 24, hyphens=False, worldwide=True),
    "ml_account": Rule("ml", 24, hyphens=False, worldwide=True),
    "vault": Rule("kv", 16),  # Pulumi adds eight characters of its own, Azure takes 24
    "workspace": Rule("mlw", 33),
    "compute": Rule("gpu", 16),
    "insights": Rule("appi", 255),
    "logs": Rule("log", 63),
    "budget": Rule("budget", 63),
    "alerts": Rule("alerts", 260),
    "diagnostics": Rule("diag", 260),
}

POOL_LONGEST = 12  # AKS Linux node pools: lower-case letters and digits, a letter first
POOL_PATTERN = re.compile(r"[a-z][a-z0-9]*")
ENVIRONMENT_PATTERN = re.compile(r"[a-z][a-z0-9]*")


def name(kind: str, environment: str, unique: str = "", part: str = "") -> str:
    """The name of a resource, e.g. `pg-prod-aks`, or `pgprodblob3f9a1c` where the whole world shares the names.

    Raises:
        ConfigError: it would be longer than Azure allows for its kind.
    """
    rule = RULES[kind]
    pieces = [SHORT, environment, part, rule.suffix]
    if rule.worldwide:
        pieces.append(digest(environment, unique))
    text = ("-" if rule.hyphens else "").join(piece for piece in pieces if piece)
    if len(text) > rule.longest:
        what = kind.replace("_", " ")
        raise ConfigError(f"name: {text!r} has {len(text)} characters; Azure allows {rule.longest} for a {what}")
    return text


def resource_groups(environment: str) -> tuple[str, str]:
    """Those that a stack's costs are booked on: its own, and the one in which AKS keeps the cluster's machines."""
    return name("resource_group", environment), name("resource_group", environment, part="nodes")


def digest(environment: str, unique: str) -> str:
    """Six hex digits of the environment and its `unique` text."""
    return hashlib.sha256(f"{PROJECT}/{environment}/{unique}".encode()).hexdigest()[:6]


def tags(environment: str, owner: str, ttl_hours: int | None = None) -> dict[str, str]:
    """The tags that every taggable resource carries; costs are grouped by them."""
    common = {"project": PROJECT, "environment": environment, "owner": owner, "managed-by": "pulumi"}
    return common if ttl_hours is None else {**common, "ttl-hours": str(ttl_hours)}
