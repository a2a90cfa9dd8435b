"""Intervals are honest: they hold the true median as often as they say, most of all with few repeats."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from proving_ground.reports import intervals


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


def trial(rng: np.random.Generator, steps: int, between: float, within: float) -> tuple[float, intervals.Floats]:
    """The rate of a trial whose true median is 1, and what else it could have been by its own steps."""
    seconds = rng.lognormal(0, within, steps) * np.exp(rng.normal(0, between) - within**2 / 2)
    return steps / seconds.sum(), intervals.rate_draws(np.ones(steps), seconds, int(rng.integers(2**31)))


@pytest.mark.parametrize("repeats", [3, 6])
@pytest.mark.parametrize(("steps", "between", "within"), [(5, 0.05, 0.05), (40, 0.02, 0.05), (20, 0.0, 0.1)])
def test_noise_of_steps_counts_once(
    monkeypatch: pytest.MonkeyPatch, repeats: int, steps: int, between: float, within: float
) -> None:
    monkeypatch.setattr(intervals, "DRAWS", 200)
    rng = np.random.default_rng(6)
    widths, plain, hits = [], [], 0
    for _ in range(300):
        values, draws = zip(*[trial(rng, steps, between, within) for _ in range(repeats)], strict=True)
        low, high = intervals.ratio_interval(median(values), intervals.stack(draws)) or (0, 0)
        hits += low <= 1 <= high
        widths.append(np.log(high / low) / 2)
        plain.append(intervals.student(repeats) * np.log(values).std(ddof=1) / np.sqrt(repeats))
    assert hits / 300 >= 0.91
    most = 1.3 if between else 1.5  # a mean's are narrower by 1.16 or 1.135, and repeats may agree by luck
    assert np.mean(widths) <= most * np.mean(plain)


def test_a_median_spreads_so_much_more_than_a_mean() -> None:
    noise = np.random.default_rng(7).normal(size=(40_000, 9))
    for repeats, factor in enumerate(intervals.MEDIAN, 2):
        drawn = noise[:, :repeats]
        assert np.median(drawn, axis=1).std() / drawn.mean(axis=1).std() == pytest.approx(factor, rel=0.02)
    assert max(intervals.MEDIAN) < intervals.MEDIAN_OF_MANY


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
