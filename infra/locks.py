"""Who holds the lock of a stack, and whether it may be opened: read from what the Pulumi CLI says. For `infra.stacks`.

States in files and buckets name the process that holds the lock; Pulumi's service does not, and ends by itself the
lease of one that is gone.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

ZOMBIE = "Z"  # killed, and still listed until its parent asks: containers have parents that never do
ABANDONED_H = 6.0  # no command takes this long: the longest, prod from nothing, is done within one
OWNER = re.compile(r"created by (?P<user>\S+)@(?P<host>\S+) \(pid (?P<pid>\d+)\) at (?P<since>\S+)")


@dataclass(frozen=True)
class Lock:
    """One lock, as the CLI describes it; `since` None where it cannot be read."""

    user: str
    host: str
    pid: int
    since: dt.datetime | None

    def __str__(self) -> str:
        """Who it is, for a message."""
        return f"{self.user}@{self.host}, process {self.pid}"

    @property
    def dead(self) -> bool:
        """Its process ran on this machine and runs no more; of another machine nobody here can say."""
        return self.host == socket.gethostname() and not _runs(self.pid)


def read(message: str) -> list[Lock]:
    """The locks that a message describes."""
    return [Lock(it["user"], it["host"], int(it["pid"]), _time(it["since"])) for it in OWNER.finditer(message)]


def held(message: str) -> str | None:
    """Why the stack may not be unlocked, or None: all who locked it ran on this machine and are gone."""
    found = read(message)
    if not found:
        return "another update is in progress, and nothing says where"
    living = [lock for lock in found if not lock.dead]
    if not living:
        return None
    here = living[0].host == socket.gethostname()
    return f"the stack is currently locked by {living[0]}, {'which still runs' if here else 'on another machine'}"


def abandoned(message: str, now: dt.datetime) -> bool:
    """All of the message's locks are dead, or so old that whoever took them is gone."""
    found, oldest = read(message), dt.timedelta(hours=ABANDONED_H)
    return bool(found) and all(it.dead or (it.since is not None and now - it.since > oldest) for it in found)


def _time(text: str) -> dt.datetime | None:
    try:
        made = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return made if made.tzinfo else made.replace(tzinfo=dt.UTC)


def _runs(pid: int) -> bool:
    """Whether it is there and, where Linux tells names, still a Pulumi and not another process with its number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    try:
        name, _, more = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return True
    return name.startswith("pulumi") and more.split()[0] != ZOMBIE
