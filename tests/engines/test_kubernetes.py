"""Suites on pods: real API server, scheduler, Job controller and kubelets; nodes whose clocks are days apart.

What runs is the command that a user types. The harness reaches pods by `kubectl exec` alone.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.infra.cluster.access import NEEDED_BY_BENCH
from tests.engines.kubernetes import SPACE, TEMPLATE, Kubernetes
from tests.engines.machines import DAY_S
from tests.engines.runs import Session, command, events, passed, ranks_are_right, shortened
from tests.engines.traces import ROOT
from tests.infra.testbed import service
from tests.programs import program, smoke

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1500)]  # Kubernetes is built once
NODES = 4


@pytest.fixture(autouse=True)
def _nothing_left(cluster: Kubernetes) -> Iterator[None]:
    """Whatever a run made is gone soon after it."""
    yield
    assert cluster.left_soon() == []


def test_a_benchmark_on_pods_has_one_clock_though_its_nodes_are_days_apart(cluster: Kubernetes, tmp_path: Path) -> None:
    words = ("bench", "run", "--suite", "smoke", "--cluster", cluster.option())
    for number in range(1, NODES + 1):
        zone = ["label", "node", f"n{number}", f"topology.kubernetes.io/zone=z{number}", "--overwrite"]
        subprocess.run(["kubectl", *zone], env=cluster.env, check=True, capture_output=True)
    results = command(tmp_path, *words, env=cluster.env)
    assert not [it for it in results["verdicts"] if it["verdict"] == "fail"]
    nodes = rundir.find(tmp_path).read("plan")["cluster"]["nodes"]
    assert {it["zone"].replace("z", "n") for it in nodes} == {it["host"] for it in nodes}
    assert {(it["gpus"], it["labels"]["kubernetes.io/hostname"] == it["host"]) for it in nodes} == {(0, True)}
    offsets = [it["offset_s"] / DAY_S for it in events(results, "node_clock")]
    machines = {it["node"]: it["about"]["host"] for it in events(results, "node")}
    assert all(abs(it - round(it)) < 0.001 and 1 <= round(it) <= NODES for it in offsets), (offsets, machines)
    moments = [it["t"] for it in results["history"]]
    assert moments[-1] - moments[0] < DAY_S / 24
    assert {it["label"] for it in results["figures"]} <= {"emulated", "predicted"}
    assert not events(results, "gap")
    (up,) = events(results, "cluster_up")
    assert 0 < up["queued_s"] < up["seconds"]
    assert [it["median"] for it in results["figures"] if it["name"] == "queued_s"] == [up["queued_s"]]
    assert "In the queue " in results["out"]


@pytest.mark.minutes
def test_pods_that_kubernetes_takes_away_are_replaced_and_training_stays_the_same(
    cluster: Kubernetes, tmp_path: Path
) -> None:
    only = [word for kind in ("pod_kill", "node_drain") for word in ("--only", kind)]
    words = ("chaos", "run", "--suite", "kubernetes", "--case", "live", *only, "--cluster", cluster.option())
    results = command(tmp_path, *words, env=cluster.env)
    assert passed(results), results["out"]
    begun = {it["kind"]: it["evidence"] for it in events(results, "fault_begin")}
    assert set(begun) == {"pod_kill", "node_drain"}
    assert all(it["members"][0]["id"] and not it["left"] for it in begun.values()), begun
    assert [it["same"] for it in events(results, "agent_back")].count(False) == len(
        begun
    )  # other pods, by their agents
    assert len(events(results, "node_notice")) == len(begun)
    assert not events(results, "gap")
    noted = [it for it in events(results, "engine_event") if it["node"]]
    assert {"Scheduled", "Started", "Killing"} <= {it["reason"] for it in noted}
    begin, end = results["history"][0]["t"], results["history"][-1]["t"]
    assert all(begin - it["error_s"] <= it["at_t"] <= end + it["error_s"] and it["error_s"] < 5 for it in noted)
    assert {it["spec"].get("unschedulable", False) for it in machines(cluster)} == {False}


@pytest.mark.minutes
def test_one_of_two_ranks_and_then_a_whole_node_are_killed_on_pods(cluster: Kubernetes, tmp_path: Path) -> None:
    words = ("chaos", "run", "--suite", "ranks", "--case", "live", "--cluster", cluster.option())
    results = command(tmp_path, *words, env=cluster.env)
    assert passed(results), results["out"]
    assert ranks_are_right(results)


@pytest.fixture
def switched(cluster: Kubernetes) -> Iterator[str]:
    """A program that switches the cluster's machines and its API server off and on, as the testbed's own command."""
    with service.opened(cluster.folder) as door:
        threading.Thread(target=service.serve, args=(door, cluster), daemon=True).start()
        yield str(cluster.folder / "testbed")


SHORTER = {
    "twins = [3]": "twins = []",
    'kind = "node_lost"': 'kind = "node_lost"\nhold_s = 11',
    'kind = "api_server_away"': 'kind = "api_server_away"\nhold_s = 3',
}


@pytest.mark.parametrize(
    "kinds", [("container_kill", "api_server_away"), pytest.param(("node_lost",), marks=pytest.mark.minutes)]
)
def test_training_goes_on_without_a_machine_a_container_and_the_api_server(
    cluster: Kubernetes, switched: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    suite = shortened("kubernetes-machines", tmp_path, SHORTER)
    where = cluster.option(power=switched, api=f"{switched} api")
    words = [word for kind in kinds for word in ("--only", kind)]
    results = command(tmp_path, "chaos", "run", "--suite", suite, *words, "--cluster", where, env=cluster.env)
    told = {it["kind"]: it["verdicts"] for it in results["trials"]}
    assert set(told) == set(kinds)
    assert {(it["happened"], it["healed"], it["trained_on"]) for it in told.values()} == {("pass",) * 3}, results["out"]
    away = [it["evidence"] for it in events(results, "fault_end") if it["kind"] == "api_server_away"]
    assert [len(it["unreached"]) for it in away] == [NODES] * ("api_server_away" in kinds)
    assert {it["node"] for it in events(results, "gap")} <= {"n1", "n2"}  # what two nodes took along, and nothing else
    (whole,) = [it for it in results["verdicts"] if it["check"] == "recorded"]
    assert whole["verdict"] == "pass", whole["why"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("gang", [True, False])
def test_pods_of_a_run_get_their_machines_together(
    cluster: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gang: bool  # noqa: FBT001
) -> None:  # fmt: skip
    for name in ("KUBECONFIG", "PATH"):
        monkeypatch.setenv(name, cluster.env[name])
    with Session(cluster.option(gang=str(gang).lower()), tmp_path / f"r{time.time_ns()}", 2):
        (group,) = cluster.objects("podgroups")
        policy = {"gang": {"minCount": 2}} if gang else {"basic": {}}
        assert group["spec"]["schedulingPolicy"] == policy
        (scheduled,) = (it for it in group["status"]["conditions"] if it["type"] == "PodGroupInitiallyScheduled")
        assert scheduled["status"] == "True"


def machines(cluster: Kubernetes) -> list[dict[str, Any]]:
    """The cluster's nodes, as the API server has them."""
    return list(cluster.bed.server.request("GET", "/api/v1/nodes").body["items"])


