"""The nodes' CPU shares: a quota for each node's control group. Called by `local.cluster`."""

from __future__ import annotations

from pathlib import Path

from proving_ground.bench.clusters.local.groups import Groups, Hierarchy, find_hierarchy, read_counters

CONTROLLER = "cpu"
PERIOD_US = 10_000  # short, so that a node's share comes in slices well below a training step
QUOTA_MIN_US = 1_000  # the kernel takes no less


def place() -> Hierarchy:
    """Where groups with a quota can be made.

    Raises:
        NoGroups: nowhere; says what was tried.
    """
    return find_hierarchy(CONTROLLER, lambda place, trial: write_quota(place.version, trial, 1.0))


def set_share(groups: Groups, node: str, cpus: float | None) -> None:
    """Give a node `cpus` cores' worth of time (0.2: 2 of every 10 ms), or all it can get."""
    write_quota(groups.version, groups.of(node), cpus)


def set_shares(groups: Groups, cpus: float | None) -> None:
    """Give every node the same."""
    for node in groups.nodes:
        set_share(groups, node, cpus)


def share(groups: Groups, node: str) -> float | None:
    """The cores' worth of time that the kernel says the node may use; None: all it can get."""
    if groups.version == 2:
        quota, period = (groups.of(node) / "cpu.max").read_text().split()
    else:
        quota, period = ((groups.of(node) / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    return None if quota in ("max", "-1") else int(quota) / int(period)


def throttled_s(groups: Groups) -> dict[str, float]:
    """Seconds that each node's processes have had to wait for the next slice, since the start."""
    key, unit = ("throttled_time", 1e-9) if groups.version == 1 else ("throttled_usec", 1e-6)
    return {node: round(read_counters(groups.of(node) / "cpu.stat").get(key, 0) * unit, 6) for node in groups.nodes}


def write_quota(version: int, group: Path, cpus: float | None) -> None:
    """Have the kernel give a group `cpus` cores' worth of time, or all it can get."""
    period = PERIOD_US if cpus is None else max(PERIOD_US, round(QUOTA_MIN_US / cpus))
    quota = None if cpus is None else round(period * cpus)
    if version == 2:
        (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {period}")
        return
    (group / "cpu.cfs_quota_us").write_text("-1")  # a period shorter than the present quota would be refused
    (group / "cpu.cfs_period_us").write_text(str(period))
    if quota is not None:
        (group / "cpu.cfs_quota_us").write_text(str(quota))
