"""Which two things `compare` sets side by side, and whether they may be. Called by `reports.commands`.

A thing is a run, or one case of it (`RUN:CASE`). What must not be compared is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import rundir
from bench.rundir import RunDirError
from reports import compare, results
from reports.compare import Difference, Floats
from reports.results import Analysis

SETTINGS = ("workload", "batch_per_node", "global_batch", "steps", "warmup_steps", "link_mbps", "cpus_per_node")
Key = tuple[str, tuple[tuple[str, Any], ...]]


@dataclass(frozen=True)
class Side:
    """A run, or one case of it."""

    analysis: Analysis
    case: str = ""

    @property
    def name(self) -> str:
        """As a person would type it."""
        return self.analysis.run.run_id + (f":{self.case}" if self.case else "")

    @property
    def figures(self) -> dict[Key, Mapping[str, Any]]:
        """What can be compared, by name and what it is about (without the case, if one was picked)."""
        return {
            (
                found["name"],
                tuple(sorted((k, v) for k, v in found["where"].items() if not self.case or k != "case")),
            ): found
            for found in self.analysis.figures
            if found["name"] in compare.DIRECTIONS and self.case in ("", found["where"].get("case"))
        }

    def repeats(self, figure: Mapping[str, Any]) -> list[int] | None:
        """Which repeat each value of a figure is of; None where that is not known."""
        about = {key: figure["where"].get(key) for key in ("case", "scaling", "nodes")}
        for cell in self.analysis.cells:
            if about.items() <= cell.where.items() and len(cell.counted) == figure["n"]:
                return [int(trial.plan["repeat"]) for trial in cell.counted]
        return None


def load(runs: Path, name: str) -> Side:
    """The run, or the case of a run, that a person means.

    Raises:
        RunDirError: no such run or case, or it is no measurement.
    """
    run, _, case = name.partition(":")
    side = Side(results.analyse(rundir.find(runs, run)), case)
    cases = sorted({cell.case for cell in side.analysis.cells})
    if case and case not in cases:
        raise RunDirError(f"{name}: no case {case!r}; allowed: {', '.join(cases)}")
    refuse_bad(side)
    return side


def refuse_bad(side: Side) -> None:
    """A run that failed, was cut off or changed is no measurement.

    Raises:
        RunDirError: says which, and why.
    """
    for check in ("sealed", "completed"):
        bad = [v for v in side.analysis.verdicts if v["check"] == check and v["verdict"] != "pass"]
        if bad:
            raise RunDirError(f"{side.name}: cannot be compared: {bad[0]['why']}")


def refuse_unlike(before: Side, after: Side) -> None:
    """What was measured differently says nothing about the code.

    Raises:
        RunDirError: of other suites, clusters, labels or settings; says which.
    """
    one, other = before.analysis, after.analysis
    pairs = [
        ("suite", one.run.suite, other.run.suite),
        ("cluster", *(it.plan["cluster"]["name"] for it in (one, other))),
    ]
    pairs.append(("label", *(", ".join(sorted({cell.label for cell in cells_of(it)})) for it in (before, after))))
    if not (before.case or after.case):
        pairs += list(settings(one, other))
    for what, here, there in pairs:
        if here != there:
            raise RunDirError(f"{before.name} and {after.name} cannot be compared: {what} {here} and {there}")


def cells_of(side: Side) -> list[Any]:
    """The cells that take part."""
    return [cell for cell in side.analysis.cells if cell.counted and side.case in ("", cell.case)]


def settings(one: Analysis, other: Analysis) -> Iterator[tuple[str, Any, Any]]:
    """(what, here, there) of every setting of the trials that both runs have."""
    there = {(t.plan["case"], tuple(t.plan["scaling"]), t.plan["nodes"]): t.plan for t in other.trials}
    for trial in one.trials:
        plan = there.get((trial.plan["case"], tuple(trial.plan["scaling"]), trial.plan["nodes"]))
        for key in (*SETTINGS, "training", "profile") if plan else ():
            yield f"{key} of case {trial.plan['case']}", trial.plan.get(key), (plan or {}).get(key)


def compare_sides(before: Side, after: Side, between: float, margin: float) -> list[Difference]:
    """Every figure that both have, judged.

    Raises:
        RunDirError: they have none in common, or a gated one has a single value.
    """
    theirs = after.figures
    common = [(found, theirs[key]) for key, found in before.figures.items() if key in theirs]
    common = [pair for pair in common if min(*pair[0]["values"], *pair[1]["values"]) > 0 and not reference(pair[0])]
    if not common:
        raise RunDirError(f"{before.name} and {after.name} have no figure in common that can be compared")
    refuse_single(common)
    made = [
        compare.difference(one, other, effect(before, after, one, other, between), margin)
        for one, other in common
        if min(one["n"], other["n"]) > 1
    ]
    return compare.judge(made, margin)


def reference(figure: Mapping[str, Any]) -> bool:
    """Whether it is 1 by definition: the efficiency of the smallest size."""
    return bool(figure["name"] == "efficiency" and figure["where"]["nodes"] == figure["where"]["base_nodes"])


def refuse_single(common: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """One value has no noise to compare with."""
    for pair in common:
        if pair[0]["name"] in compare.GATED and min(it["n"] for it in pair) < 2:
            about = ", ".join(str(value) for value in pair[0]["where"].values())
            raise RunDirError(
                f"{pair[0]['name']} ({about}) has a single value, whose noise nobody knows; repeat it: --repeats 3"
            )


def effect(
    before: Side, after: Side, one: Mapping[str, Any], other: Mapping[str, Any], between: float
) -> compare.Effect:
    """In pairs where both were measured in turn, in one run; else as two runs."""
    values = [np.array(it["values"], dtype=float) for it in (one, other)]
    if before.analysis.run.path == after.analysis.run.path:
        in_turn = [dict(zip(side.repeats(it) or (), vs, strict=False))
                   for side, it, vs in ((before, one, values[0]), (after, other, values[1]))]  # fmt: skip
        both = sorted(in_turn[0].keys() & in_turn[1].keys())
        if len(both) > 1:
            return compare.paired(*(np.array([side[repeat] for repeat in both]) for side in in_turn))
    return compare.unpaired(values[0], values[1], between)


def noise_between(runs: Path, sides: Sequence[Side]) -> float | None:
    """Noise between runs from the earlier ones of the same suite, as their reports have it; None: too few."""
    series: dict[Key, list[Floats]] = {}
    newest = min(side.analysis.run.run_id for side in sides)
    for run in rundir.all_runs(runs):
        if run.suite == sides[0].analysis.run.suite and run.run_id < newest and run.results.exists():
            for found in run.read("results")["figures"]:
                if found["name"] in compare.GATED and found["n"] > 1:
                    key = found["name"], tuple(sorted(found["where"].items()))
                    series.setdefault(key, []).append(np.array(found["values"], dtype=float))
    return compare.between_runs(series.values())
