"""Predicts step times of sizes that were not run, from a fit on the smallest sizes. Called by `forecast`.

The model of a step on n nodes (alpha-beta cost of a ring all-reduce: Thakur, Rabenseifner and Gropp, 2005):
    T(n) = compute + fixed + exposed(n; share, hop) + overhead + wait(n)
`compute` is the profile's, `fixed` what one node's step takes beyond it. Each bucket's ring takes 2(n-1) hops of `hop`
seconds and 2(n-1)/n of its bytes over `share` of the link's rate; `exposed` is what backward does not hide of them, by
the same simulation as the bound's. `wait` is the mean wait for the slowest of n alike ranks.

Two sizes say little about three unknowns where backward hides all, so each starts from what is known of such links (the
priors below), and the data of all cases on one link move it as far as they can. Figures are medians and 2.5 to 97.5 %
quantiles over draws of everything uncertain: the means of the measured step times (Student's t, few repeats), and the
unknowns given these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proving_ground.bench.bound import Bucket

Floats = np.ndarray[Any, np.dtype[np.float64]]

DRAWS = 2000
SEED = 22
SHARE_PRIOR = (0.95, 0.02)  # of a shaped link's rate that a ring reaches: Gloo between namespaces, 0.93 to 0.96
HOP_PRIOR_S = 0.0002  # scale of the half-normal prior of a hop: a small message there and its wake-up
OVERHEAD_PRIOR = (0.002, 0.003)  # seconds, and share of the step: scale of the normal prior of what is left
SHARES = np.linspace(0.80, 1.0, 41)
HOPS_S = np.linspace(0.0, 0.001, 21)
LARGEST_OF = {1: 0.0, 2: 0.5642, 4: 1.0294, 8: 1.4236, 16: 1.7660, 32: 2.0697, 64: 2.3437, 128: 2.5942}
"""Mean of the largest of n standard normal numbers (Harter, 1961): how long ranks wait for the slowest of n."""


@dataclass(frozen=True)
class PlannedStep:
    """One size of a case, as the plan has it: seconds of its compute, and the buckets that it exchanges."""

    nodes: int
    compute_s: float
    backward_s: float  # the part of `compute_s` that hides communication
    buckets: tuple[Bucket, ...]
    bytes_per_s: float  # the link's configured rate


@dataclass(frozen=True)
class Fitted:
    """What block A measured of one case and scaling: mean and standard error of its steps, in seconds."""

    small: PlannedStep
    small_s: tuple[float, float]
    large: PlannedStep
    large_s: tuple[float, float]
    wait_s: float  # of the large one
    repeats: int


@dataclass(frozen=True)
class Predicted:
    """Seconds of a step, and efficiency against the small size: median and 95 % interval each."""

    step_s: tuple[float, float, float]
    efficiency: tuple[float, float, float]


def exposed(job: PlannedStep, share: Floats, hop_s: Floats) -> Floats:
    """Seconds of communication that backward does not hide, for arrays of the two unknowns."""
    share, hop_s = np.broadcast_arrays(np.asarray(share, dtype=float), np.asarray(hop_s, dtype=float))
    if job.nodes == 1:
        return np.zeros_like(share)
    sent = np.zeros_like(share)
    for bucket in job.buckets:
        ring_s = 2 * (job.nodes - 1) * (hop_s + bucket.wire_bytes / job.nodes / (share * job.bytes_per_s))
        sent = np.maximum(sent, bucket.ready_s) + ring_s
    return np.maximum(0.0, sent - job.backward_s)


def largest_of(nodes: int) -> float:
    """Mean of the largest of `nodes` standard normal numbers; between the table's entries by their logarithm."""
    known = sorted(LARGEST_OF)
    return float(np.interp(math.log(nodes), np.log(known), [LARGEST_OF[count] for count in known]))


@dataclass(frozen=True)
class LinkDraws:
    """Draws of what is common to all cases on one link: the share of its rate, and the seconds of a hop."""

    share: Floats
    hop_s: Floats

    def document(self) -> dict[str, Any]:
        """Median and 95 % interval of both, for `prediction.json`."""
        return {"rate_share": quantiles(self.share), "hop_s": quantiles(self.hop_s)}


def fit_link(cases: Sequence[Fitted], rng: np.random.Generator) -> LinkDraws:
    """Draw from what the cases say about their common link, given the priors: on a grid, each cell by its weight."""
    share, hop_s = (axis.ravel() for axis in np.meshgrid(SHARES, HOPS_S, indexing="ij"))
    weight = -0.5 * ((share - SHARE_PRIOR[0]) / SHARE_PRIOR[1]) ** 2 - 0.5 * (hop_s / HOP_PRIOR_S) ** 2
    for case in cases:
        left = excess(case) - exposed(case.large, share, hop_s)
        weight = weight - 0.5 * left**2 / (noise(case) ** 2 + overhead_scale(case) ** 2)
    chance = np.exp(weight - weight.max())
    chosen = rng.choice(len(share), size=DRAWS, p=chance / chance.sum())
    half = (SHARES[1] - SHARES[0]) / 2  # spread evenly within its cell
    jitter = rng.uniform(-half, half, DRAWS)
    return LinkDraws(np.clip(share[chosen] + jitter, SHARES[0], SHARES[-1]), hop_s[chosen])


def excess(case: Fitted) -> float:
    """Seconds that the large size's step takes beyond compute, what one node needs besides, and waiting."""
    fixed_s = case.small_s[0] - case.small.compute_s
    return case.large_s[0] - case.large.compute_s - fixed_s - case.wait_s


def noise(case: Fitted) -> float:
    """Standard error of `excess`, in seconds."""
    return math.hypot(case.small_s[1], case.large_s[1])


def overhead_scale(case: Fitted) -> float:
    """Scale of the prior of the overhead, in seconds."""
    return max(OVERHEAD_PRIOR[0], OVERHEAD_PRIOR[1] * case.large.compute_s)


def predict(case: Fitted, link: LinkDraws, job: PlannedStep, growth: float, rng: np.random.Generator) -> Predicted:
    """A size of the case; `growth` is that of a node's batch against the small size (weak 1, strong 1/n)."""
    spread = rng.standard_t(max(1, 2 * case.repeats - 2), (2, DRAWS))
    small = case.small_s[0] + case.small_s[1] * spread[0]
    large = case.large_s[0] + case.large_s[1] * spread[1]
    fixed = small - case.small.compute_s
    left = large - case.large.compute_s - fixed - case.wait_s - exposed(case.large, link.share, link.hop_s)
    trust = overhead_scale(case) ** 2 / (overhead_scale(case) ** 2 + noise(case) ** 2)
    overhead = np.maximum(0.0, trust * left) if job.nodes > 1 else np.zeros(DRAWS)
    wait = case.wait_s * largest_of(job.nodes) / largest_of(case.large.nodes)
    step = job.compute_s + fixed + exposed(job, link.share, link.hop_s) + overhead + wait
    return Predicted(quantiles(step), quantiles(growth * small / step))


def quantiles(draws: Floats) -> tuple[float, float, float]:
    """Median and the ends of the 95 % interval."""
    low, middle, high = (float(value) for value in np.quantile(draws, [0.025, 0.5, 0.975]))
    return middle, low, high
