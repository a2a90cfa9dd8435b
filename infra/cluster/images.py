"""The images of what runs on the cluster, by exact version; `kubernetes.images` in the configuration replaces some."""

from __future__ import annotations

IMAGES: dict[str, str] = {
    "trainer": "proving-ground/trainer:0.1.0",
    "exporter": "proving-ground/exporter:0.1.0",
    "ray": "docker.io/rayproject/ray:2.40.0-py311",
    "prometheus": "docker.io/prom/prometheus:v2.55.1",
    "alertmanager": "docker.io/prom/alertmanager:v0.27.0",
    "grafana": "docker.io/grafana/grafana:11.4.0",
    "loki": "docker.io/grafana/loki:3.3.2",
    "log_collector": "docker.io/fluent/fluent-bit:3.2.2",
    "kube_state_metrics": "registry.k8s.io/kube-state-metrics/kube-state-metrics:v2.14.0",
    "node_exporter": "docker.io/prom/node-exporter:v1.8.2",
    "gpu_device_plugin": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0",
    "gpu_exporter": "nvcr.io/nvidia/k8s/dcgm-exporter:3.3.9-3.6.1-ubuntu22.04",
}
