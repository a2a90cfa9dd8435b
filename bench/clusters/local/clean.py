"""Finding and removing what runs on this machine left behind. Called by `bench clean` and at every teardown.

Namespaces, links and mounts need no cleaning: the kernel removes them with the last process. What can outlive a harness
that was killed: processes (few: see README) and the control groups of CPU groups. A run whose harness lives is let be.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from proving_ground.bench.agent.orders import HARNESS_VARIABLE, RUN_VARIABLE
from proving_ground.bench.clusters.local import groups

PROC = Path("/proc")
PATIENCE_S = 5.0


@dataclass(frozen=True)
class Leftover:
    """One thing that a run left: `kind` is `process` or `cgroup`, `what` a pid or a folder."""

    run_id: str
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind} {self.what} of run {self.run_id}"


def leftovers(run_id: str | None = None) -> list[Leftover]:
    """What runs whose harness is gone have left here; of one run only, if named."""
    processes = [Leftover(run, "process", str(pid)) for pid, run, owner in marked_processes() if not lives(owner)]
    folders = [Leftover(run, "cgroup", str(path)) for path, run, owner in groups.run_groups() if not lives(owner)]
    return [it for it in processes + folders if run_id in (None, it.run_id)]


def clean(run_id: str | None = None) -> list[str]:
    """Remove leftovers; one line for each, those that could not be removed included."""
    found = leftovers(run_id)
    pids = [int(it.what) for it in found if it.kind == "process"]
    pids += [pid for it in found if it.kind == "cgroup" for pid in groups.members(Path(it.what))]
    survivors = _kill(pids)
    lines = [f"removed {it}" for it in found if it.kind == "process" and int(it.what) not in survivors]
    lines += [f"could not end process {pid}: not permitted" for pid in survivors]
    for it in (it for it in found if it.kind == "cgroup"):
        try:
            groups.remove_groups(Path(it.what))
            lines.append(f"removed {it}")
        except OSError as error:
            lines.append(f"could not remove {it}: {error.strerror}")
    return lines


def end_processes(run_id: str) -> None:
    """End what is still there of a run at its teardown, by its mark; normally there is nothing."""
    _kill([pid for pid, run, _ in marked_processes() if run == run_id and pid != os.getpid()])


def lives(owner: str) -> bool:
    """Whether the process `<pid>.<start time>` is still the same one."""
    pid, _, started = owner.partition(".")
    return pid.isdecimal() and started.isdecimal() and groups.start_time(int(pid)) == int(started) != 0


def marked_processes() -> Iterator[tuple[int, str, str]]:
    """(pid, run id, owner) of every process on this machine that carries a run's mark in its environment."""
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "environ").read_bytes().split(b"\0")
            marks = dict(
                word.decode(errors="replace").split("=", 1) for word in words if word.startswith(b"PROVING_GROUND_")
            )
            if RUN_VARIABLE in marks and HARNESS_VARIABLE in marks:
                yield int(folder.name), marks[RUN_VARIABLE], marks[HARNESS_VARIABLE]


def _kill(pids: list[int]) -> list[int]:
    """SIGKILL them; those that are still there after a while."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    _until(lambda: not any(exists(pid) for pid in pids), PATIENCE_S)
    return [pid for pid in pids if exists(pid)]


def exists(pid: int) -> bool:
    """Whether a process still runs; a zombie has ended, its parent just has not looked."""
    with contextlib.suppress(OSError, IndexError):
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)
