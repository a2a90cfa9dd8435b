"""An environment on Azure, whole: the components in the order of their needs. Called by `infra.stack`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import authorization, containerservice, resources, storage

from infra import naming
from infra.azure.aks import Aks, AksArgs
from infra.azure.budget import Budget, BudgetArgs
from infra.azure.diagnostics import Logs, LogsArgs
from infra.azure.identity import Grant, Identities, IdentitiesArgs, federate, grant
from infra.azure.ml import Ml, MlArgs
from infra.azure.network import Network, NetworkArgs
from infra.azure.place import Place
from infra.azure.registry import Registry, RegistryArgs
from infra.azure.storage import Storage, StorageArgs
from infra.azure.vault import Vault, VaultArgs
from infra.cluster.labels import TRAINER_ACCOUNT, TRAINING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.config import Azure, Environment


@dataclass(frozen=True)
class Base:
    """What every other part stands on."""

    place: Place
    client: pulumi.Output[authorization.GetClientConfigResult]
    network: Network
    identities: Identities


@dataclass(frozen=True)
class Services:
    """The parts that keep things."""

    registry: Registry
    storage: Storage
    vault: Vault


@dataclass(frozen=True)
class OnAzure:
    """What the rest of the stack needs to know of it."""

    kubeconfig: pulumi.Output[str]
    aks: Aks
    subscription: pulumi.Output[str]
    group: pulumi.Output[str]
    registry: pulumi.Output[str]
    blob_endpoint: pulumi.Output[str]
    file_account: pulumi.Output[str]
    file_key: pulumi.Output[str]
    trainer_client_id: pulumi.Output[str]
    ml: Ml | None


def stand_up(environment: Environment, azure: Azure, skus: Mapping[str, str]) -> OnAzure:
    """Declare all of it; `skus` says which size each pool uses now."""
    base = _base(environment, azure)
    services = _services(base, azure)
    logs = Logs(LogsArgs(base.place, azure.log_retention_days))
    cluster_may = _let_the_cluster_work(base, services)
    aks = _cluster(base, environment, azure, skus, cluster_may)
    _let_people_and_trainers_in(base, services, aks)
    ml = _azure_ml(base, services, logs, azure)
    subscription = base.client.apply(lambda client: f"/subscriptions/{client.subscription_id}")
    Budget(BudgetArgs(base.place, azure.budget, subscription, naming.resource_groups(environment.name)))
    logs.collect(_sources(services, aks, ml))
    return _summary(base, services, aks, ml)


def _base(environment: Environment, azure: Azure) -> Base:
    tags = naming.tags(environment.name, environment.owner, environment.ttl_hours)
    group = resources.ResourceGroup(
        "resource-group",
        resource_group_name=naming.name("resource_group", environment.name),
        location=azure.location,
        tags=tags,
    )
    place = Place(environment.name, azure.unique, azure.location, group.name, tags)
    names = ("cluster", "kubelet", "trainer") + (("ml",) if azure.ml_compute else ())
    return Base(
        place=place,
        client=authorization.get_client_config_output(),
        network=Network(NetworkArgs(place, azure.network, environment.kubernetes.ports)),
        identities=Identities(IdentitiesArgs(place, names)),
    )


def _services(base: Base, azure: Azure) -> Services:
    subnet, zones = base.network.subnets["endpoints"], base.network.zones
    keep_days = min(max(azure.storage.keep_deleted_days, 7), 90)  # what a vault allows
    tenant = base.client.apply(lambda client: client.tenant_id)
    return Services(
        registry=Registry(RegistryArgs(base.place, subnet, zones["registry"])),
        storage=Storage(StorageArgs(base.place, azure.storage, subnet, zones)),
        vault=Vault(VaultArgs(base.place, tenant, keep_days, subnet, zones["vault"])),
    )


def _let_the_cluster_work(base: Base, services: Services) -> list[pulumi.Resource]:
    """The control plane joins the subnet and lends the kubelet its identity; the kubelet pulls images."""
    cluster, kubelet = base.identities.by_name["cluster"], base.identities.by_name["kubelet"]
    grants = [
        Grant("network contributor", cluster.principal_id, "cluster", base.network.subnets["nodes"], "nodes"),
        Grant("identity operator", cluster.principal_id, "cluster", kubelet.id, "kubelet"),
        Grant("acr pull", kubelet.principal_id, "kubelet", services.registry.registry_id, "registry"),
    ]
    return [grant(base.place, given, pulumi.ResourceOptions(parent=base.identities)) for given in grants]


def _cluster(
    base: Base, environment: Environment, azure: Azure, skus: Mapping[str, str], after: list[pulumi.Resource]
) -> Aks:
    kubelet = base.identities.by_name["kubelet"]
    args = AksArgs(
        place=base.place,
        azure=azure,
        pools=environment.pools,
        skus=skus,
        subnet=base.network.subnets["nodes"],
        identity=base.identities.by_name["cluster"].id,
        kubelet=containerservice.UserAssignedIdentityArgs(
            resource_id=kubelet.id, client_id=kubelet.client_id, object_id=kubelet.principal_id
        ),
    )
    return Aks(args, pulumi.ResourceOptions(depends_on=after))


def _let_people_and_trainers_in(base: Base, services: Services, aks: Aks) -> None:
    """Whoever runs `up` administers the cluster; trainers read and write blobs as themselves, without a key."""
    trainer = base.identities.by_name["trainer"]
    caller = base.client.apply(lambda client: client.object_id)
    grants = [
        Grant("aks rbac cluster admin", caller, "deployer", aks.cluster.id, "aks", principal_type=None),
        Grant("blob data contributor", trainer.principal_id, "trainer", services.storage.blobs.id, "blobs"),
    ]
    for given in grants:
        grant(base.place, given, pulumi.ResourceOptions(parent=base.identities))
    federate(base.place, "trainer", trainer, aks.issuer, f"{TRAINING}:{TRAINER_ACCOUNT}")


def _azure_ml(base: Base, services: Services, logs: Logs, azure: Azure) -> Ml | None:
    if azure.ml_compute is None:
        return None
    identity, inside = base.identities.by_name["ml"], pulumi.ResourceOptions(parent=base.identities)
    needs = {
        "blob data contributor": ("blobs", services.storage.blobs.id),
        "acr pull": ("registry", services.registry.registry_id),
        "key vault secrets user": ("vault", services.vault.vault_id),
    }
    granted = [
        grant(base.place, Grant(role, identity.principal_id, "ml", scope, name), inside)
        for role, (name, scope) in needs.items()
    ]
    args = MlArgs(
        place=base.place,
        compute=azure.ml_compute,
        storage=services.storage.blobs.id,
        vault=services.vault.vault_id,
        registry=services.registry.registry_id,
        logs=logs.workspace_id,
        identity=identity.id,
        compute_subnet=base.network.subnets["ml"],
        endpoint_subnet=base.network.subnets["endpoints"],
        zones=base.network.zones,
    )
    ml = Ml(args, pulumi.ResourceOptions(depends_on=granted))
    grant(base.place, Grant("ml data scientist", identity.principal_id, "ml", ml.workspace.id, "workspace"), inside)
    return ml


def _sources(services: Services, aks: Aks, ml: Ml | None) -> dict[str, pulumi.Input[str]]:
    blobs, files = services.storage.blobs.id, services.storage.files.id
    sources: dict[str, pulumi.Input[str]] = {
        "aks": aks.cluster.id,
        "registry": services.registry.registry_id,
        "vault": services.vault.vault_id,
        "blobs": pulumi.Output.concat(blobs, "/blobServices/default"),
        "files": pulumi.Output.concat(files, "/fileServices/default"),
    }
    return {**sources, "ml": ml.workspace.id} if ml else sources


def _summary(base: Base, services: Services, aks: Aks, ml: Ml | None) -> OnAzure:
    keys = storage.list_storage_account_keys_output(
        resource_group_name=base.place.group, account_name=services.storage.files.name
    )
    return OnAzure(
        kubeconfig=aks.kubeconfig,
        aks=aks,
        subscription=base.client.apply(lambda client: client.subscription_id),
        group=pulumi.Output.from_input(base.place.group),
        registry=services.registry.login_server,
        blob_endpoint=services.storage.blobs.primary_endpoints.apply(lambda endpoints: endpoints.blob),
        file_account=services.storage.files.name,
        file_key=pulumi.Output.secret(keys.keys.apply(lambda all_of_them: all_of_them[0].value)),
        trainer_client_id=base.identities.by_name["trainer"].client_id,
        ml=ml,
    )
