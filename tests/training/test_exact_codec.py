"""The fixed-point codec: sums do not depend on order, errors are bounded, and what does not fit is counted."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proving_ground.training.exchange.exact import ROOM, SCALE, add, limit, read
from tests.benchmarks.step_cost import errors

ROOMY = limit(24)
FITTING = st.floats(-(2.0**17), 2.0**17, width=32)
SHARDS = st.lists(st.lists(FITTING, min_size=3, max_size=3), min_size=1, max_size=24)


def summed(shards: list[list[float]], most: float = ROOMY) -> Tensor:
    """The integers that shards of values add up to."""
    sums = torch.zeros(len(shards[0]) + 1, dtype=torch.int64)
    for values in shards:
        add(torch.tensor(values), sums, most)
    return sums


def floats(sums: Tensor) -> list[float]:
    """What the sums mean."""
    values = torch.empty(len(sums) - 1)
    read(sums, values)
    found: list[float] = values.tolist()
    return found


@given(SHARDS, st.randoms(use_true_random=False), st.integers(1, 8))
def test_neither_order_nor_distribution_matters(shards: list[list[float]], random: object, ranks: int) -> None:
    """However the shards are shuffled and dealt out to ranks, whose sums are added."""
    whole = summed(shards)
    shuffled = list(shards)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    dealt = [summed(part) for rank in range(ranks) if (part := shuffled[rank::ranks])]
    assert torch.equal(torch.stack(dealt).sum(0), whole)
    assert whole[-1] == 0


@given(SHARDS)
def test_the_error_is_bounded(shards: list[list[float]]) -> None:
    """Half an integer a shard, and one rounding to float32 at the end."""
    exact = [sum((Fraction(values[at]) for values in shards), Fraction(0)) for at in range(3)]
    for value, true in zip(floats(summed(shards)), exact, strict=True):
        allowed = Fraction(len(shards)) / Fraction(2 * SCALE) + abs(true) * Fraction(2) ** -23
        assert abs(Fraction(value) - true) <= allowed


@given(FITTING)
def test_one_value_comes_back_as_near_as_the_scale_allows(value: float) -> None:
    assert floats(summed([[value]])) == pytest.approx([value], abs=0.5 / SCALE, rel=0)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("shards", [1, 3, 24, 4096])
def test_the_largest_allowed_values_of_all_shards_do_not_overflow(sign: int, shards: int) -> None:
    most = float(np.nextafter(np.float32(limit(shards)), np.float32(0)))  # float32 may round the limit up
    sums = summed([[sign * most]], limit(shards)) * shards
    assert sums[0].item() == pytest.approx(sign * ROOM, rel=1e-6)
    assert sums[-1] == 0
    assert floats(sums) == pytest.approx([sign * most * shards], rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2 * ROOMY, -2 * ROOMY, 3e38])
@given(st.integers(0, 2), st.integers(1, 5))
def test_what_does_not_fit_is_counted(bad: float, at: int, times: int) -> None:
    """In each shard that has it, wherever it stands."""
    values = [0.5, -0.25, 1.0]
    values[at] = bad
    sums = summed([[1.0, 1.0, 1.0], *[values] * times])
    assert sums[-1] == times


def test_float64_values_keep_more() -> None:
    sums = torch.zeros(1 + 1, dtype=torch.int64)
    add(torch.tensor([math.pi], dtype=torch.float64), sums, ROOMY)
    assert sums[0].item() == round(math.pi * SCALE)


def test_a_cast_alone_would_hide_it() -> None:
    """Some number is made of a NaN without a word: so the check must come before."""
    assert torch.isfinite(torch.tensor([math.nan]).long().double()).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sums_of_real_gradients_are_nearer_to_the_truth_than_float_sums(seed: int) -> None:
    """The digits network's, of 24 shards, against their sum in double precision."""
    off = errors(seed=seed)
    assert off["exact"] < off["float"] < 1e-6
    assert off["exact"] < 2**-24, "half a unit in the last place"
