"""A slow disk: a limit of bytes a second for the nodes' control groups. Called by `local.cluster`.

Version 1 of control groups counts what a process itself flushes (fsync), not what the kernel writes later on its
behalf. Checkpoints are flushed, so they are held back.
"""

from __future__ import annotations

from pathlib import Path

from proving_ground.bench.clusters.local.groups import Groups, Hierarchy, find_hierarchy

CONTROLLER = "io"
OLD_FILES = ("blkio.throttle.write_bps_device", "blkio.throttle.read_bps_device")


def place() -> Hierarchy:
    """Where groups can be made that a limit applies to.

    Raises:
        NoGroups: nowhere; says what was tried.
    """
    return find_hierarchy(CONTROLLER)


def set_rate(groups: Groups, disk: str, bytes_per_s: int | None) -> None:
    """Limit what each node reads and writes a second of the disk `major:minor`; None: no limit."""
    for node in groups.nodes:
        write_rate(groups.version, groups.of(node), disk, bytes_per_s)


def write_rate(version: int, group: Path, disk: str, bytes_per_s: int | None) -> None:
    """The same for one group."""
    if version == 2:
        rate = bytes_per_s or "max"
        (group / "io.max").write_text(f"{disk} rbps={rate} wbps={rate}")
        return
    for name in OLD_FILES:
        (group / name).write_text(f"{disk} {bytes_per_s or 0}")


def rate(groups: Groups, disk: str) -> int | None:
    """The bytes a second that the kernel says each node may write to the disk; None: no limit."""
    found = set()
    for node in groups.nodes:
        file = groups.of(node) / ("io.max" if groups.version == 2 else OLD_FILES[0])
        lines = [line.split() for line in file.read_text().splitlines() if line.startswith(f"{disk} ")]
        words = [word.removeprefix("wbps=") for line in lines for word in line[1:] if not word.startswith("r")]
        found.add(next((int(word) for word in words if word.isdecimal()), None))
    return found.pop() if len(found) == 1 else None
