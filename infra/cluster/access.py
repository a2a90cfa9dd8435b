"""Namespaces with their pod security standards, quotas and limits; accounts and what each may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proving_ground.infra.cluster.labels import (
    BENCH_ACCOUNT,
    MONITORING,
    NAMESPACES,
    NODE_AGENTS,
    RAY,
    TRAINER_ACCOUNT,
    TRAINING,
)
from proving_ground.infra.cluster.manifest import Manifest, count, thing

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts

PRIORITY = "pg-training"
PODS = {TRAINING: 1200, RAY: 200, MONITORING: 30, NODE_AGENTS: 5000}

Rule = dict[str, list[str]]

WATCHED_BY_PROMETHEUS: list[Rule] = [
    {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
]
WATCHED_BY_STATE_METRICS: list[Rule] = [
    {"apiGroups": [group], "resources": kinds, "verbs": ["list", "watch"]}
    for group, kinds in {
        "": [
            "pods",
            "nodes",
            "namespaces",
            "services",
            "persistentvolumeclaims",
            "persistentvolumes",
            "resourcequotas",
        ],
        "apps": ["daemonsets", "deployments", "statefulsets", "replicasets"],
        "batch": ["jobs"],
    }.items()
]
NEEDED_BY_LOGS: list[Rule] = [
    {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["get", "list", "watch"]}
]
NEEDED_BY_BENCH: list[Rule] = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "delete", "get", "list", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete", "list"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["create", "delete"]},
    {"apiGroups": [""], "resources": ["podtemplates", "events"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["create", "get"]},
]
"""What a run does (`bench/clusters/remote/kubernetes.py`): a Job and what it owns, lines to its pods, faults on them.

To drain a machine takes `patch` and `get` on nodes besides, which is a right across the cluster.
"""


def manifests(facts: Facts) -> list[Manifest]:
    """All of it, namespaces first."""
    spaces = [namespace(name) for name in NAMESPACES]
    limits = [thing for name in NAMESPACES for thing in (quota(name, facts), limit(name))]
    return [*spaces, *limits, priority(), *accounts(facts), *roles()]


def namespace(name: str) -> Manifest:
    """A namespace whose pods must be restricted; only the agents of the nodes may see the node they watch."""
    level = "privileged" if name == NODE_AGENTS else "restricted"
    made = thing("v1", "Namespace", name)
    made["metadata"]["labels"] |= {
        f"pod-security.kubernetes.io/{mode}{suffix}": value
        for mode in ("enforce", "audit", "warn")
        for suffix, value in (("", level), ("-version", "latest"))
    }
    return made


def quota(name: str, facts: Facts) -> Manifest:
    """No more pods and accelerators than the pools can hold, nothing reachable from outside."""
    hard = {"pods": count(PODS[name]), "services.loadbalancers": "0", "services.nodeports": "0"}
    if facts.environment.has_gpus:
        pools = facts.environment.pools if name in (TRAINING, RAY) else ()
        hard["requests.nvidia.com/gpu"] = count(sum(pool.max_nodes * facts.gpus(pool.name) for pool in pools))
    return thing("v1", "ResourceQuota", "quota", name, spec={"hard": hard})


def limit(name: str) -> Manifest:
    """What a container gets that does not say what it needs."""
    usual = {"type": "Container", "default": {"memory": "512Mi"}, "defaultRequest": {"cpu": "100m", "memory": "256Mi"}}
    return thing("v1", "LimitRange", "limits", name, spec={"limits": [usual]})


def priority() -> Manifest:
    """Trainers queue: the more urgent ones start first, none throws out another."""
    text = "Training jobs; they wait for machines and do not preempt each other."
    fields = {"value": 1000, "preemptionPolicy": "Never", "description": text}
    return thing("scheduling.k8s.io/v1", "PriorityClass", PRIORITY, None, **fields)


def accounts(facts: Facts) -> list[Manifest]:
    """One account for each kind of workload; the API's token is mounted only where a pod asks for it."""
    wanted = [
        (TRAINING, TRAINER_ACCOUNT),
        (TRAINING, BENCH_ACCOUNT),
        (MONITORING, "prometheus"),
        (MONITORING, "kube-state-metrics"),
        (NODE_AGENTS, "log-collector"),
    ]
    made = [thing("v1", "ServiceAccount", name, space, automountServiceAccountToken=False) for space, name in wanted]
    if facts.trainer_client_id is not None:
        made[0]["metadata"]["annotations"] = {"azure.workload.identity/client-id": facts.trainer_client_id}
    return made


def roles() -> list[Manifest]:
    """Read-only rights across the cluster for what watches it; the bench's rights end at the training namespace."""
    return [
        *_cluster_role("prometheus", MONITORING, WATCHED_BY_PROMETHEUS),
        *_cluster_role("kube-state-metrics", MONITORING, WATCHED_BY_STATE_METRICS),
        *_cluster_role("log-collector", NODE_AGENTS, NEEDED_BY_LOGS),
        thing("rbac.authorization.k8s.io/v1", "Role", BENCH_ACCOUNT, TRAINING, rules=NEEDED_BY_BENCH),
        _binding("RoleBinding", BENCH_ACCOUNT, BENCH_ACCOUNT, TRAINING),
    ]


def _cluster_role(account: str, namespace: str, rules: list[Rule]) -> list[Manifest]:
    name = f"pg-{account}"
    role = thing("rbac.authorization.k8s.io/v1", "ClusterRole", name, None, rules=rules)
    return [role, _binding("ClusterRoleBinding", name, account, namespace)]


def _binding(kind: str, role: str, account: str, namespace: str) -> Manifest:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    target = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind.removesuffix("Binding"), "name": role}
    place = namespace if kind == "RoleBinding" else None
    return thing("rbac.authorization.k8s.io/v1", kind, role, place, roleRef=target, subjects=[subject])
