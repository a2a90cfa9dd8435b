"""An environment on Azure, whole: the components in the order of their needs. Called by `infra.stack`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import authorization, containerservice, resources, storage

from proving_ground.infra import naming
from proving_ground.infra.azure.aks import Aks, AksArgs
from proving_ground.infra.azure.budget import Budget, BudgetArgs
from proving_ground.infra.azure.diagnostics import Logs, LogsArgs
from proving_ground.infra.azure.identity import Grant, Identities, IdentitiesArgs, federate, grant
from proving_ground.infra.azure.ml import Ml, MlArgs
from proving_ground.infra.azure.network import Network, NetworkArgs
from proving_ground.infra.azure.place import Place
from proving_ground.infra.azure.registry import Registry, RegistryArgs
from proving_ground.infra.azure.storage import MlStorage, Storage, StorageArgs
from proving_ground.infra.azure.vault import Vault, VaultArgs
from proving_ground.infra.cluster.labels import TRAINER_ACCOUNT, TRAINING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from proving_ground.infra.config import Azure, Environment


TRAINERS_MAY = {"blob data contributor": "checkpoints", "blob data reader": "data"}

WORKSPACE_MAY = (
    ("contributor", "ml-blobs"),
    ("blob data contributor", "ml-blobs"),
    ("contributor", "vault"),
    ("key vault administrator", "vault"),
    ("contributor", "registry"),
    ("contributor", "insights"),
)
"""What a workspace's own identity needs, beside "contributor" on the workspace.

Source: the table "User-assigned managed identity, Workspace" of "Set up authentication between Azure Machine Learning
and other services", learn.microsoft.com/azure/machine-learning/how-to-identity-based-service-authentication.
"""
JOBS_MAY = (("blob data contributor", "ml-blobs"), ("acr pull", "registry"), ("key vault secrets user", "vault"))
"""What a compute cluster's identity needs to mount storage, read datastores' secrets and pull images (same page)."""


@dataclass(frozen=True)
class Base:
    """What every other part stands on."""

    place: Place
    client: pulumi.Output[authorization.GetClientConfigResult]
    network: Network
    identities: Identities


@dataclass(frozen=True)
class MlServices:
    """What only Azure ML uses, so that its wide rights end there."""

    storage: MlStorage
    vault: Vault


@dataclass(frozen=True)
class Services:
    """The parts that keep things."""

    registry: Registry
    storage: Storage
    ml: MlServices | None


@dataclass(frozen=True)
class OnAzure:
    """What the rest of the stack needs to know of it.

    `ready`: what must be there before anything goes on the cluster, and stay until all of it is gone: nodes, the way
    in, the right to administer.
    """

    kubeconfig: pulumi.Output[str]
    aks: Aks
    ready: Sequence[pulumi.Resource]
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
    services = _services(base, environment, azure)
    logs = Logs(LogsArgs(base.place, azure.log_retention_days))
    cluster_may = _let_the_cluster_work(base, services)
    aks = _cluster(base, environment, azure, skus, cluster_may)
    rights = _let_people_in(base, services, aks, azure)
    _let_trainers_in(base, services, aks)
    ml = _azure_ml(base, services, logs, azure)
    subscription = base.client.apply(lambda client: f"/subscriptions/{client.subscription_id}")
    Budget(BudgetArgs(base.place, azure.budget, subscription, naming.resource_groups(environment.name)))
    logs.collect(_sources(services, aks, ml))
    return _summary(base, services, aks, ml, [*aks.pools, *rights, *base.network.way_in])


def _base(environment: Environment, azure: Azure) -> Base:
    tags = naming.tags(environment.name, environment.owner, environment.ttl_hours)
    group = resources.ResourceGroup(
        "resource-group",
        resource_group_name=naming.name("resource_group", environment.name),
        location=azure.location,
        tags=tags,
    )
    place = Place(environment.name, azure.unique, azure.location, group.name, tags)
    names = ("cluster", "kubelet", "trainer") + (("ml", "ml-jobs") if azure.ml_compute else ())
    return Base(
        place=place,
        client=authorization.get_client_config_output(),
        network=Network(NetworkArgs(place, azure.network, azure.operators)),
        identities=Identities(IdentitiesArgs(place, names)),
    )


def _services(base: Base, environment: Environment, azure: Azure) -> Services:
    subnet, zones = base.network.subnets["endpoints"], base.network.zones
    storage_args = StorageArgs(base.place, azure.storage, subnet, zones)
    pushers = () if azure.private_cluster else azure.network.admin_cidrs
    vault = VaultArgs(
        place=base.place,
        tenant=base.client.apply(lambda client: client.tenant_id),
        keep_deleted_days=min(max(azure.storage.keep_deleted_days, 7), 90),  # what a vault allows
        purge_protected=environment.ttl_hours is None,
        subnet=subnet,
        zone=zones["vault"],
    )
    return Services(
        registry=Registry(RegistryArgs(base.place, pushers, subnet, zones["registry"])),
        storage=Storage(storage_args),
        ml=MlServices(MlStorage(storage_args), Vault(vault)) if azure.ml_compute else None,
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
        address=base.network.address.apply(lambda address: address or ""),
        after=after,
    )
    return Aks(args)


def _let_people_in(base: Base, services: Services, aks: Aks, azure: Azure) -> list[pulumi.Resource]:
    """Those who run `up` administer the cluster and keep backups: the configured groups, else whoever came first.

    A grant to the present caller would be taken from the one before at every `up`: Azure knows one assignment for a
    scope, role and principal, and a stack declares one caller. So without groups the first caller's grants stay.
    """
    targets = {"aks": ("aks rbac cluster admin", aks.cluster.id)}
    targets |= {name: ("blob data contributor", scope) for name, scope in services.storage.containers.items()}
    inside = pulumi.ResourceOptions(parent=base.identities)
    first = pulumi.ResourceOptions.merge(inside, pulumi.ResourceOptions(ignore_changes=["principal_id"]))
    caller = base.client.apply(lambda client: client.object_id)
    if not azure.admin_group_ids:
        given = [Grant(role, caller, "deployer", scope, name, None) for name, (role, scope) in targets.items()]
        return [grant(base.place, one, first) for one in given]
    return [
        grant(base.place, Grant(role, group, f"admins-{group}", scope, name, "Group"), inside)
        for group in azure.admin_group_ids
        for name, (role, scope) in targets.items()
    ]


def _let_trainers_in(base: Base, services: Services, aks: Aks) -> None:
    """Trainers write checkpoints and read data, as themselves and without a key; backups are out of their reach."""
    trainer, containers = base.identities.by_name["trainer"], services.storage.containers
    for role, name in TRAINERS_MAY.items():
        given = Grant(role, trainer.principal_id, "trainer", containers[name], name)
        grant(base.place, given, pulumi.ResourceOptions(parent=base.identities))
    federate(base.place, "trainer", trainer, aks.issuer, f"{TRAINING}:{TRAINER_ACCOUNT}")


def _azure_ml(base: Base, services: Services, logs: Logs, azure: Azure) -> Ml | None:
    if azure.ml_compute is None or services.ml is None:
        return None
    insights = logs.insights()
    scopes: dict[str, pulumi.Output[str]] = {
        "ml-blobs": services.ml.storage.account.id,
        "vault": services.ml.vault.vault_id,
        "registry": services.registry.registry_id,
        "insights": insights.id,
    }
    args = MlArgs(
        place=base.place,
        compute=azure.ml_compute,
        storage=scopes["ml-blobs"],
        vault=scopes["vault"],
        registry=scopes["registry"],
        insights=insights.id,
        identity=base.identities.by_name["ml"].id,
        jobs_identity=base.identities.by_name["ml-jobs"].id,
        after=[*_grants(base, "ml", WORKSPACE_MAY, scopes), *_grants(base, "ml-jobs", JOBS_MAY, scopes)],
        compute_subnet=base.network.subnets["ml"],
        endpoint_subnet=base.network.subnets["endpoints"],
        zones=base.network.zones,
    )
    ml = Ml(args)
    _grants(base, "ml", (("contributor", "workspace"),), {"workspace": ml.workspace.id})
    _grants(base, "ml-jobs", (("ml data scientist", "workspace"),), {"workspace": ml.workspace.id})
    return ml


def _grants(
    base: Base, name: str, roles: Sequence[tuple[str, str]], scopes: Mapping[str, pulumi.Input[str]]
) -> list[pulumi.Resource]:
    """An identity's roles, each on one of the scopes."""
    principal, inside = base.identities.by_name[name].principal_id, pulumi.ResourceOptions(parent=base.identities)
    return [grant(base.place, Grant(role, principal, name, scopes[scope], scope), inside) for role, scope in roles]


