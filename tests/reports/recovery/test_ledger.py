"""The ledger's arithmetic: pairs in order, samples once a pass, and ids that are none."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.reports.history import NOT_RECORDED, add_ids
from proving_ground.reports.recovery.ledger import Entries, each_once, filled, ordered

NUMBERS = st.integers(0, 50) | st.integers(-5, 5) | st.integers(2**40, 2**62)


def entries(samples: list[int], batch: int) -> Entries:
    """A stream of samples, so many a step."""
    steps = np.arange(len(samples), dtype=np.int64) // batch + 1
    return Entries(*ordered(steps, np.array(samples, dtype=np.int64)))


def stream(size: int, passes: int, seed: int) -> list[int]:
    """Every sample once a pass, in an order of its own."""
    dice = random.Random(seed)  # noqa: S311 - an order, no secret
    return [sample for _ in range(passes) for sample in dice.sample(range(size), size)]


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=40))
def test_pairs_are_ordered_whatever_their_size(pairs: list[tuple[int, int]]) -> None:
    first, second = (np.array([pair[at] for pair in pairs], dtype=np.int64) for at in (0, 1))
    one, other = ordered(first, second)
    assert list(zip(one.tolist(), other.tolist(), strict=True)) == sorted(pairs)


@given(size=st.integers(1, 30), passes=st.integers(1, 5), batch=st.integers(1, 12), seed=st.integers())
def test_every_sample_once_a_pass_is_right(size: int, passes: int, batch: int, seed: int) -> None:
    assert each_once(entries(stream(size, passes, seed), batch), None) == []


@given(steps=st.integers(2, 10), batch=st.integers(1, 4), seed=st.integers())
def test_a_sample_in_place_of_another_is_told(steps: int, batch: int, seed: int) -> None:
    size = steps * batch
    samples = stream(size, 3, seed)
    samples[0] = samples[size - 1]  # comes twice in the first pass, and another never
    told = each_once(entries(samples, batch), entries(stream(size, 3, seed), batch))
    assert told
    assert told[0].step == steps, "at its second time"


def test_a_record_that_is_gone_is_filled_from_the_twin() -> None:
    twin = entries(stream(12, 2, 1), 4)
    kept = ~((twin.step == 2) & (np.arange(len(twin.id)) % 2 == 0))  # half of a step: one rank of two
    mine = Entries(twin.step[kept], twin.id[kept], missing=[2])
    whole = filled(mine, twin)
    assert np.array_equal(whole.step, twin.step)
    assert np.array_equal(whole.id, twin.id)


@pytest.mark.parametrize("rows", [[1, 2, "x"], [1, 2.5], [1, 2**70], [None], "12", None, {"1": 2}])
def test_ids_that_are_no_whole_numbers_are_not_recorded(rows: object) -> None:
    ids = array("q", [7])
    assert add_ids(ids, rows) == NOT_RECORDED
    assert ids.tolist() == [7]


def test_ids_are_counted() -> None:
    ids = array("q")
    assert add_ids(ids, [3, 1]) == 2
    assert add_ids(ids, []) == 0
    assert ids.tolist() == [3, 1]
