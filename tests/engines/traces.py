"""What a test engine has on this machine, for tests that nothing of it is left. Called by the tests of this folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
"""For what the kernel does by itself; only a defect makes a test wait so long."""


def until(true: Callable[[], object]) -> bool:
    """Whether something becomes true in time."""
    end = time.monotonic() + WAIT_S
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(true())


def namespace(pid: int) -> str:
    """The process namespace that a process is in; empty when it has ended."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""


def processes(spaces: set[str]) -> list[int]:
    """All processes in some process namespaces."""
    found = (int(it.name) for it in Path("/proc").iterdir() if it.name.isdecimal())
    return [pid for pid in found if namespace(pid) in spaces]


def links() -> set[str]:
    """The harness's network interfaces."""
    return {it.name for it in Path("/sys/class/net").iterdir()}


def killed(script: str) -> list[str]:
    """Run a Python script, kill it when it has written a line, and return the words of that."""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
    return line.split()


def named(word: str) -> list[int]:
    """All processes that have a word in their command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word in file.read_text(errors="replace"):
                found.append(int(file.parent.name))
    return found
