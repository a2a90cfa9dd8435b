"""Predictions: the model finds a truth made by itself, its intervals are honest, and its unknowns stay within sense."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.bench.bound import Bucket, bound, buckets_of
from proving_ground.reports.scaling import predict
from proving_ground.reports.scaling.predict import Fitted, PlannedStep

PROFILE = {
    "forward_s": 0.8, "backward_s": 1.2, "optimizer_s": 0.02,
    "backward": [{"name": f"p{i}", "shape": [1_000_000], "ready_s": 0.1 + 1.1 * (i + 1) / 24} for i in range(24)],
}  # fmt: skip
MBPS = 300.0


def job(nodes: int, bucket_mb: float = 25, mbps: float = MBPS) -> PlannedStep:
    buckets = tuple(buckets_of(PROFILE["backward"], bucket_mb))  # type: ignore[arg-type]
    return PlannedStep(nodes, 2.02, 1.2, buckets, mbps * 1e6 / 8)


def truth(nodes: int, share: float, hop_s: float, overhead_s: float, **about: float) -> float:
    there = job(nodes, **about)
    away = float(predict.exposed(there, np.array(share), np.array(hop_s)))
    return there.compute_s + 0.001 + away + (overhead_s if nodes > 1 else 0.0)


def fitted(share: float, hop_s: float, overhead_s: float, noise: float, seed: int, **about: float) -> Fitted:
    rng = np.random.default_rng(seed)
    means = []
    for nodes in (1, 2):
        values = truth(nodes, share, hop_s, overhead_s, **about) * (1 + noise * rng.standard_normal(3))
        means.append((float(values.mean()), float(max(values.std(ddof=1), 0.002 * values.mean()) / math.sqrt(3))))
    return Fitted(job(1, **about), means[0], job(2, **about), means[1], 0.0, 3)


def test_the_exposed_part_is_the_bound_s_where_links_are_perfect() -> None:
    for nodes in (2, 4, 8):
        for bucket_mb in (4, 25):
            there = job(nodes, bucket_mb)
            found = predict.exposed(there, np.array(1.0), np.array(0.0))
            assert float(found) == pytest.approx(bound(PROFILE, there.buckets, nodes, MBPS).exposed_s)


def test_one_node_exposes_nothing() -> None:
    assert float(predict.exposed(job(1), np.array(0.9), np.array(0.001))) == 0.0


@pytest.mark.parametrize("bucket_mb", [4.0, 25.0])
@pytest.mark.parametrize("mbps", [150.0, 300.0, 600.0])
@pytest.mark.parametrize("share", [0.92, 0.97])
def test_sizes_never_run_are_predicted_within_two_percent(bucket_mb: float, mbps: float, share: float) -> None:
    known = {"bucket_mb": bucket_mb, "mbps": mbps}
    case = fitted(share, 0.0001, 0.004, 0.002, seed=4, **known)
    rng = np.random.default_rng(1)
    link = predict.fit_link([case], rng)
    for nodes in (4, 8, 32):
        found = predict.predict(case, link, job(nodes, **known), 1.0, rng)
        there = truth(nodes, share, 0.0001, 0.004, **known)
        assert found.step_s[0] == pytest.approx(there, rel=0.02)
        assert found.step_s[1] < found.step_s[0] < found.step_s[2]


def test_intervals_hold_the_truth() -> None:
    hits, seeds = 0, range(60)
    for seed in seeds:
        pick = np.random.default_rng(1000 + seed)
        share, hop_s = float(pick.normal(0.95, 0.015)), float(abs(pick.normal(0, 0.0001)))
        case = fitted(min(share, 1.0), hop_s, 0.003, 0.003, seed)
        rng = np.random.default_rng(seed)
        found = predict.predict(case, predict.fit_link([case], rng), job(8), 1.0, rng)
        hits += found.step_s[1] <= truth(8, min(share, 1.0), hop_s, 0.003) <= found.step_s[2]
    assert hits / len(seeds) >= 0.88


def test_a_slow_link_is_found_from_cases_that_share_it() -> None:
    cases = [fitted(0.85, 0.0, 0.001, 0.001, seed, mbps=rate) for seed, rate in enumerate((100.0, 120.0, 150.0))]
    link = predict.fit_link(cases, np.random.default_rng(2))
    assert float(np.median(link.share)) == pytest.approx(0.85, abs=0.01)


def test_a_fit_that_sees_nothing_of_the_link_keeps_what_is_known_of_links() -> None:
    hidden = fitted(0.85, 0.0, 0.0, 0.001, seed=1, mbps=50_000.0)
    link = predict.fit_link([hidden], np.random.default_rng(2))
    assert float(np.median(link.share)) == pytest.approx(predict.SHARE_PRIOR[0], abs=0.01)


def test_beyond_the_measured_sizes_intervals_grow() -> None:
    case, rng = fitted(0.95, 0.0001, 0.003, 0.003, seed=3), np.random.default_rng(3)
    link = predict.fit_link([case], rng)
    widths = []
    for nodes in (4, 128):
        step = predict.predict(case, link, job(nodes), 1.0, rng).step_s
        widths.append(step[2] - step[1])
    assert widths[1] > widths[0]


def test_waiting_grows_as_the_largest_of_many() -> None:
    waiting = Fitted(job(1), (2.03, 0.001), job(2), (2.06, 0.001), 0.02, 3)
    rng = np.random.default_rng(3)
    link = predict.fit_link([waiting], rng)
    more = predict.predict(waiting, link, job(8), 1.0, rng).step_s[0]
    none = predict.predict(Fitted(job(1), (2.03, 0.001), job(2), (2.04, 0.001), 0.0, 3), link, job(8), 1.0, rng)
    assert more - none.step_s[0] == pytest.approx(0.02 * 1.4236 / 0.5642, rel=0.1)


@given(st.integers(1, 512))
def test_the_largest_of_n_grows_with_n(nodes: int) -> None:
    assert 0 <= predict.largest_of(nodes) <= predict.largest_of(nodes + 1) <= predict.LARGEST_OF[128]


@given(
    st.lists(st.tuples(st.floats(1e3, 1e8), st.floats(0, 1.2)), min_size=1, max_size=6),
    st.floats(0.8, 1.0), st.floats(0, 0.001), st.integers(2, 64),
)  # fmt: skip
def test_a_worse_link_never_exposes_less(
    raw: list[tuple[float, float]], share: float, hop_s: float, nodes: int
) -> None:
    buckets = tuple(Bucket(size, ready) for size, ready in sorted(raw, key=lambda it: it[1]))
    there = PlannedStep(nodes, 2.0, 1.2, buckets, 1e8)
    better = float(predict.exposed(there, np.array(share), np.array(hop_s)))
    assert float(predict.exposed(there, np.array(share * 0.9), np.array(hop_s))) >= better
    assert float(predict.exposed(there, np.array(share), np.array(hop_s + 0.001))) >= better
