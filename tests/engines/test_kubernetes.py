"""Suites on pods: real API server, scheduler, Job controller and kubelets; nodes whose clocks are days apart.

What runs is the command that a user types. The harness reaches pods by `kubectl exec` alone.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import kubernetes, needs
from tests.engines.folders import vanishing
from tests.engines.kubernetes import SPACE, TEMPLATE, Kubernetes
from tests.engines.test_runs import ROOT, command, events, passed
from tests.infra.gotools import UnavailableError

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1500)]  # Kubernetes is built once
DAY_S = 86_400.0
NODES = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    needs.require(kubernetes.PROGRAMS)
    with vanishing("pg-kubernetes-") as folder, vanishing("pg-volume-") as shared:
        try:
            with kubernetes.kubernetes(folder, NODES, shared) as made:
                yield made
        except UnavailableError as reason:
            pytest.fail(str(reason))


@pytest.fixture(autouse=True)
def _nothing_left(cluster: Kubernetes) -> Iterator[None]:
    """Whatever a run made is gone soon after it."""
    yield
    deadline = time.monotonic() + 60
    while (left := remains(cluster)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def remains(cluster: Kubernetes) -> list[str]:
    """What there is of runs."""
    kinds = ("jobs", "pods", "services", "configmaps")
    return [name for kind in kinds for name in cluster.names(kind) if name.startswith("pg-")]


def test_a_benchmark_on_pods_has_one_clock_though_its_nodes_are_days_apart(cluster: Kubernetes, tmp_path: Path) -> None:
    words = ("bench", "run", "--suite", "smoke", "--cluster", cluster.option())
    results = command(tmp_path, *words, env=cluster.env)
    assert not [it for it in results["verdicts"] if it["verdict"] == "fail"]
    offsets = [it["offset_s"] / DAY_S for it in events(results, "node_clock")]
    machines = {it["node"]: it["about"]["host"] for it in events(results, "node")}
    assert all(abs(it - round(it)) < 0.001 and 1 <= round(it) <= NODES for it in offsets), (offsets, machines)
    moments = [it["t"] for it in results["history"]]
    assert moments[-1] - moments[0] < DAY_S / 24
    assert {it["label"] for it in results["figures"]} <= {"emulated", "predicted"}
    assert not events(results, "gap")


def test_pods_that_kubernetes_takes_away_are_replaced_and_training_stays_the_same(
    cluster: Kubernetes, tmp_path: Path
) -> None:
    only = [word for kind in ("pod_kill", "node_drain") for word in ("--only", kind)]
    words = ("chaos", "run", "--suite", "kubernetes", "--case", "live", *only, "--cluster", cluster.option())
    results = command(tmp_path, *words, env=cluster.env)
    assert passed(results), results["out"]
    begun = {it["kind"]: it["evidence"] for it in events(results, "fault_begin")}
    assert set(begun) == {"pod_kill", "node_drain"}
    assert all(it["pods"][0]["id"] and not it["left"] for it in begun.values()), begun
    assert [it["same"] for it in events(results, "agent_back")].count(False) == len(
        begun
    )  # other pods, by their agents
    assert len(events(results, "node_notice")) == len(begun)
    assert not events(results, "gap")
    assert {it["spec"].get("unschedulable", False) for it in machines(cluster)} == {False}


def machines(cluster: Kubernetes) -> list[dict[str, dict[str, bool]]]:
    """The cluster's nodes, as the API server has them."""
    return list(cluster.bed.server.request("GET", "/api/v1/nodes").body["items"])


def test_what_kubernetes_refuses_is_one_line_and_the_right_status(cluster: Kubernetes, tmp_path: Path) -> None:
    for where, status, says in (
        (cluster.option(context="moon"), 2, 'context "moon" does not exist'),
        (cluster.option(namespace="moon"), 2, "no PodTemplate 'trainer'.*there is none"),
        (f"kubernetes:moon,namespace={SPACE}", 2, f"there are {TEMPLATE}"),
        (
            f"kubernetes:namespace={SPACE},emulated=true,wait_min=1,image=registry.invalid/none:1",
            2,
            "image registry.invalid/none:1",
        ),
        (cluster.option(python="python0"), 2, "python0"),
        (cluster.option(claim="moon", wait_min="1"), 1, 'persistentvolumeclaim "moon" not found'),
        (cluster.option(wait_min="soon"), 2, "wait_min = 'soon'"),
    ):
        words = [sys.executable, "-m", "bench", "run", "--suite", "smoke", "--cluster", where, "--runs", str(tmp_path)]
        done = subprocess.run(words, cwd=ROOT, env=dict(cluster.env), capture_output=True, text=True, check=False)
        line = done.stderr.strip().splitlines()[-1]
        assert (done.returncode, bool(re.search(says, line))) == (status, True), (where, done.stderr)
        assert "Traceback" not in done.stderr


def test_rights_that_are_missing_are_named(cluster: Kubernetes, tmp_path: Path) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody", "namespace": SPACE}}
    assert not cluster.bed.server.apply(account, dry_run=False).message
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/nobody/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.bed.server.request("POST", path, asked).body["status"]["token"]
    config = json.loads(Path(cluster.env["KUBECONFIG"]).read_text())
    config["users"][0]["user"]["token"] = token
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    words = [sys.executable, "-m", "bench", "doctor", "--cluster", cluster.option()]
    env = {**cluster.env, "KUBECONFIG": str(tmp_path / "kubeconfig")}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert 'cannot list resource "podtemplates"' in done.stderr.strip().splitlines()[-1]


def test_the_job_of_a_killed_harness_is_deleted_and_one_in_use_is_not(cluster: Kubernetes, tmp_path: Path) -> None:
    where = cluster.option()
    words = [sys.executable, "-m", "bench", "run", "--suite", "smoke", "--cluster", where, "--runs", str(tmp_path)]
    clean = [sys.executable, "-m", "bench", "clean", "--cluster", where]
    env = dict(cluster.env)
    with subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as harness:
        while not cluster.names("pods"):
            time.sleep(0.05)
        done = subprocess.run(clean, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        assert "in use by" in done.stdout
        harness.kill()
    done = subprocess.run(clean, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 things removed"


def test_ctrl_c_takes_all_of_it_down(cluster: Kubernetes, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bench", "run", "--suite", "smoke", "--cluster", cluster.option()]
    with subprocess.Popen(
        [*words, "--runs", str(tmp_path)], cwd=ROOT, env=dict(cluster.env), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as harness:  # fmt: skip
        while not cluster.names("pods"):
            time.sleep(0.05)
        harness.send_signal(signal.SIGINT)
    assert harness.returncode == 130
