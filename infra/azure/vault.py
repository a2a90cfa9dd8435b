"""The key vault: role-based, private, and nothing in it can be lost by a slip of the hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import keyvault

from infra.azure.endpoint import Endpoint, EndpointArgs

if TYPE_CHECKING:
    from infra.azure.place import Place


@dataclass(frozen=True)
class VaultArgs:
    """`tenant` is the directory whose identities may read it; `keep_deleted_days` 7 to 90."""

    place: Place
    tenant: pulumi.Input[str]
    keep_deleted_days: int
    subnet: pulumi.Input[str]
    zone: pulumi.Input[str]


class Vault(pulumi.ComponentResource):
    """Output: `vault_id`."""

    def __init__(self, args: VaultArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Vault", "vault", {}, opts)
        place = args.place
        vault = keyvault.Vault(
            "key-vault",
            vault_name=place.name("vault"),
            resource_group_name=place.group,
            location=place.location,
            properties={
                "tenant_id": args.tenant,
                "sku": {"family": "A", "name": keyvault.SkuName.STANDARD},
                "enable_rbac_authorization": True,
                "enable_soft_delete": True,
                "enable_purge_protection": True,
                "soft_delete_retention_in_days": args.keep_deleted_days,
                "public_network_access": "Disabled",
                "network_acls": {"default_action": "Deny", "bypass": "AzureServices"},
            },
            tags=place.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.vault_id = vault.id
        endpoint = EndpointArgs(place, vault.id, "vault", args.subnet, [args.zone])
        Endpoint("vault", endpoint, pulumi.ResourceOptions(parent=self))
        self.register_outputs({})
