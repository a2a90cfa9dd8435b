"""Who runs on a node: read from /proc, from outside. Called by `local.cluster` and, for plain nodes, `agent`.

A process of an isolated node is known by its process namespace, one of a plain node by its descent from the agent.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
COMMAND_MAX = 120  # characters of a command line that are told


@dataclass(frozen=True)
class NodeProcess:
    """A process of a node."""

    pid: int  # as the node sees it
    host_pid: int  # as the harness sees it
    start: int  # when it was started, in clock ticks: tells it from a later process with the same pid
    state: str  # the kernel's letter; T: stopped
    cmd: str


def processes(agent: int, *, isolated: bool) -> list[NodeProcess]:
    """What runs on the node whose agent has this pid, oldest first; ended processes that wait for their parent do not.

    Raises:
        OSError: there is no such agent, or no /proc.
    """
    if isolated:
        namespace = (PROC / str(agent) / "ns" / "pid_for_children").readlink()
        pids = [pid for pid in _all() if _namespace(pid) == namespace]
    else:
        pids = descendants(agent)
    found = [process for pid in pids if (process := _look(pid)) and not (isolated and process.pid == 1)]
    return sorted(found, key=lambda it: (it.start, it.host_pid))


def descendants(pid: int) -> list[int]:
    """The children of a process and theirs, all the way down, ended ones included; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for child in _all():
        with contextlib.suppress(OSError, IndexError, ValueError):
            children.setdefault(int(_stat(child)[1]), []).append(child)
    found = list(children.get(pid, []))
    for each in found:  # it grows while it is walked
        found += children.get(each, [])
    return found


def send(process: NodeProcess, number: int) -> None:
    """Signal exactly this process, even if its pid has become another's.

    Raises:
        ProcessLookupError: it has ended.
    """
    handle = os.pidfd_open(process.host_pid)
    try:
        now = _look(process.host_pid)
        if now is None or now.start != process.start:
            raise ProcessLookupError(process.host_pid)
        signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _all() -> Iterator[int]:
    for folder in PROC.glob("[0-9]*"):
        yield int(folder.name)


def _namespace(pid: int) -> Path | None:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "ns" / "pid").readlink()
    return None


def _stat(pid: int) -> list[str]:
    """State, parent and so on of /proc/PID/stat; the name before them may hold spaces and brackets itself."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _look(pid: int) -> NodeProcess | None:
    folder = PROC / str(pid)
    with contextlib.suppress(OSError, IndexError, ValueError):
        stat = _stat(pid)
        lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        name, inside = lines["Name"].strip(), int(lines.get("NSpid", str(pid)).split()[-1])
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        if stat[0] not in "ZX":
            return NodeProcess(inside, pid, int(stat[19]), stat[0], (command or name)[:COMMAND_MAX])
    return None
