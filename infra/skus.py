"""The machine sizes that this project knows: what is in each, and what AKS leaves of it to pods.

Read by `infra.checks`, the components, `infra.cost`.

Figures are the vendor's published sizes ("GPU accelerated" and "general purpose" pages of Azure's VM size reference).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sku:
    """One machine size: `gpu` is the accelerator's name or None, `memory_gib` the machine's own memory."""

    cores: int
    memory_gib: int
    gpus: int = 0
    gpu: str | None = None
    infiniband: bool = False


SKUS: dict[str, Sku] = {
    "Standard_D2s_v5": Sku(2, 8),
    "Standard_D4s_v5": Sku(4, 16),
    "Standard_D8s_v5": Sku(8, 32),
    "Standard_D16s_v5": Sku(16, 64),
    "Standard_NC4as_T4_v3": Sku(4, 28, 1, "t4"),
    "Standard_NC16as_T4_v3": Sku(16, 110, 1, "t4"),
    "Standard_NC64as_T4_v3": Sku(64, 440, 4, "t4"),
    "Standard_NC6s_v3": Sku(6, 112, 1, "v100"),
    "Standard_NC24rs_v3": Sku(24, 448, 4, "v100", infiniband=True),
    "Standard_NC24ads_A100_v4": Sku(24, 220, 1, "a100"),
    "Standard_NC48ads_A100_v4": Sku(48, 440, 2, "a100"),
    "Standard_NC96ads_A100_v4": Sku(96, 880, 4, "a100"),
    "Standard_ND96asr_v4": Sku(96, 900, 8, "a100", infiniband=True),
    "Standard_ND96amsr_A100_v4": Sku(96, 1900, 8, "a100", infiniband=True),
    "Standard_NC40ads_H100_v5": Sku(40, 320, 1, "h100"),
    "Standard_NC80adis_H100_v5": Sku(80, 640, 2, "h100"),
    "Standard_ND96isr_H100_v5": Sku(96, 1900, 8, "h100", infiniband=True),
}

GPUS: tuple[str, ...] = tuple(dict.fromkeys(sku.gpu for sku in SKUS.values() if sku.gpu))


def with_gpu(gpu: str) -> list[str]:
    """The sizes that carry this accelerator, in the catalogue's order."""
    return [name for name, sku in SKUS.items() if sku.gpu == gpu]


MAX_PODS = 30
"""Pods a training node takes. AKS reserves memory by it, and its default for an overlay network is 250."""

FIRST_MILLICORES = {1: 60, 2: 100}
MIB = 2**20


@dataclass(frozen=True)
class Room:
    """Cores in thousandths and memory in MiB: of a node, or asked of one."""

    millicores: int
    memory_mib: int

    def __sub__(self, other: Room) -> Room:
        """What is left."""
        return Room(self.millicores - other.millicores, self.memory_mib - other.memory_mib)


AKS_DAEMONS = Room(500, 700)
"""Requests of AKS's own pods on every node, rounded up: cilium, azure-cns, ip-masq, cloud-node-manager, CSI drivers.

Summed from nodes that users described (github.com/Azure/AKS issues 3525, 5244 and 5251); AKS publishes no figure.
"""

OWN_DAEMONS = Room(250, 896)
"""Requests of this project's daemons on a GPU node: node exporter, log collector, device plugin, GPU exporter."""


def allocatable(sku: Sku) -> Room:
    """What AKS (1.29 and later) leaves of a machine to pods.

    Source: "Node resource reservations in AKS" (learn.microsoft.com/azure/aks/node-resource-reservations). CPU: its
    table says 60, 100, 140, 180, 260, 420, 740 m for 1 to 64 cores: 100 m + 10 m a core from 4 cores on. Memory: the
    lesser of 20 MB a pod + 50 MB and a quarter of the machine, then 100 MiB before eviction. The kubelet sees less
    memory than the size has: 4 % are assumed (a D4s_v5 of 16 GiB shows 15.6).
    """
    shown = sku.memory_gib * 1024 * 96 // 100
    reserved = min((20 * MAX_PODS + 50) * 10**6 // MIB + 1, shown // 4)
    millicores = FIRST_MILLICORES.get(sku.cores, 100 + 10 * sku.cores)
    return Room(1000 * sku.cores - millicores, shown - reserved - 100)


def for_one_pod(sku: Sku) -> Room:
    """What a pod that wants the whole machine may request: whole cores and whole GiB beside all daemons."""
    free = allocatable(sku) - AKS_DAEMONS - OWN_DAEMONS
    return Room(free.millicores // 1000 * 1000, free.memory_mib // 1024 * 1024)
