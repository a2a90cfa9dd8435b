"""What to measure, as frozen data read from a suite file (TOML); unknown keys are errors. Called by `bench.__main__`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class SpecError(ValueError):
    """The caller's mistake: one line that says what, where, and what is allowed. Exit status 2."""


@dataclass(frozen=True)
class Trial:
    """One measurement: one case at one size, once. `bench/README.md` explains the fields."""

    id: str
    case: str
    workload: str
    scaling: tuple[str, ...]
    nodes: int
    repeat: int
    seed: int
    batch_per_node: int
    global_batch: int
    steps: int
    warmup_steps: int
    link_mbps: float | None = None
    cpus_per_node: float | None = None
    compute: str = "real"
    profile: Mapping[str, str] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    command: Mapping[str, Any] | None = None
    efficiency_min: float | None = None
    label: str = "emulated"
    imitated: tuple[str, ...] = ()
    estimate_s: float = 0.0
