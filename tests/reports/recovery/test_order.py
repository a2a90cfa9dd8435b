"""A trainer of one's own on three ranks or more: what the order of its sums makes is not taken for a defect.

DDP lays its buckets out anew after each start; after a restart the bits are others, and the training is as right.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.reports import verdicts
from proving_ground.reports.recovery import results
from tests.reports.recovery.synthetic import FAULTS, Fault, Knobs, Record, make
from tests.reports.recovery.test_verdicts import of, outcomes
from tests.reports.rewritten import resealed, rewrite

BEFORE = [0.0, 0.0, 0.0, 0.0]  # a sketch
WAY = [3.0, -4.0, 0.0, 12.0]  # from there, in each five steps: 13 long
OTHER = "0" * 64
TWO = (FAULTS[0], replace(FAULTS[0], id="f02", step=80))
NO_RESTART = Fault("f01", "link_rate", 26, "n1", how="none")


def run(
    folder: Path,
    off: float | None,
    *,
    nodes: int = 3,
    workload: str = "command",
    parts: tuple[str, ...] = ("parameters", "optimizer"),
    faults: tuple[Fault, ...] = FAULTS[:1],
    growing: bool = False,
    told_by: tuple[str, ...] = ("t001", "t002"),
) -> rundir.RunDir:
    """A job whose bits are others after its first fault, by so much of its way; `told_by`: who records sketches."""
    made = make(folder, Knobs(nodes=nodes, twins=(nodes,), faults=faults))
    plan, spec = made.read("plan"), made.read("spec")
    for it in (*plan["trials"], *spec["cases"]):
        it |= {"workload": workload, "training": {} if workload == "command" else it.get("training", {})}
    made.write("plan", plan)
    made.write("spec", spec)

    def other_bits(records: list[Record]) -> list[Record]:
        broken = next(it["inject_t"] for it in records if it["event"] == "fault_begin")
        for mark in (it for it in records if it["event"] == "fingerprint"):
            late = mark["trial"] == "t001" and mark["t"] > broken
            if mark["trial"] in told_by and off is not None:
                far = 1 + late * off * (mark["step"] if growing else 1) / (mark["step"] / 5)
                mark["sketch"] = [at + far * way * mark["step"] / 5 for at, way in zip(BEFORE, WAY, strict=True)]
            if late:
                mark.update({f"{part}_sha256": OTHER for part in parts})
        return records

    return resealed(rewrite(made, other_bits))


def judged(made: rundir.RunDir) -> tuple[str, str, str]:
    """(verdict on the same training after the first fault, why, outcome)."""
    analysis = results.analyse(made)
    ((value, why),) = of(analysis, "same_training", "f01")
    assert verdicts.overall(analysis.verdicts) == value
    return value, why, outcomes(analysis)["f01"]


@pytest.mark.parametrize(
    ("how", "much"),
    [
        ({"off": 5e-8}, "by 5e-08 of the way they have come"),
        ({"off": None}, "nothing tells by how much"),
        ({"off": 1e-8, "growing": True}, "of the way they have come"),
        ({"off": 5e-8, "parts": ("optimizer",)}, "DDP rebuilds its buckets"),
    ],
)
def test_what_the_order_of_sums_may_have_made_is_unproven(tmp_path: Path, how: dict[str, Any], much: str) -> None:
    value, why, outcome = judged(run(tmp_path, **how))
    assert (value, outcome) == ("unknown", "unproven")
    assert much in why
    assert "find_unused_parameters=True" in why
    assert len(why) <= 300


@pytest.mark.parametrize(
    "how",
    [
        {"off": 0.5},  # an optimizer's state that was lost
        {"off": 0.0},  # the parameters differ, and the sketch says that they do not
        {"off": 5e-8, "told_by": ("t002",)},
        {"off": 5e-8, "nodes": 2},  # a + b is b + a
        {"off": 5e-8, "workload": "digits"},  # this project's own keeps its buckets
        {"off": 5e-8, "faults": (NO_RESTART,)},  # it was never started again
        {"off": 5e-8, "parts": ("parameters", "random")},
        {"off": float("nan")},
    ],
)
def test_what_no_order_makes_is_wrong(tmp_path: Path, how: dict[str, Any]) -> None:
    value, _, outcome = judged(run(tmp_path, **how))
    assert (value, outcome) == ("fail", "wrong")


def test_no_later_fault_and_no_part_passes_once_the_bits_are_others(tmp_path: Path) -> None:
    analysis = results.analyse(run(tmp_path, 5e-8, faults=TWO))
    assert outcomes(analysis) == {"f01": "unproven", "f02": "unproven"}
    whole = {v["where"]["part"]: v["verdict"] for v in analysis.verdicts if "part" in v["where"]}
    assert (whole["parameters"], whole["optimizer"]) == ("unknown", "unknown")


@pytest.mark.parametrize("odd", [5, 1.5, True, "far", [], [None], ["x"], {"a": 1}])
def test_a_sketch_that_is_none_costs_no_report(tmp_path: Path, odd: object) -> None:
    def change(records: list[Record]) -> list[Record]:
        for mark in (it for it in records if it["event"] == "fingerprint"):
            mark["sketch"] = odd
        return records

    assert results.analyse(rewrite(run(tmp_path, 5e-8), change)).trials
