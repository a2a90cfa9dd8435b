"""Repeats beyond the planned ones, for sizes at which they decided nothing. Called by `bench.run`.

A suite with `decide = true` is looked at twice: once its planned repeats are there, and once more after what is left of
`limit_s` went to the sizes that were undecided and to the smallest, which they are compared with. There is no third
look, and `reports.scaling.checks` asks more of an interval that is looked at twice.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proving_ground.bench.spec import Trial

MOST_ROUNDS = 50
Sizes = Mapping[str, Sequence[int]]  # case → node counts


@dataclass(frozen=True)
class Further:
    """So many repeats more of these sizes."""

    sizes: Sizes
    rounds: int


def sizes_of(undecided: Mapping[str, Any]) -> dict[str, list[int]]:
    """The sizes that `undecided.json` names."""
    found: dict[str, list[int]] = {}
    for it in undecided.get("sizes", ()):
        found.setdefault(str(it["case"]), []).append(int(it["nodes"]))
    return found


def one_round(planned: Sequence[Trial], sizes: Sizes) -> list[Trial]:
    """One repeat of the sizes and of each case's smallest, as planned last; bars are for weak scaling only."""
    last: dict[tuple[str, int], Trial] = {}
    for trial in planned:
        if trial.case in sizes and "weak" in trial.scaling and trial.block != "a":
            last[trial.case, trial.nodes] = trial
    smallest = {case: min(nodes for name, nodes in last if name == case) for case in sizes}
    return [it for (case, nodes), it in last.items() if nodes in sizes[case] or nodes == smallest[case]]


def rounds_within(seconds: float, trials: Sequence[Trial], took_s: Mapping[str, float]) -> int:
    """How many rounds of these trials fit; `took_s` has what trials took by their ids, else their estimate counts."""
    one_s = sum(took_s.get(trial.id, trial.estimate_s) for trial in trials)
    return max(0, min(MOST_ROUNDS, int(seconds / one_s))) if one_s else 0


def again(planned: Sequence[Trial], further: Further) -> tuple[Trial, ...]:
    """The trials of the further rounds, shuffled within each, with ids that go on where the plan ended."""
    trials: list[Trial] = []
    one = one_round(planned, further.sizes)
    repeats = {case: max(it.repeat for it in planned if it.case == case) for case in further.sizes}
    for number in range(1, further.rounds + 1):
        block = [replace(it, repeat=repeats[it.case] + number, scaling=("weak",)) for it in one]
        random.Random(f"{one[0].seed} {number}").shuffle(block)  # noqa: S311 - an order that can be repeated, no secret
        trials += block
    return tuple(replace(it, id=f"t{number:03}") for number, it in enumerate(trials, len(planned) + 1))
