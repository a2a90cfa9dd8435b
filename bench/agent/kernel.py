"""The few Linux calls that Python 3.11 lacks: unshare, setns, mount, prctl. Called by the parts of the local cluster.

Importable on any system; calling one where there is no Linux raises OSError, as a refused call does.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import sys

FS = 0x00000200
NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


@functools.cache
def _libc() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "this needs Linux")
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Move the calling thread into new namespaces of the kinds in `flags` (NEWPID: its future children).

    Raises:
        OSError: not permitted, not supported, or (NEWUSER) the process has threads.
    """
    _checked(_libc().unshare(flags), "unshare")


def setns(namespace: int, kind: int) -> None:
    """Move the calling thread into the namespace of the kind `kind` that the descriptor `namespace` stands for.

    Raises:
        OSError: not permitted, or not such a namespace.
    """
    _checked(_libc().setns(namespace, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Put `source` at `target`, as the system call of that name does.

    Raises:
        OSError: names the target and why not.
    """
    arguments = (
        source.encode(),
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _checked(_libc().mount(*arguments), f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Take away what is mounted at `target`, at once.

    Raises:
        OSError: nothing is, or it is in use.
    """
    _checked(_libc().umount2(target.encode(), 0), f"unmount {target}")


def make_mounts_private() -> None:
    """Keep what this mount namespace mounts from now on from reaching any other."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that forked it ends; not to be had off Linux.

    `parent` is the pid of that process: if it has ended already, so does this one.
    """
    if sys.platform == "linux":
        _checked(_libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        if os.getppid() not in (parent, 0):  # 0: it is outside of this process namespace
            os._exit(1)


def adopt_orphans() -> None:
    """Have descendants whose parent has ended become children of this process; not to be had off Linux."""
    if sys.platform == "linux":
        _checked(_libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