def test_what_kubernetes_refuses_is_one_line_and_the_right_status(cluster: Kubernetes, tmp_path: Path) -> None:
    asked = (
        (cluster.option(claim="moon", wait_min="1"), 1, 'persistentvolumeclaims "moon" not found'),  # a minute alone
        (cluster.option(context="moon"), 2, 'context "moon" does not exist'),
        (cluster.option(namespace="moon"), 2, "no PodTemplate 'trainer'.*there is none"),
        (f"kubernetes:moon,namespace={SPACE}", 2, f"there are {TEMPLATE}"),
        (
            f"kubernetes:namespace={SPACE},emulated=true,wait_min=10,image=registry.invalid/none:1",
            2,
            "image registry.invalid/none:1",
        ),
        (cluster.option(python="python0"), 2, "python0"),
        (cluster.option(wait_min="soon"), 2, "wait_min = 'soon'"),
    )

    def refused(where: str) -> subprocess.CompletedProcess[str]:
        words = smoke(where, "--runs", str(tmp_path))
        return subprocess.run(words, cwd=ROOT, env=dict(cluster.env), capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(2) as two:
        every = list(two.map(refused, [where for where, *_ in asked]))
    for (where, status, says), done in zip(asked, every, strict=True):
        line = done.stderr.strip().splitlines()[-1]
        assert (done.returncode, bool(re.search(says, line))) == (status, True), (where, done.stderr)
        assert "Traceback" not in done.stderr


RIGHTS = [(rule, verb) for rule in NEEDED_BY_BENCH for verb in rule["verbs"]]
UNUSED_IN_A_BENCHMARK = {
    ("events", "list"): "only while pods wait",
    ("jobs", "list"): "only to clean",
    ("pods", "delete"): "a fault",
    ("pods/eviction", "create"): "a fault",
    ("resourcequotas", "create"): "a fault",
    ("resourcequotas", "delete"): "a fault",
}


def test_the_account_that_a_stack_has_for_benches_has_the_rights_that_a_run_takes(
    cluster: Kubernetes, tmp_path: Path
) -> None:
    done = as_bench(cluster, tmp_path, NEEDED_BY_BENCH)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("rule", "verb"), RIGHTS, ids=[f"{verb} {it['resources'][0]}" for it, verb in RIGHTS])
