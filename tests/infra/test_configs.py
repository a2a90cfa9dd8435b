"""The configurations that are carried onto the cluster, read by the programs they are for where those are on PATH."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from proving_ground.infra.cluster import alerts, logs, metrics
from proving_ground.infra.cluster.facts import Facts
from proving_ground.infra.config import load

FACTS = Facts(
    load("dev", environ={}), {"cpu": "Standard_D8s_v5", "t4": "Standard_NC4as_T4_v3"}, webhook="https://x.example"
)


def checked(program: str, *arguments: str) -> str:
    """What a checker says; empty when it is content."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on PATH (Debian: prometheus, prometheus-alertmanager)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout + done.stderr if done.returncode else ""


def without_discovery(text: str) -> str:
    """Debian's promtool is built without Kubernetes: one fixed target stands in for what the cluster would list."""
    config = yaml.safe_load(text)
    for job in config["scrape_configs"]:
        del job["kubernetes_sd_configs"]
        job["static_configs"] = [{"targets": ["x:1"]}]
    return yaml.safe_dump(config)


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "prometheus.yml"
    file.write_text(without_discovery(metrics.prometheus_config(FACTS)))
    assert not checked("promtool", "check", "config", "--syntax-only", str(file))
    file.write_text(file.read_text().replace("target_label", "target_labl"))
    assert "target_labl" in checked("promtool", "check", "config", "--syntax-only", str(file))


@pytest.mark.parametrize("webhook", ["https://x.example", None])
def test_alertmanager_takes_its_configuration(tmp_path: Path, webhook: str | None) -> None:
    text = alerts.alertmanager_config(dataclasses.replace(FACTS, webhook=webhook))
    assert ("webhook_configs" in text) == (webhook is not None)
    assert "x.example" not in text  # the address is a secret file
    file = tmp_path / "alertmanager.yml"
    file.write_text(text.replace("url_file: ", "url: http://x"))  # Debian's amtool is older than url_file (0.26)
    assert not checked("amtool", "check-config", str(file))


def test_logs_go_where_loki_listens() -> None:
    output = yaml.safe_load(logs.collector_config())["pipeline"]["outputs"][0]
    listens = yaml.safe_load(logs.loki_config(FACTS))["server"]["http_listen_port"]
    assert (output["host"], output["port"]) == ("loki.pg-monitoring", listens)


def test_logs_and_metrics_are_kept_as_long_as_configured() -> None:
    assert yaml.safe_load(logs.loki_config(FACTS))["limits_config"]["retention_period"] == "360h"
    prometheus = next(item for item in metrics.manifests(FACTS) if item["kind"] == "StatefulSet")
    assert "--storage.tsdb.retention.time=15d" in prometheus["spec"]["template"]["spec"]["containers"][0]["args"]
