"""Accelerators: the plugin that offers them to pods, and the exporter of their temperature, memory, power and use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proving_ground.infra.cluster.labels import NODE_AGENTS, POOL_LABEL
from proving_ground.infra.cluster.manifest import App, Manifest, daemon, from_host, sizes

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts


def manifests(facts: Facts) -> list[Manifest]:
    """Both, on the nodes of the GPU pools; nothing where there are none."""
    pools = [pool.name for pool in facts.environment.pools if pool.gpu]
    return [daemon(device_plugin(facts, pools)), daemon(exporter(facts, pools))] if pools else []


def device_plugin(facts: Facts, pools: list[str]) -> App:
    """NVIDIA's device plugin; talks to the kubelet through a socket on the node."""
    volume, mount = from_host("plugins", "/var/lib/kubelet/device-plugins", writable=True)
    return App(
        name="gpu-device-plugin",
        namespace=NODE_AGENTS,
        image=facts.image("gpu_device_plugin"),
        env=({"name": "FAIL_ON_INIT_ERROR", "value": "false"},),
        volumes=(volume,),
        mounts=(mount,),
        user=0,
        security={"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        extra=_on(pools),
    )


def exporter(facts: Facts, pools: list[str]) -> App:
    """NVIDIA's DCGM exporter; the profiling counters need one capability."""
    volume, mount = from_host("pod-resources", "/var/lib/kubelet/pod-resources")
    return App(
        name="gpu-exporter",
        namespace=NODE_AGENTS,
        image=facts.image("gpu_exporter"),
        env=({"name": "DCGM_EXPORTER_KUBERNETES", "value": "true"}, {"name": "DCGM_EXPORTER_LISTEN", "value": ":9400"}),
        ports={"metrics": 9400},
        resources=sizes("100m", "512Mi"),
        volumes=(volume,),
        mounts=(mount,),
        user=0,
        security={"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}},
        extra=_on(pools),
    )


def _on(pools: list[str]) -> Manifest:
    terms = [{"matchExpressions": [{"key": POOL_LABEL, "operator": "In", "values": pools}]}]
    needed = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": needed}, "tolerations": [{"operator": "Exists"}]}
