"""A node's agent: what a kubelet would be. It becomes the node, then starts and ends processes as the harness asks.

Forked by `bench.clusters.forkserver`; `bench.clusters.local` holds the other end of its pipe. When that end closes,
whatever the reason, the agent ends all of the node's processes and itself. Single-threaded: it forks.

Where the node is isolated its processes live in a process namespace of their own, see `bench.clusters.init`.
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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.clusters import kernel, skew
from bench.clusters.init import boot
from bench.clusters.launch import become
from bench.clusters.orders import NodeSetup, Order
from bench.clusters.processes import descendants

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the node's own


def enter(node: NodeSetup) -> None:
    """Turn this process into the node: network, mounts, host name.

    Raises:
        OSError: the kernel refuses; names what.
    """
    if node.network is not None:
        kernel.setns(node.network, kernel.NEWNET)
        os.close(node.network)
    if node.clock:
        skew.use(os.environ[skew.PRELOAD_VARIABLE].split(os.pathsep)[0], node.clock)
    if node.isolated:
        kernel.unshare(kernel.NEWNS | kernel.NEWUTS | kernel.NEWIPC)
        kernel.make_mounts_private()
        socket.sethostname(node.name)
        kernel.mount("tmpfs", str(SHARED_MEMORY), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV)
        for source, target in ((node.hosts, "/etc/hosts"), (node.empty, "/etc/resolv.conf")):
            if source and Path(target).exists():
                kernel.mount(source, target, flags=kernel.MS_BIND)
    if node.disk_mb is not None:
        kernel.mount("tmpfs", node.disk, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"size={node.disk_mb}m")


class Agent:
    """Serves one node until the harness' end of the pipe closes."""

    def __init__(self, node: NodeSetup, harness: Connection) -> None:
        self.node = node
        self.harness = harness
        self.running: dict[int, int] = {}  # pid → slot
        self.first: socket.socket | None = None  # line to the node's first process
        self.wake, self._wake_up = os.pipe()
        for descriptor in (self.wake, self._wake_up):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake_up, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the wake-up descriptor is written to
        if node.isolated:
            self.first = boot(self._own())
        else:
            kernel.adopt_orphans()  # so that they are known, and end with the node

    def serve(self) -> None:
        """Answer requests and tell of exits until the harness is gone."""
        verbs: dict[str, Callable[..., Any]] = {
            "start": self.start, "signal": self.signal, "signal_all": self.signal_all, "stop": self.stop,
            "wall_clock": time.time,
        }  # fmt: skip
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self.wait(None)
                self.reap()
                while self.harness.poll():
                    verb, *arguments = self.harness.recv()
                    self.harness.send(self._answer(verbs[verb], arguments))
        self.halt()

    @staticmethod
    def _answer(verb: Callable[..., Any], arguments: list[Any]) -> tuple[str, Any]:
        try:
            return ("ok", verb(*arguments))
        except OSError as error:
            return ("error", str(error))

    def wait(self, seconds: float | None) -> None:
        """Until a child ended (it may be seen late, never lost), the harness spoke, or the time is over."""
        sources = [self.wake] if seconds is not None else [self.wake, self.harness.fileno()]
        select.select(sources, [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)

    # --- processes

    def start(self, order: Order) -> int:
        """Start a process; its pid, as seen from outside of the node."""
        log = os.open(order.log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        agent = os.getpid()
        pid = os.fork()
        if pid == 0:
            become(self.node, order, agent, log, [fd for fd in self._own() if fd not in (-1, log)])
        with contextlib.suppress(OSError):  # it does so itself; whoever comes first
            os.setpgid(pid, pid)
        os.close(log)
        self.running[pid] = order.slot
        return pid

    def _own(self) -> list[int]:
        """The agent's descriptors, of no business to its children."""
        own = [self.harness.fileno(), self.wake, self._wake_up]
        return [*own, self.first.fileno()] if self.first else own

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
            with contextlib.suppress(OSError):  # no harness left to tell
                self.harness.send(("exit", slot, pid, code, time.monotonic()))

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
