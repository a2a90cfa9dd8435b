"""Figures over many runs of one suite, in the order of time, for `trend`. Called by `reports.commands`.

Only what was measured alike is set in one series: same cluster, label and settings of the trials as the newest run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.reports.comparing import compare, trend
from proving_ground.reports.comparing.pairing import SETTINGS, setting
from proving_ground.reports.scaling import results
from proving_ground.training.typed import unknown

LEAST = 2 * trend.SHORTEST


@dataclass
class Series:
    """One figure, run by run."""

    name: str
    unit: str
    where: Mapping[str, Any]
    runs: list[str] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    @property
    def about(self) -> str:
        """`throughput resnet50 weak 8 nodes`."""
        return " ".join(
            [self.name, *(str(self.where[key]) for key in ("case", "scaling", "nodes") if key in self.where)]
        )


def chosen(runs: Path, names: Sequence[str], suite: str | None) -> tuple[list[RunDir], list[str]]:
    """The runs of a trend, oldest first, and what was left out and why, a line each.

    Runs that are named must fit together; of those found in a folder, the newest one's suite decides.

    Raises:
        RunDirError: named ones do not fit together, or too few are left.
    """
    every = rundir.all_runs(runs)
    if suite is not None and every and suite not in (known := {run.suite for run in every}):
        raise RunDirError(f"{runs}: {unknown('suite', suite, sorted(known))}")
    given = [rundir.find(runs, name) for name in names] or [run for run in every if suite in (None, run.suite)]
    given = sorted(given, key=lambda run: run.run_id)
    left: list[RunDir] = []
    notes: list[str] = []
    for run in reversed(given):
        why = bad(run) or (unlike(run, left[0]) if left else "")
        if why and names:
            raise RunDirError(f"{run.run_id}: cannot be part of the trend: {why}")
        if why:
            notes.append(f"{run.run_id} left out: {why}")
        else:
            left.append(run)
    if len(left) < LEAST:
        raise RunDirError(f"{runs}: {len(left)} runs fit together, and a trend needs {LEAST} at least")
    return left[::-1], notes


def bad(run: RunDir) -> str:
    """Why a run is no measurement; empty if it is one."""
    if not (run.path / "seal.json").exists():
        return "it was not finished"
    return "" if run.read("seal").get("complete") else "it is incomplete"


def unlike(run: RunDir, newest: RunDir) -> str:
    """What it was measured differently in than the newest; empty if in nothing."""
    if run.suite != newest.suite:
        return f"suite {run.suite}, not {newest.suite}"
    here, there = run.read("plan"), newest.read("plan")
    if here["cluster"]["name"] != there["cluster"]["name"]:
        return f"cluster {here['cluster']['name']}, not {there['cluster']['name']}"
    return "other trials were planned" if measured_as(here) != measured_as(there) else ""


def measured_as(plan: Mapping[str, Any]) -> list[str]:
    """The settings of all sizes of all cases, in an order of its own; repeats may differ."""
    keys = ("case", "scaling", "nodes", *SETTINGS, "training", "label")
    return sorted({repr([(key, setting(trial, key)) for key in keys]) for trial in plan["trials"]})


def series_of(runs: Sequence[RunDir], names: Sequence[str] = compare.GATED) -> list[Series]:
    """The medians of the named figures that every run has."""
    found: dict[tuple[str, str], Series] = {}
    for run in runs:
        analysis = results.analyse(run)
        commit = str(analysis.provenance.get("git", {}).get("commit") or "not known")
        for figure in analysis.figures:
            if figure["name"] in names and figure["median"] > 0:
                key = figure["name"], repr(sorted(figure["where"].items()))
                own = found.setdefault(key, Series(figure["name"], figure["unit"], figure["where"]))
                own.runs.append(run.run_id)
                own.commits.append(commit)
                own.values.append(float(figure["median"]))
    return [it for it in found.values() if len(it.values) == len(runs)]
