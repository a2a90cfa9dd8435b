"""How much many trials of few jobs say: their effective number, and the quantile that the largest of them bounds.

Trials of one job have the machine's mood, the job's seed and its nodes in common. Called by `reports.recovery` and
by validations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from statistics import fmean

CONFIDENCE = 0.95

Jobs = Sequence[Sequence[float]]
"""Seconds of each trial, job by job; infinite where training never went on. Jobs without a trial say nothing."""


def ranked(jobs: Jobs) -> list[list[float]]:
    """The same with ranks from 1 up instead of seconds, ties with their mean: a stuck trial has no time but a rank."""
    ordered = sorted(chain.from_iterable(jobs))
    mean_rank = {it: ordered.index(it) + (ordered.count(it) + 1) / 2 for it in ordered}
    return [[mean_rank[it] for it in job] for job in jobs]


def intraclass(jobs: Jobs) -> float:
    """The share of the variance that lies between jobs, from their ranks: 0 (independent) to 1 (a job is one trial).

    The estimator of the analysis of variance for groups of unequal size: A. Donner, J. J. Koval, The estimation of
    intraclass correlation in the analysis of family data, Biometrics 36 (1980). It may be negative: 0 then. A single
    job, or trials that are all alike, cannot tell: 1 then, so that nothing is promised.
    """
    groups = [it for it in ranked(jobs) if it]
    count, n = len(groups), sum(map(len, groups))
    if count < 2 or n == count:
        return 1.0
    mean = fmean(chain.from_iterable(groups))
    between = sum(len(it) * (fmean(it) - mean) ** 2 for it in groups) / (count - 1)
    within = sum((value - fmean(it)) ** 2 for it in groups for value in it) / (n - count)
    size = (n - sum(len(it) ** 2 for it in groups) / n) / (count - 1)
    whole = between + (size - 1) * within
    return max(0.0, (between - within) / whole) if whole else 1.0


def effective_n(jobs: Jobs) -> float:
    """How many independent trials say as much: their number over the design effect, 1 + (b - 1) · correlation.

    L. Kish, Survey Sampling (Wiley 1965), chapter 5; for jobs of unequal size b is the mean size weighted by size.
    """
    sizes = [len(it) for it in jobs if it]
    n = sum(sizes)
    if not n:
        return 0.0
    weighted = sum(it**2 for it in sizes) / n
    return n / (1 + (weighted - 1) * intraclass(jobs))


def bounded_percentile(n: float) -> int:
    """The percentile that the largest of `n` independent values bounds from above at 95 % confidence; whole, below.

    The largest lies below the quantile p with probability p^n. 59 values bound the 95th percentile. S. S. Wilks,
    Determination of sample sizes for setting tolerance limits, Annals of Mathematical Statistics 12 (1941).
    """
    return math.floor(100 * (1 - CONFIDENCE) ** (1 / n)) if n else 0
