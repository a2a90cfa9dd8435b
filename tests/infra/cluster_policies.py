"""What must hold for every Kubernetes object of every stack: the cluster's part of the table of rules."""

from __future__ import annotations

from typing import Any

from proving_ground.infra.cluster.labels import NAMESPACES, NODE_AGENTS, POOL_LABEL, TRAINING
from proving_ground.infra.skus import AKS_DAEMONS, SKUS, Room, Sku, allocatable
from tests.infra.mocks import Recorded
from tests.infra.policies import Inputs, Rule, each

WORKLOADS = ("apps/v1:Deployment", "apps/v1:StatefulSet", "apps/v1:DaemonSet", "core/v1:PodTemplate")
ROLES = ("rbac.authorization.k8s.io/v1:ClusterRole", "rbac.authorization.k8s.io/v1:Role")
NAMESPACED = (*WORKLOADS, "core/v1:ConfigMap", "core/v1:Secret", "core/v1:Service", "core/v1:ServiceAccount")


def pod(inputs: Inputs) -> dict[str, Any]:
    """The pod's spec in a workload or a template."""
    template = inputs["template"] if "template" in inputs else inputs["spec"]["template"]
    return dict(template["spec"])


def containers(inputs: Inputs) -> list[dict[str, Any]]:
    """The pod's containers."""
    return list(pod(inputs)["containers"])


def requests(inputs: Inputs) -> Room:
    """What the pod's containers request together."""
    asked = [container["resources"]["requests"] for container in containers(inputs)]
    return Room(sum(millicores(item["cpu"]) for item in asked), sum(mib(item["memory"]) for item in asked))


def millicores(text: str) -> int:
    """Kubernetes' `250m` and `2`."""
    return int(text.removesuffix("m")) if text.endswith("m") else 1000 * int(text)


def mib(text: str) -> int:
    """Kubernetes' `128Mi` and `2Gi`."""
    return int(text[:-2]) * {"Mi": 1, "Gi": 1024}[text[-2:]]


def fits(template: Inputs, sku: Sku, daemons: list[Inputs]) -> bool:
    """A pod beside AKS's daemons and ours on what AKS leaves of the machine; the scheduler counts the same sums."""
    free = allocatable(sku) - AKS_DAEMONS
    for daemon in daemons:
        free -= requests(daemon)
    left = free - requests(template)
    gpus = int(containers(template)[0]["resources"]["requests"].get("nvidia.com/gpu", 0))
    return left.millicores >= 0 and left.memory_mib >= 0 and gpus == sku.gpus


def _fits_its_node(inputs: Inputs, recorded: Recorded) -> bool:
    """The size is the one that the node pool asks Azure for."""
    pool = pod(inputs)["nodeSelector"][POOL_LABEL]
    sizes = {item.inputs["agentPoolName"]: item.inputs["vmSize"] for item in recorded.of("AgentPool")}
    daemons = [item.inputs for item in recorded.of("apps/v1:DaemonSet")]
    return fits(inputs, SKUS[sizes[pool]], daemons)


def one_core_more(inputs: Inputs) -> None:
    """A mutant: what was requested before AKS's reservation was counted, or close to it."""
    asked = containers(inputs)[0]["resources"]["requests"]
    asked["cpu"] = str(int(asked["cpu"]) + 1)


def _restricted(inputs: Inputs, _: Recorded) -> bool:
    contexts = [container["securityContext"] for container in containers(inputs)]
    return (
        pod(inputs)["securityContext"].get("runAsNonRoot") is True
        and pod(inputs)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        and all(context["capabilities"] == {"drop": ["ALL"]} for context in contexts)
        and all(context["allowPrivilegeEscalation"] is False for context in contexts)
    )


def _namespace(inputs: Inputs) -> str:
    return str(inputs["metadata"].get("namespace"))


def _open_ports(inputs: Inputs) -> list[tuple[int, int]]:
    found = inputs["spec"]["ingress"][0]["ports"]
    return [(port["port"], port.get("endPort", port["port"])) for port in found]


def _workers(inputs: Inputs) -> int:
    return max(1, int(containers(inputs)[0]["resources"]["limits"].get("nvidia.com/gpu", 0)))


