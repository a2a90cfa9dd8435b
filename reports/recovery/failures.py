"""How often nodes fail, and of what: a published record. Called by `reports.recovery.forecast`.

Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 GPUs, 8 a node (A. Dubey et al., "The Llama 3 Herd of
Models", arXiv:2407.21783, 2024, table 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DAYS, GPUS, GPUS_PER_NODE = 54, 16_384, 8
NODE, WORKER, NETWORK = ("node_kill", "all_nodes"), ("worker_kill", "agent_kill"), ("partition", "partition_oneway")


@dataclass(frozen=True)
class Cause:
    """One cause of interruptions: how many there were, which of our faults it is like, and whether a node is away."""

    count: int
    like: tuple[str, ...]
    repair: bool = True


MIX: Mapping[str, Cause] = {
    "faulty GPU": Cause(148, NODE),
    "GPU HBM3 memory": Cause(72, NODE),
    "software": Cause(54, WORKER, repair=False),
    "network switch or cable": Cause(35, NETWORK),
    "host maintenance": Cause(32, ("preemption", *NODE)),
    "GPU SRAM": Cause(19, NODE),
    "GPU system processor": Cause(17, NODE),
    "NIC": Cause(7, NETWORK),
    "NCCL watchdog": Cause(7, ("hang",), repair=False),
    "silent data corruption": Cause(6, NODE),
    "GPU thermal": Cause(6, NODE),
    "SSD": Cause(3, NODE),
    "power supply": Cause(3, NODE),
    "server chassis": Cause(2, NODE),
    "IO expansion board": Cause(2, NODE),
    "dependency": Cause(2, WORKER, repair=False),
    "CPU": Cause(2, NODE),
    "system memory": Cause(2, NODE),
}

INTERRUPTIONS = sum(cause.count for cause in MIX.values())
REPAIR_SHARE = sum(cause.count for cause in MIX.values() if cause.repair) / INTERRUPTIONS
"""Share of the failures that take a node away until it is repaired."""


def mtbf_node_hours() -> float:
    """Hours of one node between two interruptions, by that record."""
    return DAYS * 24 * (GPUS / GPUS_PER_NODE) / INTERRUPTIONS
