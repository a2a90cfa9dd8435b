"""Every sample of an epoch is learned from exactly once, by exactly one rank, in an order that anybody can repeat."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.training.data import order

ROWS = st.integers(1, 3000)
BATCH = st.integers(1, 400)
SEED = st.integers(0, 2**40)


@given(rows=ROWS, batch=BATCH, world_size=st.integers(1, 9), epoch=st.integers(0, 3), seed=SEED)
def test_each_sample_goes_to_one_rank_once_an_epoch(
    rows: int, batch: int, world_size: int, epoch: int, seed: int
) -> None:
    steps = order.steps_in_epoch(rows, batch)
    batches = [order.global_batch_rows(rows, batch, seed, epoch * steps + place) for place in range(steps)]
    parts = [order.share(one, rank, world_size) for one in batches for rank in range(world_size)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
    assert [len(one) for one in batches[:-1]] == [batch] * (steps - 1)


@given(rows=ROWS, batch=BATCH, seed=SEED)
def test_carried_batches_are_of_one_size_and_each_sample_comes_once_an_epoch(rows: int, batch: int, seed: int) -> None:
    steps = -(-3 * rows // batch)
    batches = [order.global_batch_rows(rows, batch, seed, step, carry=True) for step in range(steps)]
    assert {len(one) for one in batches} == {batch}
    stream = np.concatenate(batches)
    for epoch in range(3):
        assert sorted(stream[epoch * rows : (epoch + 1) * rows].tolist()) == list(range(rows))
    begins = [order.epoch_of(step, rows, batch, carry=True) for step in range(steps)]
    assert begins == [step * batch // rows for step in range(steps)]


@given(rows=ROWS, batch=BATCH, world_size=st.integers(1, 9), step=st.integers(0, 50), seed=SEED)
def test_the_global_batch_does_not_depend_on_the_number_of_ranks(
    rows: int, batch: int, world_size: int, step: int, seed: int
) -> None:
    whole = order.global_batch_rows(rows, batch, seed, step)
    parts = [order.share(whole, rank, world_size) for rank in range(world_size)]
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(size=st.integers(0, 100), count=st.integers(1, 20))
def test_micro_batches_are_never_empty_and_keep_all_samples(size: int, count: int) -> None:
    pieces = order.micro_batches(np.arange(size), count)
    assert len(pieces) == min(size, count)
    assert all(len(piece) for piece in pieces)
    assert [row for piece in pieces for row in piece.tolist()] == list(range(size))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    everything = np.arange(1000)
    orders = {tuple(order.permute(everything, 1000, seed, epoch).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_positions_and_samples_are_unrelated() -> None:
    """The correlation of an order with the identity has a standard deviation of 1/sqrt(rows): 0.01 here."""
    rows = 10_000
    shuffled = [order.permute(np.arange(rows), rows, seed, 0) for seed in range(20)]
    correlations = [np.corrcoef(np.arange(rows), one)[0, 1] for one in shuffled]
    assert max(map(abs, correlations)) < 0.05
    neighbours = [np.mean(np.diff(one) == 1) for one in shuffled]  # 1/rows by chance
    assert max(neighbours) < 0.002


def test_a_billion_rows_cost_no_memory() -> None:
    assert order.global_batch_rows(10**9, 64, 0, 3).max() < 10**9
