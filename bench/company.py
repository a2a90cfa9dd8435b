"""Idle nodes that train by themselves beside a trial: since when, and how fast. Called by `bench.drive`.

They start up beside the trial's ranks, which have to meet before their first step. `reports.scaling.pace` flags trials
whose neighbours took longer. Their pace is the machine's: `reports.figures` compares sizes at the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from proving_ground.bench.protocols import Emit, ProcessSpec
from proving_ground.bench.rundir import read_events
from proving_ground.bench.tail import Tail
from proving_ground.training.events import sensible

MOST = 100  # moments at which a neighbour's progress is told


class Company:
    """The neighbours of a trial, once they are started."""

    def __init__(self, trial: str, emit: Emit, specs: Sequence[ProcessSpec]) -> None:
        self._trial, self._emit, self._awaited = trial, emit, bool(specs)
        self._files = {(spec.node, spec.slot): spec.events for spec in specs if spec.events}
        self._tail = Tail({f"{node}.{slot}": file for (node, slot), file in self._files.items()})

    def look(self) -> None:
        """Tell, once, that each has made a step: starting up is not yet company."""
        if self._awaited and self._tail.read():
            self._up()

    def end(self) -> None:
        """Tell how fast they were, and, of those that never made a step, that the trial is over."""
        self._up()
        for (node, slot), file in self._files.items():
            at, samples = progress(file)
            self._emit("neighbour_pace", trial=self._trial, node=node, slot=slot, at=at, samples=samples)

    def _up(self) -> None:
        if self._awaited:
            self._emit("neighbours_up", trial=self._trial)
            self._awaited = False


def progress(file: Path) -> tuple[list[float], list[int]]:
    """(when steps ended in seconds, samples until then) of one process; of many steps every so many."""
    records = read_events(file) if file.exists() else iter(())
    steps = [it for it in records if it["event"] == "step" and all(sensible(it.get(key)) for key in ("t", "samples"))]
    done = accumulate(int(it["samples"]) for it in steps)
    kept = list(zip((float(it["t"]) for it in steps), done, strict=True))[:: 1 + len(steps) // MOST]
    return [t for t, _ in kept], [samples for _, samples in kept]
