"""Every Kubernetes object of every environment, accepted by a real API server: strict fields, pod security on."""

from __future__ import annotations

import base64
import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proving_ground.infra import direct
from proving_ground.infra.cluster.everything import label, manifests
from proving_ground.infra.cluster.facts import Facts
from proving_ground.infra.cluster.labels import MONITORING, NAMESPACES, NODE_AGENTS, RAY, TRAINING
from proving_ground.infra.cluster.training import job
from proving_ground.infra.config import STACKS, load
from proving_ground.infra.passwords import NO_WEBHOOK, VARIABLES
from tests.infra.apiserver.server import Answer, Server, kubeconfig, running
from tests.infra.gotools import UnavailableError, find

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(1200)]


RBAC = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
PREPARED = ("Namespace", "ServiceAccount", "PriorityClass", *RBAC)


WEBHOOK = "https://hook.example"


def facts(stack: str, webhook: str | None = WEBHOOK) -> Facts:
    """A stack's facts, with texts where Pulumi would have outputs."""
    environment = load(stack, environ={})
    skus = {pool.name: pool.skus[0] for pool in environment.pools if pool.skus}
    cloud: dict[str, Any] = {"trainer_client_id": "id", "file_account": "account", "file_key": "key"}
    given = cloud if environment.azure else {}
    return Facts(environment, skus, grafana_password="p", webhook=webhook, **given)  # noqa: S106


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running API server with the namespaces, accounts and priorities that pods refer to."""
    try:
        with running(tmp_path_factory.mktemp("apiserver")) as started:
            _prepare(started)
            yield started
    except UnavailableError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"in CI there must be an API server: {reason}")
        pytest.skip(str(reason))


def _prepare(started: Server) -> None:
    for manifest in manifests(facts("prod")):
        if manifest["kind"] in PREPARED:
            answer = started.apply(manifest, dry_run=False)
            assert not answer.message, answer.message
    for space in NAMESPACES:
        name = {"name": "default", "namespace": space}
        started.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name}, dry_run=False)


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod that a workload would make: pod security is enforced on pods only."""
    template = manifest.get("template") or manifest.get("spec", {}).get("template")
    if template is None:
        return []
    named = {key: manifest["metadata"][key] for key in ("name", "namespace")}
    spec = copy.deepcopy(template["spec"])
    for claim in manifest.get("spec", {}).get("volumeClaimTemplates", []):
        spec["volumes"].append({"name": claim["metadata"]["name"], "emptyDir": {}})
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], **named}, "spec": spec}]


@pytest.mark.parametrize("stack", STACKS)
def test_every_object_is_accepted_and_all_of_it_is_kept(stack: str, server: Server) -> None:
    objects = manifests(facts(stack))
    answers = {label(item): server.apply(item, dry_run=True) for item in objects}
    assert len(objects) > 50
    assert not {name: answer.message for name, answer in answers.items() if answer.message}
    assert not {label(item): found for item in objects if (found := lost(item, answers[label(item)].body))}


@pytest.mark.parametrize("stack", STACKS)
def test_every_pod_passes_pod_security(stack: str, server: Server) -> None:
    made = [pod for manifest in manifests(facts(stack)) for pod in pods(manifest)]
    refused = {label(pod): server.apply(pod, dry_run=True).message for pod in made}
    assert len(made) > 5
    assert not {name: why for name, why in refused.items() if why}


@pytest.mark.parametrize("stack", STACKS)
def test_a_job_made_of_each_template_is_accepted(stack: str, server: Server) -> None:
    templates = [item for item in manifests(facts(stack)) if item["kind"] == "PodTemplate"]
    refused = [server.apply(job(template, "bench", 4), dry_run=True).message for template in templates]
    assert refused == [""] * len(templates)


def test_the_server_would_refuse_what_is_wrong(server: Server) -> None:
    """The mutants: a misspelled field, a greedy trainer, the nodes' agents in the trainers' namespace."""
    objects = manifests(facts("local"))
    template = next(item for item in objects if item["kind"] == "PodTemplate")
    misspelled = copy.deepcopy(template)
    misspelled["template"]["spec"]["volumez"] = []
    assert "volumez" in server.apply(misspelled, dry_run=True).message
    greedy = pods(template)[0]
    greedy["spec"]["containers"][0]["securityContext"] = {"allowPrivilegeEscalation": True}
    assert 'violates PodSecurity "restricted' in server.apply(greedy, dry_run=True).message
    agents = [pod for item in objects if item["metadata"].get("namespace") == NODE_AGENTS for pod in pods(item)]
    for agent in agents:
        agent["metadata"]["namespace"] = TRAINING
        agent["spec"]["serviceAccountName"] = "trainer"
        assert "violates PodSecurity" in server.apply(agent, dry_run=True).message
    assert agents


@pytest.mark.parametrize("webhook", [WEBHOOK, None])
def test_all_of_local_can_be_made_for_real(webhook: str | None, server: Server) -> None:
    """Not a dry run: what refers to each other is there, all that is sent is kept, a second time changes nothing."""
    objects = manifests(facts("local", webhook))
    first = {label(item): server.apply(item, dry_run=False) for item in objects}
    assert not [answer.message for answer in first.values() if answer.message]
    assert not {label(item): found for item in objects if (found := lost(item, first[label(item)].body))}
    second = {label(item): server.apply(item, dry_run=False) for item in objects}
    assert not [name for name in first if _content(first[name]) != _content(second[name])]


