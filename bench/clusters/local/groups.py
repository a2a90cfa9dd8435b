"""Control groups of a run: one a node, in the hierarchy of a controller, version 1 or 2, whichever is here.

Called by `shares` (CPU), `memory` and `throttle` (disk); `clean` removes what a killed harness left. They are named
    <parent>/proving-ground-<run id>.<pid of the harness>.<its start time>/n1 …
so that anybody can see whose they are and whether their owner still lives. In version 2 all controllers share them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = "proving-ground-"
MOUNTS = Path("/proc/self/mountinfo")
MEMBERSHIP = Path("/proc/self/cgroup")
CONTROLLERS = {"cpu": "cpu", "memory": "memory", "io": "blkio"}
"""Name in version 2 → in version 1."""


class NoGroups(OSError):  # noqa: N818 - a finding about the machine
    """Control groups with the controller cannot be had here; the message says why."""


@dataclass(frozen=True)
class Hierarchy:
    """Where groups with a controller can be made: `version` 1 or 2, and the folder to make them in."""

    version: int
    parent: Path


def find_hierarchy(
    controller: str,
    attempt: Callable[[Hierarchy, Path], None] = lambda _, __: None,
    mounts: Path = MOUNTS,
    membership: Path = MEMBERSHIP,
) -> Hierarchy:
    """The first place with a controller (`cpu`, `memory`, `io`) in which this process may make groups.

    `attempt` is called with the place and a trial group, and raises OSError where it does not do.

    Raises:
        NoGroups: there is none; says what was tried.
    """
    tried = []
    for place in places(controller, mounts.read_text(), membership.read_text()):
        try:
            _prepare(place, controller, attempt)
        except OSError as error:
            tried.append(f"{place.parent}: {error.strerror or error}")
        else:
            return place
    raise NoGroups("; ".join(tried) or f"no cgroup with the {controller} controller is mounted")


def places(controller: str, mounts: str, membership: str) -> list[Hierarchy]:
    """Own group first, then the root of each hierarchy that may have the controller."""
    old = CONTROLLERS[controller]
    own = {line.split(":")[1]: line.split(":", 2)[2].lstrip("/") for line in membership.splitlines()}
    found = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, (kind, _, options) = Path(before.split()[4]), after.split()[:3]
        if kind == "cgroup" and old in options.split(","):
            path = next((path for names, path in own.items() if old in names.split(",")), "")
            found += [Hierarchy(1, root / path), Hierarchy(1, root)]
        if kind == "cgroup2":
            found += [Hierarchy(2, root / own.get("", "")), Hierarchy(2, root)]
    return list(dict.fromkeys(found))


def _prepare(place: Hierarchy, controller: str, attempt: Callable[[Hierarchy, Path], None]) -> None:
    """Make sure that groups can be made there, by making one; nothing stays but an enabled controller."""
    if place.version == 2:
        if controller not in (place.parent / "cgroup.controllers").read_text().split():
            raise NoGroups(f"the {controller} controller is not delegated to it")
        _enable(place.parent, controller)
    trial = place.parent / f"{PREFIX}probe.{owner()}"
    trial.mkdir()
    try:
        attempt(place, trial)
    finally:
        trial.rmdir()


def _enable(group: Path, controller: str) -> None:
    control = group / "cgroup.subtree_control"
    if controller not in control.read_text().split():
        control.write_text(f"+{controller}")


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
class Groups:
    """The groups of one run in one hierarchy."""

    version: int
    group: Path
    nodes: tuple[str, ...]

    def of(self, node: str) -> Path:
        """A node's group."""
        return self.group / node

    def members_file(self, node: str) -> Path:
        """Writing 0 to it puts the writer into the node's group."""
        return self.of(node) / "cgroup.procs"

    def remove(self) -> None:
        """Remove the groups; the processes in them must have ended."""
        remove_groups(self.group)


def make_groups(place: Hierarchy, controller: str, run_id: str, nodes: Sequence[str]) -> Groups:
    """New groups for the nodes of a run, without limits yet.

    Raises:
        OSError: not permitted.
    """
    group = place.parent / f"{PREFIX}{run_id}.{owner()}"
    group.mkdir(exist_ok=place.version == 2)  # another controller's call may have made it
    if place.version == 2:
        _enable(group, controller)
    for node in nodes:
        (group / node).mkdir(exist_ok=place.version == 2)
    return Groups(place.version, group, tuple(nodes))


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


def run_groups() -> list[tuple[Path, str, str]]:
    """(folder, run id, owner) of every group on this machine that a run has made."""
    found = {}
    for controller in CONTROLLERS:
        with contextlib.suppress(OSError):
            for path in find_hierarchy(controller).parent.glob(f"{PREFIX}*.*.*"):
                run_id, pid, started = path.name.removeprefix(PREFIX).rsplit(".", 2)
                found[path] = (path, run_id, f"{pid}.{started}")
    return list(found.values())


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
