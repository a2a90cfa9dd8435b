"""Pods that do not come, or do not come back: the reason in Kubernetes' words, the end of the wait, and nothing left.

The causes are planted on a real API server with kubelets: a quota, a taint, webhooks, a memory limit, an image.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.clusters.remote.withheld import OWNER
from proving_ground.bench.clusters.remote.withheld import hook as hook_of_a_run
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.rundir import find, read_history
from tests.engines.kubernetes import SPACE, TEMPLATE, Kubernetes
from tests.engines.runs import Session, clean, command, events, shortened
from tests.engines.traces import ROOT
from tests.programs import smoke

pytestmark = [pytest.mark.engines, pytest.mark.minutes, pytest.mark.timeout(1500)]  # Kubernetes is built once
NODES, PLANTED = 3, "planted"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
QUOTAS = f"/api/v1/namespaces/{SPACE}/resourcequotas"
Plant = Callable[[Kubernetes], contextlib.AbstractContextManager[None]]


def await_nothing(cluster: Kubernetes) -> None:
    """Whatever a run made is gone soon after it."""
    assert cluster.left_soon() == []
    assert [it["metadata"]["name"] for it in sent(cluster, "GET", HOOKS)["items"]] == []
    assert [it["metadata"]["name"] for it in sent(cluster, "GET", QUOTAS)["items"]] == []


def sent(cluster: Kubernetes, method: str, path: str, body: object = None) -> dict[str, Any]:
    answer = cluster.bed.server.request(method, path, body, "application/merge-patch+json" * (method == "PATCH") or
                                        "application/json")  # fmt: skip
    assert answer.message == "", answer.message
    return answer.body


@contextlib.contextmanager
def quota(cluster: Kubernetes) -> Iterator[None]:
    """No pod more in the namespace."""
    about = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": PLANTED}}
    sent(cluster, "POST", QUOTAS, {**about, "spec": {"hard": {"pods": "0"}}})
    try:
        yield
    finally:
        sent(cluster, "DELETE", f"{QUOTAS}/{PLANTED}")


@contextlib.contextmanager
def taint(cluster: Kubernetes) -> Iterator[None]:
    """No new pod on any machine."""
    tainted = [{"key": PLANTED, "effect": "NoSchedule"}]
    for taints in (tainted, []):
        for it in cluster.bed.nodes:
            sent(cluster, "PATCH", f"/api/v1/nodes/{it.name}", {"spec": {"taints": taints}})
        if taints:
            yield


@contextlib.contextmanager
def capacity(cluster: Kubernetes) -> Iterator[None]:
    """Pods that ask for more than any machine has."""
    with templated(cluster, {"resources": {"requests": {"cpu": "999"}}}):
        yield


@contextlib.contextmanager
def memory(cluster: Kubernetes) -> Iterator[None]:
    """Pods that may not use what Python takes."""
    with templated(cluster, {"resources": {"limits": {"memory": "8Mi"}}}):
        yield


@contextlib.contextmanager
def templated(cluster: Kubernetes, changed: Mapping[str, Any]) -> Iterator[None]:
    path = f"/api/v1/namespaces/{SPACE}/podtemplates"
    made = sent(cluster, "GET", f"{path}/{TEMPLATE}")
    made["metadata"] = {"name": PLANTED}
    made["template"]["spec"]["containers"][0] |= changed
    sent(cluster, "POST", path, made)
    try:
        yield
    finally:
        sent(cluster, "DELETE", f"{path}/{PLANTED}")


@contextlib.contextmanager
def hook(cluster: Kubernetes, group: str, kind: str) -> Iterator[None]:
    """A webhook that whoever makes such things has to pass, at a door that takes calls and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        one = {
            "name": "hook.example.com", "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 3,
            "admissionReviewVersions": ["v1"], "clientConfig": {"url": f"https://127.0.0.1:{silent.getsockname()[1]}/"},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SPACE}},
            "rules": [{"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [kind]}],
        }  # fmt: skip
        about = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
        sent(cluster, "POST", HOOKS, {**about, "metadata": {"name": PLANTED}, "webhooks": [one]})
        try:
            yield
        finally:
            sent(cluster, "DELETE", f"{HOOKS}/{PLANTED}")


def hook_of_pods(cluster: Kubernetes) -> contextlib.AbstractContextManager[None]:
    return hook(cluster, "", "pods")


def hook_of_jobs(cluster: Kubernetes) -> contextlib.AbstractContextManager[None]:
    return hook(cluster, "batch", "jobs")


@contextlib.contextmanager
def refusal(cluster: Kubernetes) -> Iterator[None]:
    """A rule of the cluster's that admits no pod."""
    root, name = "/apis/admissionregistration.k8s.io/v1", {"name": PLANTED}
    about = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": name}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SPACE}}, "resourceRules": [rule]}
    refuses = {"expression": "false", "message": "planted: no pods on Wednesdays"}
    policy = {"failurePolicy": "Fail", "matchConstraints": where, "validations": [refuses]}
    made = {
        "validatingadmissionpolicies": {**about, "kind": "ValidatingAdmissionPolicy", "spec": policy},
        "validatingadmissionpolicybindings": {
            **about, "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": PLANTED, "validationActions": ["Deny"]},
        },
    }  # fmt: skip
    for plural, body in made.items():
        sent(cluster, "POST", f"{root}/{plural}", body)
    time.sleep(2)  # until the API server minds it
    try:
        yield
    finally:
        for plural in made:
            sent(cluster, "DELETE", f"{root}/{plural}/{PLANTED}")


