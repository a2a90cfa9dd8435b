"""The key vault that Azure ML cannot do without: role-based and private. This project keeps no secret in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import keyvault

from proving_ground.infra.azure.endpoint import Endpoint, EndpointArgs

if TYPE_CHECKING:
    from proving_ground.infra.azure.place import Place


@dataclass(frozen=True)
class VaultArgs:
    """`tenant` is the directory whose identities may read it; `keep_deleted_days` 7 to 90.

    `purge_protected`: a deleted vault stays so long, whoever asks; only for stacks that are not made anew every day.
    """

    place: Place
    tenant: pulumi.Input[str]
    keep_deleted_days: int
    purge_protected: bool
    subnet: pulumi.Input[str]
    zone: pulumi.Input[str]


class Vault(pulumi.ComponentResource):
    """Output: `vault_id`.

    Its name is new each time it is made (Pulumi adds random characters, and keeps them in its state): a deleted vault
    holds its name until it is purged ("Key Vault soft-delete overview", learn.microsoft.com/azure/key-vault).
    """

    def __init__(self, args: VaultArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Vault", "vault", {}, opts)
        place = args.place
        vault = keyvault.Vault(
            place.name("vault"),
            resource_group_name=place.group,
            location=place.location,
            properties={
                "tenant_id": args.tenant,
                "sku": {"family": "A", "name": keyvault.SkuName.STANDARD},
                "enable_rbac_authorization": True,
                "enable_soft_delete": True,
                "enable_purge_protection": True if args.purge_protected else None,  # Azure refuses false
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
