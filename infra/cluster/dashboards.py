"""Grafana. Dashboards are data: `Facts.dashboards`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from proving_ground.infra.cluster.labels import MONITORING
from proving_ground.infra.cluster.manifest import (
    App,
    Manifest,
    config_map,
    deployment,
    from_config,
    service,
    sizes,
    thing,
)

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts

PASSWORD_FOLDER = "/etc/grafana-secret"  # noqa: S105 - a folder
SETTINGS = {
    "GF_SECURITY_ADMIN_PASSWORD__FILE": f"{PASSWORD_FOLDER}/password",
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_USERS_ALLOW_SIGN_UP": "false",
    "GF_PATHS_PLUGINS": "/tmp/grafana-plugins",  # noqa: S108 - none are installed
    "GF_PATHS_DATA": "/tmp/grafana",  # noqa: S108 - all that matters is provisioned from files
}


def manifests(facts: Facts) -> list[Manifest]:
    """Grafana with its data sources, the dashboards, and the password."""
    app = _grafana(facts)
    return [
        config_map("grafana-sources", MONITORING, {"sources.yaml": _sources()}),
        config_map("grafana-provider", MONITORING, {"provider.yaml": _provider()}),
        config_map("grafana-dashboards", MONITORING, dict(facts.dashboards)),
        thing("v1", "Secret", "grafana", MONITORING, type="Opaque", stringData={"password": facts.grafana_password}),
        deployment(app),
        service(app),
    ]


def _sources() -> str:
    sources: list[Manifest] = [
        {
            "name": "Prometheus",
            "type": "prometheus",
            "uid": "prometheus",
            "url": "http://prometheus:9090",
            "isDefault": True,
        },
        {"name": "Loki", "type": "loki", "uid": "loki", "url": "http://loki:3100"},
    ]
    return yaml.safe_dump({"apiVersion": 1, "datasources": [{**source, "access": "proxy"} for source in sources]})


def _provider() -> str:
    provider = {"name": "files", "type": "file", "options": {"path": "/var/lib/grafana-dashboards"}}
    return yaml.safe_dump({"apiVersion": 1, "providers": [provider]})


def _grafana(facts: Facts) -> App:
    config = [
        from_config("grafana-sources", "/etc/grafana/provisioning/datasources"),
        from_config("grafana-provider", "/etc/grafana/provisioning/dashboards"),
        from_config("grafana-dashboards", "/var/lib/grafana-dashboards"),
    ]
    secret: Manifest = {"name": "secret", "secret": {"secretName": "grafana"}}
    return App(
        name="grafana",
        namespace=MONITORING,
        image=facts.image("grafana"),
        env=tuple({"name": name, "value": value} for name, value in SETTINGS.items()),
        ports={"web": 3000},
        resources=sizes("50m", "512Mi"),
        volumes=(*(volume for volume, _ in config), secret),
        mounts=(*(mount for _, mount in config), {"name": "secret", "mountPath": PASSWORD_FOLDER, "readOnly": True}),
        health="/api/health",
    )
