"""A private end point: a service's address inside the network, found under the service's usual name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proving_ground.infra.azure.place import Place


@dataclass(frozen=True)
class EndpointArgs:
    """`target`: the service's id; `group`: its sub-resource (`blob`, `vault`, …); `zones`: the DNS zones' ids."""

    place: Place
    target: pulumi.Input[str]
    group: str
    subnet: pulumi.Input[str]
    zones: Sequence[pulumi.Input[str]]


class Endpoint(pulumi.ComponentResource):
    """One private end point with its DNS records."""

    def __init__(self, name: str, args: EndpointArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Endpoint", f"{name}-access", {}, opts)
        place, inside = args.place, pulumi.ResourceOptions(parent=self)
        endpoint = network.PrivateEndpoint(
            f"{name}-endpoint",
            private_endpoint_name=place.name("endpoint", name),
            resource_group_name=place.group,
            location=place.location,
            subnet={"id": args.subnet},
            private_link_service_connections=[
                {"name": name, "private_link_service_id": args.target, "group_ids": [args.group]}
            ],
            tags=place.tags,
            opts=inside,
        )
        network.PrivateDnsZoneGroup(
            f"{name}-dns",
            private_dns_zone_group_name="default",
            private_endpoint_name=endpoint.name,
            resource_group_name=place.group,
            private_dns_zone_configs=[
                {"name": f"zone{number}", "private_dns_zone_id": zone} for number, zone in enumerate(args.zones)
            ],
            opts=inside,
        )
        self.register_outputs({})