def test_each_right_is_used_and_named_where_it_is_missing(
    cluster: Kubernetes, tmp_path: Path, rule: dict[str, list[str]], verb: str
) -> None:
    if (rule["resources"][0], verb) in UNUSED_IN_A_BENCHMARK:
        pytest.skip(f"not in a benchmark: {UNUSED_IN_A_BENCHMARK[rule['resources'][0], verb]}")
    fewer = [
        {**it, "verbs": [word for word in it["verbs"] if it is not rule or word != verb]} for it in NEEDED_BY_BENCH
    ]
    done = as_bench(cluster, tmp_path, fewer)
    line = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2, done.stderr
    asked = "get" if rule["resources"] == ["pods/exec"] else verb  # kubectl tries a WebSocket first, and says that
    assert re.search(f'cannot ({asked}|{verb}) resource "{rule["resources"][0]}"', line), done.stderr
    for job in cluster.names("jobs"):  # where the right to delete it was what lacked
        path = f"/apis/batch/v1/namespaces/{SPACE}/jobs/{job}?propagationPolicy=Background"
        cluster.bed.server.request("DELETE", path)


def as_bench(cluster: Kubernetes, folder: Path, rules: list[dict[str, list[str]]]) -> subprocess.CompletedProcess[str]:
    """A benchmark by an account that has these rights and no others."""
    rights = [{**it, "verbs": it["verbs"]} for it in rules if it["verbs"]]
    about = {"name": "bench", "namespace": SPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "bench"}
    made: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": about, "rules": rights},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": about, "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", **about}],
        },
    ]  # fmt: skip
    assert [it for it in made if cluster.bed.server.apply(it, dry_run=False).message] == []
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/bench/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    config = json.loads(Path(cluster.env["KUBECONFIG"]).read_text())
    config["users"][0]["user"]["token"] = cluster.bed.server.request("POST", path, asked).body["status"]["token"]
    (folder / "kubeconfig").write_text(json.dumps(config))
    words = ["bench", "run", "--suite", "smoke", "--repeats", "1", "--cluster", cluster.option()]
    return subprocess.run(
        [sys.executable, "-m", *words, "--runs", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**cluster.env, "KUBECONFIG": str(folder / "kubeconfig")},
    )  # fmt: skip


def test_the_job_of_a_killed_harness_is_deleted_and_one_in_use_is_not(cluster: Kubernetes, tmp_path: Path) -> None:
    where = cluster.option()
    words = smoke(where, "--runs", str(tmp_path))
    clean = program("bench", "clean", "--cluster", where)
    env = dict(cluster.env)
    with subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as harness:
        while not cluster.names("pods"):
            time.sleep(0.05)
        done = subprocess.run(clean, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        assert "in use by" in done.stdout
        harness.kill()
    done = subprocess.run(clean, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 thing removed"


def test_a_machine_that_a_killed_harness_had_drained_is_opened_and_somebody_elses_is_not(cluster: Kubernetes) -> None:
    env, kubectl = dict(cluster.env), ["kubectl", "--namespace", SPACE]
    for words in (["cordon", "n1"], ["cordon", "n2"], ["label", "node", "n2", "proving-ground/run=pg-gone"]):
        subprocess.run([*kubectl, *words], env=env, check=True, capture_output=True)
    try:
        clean = program("bench", "clean", "--cluster", cluster.option())
        dry = subprocess.run([*clean, "--dry-run"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        assert dry.stdout.splitlines() == ["left: machine n2, cordoned by pg-gone", "1 thing would be removed"]
        subprocess.run(clean, cwd=ROOT, env=env, capture_output=True, check=True)
        closed = {it["metadata"]["name"] for it in machines(cluster) if it["spec"].get("unschedulable")}
        assert closed == {"n1"}
        again = subprocess.run(clean, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        assert again.stdout.splitlines() == ["nothing was left behind"]
    finally:
        subprocess.run([*kubectl, "uncordon", "n1", "n2"], env=env, check=True, capture_output=True)


def test_ctrl_c_takes_all_of_it_down(cluster: Kubernetes, tmp_path: Path) -> None:
    words = smoke(cluster.option())
    with subprocess.Popen(
        [*words, "--runs", str(tmp_path)], cwd=ROOT, env=dict(cluster.env), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as harness:  # fmt: skip
        while not cluster.names("pods"):
            time.sleep(0.05)
        harness.send_signal(signal.SIGINT)
    assert harness.returncode == 130
