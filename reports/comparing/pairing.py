"""Which two things `compare` sets side by side, and whether they may be. Called by `reports.commands`.

A thing is a run, or one case of it (`RUN:CASE`). What must not be compared is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proving_ground.bench import contract, rundir
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.reports.comparing import compare
from proving_ground.reports.comparing.compare import Difference, Floats, Noise
from proving_ground.reports.figures import Figure
from proving_ground.reports.scaling import results
from proving_ground.reports.scaling.results import Analysis
from proving_ground.training.typed import unknown

SETTINGS = (
    "workload", "batch_per_node", "global_batch", "steps", "warmup_steps", "ranks_per_node", "link_mbps",
    "cpus_per_node",
)  # fmt: skip
BEFORE: Mapping[str, Any] = {"ranks_per_node": 1}
"""What a setting was before there was a word for it: plans of older runs do not have it."""
MEASURED_BY = (*SETTINGS, "training", "profile")
MACHINE = {"processor": "cpu", "number of cores": "cores", "GPU": "gpu"}
"""What makes it another machine, in words → as `provenance.json` has it: then no difference is the code's."""

NOT_KNOWN = "not known"

Key = tuple[str, tuple[tuple[str, Any], ...]]
Noises = Callable[[Mapping[str, Any]], Noise]


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

    @property
    def figures_shown(self) -> list[Figure]:
        """All figures; of the case that was picked, where one was: without its name, so that it meets another's."""
        if not self.case:
            return self.analysis.figures
        own = [it for it in self.analysis.figures if it["where"].get("case") == self.case]
        return [{**it, "where": {key: value for key, value in it["where"].items() if key != "case"}} for it in own]

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
        raise RunDirError(f"{run}: {unknown('case', case, cases)}")
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
    there = {size_of(trial): trial for trial in other.plan["trials"]}
    for trial in one.plan["trials"]:
        plan = there.get(size_of(trial))
        for key in MEASURED_BY if plan else ():
            yield f"{key} of case {trial['case']}", setting(trial, key), setting(plan or {}, key)


