"""Prometheus, Alertmanager and kube-state-metrics as real programs with the shipped configuration, as in their pods.

Against a real API server that knows every pod of `local`, a node, and pods of strangers. Prometheus and Alertmanager
are the versions of the images, built from their Go modules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from proving_ground.infra.cluster import alerts
from proving_ground.infra.cluster.everything import manifests
from proving_ground.infra.cluster.facts import Facts, files
from proving_ground.infra.cluster.images import IMAGES
from proving_ground.infra.cluster.labels import MONITORING, NAMESPACES, TRAINING
from proving_ground.infra.config import ROOT, load
from proving_ground.monitoring.inbox import receiving
from tests.infra import inpod
from tests.infra.apiserver.server import Server, running
from tests.infra.gotools import TOOLS, UnavailableError, find
from tests.infra.test_apiserver import PREPARED, pods

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(1200)]
NODE = "node-1"
RULES = ROOT / "monitoring" / "rules"
DASHBOARDS = ROOT / "monitoring" / "dashboards"
STATE_METRICS = "kube-state-metrics"


def facts(webhook: str | None = None) -> Facts:
    """Of `local` with all that it can have, the exporter and Ray included."""
    environment = load("local", environ={})
    cluster = dataclasses.replace(environment.kubernetes, images={"exporter": "mine/exporter:1"}, ray_workers=1)
    rules = files(RULES, "*.y*ml")
    return Facts(dataclasses.replace(environment, kubernetes=cluster), {}, "password", webhook, rules=rules)


def available(name: str) -> str:
    """The program; without it the test is skipped, in CI it fails."""
    with unless_it_cannot_be():
        return str(find(name))
    raise AssertionError(name)


@contextlib.contextmanager
def unless_it_cannot_be() -> Iterator[None]:
    """Skip with the reason; in CI as root everything is there."""
    try:
        yield
    except UnavailableError as reason:
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            pytest.fail(f"in CI there must be everything: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An API server with the pods of `local` as they run on a node, all of them at one address."""
    with unless_it_cannot_be(), running(tmp_path_factory.mktemp("apiserver")) as started:
        _furnish(started)
        yield started


