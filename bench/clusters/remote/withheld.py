"""What keeps a Job from getting pods, as manifests. Called by `remote.kubernetes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proving_ground.bench.clusters.remote.kubectl import Manifest
from proving_ground.bench.clusters.remote.pool import signature

RUN, OWNER = "proving-ground/run", "proving-ground/owner"
HOOKS = "validatingwebhookconfigurations"
HOOK_S = 5  # that the API server waits for one


def quota(name: str, owned: Mapping[str, Any], namespace: str) -> Manifest:
    """No pod more in the namespace, as if all that it may have were there; it goes with the Job."""
    meta = {"name": name, "namespace": namespace, "labels": {RUN: owned["name"]}, "ownerReferences": [dict(owned)]}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": {"pods": "0"}}}


def hook(name: str, owned: Mapping[str, Any], namespace: str) -> Manifest:
    """A webhook that the Job's pods have to pass, and no others, at a service that is not there.

    It is the cluster's, and nothing of a namespace's can own it: who made it is written on it, for `clean`.
    """
    job = owned["name"]
    one = {
        "name": f"{name}.invalid", "failurePolicy": "Fail", "sideEffects": "None",
        "timeoutSeconds": HOOK_S, "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"namespace": namespace, "name": "nowhere", "path": "/"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": {"matchLabels": {RUN: job}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }  # fmt: skip
    return {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name, "labels": {RUN: job}, "annotations": {OWNER: signature()}}, "webhooks": [one],
    }  # fmt: skip
