"""The shipped configuration under the real Alertmanager: what hides what, and that the watchdog is never hidden."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from proving_ground.bench.servers import HERE, free_port
from proving_ground.monitoring import rules
from proving_ground.monitoring.inbox import Inbox
from proving_ground.monitoring.programs import program
from proving_ground.monitoring.rules import WATCHDOG
from proving_ground.monitoring.servers import CONFIGURATION, server
from tests.monitoring.conftest import needs_prometheus

SHIPPED = CONFIGURATION / "alertmanager.yaml"
JOB = {"run": "r", "trial": "t"}
OTHER = {"run": "r", "trial": "other"}
NODE = {**JOB, "node": "n1"}
GPU = {"node": "k1", "gpu": "0"}
HIDDEN = [
    ("TrainingStalled", JOB, "SlowProgress", JOB),
    ("TrainingStalled", JOB, "Straggler", NODE),
    ("TrainingStalled", JOB, "CommunicationHigh", JOB),
    ("TrainingStalled", JOB, "RecoverySlow", JOB),
    ("NodeLost", NODE, "NodeFailed", NODE),
    ("KubernetesNodeNotReady", {"node": "n1"}, "NodeLost", NODE),
    ("DiskFull", JOB, "DiskFilling", JOB),
    ("GpuFaulty", GPU, "GpuIdle", GPU),
]
TOLD = [
    ("TrainingStalled", JOB, "SlowProgress", OTHER),
    ("TrainingStalled", JOB, "CheckpointTooOld", JOB),
    ("NodeLost", NODE, "NodeFailed", {**NODE, "node": "n2"}),
    ("GpuFaulty", GPU, "GpuIdle", {**GPU, "gpu": "1"}),
    ("KubernetesNodeNotReady", {"node": "n1"}, WATCHDOG, {}),
]


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Its port."""
    folder, port = tmp_path_factory.mktemp("alertmanager"), free_port(0)
    argv = [
        program("alertmanager"), f"--config.file={SHIPPED}", f"--storage.path={folder}",
        f"--web.listen-address={HERE}:{port}", "--cluster.listen-address=",
    ]  # fmt: skip
    with server("alertmanager", port, folder, argv):
        yield port


def ask(port: int, method: str, body: object = None) -> Any:
    with contextlib.closing(http.client.HTTPConnection(HERE, port, timeout=10)) as connection:
        connection.request(method, "/api/v2/alerts", json.dumps(body), {"Content-Type": "application/json"})
        text = connection.getresponse().read()
    return json.loads(text) if text else None


def is_hidden(port: int, greater: dict[str, str], lesser: dict[str, str], tag: str) -> bool:
    """Whether the second is not told of while the first fires; `tag` keeps the cases from each other."""
    ask(port, "POST", [{"labels": {**it, "environment": tag}} for it in (greater, lesser)])
    found = {it["labels"]["alertname"]: it["status"] for it in ask(port, "GET") if it["labels"]["environment"] == tag}
    assert {*found} == {greater["alertname"], lesser["alertname"]}
    assert not found[greater["alertname"]]["inhibitedBy"]
    return bool(found[lesser["alertname"]]["inhibitedBy"])


@needs_prometheus
@pytest.mark.parametrize(("one", "its", "other", "others"), HIDDEN)
def test_the_greater_hides_the_lesser(
    alertmanager: int, one: str, its: dict[str, str], other: str, others: dict[str, str]
) -> None:
    about = {"alertname": one, **its}, {"alertname": other, **others}
    assert is_hidden(alertmanager, *about, f"hidden-{one}-{other}")


@needs_prometheus
@pytest.mark.parametrize(("one", "its", "other", "others"), TOLD)
def test_nothing_else_is_hidden(
    alertmanager: int, one: str, its: dict[str, str], other: str, others: dict[str, str]
) -> None:
    about = {"alertname": one, **its}, {"alertname": other, **others}
    assert not is_hidden(alertmanager, *about, f"told-{one}-{other}-{len(others)}")


def test_every_rule_names_alerts_that_exist() -> None:
    text = "\n".join(line for line in SHIPPED.read_text().splitlines() if "alertname" in line and "matchers" in line)
    named = set(re.findall(r"\b[A-Z][A-Za-z]+\b", text))
    assert named <= {it.name for it in rules.alerts()}
    assert len(named) > 10


def test_the_watchdog_comes_again_often_enough_to_be_missed() -> None:
    """The runbook says: an alarm when it has not come for 2 hours."""
    routes = yaml.safe_load(SHIPPED.read_text())["route"]["routes"]
    assert routes[0]["matchers"] == [f"alertname = {WATCHDOG}"]
    assert rules.seconds(routes[0]["repeat_interval"]) <= 3600


def test_the_watchdog_is_no_news() -> None:
    inbox = Inbox()
    alert = {"startsAt": "2026-01-01T00:00:00Z", "status": "firing"}
    inbox.take({"alerts": [{**alert, "labels": {"alertname": name}} for name in (WATCHDOG, "NodeFailed")]})
    assert [it.alert for it in inbox.new()] == ["NodeFailed"]
    inbox.server_close()


def test_what_is_shipped_is_one_file() -> None:
    """A second one drifts away from the first."""
    root = Path(__file__).parents[2]
    found = [file for folder in ("monitoring", "infra") for file in (root / folder).rglob("*alertmanager*.y*ml")]
    assert [it.resolve() for it in found] == [SHIPPED.resolve()]
