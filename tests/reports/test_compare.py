"""Comparing never cries wolf: false alarms and found slowdowns are counted over many simulated pairs of runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reports import compare

CELLS = 8  # gated figures in one comparison
REPEATS = 3


def runs(rng: np.random.Generator, noise: float, between: float, slower: float = 0.0) -> list[np.ndarray[Any, Any]]:
    """The throughputs of one run, cell by cell; noise as measured: some of it common to the whole run."""
    common = between * rng.standard_normal()
    return [
        100 * (1 - slower) * np.exp(common + noise * rng.standard_normal(REPEATS)) for _ in range(CELLS)
    ]  # fmt: skip


def figure(values: np.ndarray[Any, Any], number: int = 0, name: str = "throughput") -> dict[str, Any]:
    return {"name": name, "unit": "samples/s", "where": {"cell": number}, "median": float(np.median(values))}


def verdict(before: list[Any], after: list[Any], between: float, *, pairs: bool = False) -> str:
    found = []
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        effect = compare.paired(one, other) if pairs else compare.unpaired(one, other, between)
        found.append(compare.difference(figure(one, number), figure(other, number), effect, compare.MARGIN))
    return compare.overall(compare.judge(found, compare.MARGIN))


@pytest.mark.parametrize(("noise", "between"), [(0.001, 0.001), (0.003, 0.003), (0.01, 0.005), (0.05, 0.01)])
@pytest.mark.parametrize("pairs", [False, True])
def test_false_alarms_are_rare(noise: float, between: float, pairs: bool) -> None:  # noqa: FBT001
    rng, count = np.random.default_rng(11), 300
    alarms = 0
    for _ in range(count):
        if pairs:
            once = [runs(rng, noise, 0.0), runs(rng, noise, 0.0)]
        else:
            once = [runs(rng, noise, between), runs(rng, noise, between)]
        alarms += verdict(once[0], once[1], max(between, compare.ASSUMED_BETWEEN), pairs=pairs) in ("worse", "better")
    assert alarms / count <= 0.05


@pytest.mark.parametrize(("noise", "between"), [(0.001, 0.001), (0.003, 0.003), (0.005, 0.005)])
def test_a_slowdown_of_five_percent_is_found(noise: float, between: float) -> None:
    rng, count = np.random.default_rng(12), 200
    found = 0
    for _ in range(count):
        before, after = runs(rng, noise, between), runs(rng, noise, between, slower=0.05)
        found += verdict(before, after, max(between, compare.ASSUMED_BETWEEN)) == "worse"
    assert found / count >= 0.9


def test_a_slowdown_of_one_cell_is_found_in_pairs() -> None:
    rng, found = np.random.default_rng(13), 0
    for _ in range(100):
        before, after = runs(rng, 0.001, 0.0), runs(rng, 0.001, 0.0)
        after[2] = after[2] * 0.95
        found += verdict(before, after, 0.0, pairs=True) == "worse"
    assert found >= 90


def test_noise_between_runs_would_be_an_alarm_without_a_model_of_it() -> None:
    rng, alarms = np.random.default_rng(14), {0.0: 0, 0.03: 0}
    for _ in range(100):
        once = [runs(rng, 0.002, 0.03), runs(rng, 0.002, 0.03)]
        for between in alarms:
            alarms[between] += verdict(once[0], once[1], between) in ("worse", "better")
    assert alarms[0.0] > 30  # the mutant: repeats of one run taken for all the noise there is
    assert alarms[0.03] <= 5


def test_the_same_is_said_only_of_what_is_known_well() -> None:
    rng = np.random.default_rng(15)
    assert verdict(runs(rng, 0.0005, 0.0), runs(rng, 0.0005, 0.0), 0.0005) == "same"
    assert verdict(runs(rng, 0.05, 0.0), runs(rng, 0.05, 0.0), 0.0005) == "cannot tell"


@pytest.mark.parametrize(("name", "expected"), [("throughput", "worse"), ("checkpoint_block", "better")])
def test_less_is_worse_or_better_by_figure(name: str, expected: str) -> None:
    before, after = np.array([100.0, 100.1, 99.9]), np.array([90.0, 90.1, 89.9])
    effect = compare.unpaired(before, after, 0.001)
    found = compare.difference(figure(before, name=name), figure(after, name=name), effect, compare.MARGIN)
    assert compare.overall(compare.judge([found], compare.MARGIN)) == expected
    assert found.change == pytest.approx(-10, abs=0.1)


def test_figures_that_follow_from_others_never_decide() -> None:
    before, after = np.array([100.0, 100.1, 99.9]), np.array([90.0, 90.1, 89.9])
    effect = compare.unpaired(before, after, 0.001)
    rows = [compare.difference(figure(before, name="efficiency"), figure(after, name="efficiency"), effect, 0.01)]
    judged = compare.judge(rows, 0.01)
    assert judged[0].answer == "worse"
    assert compare.overall(judged) == "cannot tell"


def test_noise_between_runs_is_found_and_a_step_moves_it_little() -> None:
    rng = np.random.default_rng(16)
    levels = 100 * np.exp(0.01 * rng.standard_normal(40))
    levels[20:] *= 0.9
    series = [level * np.exp(0.002 * rng.standard_normal(3)) for level in levels]
    assert compare.between_runs([series]) == pytest.approx(0.01, rel=0.4)
    assert compare.between_runs([series[:4]]) is None


def test_repeats_that_explain_all_leave_nothing_between_runs() -> None:
    rng = np.random.default_rng(17)
    series = [100 * np.exp(0.02 * rng.standard_normal(3)) for _ in range(30)]
    assert compare.between_runs([series]) == pytest.approx(0, abs=0.006)
