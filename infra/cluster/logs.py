"""Logs of all pods in one place: a collector on every node, Loki to keep and search them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from proving_ground.infra.cluster.labels import MONITORING, NODE_AGENTS
from proving_ground.infra.cluster.manifest import (
    App,
    Manifest,
    config_map,
    daemon,
    from_config,
    from_host,
    service,
    sizes,
    stateful,
)

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts

DISK_GIB = 50


def manifests(facts: Facts) -> list[Manifest]:
    """Loki, and the collectors."""
    loki = _loki(facts)
    return [
        config_map("loki", MONITORING, {"loki.yaml": loki_config(facts)}),
        stateful(loki, DISK_GIB if facts.on_azure else None, "/loki"),
        service(loki),
        config_map("log-collector", NODE_AGENTS, {"fluent-bit.yaml": collector_config()}),
        daemon(_collector(facts)),
    ]


def loki_config(facts: Facts) -> str:
    """One process, files on its own disk, old logs deleted."""
    config = {
        "auth_enabled": False,
        "server": {"http_listen_port": 3100},
        "analytics": {"reporting_enabled": False},
        "common": {"path_prefix": "/loki", "replication_factor": 1, "ring": {"kvstore": {"store": "inmemory"}}},
        "schema_config": {
            "configs": [
                {
                    "from": "2024-01-01",
                    "store": "tsdb",
                    "object_store": "filesystem",
                    "schema": "v13",
                    "index": {"prefix": "index_", "period": "24h"},
                }
            ]
        },
        "storage_config": {"filesystem": {"directory": "/loki/chunks"}},
        "compactor": {"retention_enabled": True, "delete_request_store": "filesystem"},
        "limits_config": {"retention_period": f"{24 * facts.environment.kubernetes.retention_days}h"},
    }
    return yaml.safe_dump(config, sort_keys=False)


def collector_config() -> str:
    """Reads the containers' logs on the node, adds pod and namespace, sends them to Loki."""
    config = {
        "service": {"http_server": "on", "http_port": 2020, "flush": 2},
        "pipeline": {
            "inputs": [
                {"name": "tail", "path": "/var/log/containers/*_pg-*.log", "tag": "kube.*", "multiline.parser": "cri"}
            ],
            "filters": [{"name": "kubernetes", "match": "kube.*", "merge_log": "on", "labels": "on"}],
            "outputs": [
                {
                    "name": "loki",
                    "match": "*",
                    "host": f"loki.{MONITORING}",
                    "port": 3100,
                    "labels": "job=pods",
                    "label_keys": "$kubernetes['namespace_name'],$kubernetes['pod_name']",
                }
            ],
        },
    }
    return yaml.safe_dump(config, sort_keys=False)


def _loki(facts: Facts) -> App:
    volume, mount = from_config("loki", "/etc/loki")
    return App(
        name="loki",
        namespace=MONITORING,
        image=facts.image("loki"),
        args=("-config.file=/etc/loki/loki.yaml",),
        ports={"web": 3100},
        resources=sizes("100m", "1Gi"),
        volumes=(volume,),
        mounts=(mount,),
        health="/ready",
    )


def _collector(facts: Facts) -> App:
    volumes, mounts = zip(
        from_config("log-collector", "/etc/log-collector"), from_host("logs", "/var/log"), strict=True
    )
    return App(
        name="log-collector",
        namespace=NODE_AGENTS,
        image=facts.image("log_collector"),
        args=("--config=/etc/log-collector/fluent-bit.yaml",),
        ports={"metrics": 2020},
        volumes=volumes,
        mounts=mounts,
        account="log-collector",
        user=0,  # the nodes' log files are readable by root only
        extra={"tolerations": [{"operator": "Exists"}]},
    )
