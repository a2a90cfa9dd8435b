"""Targets as data: the words of a suite turned into names of nodes. Called by `chaos.nemesis` when a fault is due.

Who holds rank 0 changes while a job recovers, so a target is resolved at the moment of the fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from bench.spec import SpecError
from training.typed import unknown


@dataclass(frozen=True)
class View:
    """The job as it stands: names of its worker nodes, which of them has rank 0, and the coordinator's own node.

    Nodes that are without power are drawn by no word: a kill there would be none.
    """

    workers: tuple[str, ...]
    rank0: str | None = None
    coordinator: str | None = None
    down: Collection[str] = ()

    @property
    def up(self) -> tuple[str, ...]:
        """The worker nodes that have power."""
        return tuple(name for name in self.workers if name not in self.down)

    @property
    def everybody(self) -> tuple[str, ...]:
        """All nodes of the job, the coordinator's included."""
        apart = () if self.coordinator is None or self.coordinator in self.workers else (self.coordinator,)
        return self.workers + apart


Draw = Callable[[View, random.Random], Sequence[str]]

TARGETS: dict[str, Draw] = {
    "one": lambda view, chance: chance.sample(view.up, min(1, len(view.up))),
    "minority": lambda view, chance: chance.sample(view.up, max(0, len(view.up) - 1) // 2),
    "majority": lambda view, chance: chance.sample(view.up, len(view.up) // 2 + 1 if view.up else 0),
    "all": lambda view, _: view.up,
    "rank0": lambda view, _: [view.rank0] if view.rank0 in view.up else [],
    "coordinator": lambda view, _: [view.coordinator] if view.coordinator else [],
}
"""Word → nodes. `minority`: the most that leave more than half; `majority`: the fewest that are more than half."""


def resolve(target: str, view: View, seed: int | str) -> tuple[str, ...]:
    """The nodes that `target` means: a word of `TARGETS`, or names of nodes with commas between them.

    The same seed draws the same nodes; they come in the order of the job's.

    Raises:
        SpecError: an unknown word or node, or no node is meant; says what is allowed.
    """
    allowed = f"allowed: {', '.join(TARGETS)}, or names of {', '.join(view.everybody)}"
    if target in TARGETS:
        chosen = TARGETS[target](view, random.Random(f"{seed} {target}"))  # noqa: S311 - to be repeated, not secret
    else:
        chosen = [name.strip() for name in target.split(",")]
    for name in chosen:
        if name not in view.everybody:
            raise SpecError(unknown("target", name, [*TARGETS, *view.everybody]))
    if not chosen:
        raise SpecError(f"target {target!r} is no node of a job of {len(view.workers)}; {allowed}")
    return tuple(name for name in view.everybody if name in chosen)
