"""The harness' ends of the pipes to the nodes' agents, and the fork server. Called by `local.cluster`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from proving_ground.bench.agent.orders import Mount, NodeSetup
from proving_ground.bench.child import environment, ours
from proving_ground.bench.clusters.local.skew import PRELOAD_VARIABLE
from proving_ground.bench.protocols import ClusterError, ProcessExit

ANSWER_S = 20.0  # an agent that needs longer than asked for plus this is lost
UP_S = 120.0  # importing torch from a cold disk, and then some


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM until the block is done, so that nothing is left half said or half made."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {int(number): signal.signal(number, lambda *call: came.append(call)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number, frame in came[:1]:
            handler = before[number]
            if callable(handler):
                handler(number, frame)
            elif handler == signal.SIG_DFL:
                signal.raise_signal(number)


class Handle:
    """One node's agent as the harness sees it."""

    def __init__(self, node: str, pipe: Connection[Any, Any]) -> None:
        self.node = node
        self.pid: int | None = None
        self.alive = True
        self._pipe = pipe
        self._running: dict[int, int] = {}  # pid → slot
        self._exits: list[ProcessExit] = []

    def ask(self, verb: str, *arguments: object) -> None:
        """Send a request whose answer is fetched with `answer`."""
        if not self.alive:
            raise ClusterError(f"{self.node}: its agent is gone")
        try:
            self._pipe.send((verb, *arguments))
        except OSError:
            self._lose()

    def answer(self, within_s: float = 0.0) -> Any:  # noqa: ANN401 - whatever the verb returns
        """The answer to the request.

        Raises:
            ClusterError: the agent refused, or is gone, or did not answer `ANSWER_S` after `within_s` seconds.
        """
        deadline = time.monotonic() + within_s + ANSWER_S
        while (message := self._next(deadline - time.monotonic())) is not None:
            if message[0] == "ok":
                return message[1]
            if message[0] == "error":
                raise ClusterError(f"{self.node}: {message[1]}")
        self._lose()
        raise ClusterError(f"{self.node}: its agent is gone")

    def call(self, verb: str, *arguments: object) -> Any:  # noqa: ANN401
        """Ask and wait for the answer."""
        with interrupts_later():
            self.ask(verb, *arguments)
            return self.answer()

    def settle(self, within_s: float) -> None:
        """Wait for the answer; an agent that is lost meanwhile needs no words, `exits` tells of its processes."""
        with contextlib.suppress(ClusterError):
            self.answer(within_s)

    def started(self, slot: int, pid: int) -> None:
        """Remember a process, to account for it should the agent be lost."""
        self._running[pid] = slot

    def exits(self) -> list[ProcessExit]:
        """The processes that ended since the last call."""
        with interrupts_later():
            while self.alive and self._next(0) is not None:
                pass
        exits, self._exits = self._exits, []
        for ended in exits:
            self._running.pop(ended.pid, None)
        return exits

    def close(self) -> None:
        """Let go of the agent; it ends its node."""
        self.alive = False
        self._pipe.close()

    def _next(self, within_s: float) -> tuple[Any, ...] | None:
        """The next message; None when there is none in time or the agent is gone. Exits are put aside as well."""
        try:
            if not self._pipe.poll(max(within_s, 0)):
                return None
            message: tuple[Any, ...] = self._pipe.recv()
        except (EOFError, OSError):
            self._lose()
            return None
        if message[0] == "exit":
            self._exits.append(ProcessExit(self.node, *message[1:]))
        return message

    def _lose(self) -> None:
        """The agent is gone, and the kernel has taken its processes along."""
        known = {ended.pid for ended in self._exits}
        lost = {pid: slot for pid, slot in self._running.items() if pid not in known}
        now = time.monotonic()
        self._exits += [ProcessExit(self.node, slot, pid, -signal.SIGKILL, now) for pid, slot in lost.items()]
        self.close()


def preloaded(library: str | None) -> dict[str, str]:
    """The variable that has a library loaded first, what the harness itself was given after it."""
    before = os.environ.get(PRELOAD_VARIABLE)
    return {PRELOAD_VARIABLE: os.pathsep.join(filter(None, (library, before)))} if library else {}


class Agents:
    """The fork server and all its agents."""

    def __init__(
        self,
        nodes: Sequence[NodeSetup],
        marks: dict[str, str],
        log: Path,
        preload: str | None,
        volume: Mount | None,
        library: str | None = None,
    ) -> None:
        """Start them with the module `preload` imported and `volume` mounted; complaints go into `log`.

        `marks` go into every environment, and `library` is loaded before all others.
        """
        self._log = log
        pipes = {node.name: Pipe() for node in nodes}
        self._control, control = Pipe()
        theirs = [there for _, there in pipes.values()]
        networks = [node.network for node in nodes if node.network is not None]
        with log.open("ab") as complaints:
            self.server = subprocess.Popen(
                ours("bench.clusters.local.forkserver", str(control.fileno()), preload or ""),
                env={"OMP_NUM_THREADS": "1", **environment(), **marks, **preloaded(library)},
                pass_fds=[control.fileno(), *(pipe.fileno() for pipe in theirs), *networks],
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
                start_new_session=True,
            )
        self._control.send(([(node, pipe.fileno()) for node, pipe in zip(nodes, theirs, strict=True)], volume))
        for pipe in (*theirs, control):
            pipe.close()
        self.handles = {name: Handle(name, here) for name, (here, _) in pipes.items()}

    def wait_until_up(self) -> None:
        """Returns when every node is ready to start processes.

        Raises:
            ClusterError: one of them could not be made; says why.
        """
        for handle in self.handles.values():
            try:
                handle.pid = handle.answer(UP_S)
            except ClusterError as error:
                lines = self._log.read_text(errors="replace").splitlines()
                raise ClusterError(": ".join([str(error), *lines[-1:]])) from None

    def close(self) -> None:
        """End all nodes and wait until they are gone."""
        for handle in self.handles.values():
            handle.close()
        self._control.close()
        try:
            self.server.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self.server.kill()  # and the kernel ends the agents
            self.server.wait()
