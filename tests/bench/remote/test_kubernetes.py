"""What is sent to Kubernetes, and how what it says is read. `tests/engines/test_kubernetes.py` has a real one."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.clusters.options import read_options
from proving_ground.bench.clusters.remote.kubectl import Kubectl, refused
from proving_ground.bench.clusters.remote.kubernetes import (
    KubernetesOptions,
    KubernetesPool,
    NoMachinesError,
    belongings,
    claimed,
)
from proving_ground.bench.clusters.remote.waits import INDEX
from proving_ground.bench.clusters.remote.withheld import HOOKS, OWNER, RUN
from proving_ground.bench.protocols import ClusterError, ClusterRequest
from proving_ground.bench.spec import SpecError
from proving_ground.infra import outputs
from proving_ground.infra.reading import ConfigError

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "trainer"}, "creationTimestamp": None},
    "spec": {
        "containers": [
            {
                "name": "trainer", "image": "one", "command": ["train"], "args": ["--fast"],
                "env": [{"name": it, "value": "x"} for it in ("HOME", "PROVING_GROUND_CHECKPOINT_DIR", "NODE_RANK")],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "work", "mountPath": "/work"}],
            },
            {"name": "beside", "image": "two"},
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "work", "persistentVolumeClaim": {"claimName": "c"}}],
    },
}  # fmt: skip


def pool(words: str, template: dict[str, Any] | None = None, *, has_gangs: bool = False) -> KubernetesPool:
    made = KubernetesPool(read_options(KubernetesOptions, "kubernetes", words))
    made.__dict__["has_gangs"] = has_gangs
    if template:
        made.__dict__["pod"] = template  # as the API server has it
    return made


def job(words: str, template: dict[str, Any] | None = None) -> dict[str, Any]:
    return pool(words, template)._manifest("pg-1", 3)


def test_a_job_gives_other_pods_for_those_that_fail_each_index_by_itself() -> None:
    spec = job("image=one,time_min=5")["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert (spec["backoffLimitPerIndex"], spec["podReplacementPolicy"]) == (1000, "Failed")
    assert "backoffLimit" not in spec  # of all indices together: the next loss of any would wait twice as long
    assert spec["activeDeadlineSeconds"] == 300
    assert spec["suspend"]  # until what it needs is there
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("has_gangs", "words"), [(True, "image=one"), (True, "image=one,gang=false"), (False, "image=one")]
)
def test_pods_get_machines_together_where_the_api_server_can(has_gangs: bool, words: str) -> None:  # noqa: FBT001
    spec = pool(words, has_gangs=has_gangs)._manifest("pg-1", 3)["spec"]
    together = {"schedulingPolicy": {"gang": {"minCount": 3}}} if has_gangs and "gang" not in words else None
    assert spec.get("scheduling") == together


@pytest.mark.parametrize(
    ("stderr", "says"),
    [('Error from server (NotFound): persistentvolumeclaims "c" not found', 'persistentvolumeclaims "c" not found'),
     ('Error from server (Forbidden): persistentvolumeclaims "c" is forbidden: User "u" cannot get', "")],
)  # fmt: skip
def test_a_claim_that_is_missing_is_named_where_the_scheduler_does_not(stderr: str, says: str) -> None:
    class Refusing(Kubectl):
        def run(self, *words: str, text: str | None = None) -> str:
            assert (words[:3], text) == (("get", "persistentvolumeclaim", "c"), None)
            raise refused(stderr)

    made = pool("trainer", TEMPLATE)
    made.kubectl = Refusing(())
    assert says in made._missing()
    assert bool(made._missing()) == bool(says)


def test_a_template_keeps_all_that_is_its_own_but_the_command() -> None:
    made = job("trainer", TEMPLATE)["spec"]["template"]
    first, second = made["spec"]["containers"]
    assert (first["image"], first["args"], second) == ("one", [], {"name": "beside", "image": "two"})
    assert first["command"][:2] == ["python3", "-c"]
    assert [it["name"] for it in first["env"]] == ["HOME"]  # the others would have all trials share a folder
    assert [it["mountPath"] for it in first["volumeMounts"]] == ["/tmp", "/work", "/proving-ground"]
    assert made["metadata"] == {
        "labels": {"app": "trainer", RUN: "pg-1", "app.kubernetes.io/part-of": "proving-ground"}
    }
    assert TEMPLATE["spec"]["containers"][0]["command"] == ["train"]  # it was copied


def test_each_pod_has_a_machine_of_its_own() -> None:
    ((term,),) = [
        it["requiredDuringSchedulingIgnoredDuringExecution"]
        for it in [job("image=one")["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]]
    ]
    assert term == {"labelSelector": {"matchLabels": {RUN: "pg-1"}}, "topologyKey": "kubernetes.io/hostname"}


def test_a_pod_of_an_image_alone_is_one_that_restricted_namespaces_take() -> None:
    spec = job("image=one,gpus=8")["spec"]["template"]["spec"]
    first = spec["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert first["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert first["resources"] == {"limits": {"nvidia.com/gpu": "8"}}


def test_the_shared_volume_is_that_of_the_template_or_the_claim_that_is_named() -> None:
    assert pool("trainer", TEMPLATE).volume == "/work"
    assert pool("trainer,volume=/elsewhere", TEMPLATE).volume == "/elsewhere"
    assert pool("image=one").volume == ""
    named = pool("image=one,claim=mine")
    assert named.volume == "/proving-ground-volume"
    spec = named._manifest("pg-1", 1)["spec"]["template"]["spec"]
    assert {"name": "proving-ground-volume", "persistentVolumeClaim": {"claimName": "mine"}} in spec["volumes"]
    assert claimed({"spec": {"containers": [{"name": "a"}]}}) == ""


def test_each_index_has_a_name_and_all_belongs_to_the_job() -> None:
    owned = {"apiVersion": "batch/v1", "kind": "Job", "name": "pg-1", "uid": "u"}
    config, *services = belongings("pg-1", 2, owned, b"\0agent")
    assert config["binaryData"] == {"agent": "AGFnZW50"}
    assert [it["metadata"]["name"] for it in services] == ["pg-1-0", "pg-1-1"]
    assert services[1]["spec"]["selector"] == {RUN: "pg-1", INDEX: "1"}
    assert services[1]["spec"]["publishNotReadyAddresses"]  # peers meet before anything is ready
    assert all(it["metadata"]["ownerReferences"] == [owned] for it in (config, *services))


EXPORTS = {
    "schema": 1, "environment": "dev", "namespace": "pg-training", "service_account": "trainer",
    "headless_service": "trainer", "claim": "shared", "rendezvous_port": 29400, "prometheus": "http://p",
    "loki": "http://l",
    "pools": [
        {"name": "cpu", "max_nodes": 2, "gpu": None, "gpus_per_node": 0, "spot": False, "pod_template": "trainer-cpu"},
        {"name": "gpu", "max_nodes": 4, "gpu": "H100", "gpus_per_node": 8, "spot": True, "pod_template": "trainer-gpu"},
    ],
}  # fmt: skip


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stack that is up; what it exports may be changed."""
    exports = {**EXPORTS}
    monkeypatch.setattr("proving_ground.infra.outputs.load", lambda _name: outputs.read(exports))
    return exports


