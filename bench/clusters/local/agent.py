"""The agent of a node on this machine: at the end of a pipe, whose other end is `local.handles`.

Forked by `local.forkserver`. When the harness' end closes, whatever the reason, the agent ends all of the
node's processes and itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from proving_ground.bench.agent.node import NodeAgent
from proving_ground.bench.agent.orders import NodeSetup


class PipeAgent(NodeAgent):
    """Serves one node until the harness is gone."""

    def __init__(self, node: NodeSetup, harness: Connection) -> None:
        self.harness = harness
        super().__init__(node)

    def own(self) -> list[int]:
        """The pipe too is none of a child's business."""
        return [self.harness.fileno(), *super().own()]

    def serve(self) -> None:
        """Answer requests and tell of exits until the harness is gone."""
        verbs: dict[str, Callable[..., Any]] = {
            "start": self.start, "signal": self.signal, "signal_all": self.signal_all, "stop": self.stop,
            "wall_clock": time.time,
        }  # fmt: skip
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self.wait(None, self.harness.fileno())
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

    def ended(self, slot: int, pid: int, code: int) -> None:
        """Tell the harness, if there is one left."""
        with contextlib.suppress(OSError):
            self.harness.send(("exit", slot, pid, code, time.monotonic()))
