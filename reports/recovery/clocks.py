"""How far the moments of different nodes may be apart by their clocks alone. Called by `reports.recovery.results`.

Nodes on one machine share a clock. Others' are compared with the harness' throughout the run (`node_clock` events), and
their records are put into its time as they arrive: a moment is wrong by the error of that comparison at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proving_ground.reports.figures import Figure
from proving_ground.reports.recovery import figures
from proving_ground.reports.recovery.checks import Evidence
from proving_ground.reports.verdicts import PASS, UNKNOWN, Verdict, verdict

PART = 0.1
"""Of the shortest recovery that is told: an error above that part of it would prove nothing."""


def errors(events: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Node → the errors in seconds that were told of its clock."""
    found: dict[str, list[float]] = {}
    for it in events:
        found.setdefault(str(it.get("node")), []).append(float(it.get("error_s") or 0.0))
    return found


def measured(events: Sequence[Mapping[str, Any]], broken: Sequence[Evidence]) -> Iterator[Figure]:
    """The error of each node's clock, in ms."""
    for node, values in errors(events).items():
        label = figures.label_of(broken)
        yield figures.figure("clock_error", "ms", label, [1000 * it for it in values], {"node": node})


def worst_s(events: Sequence[Mapping[str, Any]]) -> float:
    """How far any moment may be off, in seconds: the largest error that was told; 0 where all share one clock."""
    return max((it for values in errors(events).values() for it in values), default=0.0)


def judge(events: Sequence[Mapping[str, Any]], broken: Sequence[Evidence]) -> Iterator[Verdict]:
    """Whether the times that are told are longer than what clocks may make of them."""
    if not events:
        return
    worst = worst_s(events)
    took = [s for it in broken for one in it.incidents if (s := one.took("first_committed_step")) is not None]
    shortest = min(took, default=None)
    said = f"moments of different nodes are right to {1000 * worst:.2g} ms"
    if shortest is not None and worst > PART * shortest:
        yield verdict("clocks", UNKNOWN, f"{said}, and the shortest recovery took {shortest:.3g} s", {})
    else:
        yield verdict("clocks", PASS, said, {})
