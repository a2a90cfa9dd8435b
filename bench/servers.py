"""Ports of servers on this machine. Called by `monitoring.servers` and `serving.servers`."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

HERE = "127.0.0.1"
LISTEN = "0A"  # state of a socket in /proc/net/tcp
BELOW = range(20_000, 32_000)
"""Ports that connections do not get, and nobody who asks for any: ours may be bound a minute after it was chosen."""
PROC = Path("/proc")


def free_port(asked: int) -> int:
    """The port if it is free; one that is free for 0.

    Raises:
        OSError: it is in use, or no port.
    """
    if not asked:
        for port in random.SystemRandom().sample(BELOW, len(BELOW)):  # whatever somebody has seeded here
            with contextlib.suppress(OSError):
                return free_port(port)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HERE, asked))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or "ports are 0 to 65535"
            raise OSError(f"port {asked} of {HERE}: {why}; choose another") from None
        return int(probe.getsockname()[1])


def listens(group: int, port: int) -> bool:
    """Whether a process of a group listens at a port; taken for granted where the system does not say."""
    if not (PROC / "net/tcp").exists():
        return True
    wanted = {f"socket:[{inode}]" for inode in listeners(port)}
    return any(not wanted.isdisjoint(open_files(process)) for process in members(group))


def listeners(port: int) -> Iterator[str]:
    """The sockets that listen at a port, by their numbers."""
    for table in (PROC / "net/tcp", PROC / "net/tcp6"):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            words = line.split()
            if words[3] == LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                yield words[9]


def members(group: int) -> Iterator[Path]:
    """The processes of a group."""
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.getpgid(int(process.name)) == group:
                yield process


def open_files(process: Path) -> Iterator[str]:
    """What a process has open, as the system names it."""
    with contextlib.suppress(OSError):  # it has ended
        for file in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield os.readlink(file)  # noqa: PTH115 - a name, no path
