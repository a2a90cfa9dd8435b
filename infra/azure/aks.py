"""The Kubernetes cluster: its control plane, a system pool, and the pools that train."""

from __future__ import annotations

import base64
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
import yaml
from pulumi_azure_native import containerservice

from proving_ground.infra import naming
from proving_ground.infra.cluster.labels import GPU_TAINT, POOL_LABEL, SPOT_TAINT
from proving_ground.infra.skus import MAX_PODS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from proving_ground.infra.azure.place import Place
    from proving_ground.infra.config import Azure, Pool

LOGIN = "azurecli"
DNS_HOST = 10  # the cluster's DNS answers at the tenth address of the services' range


@dataclass(frozen=True)
class AksArgs:
    """`skus`: pool → the size to use now; `address`: what nodes are seen with; `after`: what the cluster waits for."""

    place: Place
    azure: Azure
    pools: Sequence[Pool]
    skus: Mapping[str, str]
    subnet: pulumi.Input[str]
    identity: pulumi.Input[str]
    kubelet: containerservice.UserAssignedIdentityArgs
    address: pulumi.Input[str]
    after: Sequence[pulumi.Resource]


class Aks(pulumi.ComponentResource):
    """Outputs: `cluster`, `pools`, `issuer` (of workload identity), `kubeconfig` (a secret)."""

    def __init__(self, args: AksArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Aks", "kubernetes", {}, opts)
        self._args = args
        self._inside = pulumi.ResourceOptions(parent=self)
        self.cluster = self._make_cluster()
        self.pools = [self._make_pool(pool) for pool in args.pools]
        self.issuer = self.cluster.oidc_issuer_profile.apply(lambda profile: profile.issuer_url if profile else "")
        self.kubeconfig = self._kubeconfig()
        self.register_outputs({})

    def _make_cluster(self) -> containerservice.ManagedCluster:
        args, place, azure = self._args, self._args.place, self._args.azure
        return containerservice.ManagedCluster(
            "aks",
            resource_name_=place.name("cluster"),
            resource_group_name=place.group,
            node_resource_group=place.name("resource_group", "nodes"),
            location=place.location,
            dns_prefix=f"{naming.SHORT}-{place.environment}",
            kubernetes_version=azure.kubernetes_version,
            sku={"name": "Base", "tier": "Standard"},
            identity={
                "type": containerservice.ResourceIdentityType.USER_ASSIGNED,
                "user_assigned_identities": [args.identity],
            },
            identity_profile={"kubeletidentity": args.kubelet},
            enable_rbac=True,
            disable_local_accounts=True,
            aad_profile={
                "managed": True,
                "enable_azure_rbac": True,
                "admin_group_object_ids": list(azure.admin_group_ids),
            },
            api_server_access_profile=_api_access(azure, args.address),
            agent_pool_profiles=[_system_pool(azure, args.subnet)],
            network_profile=_network(azure),
            oidc_issuer_profile={"enabled": True},
            security_profile={
                "workload_identity": {"enabled": True},
                "image_cleaner": {"enabled": True, "interval_hours": 168},
            },
            auto_scaler_profile=_autoscaler(args.pools),
            auto_upgrade_profile={"upgrade_channel": "patch", "node_os_upgrade_channel": "NodeImage"},
            tags=place.tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(args.after)),
        )

    def _make_pool(self, pool: Pool) -> containerservice.AgentPool:
        args = self._args
        return containerservice.AgentPool(
            f"{pool.name}-pool",
            agent_pool_name=pool.name,
            resource_name_=self.cluster.name,
            resource_group_name=args.place.group,
            mode="User",
            type="VirtualMachineScaleSets",
            os_type="Linux",
            vm_size=args.skus[pool.name],
            count=pool.nodes,
            enable_auto_scaling=pool.autoscale,
            min_count=pool.min_nodes if pool.autoscale else None,
            max_count=pool.max_nodes if pool.autoscale else None,
            max_pods=MAX_PODS,
            availability_zones=list(pool.zones) or None,
            scale_set_priority="Spot" if pool.spot else "Regular",
            scale_set_eviction_policy="Delete" if pool.spot else None,
            spot_max_price=-1.0 if pool.spot else None,  # up to the price on demand
            node_labels={POOL_LABEL: pool.name},
            node_taints=_taints(pool),
            enable_encryption_at_host=True,
            enable_node_public_ip=False,
            vnet_subnet_id=args.subnet,
            tags=args.place.tags,
            # The autoscaler owns the number of nodes from the first minute on.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["count"] if pool.autoscale else []),
        )

    def _kubeconfig(self) -> pulumi.Output[str]:
        """How to log in, with the identity of whoever uses it (kubelogin); secret, for it names the API server."""
        found = containerservice.list_managed_cluster_user_credentials_output(
            resource_group_name=self._args.place.group, resource_name=self.cluster.name, format="exec"
        )
        return pulumi.Output.secret(found.kubeconfigs.apply(lambda all_of_them: _decode(all_of_them[0].value)))


