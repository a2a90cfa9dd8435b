"""The private network: subnets for nodes, private end points and Azure ML, their firewall rules, one way out (NAT).

The way in is a peering with the operators' network: from there the API server and all private end points are reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import Provider, network, privatedns

if TYPE_CHECKING:
    from proving_ground.infra.azure.place import Place
    from proving_ground.infra.config import Network as Ranges
    from proving_ground.infra.config import Operators

ZONES = {
    "blob": "privatelink.blob.core.windows.net",
    "file": "privatelink.file.core.windows.net",
    "vault": "privatelink.vaultcore.azure.net",
    "registry": "privatelink.azurecr.io",
    "workspace": "privatelink.api.azureml.ms",
    "notebooks": "privatelink.notebooks.azure.net",
}
"""What can have a private end point → the DNS zone in which its private address is found."""


@dataclass(frozen=True)
class NetworkArgs:
    """`ranges` are the address ranges."""

    place: Place
    ranges: Ranges
    operators: Operators | None


@dataclass(frozen=True)
class Rule:
    """One firewall rule for traffic that comes in; `ports` and `sources` as Azure writes them."""

    name: str
    sources: tuple[str, ...]
    ports: tuple[str, ...]
    protocol: str = "Tcp"


def rules(ranges: Ranges, operators: Operators | None) -> dict[str, list[Rule]]:
    """What may come into each subnet; all else is denied.

    AKS needs everything open between its nodes and pods (its documented requirement for an overlay network): there the
    ports are closed by network policies on the cluster. A private cluster's API server answers at an address in the
    nodes' subnet ("Create a private AKS cluster", learn.microsoft.com/azure/aks/private-clusters). Azure ML's nodes
    talk to each other on any TCP port: pods are told which ports to take, there the kernel takes 32768 to 60999.
    """
    probes = Rule("probes", ("AzureLoadBalancer",), ("*",))
    people = (operators.cidr,) if operators else ()
    return {
        "nodes": [
            Rule("cluster", (ranges.nodes, ranges.pods), ("*",), "*"),
            probes,
            *(Rule("api-server", people, ("443",)) for _ in people),
        ],
        "endpoints": [Rule("services", (ranges.nodes, ranges.pods, ranges.ml, *people), ("443", "445"))],
        "ml": [Rule("training", (ranges.ml,), ("*",)), probes],
    }


class Network(pulumi.ComponentResource):
    """Outputs: `subnets` (name → id), `zones` (a key of ZONES → id), `address` (that nodes are seen with), `way_in`."""

    def __init__(self, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Network", "network", {}, opts)
        self._args = args
        self._inside = pulumi.ResourceOptions(parent=self)
        self.network = self._make_network()
        gateway = self._make_way_out()
        self.way_in = self._make_way_in(args.operators) if args.operators else []
        allowed = rules(args.ranges, args.operators)
        self.subnets: dict[str, pulumi.Output[str]] = {}
        previous: network.Subnet | None = None
        for name, cidr in (("nodes", args.ranges.nodes), ("endpoints", args.ranges.endpoints), ("ml", args.ranges.ml)):
            previous = self._make_subnet(name, cidr, allowed[name], gateway, previous)
            self.subnets[name] = previous.id
        self.zones = {key: self._make_zone(key, domain) for key, domain in ZONES.items()}
        self.register_outputs({})

    def _make_network(self) -> network.VirtualNetwork:
        place = self._args.place
        return network.VirtualNetwork(
            "vnet",
            virtual_network_name=place.name("network"),
            resource_group_name=place.group,
            location=place.location,
            address_space={"address_prefixes": [self._args.ranges.space]},
            tags=place.tags,
            opts=pulumi.ResourceOptions.merge(self._inside, pulumi.ResourceOptions(ignore_changes=["subnets"])),
        )

    def _make_way_out(self) -> network.NatGateway:
        place = self._args.place
        address = network.PublicIPAddress(
            "nat-address",
            public_ip_address_name=place.name("network", "nat-address"),
            resource_group_name=place.group,
            location=place.location,
            public_ip_allocation_method="Static",
            sku={"name": "Standard"},
            tags=place.tags,
            opts=self._inside,
        )
        self.address = address.ip_address
        return network.NatGateway(
            "nat",
            nat_gateway_name=place.name("network", "nat"),
            resource_group_name=place.group,
            location=place.location,
            sku={"name": "Standard"},
            public_ip_addresses=[{"id": address.id}],
            tags=place.tags,
            opts=self._inside,
        )

    def _make_way_in(self, operators: Operators) -> list[pulumi.Resource]:
        """A peering takes one half on either side; the operators' half may lie in another subscription."""
        _, _, subscription, _, group, *_, their_name = operators.network.split("/")
        there = Provider("operators", subscription_id=subscription, opts=self._inside)
        beyond = pulumi.ResourceOptions.merge(self._inside, pulumi.ResourceOptions(provider=there))
        place, ours = self._args.place, self.network
        return [
            _peering("to-operators", "operators", place.group, ours.name, operators.network, self._inside),
            _peering("from-operators", place.name("network"), group, their_name, ours.id, beyond),
        ]

    def _make_subnet(
        self, name: str, cidr: str, allowed: list[Rule], gateway: network.NatGateway, after: network.Subnet | None
    ) -> network.Subnet:
        """One subnet with its firewall; Azure changes a network's subnets one `after` the other."""
        place = self._args.place
        firewall = network.NetworkSecurityGroup(
            f"{name}-firewall",
            network_security_group_name=place.name("security_group", name),
            resource_group_name=place.group,
            location=place.location,
            security_rules=[*(_allow(rule, 100 + number) for number, rule in enumerate(allowed)), _deny_the_rest()],
            tags=place.tags,
            opts=self._inside,
        )
        wait = pulumi.ResourceOptions(depends_on=[after] if after else [])
        return network.Subnet(
            f"{name}-subnet",
            subnet_name=name,
            virtual_network_name=self.network.name,
            resource_group_name=place.group,
            address_prefix=cidr,
            default_outbound_access=False,
            nat_gateway=None if name == "endpoints" else {"id": gateway.id},
            network_security_group={"id": firewall.id},
            private_endpoint_network_policies="Enabled",
            opts=pulumi.ResourceOptions.merge(self._inside, wait),
        )

    def _make_zone(self, key: str, domain: str) -> pulumi.Output[str]:
        place = self._args.place
        zone = privatedns.PrivateZone(
            f"{key}-zone",
            private_zone_name=domain,
            resource_group_name=place.group,
            location="global",
            tags=place.tags,
            opts=self._inside,
        )
        self._link(f"{key}-zone-link", zone, place.name("network"), self.network.id)
        if self._args.operators is not None:
            self._link(f"{key}-zone-operators-link", zone, "operators", self._args.operators.network)
        return zone.id

    def _link(self, label: str, zone: privatedns.PrivateZone, name: str, seen_from: pulumi.Input[str]) -> None:
        """Let a network find the private addresses."""
        place = self._args.place
        privatedns.VirtualNetworkLink(
            label,
            virtual_network_link_name=name,
            private_zone_name=zone.name,
            resource_group_name=place.group,
            location="global",
            registration_enabled=False,
            virtual_network={"id": seen_from},
            tags=place.tags,
            opts=self._inside,
        )


