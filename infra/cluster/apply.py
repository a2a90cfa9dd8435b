"""Manifests as Pulumi resources: one plain resource each, each after its namespace and what it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pulumi
from pulumi_kubernetes import apiextensions, apps, core, networking, rbac, scheduling

from proving_ground.infra.cluster.everything import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulumi_kubernetes import Provider

    from proving_ground.infra.cluster.manifest import Manifest

KINDS: dict[str, type[pulumi.CustomResource]] = {
    "Namespace": core.v1.Namespace,
    "ResourceQuota": core.v1.ResourceQuota,
    "LimitRange": core.v1.LimitRange,
    "ServiceAccount": core.v1.ServiceAccount,
    "ConfigMap": core.v1.ConfigMap,
    "Secret": core.v1.Secret,
    "Service": core.v1.Service,
    "PersistentVolume": core.v1.PersistentVolume,
    "PersistentVolumeClaim": core.v1.PersistentVolumeClaim,
    "PodTemplate": core.v1.PodTemplate,
    "Deployment": apps.v1.Deployment,
    "StatefulSet": apps.v1.StatefulSet,
    "DaemonSet": apps.v1.DaemonSet,
    "NetworkPolicy": networking.v1.NetworkPolicy,
    "PriorityClass": scheduling.v1.PriorityClass,
    "ClusterRole": rbac.v1.ClusterRole,
    "ClusterRoleBinding": rbac.v1.ClusterRoleBinding,
    "Role": rbac.v1.Role,
    "RoleBinding": rbac.v1.RoleBinding,
}


class OnCluster(pulumi.ComponentResource):
    """All objects of one cluster.

    `cluster` is the resource that made it, None where the stack did not: when that goes, its objects go with it, and
    nobody asks its API server, which may be out of reach or broken. Else a namespace takes along what is in it.
    """

    def __init__(
        self,
        manifests: Sequence[Manifest],
        provider: Provider,
        opts: pulumi.ResourceOptions | None = None,
        *,
        cluster: pulumi.Resource | None = None,
        wait: bool = True,
    ) -> None:
        super().__init__("proving-ground:cluster:OnCluster", "on-cluster", {}, opts)
        spaces: dict[str, pulumi.Resource] = {}
        for manifest in manifests:
            space = spaces.get(manifest["metadata"].get("namespace", ""))
            options = pulumi.ResourceOptions(
                parent=self, provider=provider, depends_on=[space] if space else [], deleted_with=cluster or space
            )
            made = _make(manifest if wait else unawaited(manifest), options)
            if manifest["kind"] == "Namespace":
                spaces[manifest["metadata"]["name"]] = made
        self.register_outputs({})


def unawaited(manifest: Manifest) -> Manifest:
    """The object with the mark by which Pulumi does not wait until it works, or is gone."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), "pulumi.com/skipAwait": "true"}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _make(manifest: Manifest, options: pulumi.ResourceOptions) -> pulumi.CustomResource:
    fields = {SPELLED.get(key, key): value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
    if manifest["kind"] in KINDS:
        return KINDS[manifest["kind"]](label(manifest), opts=options, **fields)
    kind = {"api_version": manifest["apiVersion"], "kind": manifest["kind"]}  # one that an operator brought
    return apiextensions.CustomResource(label(manifest), opts=options, **kind, **fields)


SPELLED = {
    "stringData": "string_data",
    "roleRef": "role_ref",
    "preemptionPolicy": "preemption_policy",
    "automountServiceAccountToken": "automount_service_account_token",
}
"""Fields at the top of an object as Pulumi's constructors spell them."""
