"""The first process of an isolated node: it lives, and it ends all the others. Called by `bench.agent.node`.

The node's processes are in a process namespace with this one as its pid 1. When it ends, for whatever reason, the
kernel ends all the others, children of children included; and as pid 1 it can signal them all at one stroke.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable
from typing import NoReturn

from proving_ground.bench.agent import kernel


def boot(inherited: Iterable[int]) -> socket.socket:
    """Open a process namespace for the children to come; the agent's line to its first process.

    A byte sent asks it to end all others; it answers with one when they are gone. It ends when the line closes.
    `inherited` are descriptors that are none of its business. The caller may start no threads from now on.

    Raises:
        OSError: the kernel refuses.
    """
    agent = os.getpid()
    kernel.unshare(kernel.NEWPID)
    line, below = socket.socketpair()
    if os.fork() == 0:
        line.close()
        _live(agent, below, inherited)
    below.close()
    return line


def _live(agent: int, line: socket.socket, inherited: Iterable[int]) -> NoReturn:
    try:
        kernel.die_with_parent(agent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans that come to it are collected by the kernel
        for descriptor in inherited:
            os.close(descriptor)
        while line.recv(1):
            _end_all_others()
            line.send(b"!")
    finally:
        os._exit(0)


def _end_all_others() -> None:
    try:
        while True:
            os.kill(-1, signal.SIGKILL)
            time.sleep(0.001)  # the agent has to collect those that it started
    except ProcessLookupError:
        return