CAUSES: list[tuple[Plant, str, int, str]] = [
    (quota, TEMPLATE, 1, r"after 1 min: FailedCreate: .* exceeded quota: planted, .*limited: pods=0; wait_min="),
    (taint, TEMPLATE, 1, r"after 1 min: Unschedulable: 0/3 nodes are available: .*taint.*; wait_min="),
    (capacity, PLANTED, 1, r"after 1 min: Unschedulable: 0/3 nodes are available: .*Insufficient cpu.*; wait_min="),
    (
        hook_of_pods,
        TEMPLATE,
        1,
        r"after 1 min: FailedCreate: .*failed calling webhook \"hook.example.*; wait_min=",
    ),
    (refusal, TEMPLATE, 1, r"after 1 min: FailedCreate: .*no pods on Wednesdays; wait_min="),
    (hook_of_jobs, TEMPLATE, 1, r"^bench: kubernetes: .*failed calling webhook \"hook.example.com\""),
    (memory, PLANTED, 2, r" OOMKilled: exit status 137 \(its memory limit is 8Mi\)$"),
]


@pytest.mark.parametrize(("plant", "template", "status", "says"), CAUSES, ids=[it[0].__name__ for it in CAUSES])
def test_a_run_whose_pods_do_not_come_says_why_and_leaves_nothing(
    cluster: Kubernetes, tmp_path: Path, plant: Plant, template: str, status: int, says: str
) -> None:
    where = cluster.option(template=template, wait_min="1")
    words = smoke(where, "--runs", str(tmp_path))
    with plant(cluster):
        done = subprocess.run(words, cwd=ROOT, env=dict(cluster.env), capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == status or "cannot exec" in last, done.stderr  # it had begun to run, and then ended
    assert re.search(says, last), done.stderr
    if "wait_min" in says:  # it was told when it began, and is in the record
        (reason,) = {it["why"] for it in read_history(find(tmp_path)) if it["event"] == "queued"}
        assert f"kubernetes: {reason}" in done.stderr.splitlines()
    await_nothing(cluster)


@pytest.mark.parametrize(("gang", "pods"), [("true", 0), ("false", NODES)])
def test_of_a_run_that_has_not_all_machines_no_pod_takes_one(
    cluster: Kubernetes, tmp_path: Path, gang: str, pods: int
) -> None:
    words = smoke(cluster.option(wait_min="1", gang=gang), "--nodes", f"1,{NODES + 1}", "--runs", str(tmp_path))
    done = subprocess.run(words, cwd=ROOT, env=dict(cluster.env), capture_output=True, text=True, check=False)
    why = "(anti-affinity|minCount)"  # of the last pod, or of the gang
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(rf" {pods} of {NODES + 1} pods run after 1 min: Unschedulable: .*{why}.*; wait_min=", last), last
    await_nothing(cluster)


def test_two_runs_that_each_want_every_machine_have_them_one_after_the_other(
    cluster: Kubernetes, tmp_path: Path
) -> None:
    """A pod fills a machine, so without gangs each run could hold some, and wait for the others' until it gave up."""
    with templated(cluster, {"resources": {"requests": {"cpu": "1500m"}}}):
        words = smoke(cluster.option(template=PLANTED), "--nodes", f"1,{NODES}")
        every = [[*words, "--runs", str(tmp_path / it)] for it in ("one", "other")]
        with ThreadPoolExecutor(len(every)) as at_once:
            run = partial(subprocess.run, cwd=ROOT, env=dict(cluster.env), capture_output=True, text=True, check=False)
            for done in at_once.map(run, every):
                assert done.returncode == 0, done.stderr
    ends = {name: read_history(find(tmp_path / name)) for name in ("one", "other")}
    queued = [it["why"] for records in ends.values() for it in records if it["event"] == "queued"]
    assert any("Insufficient cpu" in why for why in queued), queued  # the other run has all of it
    await_nothing(cluster)


def test_where_there_are_no_machines_for_a_template_the_next_one_is_tried(cluster: Kubernetes, tmp_path: Path) -> None:
    where = cluster.option(template=f"{PLANTED}+{TEMPLATE}", next_min="1")
    with capacity(cluster):
        results = command(tmp_path, "bench", "run", "--suite", "smoke", "--cluster", where, env=cluster.env)
    assert not [it for it in results["verdicts"] if it["verdict"] == "fail"]
    said = [it["why"] for it in events(results, "queued")]
    assert re.fullmatch(
        rf"{PLANTED}: 0 of \d pods run after 1 min: Unschedulable: .*Insufficient cpu.*; {TEMPLATE} is tried next",
        said[-1],
    ), said
    (up,) = events(results, "cluster_up")
    assert up["queued_s"] > 60
    await_nothing(cluster)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("plant", "says"),
    [(quota, "FailedCreate: .*exceeded quota: planted"), (taint, "Unschedulable: .*taint"), (hook_of_pods, "webhook")],
    ids=["quota", "taint", "webhook"],
)
def test_a_pod_that_is_not_replaced_is_told_and_comes_once_it_can(
    cluster: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, says: str
) -> None:
    for name in ("KUBECONFIG", "PATH"):
        monkeypatch.setenv(name, cluster.env[name])
    with Session(cluster.option(), tmp_path / f"r{time.time_ns()}", 2) as session:
        with plant(cluster):
            lose(session, "n2")
            deadline = time.monotonic() + 60
            while not said(session, says) and time.monotonic() < deadline:
                session.cluster.exits()
                session.cluster.sleep(0.05)
            assert said(session, says), session.told("queued")
        session.cluster.shape(None, None)  # as the next trial does: it waits for the node
        assert not session.cluster.away
        assert len(session.told("queued")) == len({it["why"] for it in session.told("queued")})  # each once
    await_nothing(cluster)


