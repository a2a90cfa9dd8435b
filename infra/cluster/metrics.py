"""Prometheus, Alertmanager, and the exporters that every cluster has. Rules are data: `Facts.rules`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from proving_ground.infra.cluster.alerts import alertmanager_config, rule_files, rule_objects
from proving_ground.infra.cluster.labels import JOBS_PATH, MONITORING, NODE_AGENTS, SHARED_CLAIM, SHARED_PATH, TRAINING
from proving_ground.infra.cluster.manifest import (
    App,
    Manifest,
    config_map,
    daemon,
    deployment,
    from_config,
    from_host,
    service,
    sizes,
    stateful,
    thing,
)
from proving_ground.infra.cluster.training import preparing

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts

DISK_GIB = 50
SCRAPE_S = 15
HOST = "/host"  # where a node's root is in the pod
NO_DISKS = r"^/(dev|proc|run|sys|var/lib/(docker|containerd|kubelet/(pods|plugins)))($|/)"
"""Mount points below which each container has some of its own."""
DISCOVERY = Path(__file__).parents[2] / "monitoring" / "prometheus" / "kubernetes.yaml"


def manifests(facts: Facts) -> list[Manifest]:
    """All of it; config maps before what reads them. The exporter's image is the project's own: once it is named."""
    prometheus, alertmanager, state = _prometheus(facts), _alertmanager(facts), _state_metrics(facts)
    has_exporter = "exporter" in facts.environment.kubernetes.images
    return [
        config_map("prometheus", MONITORING, {"prometheus.yml": prometheus_config(facts)}),
        config_map("prometheus-rules", MONITORING, rule_files(facts)),
        *(rule_objects(facts) if facts.environment.kubernetes.prometheus_operator else []),
        stateful(prometheus, DISK_GIB if facts.on_azure else None, "/prometheus"),
        service(prometheus),
        config_map("alertmanager", MONITORING, {"alertmanager.yml": alertmanager_config(facts)}),
        *_webhook(facts),
        deployment(alertmanager),
        service(alertmanager),
        deployment(state),
        daemon(_node_exporter(facts)),
        *([deployment(_exporter(facts))] if has_exporter else []),
    ]


def prometheus_config(facts: Facts) -> str:
    """Scrapes every pod with a port named `metrics`, and the kubelets for what containers use."""
    config: dict[str, Any] = {
        "global": {
            "scrape_interval": f"{SCRAPE_S}s",
            "evaluation_interval": f"{SCRAPE_S}s",
            "external_labels": {"environment": facts.environment.name},
        },
        "rule_files": ["/etc/prometheus-rules/*.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["alertmanager:9093"]}]}]},
        "scrape_configs": yaml.safe_load(DISCOVERY.read_text()),
    }
    return yaml.safe_dump(config, sort_keys=False)


def _prometheus(facts: Facts) -> App:
    volumes, mounts = zip(
        from_config("prometheus", "/etc/prometheus"),
        from_config("prometheus-rules", "/etc/prometheus-rules"),
        strict=True,
    )
    days = facts.environment.kubernetes.retention_days
    return App(
        name="prometheus",
        namespace=MONITORING,
        image=facts.image("prometheus"),
        args=(
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            f"--storage.tsdb.retention.time={days}d",
            f"--storage.tsdb.retention.size={DISK_GIB * 9 // 10}GB",
        ),
        ports={"web": 9090},
        resources=sizes("100m", "2Gi"),
        volumes=volumes,
        mounts=mounts,
        account="prometheus",
        health="/-/ready",
    )


def _webhook(facts: Facts) -> list[Manifest]:
    """The secret with its address, only if there is one: an empty secret would differ from its stored self for ever."""
    if facts.webhook is None:
        return []
    data = {"webhook": facts.webhook}
    return [thing("v1", "Secret", "alertmanager", MONITORING, type="Opaque", stringData=data)]


def _alertmanager(facts: Facts) -> App:
    volume, mount = from_config("alertmanager", "/etc/alertmanager")
    secret: Manifest = {"name": "secret", "secret": {"secretName": "alertmanager", "optional": True}}
    return App(
        name="alertmanager",
        namespace=MONITORING,
        image=facts.image("alertmanager"),
        args=("--config.file=/etc/alertmanager/alertmanager.yml", "--storage.path=/tmp", "--cluster.listen-address="),
        ports={"web": 9093},
        volumes=(volume, secret),
        mounts=(mount, {"name": "secret", "mountPath": "/etc/alertmanager-secret", "readOnly": True}),
        health="/-/ready",
    )


def _state_metrics(facts: Facts) -> App:
    kinds = "pods,nodes,namespaces,services,persistentvolumeclaims,persistentvolumes,resourcequotas"
    return App(
        name="kube-state-metrics",
        namespace=MONITORING,
        image=facts.image("kube_state_metrics"),
        args=(f"--resources={kinds},daemonsets,deployments,statefulsets,replicasets,jobs", "--port=8080"),
        ports={"metrics": 8080},
        account="kube-state-metrics",
    )


def _exporter(facts: Facts) -> App:
    """Follows what the trainers write under `JOBS_PATH/events/JOB.NODE.SLOT.jsonl` on the volume that they share."""
    return App(
        name="exporter",
        namespace=TRAINING,
        image=facts.image("exporter"),
        args=("python", "-m", "proving_ground.monitoring", "export", JOBS_PATH, "--host", "0.0.0.0", "--port", "8000"),  # noqa: S104 - a pod
        ports={"metrics": 8000},
        resources=sizes("50m", "256Mi"),
        volumes=({"name": "shared", "persistentVolumeClaim": {"claimName": SHARED_CLAIM, "readOnly": True}},),
        mounts=({"name": "shared", "mountPath": SHARED_PATH, "readOnly": True},),
        health="/healthz",
    )


def _node_exporter(facts: Facts) -> App:
    """Sees the machine, not its pod: the node's processes, network and root; read only, mounts that come later too."""
    volume, mount = from_host("root", "/")
    before = preparing(facts)
    return App(
        name="node-exporter",
        namespace=NODE_AGENTS,
        image=facts.image("node_exporter"),
        args=(
            f"--web.listen-address=:{facts.environment.kubernetes.node_exporter_port}",
            f"--path.procfs={HOST}/proc",
            f"--path.sysfs={HOST}/sys",
            f"--path.rootfs={HOST}",
            f"--collector.filesystem.mount-points-exclude={NO_DISKS}",
        ),
        ports={"metrics": facts.environment.kubernetes.node_exporter_port},
        volumes=(volume, *before.pop("volumes", ())),
        mounts=({**mount, "mountPath": HOST, "mountPropagation": "HostToContainer"},),
        on_host=True,
        extra={"tolerations": [{"operator": "Exists"}], **before},
    )
