"""Who is told of which alert, from `monitoring/`: the rules, as files or as objects, and Alertmanager's configuration.

Both are data that `monitoring/` owns and tests; added is only what this environment knows of itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from proving_ground.infra.cluster.labels import MONITORING
from proving_ground.infra.cluster.manifest import Manifest, thing

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts

SHIPPED = Path(__file__).parents[2] / "monitoring" / "prometheus" / "alertmanager.yaml"
OWN = "environment.yaml"  # the rules that are made here
EXPECTED = ("kube-state-metrics", "kubelet", "log-collector", "node-exporter")
"""Jobs of Prometheus that every cluster has targets of. GPUs' and Ray's nodes come and go: NodeUnwatched sees these."""


def rule_files(facts: Facts) -> dict[str, str]:
    """File name → rules: the project's, with `runbook_url` where the runbook has an address, and the environment's."""
    base = facts.environment.kubernetes.runbook_base
    shipped = {name: _with_runbooks(text, base) if base else text for name, text in facts.rules.items()}
    return {**shipped, OWN: yaml.safe_dump(_own(facts), sort_keys=False)} if shipped else {}


def rule_objects(facts: Facts) -> list[Manifest]:
    """The same rules for a cluster that has the Prometheus operator: a PrometheusRule of each file."""
    return [
        thing("monitoring.coreos.com/v1", "PrometheusRule", f"pg-{name.partition('.')[0]}", MONITORING,
              spec={"groups": yaml.safe_load(text)["groups"]})
        for name, text in rule_files(facts).items()
    ]  # fmt: skip


def _with_runbooks(text: str, base: str) -> str:
    """Rules whose annotation `runbook`, a path in the repository, has the address beside it that a browser can open."""
    document: dict[str, Any] = yaml.safe_load(text)
    for group in document["groups"]:
        for rule in group["rules"]:
            if page := rule.get("annotations", {}).get("runbook"):
                rule["annotations"]["runbook_url"] = f"{base.rstrip('/')}/{page}"
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=10_000)


def _own(facts: Facts) -> Manifest:
    """What must be there (TargetGone), and whether anybody is told (AlertsGoNowhere)."""
    has_exporter = "exporter" in facts.environment.kubernetes.images
    expected = [
        {"record": "target_expected", "expr": "vector(1)", "labels": {"job": job}}
        for job in (*EXPECTED, *(["exporter"] if has_exporter else []))
    ]
    receivers = {"record": "alert_receivers", "expr": f"vector({int(facts.webhook is not None)})"}
    return {"groups": [{"name": "environment", "rules": [*expected, receivers]}]}


def alertmanager_config(facts: Facts) -> str:
    """Monitoring's own; its receiver gets the webhook, whose address is a secret file. Without one it tells nobody."""
    document: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    if facts.webhook is not None:
        hook = {"url_file": "/etc/alertmanager-secret/webhook", "send_resolved": True}
        document["receivers"] = [{**it, "webhook_configs": [hook]} for it in document["receivers"]]
    return yaml.safe_dump(document, sort_keys=False)
