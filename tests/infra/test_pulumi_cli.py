"""`up`, a second `up` without changes, a change in place, `down`: `local` by the real Pulumi CLI on a real node.

`up` waits until every pod passes its probes, `down` until all is gone. Then what a user does to it: stopping it in the
middle, killing it, taking the API server away. `nox -s pulumi-tests`.

Without CLI, root, containerd, Go or etcd these tests are skipped with the reason. A hosted CI that has the CLI
(`CI=true`) is meant to run them: there anything else that is missing is a failure.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from proving_ground.infra.cluster.labels import NAMESPACES
from proving_ground.infra.config import ROOT
from tests.infra.apiserver.server import Server, kubeconfig
from tests.infra.gotools import UnavailableError
from tests.infra.testbed.cluster import cluster
from tests.infra.testbed.project import LONGEST_S, PASSWORD, WAYS, Project, copied, environ

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        shutil.which("pulumi") is None, reason="no Pulumi CLI on this machine; no package registry has it"
    ),
]
INTERRUPTIONS = int(os.environ.get("PROVING_GROUND_INTERRUPTIONS", "4"))
SEED = int(os.environ.get("PROVING_GROUND_SEED", "1"))
PROMETHEUS = "/api/v1/namespaces/pg-monitoring/pods/prometheus-0:9090/proxy/api/v1"
SCRAPED_S = 60.0  # four rounds of scraping
ENDING_S = 3.0  # a command that is so near to its end may end well
AWAY_S = 10.0  # the API server, in the middle of `down`


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running cluster."""
    try:
        with cluster(tmp_path_factory.mktemp("cluster")) as bed:
            yield bed.server
    except UnavailableError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"the CLI is here, and these tests cannot run: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def project(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project with its stack, which the tests leave `up` or `down`."""
    home = tmp_path_factory.mktemp("home")
    (home / "kubeconfig").write_text(json.dumps(kubeconfig(server)))
    return copied(home, server, home / "kubeconfig")


def test_local_comes_up_stays_changes_and_goes(project: Project) -> None:
    made = project.timed("up")
    assert project.spaces() == set(NAMESPACES)
    pods = project.pods()
    assert len(pods) >= len(("prometheus", "alertmanager", "grafana", "loki", "kube-state-metrics", "two on each node"))
    assert all(pods.values()), pods
    assert scraped(project.server) >= {9100, 10250}  # node-exporter, the kubelet
    assert project.infra("up").changes == {"unchanged": made.changes["created"]}
    other = project.infra("up", PROVING_GROUND_INFRA__KUBERNETES__RETENTION_DAYS="3").fine().changes
    assert "replaced" not in other
    assert other["updated"] >= 1
    gone = project.timed("down")
    assert not project.left()
    assert not project.resources()
    shown = [it.read_text(errors="replace") for it in (project.folder.parent / "states").rglob("*.json")]
    assert not [text for text in [made.out, gone.out, *shown] if PASSWORD in text]
    committed = (ROOT / "Pulumi.local.yaml").read_text()
    assert (project.folder / "Pulumi.local.yaml").read_text() == committed


def scraped(server: Server) -> set[int]:
    """The ports from which the cluster's Prometheus, with the rules that ship, has taken metrics."""
    end, found = time.monotonic() + SCRAPED_S, set[int]()
    while time.monotonic() < end and len(found) < len(("node-exporter", "kubelet")):
        answer = server.request("GET", f"{PROMETHEUS}/targets?state=active").body["data"]["activeTargets"]
        found = {urlsplit(it["scrapeUrl"]).port or 0 for it in answer if it["health"] == "up"}
        time.sleep(1)
    assert server.request("GET", f"{PROMETHEUS}/rules").body["data"]["groups"]
    return found


@pytest.mark.parametrize(
    ("number", "way", "word"), list(product(range(INTERRUPTIONS), WAYS, ("up", "down")))[:INTERRUPTIONS]
)
def test_an_interruption_at_any_moment_is_mended_by_one_command(
    project: Project, number: int, way: str, word: str
) -> None:
    before = {"up": "down", "down": "up"}[word]
    if word not in project.seconds:
        project.bring(before)
        project.timed(word)
    project.bring(before)
    chance = random.Random(f"{SEED}-{number}-{way}-{word}")  # noqa: S311 - moments, not secrets
    after_s = chance.uniform(0, project.seconds[word])
    stopped = project.interrupt(word, way, after_s)
    assert "Traceback" not in stopped.err
    ended_before = stopped.status == 0 and stopped.seconds < after_s + ENDING_S
    assert ended_before or stopped.status == {"SIGINT": 130, "SIGKILL": -9}[way]
    project.mend(word)
    if word == "up":
        assert set(project.infra("up").fine().changes) == {"unchanged"}
        assert all(project.pods().values())
    else:
        assert not project.left()


def test_an_api_server_that_goes_away_during_down_and_comes_back(project: Project) -> None:
    project.bring("up")
    down = threading.Thread(target=lambda: done.append(project.infra("down")))
    done: list[object] = []
    down.start()
    while not deleting(project):
        time.sleep(0.1)
    project.server.stop()
    time.sleep(AWAY_S)
    project.server.start()
    down.join(LONGEST_S)
    project.infra("down").fine()
    assert not project.left()


def deleting(project: Project) -> bool:
    """Whether one of our namespaces is on its way out."""
    found = project.server.request("GET", "/api/v1/namespaces").body["items"]
    return any(it["metadata"].get("deletionTimestamp") for it in found if it["metadata"]["name"] in NAMESPACES)


def test_a_cluster_that_is_gone_does_not_keep_the_stack(project: Project) -> None:
    project.bring("up")
    away, file = kubeconfig(project.server), project.folder.parent / "kubeconfig"
    away["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    file.write_text(json.dumps(away))  # the state keeps the file's path
    refused = project.infra("down")
    assert refused.status == 1
    assert refused.err.startswith("infra: cluster: ")
    assert len(refused.err.splitlines()) == 1
    project.infra("down", "--cluster-gone").fine()
    assert not project.resources()


def test_nothing_of_the_developer_comes_along(tmp_path: Path) -> None:
    theirs = {
        "PROVING_GROUND_INFRA__OWNER": "me", "PULUMI_HOME": "/home/me/.pulumi", "PULUMI_STACK": "dev",
        "PULUMI_CONFIG_PASSPHRASE_FILE": "/home/me/salt", "ARM_CLIENT_ID": "me", "KUBECONFIG": "/home/me/config",
        "HOME": "/home/me",
    }  # fmt: skip
    found = environ({**theirs, "PATH": "/bin"}, tmp_path, tmp_path / "kubeconfig")
    assert found["PATH"] == "/bin"
    assert not set(found.values()) & set(theirs.values())
    assert not {name for name in found if name.startswith(("PROVING_GROUND_", "ARM_"))}