def _decode(value: str) -> str:
    return unattended(base64.b64decode(value).decode())


def unattended(kubeconfig: str) -> str:
    """The same kubeconfig, logging in as the Azure CLI is logged in: nobody is there to type a device code.

    kubelogin's default is `devicecode`; `azurecli` asks `az`, and AAD_LOGIN_METHOD in the environment goes over it, for
    instance `workloadidentity` or `spn` (azure.github.io/kubelogin, "Login Modes").
    """
    document = yaml.safe_load(kubeconfig)
    for user in document["users"]:
        command = user["user"]["exec"]
        command["args"] = [*_without_login(command["args"]), "--login", LOGIN]
        command["interactiveMode"] = "Never"
    return yaml.safe_dump(document, sort_keys=False)


def _without_login(arguments: Sequence[str]) -> list[str]:
    pairs = itertools.pairwise(["", *arguments])
    return [here for before, here in pairs if not ({before, here} & {"--login", "-l"} or here.startswith("--login="))]


def _taints(pool: Pool) -> list[str]:
    gpu = [f"{GPU_TAINT}=present:NoSchedule"] if pool.gpu else []
    return gpu + ([f"{SPOT_TAINT}=spot:NoSchedule"] if pool.spot else [])


def _api_access(
    azure: Azure, address: pulumi.Input[str]
) -> containerservice.ManagedClusterAPIServerAccessProfileArgsDict:
    """Private: a public name for a private address, so that a peered network needs no zone of AKS's own.

    Public: for named ranges, and for the address that nodes come out with, without which they cannot join. Sources:
    "Create a private AKS cluster" (private DNS zone `none` with the public name) and "API server authorized IP ranges"
    ("add the cluster egress IP address: firewall, NAT gateway, …"), both learn.microsoft.com/azure/aks.
    """
    if azure.private_cluster:
        return {
            "enable_private_cluster": True,
            "enable_private_cluster_public_fqdn": True,
            "private_dns_zone": "none",
        }
    ranges: list[pulumi.Input[str]] = [*azure.network.admin_cidrs, pulumi.Output.concat(address, "/32")]
    return {"enable_private_cluster": False, "authorized_ip_ranges": ranges}


def _system_pool(azure: Azure, subnet: pulumi.Input[str]) -> containerservice.ManagedClusterAgentPoolProfileArgsDict:
    pool = azure.system_pool
    return {
        "name": "system",
        "mode": "System",
        "type": "VirtualMachineScaleSets",
        "os_type": "Linux",
        "vm_size": pool.sku,
        "count": pool.min_nodes,
        "enable_auto_scaling": True,
        "min_count": pool.min_nodes,
        "max_count": pool.max_nodes,
        "availability_zones": list(pool.zones),
        "enable_encryption_at_host": True,
        "enable_node_public_ip": False,
        "vnet_subnet_id": subnet,
    }


def _network(azure: Azure) -> containerservice.ContainerServiceNetworkProfileArgsDict:
    services = azure.network.services.partition("/")[0].rsplit(".", 1)[0]
    return {
        "network_plugin": "azure",
        "network_plugin_mode": "overlay",
        "network_policy": "cilium",
        "network_dataplane": "cilium",
        "load_balancer_sku": "standard",
        "outbound_type": "userAssignedNATGateway",
        "pod_cidr": azure.network.pods,
        "service_cidr": azure.network.services,
        "dns_service_ip": f"{services}.{DNS_HOST}",
    }


def _autoscaler(pools: Sequence[Pool]) -> containerservice.ManagedClusterPropertiesAutoScalerProfileArgsDict:
    """One idle time serves the whole cluster: the shortest that a pool asks for."""
    minutes = min(pool.idle_timeout_s for pool in pools) // 60
    return {
        "scale_down_unneeded_time": f"{minutes}m",
        "scale_down_delay_after_add": f"{minutes}m",
        "scan_interval": "10s",
        "expander": "least-waste",
        "skip_nodes_with_local_storage": "false",
    }
