"""The machine sizes that this project knows: what is in each. Read by `infra.checks`, the components, `infra.cost`.

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
