"""Who is told of which alert on a cluster: monitoring's rules and Alertmanager's configuration, and what is added."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from proving_ground.infra.cluster import alerts, facts, gpu, metrics, networking
from proving_ground.infra.cluster.facts import Facts
from proving_ground.infra.cluster.labels import TRAINING
from proving_ground.infra.config import Environment, load
from tests.infra.mocks import record, snapshot
from tests.infra.test_configs import checked
from tests.infra.test_stacks import GOLDEN, compare

BASE = "https://git.example.com/team/proving-ground/src"
ROOT = Path(__file__).parents[2]
WEBHOOK = "https://x.example"


def environment(**changes: Any) -> Environment:
    """Of `local`, with these keys of `kubernetes` changed."""
    found = load("local", environ={})
    return dataclasses.replace(found, kubernetes=dataclasses.replace(found.kubernetes, **changes))


def known(webhook: str | None = WEBHOOK, **changes: Any) -> Facts:
    return Facts(environment(**changes), webhook=webhook, rules=facts.rules())


def own(given: Facts) -> list[dict[str, Any]]:
    """The rules that are made for the environment."""
    document = yaml.safe_load(alerts.rule_files(given)[alerts.OWN])
    return list(document["groups"][0]["rules"])


def test_the_configuration_is_monitorings_own() -> None:
    """One source: two drifted apart, and the cluster's had no inhibition."""
    shipped = yaml.safe_load((ROOT / "monitoring" / "prometheus" / "alertmanager.yaml").read_text())
    made = yaml.safe_load(alerts.alertmanager_config(known()))
    assert {**made, "receivers": shipped["receivers"]} == shipped
    assert made["inhibit_rules"]
    receivers = {it["name"]: it["webhook_configs"][0]["url_file"] for it in made["receivers"]}
    assert receivers == {it["name"]: "/etc/alertmanager-secret/webhook" for it in shipped["receivers"]}


def test_without_a_webhook_an_alert_says_that_none_reaches_anybody() -> None:
    (receivers,) = [it for it in own(known(None)) if it["record"] == "alert_receivers"]
    assert receivers["expr"] == "vector(0)"
    (receivers,) = [it for it in own(known()) if it["record"] == "alert_receivers"]
    assert receivers["expr"] == "vector(1)"


def test_what_must_be_watched_is_what_the_cluster_runs() -> None:
    """A job that Prometheus would never find would be an alert for ever."""
    given = known(images={"exporter": "mine/exporter:1"})
    expected = {it["labels"]["job"] for it in own(given) if it["record"] == "target_expected"}
    scraped = yaml.safe_load(metrics.prometheus_config(given))["scrape_configs"]
    assert "kubelet" in {it["job_name"] for it in scraped}
    assert expected == {*alerts.EXPECTED, "exporter"}
    without = {it["labels"]["job"] for it in own(known()) if it["record"] == "target_expected"}
    assert without == {*alerts.EXPECTED}, "the exporter is left out until its image is named"


def test_a_runbook_has_an_address_only_where_the_repository_has_one() -> None:
    assert alerts.rule_files(known()).items() >= facts.rules().items(), "as they are"
    made = alerts.rule_files(known(runbook_base=f"{BASE}/"))
    rules = [it for text in made.values() for group in yaml.safe_load(text)["groups"] for it in group["rules"]]
    found = {it["alert"]: it["annotations"] for it in rules if "alert" in it}
    assert found["NodeFailed"]["runbook_url"] == f"{BASE}/monitoring/runbook.md#nodefailed"
    assert found["NodeFailed"]["runbook"] == "monitoring/runbook.md#nodefailed"
    assert all(it["runbook_url"].startswith(f"{BASE}/") for it in found.values())
    assert "runbook_url" not in "".join(facts.rules().values())


def test_promtool_takes_what_is_made(tmp_path: Path) -> None:
    for name, text in alerts.rule_files(known(runbook_base=BASE)).items():
        (tmp_path / name).write_text(text)
        assert not checked("promtool", "check", "rules", str(tmp_path / name))


def test_rules_are_objects_where_the_cluster_has_the_operator() -> None:
    """The golden file: of the small rules that only these tests have."""
    assert not record("local").of("monitoring.coreos.com/v1:PrometheusRule")
    found = record("local", environment(prometheus_operator=True, runbook_base=BASE))
    objects = [it for it in found.resources if it.type.endswith(":PrometheusRule")]
    assert len(objects) == 2
    difference = compare(snapshot(dataclasses.replace(found, resources=objects)), GOLDEN / "prometheus-rules.json")
    assert not difference, difference


def test_an_object_has_all_rules_of_its_file() -> None:
    made = {it["metadata"]["name"]: it["spec"]["groups"] for it in alerts.rule_objects(known())}
    assert {*made} == {f"pg-{name.partition('.')[0]}" for name in (*facts.rules(), alerts.OWN)}
    assert made["pg-nodes"] == yaml.safe_load(facts.rules()["nodes.yaml"])["groups"]
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in made)


def test_the_gpu_exporter_collects_what_the_rules_ask_for() -> None:
    asked = set(re.findall(r"\bDCGM_[A-Z_]+\b", "".join(facts.rules().values())))
    assert asked == {*gpu.COUNTERS}
    rows = [line.split(", ") for line in gpu.counter_list().splitlines()]
    assert [(len(row), row[0], row[1]) for row in rows] == [(3, name, kind) for name, (kind, _) in gpu.COUNTERS.items()]


def test_rules_look_for_trainers_where_trainers_are() -> None:
    spaces = re.findall(r'namespace="([^"]+)"', facts.rules()["cluster.yaml"])
    assert {*spaces} == {TRAINING}


def node_exporter(**changes: Any) -> dict[str, Any]:
    objects = metrics.manifests(known(**changes))
    found = next(it for it in objects if it["kind"] == "DaemonSet" and it["metadata"]["name"] == "node-exporter")
    return dict(found["spec"]["template"]["spec"])


def test_node_exporter_sees_the_node_and_not_its_pod() -> None:
    spec = node_exporter()
    (container,) = spec["containers"]
    assert (spec["hostNetwork"], spec["hostPID"]) == (True, True)
    (root,) = [it for it in container["volumeMounts"] if it["mountPath"] == "/host"]
    assert (root["readOnly"], root["mountPropagation"]) == (True, "HostToContainer")
    assert {"name": root["name"], "hostPath": {"path": "/"}} in spec["volumes"]
    assert {"--path.rootfs=/host", "--path.procfs=/host/proc", "--path.sysfs=/host/sys"} <= {*container["args"]}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"]["runAsNonRoot"] is True


def test_node_exporters_port_is_the_nodes_and_can_be_another() -> None:
    """A cluster may have a node-exporter of its own at 9100; Prometheus' way to it is open, wherever machines are."""
    (container,) = node_exporter(node_exporter_port=9111)["containers"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 9111, "hostPort": 9111}]
    assert "--web.listen-address=:9111" in container["args"]


@pytest.mark.parametrize("port", [9100, 9111])
def test_prometheus_may_reach_the_nodes_ports(port: int) -> None:
    policies = networking.manifests(known(node_exporter_port=port))
    (scrape,) = [it for it in policies if it["metadata"]["name"] == "scrape"]
    anywhere = [it["port"] for rule in scrape["spec"]["egress"] if "to" not in rule for it in rule["ports"]]
    assert port in anywhere
