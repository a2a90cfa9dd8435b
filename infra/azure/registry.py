"""The container registry of the project's images: no admin user, no anonymous pull."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import containerregistry

from proving_ground.infra.azure.endpoint import Endpoint, EndpointArgs

if TYPE_CHECKING:
    from proving_ground.infra.azure.place import Place


@dataclass(frozen=True)
class RegistryArgs:
    """`subnet` and `zone` are where its private end point goes; `pushers`: public ranges that may reach it too."""

    place: Place
    pushers: tuple[str, ...]
    subnet: pulumi.Input[str]
    zone: pulumi.Input[str]


class Registry(pulumi.ComponentResource):
    """Outputs: `id`, `login_server`."""

    def __init__(self, args: RegistryArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Registry", "registry", {}, opts)
        place = args.place
        registry = containerregistry.Registry(
            "acr",
            registry_name=place.name("registry"),
            resource_group_name=place.group,
            location=place.location,
            sku={"name": "Premium"},  # private end points need it
            admin_user_enabled=False,
            anonymous_pull_enabled=False,
            public_network_access="Enabled" if args.pushers else "Disabled",
            network_rule_set=_only(args.pushers),
            policies={"retention_policy": {"status": "enabled", "days": 30}},
            tags=place.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.registry_id = registry.id
        self.login_server = registry.login_server
        endpoint = EndpointArgs(place, registry.id, "registry", args.subnet, [args.zone])
        Endpoint("registry", endpoint, pulumi.ResourceOptions(parent=self))
        self.register_outputs({"loginServer": self.login_server})


def _only(ranges: tuple[str, ...]) -> containerregistry.NetworkRuleSetArgsDict | None:
    """These public ranges and no others, beside the private end point, by which nodes pull.

    Source: "Configure public IP network rules", learn.microsoft.com/azure/container-registry; they take Premium.
    """
    if not ranges:
        return None
    return {
        "default_action": "Deny",
        "ip_rules": [{"action": "Allow", "i_p_address_or_range": cidr} for cidr in ranges],
    }
