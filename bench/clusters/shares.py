"""The nodes' CPU shares: one control group a node, version 1 or 2, whichever has the CPU controller here.

Called by `bench.clusters.local`; `bench.clusters.clean` removes what a killed harness left. A run's groups are
    <parent>/proving-ground-<run id>.<pid of the harness>.<its start time>/n1 …
so that anybody can see whose they are and whether their owner still lives.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = "proving-ground-"
PERIOD_US = 10_000  # short, so that a node's share comes in slices well below a training step
QUOTA_MIN_US = 1_000  # the kernel takes no less

MOUNTS = Path("/proc/self/mountinfo")
MEMBERSHIP = Path("/proc/self/cgroup")


class NoShares(OSError):  # noqa: N818 - a finding about the machine
    """CPU shares cannot be had here; the message says why."""


@dataclass(frozen=True)
class Hierarchy:
    """Where groups for CPU shares can be made: `version` 1 or 2, and the folder to make them in."""

    version: int
    parent: Path


def find_hierarchy(mounts: Path = MOUNTS, membership: Path = MEMBERSHIP) -> Hierarchy:
    """The first place with a CPU controller in which this process may make groups.

    Raises:
        NoShares: there is none; says what was tried.
    """
    tried = []
    for place in _places(mounts.read_text(), membership.read_text()):
        try:
            _prepare(place)
        except OSError as error:
            tried.append(f"{place.parent}: {error.strerror or error}")
        else:
            return place
    raise NoShares("; ".join(tried) or "no cgroup with a CPU controller is mounted")


def _places(mounts: str, membership: str) -> list[Hierarchy]:
    """Own group first, then the root of each hierarchy that may have the CPU controller."""
    own = {line.split(":")[1]: line.split(":", 2)[2].lstrip("/") for line in membership.splitlines()}
    places = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, (kind, _, options) = Path(before.split()[4]), after.split()[:3]
        if kind == "cgroup" and "cpu" in options.split(","):
            path = next((path for names, path in own.items() if "cpu" in names.split(",")), "")
            places += [Hierarchy(1, root / path), Hierarchy(1, root)]
        if kind == "cgroup2":
            places += [Hierarchy(2, root / own.get("", "")), Hierarchy(2, root)]
    return list(dict.fromkeys(places))


def _prepare(place: Hierarchy) -> None:
    """Make sure that groups with a quota can be made there, by making one; nothing stays but an enabled controller."""
    if place.version == 2:
        controllers = (place.parent / "cgroup.controllers").read_text().split()
        if "cpu" not in controllers:
            raise NoShares("the CPU controller is not delegated to it")
        _enable(place.parent)
    trial = place.parent / f"{PREFIX}probe.{owner()}"
    trial.mkdir()
    try:
        _write_quota(place.version, trial, 1.0)
    finally:
        trial.rmdir()


def _enable(group: Path) -> None:
    control = group / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        control.write_text("+cpu")


def owner(pid: int | None = None) -> str:
    """`<pid>.<start time in clock ticks>`: names a process so that a later one with the same pid is another."""
    pid = pid or os.getpid()
    return f"{pid}.{start_time(pid)}"


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when there is no such process."""
    try:
        # The command's name, in brackets, may hold spaces and brackets itself.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


@dataclass(frozen=True)
class Shares:
    """The groups of one run."""

    version: int
    group: Path
    nodes: tuple[str, ...]

    def members_file(self, node: str) -> Path:
        """Writing 0 to it puts the writer into the node's group."""
        return self.group / node / "cgroup.procs"

    def set(self, cpus: float | None) -> None:
        """Give every node `cpus` cores' worth of time (0.2: 2 of every 10 ms), or all it can get."""
        for node in self.nodes:
            _write_quota(self.version, self.group / node, cpus)

    def throttled_s(self) -> dict[str, float]:
        """Seconds that each node's processes have had to wait for the next slice, since the start."""
        key, unit = ("throttled_time", 1e-9) if self.version == 1 else ("throttled_usec", 1e-6)
        return {node: round(read_counters(self.group / node / "cpu.stat").get(key, 0) * unit, 6) for node in self.nodes}

    def remove(self) -> None:
        """Remove the groups; the processes in them must have ended."""
        remove_groups(self.group)


def make_shares(place: Hierarchy, run_id: str, nodes: Sequence[str]) -> Shares:
    """New groups for the nodes of a run, without limits yet.

    Raises:
        OSError: not permitted.
    """
    group = place.parent / f"{PREFIX}{run_id}.{owner()}"
    group.mkdir()
    if place.version == 2:
        _enable(group)
    for node in nodes:
        (group / node).mkdir()
    return Shares(place.version, group, tuple(nodes))


def _write_quota(version: int, group: Path, cpus: float | None) -> None:
    period = PERIOD_US if cpus is None else max(PERIOD_US, round(QUOTA_MIN_US / cpus))
    quota = None if cpus is None else round(period * cpus)
    if version == 2:
        (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {period}")
        return
    (group / "cpu.cfs_quota_us").write_text("-1")  # a period shorter than the present quota would be refused
    (group / "cpu.cfs_period_us").write_text(str(period))
    if quota is not None:
        (group / "cpu.cfs_quota_us").write_text(str(quota))


def read_counters(file: Path) -> dict[str, int]:
    """The `name value` lines of a kernel file; empty when it is gone."""
    with contextlib.suppress(OSError):
        return {name: int(value) for name, value in (line.split()[:2] for line in file.read_text().splitlines())}
    return {}


def members(group: Path) -> list[int]:
    """The processes in a group and in those below it."""
    pids = []
    for file in [*group.glob("*/cgroup.procs"), group / "cgroup.procs"]:
        with contextlib.suppress(OSError):
            pids += [int(word) for word in file.read_text().split()]
    return pids


def remove_groups(group: Path, patience_s: float = 2.0) -> None:
    """Remove a run's group and those below; waits while the kernel still counts ended processes in them.

    Raises:
        OSError: a process is still there.
    """
    deadline = time.monotonic() + patience_s
    for folder in [*(path for path in group.glob("*") if path.is_dir()), group]:
        while folder.exists():
            try:
                folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
