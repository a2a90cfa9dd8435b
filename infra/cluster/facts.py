"""What the manifests need to know of the environment, gathered once. Made by `infra.stack`, `.direct` and `.chart`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proving_ground.infra.cluster.images import IMAGES
from proving_ground.infra.config import ROOT, Environment
from proving_ground.infra.skus import SKUS, Sku

Text = Any
"""A text, or (under Pulumi) an output that becomes one."""


@dataclass(frozen=True)
class Facts:
    """`skus`: pool → machine size, empty where nobody knows it. Texts may be Pulumi outputs, secrets among them."""

    environment: Environment
    skus: Mapping[str, str] = field(default_factory=dict)
    grafana_password: Text = ""
    webhook: Text | None = None
    trainer_client_id: Text | None = None
    file_account: Text | None = None
    file_key: Text | None = None
    rules: Mapping[str, str] = field(default_factory=dict)  # file name → Prometheus rules
    dashboards: Mapping[str, str] = field(default_factory=dict)  # file name → Grafana dashboard

    def image(self, name: str) -> str:
        """The image of a component, as configured."""
        return self.environment.kubernetes.images.get(name, IMAGES[name])

    def sku(self, pool: str) -> Sku | None:
        """What is in a machine of the pool; None where nobody knows."""
        return SKUS[self.skus[pool]] if pool in self.skus else None

    def gpus(self, pool: str) -> int:
        """Accelerators in a machine of the pool."""
        sku = self.sku(pool)
        return sku.gpus if sku else 0

    @property
    def on_azure(self) -> bool:
        """Whether nodes carry the pools' labels and disks can be claimed."""
        return self.environment.azure is not None


def rules() -> dict[str, str]:
    """The project's Prometheus rules."""
    return files(ROOT / "monitoring" / "rules", "*.y*ml")


def dashboards() -> dict[str, str]:
    """The project's Grafana dashboards."""
    return files(ROOT / "monitoring" / "dashboards", "*.json")


def files(folder: Path, pattern: str) -> dict[str, str]:
    """File name → text, tests of rules left out; empty where the folder does not exist."""
    found = sorted(file for file in folder.glob(pattern) if "test" not in file.stem)
    return {file.name: file.read_text() for file in found}
