"""Who may do what: managed identities (no passwords anywhere) and their least-privilege role assignments."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import authorization, managedidentity

from proving_ground.infra import naming

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proving_ground.infra.azure.place import Place

ROLES = {
    "acr pull": "7f951dda-4ed3-4680-a7ca-43fe172d538d",
    "blob data contributor": "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
    "blob data reader": "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1",
    "contributor": "b24988ac-6180-42a0-ab88-20f7382dd24c",
    "key vault administrator": "00482a5a-887f-4fb3-b363-3b7fe8e74483",
    "key vault secrets user": "4633458b-17de-408a-b874-0445c86b69e6",
    "network contributor": "4d97b98b-1d4f-4787-a291-c67834d212e7",
    "identity operator": "f1a07417-d97a-45cb-824c-7a7467783830",
    "aks rbac cluster admin": "b1ff04bb-8a4e-4dc4-8eb5-8693973ce19b",
    "ml data scientist": "f6c7c914-8db3-469d-8ca1-694a8f32e121",
}
"""Azure's built-in roles that this project gives, by their published ids. None may change access rights.

"contributor" and "key vault administrator" go to Azure ML's workspace on what only it uses: its documentation asks so.
"""

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, naming.PROJECT)


@dataclass(frozen=True)
class IdentitiesArgs:
    """`names`: the identities to make, one for each kind of workload."""

    place: Place
    names: tuple[str, ...]


class Identities(pulumi.ComponentResource):
    """Output: `by_name`, the user-assigned identities."""

    def __init__(self, args: IdentitiesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Identities", "identities", {}, opts)
        self.by_name: Mapping[str, managedidentity.UserAssignedIdentity] = {
            name: managedidentity.UserAssignedIdentity(
                f"{name}-identity",
                resource_name_=args.place.name("identity", name),
                resource_group_name=args.place.group,
                location=args.place.location,
                tags=args.place.tags,
                opts=pulumi.ResourceOptions(parent=self),
            )
            for name in args.names
        }
        self.register_outputs({})


@dataclass(frozen=True)
class Grant:
    """One role (a key of ROLES) for one principal on one resource. `scope_name` only makes the assignment's name."""

    role: str
    principal: pulumi.Input[str]
    principal_name: str
    scope: pulumi.Input[str]
    scope_name: str
    principal_type: str | None = "ServicePrincipal"  # None: Azure finds out


def grant(place: Place, given: Grant, opts: pulumi.ResourceOptions) -> authorization.RoleAssignment:
    """Assign a role; the assignment's id is a function of what it says, so that a second `up` changes nothing."""
    label = f"{given.principal_name}-{given.role.replace(' ', '-')}-on-{given.scope_name}"
    definition = pulumi.Output.from_input(given.scope).apply(_subscription_of)
    return authorization.RoleAssignment(
        label,
        role_assignment_name=str(uuid.uuid5(NAMESPACE, f"{place.environment}/{place.unique}/{label}")),
        principal_id=given.principal,
        principal_type=given.principal_type,
        role_definition_id=pulumi.Output.concat(
            definition, "/providers/Microsoft.Authorization/roleDefinitions/", ROLES[given.role]
        ),
        scope=given.scope,
        opts=opts,
    )


def _subscription_of(resource_id: str) -> str:
    return "/".join(resource_id.split("/")[:3])


def federate(
    place: Place, name: str, identity: managedidentity.UserAssignedIdentity, issuer: pulumi.Input[str], account: str
) -> managedidentity.FederatedIdentityCredential:
    """Let a service account of the cluster (`namespace:name`) act as the identity, without a stored password."""
    return managedidentity.FederatedIdentityCredential(
        f"{name}-federation",
        federated_identity_credential_resource_name=name,
        resource_group_name=place.group,
        resource_name_=identity.name,
        issuer=issuer,
        subject=f"system:serviceaccount:{account}",
        audiences=["api://AzureADTokenExchange"],
        opts=pulumi.ResourceOptions(parent=identity),
    )
