"""The shape of a Kubernetes object as plain data, and the pieces that all of ours share. Used by `infra.cluster`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Manifest = dict[str, Any]

PART_OF = {"app.kubernetes.io/part-of": "proving-ground"}
TMP: Manifest = {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}
TMP_MOUNT: Manifest = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - a container's own, in memory of the pod
RESTRICTED: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
USER = 10001  # no image's own; any number but 0 does


def thing(api: str, kind: str, name: str, namespace: str | None = None, **fields: Any) -> Manifest:  # noqa: ANN401 - YAML
    """An object with name, namespace, labels, and its other top-level fields."""
    metadata: Manifest = {"name": name, "labels": {**PART_OF, "app.kubernetes.io/name": name}}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}


def selector(name: str) -> dict[str, str]:
    """The label by which an app's pods are found."""
    return {"app.kubernetes.io/name": name}


def sizes(cpu: str, memory: str) -> Manifest:
    """Requests equal to limits for memory; the CPU may be exceeded when it is idle."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}


@dataclass(frozen=True)
class App:
    """One container as a pod: what the small programs of the monitoring stack have in common."""

    name: str
    namespace: str
    image: str
    args: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    ports: dict[str, int] = field(default_factory=dict)  # one named `metrics` is scraped
    env: tuple[Manifest, ...] = ()
    resources: Manifest = field(default_factory=lambda: sizes("50m", "128Mi"))
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()
    account: str | None = None
    security: Manifest = field(default_factory=lambda: dict(RESTRICTED))
    user: int = USER
    health: str | None = None  # path that answers 200 when it works, at its first port
    on_host: bool = False  # shares network and processes with its node, whose ports its own then are
    extra: Manifest = field(default_factory=dict)  # other fields of the pod's spec


def pod(app: App) -> Manifest:
    """The pod template of an app: restricted, read-only, with the API's token only if it has an account of its own."""
    container: Manifest = {
        "name": app.name,
        "image": app.image,
        "securityContext": app.security,
        "resources": app.resources,
        "volumeMounts": [TMP_MOUNT, *app.mounts],
        **({"command": list(app.command)} if app.command else {}),
        **({"args": list(app.args)} if app.args else {}),
        **({"env": list(app.env)} if app.env else {}),
        **({"ports": [_port(app, name) for name in app.ports]} if app.ports else {}),
        **({"readinessProbe": {"httpGet": {"path": app.health, "port": next(iter(app.ports))}}} if app.health else {}),
    }
    spec: Manifest = {
        "automountServiceAccountToken": app.account is not None,
        "serviceAccountName": app.account or "default",
        "securityContext": pod_security(app.user),
        "containers": [container],
        "volumes": [TMP, *app.volumes],
        **({"hostNetwork": True, "hostPID": True} if app.on_host else {}),
        **app.extra,
    }
    return {"metadata": {"labels": {**PART_OF, **selector(app.name)}}, "spec": spec}


def _port(app: App, name: str) -> Manifest:
    """A port of the container; on the host it is the same, which the API server else writes there by itself."""
    number = app.ports[name]
    return {"name": name, "containerPort": number, **({"hostPort": number} if app.on_host else {})}


def pod_security(user: int) -> Manifest:
    """Security of a pod: a user that is not root unless 0 is asked for, and the runtime's own seccomp profile."""
    context: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    return (
        {**context, "runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user} if user else context
    )


def deployment(app: App, replicas: int = 1) -> Manifest:
    """The app as a Deployment that is replaced, not doubled, on a change."""
    spec = {
        "replicas": replicas,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector(app.name)},
        "template": pod(app),
    }
    return thing("apps/v1", "Deployment", app.name, app.namespace, spec=spec)


def stateful(app: App, claim_gib: int | None, mount: str) -> Manifest:
    """The app as a StatefulSet with a disk of its own (None: one that lives as long as its pod)."""
    template = pod(app)
    template["spec"]["containers"][0]["volumeMounts"].append({"name": "state", "mountPath": mount})
    spec: Manifest = {
        "replicas": 1,
        "serviceName": app.name,
        "selector": {"matchLabels": selector(app.name)},
        "template": template,
    }
    if claim_gib is None:
        template["spec"]["volumes"].append({"name": "state", "emptyDir": {}})
    else:
        storage = {"resources": {"requests": {"storage": gib(claim_gib)}}, "accessModes": ["ReadWriteOnce"]}
        spec["volumeClaimTemplates"] = [{"metadata": {"name": "state"}, "spec": storage}]
    return thing("apps/v1", "StatefulSet", app.name, app.namespace, spec=spec)


def daemon(app: App) -> Manifest:
    """The app on every node that it tolerates."""
    spec = {"selector": {"matchLabels": selector(app.name)}, "template": pod(app)}
    return thing("apps/v1", "DaemonSet", app.name, app.namespace, spec=spec)


def service(app: App, *, headless: bool = False) -> Manifest:
    """The app's ports under its name, inside the cluster only."""
    ports = [{"name": key, "port": port, "targetPort": key} for key, port in app.ports.items()]
    address = {"clusterIP": "None"} if headless else {}
    return thing(
        "v1", "Service", app.name, app.namespace, spec={**address, "selector": selector(app.name), "ports": ports}
    )


def config_map(name: str, namespace: str, data: dict[str, str]) -> Manifest:
    """Files for a container."""
    return thing("v1", "ConfigMap", name, namespace, **({"data": data} if data else {}))


def count(number: int) -> str:
    """A number as an API server writes it, who keeps 5000 as 5k: any other text would be a change at every `up`."""
    return f"{number // 1000}k" if number and number % 1000 == 0 else str(number)


def gib(number: int) -> str:
    """The same for a size in GiB."""
    return f"{number // 1024}Ti" if number % 1024 == 0 else f"{number}Gi"


def from_config(name: str, path: str) -> tuple[Manifest, Manifest]:
    """The volume and its mount that show a ConfigMap's files under `path`."""
    return {"name": name, "configMap": {"name": name}}, {"name": name, "mountPath": path, "readOnly": True}


def from_host(name: str, path: str, *, writable: bool = False) -> tuple[Manifest, Manifest]:
    """The volume and its mount that show a node's folder at the same path."""
    mount = {"name": name, "mountPath": path, **({} if writable else {"readOnly": True})}
    return {"name": name, "hostPath": {"path": path}}, mount
