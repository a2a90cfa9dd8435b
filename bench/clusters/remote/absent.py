"""Nodes that are not there: what they wait for, by the engine's word, and when that has been long enough.

Called by `remote.cluster`. The engine is asked beside everything else: its answer may take its time, and meanwhile
other nodes' words have to be taken in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from proving_ground.bench.clusters.remote.pool import SaysWhy
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError

SOON_S = 3.0  # a connection that is down for less is no absence
LOOK_S = 2.0  # from an answer to the next question


class Absent:
    """Asks an engine what nodes wait for; each reason is told once, and again when it has changed."""

    def __init__(self, pool: SaysWhy, tell: Callable[[Sequence[str], str], None]) -> None:
        self._pool, self._tell, self.wait_s = pool, tell, pool.wait_s
        self._told: dict[str, str] = {}  # node → why, as told last
        self._found: Mapping[str, str] | None = None  # the answer, until it is taken
        self._asking = False
        self._due_t = 0.0

    def look(self, away: Mapping[str, float]) -> None:
        """Take in an answer, or ask anew; `away` has for how many seconds each node has not been there."""
        self._told = {node: why for node, why in self._told.items() if node in away}
        if (found := self._found) is not None:
            self._found = None
            news = {it: found[it] for it in away if found.get(it, "") not in ("", self._told.get(it))}
            self._told |= news
            for why in dict.fromkeys(news.values()):
                self._tell([it for it in news if news[it] == why], why)
        if any(seconds > SOON_S for seconds in away.values()) and not self._asking and time.monotonic() > self._due_t:
            self._asking = True
            threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        """In a thread of its own."""
        self._found = self._asked()
        self._due_t, self._asking = time.monotonic() + LOOK_S, False

    def _asked(self) -> Mapping[str, str]:
        """What the engine says; what it cannot be asked now is asked again later."""
        try:
            return self._pool.waits()
        except (SpecError, ClusterError):
            return {}

    def why(self, node: str) -> str:
        """What was told last of a node that is not there, or is said when asked now; empty: nothing."""
        return self._told.get(node) or self._asked().get(node, "")

    def overdue(self, away: Mapping[str, float]) -> str:
        """Why a node is not waited for any longer; empty: none has been away for so long."""
        late = [node for node, seconds in away.items() if seconds > self.wait_s]
        if not late:
            return ""
        why = self.why(late[0]) or "the engine does not say why"
        return f"{late[0]} has not come back for {self.wait_s / 60:g} min: {why}; wait_min= allows for more"
