"""What Slurm says of a job and its machines while a run goes on, as `engine_event`s. Called by `remote.slurm`.

Slurm keeps no events that a user may read without accounting, so it is asked again and again; a change lies between two
answers, and that is how well its moment is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LOOK_S = 1.0
CONTROLLER = "Controller"
ANSWERS, SILENT = "answers", "does not answer"

Said = Mapping[str, tuple[str, str]]
"""What it is about, such as `Node/e2` → its state and the reason for it, in Slurm's words."""


@dataclass
class SlurmStory:
    """Asks until it is ended; `ask` raises OSError where Slurm does not answer."""

    ask: Callable[[], Said]
    nodes: Mapping[str, str]  # Node/e2 → n2
    _known: dict[str, tuple[str, str]] = field(default_factory=dict)
    _looked_t: float | None = None  # when Slurm was asked last
    _events: list[dict[str, Any]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        """Ask from now on, in a thread."""
        self._thread = threading.Thread(target=self._watch, name="slurm story", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.is_set():
            self.look()
            self._over.wait(LOOK_S)

    def end(self) -> None:
        """Ask no more; safe twice."""
        self._over.set()
        if self._thread:
            self._thread.join()
            self._thread = None

    def look(self) -> None:
        """Ask once, and note what is not as it was."""
        asked_t = time.monotonic()
        try:
            said = {CONTROLLER: (ANSWERS, ""), **self.ask()}
        except OSError as why:
            said = {**self._known, CONTROLLER: (SILENT, str(why))}
        t, since_t = time.monotonic(), asked_t if self._looked_t is None else self._looked_t
        self._looked_t = asked_t
        for about, (state, reason) in said.items():
            if self._known.get(about) != (state, reason):
                self._events.append({
                    "about": about, "node": self.nodes.get(about, ""), "reason": state, "message": reason, "times": 1,
                    "at_t": round((since_t + t) / 2, 3), "error_s": round((t - since_t) / 2, 3),
                })  # fmt: skip
        self._known = dict(said)

    def more(self) -> Iterator[dict[str, Any]]:
        """Those that are new since the last call, the oldest first."""
        found, self._events = self._events, []
        yield from found
