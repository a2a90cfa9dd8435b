"""All faults by their keys, as suites and results name them. Called by the nemesis, the schedule and `chaos list`."""

from __future__ import annotations

from proving_ground.chaos.faults import batch, checkpoints, disks, network, pods, processes, resources, withheld
from proving_ground.chaos.faults.fault import Arg, Evidence, Fault, Injection

__all__ = ["FAULTS", "Arg", "Evidence", "Fault", "Injection"]

FAULTS: dict[str, Fault] = {
    fault.key: fault
    for family in (processes, pods, withheld, batch, network, disks, checkpoints, resources)
    for fault in family.FAULTS
}
