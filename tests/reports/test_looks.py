"""A run that is looked at twice asks more of its intervals, so that two looks err no more often than one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from proving_ground.reports import intervals
from proving_ground.reports.cli import main
from proving_ground.reports.scaling import checks, page, results, words
from proving_ground.reports.scaling.checks import LEVELS
from tests.reports.rewritten import resealed
from tests.reports.synthetic import Knobs, make

BAR = 100.0
PLANNED, FURTHER = 4, 5
ONCE = dict.fromkeys(LEVELS, 0.95)


def decided(values: np.ndarray[tuple[int], np.dtype[np.float64]], level: float) -> bool:
    """Whether an interval lies wholly on one side of the bar."""
    middle = float(median(values))
    ends = intervals.ratio_interval(middle, intervals.constant_draws(list(values)))
    found = intervals.at_level({"median": middle, "ci95": ends, "n": len(values)}, level, ratio=True)
    return found is not None and not found[0] < BAR < found[1]


def wrong(levels: Mapping[str, float], jobs: int = 1500) -> float:
    """Share of runs whose truth lies on the bar and of which something else was said, at the first or second look."""
    rng = np.random.default_rng(5)
    said = 0
    for _ in range(jobs):
        values = BAR * np.exp(rng.normal(0, 0.03, PLANNED + FURTHER))
        first = decided(values[:PLANNED], levels["first of two"])
        said += first or decided(values, levels["second of two"])
    return said / jobs


def test_two_looks_err_no_more_often_than_one_may() -> None:
    assert wrong(LEVELS) <= 0.05
    assert wrong(ONCE) > 0.05  # the mutant: 95 % each time


def test_the_levels_add_up() -> None:
    assert (1 - LEVELS["first of two"]) + (1 - LEVELS["second of two"]) == pytest.approx(1 - LEVELS["once"])


@pytest.mark.parametrize("ratio", [True, False])
def test_a_higher_level_is_a_wider_interval(ratio: bool) -> None:  # noqa: FBT001 - a parameter
    values = [97.0, 98.0, 101.0, 99.0]
    middle = median(values)
    draws = intervals.constant_draws(values)
    made = intervals.ratio_interval(middle, draws) if ratio else intervals.plain_interval(middle, values)
    found = {"median": middle, "ci95": made, "n": 4}
    wide = intervals.at_level(found, 0.98, ratio=ratio)
    assert made
    assert wide
    assert wide[0] < made[0] < middle < made[1] < wide[1]
    assert intervals.at_level(found, 0.95, ratio=ratio) == made
    assert intervals.at_level({**found, "ci95": None}, 0.98, ratio=ratio) is None


def test_a_verdict_says_at_which_level(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(nodes=(1, 2), scalings=("weak",), bars={2: 0.9}, comm={1: 0.0, 2: 0.085}, noise=0.003))
    found = results.analyse(run)
    assert [it["verdict"] for it in found.verdicts if it["check"] == "efficiency"] == ["pass"]
    (run.path / "plan.json").write_text(json.dumps(run.read("plan") | {"looks": 2, "further": None}))
    (twice,) = [it for it in results.analyse(resealed(run)).verdicts if it["check"] == "efficiency"]
    assert " at 98 %)" in twice["why"]


def test_what_is_open_is_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noisy = Knobs(nodes=(1, 2), scalings=("weak",), bars={2: 0.9}, comm={2: 0.1}, noise=0.06, steps=12)
    run = make(tmp_path, noisy)
    assert main(["undecided", str(run.path)]) == 0
    assert "still open: digits on 2 nodes: cannot tell: " in capsys.readouterr().out
    made = run.read("undecided")
    assert [(it["case"], it["nodes"]) for it in made["sizes"]] == [("digits", 2)]
    assert sorted({check for check, _ in made["checks"]} & {"efficiency"}) == ["efficiency"]


@pytest.mark.parametrize("knobs", [{}, {"imitated": ("contention: nodes share the cores",), "cpus": None}])
def test_nothing_is_open_where_all_is_decided_or_no_repeat_could(tmp_path: Path, knobs: dict[str, object]) -> None:
    found = results.analyse(make(tmp_path, Knobs(nodes=(1, 2), scalings=("weak",), bars={2: 0.5}, **knobs)))  # type: ignore[arg-type]
    assert [it for it in checks.undecided(found.verdicts, found.cells) if it["check"] == "efficiency"] == []


def test_the_report_tells_of_further_repeats(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(nodes=(1, 2), scalings=("weak",)))
    plan = run.read("plan") | {"looks": 2, "further": {"sizes": {"digits": [2]}, "rounds": 3}}
    (run.path / "plan.json").write_text(json.dumps(plan))
    found = results.analyse(resealed(run))
    assert results.look_of(found.plan) == "second of two"
    assert words.further(found.plan) == "3 more of digits on 2 nodes, since those planned had left it open"
    assert "<b>Further repeats.</b>" in page.html(found)