@pytest.mark.usefixtures("quick")
def test_a_pod_that_is_not_replaced_in_time_ends_the_run(
    cluster: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBECONFIG", "PATH"):
        monkeypatch.setenv(name, cluster.env[name])
    with (
        Session(cluster.option(wait_min="1"), tmp_path / f"r{time.time_ns()}", 2) as session,
        quota(cluster),
    ):
        lose(session, "n2")
        with pytest.raises(ClusterError, match=r"n2 has not come back for 1 min: FailedCreate: .*quota.*; wait_min="):
            session.cluster.shape(None, None)
    await_nothing(cluster)


def test_training_goes_on_while_kubernetes_may_give_no_other_pod(cluster: Kubernetes, tmp_path: Path) -> None:
    suite = shortened("kubernetes-withheld", tmp_path, {"twins = [2]": "twins = []"})
    words = ("chaos", "run", "--suite", suite, "--cluster", cluster.option())
    results = command(tmp_path, *words, env=cluster.env)
    told = {it["kind"]: it["verdicts"] for it in results["trials"]}
    assert {(it["happened"], it["healed"], it["trained_on"]) for it in told.values()} == {("pass",) * 3}, results["out"]
    ends = {it["kind"]: it["evidence"] for it in events(results, "fault_end")}
    words_of = {kind: " ".join(it["message"] for it in end["refusals"]) for kind, end in ends.items()}
    assert "exceeded quota: pg-" in words_of["quota_used_up"]
    assert re.search(r"failed calling webhook .*nowhere", words_of["webhook_away"]), words_of
    assert [end["without"] for end in ends.values()] == [["n2"], ["n1"]]
    for trial in results["trials"]:
        (row,) = trial["replaced"]
        moments = [row["moments"][name] for name in ("gone", "scheduled", "started", "joined", "first_step")]
        assert moments == sorted(moments), row
    await_nothing(cluster)


def test_the_webhook_of_a_killed_harness_is_removed_and_somebody_elses_is_not(cluster: Kubernetes) -> None:
    left = hook_of_a_run("pg-gone.1", {"name": "pg-gone"}, SPACE)
    left["metadata"]["annotations"][OWNER] = f"{socket.gethostname()}/999999.1"
    sent(cluster, "POST", HOOKS, left)
    with hook(cluster, "", "pods"):
        where, env = cluster.option(), dict(cluster.env)
        assert clean(where, "--dry-run", env=env) == ["left: webhook pg-gone.1", "1 thing would be removed"]
        assert clean(where, env=env)[-1] == "1 thing removed"
        assert [it["metadata"]["name"] for it in sent(cluster, "GET", HOOKS)["items"]] == [PLANTED]


def lose(session: Session, node: str) -> None:
    """Have its pod deleted at once."""
    session.cluster.remove(session.cluster.machine(node)["name"], "force")
    while node not in session.cluster.away:
        session.cluster.sleep(0.05)


def said(session: Session, says: str) -> bool:
    """Whether it was told of the lost node."""
    return bool(re.search(says, json.dumps([it["why"] for it in session.told("queued")])))