def setting(trial: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - whatever the plan has
    """One setting of a planned trial."""
    return trial.get(key, BEFORE.get(key))


def size_of(trial: Mapping[str, Any]) -> tuple[Any, ...]:
    """Case, scaling and node count of a planned trial."""
    return trial["case"], tuple(trial["scaling"]), trial["nodes"]


def differences(before: Side, after: Side) -> list[tuple[str, str, str]]:
    """(what, here, there) of everything that two runs were measured on or with and that is not the same in both."""
    one, other = (origin(side.analysis.provenance) for side in (before, after))
    return [(what, one[what], other[what]) for what in one if differ(what, one, other)]


def differ(what: str, one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two runs were measured on or with something else there."""
    return one[what] != other[what] and not untold(what, one, other)


def untold(what: str, *origins: Mapping[str, str]) -> bool:
    """Whether it is the GPUs, and a run is of a time when nobody wrote them down: that is no difference."""
    return what == "GPU" and any(it[what] == NOT_KNOWN for it in origins)


def base(side: Side, where: Mapping[str, Any]) -> str:
    """What the efficiency of a size is compared with; figures that differ in it are not of one definition."""
    about = {key: where.get(key) for key in ("case", "scaling", "nodes")}
    idle = any(it["name"] == "idle_pace" and about.items() <= it["where"].items() for it in side.analysis.figures)
    return "idle nodes at the time" if idle else "the smallest size"


def origin(provenance: Mapping[str, Any]) -> dict[str, str]:
    """What a run was measured on and with, by name; what was not written down is `not known`."""
    host, packages, git = (provenance.get(key) or {} for key in ("host", "packages", "git"))
    commit = str(git.get("commit") or NOT_KNOWN)[:12] + (" with changes" if git.get("dirty") else "")
    found = {**{name: host.get(key) for name, key in MACHINE.items()}, "kernel": host.get("kernel"),
             "Python": provenance.get("python"), "torch": packages.get("torch"), "commit": commit}  # fmt: skip
    return {name: str(value or NOT_KNOWN) for name, value in found.items()}


def compare_sides(before: Side, after: Side, noises: Noises, margin: float) -> list[Difference]:
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
        compare.difference(one, effect(before, after, one, other, noises), margin, why_not(before, after, one, other))
        for one, other in common
        if min(one["n"], other["n"]) > 1
    ]
    return compare.judge(made, margin)


def why_not(before: Side, after: Side, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Why two figures support no verdict, whatever their values: another machine or definition, or not steady."""
    machines = [what for what, _, _ in differences(before, after) if what in MACHINE]
    if machines:
        return f"another {' and '.join(machines)}"
    against = [base(side, it["where"]) for side, it in ((before, one), (after, other))]
    if one["name"] == "efficiency" and against[0] != against[1]:
        return f"against {against[0]} there, {against[1]} here"
    for side, found in ((before, one), (after, other)):
        sizes = {found["where"].get("nodes"), found["where"].get("base_nodes")}
        for cell in side.analysis.cells:
            if cell.disturbed and cell.case == found["where"].get("case") and cell.nodes in sizes:
                return f"the machine was not steady in {side.name}"
    return ""


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
    before: Side, after: Side, one: Mapping[str, Any], other: Mapping[str, Any], noises: Noises
) -> compare.Effect:
    """In pairs where both were measured in turn, in one run; else as two runs."""
    values = [np.array(it["values"], dtype=float) for it in (one, other)]
    if before.analysis.run.path == after.analysis.run.path:
        in_turn = [dict(zip(side.repeats(it) or (), vs, strict=False))
                   for side, it, vs in ((before, one, values[0]), (after, other, values[1]))]  # fmt: skip
        both = sorted(in_turn[0].keys() & in_turn[1].keys())
        if len(both) > 1:
            return compare.paired(*(np.array([side[repeat] for repeat in both]) for side in in_turn))
    return compare.unpaired(values[0], values[1], noises(one))


def noise_between(runs: Path, before: Side, after: Side) -> Noises:
    """How far apart runs lie, figure by figure: from the earlier ones under `runs` that were measured like `before`."""
    first = min(side.analysis.run.run_id for side in (before, after))
    series: dict[Key, list[Floats]] = {}
    for run in rundir.all_runs(runs):
        if run.suite == before.analysis.run.suite and run.run_id < first:
            for found in figures_of(run, before.analysis):
                series.setdefault(key_of(found), []).append(np.array(found["values"], dtype=float))
    computes = {(it["case"], it["nodes"]): str(it.get("compute", "real")) for it in before.analysis.plan["trials"]}

    def of(figure: Mapping[str, Any]) -> Noise:
        compute = computes.get((figure["where"].get("case"), figure["where"].get("nodes")), "real")
        prior = compare.PRIOR_BETWEEN.get(compute, max(compare.PRIOR_BETWEEN.values()))
        return compare.between_runs(series.get(key_of(figure), ()), prior)

    return of


def key_of(figure: Mapping[str, Any]) -> Key:
    """Name of a figure and what it is about."""
    return figure["name"], tuple(sorted(figure["where"].items()))


def figures_of(run: RunDir, like: Analysis) -> list[Mapping[str, Any]]:
    """The figures of an earlier run that was measured like this one, on such a machine, and ended well; else none."""
    try:
        plan, found, provenance = run.read("plan"), contract.read(run), run.read("provenance")
        ended = [it["verdict"] for it in found["verdicts"] if it["check"] == "completed"]
        here = {size_of(trial): trial for trial in like.plan["trials"]}
        alike = [all(setting(trial, key) == setting(here[size], key) for key in (*MEASURED_BY, "label"))
                 for trial in plan["trials"] if (size := size_of(trial)) in here]  # fmt: skip
        there, own = origin(provenance), origin(like.provenance)
        elsewhere = any(differ(it, there, own) for it in MACHINE)
        same = plan["cluster"]["name"] == like.plan["cluster"]["name"] and not elsewhere
    except (RunDirError, KeyError, TypeError):
        return []  # no report was made of it, or it was damaged since
    good = same and ended == ["pass"] and all(alike)
    return [it for it in found["figures"] if it["n"] > 1 and min(it["values"]) > 0] if good else []