CLUSTER: list[Rule] = [
    Rule(
        "every namespace enforces a pod security standard",
        ("core/v1:Namespace",),
        lambda i, _: (
            i["metadata"]["labels"].get("pod-security.kubernetes.io/enforce")
            == ("privileged" if i["metadata"]["name"] == NODE_AGENTS else "restricted")
        ),
        lambda i: i["metadata"]["labels"].pop("pod-security.kubernetes.io/enforce"),
    ),
    Rule(
        "everything lives in one of the project's namespaces",
        NAMESPACED,
        lambda i, _: _namespace(i) in NAMESPACES,
        lambda i: i["metadata"].update(namespace="default"),
    ),
    Rule(
        "pods outside the nodes' agents are restricted",
        WORKLOADS,
        _restricted,
        lambda i: containers(i)[0]["securityContext"].update(allowPrivilegeEscalation=True),
        where=lambda i: _namespace(i) != NODE_AGENTS,
    ),
    Rule(
        "root file systems are read-only",
        WORKLOADS,
        lambda i, _: all(container["securityContext"]["readOnlyRootFilesystem"] for container in containers(i)),
        lambda i: containers(i)[0]["securityContext"].update(readOnlyRootFilesystem=False),
    ),
    Rule(
        "nobody is privileged",
        WORKLOADS,
        lambda i, _: not any(container["securityContext"].get("privileged") for container in containers(i)),
        lambda i: containers(i)[0]["securityContext"].update(privileged=True),
    ),
    Rule(
        "every container says what it needs and has a ceiling of memory",
        WORKLOADS,
        lambda i, _: all(
            {"cpu", "memory"} <= set(container["resources"]["requests"]) and container["resources"]["limits"]["memory"]
            for container in containers(i)
        ),
        lambda i: containers(i)[0]["resources"]["requests"].pop("cpu"),
    ),
    Rule(
        "images have an exact version",
        WORKLOADS,
        lambda i, _: all(
            ":" in container["image"] and not container["image"].endswith(":latest") for container in containers(i)
        ),
        lambda i: containers(i)[0].update(image="somewhere/latest-thing"),
    ),
    Rule(
        "no role has a wildcard",
        ROLES,
        lambda i, _: not any("*" in rule[key] for rule in i["rules"] for key in ("apiGroups", "resources", "verbs")),
        lambda i: i["rules"][0].update(verbs=["*"]),
    ),
    Rule(
        "no role reads secrets",
        ROLES,
        lambda i, _: not any("secrets" in rule["resources"] for rule in i["rules"]),
        lambda i: i["rules"][0].update(resources=["secrets"]),
    ),
    Rule(
        "across the cluster roles only read",
        ("rbac.authorization.k8s.io/v1:ClusterRole",),
        lambda i, _: all(set(rule["verbs"]) <= {"get", "list", "watch"} for rule in i["rules"]),
        lambda i: i["rules"][0]["verbs"].append("delete"),
    ),
    Rule(
        "accounts do not hand out tokens",
        ("core/v1:ServiceAccount",),
        lambda i, _: i["automountServiceAccountToken"] is False,
        each({"automountServiceAccountToken": True}),
    ),
    Rule(
        "nothing is reachable from outside",
        ("core/v1:Service",),
        lambda i, _: i["spec"].get("type", "ClusterIP") == "ClusterIP",
        lambda i: i["spec"].update(type="LoadBalancer"),
    ),
    Rule(
        "quotas leave no way out and count pods",
        ("core/v1:ResourceQuota",),
        lambda i, _: i["spec"]["hard"]["services.loadbalancers"] == "0" and i["spec"]["hard"]["pods"] != "0",
        lambda i: i["spec"]["hard"].update({"services.loadbalancers": "1"}),
    ),
    Rule(
        "where there are GPUs, their number is limited",
        ("core/v1:ResourceQuota",),
        lambda i, r: ("requests.nvidia.com/gpu" in i["spec"]["hard"]) == r.environment.has_gpus,
        lambda i: (
            i["spec"]["hard"].update({"requests.nvidia.com/gpu": "9"})
            if "requests.nvidia.com/gpu" not in i["spec"]["hard"]
            else i["spec"]["hard"].pop("requests.nvidia.com/gpu")
        ),
    ),
    Rule(
        "everything is forbidden first",
        ("networking.k8s.io/v1:NetworkPolicy",),
        lambda i, _: i["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
        lambda i: i["spec"].update(ingress=[{}]),
        where=lambda i: i["metadata"]["name"] == "deny-everything",
    ),
    Rule(
        "between trainers only the training ports",
        ("networking.k8s.io/v1:NetworkPolicy",),
        lambda i, r: (
            _open_ports(i)
            == [
                (r.environment.kubernetes.ports.rendezvous, r.environment.kubernetes.ports.rendezvous),
                (r.environment.kubernetes.ports.first, r.environment.kubernetes.ports.last),
            ]
        ),
        lambda i: i["spec"]["ingress"][0]["ports"].append({"protocol": "TCP", "port": 22}),
        where=lambda i: i["metadata"]["name"] == "train-together",
    ),
    Rule(
        "no exception lets anything in from anywhere",
        ("networking.k8s.io/v1:NetworkPolicy",),
        lambda i, _: all(rule.get("from") for rule in i["spec"].get("ingress", [])),
        lambda i: i["spec"].update(ingress=[{"ports": []}]),
    ),
    Rule(
        "trainers use the ports that are open",
        ("core/v1:PodTemplate",),
        lambda i, r: (
            pod(i)["securityContext"]["sysctls"][0]["value"]
            == f"{r.environment.kubernetes.ports.first} {r.environment.kubernetes.ports.last}"
        ),
        lambda i: pod(i)["securityContext"]["sysctls"][0].update(value="1024 65535"),
    ),
    Rule(
        "trainers on GPU pools get all their GPUs and tolerate the taint",
        ("core/v1:PodTemplate",),
        lambda i, _: (
            int(containers(i)[0]["resources"]["limits"].get("nvidia.com/gpu", 0)) > 0
            and any(item["key"] == "nvidia.com/gpu" for item in pod(i)["tolerations"])
        ),
        lambda i: containers(i)[0]["resources"]["limits"].pop("nvidia.com/gpu"),
        where=lambda i: i["metadata"]["name"] != "trainer-cpu",
    ),
    Rule(
        "a trainer pod fits its node",
        ("core/v1:PodTemplate",),
        _fits_its_node,
        one_core_more,
        where=lambda i: "nodeSelector" in pod(i),  # on Azure; elsewhere nobody knows the machine
    ),
    Rule(
        "a job's index is the node's rank, every accelerator has a worker, and all meet at the open port",
        ("core/v1:PodTemplate",),
        lambda i, r: (
            {"--node-rank=$(NODE_RANK)", f"--nproc-per-node={_workers(i)}", "--master-addr=$(JOB_NAME)-0.trainer"}
            <= set(containers(i)[0]["command"])
            and f"--master-port={r.environment.kubernetes.ports.rendezvous}" in containers(i)[0]["command"]
        ),
        lambda i: containers(i)[0].update(command=["python", "-m", "proving_ground.training"]),
    ),
    Rule(
        "trainers keep their work on the shared volume",
        ("core/v1:PodTemplate",),
        lambda i, _: (
            _namespace(i) == TRAINING and {"name": "shared", "mountPath": "/shared"} in containers(i)[0]["volumeMounts"]
        ),
        lambda i: containers(i)[0].update(volumeMounts=[]),
    ),
    Rule(
        "passwords come from secrets, never from the environment",
        WORKLOADS,
        lambda i, _: (
            not any(
                ("PASSWORD" in item["name"] or "TOKEN" in item["name"]) and not item["name"].endswith("__FILE")
                for container in containers(i)
                for item in container.get("env", [])
            )
        ),
        lambda i: containers(i)[0].update(env=[{"name": "GF_SECURITY_ADMIN_PASSWORD", "value": "x"}]),
    ),
    Rule(
        "secrets are secrets to Pulumi",
        ("core/v1:Secret",),
        lambda i, _: "planted" not in str(i),
        lambda i: i.update(stringData={"password": "planted-grafana-secret"}),
    ),
]
