"""Which alert must come for which fault, and which others may: what the proof by faults is judged by.

`must` are the alerts that a person on duty needs; `may` are consequences that are right to be told of as well. Any
other alert during a fault counts against the rules' precision. Written into the run's record by `monitoring.beside`, so
that the report (which knows nothing of this folder) judges by what was expected when the run was made.
"""

from __future__ import annotations

from dataclasses import dataclass

STOPPED = ("TrainingStalled", "RecoverySlow", "WorkersRestarted", "SlowProgress", "ReplicaMissing")
"""What any interruption of training may bring."""
CUT_OFF = (*STOPPED, "CoordinatorUnreachable", "NodeFailed", "JobGaveUp", "CommunicationHigh")
SLOW = ("SlowProgress", "CommunicationHigh", "Straggler")
SLOW_NET = (*SLOW, "CheckpointSlow")  # ranks send their random states before a save


@dataclass(frozen=True)
class Expected:
    """Of one kind of fault."""

    must: tuple[str, ...]
    may: tuple[str, ...] = ()


EXPECTED: dict[str, Expected] = {
    "worker_kill": Expected(("WorkersRestarted",), STOPPED),
    "agent_kill": Expected(("WorkersRestarted",), (*STOPPED, "NodeFailed")),
    "node_kill": Expected(("NodeFailed",), (*STOPPED, "NodeLost")),
    "all_nodes": Expected(("NodeFailed", "TrainingStalled"), (*STOPPED, "NodeLost", "JobGaveUp")),
    "coordinator_kill": Expected(("CoordinatorUnreachable",), STOPPED),
    "preemption": Expected(("Evicted",), (*STOPPED, "NodeFailed", "NodeLost")),
    "hang": Expected(("WorkersRestarted",), STOPPED),
    "slow_node": Expected(("Straggler",), SLOW),
    "partition": Expected(("CoordinatorUnreachable",), CUT_OFF),
    "partition_oneway": Expected(("CoordinatorUnreachable",), CUT_OFF),
    "partition_pair": Expected(("RecoverySlow",), CUT_OFF),
    "link_rate": Expected(("CommunicationHigh",), SLOW_NET),
    "loss": Expected(("CommunicationHigh",), (*SLOW_NET, *STOPPED)),
    "delay": Expected(("CommunicationHigh",), (*SLOW_NET, *STOPPED)),
    "disk_full": Expected(("CheckpointFailed", "DiskFull"), ("DiskFilling", "CheckpointTooOld")),
    "disk_slow": Expected(("CheckpointSlow",), ("SlowProgress", "CheckpointTooOld", "CheckpointFailed")),
    "disk_readonly": Expected(("CheckpointFailed",), ("CheckpointTooOld",)),
    "checkpoint_truncated": Expected(("CheckpointDamaged",), STOPPED),
    "checkpoint_bitflip": Expected(("CheckpointDamaged",), STOPPED),
    "checkpoint_missing": Expected(("CheckpointDamaged",), STOPPED),
    "checkpoint_pointer": Expected(("CheckpointDamaged",), STOPPED),
    "memory_limit": Expected(("OutOfMemory",), STOPPED),
    "gpu_memory": Expected(("GpuMemoryFull",), ("TrainerOutOfMemory", *STOPPED)),
    "clock_skew": Expected(("ClockSkew",)),
}
"""Kind of fault (`chaos/README.md`) → alerts."""


def table() -> str:
    """The same as a Markdown table, for the README."""
    rows = []
    for kind, it in EXPECTED.items():
        may = dict.fromkeys(name for name in it.may if name not in it.must)
        rows.append(f"| `{kind}` | {', '.join(it.must)} | {', '.join(may) or '–'} |")
    return "\n".join(["| fault | must come | may come too |", "|---|---|---|", *rows])
