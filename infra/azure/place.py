"""Where and under which names an environment's resources are made. Every component takes a `Place`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from proving_ground.infra import naming

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pulumi


@dataclass(frozen=True)
class Place:
    """One environment's location, resource group, tags and naming."""

    environment: str
    unique: str
    location: str
    group: pulumi.Input[str]
    tags: Mapping[str, str]

    def name(self, kind: str, part: str = "") -> str:
        """The Azure name of a resource of this environment; `part` tells two of one kind apart."""
        return naming.name(kind, self.environment, self.unique, part)
