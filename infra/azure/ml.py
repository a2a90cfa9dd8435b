"""Azure ML beside AKS: a private workspace, and a compute cluster that falls to its minimum when idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import machinelearningservices

from proving_ground.infra.azure.endpoint import Endpoint, EndpointArgs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from proving_ground.infra.azure.place import Place
    from proving_ground.infra.config import MlCompute


@dataclass(frozen=True)
class MlArgs:
    """What the workspace stands on (resource ids), and its compute cluster. `zones`: `workspace` and `notebooks`.

    `identity` is the workspace's, `jobs_identity` what jobs run as; `after`: what the workspace needs first.
    """

    place: Place
    compute: MlCompute
    storage: pulumi.Input[str]
    vault: pulumi.Input[str]
    registry: pulumi.Input[str]
    insights: pulumi.Input[str]
    identity: pulumi.Input[str]
    jobs_identity: pulumi.Input[str]
    after: Sequence[pulumi.Resource]
    compute_subnet: pulumi.Input[str]
    endpoint_subnet: pulumi.Input[str]
    zones: Mapping[str, pulumi.Input[str]]


class Ml(pulumi.ComponentResource):
    """Outputs: `workspace`, `compute`."""

    def __init__(self, args: MlArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Ml", "ml", {}, opts)
        self._args = args
        self._inside = pulumi.ResourceOptions(parent=self)
        self.workspace = self._make_workspace()
        self.compute = self._make_compute()
        zones = [args.zones["workspace"], args.zones["notebooks"]]
        endpoint = EndpointArgs(args.place, self.workspace.id, "amlworkspace", args.endpoint_subnet, zones)
        Endpoint("workspace", endpoint, self._inside)
        self.register_outputs({})

    def _make_workspace(self) -> machinelearningservices.Workspace:
        args = self._args
        return machinelearningservices.Workspace(
            "ml-workspace",
            workspace_name=args.place.name("workspace"),
            resource_group_name=args.place.group,
            location=args.place.location,
            identity=_identity(args.identity),
            primary_user_assigned_identity=args.identity,
            storage_account=args.storage,
            system_datastores_auth_mode="identity",  # the storage account takes no keys
            key_vault=args.vault,
            container_registry=args.registry,
            application_insights=args.insights,
            public_network_access="Disabled",
            tags=args.place.tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(args.after)),
        )

    def _make_compute(self) -> machinelearningservices.Compute:
        args = self._args
        return machinelearningservices.Compute(
            "ml-compute",
            compute_name=args.place.name("compute"),
            resource_group_name=args.place.group,
            location=args.place.location,
            workspace_name=self.workspace.name,
            identity=_identity(args.jobs_identity),
            properties={
                "compute_type": "AmlCompute",
                "compute_location": args.place.location,
                "disable_local_auth": True,
                "properties": _machines(args.compute, args.compute_subnet),
            },
            tags=args.place.tags,
            opts=self._inside,
        )


def _identity(identity: pulumi.Input[str]) -> machinelearningservices.ManagedServiceIdentityArgsDict:
    return {"type": "UserAssigned", "user_assigned_identities": [identity]}


def _machines(compute: MlCompute, subnet: pulumi.Input[str]) -> machinelearningservices.AmlComputePropertiesArgsDict:
    return {
        "vm_size": compute.sku,
        "vm_priority": "LowPriority" if compute.spot else "Dedicated",
        "os_type": "Linux",
        "enable_node_public_ip": False,
        "remote_login_port_public_access": "Disabled",
        "subnet": {"id": subnet},
        "scale_settings": {
            "min_node_count": compute.min_nodes,
            "max_node_count": compute.max_nodes,
            "node_idle_time_before_scale_down": f"PT{compute.idle_timeout_s}S",  # ISO 8601
        },
    }
