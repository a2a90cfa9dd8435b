"""Places in a step where a rank can be made to stand still for a moment, so that a fault hits exactly there.

Called by `training.loop` and by the checkpoint writer; `chaos.nemesis` is at the other end. Nothing happens unless the
environment names a control folder with a `hold.json` in it: `{"id", "phase", "ranks"}`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proving_ground.training.events import EventWriter, NoEvents

CONTROL_VARIABLE = "PROVING_GROUND_CONTROL"
PHASES = ("forward", "allreduce", "before_checkpoint", "checkpoint_write", "before_rename")
PATIENCE_S = 2.0
LOOK_S = 0.001


class Phases:
    """Stands still where it is asked to; each hold once."""

    def __init__(self, rank: int, events: EventWriter | NoEvents) -> None:
        folder = os.environ.get(CONTROL_VARIABLE)
        self._hold = Path(folder) / "hold.json" if folder else None
        self.rank, self._events = rank, events
        self._done: set[str] = set()

    def reached(self, phase: str, step: int) -> None:
        """Tell that this rank is at the phase of a step and wait for `go` (2 s at most), if somebody asked for it."""
        if self._hold is None:
            return
        try:
            hold = json.loads(self._hold.read_text())
        except (OSError, ValueError):
            return
        if hold["phase"] != phase or self.rank not in hold["ranks"] or hold["id"] in self._done:
            return
        self._done.add(hold["id"])
        self._events.emit("phase", phase=phase, step=step, hold=hold["id"])
        deadline = time.monotonic() + PATIENCE_S
        while self._hold.exists() and time.monotonic() < deadline:  # it is taken away when the fault is there
            time.sleep(LOOK_S)
