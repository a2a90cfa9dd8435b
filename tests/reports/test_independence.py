"""Trials of few jobs: their effective number, and the quantile that the largest bounds."""

from __future__ import annotations

import math
import random

import pytest

from proving_ground.reports.independence import bounded_percentile, effective_n, intraclass, ranked


def drawn(seed: int, jobs: int, trials: int, correlation: float) -> list[list[float]]:
    """Normal values, of which this share of the variance lies between jobs."""
    chance = random.Random(seed)  # noqa: S311 - to be repeated, not secret
    between, within = math.sqrt(correlation), math.sqrt(1 - correlation)
    moods = [chance.gauss(0, between) for _ in range(jobs)]
    return [[mood + chance.gauss(0, within) for _ in range(trials)] for mood in moods]


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_the_correlation_is_found(correlation: float) -> None:
    of_ranks = 6 / math.pi * math.asin(correlation / 2)  # of normal values
    assert intraclass(drawn(1, 400, 5, correlation)) == pytest.approx(of_ranks, abs=0.06)


def test_trials_of_one_job_count_as_what_they_say() -> None:
    alike = [[1.0, 1.01, 1.02], [2.0, 2.01, 2.02], [3.0, 3.01, 3.02], [4.0, 4.01, 4.02]]
    assert effective_n(alike) == pytest.approx(4, abs=0.2)
    mixed = [[1.0, 2.0, 3.0, 4.0], [1.1, 2.1, 2.9, 3.9]]
    assert effective_n(mixed) == 8
    assert effective_n([[1.0], [2.0], [3.0]]) == 3


def test_one_job_and_trials_that_are_all_alike_promise_nothing() -> None:
    assert effective_n([[1.0, 2.0, 3.0]]) == 1
    assert effective_n([[1.0, 1.0], [1.0, 1.0]]) == 2
    assert effective_n([[], []]) == effective_n([]) == 0


def test_jobs_of_unequal_size_and_without_trials() -> None:
    assert effective_n([[1.0, 1.1, 1.2, 1.3], [2.0], []]) < 5
    assert ranked([[3.0, 1.0], [math.inf, 1.0]]) == [[3.0, 1.5], [4.0, 1.5]]


def test_stuck_trials_that_share_a_job_are_one_piece_of_news() -> None:
    jobs = [[1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 3.5, 0.5], [math.inf] * 4]
    assert effective_n(jobs) < 6


@pytest.mark.parametrize(("n", "percentile"), [(0, 0), (1, 5), (5.0, 54), (58, 94), (59, 95), (299, 99)])
def test_59_independent_values_bound_the_95th_percentile(n: float, percentile: int) -> None:
    assert bounded_percentile(n) == percentile


def test_the_bound_holds_as_often_as_it_says() -> None:
    """Of jobs with correlated trials, the largest lies below the quantile that it bounds in about 5 of 100."""
    misses = 0
    for seed in range(400):
        jobs = drawn(seed, 12, 5, 0.5)
        share = bounded_percentile(effective_n(jobs)) / 100
        largest = max(map(max, jobs))
        misses += 0.5 * (1 + math.erf(largest / math.sqrt(2))) < share
    assert misses <= 0.08 * 400
