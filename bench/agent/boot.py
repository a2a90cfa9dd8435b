"""Brings an agent up on a machine that has nothing but Python, and is the bridge to it from then on.

Its text is the program of `python3 -c`: it gets what it needs on its standard input (a line of JSON, then the archive
with the agent), and says in one line how that went. After that, frames pass in both directions until either end closes.
An agent of the same run and node that lives already is kept where it is this harness' own, which connects again. One
of a harness that is gone (the run was resumed, perhaps by another version) is ended and another begins: it would answer
this one's first request from memory. It stands alone and imports nothing of the project.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

UP_S = 30.0
IN_USE_S = 5.0
"""An agent that heard of its harness a moment ago is another one's still; they ask for its clock every two seconds."""
TASKS = ("SLURM_PROCID", "JOB_COMPLETION_INDEX")
"""Which of its processes this is, from 0: as an engine says it that starts the agent (Slurm, a Job of Kubernetes)."""
ELEMENT = "SLURM_ARRAY_TASK_ID"
"""The number of this job in its array, from 1. Whoever submits a job may be in an array, too: only an array asks it."""
PIECE = 2**20


def connected(path: Path) -> socket.socket | None:
    """A line to the agent that listens there; None where there is none."""
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(str(path))
    except OSError:
        line.close()
        return None
    return line


def of_another(told: dict[str, Any]) -> str:
    """Which agent is there that another harness began, by its version; empty where there is none."""
    work = Path(told["work"])
    if not (work / "socket").exists():
        return ""
    try:
        there = json.loads((work / "harness").read_text())
    except (OSError, ValueError):
        return "unknown"  # of before there was such a file
    return "" if there["harness"] == told["harness"] else str(there["version"])


def end_another(told: dict[str, Any]) -> None:
    """End it; what it had started the next one ends, before all else.

    Raises:
        OSError: its harness lives.
    """
    work = Path(told["work"])
    deadline = time.monotonic() + 2 * IN_USE_S
    with contextlib.suppress(FileNotFoundError):
        while time.time() - (work / "heard").stat().st_mtime < IN_USE_S:
            if time.monotonic() > deadline:
                raise OSError("another harness is using the agent of this run here: end that one first")
            time.sleep(0.1)
    line = connected(work / "socket")
    if line is not None:
        pid, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if pid > 0:  # 0: it is not to be seen from here, and would mean ourselves
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            while line.recv(PIECE):  # until its end has closed it
                pass
        line.close()


def in_words(error: OSError, work: str) -> str:
    """What is wrong, and what to do where the disk is full."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{work}: {error.strerror}: free some there, or name another folder with work="
    return str(error)


def private(folder: Path) -> None:
    """Have a folder that nobody else can enter, and so cannot change what lies below.

    Raises:
        OSError: somebody else made it, or can write to it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(f"{folder} is not a folder of this user's alone: remove it, or name another with work=")


def settle(told: dict[str, Any], archive: bytes) -> tuple[str, ...]:
    """Lay the agent's folder out; the command that is the agent.

    Raises:
        OSError: its folder is somebody else's, or cannot be written.
    """
    work = Path(told["work"])
    private(work.parent.parent)
    try:
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in ("socket", "agent.pyz"):
            with contextlib.suppress(FileNotFoundError):
                (work / left).unlink()
        (work / "agent.pyz").write_bytes(archive)
        (work / "harness").write_text(json.dumps({name: told[name] for name in ("harness", "version")}))
    except OSError:  # the disk is full, say: no agent will remove that
        shutil.rmtree(work, ignore_errors=True)
        with contextlib.suppress(OSError):  # other nodes and runs may have theirs there
            work.parent.rmdir()
            work.parent.parent.rmdir()
        raise
    return (sys.executable, str(work / "agent.pyz"), json.dumps(told))


def marks(told: dict[str, Any]) -> dict[str, str]:
    """Variables by which the processes of a run and node are known (`bench.agent.orders`)."""
    return {"PROVING_GROUND_RUN": told["run"], "PROVING_GROUND_NODE": told["node"]}


def start(told: dict[str, Any], archive: bytes) -> subprocess.Popen[bytes]:
    """Start an agent that stays when this process has ended."""
    command = settle(told, archive)
    with (Path(told["work"]) / "agent.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=told["work"],
            env={**os.environ, **marks(told)},
        )  # fmt: skip


def stay(told: dict[str, Any], archive: bytes) -> None:
    """Become the agent, where an engine keeps this process; it is reached by another one that does not start any.

    Raises:
        OSError: its folder cannot be had.
    """
    command = settle(told, archive)
    os.chdir(told["work"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execve(command[0], command, {**os.environ, **marks(told)})  # noqa: S606 - no shell is what we want


def reach(told: dict[str, Any], archive: bytes) -> tuple[socket.socket, str]:
    """A line to the agent of this run and node, which is started where there is none and `start` is `here`.

    Else an engine starts it, perhaps just now: it is waited for. Behind it the version of the agent that gave way.

    Raises:
        OSError: there is none; says why.
    """
    if sys.version_info < (3, 9):  # noqa: UP036 - it is the node's Python, not the project's
        raise OSError("Python %d.%d: the agent needs 3.9 or newer" % sys.version_info[:2])  # noqa: UP031 - same
    path = Path(told["work"]) / "socket"
    before = of_another(told)
    if before and told["start"] == "here":
        end_another(told)
    line = None if before else connected(path)
    agent = start(told, archive) if line is None and told["start"] == "here" else None
    deadline = time.monotonic() + UP_S
    while line is None and (agent is None or agent.poll() is None) and time.monotonic() < deadline:
        time.sleep(0.01)
        line = None if of_another(told) else connected(path)
    if line is None and (other := of_another(told)):
        raise OSError(
            f"an agent of another harness is there (version {other}, ours is {told['version']}): end its job, or wait "
            "until its lease has run out"
        )
    if line is None:
        log = path.with_name("agent.log")
        words = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        raise OSError("no agent of this run came up" + (f": {words[-1]}" if words else ""))
    return line, before


def bridge(line: socket.socket) -> None:
    """Pass on what comes, until either end closes."""
    while True:
        ready, _, _ = select.select([0, line.fileno()], [], [])
        if line.fileno() in ready:
            more = line.recv(PIECE)
            if not more:
                return
            while more:
                more = more[os.write(1, more) :]
        if 0 in ready:
            more = os.read(0, PIECE)
            if not more:
                return
            line.sendall(more)


def main() -> None:
    """Read what there is to do, do it, be the bridge."""
    told = json.loads(sys.stdin.buffer.readline())
    task = next((os.environ[it] for it in TASKS if it in os.environ), "0")
    told["node"] = told["node"].replace("{task}", str(int(task) + 1))
    told["node"] = told["node"].replace("{element}", os.environ.get(ELEMENT, ""))
    told["work"] = told["work"].replace("{uid}", str(os.getuid())).replace("{node}", told["node"])
    archive = sys.stdin.buffer.read(told["bytes"])
    try:
        if told["start"] == "stay":
            stay(told, archive)
        line, before = reach(told, archive)
        answer: dict[str, Any] = {"ok": os.getpid(), "before": before}
    except OSError as error:
        answer = {"error": in_words(error, told["work"])}
    os.write(1, json.dumps(answer).encode() + b"\n")
    if "ok" in answer:
        # A notice to all processes is the agent's: it has last words, which have to be passed on.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            bridge(line)


if __name__ == "__main__":
    main()
