"""A node's processes: starts and signals them, sees them end, and ends all of them with whatever they started.

What a kubelet would be to its containers. `local.agent` is one of a node of this machine, `bench.agent.serve`
one of a machine elsewhere. Single-threaded: it forks.

Where the node is isolated its processes live in a process namespace of their own, see `bench.agent.init`.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from proving_ground.bench.agent import kernel
from proving_ground.bench.agent.init import boot
from proving_ground.bench.agent.launch import become
from proving_ground.bench.agent.orders import NodeSetup, Order
from proving_ground.bench.agent.processes import descendants

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the node's own


class NodeAgent:
    """Runs the processes of one node; who asks for them, and who is told, is a subclass' business."""

    def __init__(self, node: NodeSetup) -> None:
        self.node = node
        self.running: dict[int, int] = {}  # pid → slot
        self.first: socket.socket | None = None  # line to the node's first process
        self.wake, self._wake_up = os.pipe()
        for descriptor in (self.wake, self._wake_up):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake_up, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the wake-up descriptor is written to
        if node.isolated:
            self.first = boot(self.own())
        else:
            kernel.adopt_orphans()  # so that they are known, and end with the node

    def ended(self, slot: int, pid: int, code: int) -> None:
        """A process of the node has ended, just now: its exit status, or minus the signal's number."""
        raise NotImplementedError

    def own(self) -> list[int]:
        """The agent's descriptors, of no business to its children."""
        own = [self.wake, self._wake_up]
        return [*own, self.first.fileno()] if self.first else own

    def wait(self, seconds: float | None, *sources: int) -> None:
        """Until a child ended (it may be seen late, never lost), a source has something, or the time is over."""
        select.select([self.wake, *sources], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)

    def start(self, order: Order) -> int:
        """Start a process; its pid, as seen from outside of the node."""
        log = os.open(order.log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        agent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # else a child could take it for the agent's
        pid = os.fork()
        if pid == 0:
            become(self.node, order, agent, log, [fd for fd in self.own() if fd not in (-1, log)])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        with contextlib.suppress(OSError):  # it does so itself; whoever comes first
            os.setpgid(pid, pid)
        os.close(log)
        self.running[pid] = order.slot
        return pid

    def reap(self) -> None:
        """Collect every child that ended and tell the harness of its processes."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._ended(pid, os.waitstatus_to_exitcode(status))

    def _ended(self, pid: int, code: int) -> None:
        slot = self.running.pop(pid, None)
        if slot is not None:
            self.ended(slot, pid, code)

    def signal(self, slot: int, number: int) -> list[int]:
        """Signal one process; its pid, or nothing when it has ended."""
        return [pid for pid, known in self.running.items() if known == slot and _sent(os.kill, pid, number)]

    def signal_all(self, number: int) -> list[int]:
        """Signal all of the node's processes; SIGKILL ends everything in the node at one stroke, like a power cut."""
        if number == signal.SIGKILL:
            pids = list(self.running)
            self.halt()
            if self.node.isolated:
                _empty(SHARED_MEMORY)
            return pids
        return [pid for pid in self.running if _sent(os.killpg, pid, number)]

    def stop(self, grace_s: float) -> None:
        """SIGTERM, SIGKILL after `grace_s` seconds; returns when nothing of the node's processes is left."""
        for pid in self.running:
            _sent(os.killpg, pid, signal.SIGTERM)
            _sent(os.killpg, pid, signal.SIGCONT)  # a stopped process hears nothing but SIGKILL
        self._await(lambda: not self.running, grace_s)
        self.halt()

    def _await(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done() and (left := deadline - time.monotonic()) > 0:
            self.wait(left)
            self.reap()

    def halt(self) -> None:
        """End everything in the node at once; returns when it is gone."""
        if self.first:
            with contextlib.suppress(OSError):  # it has ended, and so have all
                self.first.send(b"!")
        else:
            self._kill_descendants()
        while self.running:
            self.wait(1.0)
            self.reap()
        if self.first:
            self.first.recv(1)

    def _kill_descendants(self) -> None:
        """End everything that a plain node has started, whoever's child it is by now."""
        for pid in list(self.running):
            _sent(os.killpg, pid, signal.SIGKILL)
        while [pid for pid in descendants(os.getpid()) if _sent(os.kill, pid, signal.SIGKILL)]:
            self.wait(0.01)
            self.reap()


def _empty(folder: Path) -> None:
    """Remove what is in a folder."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _sent(kill: Callable[[int, int], None], pid: int, number: int) -> bool:
    try:
        kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
