"""Becoming root of a user namespace, so that an ordinary user may make network namespaces and mounts.

Called by `bench.runner` before anything else: the kernel lets only a single-threaded process in.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from proving_ground.bench.agent import kernel


def enter_user_namespace() -> str:
    """Move this process into a user namespace of its own, if it is not root and the system allows it; what came of it.

    Files it makes still belong to the user. Does nothing for root, off Linux, and where namespaces are locked down:
    then it says so, and the local cluster falls back to plain processes.
    """
    if sys.platform != "linux":
        return "no: not Linux"
    if os.geteuid() == 0:
        return "not needed: root"
    if why := _refusal():
        return f"no: {why}"
    _enter()
    return "yes: root inside a user namespace"


def _enter() -> None:
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER)
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"0 {user} 1")
    (own / "gid_map").write_text(f"0 {group} 1")


def _refusal() -> str:
    """Why it is not to be had; tried by a child, since some systems let one in and then allow nothing."""
    answer, say = os.pipe()
    child = os.fork()
    if child == 0:
        why = "the child died"
        try:
            _enter()
            kernel.unshare(kernel.NEWNET | kernel.NEWNS)
            why = ""
        except OSError as error:
            why = f"user namespaces are locked down here ({error})"
        finally:
            os.write(say, why.encode())
            os._exit(0)
    os.close(say)
    os.waitpid(child, 0)
    with os.fdopen(answer) as text:
        return text.read()