def lost(sent: Any, kept: Any, where: str = "") -> list[str]:
    """The fields that were sent and are not what the server keeps; a Secret's texts are kept as its data."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        if sent.get("kind") == "Secret":
            texts = {name: base64.b64encode(text.encode()).decode() for name, text in sent["stringData"].items()}
            sent = {name: value for name, value in sent.items() if name != "stringData"} | {"data": texts}
        return [it for name, value in sent.items() for it in lost(value, kept.get(name), f"{where}.{name}")]
    if isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        pairs = enumerate(zip(sent, kept, strict=True))
        return [it for number, (one, other) in pairs for it in lost(one, other, f"{where}[{number}]")]
    return [] if sent == kept else [where]


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"kind": "Secret", "type": "Opaque", "stringData": {}}, [".data"]),
        ({"kind": "Secret", "type": "Opaque", "stringData": {"password": "x"}}, []),
        ({"kind": "ConfigMap", "data": {}}, [".data"]),
        ({"kind": "Service", "spec": {"ports": [{"port": 1, "name": ""}], "selector": {}}}, [
            ".spec.ports[0].name", ".spec.selector",
        ]),
    ],
)  # fmt: skip
def test_what_a_server_does_not_keep_is_seen(fields: dict[str, Any], missing: list[str], server: Server) -> None:
    """The mutants: the first one was replaced at every further `up`."""
    name = f"mutant-{fields['kind'].lower()}-{len(missing)}"
    sent = {"apiVersion": "v1", **fields, "metadata": {"name": name, "namespace": MONITORING}}
    answer = server.apply(sent, dry_run=False)
    assert not answer.message
    assert lost(sent, answer.body) == missing


def _content(answer: Answer) -> dict[str, Any]:
    """The object without the server's book-keeping (a claim gets a new version on every apply)."""
    bookkeeping = ("resourceVersion", "managedFields")
    metadata = {key: value for key, value in answer.body["metadata"].items() if key not in bookkeeping}
    return {**answer.body, "metadata": metadata}


# namespace:account, verb, group/resource, in which namespace → may it?
MAY = [
    (f"{TRAINING}:bench", "create", "batch/jobs", TRAINING, True),
    (f"{TRAINING}:bench", "delete", "/pods", TRAINING, True),
    (f"{TRAINING}:bench", "get", "/secrets", TRAINING, False),
    (f"{TRAINING}:bench", "delete", "/pods", "kube-system", False),
    (f"{TRAINING}:bench", "delete", "/nodes", None, False),
    (f"{TRAINING}:trainer", "get", "/pods", TRAINING, False),
    (f"{TRAINING}:trainer", "create", "batch/jobs", TRAINING, False),
    (f"{MONITORING}:prometheus", "list", "/pods", RAY, True),
    (f"{MONITORING}:prometheus", "get", "/secrets", MONITORING, False),
    (f"{MONITORING}:kube-state-metrics", "list", "apps/deployments", RAY, True),
    (f"{MONITORING}:kube-state-metrics", "list", "/secrets", None, False),
    (f"{NODE_AGENTS}:log-collector", "list", "/pods", TRAINING, True),
    (f"{NODE_AGENTS}:log-collector", "delete", "/pods", TRAINING, False),
]


@pytest.mark.parametrize(("account", "verb", "what", "space", "allowed"), MAY)
def test_accounts_may_what_they_need_and_no_more(
    server: Server,
    account: str,
    verb: str,
    what: str,
    space: str | None,
    allowed: bool,  # noqa: FBT001 - a table's column
) -> None:
    group, _, resource = what.partition("/")
    asked = {"verb": verb, "group": group, "resource": resource, **({"namespace": space} if space else {})}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"system:serviceaccount:{account}", "resourceAttributes": asked},
    }
    answer = server.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer.body["status"]["allowed"] == allowed


def test_without_the_cli_a_preview_says_what_would_be_new_and_keeps_nothing(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`server` has the namespaces already; the other one has nothing, and refuses what is for a namespace to come."""
    (tmp_path / "kubectl").symlink_to(find("kubectl"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("PROVING_GROUND_INFRA__KUBERNETES__CONTEXT", raising=False)
    monkeypatch.setenv(VARIABLES["webhook"], NO_WEBHOOK)  # another test may have left one on `server`
    (tmp_path / "new").mkdir()
    with running(tmp_path / "new") as empty:
        told = [previewed(it, tmp_path, monkeypatch) for it in (empty, server)]
        kept = empty.request("GET", f"/api/v1/namespaces/{MONITORING}").message
    assert "not found" in kept
    objects = manifests(facts("local", webhook=None))
    assert [len(it) for it in told] == [len(objects)] * 2
    assert {line.split()[1] for line in told[0]} == {"created", "serverside-applied"}
    assert all("dry run" in line for lines in told for line in lines)


def previewed(there: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `preview` says of stack local, but for the lines of kubectl's own log."""
    file = folder / "kubeconfig"
    file.write_text(json.dumps(kubeconfig(there)))
    monkeypatch.setenv("KUBECONFIG", str(file))
    said: list[str] = []
    direct.DirectStack(load("local", environ={}), said.append).preview()
    assert said[0] == direct.SAYS
    return said[1].splitlines()
