"""A rank that stands still for all others is named; where nobody can be named, the step is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from proving_ground.reports.scaling import measure, page, results, terminal
from proving_ground.reports.scaling.stalls import stalls
from tests.reports.synthetic import Knobs, make
from tests.reports.test_measure import PLAN, Record, recorded, step

STEP_S = 0.1


def job(held: str = "", phase: str = "own", seconds: float = 3.0, marks: bool = True) -> list[Record]:  # noqa: FBT001, FBT002
    """Eight steps of two ranks; `held` stands still in the fifth, in its own part or while gradients travel."""
    found, begin = [], 0.0
    for number in range(1, 9):
        stop = seconds if held and number == 5 else 0.0
        end = begin + STEP_S + stop
        for node in ("n1", "n2"):
            late = stop if phase == "own" and held in (node, "both") else 0.0
            more: dict[str, Any] = {"backward_t": begin + 0.06 + late} if marks else {}
            found.append(step(node, number, end, **more))
        begin = end
    return found


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (job(), ()),
        (job("n2", seconds=0.3), ()),
        (job("n2"), ("step 5: n2.0 stood still for 3.0 s and all waited for it",)),
        (job("n1"), ("step 5: n1.0 stood still for 3.0 s and all waited for it",)),
        (job("both"), ("step 5 took 3.0 s longer than most; who held it up cannot be told",)),
        (job("n2", "travel"), ("step 5 took 3.0 s longer than most; who held it up cannot be told",)),
        (job("n2", marks=False), ("step 5 took 3.0 s longer than most; who held it up cannot be told",)),
    ],
)
def test_who_stood_still_is_named(steps: list[Record], words: tuple[str, ...]) -> None:
    assert measure.measure({**PLAN, "steps": 8}, recorded(steps)).stalls == words


@pytest.mark.parametrize(
    ("uneven", "named"),
    [(0.02, True), (0.4, False)],  # of a step, to both sides: only where steps are even does one stand out
)
def test_a_stop_as_long_as_a_step_is_named_where_steps_are_even(uneven: float, named: bool) -> None:  # noqa: FBT001
    found, begin = [], 0.0
    for number in range(1, 9):
        took = 2.7 * (1 + uneven * (-1) ** number * (number % 3))
        end = begin + took + 3.0 * (number == 5)
        for node in ("n1", "n2"):
            late = 3.0 * (number == 5) * (node == "n2")
            found.append(step(node, number, end, backward_t=begin + 0.6 * took + late))
        begin = end
    (said,) = measure.measure({**PLAN, "steps": 8}, recorded(found)).stalls or ("",)
    assert said.startswith("step 5: n2.0 stood still for") == named


def test_a_first_step_without_a_step_before_it_is_none() -> None:
    steps = measure.all_steps(recorded(job()))
    assert list(stalls(steps[steps["step"] == 1])) == []
    assert list(stalls(pd.DataFrame({"process": [], "t": [], "step": [], "backward_t": [], "wall_s": []}))) == []


def test_the_terminal_and_the_page_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analysis = results.analyse(make(tmp_path, Knobs(nodes=(1, 2), scalings=("weak",))))
    said = "step 5: n2.0 stood still for 3.0 s and all waited for it"
    (first, *rest) = analysis.trials
    stalled = replace(analysis, trials=[replace(first, stalls=(said,)), *rest])
    terminal.show(stalled, "")
    assert f"trial {first.plan['id']}: {said}" in " ".join(capsys.readouterr().out.split())
    (row,) = page.discarded(stalled)
    assert (row["why"], page.discarded(analysis)) == (said, [])
