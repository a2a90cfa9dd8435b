"""A process that uses a node's memory or disk as another tenant of it would: it only joins the node's control groups.

Started by `bench.clusters.breakable` as a script of its own, with nothing imported but the standard library, so that it
is small and there at once. It ends when its standard input closes, so it never outlives the harness.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

MEBI = 2**20


def start(members_files: Iterable[Path], *words: str) -> subprocess.Popen[str]:
    """Start it in the groups with these files: `memory MIB`, or `write FILE MIB`."""
    command = [sys.executable, "-I", "-S", __file__, os.pathsep.join(map(str, members_files)), *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def end(intruder: subprocess.Popen[str]) -> str:
    """End it; what it has said."""
    said, _ = intruder.communicate()
    return said.strip()


def hold_memory(mebi: int) -> None:
    """Take so much memory, really in use, until standard input closes."""
    held = [b"\1" * MEBI for _ in range(mebi)]
    print(len(held), flush=True)
    sys.stdin.read()


def write_durably(path: Path, mebi: int) -> None:
    """Write so much, wait until the disk has it, and say how many bytes a second that were."""
    begin = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(mebi * 16):
            file.write(bytes(MEBI // 16))
        os.fsync(file.fileno())
    path.unlink()
    print(round(mebi * MEBI / (time.monotonic() - begin)))


def main() -> None:
    """Join the groups, then do as told."""
    for name in sys.argv[1].split(os.pathsep):
        with open(name, "w") as members:  # noqa: PTH123 - no buffering surprises
            members.write("0")
    if sys.argv[2] == "memory":
        hold_memory(int(sys.argv[3]))
    else:
        write_durably(Path(sys.argv[3]), int(sys.argv[4]))


if __name__ == "__main__":
    main()
