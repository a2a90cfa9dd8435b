"""Intervals are honest: they hold the true median as often as they say, most of all with few repeats."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from reports import intervals


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_covers_the_truth_in_about_95_of_100_cases(monkeypatch: pytest.MonkeyPatch, repeats: int) -> None:
    monkeypatch.setattr(intervals, "DRAWS", 300)
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(400):
        values = 100 * np.exp(rng.normal(0, 0.02, repeats))
        low, high = intervals.ratio_interval(median(values), intervals.constant_draws(list(values))) or (0, 0)
        hits += low <= 100 <= high
    assert hits / 400 >= 0.91  # 95 % less twice the noise of 400 cases; the percentile bootstrap has 50 to 75 %


def test_one_repeat_has_no_interval() -> None:
    assert intervals.ratio_interval(5.0, intervals.constant_draws([5.0])) is None
    assert intervals.plain_interval(5.0, [5.0]) is None
    assert intervals.half_width(5.0, None) == float("inf")


def test_repeats_that_agree_by_luck_keep_the_noise_of_their_steps() -> None:
    rng = np.random.default_rng(3)
    seconds = rng.lognormal(0, 0.3, 40)
    rates = intervals.rate_draws(np.full(40, 64.0), seconds, salt=1)
    value = 64 * 40 / seconds.sum()
    ends = intervals.ratio_interval(value, intervals.stack([rates, rates]))
    assert ends is not None
    assert intervals.half_width(value, ends) > 0.05  # although both repeats have the same value


def test_same_values_same_interval() -> None:
    values = [10.0, 11.0, 12.5]
    assert intervals.plain_interval(11.0, values) == intervals.plain_interval(11.0, values)
