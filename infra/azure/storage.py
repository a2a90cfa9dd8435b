"""Where checkpoints, data and backups live: a blob account (versions, life cycle, soft delete) and a file share.

Azure ML has an account of its own: its jobs may write and delete there, and not where the backups are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import storage

from proving_ground.infra.azure.endpoint import Endpoint, EndpointArgs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proving_ground.infra.azure.place import Place
    from proving_ground.infra.config import Storage as Settings

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
    """Outputs: `blobs` and `files` (the accounts), `containers` (name → id), `share` (its name)."""

    def __init__(self, args: StorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Storage", "storage", {}, opts)
        self._args = args
        self._inside = pulumi.ResourceOptions(parent=self)
        self._kept = pulumi.ResourceOptions(parent=self, protect=args.settings.protected)
        sku = f"Standard_{args.settings.replication}"
        self.blobs = make_account(args.place, "blob", "StorageV2", sku, self._kept)
        self.files = make_account(args.place, "file", "FileStorage", "Premium_LRS", self._inside)
        self._protect_blobs()
        self._expire_blobs()
        self.containers = {name: self._container(name) for name in CONTAINERS}
        self.share = self._share()
        for kind, account in (("blob", self.blobs), ("file", self.files)):
            Endpoint(kind, EndpointArgs(args.place, account.id, kind, args.subnet, [args.zones[kind]]), self._inside)
        self.register_outputs({})

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
            opts=self._kept,
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

    def _container(self, name: str) -> pulumi.Output[str]:
        made = storage.BlobContainer(
            f"{name}-container",
            container_name=name,
            account_name=self.blobs.name,
            resource_group_name=self._args.place.group,
            public_access=storage.PublicAccess.NONE,
            opts=self._kept,
        )
        return made.id

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


class MlStorage(pulumi.ComponentResource):
    """Output: `account`, the one that an Azure ML workspace keeps its own files in.

    It takes end points for blobs and for files ("Secure an Azure Machine Learning workspace with virtual networks",
    learn.microsoft.com/azure/machine-learning/how-to-secure-workspace-vnet).
    """

    def __init__(self, args: StorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:MlStorage", "ml-storage", {}, opts)
        inside = pulumi.ResourceOptions(parent=self)
        self.account = make_account(args.place, "ml", "StorageV2", "Standard_LRS", inside)
        for kind in ("blob", "file"):
            endpoint = EndpointArgs(args.place, self.account.id, kind, args.subnet, [args.zones[kind]])
            Endpoint(f"ml-{kind}", endpoint, inside)
        self.register_outputs({})


def make_account(
    place: Place, name: str, service: str, sku: str, opts: pulumi.ResourceOptions
) -> storage.StorageAccount:
    """A private account of `service` and `sku`; only the share's takes keys: SMB knows no other log-in."""
    return storage.StorageAccount(
        f"{name}-account",
        account_name=place.name(f"{name}_account"),
        resource_group_name=place.group,
        location=place.location,
        kind=service,
        sku={"name": sku},
        allow_shared_key_access=name == "file",
        allow_blob_public_access=False,
        allow_cross_tenant_replication=False,
        enable_https_traffic_only=True,
        is_local_user_enabled=False,
        minimum_tls_version="TLS1_2",
        public_network_access="Disabled",
        network_rule_set={"default_action": storage.DefaultAction.DENY, "bypass": "AzureServices"},
        encryption=_encryption(),
        tags=place.tags,
        opts=opts,
    )


def _encryption() -> storage.EncryptionArgsDict:
    service: storage.EncryptionServiceArgsDict = {"enabled": True, "key_type": "Account"}
    return {
        "key_source": "Microsoft.Storage",
        "require_infrastructure_encryption": True,
        "services": {"blob": service, "file": service},
    }


def _life_cycle(settings: Settings) -> storage.ManagementPolicyRuleArgsDict:
    """By age, only what is not current any more is deleted.

    A rule knows when a blob was written, not whether it is the newest checkpoint or part of a live backup ("Azure Blob
    Storage lifecycle management", learn.microsoft.com/azure/storage/blobs). `infra backup --keep` deletes old backups.
    """
    return {
        "name": "age-out",
        "type": "Lifecycle",
        "enabled": True,
        "definition": {
            "filters": {"blob_types": ["blockBlob"], "prefix_match": ["checkpoints/", "backups/"]},
            "actions": {
                "base_blob": {"tier_to_cool": {"days_after_modification_greater_than": settings.cool_after_days}},
                "version": {"delete": {"days_after_creation_greater_than": settings.keep_versions_days}},
            },
        },
    }
