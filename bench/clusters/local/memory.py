"""The nodes' memory: a limit for each node's group, past which the kernel kills. Called by `local.cluster`."""

from __future__ import annotations

from pathlib import Path

from proving_ground.bench.clusters.local.groups import Groups, Hierarchy, find_hierarchy, read_counters

CONTROLLER = "memory"
FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
         2: ("memory.max", "memory.current", "memory.events")}  # fmt: skip
NO_LIMIT = {1: "-1", 2: "max"}
UNLIMITED_BYTES = 2**60  # version 1 tells "no limit" as some number beyond this


def place() -> Hierarchy:
    """Where groups with a limit can be made.

    Raises:
        NoGroups: nowhere; says what was tried.
    """
    return find_hierarchy(CONTROLLER, lambda place, trial: write_limit(place.version, trial, 2**30))


def write_limit(version: int, group: Path, limit_bytes: int | None) -> None:
    """Limit a group's memory; nothing of it may go to swap instead.

    Raises:
        OSError: version 1 takes no limit below what is in use.
    """
    swap = group / ("memory.swappiness" if version == 1 else "memory.swap.max")
    if swap.exists():
        swap.write_text("0")
    (group / FILES[version][0]).write_text(NO_LIMIT[version] if limit_bytes is None else str(limit_bytes))


def counters(groups: Groups, node: str) -> dict[str, int | None]:
    """`usage_bytes`, `limit_bytes` (None: no limit) and `oom_kills` of a node, as the kernel tells them."""
    limit, usage, events = (groups.of(node) / name for name in FILES[groups.version])
    word = limit.read_text().strip()
    return {
        "usage_bytes": int(usage.read_text()),
        "limit_bytes": None if word == "max" or int(word) > UNLIMITED_BYTES else int(word),
        "oom_kills": read_counters(events).get("oom_kill", 0),
    }


def put_first(pid: int) -> None:
    """Have the kernel kill this process before any other when memory runs out; anybody may do that to their own."""
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