def _peering(
    label: str,
    name: str,
    group: pulumi.Input[str],
    own: pulumi.Input[str],
    other: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
) -> network.VirtualNetworkPeering:
    return network.VirtualNetworkPeering(
        label,
        virtual_network_peering_name=name,
        resource_group_name=group,
        virtual_network_name=own,
        remote_virtual_network={"id": other},
        allow_virtual_network_access=True,
        opts=opts,
    )


def _allow(rule: Rule, priority: int) -> network.SecurityRuleArgs:
    return network.SecurityRuleArgs(
        name=rule.name,
        priority=priority,
        access="Allow",
        direction="Inbound",
        protocol=rule.protocol,
        source_address_prefix=rule.sources[0] if len(rule.sources) == 1 else None,
        source_address_prefixes=list(rule.sources) if len(rule.sources) > 1 else None,
        source_port_range="*",
        destination_address_prefix="*",
        destination_port_range=rule.ports[0] if len(rule.ports) == 1 else None,
        destination_port_ranges=list(rule.ports) if len(rule.ports) > 1 else None,
    )


def _deny_the_rest() -> network.SecurityRuleArgs:
    return network.SecurityRuleArgs(
        name="deny-the-rest",
        priority=4096,
        access="Deny",
        direction="Inbound",
        protocol="*",
        source_address_prefix="*",
        source_port_range="*",
        destination_address_prefix="*",
        destination_port_range="*",
    )
