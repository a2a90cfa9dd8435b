"""What must hold for every resource of every stack: a table of rules, each with a change that it must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proving_ground.infra.azure.identity import ROLES
from proving_ground.infra.config import Azure
from tests.infra.mocks import Recorded

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """`holds` for the inputs of each resource whose type ends with one of `kinds`; `mutant` makes them break it.

    `source`: the page that says so, under learn.microsoft.com/azure where it names no other place.
    """

    name: str
    kinds: tuple[str, ...]
    holds: Callable[[Inputs, Recorded], bool]
    mutant: Callable[[Inputs], object]
    where: Callable[[Inputs], bool] = lambda _: True
    source: str = ""


def each(value: dict[str, Any]) -> Callable[[Inputs], object]:
    """A mutant that sets these inputs."""
    return lambda inputs: inputs.update(value)


def _rules(inputs: Inputs) -> list[Inputs]:
    return list(inputs["securityRules"])


def _taints_match(inputs: Inputs, recorded: Recorded) -> bool:
    pool = next(pool for pool in recorded.environment.pools if pool.name == inputs["agentPoolName"])
    has = any(taint.startswith("nvidia.com/gpu=") for taint in inputs["nodeTaints"])
    return has == (pool.gpu is not None)


def _spot_is_whole(inputs: Inputs, _: Recorded) -> bool:
    says = inputs["scaleSetPriority"] == "Spot"
    signs = ["scaleSetEvictionPolicy" in inputs, any("scalesetpriority" in taint for taint in inputs["nodeTaints"])]
    return signs == [says, says]


def _azure(recorded: Recorded) -> Azure:
    assert recorded.environment.azure is not None
    return recorded.environment.azure


def _registry_is_reached_by_few(inputs: Inputs, recorded: Recorded) -> bool:
    azure, rules = _azure(recorded), inputs.get("networkRuleSet", {})
    if azure.private_cluster:
        return bool(inputs["publicNetworkAccess"] == "Disabled")
    ranges = [rule["iPAddressOrRange"] for rule in rules.get("ipRules", [])]
    return rules.get("defaultAction") == "Deny" and bool(ranges) and ranges == list(azure.network.admin_cidrs)


def _operators_come_in(inputs: Inputs, recorded: Recorded) -> bool:
    operators = _azure(recorded).operators
    assert operators is not None
    allowed = [rule for rule in _rules(inputs) if rule["access"] == "Allow"]
    hits = [rule for rule in allowed if operators.cidr in (*_sources_of(rule), rule.get("sourceAddressPrefix"))]
    return any("443" in (*rule.get("destinationPortRanges", ()), rule.get("destinationPortRange")) for rule in hits)


def _sources_of(rule: Inputs) -> list[str]:
    return list(rule.get("sourceAddressPrefixes", ()))


def _close_to_operators(inputs: Inputs) -> None:
    inputs["securityRules"] = [rule for rule in _rules(inputs) if "10.50.0.0/24" not in str(rule)]


def _purge_protected_where_it_stays(inputs: Inputs, recorded: Recorded) -> bool:
    return inputs["properties"].get("enablePurgeProtection", False) is (recorded.environment.ttl_hours is None)


def _flip_purge_protection(inputs: Inputs) -> None:
    properties = inputs["properties"]
    properties["enablePurgeProtection"] = not properties.get("enablePurgeProtection", False)


def _a_machine_does_not_change_backups(inputs: Inputs, _: Recorded) -> bool:
    reaches = inputs["scope"].endswith("backups-container") or ":StorageAccount/pg" in inputs["scope"]
    return inputs.get("principalType") != "ServicePrincipal" or not (reaches and "blob" in inputs["scope"].lower())


def _expiry(inputs: Inputs) -> Inputs:
    return dict(inputs["policy"]["rules"][0]["definition"]["actions"]["baseBlob"])


TAGGED = (
    "resources:ResourceGroup",
    "network:VirtualNetwork",
    "network:NetworkSecurityGroup",
    "network:NatGateway",
    "network:PrivateEndpoint",
    "storage:StorageAccount",
    "keyvault:Vault",
    "containerregistry:Registry",
    "containerservice:ManagedCluster",
    "containerservice:AgentPool",
    "machinelearningservices:Workspace",
    "machinelearningservices:Compute",
    "operationalinsights:Workspace",
    "managedidentity:UserAssignedIdentity",
)
LOCATED = TAGGED[1:8]
PRIVATE = ("storage:StorageAccount", "machinelearningservices:Workspace")
FIREWALL = ("network:NetworkSecurityGroup",)

AZURE: list[Rule] = [
    Rule(
        "everything is tagged with its environment",
        TAGGED,
        lambda i, r: i["tags"].get("environment") == r.stack and i["tags"]["project"] == "proving-ground",
        lambda i: i["tags"].pop("environment"),
    ),
    Rule(
        "everything is in its environment's location",
        LOCATED,
        lambda i, r: r.environment.azure is not None and i["location"] == r.environment.azure.location,
        each({"location": "elsewhere"}),
    ),
    Rule(
        "everything is in its environment's resource group",
        (*TAGGED[1:], "network:Subnet", "storage:FileShare", "storage:BlobContainer"),
        lambda i, r: i["resourceGroupName"] == f"pg-{r.stack}-rg",
        each({"resourceGroupName": "pg-other-rg"}),
    ),
    Rule(
        "no public access",
        PRIVATE,
        lambda i, _: i["publicNetworkAccess"] == "Disabled",
        each({"publicNetworkAccess": "Enabled"}),
    ),
    Rule(
        "no public blobs",
        ("storage:StorageAccount",),
        lambda i, _: i["allowBlobPublicAccess"] is False and i["networkRuleSet"]["defaultAction"] == "Deny",
        each({"allowBlobPublicAccess": True}),
    ),
    Rule(
        "no public container",
        ("storage:BlobContainer",),
        lambda i, _: i["publicAccess"] == "None",
        each({"publicAccess": "Blob"}),
    ),
    Rule(
        "storage speaks TLS only",
        ("storage:StorageAccount",),
        lambda i, _: i["enableHttpsTrafficOnly"] is True and i["minimumTlsVersion"] == "TLS1_2",
        each({"minimumTlsVersion": "TLS1_0"}),
    ),
    Rule(
        "storage is encrypted twice",
        ("storage:StorageAccount",),
        lambda i, _: i["encryption"]["requireInfrastructureEncryption"] is True,
        lambda i: i["encryption"].update(requireInfrastructureEncryption=False),
    ),
    Rule(
        "blobs know no keys",
        ("storage:StorageAccount",),
        lambda i, _: i["allowSharedKeyAccess"] is False,
        each({"allowSharedKeyAccess": True}),
        where=lambda i: i["kind"] == "StorageV2",
    ),
    Rule(
        "blobs have versions and soft delete",
        ("storage:BlobServiceProperties",),
        lambda i, _: i["isVersioningEnabled"] is True and i["deleteRetentionPolicy"]["enabled"] is True,
        each({"isVersioningEnabled": False}),
    ),
    Rule(
        "vaults are private and role-based",
        ("keyvault:Vault",),
        lambda i, _: (
            i["properties"]["publicNetworkAccess"] == "Disabled" and i["properties"]["enableRbacAuthorization"] is True
        ),
        lambda i: i["properties"].update(enableRbacAuthorization=False),
    ),
    Rule(
        "vaults have a new name each time: a deleted one holds its own",
        ("keyvault:Vault",),
        lambda i, _: "vaultName" not in i,
        each({"vaultName": "pg-prod-kv"}),
        source="key-vault/general/soft-delete-overview",
    ),
    Rule(
        "vaults cannot be purged where a stack is to stay, and only there",
        ("keyvault:Vault",),
        _purge_protected_where_it_stays,
        _flip_purge_protection,
        source="key-vault/general/soft-delete-overview",
    ),
    Rule(
        "the registry is private, or open to named ranges",
        ("containerregistry:Registry",),
        _registry_is_reached_by_few,
        lambda i: (i.update(publicNetworkAccess="Enabled"), i.pop("networkRuleSet", None)),
        source="container-registry/container-registry-access-selected-networks",
    ),
    Rule(
        "what is current is never deleted by age",
        ("storage:ManagementPolicy",),
        lambda i, _: "delete" not in _expiry(i) and "tierToCool" in _expiry(i),
        lambda i: i["policy"]["rules"][0]["definition"]["actions"]["baseBlob"].update(
            delete={"daysAfterModificationGreaterThan": 30}
        ),
        source="storage/blobs/lifecycle-management-policy-structure",
    ),
    Rule(
        "no machine's identity changes backups, nor the account that they are in",
        ("authorization:RoleAssignment",),
        _a_machine_does_not_change_backups,
        each({"principalType": "ServicePrincipal", "scope": "/subscriptions/x/BlobContainer/backups-container"}),
        source="role-based-access-control/built-in-roles/storage",
    ),
    Rule(
        "the registry has no admin and no anonymous pull",
        ("containerregistry:Registry",),
        lambda i, _: i["adminUserEnabled"] is False and i["anonymousPullEnabled"] is False,
        each({"adminUserEnabled": True}),
    ),
    Rule(
        "only known, narrow roles",
        ("authorization:RoleAssignment",),
        lambda i, _: i["roleDefinitionId"].rpartition("/")[2] in ROLES.values(),
        each({"roleDefinitionId": "/x/8e3af657-a8ff-443c-a75c-2fe8c4bcb635"}),  # Owner
    ),
    Rule(
        "roles on single resources, never on a subscription or group",
        ("authorization:RoleAssignment",),
        lambda i, _: i["scope"].count("/") > 3 or (":" in i["scope"] and "ResourceGroup" not in i["scope"]),
        each({"scope": "/subscriptions/x"}),
    ),
    Rule(
        "the API server is private, or open to named ranges",
        ("containerservice:ManagedCluster",),
        lambda i, r: (
            i["apiServerAccessProfile"]["enablePrivateCluster"] is True
            if r.stack in ("staging", "prod")
            else bool(i["apiServerAccessProfile"]["authorizedIPRanges"])
        ),
        lambda i: i["apiServerAccessProfile"].update(enablePrivateCluster=False, authorizedIPRanges=[]),
    ),
    Rule(
        "a public API server lets its own nodes in",
        ("containerservice:ManagedCluster",),
        lambda i, _: "198.51.100.7/32" in i["apiServerAccessProfile"]["authorizedIPRanges"],  # the NAT gateway's
        lambda i: i["apiServerAccessProfile"]["authorizedIPRanges"].remove("198.51.100.7/32"),
        where=lambda i: not i["apiServerAccessProfile"]["enablePrivateCluster"],
        source="aks/api-server-authorized-ip-ranges",
    ),
    Rule(
        "a private API server's name is found without a zone of its own",
        ("containerservice:ManagedCluster",),
        lambda i, _: (
            i["apiServerAccessProfile"]["privateDNSZone"] == "none"
            and i["apiServerAccessProfile"]["enablePrivateClusterPublicFQDN"] is True
        ),
        lambda i: i["apiServerAccessProfile"].update(privateDNSZone="system", enablePrivateClusterPublicFQDN=False),
        where=lambda i: i["apiServerAccessProfile"]["enablePrivateCluster"],
        source="aks/private-clusters",
    ),
    Rule(
        "the operators' network is peered, both ways",
        ("network:VirtualNetworkPeering",),
        lambda i, r: (
            i["allowVirtualNetworkAccess"] is True
            and {i["virtualNetworkName"], i["remoteVirtualNetwork"]["id"].rpartition("/")[2]}
            == {"operators", f"pg-{r.stack}-vnet"}
            and len(r.of("network:VirtualNetworkPeering")) == 2
        ),
        each({"allowVirtualNetworkAccess": False}),
        source="virtual-network/virtual-network-peering-overview",
    ),
    Rule(
        "operators reach the API server and the private end points",
        FIREWALL,
        _operators_come_in,
        _close_to_operators,
        where=lambda i: "-dev-" not in i["networkSecurityGroupName"] and "-ml-" not in i["networkSecurityGroupName"],
        source="aks/private-clusters",
    ),
    Rule(
        "no local accounts; roles by Azure",
        ("containerservice:ManagedCluster",),
        lambda i, _: i["disableLocalAccounts"] is True and i["aadProfile"]["enableAzureRBAC"] is True,
        each({"disableLocalAccounts": False}),
    ),
    Rule(
        "network policies are enforced",
        ("containerservice:ManagedCluster",),
        lambda i, _: i["networkProfile"]["networkPolicy"] == "cilium",
        lambda i: i["networkProfile"].update(networkPolicy="none"),
    ),
    Rule(
        "workload identity is on",
        ("containerservice:ManagedCluster",),
        lambda i, _: i["securityProfile"]["workloadIdentity"]["enabled"] and i["oidcIssuerProfile"]["enabled"],
        lambda i: i["oidcIssuerProfile"].update(enabled=False),
    ),
    Rule(
        "an idle cluster shrinks after ten minutes at most",
        ("containerservice:ManagedCluster",),
        lambda i, _: int(i["autoScalerProfile"]["scaleDownUnneededTime"].removesuffix("m")) <= 10,
        lambda i: i["autoScalerProfile"].update(scaleDownUnneededTime="90m"),
    ),
    Rule(
        "GPU pools, and only they, keep others off",
        ("containerservice:AgentPool",),
        _taints_match,
        lambda i: i.update(nodeTaints=[] if i["nodeTaints"] else ["nvidia.com/gpu=present:NoSchedule"]),
    ),
    Rule(
        "spot pools say so in priority, eviction and taint",
        ("containerservice:AgentPool",),
        _spot_is_whole,
        each({"scaleSetPriority": "Spot", "nodeTaints": []}),
    ),
    Rule(
        "pools scale by themselves",
        ("containerservice:AgentPool",),
        lambda i, _: i["enableAutoScaling"] and i["minCount"] <= i["count"] <= i["maxCount"],
        each({"minCount": 99}),
    ),
    Rule(
        "nodes have no public address and encrypted disks",
        ("containerservice:AgentPool",),
        lambda i, _: i["enableNodePublicIP"] is False and i["enableEncryptionAtHost"] is True,
        each({"enableNodePublicIP": True}),
    ),
    Rule(
        "Azure ML shrinks when idle for ten minutes, inside the network",
        ("machinelearningservices:Compute",),
        lambda i, _: (
            i["properties"]["properties"]["scaleSettings"]["nodeIdleTimeBeforeScaleDown"] == "PT600S"
            and "subnet" in i["properties"]["properties"]
            and i["properties"]["properties"]["enableNodePublicIp"] is False
        ),
        lambda i: i["properties"]["properties"].pop("subnet"),
    ),
    Rule(
        "firewalls end with a refusal",
        FIREWALL,
        lambda i, _: max(_rules(i), key=lambda rule: rule["priority"])["access"] == "Deny",
        lambda i: i["securityRules"].pop(),
    ),
    Rule(
        "nothing comes in from the Internet",
        FIREWALL,
        lambda i, _: (
            not any(
                rule["access"] == "Allow" and rule.get("sourceAddressPrefix") in ("*", "Internet", "0.0.0.0/0")
                for rule in _rules(i)
            )
        ),
        lambda i: i["securityRules"].append({"access": "Allow", "sourceAddressPrefix": "*", "priority": 9}),
    ),
    Rule(
        "between Azure ML's nodes every port, from their own subnet only",
        FIREWALL,
        lambda i, r: (
            [
                (rule["sourceAddressPrefix"], rule["destinationPortRange"])
                for rule in _rules(i)
                if rule["name"] != "probes"
            ]
            == [(_azure(r).network.ml, "*"), ("*", "*")]  # the last one denies
        ),
        lambda i: _rules(i)[0].update(destinationPortRange="29500"),
        where=lambda i: "-ml-" in i["networkSecurityGroupName"],
        source="docs.kernel.org/networking/ip-sysctl.html (ip_local_port_range): the kernel chooses in 32768 to 60999",
    ),
    Rule(
        "every subnet has a firewall and no default way out",
        ("network:Subnet",),
        lambda i, _: "networkSecurityGroup" in i and i["defaultOutboundAccess"] is False,
        lambda i: i.pop("networkSecurityGroup"),
    ),
    Rule(
        "the budget warns at 125 %",
        ("consumption:Budget",),
        lambda i, _: 125 in {note["threshold"] for note in i["notifications"].values()},
        lambda i: i["notifications"].pop("actual-125"),
    ),
    Rule(
        "the budget has five notifications at most, and starts with a month",
        ("consumption:Budget",),
        lambda i, _: len(i["notifications"]) <= 5 and i["timePeriod"]["startDate"] == "2026-01-01T00:00:00Z",
        lambda i: i["notifications"].update({"actual-60": i["notifications"]["actual-50"]}),
        source="rest/api/consumption/budgets/create-or-update",
    ),
    Rule(
        "the budget counts the cluster's machines, which AKS keeps in a resource group of their own",
        ("consumption:Budget",),
        lambda i, _: {it.rpartition("-")[0].count("-") for it in i["filter"]["dimensions"]["values"]} == {1, 2},
        lambda i: i["filter"]["dimensions"]["values"].pop(),
    ),
    Rule(
        "all logs are kept",
        ("monitor:DiagnosticSetting",),
        lambda i, _: i["logs"] == [{"categoryGroup": "allLogs", "enabled": True}] and bool(i["workspaceId"]),
        each({"logs": []}),
    ),
]
