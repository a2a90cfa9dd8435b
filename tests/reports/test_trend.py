"""Change points: found where they are, and not where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proving_ground.reports.comparing import trend


def noisy(levels: list[float], noise: float, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    return [level * float(np.exp(noise * rng.standard_normal())) for level in levels]


@pytest.mark.parametrize("count", [6, 12, 30])
def test_a_series_without_a_change_seldom_has_one(count: int) -> None:
    false = sum(bool(trend.changes(noisy([100.0] * count, 0.01, seed))) for seed in range(200))
    assert false / 200 <= 0.09  # 5 %, and twice the noise of 200 cases


@pytest.mark.parametrize("at", [4, 8, 12])
def test_a_slowdown_of_five_percent_is_found_where_it_is(at: int) -> None:
    found = 0
    for seed in range(60):
        changes = trend.changes(noisy([100.0] * at + [95.0] * (16 - at), 0.005, seed))
        near = [it for it in changes if abs(it.index - at) <= 1 and it.percent == pytest.approx(-5, abs=1.5)]
        found += bool(near)
    assert found >= 54


def test_two_changes_are_two() -> None:
    changes = trend.changes(noisy([100.0] * 8 + [90.0] * 8 + [97.0] * 8, 0.003, 5))
    assert [it.index for it in changes] == [8, 16]
    assert [round(it.percent) for it in changes] == [-10, 8]


def test_one_bad_run_is_no_change() -> None:
    assert trend.changes([100.0, 100.5, 99.7, 80.0, 100.2, 99.9, 100.1, 99.8]) == []


def test_too_few_runs_have_no_change() -> None:
    assert trend.changes([100.0, 100.1, 50.0, 50.1, 50.0]) == []


def test_constant_values_are_no_change() -> None:
    assert trend.changes([7.0] * 12) == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.1, 1e6), min_size=0, max_size=25))
def test_any_series_gives_ordered_changes_inside_of_it(values: list[float]) -> None:
    places = [it.index for it in trend.changes(values)]
    assert places == sorted(set(places))
    assert all(trend.SHORTEST <= place <= len(values) - trend.SHORTEST for place in places)


def test_sparkline_shows_the_shape() -> None:
    assert trend.sparkline([1.0, 2.0, 3.0]) == "▁▅█"
    assert trend.sparkline([2.0, 2.0]) == "▁▁"
