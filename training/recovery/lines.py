"""The connections of a process group: to be watched, and cut at the first error. Called by `training.recovery.members`.

When a member dies inside an all-reduce, one survivor sees the error and another waits for the first, which has given
up: for the whole time-out, unless the first cuts its connections. Aborting the group leaves them open while an
operation is under way, so they are found among the process' descriptors and shut.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DESCRIPTORS = Path("/proc/self/fd")
PROBE_S = 0.5  # for a member's kernel to answer


class Lines:
    """Connections to some addresses that were made while `watching`."""

    def __init__(self) -> None:
        self._lines: list[socket.socket] = []

    @contextlib.contextmanager
    def watching(self, addresses: Sequence[str]) -> Iterator[None]:
        """Remember the connections to these addresses that are made inside, instead of those from before."""
        self.cut()
        before = set(sockets())
        try:
            yield
        finally:
            made = [(inode, descriptor) for inode, descriptor in sockets().items() if inode not in before]
            self._lines = [line for _, descriptor in made if (line := connected(descriptor, addresses))]

    def ended(self) -> bool:
        """Whether one of them was closed, reset or shut at the other end; never so where there is no /proc."""
        looking = select.poll()
        for line in self._lines:
            looking.register(line, getattr(select, "POLLRDHUP", 0))  # an error or a reset is told in any case
        return bool(looking.poll(0))

    def cut(self) -> None:
        """Shut them: both ends see an error at once."""
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        self._lines = []


def sockets() -> dict[str, int]:
    """Each socket of this process, by the kernel's name for it, and a descriptor of it."""
    found = {}
    for entry in DESCRIPTORS.iterdir() if DESCRIPTORS.exists() else ():
        with contextlib.suppress(OSError):  # closed meanwhile
            name = str(entry.readlink())
            if name.startswith("socket:"):
                found[name] = int(entry.name)
    return found


def connected(descriptor: int, addresses: Sequence[str]) -> socket.socket | None:
    """A copy of the descriptor as a socket, if it is connected to one of the addresses."""
    with contextlib.suppress(OSError):
        line = socket.socket(fileno=os.dup(descriptor))
        with contextlib.suppress(OSError):
            if line.family in (socket.AF_INET, socket.AF_INET6):
                peer = str(line.getpeername()[0]).removeprefix("::ffff:")
                if peer in addresses:
                    return line
        line.close()
    return None


def answers(host: str, port: int) -> bool:
    """Whether the kernel at the other end answers within `PROBE_S`, for a process that is stopped or has ended too."""
    return knock(host, port) != "silent"


def knocks(places: Sequence[tuple[str, int]]) -> list[str]:
    """What comes of connections to some ports, tried at the same time."""
    with ThreadPoolExecutor(len(places) or 1) as pool:
        return list(pool.map(lambda place: knock(*place), places))


def knock(host: str, port: int) -> str:
    """What comes of a connection within `PROBE_S`: `open`, `refused` (nobody listens there any more) or `silent`."""
    try:
        socket.create_connection((host, port), PROBE_S).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silent"
    return "open"
