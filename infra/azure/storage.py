"""Where checkpoints, data and backups live: a blob account (versions, life cycle, soft delete) and a file share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import storage

from infra.azure.endpoint import Endpoint, EndpointArgs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.azure.place import Place
    from infra.config import Storage as Settings

CONTAINERS = ("checkpoints", "data", "backups")
SHARE = "shared"


@dataclass(frozen=True)
class StorageArgs:
    """`zones` has the DNS zones' ids under `blob` and `file`."""

    place: Place
    settings: Settings
    subnet: pulumi.Input[str]
    zones: Mapping[str, pulumi.Input[str]]


class Storage(pulumi.ComponentResource):
    """Outputs: `blobs` and `files` (the accounts), `share` (its name)."""

    def __init__(self, args: StorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Storage", "storage", {}, opts)
        self._args = args
        self._inside = pulumi.ResourceOptions(parent=self)
        self.blobs = self._account("blob", "StorageV2", f"Standard_{args.settings.replication}", shared_key=False)
        # The cluster mounts the share over SMB, which knows no other log-in than the account's key.
        self.files = self._account("file", "FileStorage", "Premium_LRS", shared_key=True)
        self._protect_blobs()
        self._expire_blobs()
        for container in CONTAINERS:
            self._container(container)
        self.share = self._share()
        for kind, account in (("blob", self.blobs), ("file", self.files)):
            Endpoint(kind, EndpointArgs(args.place, account.id, kind, args.subnet, [args.zones[kind]]), self._inside)
        self.register_outputs({})

    def _account(self, kind: str, service: str, sku: str, *, shared_key: bool) -> storage.StorageAccount:
        place = self._args.place
        keep = pulumi.ResourceOptions(protect=kind == "blob" and place.environment == "prod")
        return storage.StorageAccount(
            f"{kind}-account",
            account_name=place.name(f"{kind}_account"),
            resource_group_name=place.group,
            location=place.location,
            kind=service,
            sku={"name": sku},
            allow_shared_key_access=shared_key,
            allow_blob_public_access=False,
            allow_cross_tenant_replication=False,
            enable_https_traffic_only=True,
            is_local_user_enabled=False,
            minimum_tls_version="TLS1_2",
            public_network_access="Disabled",
            network_rule_set={"default_action": storage.DefaultAction.DENY, "bypass": "AzureServices"},
            encryption=_encryption(),
            tags=place.tags,
            opts=pulumi.ResourceOptions.merge(self._inside, keep),
        )

    def _protect_blobs(self) -> None:
        days = self._args.settings.keep_deleted_days
        kept: storage.DeleteRetentionPolicyArgsDict = {"enabled": True, "days": days}
        storage.BlobServiceProperties(
            "blob-protection",
            account_name=self.blobs.name,
            resource_group_name=self._args.place.group,
            blob_services_name="default",
            is_versioning_enabled=True,
            change_feed={"enabled": True, "retention_in_days": days},
            delete_retention_policy=kept,
            container_delete_retention_policy=kept,
            opts=self._inside,
        )

    def _expire_blobs(self) -> None:
        settings = self._args.settings
        storage.ManagementPolicy(
            "blob-life-cycle",
            account_name=self.blobs.name,
            resource_group_name=self._args.place.group,
            management_policy_name="default",
            policy={"rules": [_life_cycle(settings)]},
            opts=self._inside,
        )

    def _container(self, name: str) -> None:
        storage.BlobContainer(
            f"{name}-container",
            container_name=name,
            account_name=self.blobs.name,
            resource_group_name=self._args.place.group,
            public_access=storage.PublicAccess.NONE,
            opts=self._inside,
        )

    def _share(self) -> storage.FileShare:
        return storage.FileShare(
            "shared-files",
            share_name=SHARE,
            account_name=self.files.name,
            resource_group_name=self._args.place.group,
            share_quota=self._args.settings.share_gib,
            enabled_protocols="SMB",
            opts=self._inside,
        )


def _encryption() -> storage.EncryptionArgsDict:
    service: storage.EncryptionServiceArgsDict = {"enabled": True, "key_type": "Account"}
    return {
        "key_source": "Microsoft.Storage",
        "require_infrastructure_encryption": True,
        "services": {"blob": service, "file": service},
    }


def _life_cycle(settings: Settings) -> storage.ManagementPolicyRuleArgsDict:
    return {
        "name": "age-out",
        "type": "Lifecycle",
        "enabled": True,
        "definition": {
            "filters": {"blob_types": ["blockBlob"], "prefix_match": ["checkpoints/", "backups/"]},
            "actions": {
                "base_blob": {
                    "tier_to_cool": {"days_after_modification_greater_than": settings.cool_after_days},
                    "delete": {"days_after_modification_greater_than": settings.delete_after_days},
                },
                "version": {"delete": {"days_after_creation_greater_than": settings.delete_after_days}},
            },
        },
    }