def _furnish(server: Server) -> None:
    objects = manifests(facts())
    default = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": space}}
               for space in NAMESPACES]  # fmt: skip
    address = [{"type": "InternalIP", "address": inpod.HOST}]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    ready = {"addresses": address, "conditions": [{"type": "Ready", "status": "True"}],
             "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}  # fmt: skip
    _make(server, [item for item in objects if item["kind"] in PREPARED] + default)
    _make(server, [node])
    _state(server, f"/api/v1/nodes/{NODE}", ready)
    for pod in _pods(objects):
        _make(server, [pod])
        status = {"phase": "Running", "podIP": inpod.HOST, "podIPs": [{"ip": inpod.HOST}]}
        _state(server, _path(pod), status)


def _pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every workload's pod, and those of strangers: not ours by its label, and of ours without the port."""
    made = [pod for item in objects if item["kind"] != "PodTemplate" for pod in pods(item)]
    exporter = next(pod for pod in made if pod["metadata"]["name"] == "exporter")
    stranger = json.loads(json.dumps(exporter))
    stranger["metadata"] = {"name": "stranger", "namespace": TRAINING, "labels": {"app.kubernetes.io/name": "exporter"}}
    for pod in (*made, stranger):
        pod["spec"]["nodeName"] = NODE
    return [*made, stranger]


def _path(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _make(server: Server, objects: list[dict[str, Any]]) -> None:
    for item in objects:
        answer = server.apply(item, dry_run=False)
        assert not answer.message, answer.message


def _state(server: Server, path: str, status: dict[str, Any]) -> None:
    answer = server.request("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")
    assert not answer.message, answer.message


def shipped(given: Facts, name: str) -> tuple[list[str], dict[str, str]]:
    """A program's arguments, and the files that its pod mounts, from the manifests."""
    objects = manifests(given)
    spec = next(pod for item in objects for pod in pods(item) if pod["metadata"]["name"] == name)["spec"]
    data = {
        (item["kind"], item["metadata"]["name"]): item.get("data") or item.get("stringData", {})
        for item in objects
        if item["kind"] in ("ConfigMap", "Secret") and item["metadata"]["namespace"] == MONITORING
    }
    sources = {}
    for volume in spec["volumes"]:
        key = ("ConfigMap", volume.get("configMap", {}).get("name"))
        sources[volume["name"]] = data.get(key) or data.get(("Secret", volume.get("secret", {}).get("secretName")), {})
    container = spec["containers"][0]
    mounted = {
        f"{mount['mountPath']}/{file}": text
        for mount in container["volumeMounts"]
        for file, text in sources[mount["name"]].items()
    }
    return list(container["args"]), mounted


def get(path: str, port: int = 9090) -> Any:
    """What a program answers, by its API."""
    with urllib.request.urlopen(f"http://{inpod.HOST}:{port}{path}", timeout=5) as response:
        return json.load(response)["data"]


@contextlib.contextmanager
def prometheus(folder: Path, server: Server) -> Iterator[inpod.Pod]:
    """Prometheus as shipped, but for where it listens and keeps its data."""
    words, mounted = shipped(facts(), "prometheus")
    words = [word.replace("=/prometheus", "=/tmp/prometheus") for word in words]
    command = [available("prometheus-on-kubernetes"), *words, f"--web.listen-address={inpod.HOST}:9090"]
    with (
        unless_it_cannot_be(),
        inpod.pod(folder, command, mounted, server, f"{MONITORING}:prometheus") as started,
    ):
        yield started


def targets() -> dict[tuple[str, str], dict[str, Any]]:
    """The active targets by pool and pod (for kubelets: node)."""
    found = get("/api/v1/targets?state=active")["activeTargets"]
    return {(it["scrapePool"], it["labels"].get("pod", it["labels"]["node"])): it for it in found}


WATCHED = {  # pod: namespace, port, path
    "exporter": (TRAINING, 8000, "/metrics"),
    STATE_METRICS: (MONITORING, 8080, "/metrics"),
    "node-exporter": ("pg-node-agents", 9100, "/metrics"),
    "log-collector": ("pg-node-agents", 2020, "/api/v1/metrics/prometheus"),
    "ray-head": ("pg-ray", 8080, "/metrics"),
    "ray-worker-cpu": ("pg-ray", 8080, "/metrics"),
}


class Exporter(BaseHTTPRequestHandler):
    """Metrics as the run exporter has them: they say themselves which node they are of."""

    def do_GET(self) -> None:
        """One of them."""
        body = b'training_steps_total{run="s/r",trial="t",node="n1"} 5\n'
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silence."""


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """Something that answers where the exporter's pod does."""
    with HTTPServer((inpod.HOST, WATCHED["exporter"][1]), Exporter) as listening:
        thread = Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown()
            thread.join()


def test_prometheus_finds_every_pod_with_metrics_and_the_nodes(server: Server, tmp_path: Path) -> None:
    with exporting(), prometheus(tmp_path / "pod", server) as started:
        started.wait(lambda: len(targets()) >= len(WATCHED) + 1)
        found = targets()
        assert {pod for pool, pod in found if pool == "pods"} == {*WATCHED}
        for pod, (space, port, path) in WATCHED.items():
            target = found["pods", pod]
            assert target["scrapeUrl"] == f"http://{inpod.HOST}:{port}{path}"
            labels = {name: target["labels"][name] for name in ("job", "namespace", "pod", "node")}
            assert labels == {"job": pod, "namespace": space, "pod": pod, "node": NODE}
        kubelet = found["kubelet", NODE]
        assert kubelet["scrapeUrl"] == f"https://{inpod.HOST}:10250/metrics/cadvisor"
        assert kubelet["labels"]["node"] == NODE
        started.wait(lambda: bool(series("training_steps_total")))
        (step,) = series("training_steps_total")
        assert {name: step[name] for name in ("job", "namespace", "pod", "node", "run")} == {
            "job": "exporter", "namespace": TRAINING, "pod": "exporter", "node": "n1", "run": "s/r",
        }  # fmt: skip
        assert "forbidden" not in started.log.read_text()


def series(name: str) -> list[dict[str, str]]:
    """The labels of a metric's series."""
    found = get(f"/api/v1/query?{urllib.parse.urlencode({'query': name})}")["result"]
    return [it["metric"] for it in found]


def test_prometheus_loads_every_rule_and_knows_its_alertmanager(server: Server, tmp_path: Path) -> None:
    with prometheus(tmp_path / "pod", server) as started:
        started.wait(lambda: bool(get("/api/v1/alertmanagers")["activeAlertmanagers"]))
        (manager,) = get("/api/v1/alertmanagers")["activeAlertmanagers"]
        assert manager["url"] == "http://alertmanager:9093/api/v2/alerts"
        loaded = {Path(group["file"]).name for group in get("/api/v1/rules")["groups"]}
        assert loaded == {*files(RULES, "*.y*ml"), alerts.OWN}


@pytest.mark.parametrize("has_webhook", [True, False])
def test_alertmanager_tells_the_webhook_whose_address_is_a_secret_file(
    tmp_path: Path,
    has_webhook: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    with receiving() as inbox:
        words, mounted = shipped(facts(inbox.url if has_webhook else None), "alertmanager")
        assert ("/etc/alertmanager-secret/webhook" in mounted) == has_webhook
        command = [available("alertmanager"), *words, f"--web.listen-address={inpod.HOST}:9093"]
        with unless_it_cannot_be(), inpod.pod(tmp_path / "pod", command, mounted) as started:
            started.wait(_tell)
            if has_webhook:
                started.wait(lambda: [it.alert for it in inbox.new()] == ["NodeFailed"])


def _tell() -> bool:
    """Whether Alertmanager takes an alert."""
    alert = [{"labels": {"alertname": "NodeFailed", "environment": "local"}, "annotations": {"summary": "n1"}}]
    request = urllib.request.Request(
        f"http://{inpod.HOST}:9093/api/v2/alerts", json.dumps(alert).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=5) as response:  # noqa: S310 - loopback
        return bool(response.status == 200)


@pytest.mark.parametrize(
    ("tool", "image"), [("prometheus-on-kubernetes", "prometheus"), ("alertmanager", "alertmanager")]
)
def test_what_is_built_is_the_version_of_the_image(tool: str, image: str) -> None:
    """Prometheus 2.55.1 is v0.55.1 as a Go module."""
    version = IMAGES[image].rpartition(":v")[2]
    assert TOOLS[tool].version in (f"v{version}", f"v0.{version.partition('.')[2]}")


def test_kube_state_metrics_has_what_the_rules_ask_for(server: Server, tmp_path: Path) -> None:
    program = shutil.which(STATE_METRICS)
    if program is None:
        pytest.skip(f"{STATE_METRICS} is not on PATH; neither Debian nor the Go module proxy has it")
    words, mounted = shipped(facts(), STATE_METRICS)
    here = [f"--host={inpod.HOST}", f"--telemetry-host={inpod.HOST}"]
    broken = {"name": "exporter", "ready": False, "restartCount": 1, "image": "i", "imageID": "",
              "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
              "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}  # fmt: skip
    _state(server, f"/api/v1/namespaces/{TRAINING}/pods/exporter", {"containerStatuses": [broken]})
    account = f"{MONITORING}:{STATE_METRICS}"
    with (
        unless_it_cannot_be(),
        inpod.pod(tmp_path / "pod", [program, *words, *here], mounted, server, account) as started,
    ):
        started.wait(lambda: "OOMKilled" in _metrics())
        missing = {name for name in asked() - NOT_HERE if not re.search(rf"^{name}\{{", _metrics(), re.MULTILINE)}
        assert missing == set()
        assert "forbidden" not in started.log.read_text()


NOT_HERE = {
    "kube_pod_deletion_timestamp", "kube_job_status_active", "kube_job_spec_completions",
    "kube_node_status_allocatable",
}  # fmt: skip
"""Of a pod that is being deleted, of Jobs, and of what a kubelet says: this API server has none of them."""


def asked() -> set[str]:
    """What rules and dashboards take from kube-state-metrics."""
    text = "".join([*files(RULES, "*.y*ml").values(), *files(DASHBOARDS, "*.json").values()])
    found = set(re.findall(r"\bkube_[a-z_]+", text))
    assert len(found) >= 3
    return found


def _metrics() -> str:
    with urllib.request.urlopen(f"http://{inpod.HOST}:8080/metrics", timeout=5) as response:
        return str(response.read().decode())
