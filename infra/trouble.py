"""What a provider's error means and what to do about it. Called by `infra.life`; documented in `infra/README.md`."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Trouble:
    """A kind of failure: how it reads, whether another machine size may help, and the advice."""

    kind: str
    pattern: str
    advice: str
    try_next: bool = False


TROUBLES: tuple[Trouble, ...] = (
    Trouble(
        "quota",
        r"QuotaExceeded|exceeding approved .*quota|quota.*(exceeded|insufficient)|InsufficientVCPUQuota",
        "ask for more quota of this family in the portal (Quotas), or list another size",
        try_next=True,
    ),
    Trouble(
        "capacity",
        r"SkuNotAvailable|AllocationFailed|OverconstrainedAllocation|ZonalAllocationFailed|NotEnoughCores|"
        r"does not have (enough|sufficient) capacity|OverconstrainedZonalAllocation",
        "the region has no such machine now; another size, zone or time",
        try_next=True,
    ),
    Trouble(
        "size",
        r"VMSizeNotSupported|is not (available|supported|allowed) in (location|your subscription)|BadRequest.*vmSize",
        "this region or subscription does not have the size at all; list another, or change azure.location",
        try_next=True,
    ),
    Trouble(
        "policy",
        r"RequestDisallowedByPolicy|PolicyViolation",
        "a policy of the subscription forbids it; its name stands in the message",
    ),
    Trouble(
        "rights",
        r"AuthorizationFailed|does not have authorization|LinkedAuthorizationFailed",
        "the caller may not do this: it takes Contributor and Role Based Access Control Administrator",
    ),
    Trouble(
        "name taken",
        r"StorageAccountAlreadyTaken|AlreadyInUse|VaultAlreadyExists|NameNotAvailable|already taken",
        "somebody has the name: change azure.unique (a deleted vault keeps its name until it is purged)",
    ),
    Trouble(
        "credentials",
        r"az login|no credentials|InvalidAuthenticationToken|ExpiredAuthenticationToken|building AzureRM Client",
        "log in: az login, or set ARM_CLIENT_ID, ARM_TENANT_ID and ARM_OIDC_TOKEN",
    ),
    Trouble(
        "locked",
        r"the stack is currently locked|conflict: Another update is currently in progress",
        "another up runs; if it was killed: pulumi cancel --stack STACK",
    ),
    Trouble("interrupted", r"pending operations|interrupted while", "pulumi refresh --stack STACK, then up again"),
    Trouble(
        "passphrase",
        r"passphrase must be set|incorrect passphrase",
        "set PULUMI_CONFIG_PASSPHRASE to the stack's passphrase",
    ),
    Trouble(
        "cluster",
        r"unable to load (schema|Kubernetes client)|configured Kubernetes cluster is unreachable|"
        r"context .* does not exist|no configuration has been provided",
        "check the kubeconfig and its context: kubectl --context CONTEXT get nodes",
    ),
)
UNKNOWN = Trouble("unknown", "", "read the message; pulumi logs more with --verbose 9")


def classify(message: str) -> Trouble:
    """The first kind of trouble that the message shows."""
    return next((item for item in TROUBLES if re.search(item.pattern, message, re.IGNORECASE | re.DOTALL)), UNKNOWN)


def why(message: str) -> str:
    """The line of the message that says most: the one that made `classify` choose, else the last."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    chosen = classify(message)
    hits = [line for line in lines if chosen.pattern and re.search(chosen.pattern, line, re.IGNORECASE)]
    return (hits or lines[-1:] or ["no message"])[0]
