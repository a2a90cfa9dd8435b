"""Accelerators: the plugin that offers them to pods, and the exporter of their temperature, memory, power and use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proving_ground.infra.cluster.labels import NODE_AGENTS, POOL_LABEL
from proving_ground.infra.cluster.manifest import App, Manifest, config_map, daemon, from_config, from_host, sizes

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts


COUNTERS = {
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", "share of the time in which a kernel ran, in percent"),
    "DCGM_FI_DEV_FB_USED": ("gauge", "memory in use, in MiB"),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "memory that is free, in MiB"),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "of the chip, in degrees Celsius"),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "drawn, in watts"),
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "of the processors, in MHz"),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", "code of the newest critical error; 0: none"),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("counter", "memory errors that were corrected"),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("counter", "memory errors that were not corrected"),
}
"""Field of DCGM → kind, meaning: what `monitoring/rules` ask for. The image's own list leaves out memory errors."""
LIST = "counters.csv"


def manifests(facts: Facts) -> list[Manifest]:
    """Both, on the nodes of the GPU pools; nothing where there are none."""
    pools = [pool.name for pool in facts.environment.pools if pool.gpu]
    if not pools:
        return []
    counters = config_map("gpu-exporter", NODE_AGENTS, {LIST: counter_list()})
    return [daemon(device_plugin(facts, pools)), counters, daemon(exporter(facts, pools))]


def counter_list() -> str:
    """What the exporter collects, in its format."""
    return "".join(f"{name}, {kind}, {meaning.replace(',', ';')}.\n" for name, (kind, meaning) in COUNTERS.items())


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
    settings = {"KUBERNETES": "true", "LISTEN": ":9400", "COLLECTORS": f"/etc/gpu-exporter/{LIST}"}
    listed, shown = from_config("gpu-exporter", "/etc/gpu-exporter")
    return App(
        name="gpu-exporter",
        namespace=NODE_AGENTS,
        image=facts.image("gpu_exporter"),
        env=tuple({"name": f"DCGM_EXPORTER_{name}", "value": value} for name, value in settings.items()),
        ports={"metrics": 9400},
        resources=sizes("100m", "512Mi"),
        volumes=(volume, listed),
        mounts=(mount, shown),
        user=0,
        security={"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}},
        extra=_on(pools),
    )


def _on(pools: list[str]) -> Manifest:
    terms = [{"matchExpressions": [{"key": POOL_LABEL, "operator": "In", "values": pools}]}]
    needed = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": needed}, "tolerations": [{"operator": "Exists"}]}
