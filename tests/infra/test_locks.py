"""Who holds a lock: what Pulumi 3.260 says of it, and what may be opened."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from proving_ground.infra import locks

NOW = dt.datetime(2026, 11, 24, 12, tzinfo=dt.UTC)
HERE = socket.gethostname()
GONE = 999_999_999  # no machine has a process of this number


def message(*owners: str) -> str:
    """As the CLI words it."""
    first = (
        f"error: the stack is currently locked by {len(owners)} lock(s). Either wait for the other process(es) to end"
    )
    return "\n".join(
        [first, *(f"  file:///s/.pulumi/locks/organization/p/dev/1.json: created by {it}" for it in owners)]
    )


def test_a_lock_is_read() -> None:
    found = locks.read(message(f"me@lab@{HERE} (pid 849) at 2026-11-24T06:57:10Z"))
    assert found == [locks.Lock("me@lab", HERE, 849, dt.datetime(2026, 11, 24, 6, 57, 10, tzinfo=dt.UTC))]
    assert locks.read(message("me@lab (pid 849) at noon"))[0].since is None


@pytest.mark.parametrize(
    ("owners", "says"),
    [
        ([f"me@{HERE} (pid {GONE}) at 2026-11-24T06:57:10Z"], None),
        ([f"me@{HERE} (pid {os.getpid()}) at 2026-11-24T06:57:10Z"], None),  # a process, and not Pulumi
        (["me@elsewhere (pid 1) at 2026-11-24T06:57:10Z"], "me@elsewhere, process 1, on another machine"),
        ([f"me@{HERE} (pid {GONE}) at x", "you@there (pid 2) at x"], "you@there, process 2, on another machine"),
        ([], "nothing says where"),
    ],
)
def test_a_lock_is_held_unless_its_process_is_seen_to_be_gone(owners: list[str], says: str | None) -> None:
    held = locks.held(message(*owners))
    assert held is None if says is None else says in str(held)


@pytest.mark.parametrize(
    ("owners", "abandoned"),
    [
        (["me@elsewhere (pid 1) at 2026-11-24T05:59:59Z"], True),
        (["me@elsewhere (pid 1) at 2026-11-24T06:00:01Z"], False),
        (["me@elsewhere (pid 1) at 2026-11-24T05:00:00Z", "me@elsewhere (pid 2) at 2026-11-24T11:00:00Z"], False),
        (["me@elsewhere (pid 1) at noon"], False),
        ([f"me@{HERE} (pid {GONE}) at 2026-11-24T11:59:59Z"], True),
        ([], False),
    ],
)
def test_a_lock_that_is_too_old_is_abandoned(owners: list[str], abandoned: bool) -> None:  # noqa: FBT001 - a column
    assert locks.abandoned(message(*owners), NOW) == abandoned


def test_a_killed_process_that_nobody_asked_for_holds_no_lock(tmp_path: Path) -> None:
    """In a container without an init it stays in the list for ever."""
    shutil.copy("/bin/sleep", tmp_path / "pulumi")
    with subprocess.Popen([tmp_path / "pulumi", "60"]) as process:
        owner = message(f"me@{HERE} (pid {process.pid}) at 2026-11-24T06:57:10Z")
        assert "which still runs" in str(locks.held(owner))
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert locks.held(owner) is None
