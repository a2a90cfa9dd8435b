"""The machine's pace, by idle nodes: what it takes out of a comparison, and what it must not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proving_ground.reports.comparing import pairing
from proving_ground.reports.comparing.compare import Noise
from proving_ground.reports.comparing.pairing import Side
from proving_ground.reports.figures import pick
from proving_ground.reports.scaling import pace, results, words
from proving_ground.reports.scaling.measure import Measured
from tests.reports.synthetic import Knobs, make

SLOW = Knobs(slow={(2, 2): 1.25, (4, 1): 1.25, (1, 3): 1.25}, scalings=("weak",))
"""A machine that is a quarter slower during one trial of three sizes."""
WINDOW = (2.0, 4.0)


def told(at: list[Any], samples: list[Any]) -> dict[str, Any]:
    return {"node": "n2", "slot": 0, "at": at, "samples": samples}


def efficiencies(root: Path, knobs: Knobs, nodes: int, scaling: str = "weak") -> list[float]:
    found = pick(results.analyse(make(root, knobs)).figures, "efficiency", scaling=scaling, nodes=nodes)
    assert found
    return list(found["values"])


def test_a_node_s_rate_is_of_the_steps_that_overlap_with_the_window() -> None:
    slow_before_and_after = told([1.0, 1.9, 2.5, 3.1, 3.7, 4.3, 9.0], [10, 20, 30, 40, 50, 60, 70])
    assert pace.of_rank(slow_before_and_after, WINDOW) == pytest.approx(40 / 2.4)
    assert pace.of_rank(told([2.5, 3.5], [10, 20]), WINDOW) == pytest.approx(10)
    quiet = told([], []) | {"node": "n3"}
    assert pace.of_trial([slow_before_and_after, quiet], WINDOW) == pytest.approx({"n2": 40 / 2.4})


def test_a_node_is_all_of_its_ranks() -> None:
    one = told([2.5, 3.5], [10, 20])
    assert pace.of_trial([one, one | {"slot": 1}, one | {"node": "n3"}], WINDOW) == {"n2": 20, "n3": 10}
    assert pace.of_trial([one, told([], []) | {"slot": 1}], WINDOW) == {}
    nameless = {key: it for key, it in one.items() if key != "node"}
    assert pace.of_trial([one, one, nameless], WINDOW) == {"n2": 10}, "told twice, and by nobody"


@pytest.mark.parametrize(
    "it",
    [
        told([], []), told([2.5], [10]), told([2.5, 3.5], [10]), told([3.5, 2.5], [10, 20]), told([2.0, 2.0], [10, 20]),
        told([2.5, 3.5], [10, 10]), told([2.5, math.inf], [10, 20]), told(["2", "3"], [10, 20]), {"node": "n2"},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_no_rate(it: dict[str, Any]) -> None:
    assert math.isnan(pace.of_rank(it, WINDOW))


def measured(nodes: int, batch: int, rate: float, *idle: float, total: int | None = None) -> Measured:
    plan = {"nodes": nodes, "batch_per_node": batch, "global_batch": total or batch * nodes}
    return Measured(
        plan, samples=np.array([rate]), seconds=np.array([1.0]), idle=dict(zip(("n8", "n7", "n6"), idle, strict=False))
    )


def test_idle_nodes_are_the_smallest_size_where_they_do_its_job() -> None:
    one = measured(1, 8, 90.0, 100.0, 110.0)
    assert pace.of_base(measured(2, 8, 150.0, 80.0, 84.0), one) == pytest.approx(82)
    assert pace.of_base(measured(4, 8, 300.0), one) == pytest.approx(100), "nobody idle: all that did it meanwhile"
    assert pace.of_base(one, one) == 90


def test_where_they_do_another_job_they_are_the_machine_s_pace() -> None:
    two = measured(2, 8, 180.0, 100.0, 50.0)
    assert pace.of_base(measured(4, 8, 300.0, 80.0), two) == pytest.approx(180 * 0.8), "of nodes that were idle twice"
    assert pace.of_base(measured(8, 8, 600.0), two) == 180


def test_idle_nodes_with_another_batch_say_nothing() -> None:
    assert pace.of_base(measured(2, 4, 150.0, 60.0), measured(1, 8, 90.0, 100.0)) == 90
    assert pace.of_base(measured(2, 8, 150.0, 60.0), measured(1, 8, 90.0)) == 90


def test_a_slow_moment_of_the_machine_is_no_loss(tmp_path: Path) -> None:
    for nodes in (2, 4):
        steady = efficiencies(tmp_path / f"steady{nodes}", replace(SLOW, slow={}, idle=True), nodes)
        blind = efficiencies(tmp_path / f"blind{nodes}", SLOW, nodes)
        seeing = efficiencies(tmp_path / f"seeing{nodes}", replace(SLOW, idle=True), nodes)
        assert max(blind) - min(blind) > 15, "else this shows nothing"
        assert max(seeing) - min(seeing) < 2
        assert seeing == pytest.approx(steady, abs=1.5)


def test_the_largest_size_is_compared_with_all_that_did_the_smallest_one_s_job(tmp_path: Path) -> None:
    slow_alone = replace(SLOW, slow={}, jitter=0.0, noise=0.08)
    blind = efficiencies(tmp_path / "blind", slow_alone, 8)
    seeing = efficiencies(tmp_path / "seeing", replace(slow_alone, idle=True), 8)
    assert max(seeing) - min(seeing) < max(blind) - min(blind)


def test_a_loss_of_the_job_s_own_stays_whole(tmp_path: Path) -> None:
    planted = replace(SLOW, slow={}, plant={"wait": 0.02})
    lossless = efficiencies(tmp_path / "lossless", replace(planted, plant={}, idle=True), 2)
    blind = efficiencies(tmp_path / "blind", planted, 2)
    seeing = efficiencies(tmp_path / "seeing", replace(planted, idle=True), 2)
    assert seeing == pytest.approx(blind, abs=1.5)
    assert max(seeing) < min(lossless) - 10


@pytest.mark.parametrize("idle", [True, False])
def test_a_table_says_when_it_is_against_idle_nodes(tmp_path: Path, idle: bool) -> None:  # noqa: FBT001 - a parameter
    analysis = results.analyse(make(tmp_path, replace(SLOW, scalings=("weak", "strong"), idle=idle)))
    groups = [[cell for cell in analysis.cells if cell.scaling == it] for it in ("weak", "strong")]
    said = [words.about_group(rows)[1].endswith(" · against idle nodes") for rows in groups]
    assert said == [idle, False]


def test_runs_whose_efficiency_is_of_another_definition_differ_in_that(tmp_path: Path) -> None:
    idle, bare, other = (
        Side(results.analyse(make(tmp_path / name, replace(SLOW, idle=name != "bare")))) for name in ("a", "bare", "b")
    )
    alike = pairing.compare_sides(idle, other, lambda _: Noise(0.01), 1.0)
    assert not [it for it in alike if "against" in it.why]
    found = pairing.compare_sides(bare, idle, lambda _: Noise(0.01), 1.0)
    why = {it.name: it.why for it in found if it.where["nodes"] == 2}
    assert why == {
        **dict.fromkeys(why, ""),
        "efficiency": "against the smallest size there, idle nodes at the time here",
    }


def test_what_is_lost_still_adds_up(tmp_path: Path) -> None:
    found = results.analyse(make(tmp_path, replace(SLOW, idle=True))).figures
    parts = [it["values"] for it in found if it["name"] == "lost" and it["where"]["nodes"] == 2]
    lost = [sum(values) for values in zip(*parts, strict=True)]
    assert lost == pytest.approx([100 - it for it in efficiencies(tmp_path / "again", replace(SLOW, idle=True), 2)])
    rest = pick(found, "lost", nodes=2, part="rest")
    assert rest
    assert max(map(abs, rest["values"])) < 2


def test_idle_nodes_that_come_late_are_told(tmp_path: Path) -> None:
    in_time = results.analyse(make(tmp_path / "in time", replace(SLOW, idle=True)))
    assert not any(trial.flags for trial in in_time.trials)
    late = results.analyse(make(tmp_path / "late", replace(SLOW, idle=True, late=1.0)))
    assert {bool(trial.flags) for trial in late.trials if trial.plan["nodes"] < 8} == {True}
    assert "idle nodes had made no step" in late.trials[0].flags[0]
    assert {v["verdict"] for v in late.verdicts if v["check"] == "efficiency"} == {"unknown"}


def test_a_short_lateness_is_none() -> None:
    first_s = 0.2
    assert pace.late(1.25, (1.0, 3.0), first_s) == ()
    assert len(pace.late(1.35, (1.0, 3.0), first_s)) == 1
    assert pace.late(math.nan, (1.0, 3.0), first_s) == ()


def test_what_a_job_takes_from_idle_nodes_carries_no_pass(tmp_path: Path) -> None:
    """A loss that idle nodes bear too, in each repeat, would be hidden: the threshold is held against the worse."""
    every = {(2, repeat): 1.25 for repeat in (1, 2, 3)}
    found = results.analyse(make(tmp_path, replace(SLOW, slow=every, idle=True)))
    ran = pick(found.figures, "idle_pace", nodes=2)
    assert ran
    assert ran["median"] == pytest.approx(80, abs=1)
    assert min(efficiencies(tmp_path / "again", replace(SLOW, slow=every, idle=True), 2)) > 90
    (said,) = [v for v in found.verdicts if v["check"] == "efficiency" and v["where"]["nodes"] == 2]
    assert said["verdict"] == "unknown"
    assert "idle nodes ran at 8" in said["why"]