def _sources(services: Services, aks: Aks, ml: Ml | None) -> dict[str, pulumi.Input[str]]:
    blobs, files = services.storage.blobs.id, services.storage.files.id
    sources: dict[str, pulumi.Input[str]] = {
        "aks": aks.cluster.id,
        "registry": services.registry.registry_id,
        "blobs": pulumi.Output.concat(blobs, "/blobServices/default"),
        "files": pulumi.Output.concat(files, "/fileServices/default"),
    }
    vault = {"vault": services.ml.vault.vault_id} if services.ml else {}
    return {**sources, **vault, **({"ml": ml.workspace.id} if ml else {})}


def _summary(base: Base, services: Services, aks: Aks, ml: Ml | None, ready: Sequence[pulumi.Resource]) -> OnAzure:
    keys = storage.list_storage_account_keys_output(
        resource_group_name=base.place.group, account_name=services.storage.files.name
    )
    return OnAzure(
        kubeconfig=aks.kubeconfig,
        aks=aks,
        ready=ready,
        subscription=base.client.apply(lambda client: client.subscription_id),
        group=pulumi.Output.from_input(base.place.group),
        registry=services.registry.login_server,
        blob_endpoint=services.storage.blobs.primary_endpoints.apply(lambda endpoints: endpoints.blob),
        file_account=services.storage.files.name,
        file_key=pulumi.Output.secret(keys.keys.apply(lambda all_of_them: all_of_them[0].value)),
        trainer_client_id=base.identities.by_name["trainer"].client_id,
        ml=ml,
    )