def test_a_stack_says_where_and_of_what_pods_are_made(stack: dict[str, Any]) -> None:
    stack["context"] = "local"
    made = pool("stack=dev")
    assert made.kubectl.argv == ("kubectl", "--context", "local", "--namespace", "pg-training")
    assert (made.options.template, made.capacity) == ("trainer-gpu", 4)  # the pool with GPUs
    assert pool("stack=dev,pool=cpu").options.template == "trainer-cpu"
    assert pool("trainer-mine,stack=dev,namespace=mine").options.template == "trainer-mine"
    with pytest.raises(SpecError, match=r"pool 'gpus'.*cpu, gpu"):
        pool("stack=dev,pool=gpus")


def test_pools_are_tried_in_turn_and_one_that_is_too_small_is_passed_over(
    stack: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told, tried = pool("stack=dev,pool=cpu+gpu"), list[str](), list[tuple[str, str, bool]]()
    assert (made.capacity, made.options.template, stack["schema"]) == (4, "trainer-cpu", 1)
    monkeypatch.setattr(KubernetesPool, "volume", "/work")

    def none(_: object, __: object, ___: object, *, last: bool) -> list[Any]:
        tried.append((made._job, made.options.template, last))
        if not last:
            raise NoMachinesError(f"{made.options.template}: 0 of 2 pods run after 5 min: Unschedulable")
        return []

    monkeypatch.setattr(made, "_made", none)
    monkeypatch.setattr(made, "_delete", lambda job: told.append(f"deleted {job}"))
    request = ClusterRequest("R1", 2, 1, Path())
    assert made.allocate(request, lambda _: b"", told.append) == []
    assert tried == [("pg-r1", "trainer-cpu", False), ("pg-r1-b", "trainer-gpu", True)]
    assert told == [
        "trainer-cpu: 0 of 2 pods run after 5 min: Unschedulable; trainer-gpu is tried next", "deleted pg-r1",
    ]  # fmt: skip
    tried.clear()
    made.allocate(replace(request, nodes=3), lambda _: b"", told.append)
    assert tried == [("pg-r1", "trainer-gpu", True)]


def test_templates_that_have_the_volume_at_different_places_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pool("one+two", TEMPLATE)
    assert made.options.template == "one"
    elsewhere = json.loads(json.dumps(TEMPLATE).replace('"/work"', '"/data"'))
    monkeypatch.setattr(Kubectl, "get", lambda *_: {"items": [{"metadata": {"name": "two"}, "template": elsewhere}]})
    with pytest.raises(SpecError, match="two has its volume at '/data', not at '/work'"):
        made._choose("two")
    with pytest.raises(SpecError, match=r"template = 'one\+'"):
        pool("one+")


def test_the_kubeconfig_of_a_stack_is_read_by_others_only_while_it_is_used(stack: dict[str, Any]) -> None:
    stack["kubeconfig"] = "planted: secret"
    made = pool("stack=dev")
    path = made.kubectl.argv[made.kubectl.argv.index("--kubeconfig") + 1]
    read = subprocess.run(["cat", path], capture_output=True, text=True, check=True).stdout
    assert read == "planted: secret"
    assert "planted" not in str(made.kubectl.argv)
    del made
    gc.collect()
    # The descriptor is closed; its number may be another file's by now.
    assert not (Path(path).exists() and "kubeconfig" in str(Path(path).readlink()))


def test_a_stack_that_is_not_up_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proving_ground.infra.outputs.load", mistaken)
    with pytest.raises(SpecError, match="cluster kubernetes: stack dev: it has no outputs"):
        pool("stack=dev")


def mistaken(name: str) -> outputs.StackOutputs:
    raise ConfigError(f"stack {name}: it has no outputs; run `pulumi up --stack {name}` first")


def test_the_plan_is_what_would_be_sent() -> None:
    class Trial:
        nodes = 2

    text = pool("image=one").plan([], Trial())  # type: ignore[arg-type] # of a trial only the size counts
    kinds = [json.loads(it)["kind"] for it in text.replace("\n}\n", "\n}\0").strip("\0").split("\0")]
    assert kinds == ["Job", "ConfigMap", "Service", "Service"]


@pytest.mark.parametrize(
    ("stderr", "kind", "says"),
    [
        ('error: context "moon" does not exist', SpecError, 'context "moon" does not exist'),
        (
            "E1124 18:40:04.489949 memcache.go:265] no list\nThe connection to localhost:8080 was refused",
            SpecError, "no kubeconfig: set KUBECONFIG",
        ),
        (
            'Error from server (Forbidden): jobs.batch is forbidden: User "x" cannot create resource "jobs"', SpecError,
            'User "x" cannot create resource "jobs"',
        ),
        ("error: You must be logged in to the server (Unauthorized)", SpecError, "must be logged in"),
        (
            'Error from server (Forbidden): pods "a" is forbidden: exceeded quota: small, requested: pods=1', SpecError,
            "exceeded quota",
        ),
        (
            "Unable to connect to the server: dial tcp 10.0.0.9:443: i/o timeout", ClusterError,
            "kubernetes: Unable to connect to the server",
        ),
        ("Warning: v1 is deprecated\n", ClusterError, "no word why"),
    ],
)  # fmt: skip
def test_what_kubectl_complains_of_is_one_line_and_the_callers_mistake_or_not(
    stderr: str, kind: type[Exception], says: str
) -> None:
    found = refused(stderr)
    assert type(found) is kind
    assert says in str(found)
    assert "\n" not in str(found)


class Answers:
    """A kubectl that has these objects, by the word that is asked for, and notes what is done."""

    def __init__(self, **objects: dict[str, Any]) -> None:
        self.objects, self.done = objects, list[tuple[str, ...]]()

    def get(self, *words: str) -> dict[str, Any]:
        return self.objects.get(words[0], {"items": []} if words[0].endswith("s") else {})

    def create(self, *manifests: dict[str, Any]) -> None:
        self.done += [("create", it["kind"], it["metadata"]["name"]) for it in manifests]
        self.made = manifests

    def namespace(self) -> str:
        return "team"

    def run(self, *words: str) -> str:
        self.done.append(words)
        return ""


def on_machine(name: str, run: str = "", owner: str = "", phase: str = "Running") -> dict[str, Any]:
    owners = {"ownerReferences": [{"kind": owner}]} if owner else {}
    return {
        "metadata": {"namespace": "team", "name": name, "labels": {RUN: run} if run else {}, **owners},
        "status": {"phase": phase},
    }


def test_a_machine_with_pods_of_others_is_not_tainted() -> None:
    ours = [on_machine("mine", "pg-1"), on_machine("agent", owner="DaemonSet"), on_machine("old", phase="Failed")]
    made = pool("image=one")
    made._job, kubectl = "pg-1", Answers(pods={"items": ours})
    made.kubectl = kubectl  # type: ignore[assignment] # a stand-in
    made.taint("host", on=True)
    assert kubectl.done[-1] == ("taint", "node", "host", f"{RUN}=pg-1:NoExecute", "--overwrite")
    made.taint("host", on=False)
    assert kubectl.done[-2:] == [("taint", "node", "host", f"{RUN}:NoExecute-"), ("label", "node", "host", f"{RUN}-")]
    kubectl.objects["pods"]["items"].append(on_machine("theirs", owner="ReplicaSet"))
    with pytest.raises(ClusterError, match="host has pods of others, which a taint would evict: team/theirs"):
        made.taint("host", on=True)
    assert len(kubectl.done) == 4


def test_what_a_killed_run_had_tainted_is_opened() -> None:
    tainted = {"metadata": {"name": "host", "labels": {RUN: "pg-gone"}}, "spec": {"taints": [{"key": RUN}]}}
    made = pool("image=one")
    made.kubectl = kubectl = Answers(jobs={"items": []}, nodes={"items": [tainted]})  # type: ignore[assignment]
    made.may = lambda *_: True  # type: ignore[method-assign]
    assert made.clean(dry_run=False) == ["left: machine host, cordoned by pg-gone"]
    assert ("taint", "node", "host", f"{RUN}:NoExecute-") in kubectl.done
    assert ("uncordon", "host") not in kubectl.done


def test_a_quota_of_no_pods_goes_with_the_job_and_is_not_made_where_others_have_pods() -> None:
    made = pool("image=one")
    made._job, made._owned = "pg-1", {"kind": "Job", "name": "pg-1", "uid": "u"}
    made.kubectl = kubectl = Answers(pods={"items": [on_machine("mine", "pg-1")]})  # type: ignore[assignment]
    made.withhold("quota", on=True)
    made.withhold("quota", on=False)
    made.withhold("quota", on=True)  # another name: what was said of the first is not taken for it
    names = [it[2] for it in kubectl.done]
    assert names == ["pg-1.1", "pg-1.1", "pg-1.2"]
    (quota,) = kubectl.made
    assert quota["spec"] == {"hard": {"pods": "0"}}
    assert quota["metadata"]["ownerReferences"] == [made._owned]
    kubectl.objects["events"] = {
        "items": [
            {"message": f"exceeded quota: pg-1.{it}", "metadata": {"creationTimestamp": "1"}} for it in (1, 2)
        ]
    }  # fmt: skip
    assert [it["message"] for it in made.refusals()] == ["exceeded quota: pg-1.2"]
    kubectl.objects["pods"]["items"].append(on_machine("theirs", owner="ReplicaSet"))
    with pytest.raises(ClusterError, match="its namespace has pods of others, for whom it would count: team/theirs"):
        made.withhold("quota", on=True)
    assert len(kubectl.done) == 3


def test_a_webhook_is_for_the_pods_of_the_run_alone_and_is_removed_once_its_harness_is_gone() -> None:
    made = pool("image=one")
    made._job, made._owned = "pg-1", {"kind": "Job", "name": "pg-1", "uid": "u"}
    made.kubectl = kubectl = Answers()  # type: ignore[assignment]
    made.withhold("webhook", on=True)
    (hook,) = kubectl.made
    (one,) = hook["webhooks"]
    assert one["objectSelector"] == {"matchLabels": {RUN: "pg-1"}}
    assert one["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "team"}}
    assert one["failurePolicy"] == "Fail"
    kubectl.objects[HOOKS] = {"items": [hook]}
    made.may = lambda *_: True  # type: ignore[method-assign]
    assert made.clean(dry_run=False) == []  # its harness is this process
    hook["metadata"]["annotations"][OWNER] = f"{socket.gethostname()}/999999.1"
    assert made.clean(dry_run=True) == ["left: webhook pg-1.1"]
    assert kubectl.done[1:] == []
    made.clean(dry_run=False)
    assert kubectl.done[1:] == [("delete", HOOKS, "pg-1.1", "--ignore-not-found", "--wait=false")]


def test_what_kubernetes_says_of_a_pod_is_read() -> None:
    ended = {"reason": "Error", "exitCode": 137, "finishedAt": "2026", "containerID": "containerd://1"}
    events = [
        {"reason": "Killing", "message": "b", "lastTimestamp": "2026-01-01T00:00:02Z", "metadata": {}},
        {"reason": "Scheduled", "message": None, "eventTime": "2026-01-01T00:00:01.5Z", "metadata": {}},
        {"reason": "Odd", "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}},
    ]
    lease = {"spec": {"renewTime": "2026-01-01T00:00:00.1Z", "leaseDurationSeconds": 40}}
    pods = {"status": {"containerStatuses": [{"state": {"terminated": ended}}]}}
    made = pool("image=one")
    made.kubectl = Answers(pod=pods, events={"items": events}, lease=lease)  # type: ignore[assignment]
    assert made.ended("p") == {"reason": "Error", "code": 137, "at": "2026", "container": "containerd://1"}
    assert [it["reason"] for it in made.told("p")] == ["Odd", "Scheduled", "Killing"]
    assert made.pulse("host") == {"where": "host", "at": "2026-01-01T00:00:00.1Z", "every_s": 10.0}
    made.kubectl = Answers(pod={"status": {"containerStatuses": [{"state": {"running": {}}}]}})  # type: ignore[assignment]
    assert made.ended("p") == {}


def test_machines_and_the_api_server_are_switched_by_programs_of_the_users(tmp_path: Path) -> None:
    program = tmp_path / "fence"
    program.write_text(
        f'#!/bin/sh\n[ "$2" != moon ] || {{ echo no such machine >&2; exit 1; }}\necho "$*" >>{tmp_path}/said\n'
    )
    program.chmod(0o700)
    made = pool(f"image=one,power={program},api={program} api")
    made.power("host", on=False)
    made.power("host", on=True)
    made.control(on=False)
    made.control(on=True)
    assert (tmp_path / "said").read_text().splitlines() == ["kill host", "restore host", "api stop", "api start"]
    with pytest.raises(ClusterError, match=f"kubernetes: power={program} kill moon: no such machine"):
        made.power("moon", on=False)
    with pytest.raises(ClusterError, match=r"power=/no/such kill host: .*No such file"):
        pool("image=one,power=/no/such").power("host", on=False)


def test_what_takes_a_program_is_refused_without_one() -> None:
    made = pool("image=one,api=stop")
    made.may = lambda *right: "leases" in right  # type: ignore[method-assign]
    found = {it.name: (it.yes, it.how) for it in made.abilities()}
    assert found["power"] == (False, "no power= that switches machines off")
    assert found["api"] == (True, "by api=")
    assert not found["all_pods"][0]
    made = pool("image=one,power=off")
    made.may = lambda *right: "leases" in right  # type: ignore[method-assign]
    assert {it.name: it.yes for it in made.abilities()}["power"]


@pytest.mark.parametrize(("ability", "what"), [("quotas", "resourcequotas"), ("webhooks", HOOKS)])
def test_what_is_made_has_to_be_deleted_again_and_takes_both_rights(ability: str, what: str) -> None:
    for rights, able in (({"create", "delete"}, True), ({"create"}, False), ({"delete"}, False)):
        made = pool("image=one")
        made.may = lambda *right, rights=rights: right[0] in rights and right[1:] == (what,)  # type: ignore[method-assign]
        assert {it.name: it.yes for it in made.abilities()}[ability] is able


@pytest.mark.parametrize(
    ("said", "closed"),
    [
        ("The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?", True),
        ("Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout", True),
        ("Error from server: error dialing backend: dial tcp 10.0.0.2:10250: connect: no route to host", False),
        ("error: error dialing backend: TLS handshake timeout", False),
        ('Error from server (NotFound): pods "pg-1-0" not found', False),
    ],
)
def test_a_closed_api_server_says_nothing_of_a_pod(said: str, closed: bool) -> None:  # noqa: FBT001
    assert pool("image=one").closed(said) is closed
