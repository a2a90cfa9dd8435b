"""Targets as data: the words of a suite turned into names of nodes. Called by `chaos.nemesis` when a fault is due.

Who holds rank 0 changes while a job recovers, so a target is resolved at the moment of the fault.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from proving_ground.bench.spec import SpecError
from proving_ground.training.typed import unknown


@dataclass(frozen=True)
class View:
    """The job as it stands: names of its worker nodes, which of them has rank 0, and the coordinator's own node.

    Nodes that are without power are drawn by no word: a kill there would be none.
    """

    workers: tuple[str, ...]
    rank0: str | None = None
    coordinator: str | None = None
    down: Collection[str] = ()
    marks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # node → its labels and zone
    joiners: tuple[str, ...] = ()  # nodes whose trainer has started again and has not met the others yet

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

JOINER = "joiner"  # there is one only while a job recovers

TARGETS: dict[str, Draw] = {
    "one": lambda view, chance: chance.sample(view.up, min(1, len(view.up))),
    "minority": lambda view, chance: chance.sample(view.up, max(0, len(view.up) - 1) // 2),
    "majority": lambda view, chance: chance.sample(view.up, len(view.up) // 2 + 1 if view.up else 0),
    "all": lambda view, _: view.up,
    "rank0": lambda view, _: [view.rank0] if view.rank0 in view.up else [],
    "coordinator": lambda view, _: [view.coordinator] if view.coordinator else [],
    JOINER: lambda view, chance: chance.sample(left := [it for it in view.joiners if it in view.up], min(1, len(left))),
}
"""Word → nodes. `minority`: the most that leave more than half; `majority`: the fewest that are more than half."""


DRAWN = ("one", "minority", "majority")
"""Words that draw: in a target of several parts, among the nodes that no other part means."""
MARKS_SHOWN = 12
PARTS = re.compile(r"\s*[+,]\s*")


def resolve(target: str, view: View, seed: int | str) -> tuple[str, ...]:
    """The nodes that `target` means: words of `TARGETS`, names of nodes and `zone=a`, with `+` (or commas) between.

    What has `=` in it means all nodes with that label, the coordinator's included.

    The same seed draws the same nodes; they come in the order of the job's.

    Raises:
        SpecError: an unknown word or node, or a part means no node; says what is allowed.
    """
    chosen: set[str] = set()
    for part in sorted(PARTS.split(target.strip()), key=lambda it: it in DRAWN):
        left = replace(view, down={*view.down, *(chosen if part in DRAWN else ())})
        meant = drawn(part, left, seed) if part in TARGETS else marked(part, left) if "=" in part else [part]
        if not meant and "=" in part:
            raise SpecError(f"target {target!r}: no node has {part}; {known_marks(view)}")
        if not meant:
            others = " but for those that its other parts mean" if chosen else ""
            raise SpecError(
                f"target {target!r}: {part} is no node of a job of {len(view.workers)}{others}; {allowed(view)}"
            )
        for name in meant:
            if name not in view.everybody:
                raise SpecError(f"{unknown('target', name, [*TARGETS, *view.everybody])}; several: with + between them")
        chosen |= set(meant)
    return tuple(name for name in view.everybody if name in chosen)


def drawn(word: str, view: View, seed: int | str) -> Sequence[str]:
    """The nodes that a word means."""
    return TARGETS[word](view, random.Random(f"{seed} {word}"))  # noqa: S311 - to be repeated, not secret


def is_joiner(target: str) -> bool:
    """Whether a target means, with others or alone, a node that is about to join."""
    return JOINER in PARTS.split(target.strip())


def by_mark(target: str) -> bool:
    """Whether a target means nodes by their labels, which are known only once they are up."""
    return "=" in target


def marked(part: str, view: View) -> Sequence[str]:
    """The nodes with power that have a label such as `zone=a`."""
    key, _, value = part.partition("=")
    return [it for it in view.everybody if it not in view.down and view.marks.get(it, {}).get(key) == value]


def known_marks(view: View) -> str:
    """The labels that there are, in words."""
    known = sorted({f"{key}={value}" for of in view.marks.values() for key, value in of.items()})
    return f"there are {', '.join(known[:MARKS_SHOWN])}" if known else "this cluster has no labels"


def allowed(view: View) -> str:
    """What a target may be, in words."""
    return f"allowed: {', '.join([*TARGETS, *view.everybody])}, or several with + between them"
