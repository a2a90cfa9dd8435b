"""Network policies: everything is forbidden, then what is needed is allowed; among trainers only the training ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proving_ground.infra.cluster.labels import MONITORING, NAMESPACES, NODE_AGENTS, RAY, TRAINING
from proving_ground.infra.cluster.manifest import Manifest, selector, thing

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts

METRICS_PORTS = (8000, 8080, 9400, 2020)  # the exporter, Ray and kube-state-metrics, GPUs, log collectors
KUBELET_PORT = 10250
HTTPS = 443

Peer = dict[str, Any]
Port = dict[str, Any]


def manifests(facts: Facts) -> list[Manifest]:
    """A refusal of everything and name resolution for each namespace, then the exceptions."""
    basics = [policy for space in NAMESPACES for policy in (_deny(space), _names(space))]
    return [*basics, *_training(facts), *_ray(), *_monitoring(facts), *_node_agents(facts)]


def tcp(*ports: int) -> list[Port]:
    """Single TCP ports."""
    return [{"protocol": "TCP", "port": port} for port in ports]


def space(name: str) -> Peer:
    """All pods of a namespace."""
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def app(name: str) -> Peer:
    """An app's pods in the same namespace."""
    return {"podSelector": {"matchLabels": selector(name)}}


def _policy(name: str, namespace: str, pods: Peer, **rules: Any) -> Manifest:  # noqa: ANN401 - YAML
    kinds = [kind.capitalize() for kind in ("ingress", "egress") if kind in rules]
    chosen = pods.get("podSelector", {})
    spec = {"podSelector": chosen, "policyTypes": kinds, **{key: value for key, value in rules.items() if value}}
    return thing("networking.k8s.io/v1", "NetworkPolicy", name, namespace, spec=spec)


def _deny(namespace: str) -> Manifest:
    return _policy("deny-everything", namespace, {}, ingress=[], egress=[])


def _names(namespace: str) -> Manifest:
    ports = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return _policy("resolve-names", namespace, {}, egress=[{"to": [space("kube-system")], "ports": ports}])


def _scraped(namespace: str) -> Manifest:
    rule = {"from": [space(MONITORING)], "ports": tcp(*METRICS_PORTS)}
    return _policy("be-scraped", namespace, {}, ingress=[rule])


def _training(facts: Facts) -> list[Manifest]:
    ports = facts.environment.kubernetes.ports
    opened: list[Port] = [*tcp(ports.rendezvous), {"protocol": "TCP", "port": ports.first, "endPort": ports.last}]
    trainers = app("trainer")
    between = {"ingress": [{"from": [trainers], "ports": opened}], "egress": [{"to": [trainers], "ports": opened}]}
    made = [_policy("train-together", TRAINING, trainers, **between), _scraped(TRAINING)]
    if facts.environment.azure is not None:
        made.append(_policy("reach-storage", TRAINING, trainers, egress=[_outside(facts)]))
    return made


def _outside(facts: Facts) -> Peer:
    """HTTPS to storage and log-in, not to other pods or nodes."""
    azure = facts.environment.azure
    inside = [azure.network.nodes, azure.network.pods, azure.network.services] if azure else []
    return {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", **({"except": inside} if inside else {})}}], "ports": tcp(HTTPS)}


def _ray() -> list[Manifest]:
    everyone: Peer = {"podSelector": {}}
    clients = {"from": [space(TRAINING)], "ports": tcp(10001, 8265)}
    among = _policy("work-together", RAY, {}, ingress=[{"from": [everyone]}], egress=[{"to": [everyone]}])
    submit = _policy(
        "submit-to-ray", TRAINING, app("trainer"), egress=[{"to": [space(RAY)], "ports": tcp(10001, 8265)}]
    )
    return [among, _policy("accept-clients", RAY, app("ray-head"), ingress=[clients]), submit, _scraped(RAY)]


def _monitoring(facts: Facts) -> list[Manifest]:
    everyone: Peer = {"podSelector": {}}
    inside = _policy("work-together", MONITORING, {}, ingress=[{"from": [everyone]}], egress=[{"to": [everyone]}])
    spaces = [space(name) for name in NAMESPACES]
    nodes = {"ports": tcp(facts.environment.kubernetes.node_exporter_port, KUBELET_PORT)}  # at addresses of machines
    scrape = [{"to": spaces, "ports": tcp(*METRICS_PORTS)}, nodes, _api(facts)]
    logs = {"from": [space(NODE_AGENTS)], "ports": tcp(3100)}
    made = [
        inside,
        _policy("scrape", MONITORING, app("prometheus"), egress=scrape),
        _policy("watch", MONITORING, app("kube-state-metrics"), egress=[_api(facts)]),
        _policy("take-logs", MONITORING, app("loki"), ingress=[logs]),
    ]
    if facts.webhook is not None:
        made.append(_policy("notify", MONITORING, app("alertmanager"), egress=[_outside(facts)]))
    return made


def _api(facts: Facts) -> Peer:
    """The API server; its address is known only at run time, its port is."""
    return {"ports": tcp(*sorted({HTTPS, facts.environment.kubernetes.api_port}))}


def _node_agents(facts: Facts) -> list[Manifest]:
    send = [{"to": [space(MONITORING)], "ports": tcp(3100)}, _api(facts)]
    return [_scraped(NODE_AGENTS), _policy("send-logs", NODE_AGENTS, app("log-collector"), egress=send)]
