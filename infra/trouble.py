"""What an error of the engine or a provider means, and what to do. Called by `infra.life`; see `infra/README.md`."""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 300  # characters of the engine's own words that are told


@dataclass(frozen=True)
class Trouble:
    """A kind of failure: how it reads, the advice, whether another machine size may help, and the exit status.

    Status 2 is the caller's mistake, 1 anything else.
    """

    kind: str
    pattern: str
    advice: str
    try_next: bool = False
    status: int = 1


TROUBLES: tuple[Trouble, ...] = (
    Trouble(
        "login",
        r"PULUMI_ACCESS_TOKEN must be set|pulumi login|unable to open state directory|could not get cloud url|"
        r"unable to (open|check) bucket|invalid access token|read \"\.pulumi/meta\.yaml\"",
        "say where states are kept: pulumi login, or export PULUMI_BACKEND_URL=file:///an/existing/folder",
        status=2,
    ),
    Trouble(
        "passphrase",
        r"passphrase must be set|incorrect passphrase|message authentication failed|failed to decrypt",
        "set PULUMI_CONFIG_PASSPHRASE to the stack's passphrase",
        status=2,
    ),
    Trouble(
        "secret",
        r"grafana_password is not set|missing required configuration variable",
        "set it as the message says",
        status=2,
    ),
    Trouble(
        "configuration",
        r"Pulumi\.\w+\.ya?ml|PROVING_GROUND_INFRA__|no Pulumi\.yaml|invalid YAML file|"
        r"could not (load|read) current project",
        "mend the key that the message names; pg infra check STACK reads it without Pulumi",
        status=2,
    ),
    Trouble(
        "no such stack",
        r"no stack named|no previous deployment",
        "pulumi stack ls lists them; pg infra up STACK makes one",
        status=2,
    ),
    Trouble(
        "packages",
        r"failed to discover package requirements|Pulumi SDK has not been installed|No module named|"
        r"virtual ?env.*(doesn't exist|does not exist|invalid)|couldn't find the python",
        "make .venv with `nox -s types`, or `python -m venv .venv` and `.venv/bin/pip install -e .[infra]`",
        status=2,
    ),
    Trouble(
        "plugin",
        r"no (resource|language) plugin|failed to (load|install|download) (language )?plugin|"
        r"could not (download|install|load) plugin|pulumi plugin install|failed to download plugin",
        "let this machine reach the plugins' server once, or put the plugin on PATH",
        status=2,
    ),
    Trouble(
        "locked",
        r"the stack is currently locked|another update is (currently )?in progress",
        "wait until that command ends; if it was killed: the same command again on its machine, or pg infra "
        "mend STACK --force",
    ),
    Trouble(
        "protected",
        r'resource ".*" cannot be deleted|because it is protected|is currently protected|as it is protected',
        "this resource keeps data; pulumi state unprotect URN lets it go",
    ),
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
        "region",
        r"LocationNotAvailableForResourceType|InvalidLocation|NoRegisteredProviderFound|K8sVersionNotSupported",
        "the region does not have it; change azure.location or azure.kubernetes_version",
        status=2,
    ),
    Trouble(
        "subscription",
        r"MissingSubscriptionRegistration|SubscriptionNotFound|not registered (to use|for) |is not enabled for this "
        r"subscription|FeatureNotRegistered|EncryptionAtHost",
        "az account show; az provider register --namespace NAMESPACE, or az feature register, as the message names it",
    ),
    Trouble(
        "policy",
        r"RequestDisallowedByPolicy|PolicyViolation",
        "a policy of the subscription forbids it; its name stands in the message",
    ),
    Trouble(
        "rights",
        r"AuthorizationFailed|does not have authorization|does not have permission to perform",
        "the caller may not do this: it takes Contributor and Role Based Access Control Administrator",
    ),
    Trouble(
        "name taken",
        r"StorageAccountAlreadyTaken|AlreadyInUse|VaultAlreadyExists|NameNotAvailable|already taken|"
        r"exists in (a )?(soft.)?deleted state",
        "somebody has the name: change azure.unique (a deleted vault keeps its name until it is purged)",
        status=2,
    ),
    Trouble(
        "exists already",
        r"cannot create already existing (sub)?resource|not successfully created by the Kubernetes.*already exists",
        "a killed command made it and could not note it: on the cluster pg infra up STACK takes it over; in "
        "Azure pulumi import TYPE NAME ID does, or az resource delete --ids ID removes it",
    ),
    Trouble(
        "credentials",
        r"az login|no credentials|InvalidAuthenticationToken|ExpiredAuthenticationToken|building AzureRM Client|"
        r"AADSTS\d+|DefaultAzureCredential",
        "log in: az login, or set ARM_CLIENT_ID, ARM_TENANT_ID and ARM_OIDC_TOKEN",
        status=2,
    ),
    Trouble(
        "busy",
        r"TooManyRequests|RequestsThrottled",
        "the cloud asks for patience: the same command in some minutes",
    ),
    Trouble(
        "pods refused",
        r"violates PodSecurity|exceeded quota:|admission webhook .* denied",
        "a rule of the cluster forbids the pod; it stands in the message",
    ),
    Trouble(
        "image",
        r"ErrImagePull|ImagePullBackOff|InvalidImageName|failed to pull",
        "build and push or import the image, and name it under kubernetes.images (infra/README.md, step 5)",
    ),
    Trouble(
        "not ready",
        r"timed out waiting|Resource operation was cancelled for|were not ready|to become (live|ready|available)",
        "kubectl describe says why: no machine, no image, a full quota; pg infra health STACK lists the pods",
    ),
    Trouble(
        "cluster rights",
        r"is forbidden: User|Unauthorized|the server has asked for the client to provide credentials",
        "the kubeconfig's user may not do this: kubectl auth can-i create namespaces",
    ),
    Trouble(
        "cluster",
        r"unable to load (schema|Kubernetes client)|Kubernetes cluster is unreachable|unreachable cluster|kubelogin|"
        r"context .* does not exist|no configuration has been provided|connection refused|x509:|no such host|"
        r"i/o timeout|connection to the server .* was refused",
        "check the kubeconfig and its context: kubectl get nodes; where the cluster is gone: down --cluster-gone",
    ),
    Trouble(
        "no answer",
        r"no answer within|context deadline exceeded|Client\.Timeout exceeded",
        "the place of the states is out of reach: pulumi whoami --verbose names it; then the command again",
    ),
    Trouble(
        "state",
        r"failed to load checkpoint|could not deserialize deployment|snapshot integrity",
        "the stack's state is damaged: put the newest file of its .pulumi/backups in its place, then the command again",
    ),
    Trouble("disk", r"no space left on device", "make room, then the command again", status=2),
    Trouble(
        "interrupted",
        r"pending operations|interrupted while|update cancell?ed|signal: (killed|interrupt)",
        "the command again: it mends the state first",
    ),
)
UNKNOWN = Trouble("unknown", "", "read the message; pulumi logs more with --verbose 9")
ERROR = re.compile(r"\berror: ", re.IGNORECASE)
HOLLOW = re.compile(
    r"error: (an unhandled error occurred|(update|preview|destroy|refresh)\w* (failed|cancell?ed)|resource \w+ failed)"
    r"|error: program failed|\d+ errors?$",
    re.IGNORECASE,
)
"""Errors that say only that there are errors."""


def classify(message: str) -> Trouble:
    """The first kind of trouble that the message's errors show, or where there are none, the message."""
    text = "\n".join(errors(message))
    return next((item for item in TROUBLES if re.search(item.pattern, text, re.IGNORECASE)), UNKNOWN)


def errors(message: str) -> list[str]:
    """The lines that report an error, each with the lines that belong to it; all lines where none does."""
    lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    first = next((number for number, line in enumerate(lines) if ERROR.search(line)), 0)
    return [line for line in lines[first:] if not HOLLOW.search(line)] or lines


def why(message: str) -> str:
    """The line of the message that says most: the one that made `classify` choose, else its last error."""
    lines, chosen = errors(message), classify(message)
    hits = [line for line in lines if chosen.pattern and re.search(chosen.pattern, line, re.IGNORECASE)]
    hits.sort(key=lambda line: line.endswith(":"))  # such a line only leads to what is wrong
    said = [line for line in lines if ERROR.search(line)]
    line = (hits or said[-1:] or lines[-1:] or ["no message"])[0]
    return ERROR.split(line, maxsplit=1)[-1][:LONGEST]
